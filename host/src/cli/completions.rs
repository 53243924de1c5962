//! `monstrum completions`: prints the script that makes a shell complete commands, flags and their values.

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::Shell;

use super::failure::Failure;
use super::output;

pub(super) const EXAMPLES: &str = "\
Examples:
  monstrum completions bash > ~/.local/share/bash-completion/completions/monstrum
  monstrum completions zsh > ~/.zfunc/_monstrum      with ~/.zfunc in $fpath, before compinit
  monstrum completions fish > ~/.config/fish/completions/monstrum.fish";

/// Prints the completion script of `command` for `shell`.
pub(super) fn print(shell: Shell, command: &mut clap::Command) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "monstrum", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a parser that accepts the shells whose completions are tested.
pub(super) fn shells() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"])
        .map(|name| name.parse().expect("each name is the name of a shell"))
}
