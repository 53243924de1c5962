//! Reports invalid arguments. The last line of the report is a hint.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::failure::Failure;
use super::output;

/// The exit code for invalid arguments.
const MISUSED: u8 = 2;

/// The flag of `monstrum credential set` whose values are never printed.
const SECRET_FLAG: &str = "--field ";

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
    let hint = || hint(std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()), root);
    if let Some(message) = without_value(error) {
        output::error(&message);
        output::hint(&hint());
        return ExitCode::from(MISUSED);
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
    output::hint(&hint());
    ExitCode::from(MISUSED)
}

/// Returns the message for an invalid value of a flag of credentials. It does not repeat the value, which may be a secret
/// although it must not be one.
fn without_value(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::ValueValidation || !flag.starts_with(SECRET_FLAG) {
        return None;
    }
    let fault = std::error::Error::source(error).map(|fault| format!(": {fault}")).unwrap_or_default();
    Some(format!("invalid value for '{flag}'{fault}"))
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
    fn a_value_that_may_be_a_secret_is_not_repeated() {
        let parse = |field: &str| Cli::command().try_get_matches_from(["monstrum", "credential", "set", "r", field]);
        for field in ["--field=hunter2", "--field==hunter2"] {
            let error = parse(field).unwrap_err();
            let expected = "invalid value for '--field <NAME=@FILE>': expected NAME=@FILE or NAME=env:VARIABLE";
            assert_eq!(without_value(&error).as_deref(), Some(expected));
        }
        let error = Cli::command().try_get_matches_from(["monstrum", "role", "create", "r", "--scope=a"]).unwrap_err();
        assert_eq!(without_value(&error), None);
    }

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
