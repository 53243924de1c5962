//! Arguments that make no command: what is wrong with them, and as the last line what to do.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::failure::Failure;
use super::output;

/// What a process ends with that did not understand its arguments.
const MISUSED: u8 = 2;

/// How clap itself ends; ours is a hint that names the command.
const TAIL: &str = "For more information, try";

/// Tells the user. Help and the version are asked for in the same way, and no fault.
pub(super) fn report(error: &clap::Error) -> ExitCode {
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
        output::hint("name one of the commands above");
        return ExitCode::from(MISUSED);
    }
    let lines: Vec<&str> = text.trim_end().lines().filter(|line| !line.contains(TAIL)).collect();
    output::note(lines.join("\n").trim_end());
    output::hint(&hint(error));
    ExitCode::from(MISUSED)
}

fn hint(error: &clap::Error) -> String {
    let suggested = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let suggestion = suggested.into_iter().find_map(|kind| error.get(kind)).and_then(|value| match value {
        ContextValue::String(one) => Some(one.clone()),
        // The likeliest comes last.
        ContextValue::Strings(all) => all.last().cloned(),
        _ => None,
    });
    let command = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => command(&usage.to_string()),
        _ => "monstrum".to_owned(),
    };
    let help = format!("`{command} --help` shows what there is, with examples");
    match suggestion {
        Some(suggestion) => format!("did you mean `{}`? {help}", output::plain(&suggestion)),
        None => help,
    }
}

/// The command of a line of usage, up to its arguments.
fn command(usage: &str) -> String {
    let words = usage.trim().trim_start_matches("Usage:").split_whitespace();
    let words = words.take_while(|word| word.starts_with(|first: char| first.is_ascii_lowercase()));
    let command = words.collect::<Vec<_>>().join(" ");
    if command.is_empty() { "monstrum".to_owned() } else { command }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    fn hint_of(arguments: &[&str]) -> String {
        let all = std::iter::once("monstrum").chain(arguments.iter().copied());
        hint(&Cli::command().try_get_matches_from(all).unwrap_err())
    }

    #[test]
    fn the_hint_names_the_command_that_was_meant() {
        for (arguments, hint) in [
            (&["serv"][..], "did you mean `serve`? `monstrum --help` shows what there is, with examples"),
            (&["plugin", "lst"], "did you mean `list`? `monstrum plugin --help` shows what there is, with examples"),
            (&["plugin", "info"], "`monstrum plugin info --help` shows what there is, with examples"),
            (
                &["plugin", "list", "--jsn"],
                "did you mean `--json`? `monstrum plugin list --help` shows what there is, with examples",
            ),
            (&["completions", "tcsh"], "`monstrum --help` shows what there is, with examples"),
            (&["--nothing"], "`monstrum --help` shows what there is, with examples"),
        ] {
            assert_eq!(hint_of(arguments), hint, "{arguments:?}");
        }
    }
}
