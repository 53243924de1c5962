//! `monstrum completions`: prints the script that makes a shell complete commands, flags and their values, and the names of
//! objects.

mod names;

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::Shell;

use super::failure::Failure;
use super::output;

pub(super) use names::Names;

pub(super) const EXAMPLES: &str = "\
Examples:
  monstrum completions bash > ~/.local/share/bash-completion/completions/monstrum
  monstrum completions zsh > ~/.zfunc/_monstrum      with ~/.zfunc in $fpath, before compinit
  monstrum completions fish > ~/.config/fish/completions/monstrum.fish";

/// The function of the bash and zsh scripts that completes commands and flags. The scripts call it `_monstrum`; here it gets
/// another name, because [`BASH`] and [`ZSH`] define a `_monstrum` that first asks for names.
const STATIC: &str = "_monstrum_static() {";

/// Completes names in bash. Names are quoted, because they can contain spaces and characters that the shell interprets.
const BASH: &str = r#"
_monstrum() {
    local name
    local -a names=()
    while IFS= read -r name; do
        names+=("$(printf '%q' "$name")")
    done < <("$1" names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${#names[@]} -gt 0 ]]; then
        COMPREPLY=("${names[@]}")
    else
        _monstrum_static "$@"
    fi
}
"#;

/// Completes names in zsh, which quotes them itself.
const ZSH: &str = r#"
_monstrum() {
    local -a names
    names=("${(@f)$("${(Q)words[1]}" names -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    names=("${(@)names:#}")
    if (( $#names )); then
        compadd -- "${names[@]}"
    else
        _monstrum_static "$@"
    fi
}
"#;

/// Completes names in fish, which quotes them itself. The values of options are completed without names.
const FISH: &str = r"
complete -c monstrum -a '(monstrum names -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
";

/// Prints the completion script of `command` for `shell`.
pub(super) fn print(shell: Shell, command: &mut clap::Command) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "monstrum", &mut script);
    output::line(with_names(shell, &String::from_utf8_lossy(&script)).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Adds the completion of names to a script.
fn with_names(shell: Shell, script: &str) -> String {
    let own = match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        _ => return format!("{script}{FISH}"),
    };
    // The new function follows the old one, and precedes the commands that register it.
    let script = script.replacen("_monstrum() {", STATIC, 1);
    match script.split_once("\n}\n") {
        Some((function, rest)) => format!("{function}\n}}\n{own}{rest}"),
        None => script,
    }
}

/// Returns a parser that accepts the shells whose completions are tested.
pub(super) fn shells() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"])
        .map(|name| name.parse().expect("each name is the name of a shell"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_function_for_names_replaces_the_function_of_the_script() {
        for shell in [Shell::Bash, Shell::Zsh] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "monstrum", &mut script);
            let script = with_names(shell, &String::from_utf8(script).unwrap());
            for definition in ["\n_monstrum() {\n", "_monstrum_static() {\n"] {
                assert_eq!(script.matches(definition).count(), 1, "{shell}: {definition}");
            }
            let registered = if shell == Shell::Bash { "complete -F _monstrum " } else { "compdef _monstrum monstrum" };
            assert!(script.find("\n_monstrum() {").unwrap() < script.find(registered).unwrap(), "{shell}");
        }
    }
}
