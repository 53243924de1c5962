//! Reports invalid arguments. The last line of the report is a hint.

use std::process::ExitCode;

use clap::error::ErrorKind;

use super::failure::Failure;
use super::output;

/// The exit code for invalid arguments.
const MISUSED: u8 = 2;

/// The start of the last line of clap's report. A hint that names the command replaces this line.
const TAIL: &str = "For more information, try";

/// Reports the error. clap also returns requests for help and for the version as errors; for such requests, the exit
/// code is 0.
pub(super) fn report(error: &clap::Error, root: &clap::Command) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => Failure::of_output(&error).report(false),
        };
    }
    let rendered = error.render();
    let text = if output::is_coloured() { rendered.ansi().to_string() } else { rendered.to_string() };
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        output::note(text.trim_end());
        output::hint("use one of the commands above");
        return ExitCode::from(MISUSED);
    }
    let lines: Vec<&str> = text.trim_end().lines().filter(|line| !line.contains(TAIL)).collect();
    output::note(lines.join("\n").trim_end());
    output::hint(&hint(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()), root));
    ExitCode::from(MISUSED)
}

/// Returns a hint that names the help of the innermost command in the arguments.
fn hint(arguments: impl Iterator<Item = String>, root: &clap::Command) -> String {
    let (mut command, mut path) = (root, root.get_name().to_owned());
    for argument in arguments.skip(1) {
        if let Some(next) = command.find_subcommand(&argument) {
            command = next;
            path = format!("{path} {argument}");
        }
    }
    format!("`{path} --help` shows usage and examples")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    #[test]
    fn the_hint_names_the_command_that_was_meant() {
        for (arguments, command) in [
            (&["serv"][..], "monstrum"),
            (&["plugin", "lst"], "monstrum plugin"),
            (&["plugin", "--json", "info"], "monstrum plugin info"),
            (&["--url", "http://h", "plugin", "list", "--jsn"], "monstrum plugin list"),
            (&["completions", "tcsh"], "monstrum completions"),
            (&["--nothing"], "monstrum"),
        ] {
            let all = std::iter::once("monstrum").chain(arguments.iter().copied()).map(str::to_owned);
            let expected = format!("`{command} --help` shows usage and examples");
            assert_eq!(hint(all, &Cli::command()), expected, "{arguments:?}");
        }
    }
}
