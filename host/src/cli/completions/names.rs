//! `monstrum names`: the hidden command with which completion scripts ask for the names of objects. It prints nothing if
//! the word is not a name, or if the server cannot be asked, because a shell must not show errors during a completion.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Args, Command};
use monstrum_types::Secret;

use crate::cli::client::Client;
use crate::cli::failure::Failure;
use crate::cli::{Options, output};

/// The maximum time for which a completion waits for the server.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The maximum number of names that a completion reads.
const NAMES_MAX: usize = 1000;

/// Print the names that complete the last of the words of a command line
#[derive(Args)]
pub(in crate::cli) struct Names {
    /// The words after `monstrum`
    #[arg(last = true)]
    words: Vec<String>,
}

impl Names {
    pub(in crate::cli) async fn run(self, options: &Options, root: Command) -> Result<ExitCode, Failure> {
        let words: Vec<String> = self.words.iter().map(|word| unquoted(word)).collect();
        let names = tokio::time::timeout(ANSWER_MAX, names(options, root, &words)).await;
        for name in names.ok().flatten().unwrap_or_default() {
            output::line(name)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the names that complete the last word, or `None` if it is not a name or the server cannot be asked.
async fn names(options: &Options, mut root: Command, words: &[String]) -> Option<Vec<String>> {
    root.build();
    let (last, before) = words.split_last()?;
    let Place { segment, given } = place(&root, before, last)?;
    let client = Client::new(&given.over(options)).ok()?;
    let (items, _) = client.list(&["api", segment], &[], NAMES_MAX).await.ok()?;
    let names = items.iter().filter_map(|item| item["name"].as_str());
    // Names with characters that control a terminal are not completed.
    let names = names.filter(|name| name.starts_with(last.as_str()) && output::plain(name) == **name);
    Some(names.map(str::to_owned).collect())
}

/// The position of the last word.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// The segment of the route that lists the objects.
    segment: &'static str,
    given: Given,
}

/// The options for the connection on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Given {
    url: Option<String>,
    key: Option<String>,
    workspace: Option<String>,
    data_dir: Option<String>,
}

impl Given {
    fn set(&mut self, option: &Arg, value: &str) {
        let slot = match option.get_id().as_str() {
            "url" => &mut self.url,
            "key" => &mut self.key,
            "workspace" => &mut self.workspace,
            "data_dir" => &mut self.data_dir,
            _ => return,
        };
        *slot = Some(value.to_owned());
    }

    fn over(self, options: &Options) -> Options {
        let options = options.clone();
        Options {
            url: self.url.or(options.url),
            key: self.key.map(Secret::new).or(options.key),
            workspace: self.workspace.or(options.workspace),
            data_dir: self.data_dir.map(Into::into).or(options.data_dir),
            ..options
        }
    }
}

/// Finds the argument of which `last` is the begin, after the words `before`. Returns `None` if its values are not names.
fn place(root: &Command, before: &[String], last: &str) -> Option<Place> {
    let (mut command, mut parent) = (root, "");
    let (mut position, mut given, mut only_positions) = (0, Given::default(), false);
    let mut words = before.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            only_positions = true;
        } else if word.starts_with('-') && word.len() > 1 && !only_positions {
            let Some((option, value)) = option(command, word) else { continue };
            match value.map(str::to_owned).or_else(|| words.next().cloned()) {
                Some(value) => given.set(option, &value),
                None => return Some(Place { segment: segment(parent, command, option)?, given }),
            }
        } else if let Some(subcommand) = command.find_subcommand(word).filter(|_| position == 0) {
            (parent, command) = (command.get_name(), subcommand);
        } else {
            position += 1;
        }
    }
    if last.starts_with('-') && !only_positions {
        return None;
    }
    let argument = command.get_positionals().nth(position)?;
    Some(Place { segment: segment(parent, command, argument)?, given })
}

/// Returns the option of a word such as `--name` or `--name=value` that takes a value, and the value in the word.
fn option<'c, 'w>(command: &'c Command, word: &'w str) -> Option<(&'c Arg, Option<&'w str>)> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let is_it = |argument: &&Arg| match name.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => argument.get_short().is_some_and(|short| name.chars().skip(1).eq([short])),
    };
    let option = command.get_arguments().find(is_it).filter(|option| option.get_action().takes_values())?;
    Some((option, value))
}

/// Returns the segment of the route that lists the objects whose names are the values of an argument.
fn segment(parent: &str, command: &Command, argument: &Arg) -> Option<&'static str> {
    // These arguments accept ids only.
    if argument.get_value_names().is_some_and(|names| names.iter().any(|name| name.as_str() == "ID")) {
        return None;
    }
    match (argument.get_id().as_str(), parent, command.get_name()) {
        ("bot" | "bot_id", _, _) => Some("bots"),
        ("resource" | "resource_id", _, _) => Some("resources"),
        ("role", _, _) => Some("roles"),
        ("webhook", _, _) => Some("webhooks"),
        ("workflow", _, _) => Some("workflows"),
        ("workspace", _, _) | ("name_or_id", "workspace", _) => Some("workspaces"),
        ("name", "plugin", "approve" | "info" | "reload" | "uninstall" | "update") => Some("plugins"),
        _ => None,
    }
}

/// Removes the quotes of a shell from a word that may be incomplete.
fn unquoted(word: &str) -> String {
    word.replace(['\\', '"', '\''], "")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn place_of(words: &[&str]) -> Option<Place> {
        let mut root = Cli::command();
        root.build();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let (last, before) = words.split_last()?;
        place(&root, before, last)
    }

    #[test]
    fn the_arguments_of_commands_are_names() {
        let segment = |words: &[&str]| place_of(words).map(|place| place.segment);
        for (words, expected) in [
            (&["bot", "show", ""][..], Some("bots")),
            (&["bot", "edit", "--name", "x", "tr"], Some("bots")),
            (&["bot", "create", ""], None),
            (&["binding", "create", "helper", "t"], Some("resources")),
            (&["binding", "create", "helper", "tracker", "--role", ""], Some("roles")),
            (&["binding", "create", "helper", "tracker", ""], None),
            (&["role", "delete", ""], Some("roles")),
            (&["webhook", "rotate", ""], Some("webhooks")),
            (&["webhook", "create", ""], None),
            (&["webhook", "create", "x", "--bot", ""], Some("bots")),
            (&["subscription", "create", ""], Some("bots")),
            (&["subscription", "show", ""], None),
            (&["workflow", "run", ""], Some("workflows")),
            (&["workflow", "runs", "--workflow", ""], Some("workflows")),
            (&["workflow", "trigger", "add", ""], Some("workflows")),
            (&["workflow", "runs", ""], None),
            (&["workflow", "resolve", "01998a3c", ""], None),
            (&["workspace", "show", "a"], Some("workspaces")),
            (&["bot", "list", "--workspace", ""], Some("workspaces")),
            (&["plugin", "info", ""], Some("plugins")),
            (&["plugin", "new", ""], None),
            (&["call", ""], Some("bots")),
            (&["check", ""], Some("bots")),
            (&["audit", "list", "--bot", ""], None),
            (&["bot", "show", "--js"], None),
            (&["bot", "show", "--json", ""], Some("bots")),
            (&["bot", ""], None),
            (&[""], None),
            (&[], None),
        ] {
            assert_eq!(segment(words), expected, "{words:?}");
        }
    }

    #[test]
    fn the_options_of_the_line_choose_the_server() {
        let place = place_of(&["--url=http://h", "role", "show", "--workspace", "acme", ""]).unwrap();
        let given = Given { url: Some("http://h".to_owned()), workspace: Some("acme".to_owned()), ..Given::default() };
        assert_eq!(place, Place { segment: "roles", given });
    }

    #[test]
    fn quotes_are_no_part_of_a_name() {
        assert_eq!(unquoted(r#"Echo\ "Cham'ber"#), "Echo Chamber");
    }
}
