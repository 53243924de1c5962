//! docs/configuration.md lists every setting of the server. The tables are generated from the flags of
//! `monstrum serve`; `cargo xtask settings` rewrites them.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use clap::{Arg, Args};
use monstrum_host::config::ServeFlags;
use support::Server;

use super::{page, root};
use crate::cli::run;

const PAGE: &str = "docs/configuration.md";
/// The variable that `cargo xtask settings` sets.
const REWRITE: &str = "MONSTRUM_REWRITE_DOCS";
const END: &str = "<!-- end of generated table -->";

/// A generated part of the page.
struct Part {
    begin: &'static str,
    has: fn(&str) -> bool,
}

const PARTS: [Part; 2] = [
    Part { begin: "<!-- generated table: server -->", has: |key| !key.starts_with("sandbox") },
    Part { begin: "<!-- generated table: sandboxes -->", has: |key| key.starts_with("sandbox") },
];

#[test]
fn every_setting_is_in_the_reference_as_the_flags_describe_it() -> Result<()> {
    let page = page(PAGE)?;
    let generated = generated(&page)?;
    if is_rewriting() {
        return Ok(std::fs::write(root()?.join(PAGE), generated)?);
    }
    ensure!(page == generated, "{PAGE} differs from the flags of `monstrum serve`; run: cargo xtask settings");
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a task of this repository asks for the page, not an operator")]
fn is_rewriting() -> bool {
    std::env::var_os(REWRITE).is_some()
}

/// Returns the page with up-to-date tables.
fn generated(page: &str) -> Result<String> {
    let command = ServeFlags::augment_args(clap::Command::new("serve"));
    let mut text = page.to_owned();
    for Part { begin, has } in PARTS {
        let (before, rest) = text.split_once(begin).with_context(|| format!("{PAGE} has no line {begin}"))?;
        let (_, after) = rest.split_once(END).with_context(|| format!("{PAGE} has no end of {begin}"))?;
        let mut table =
            "| Flag | Variable | Key in the file | Default | Meaning |\n| --- | --- | --- | --- | --- |\n".to_owned();
        for argument in command.get_arguments().filter(|argument| has(argument.get_id().as_str())) {
            table.push_str(&row(argument)?);
        }
        text = format!("{before}{begin}\n{table}{END}{after}");
    }
    Ok(text)
}

/// Formats a setting as a line of a table. If the setting has a default, the help of the setting ends with the default.
fn row(argument: &Arg) -> Result<String> {
    let flag = argument.get_long().context("the setting has no flag")?;
    let variable = argument.get_env().and_then(|name| name.to_str()).context("the setting has no variable")?;
    let help = argument.get_help().context("the setting has no help text")?.to_string();
    let (meaning, default) = match help.split_once(" [default: ") {
        Some((meaning, default)) => (meaning, default.trim_end_matches(']')),
        None => (help.as_str(), "none"),
    };
    let value = argument.get_value_names().and_then(|names| names.first()).context("the setting has no value name")?;
    let mut row = String::new();
    writeln!(
        row,
        "| `--{flag} {value}` | `{variable}` | `{}` | {default} | {} |",
        argument.get_id(),
        meaning.replace('|', "\\|")
    )?;
    Ok(row.replace("DIR|URL", "DIR\\|URL"))
}

/// The configuration file accepts the same keys as the command line.
#[test]
fn the_keys_of_the_file_are_those_of_the_flags() -> Result<()> {
    let unknown = serde_json::from_str::<ServeFlags>("{\"unknown\": 1}")
        .err()
        .context("the configuration file accepts an unknown key")?;
    let unknown = unknown.to_string();
    let command = ServeFlags::augment_args(clap::Command::new("serve"));
    let known: Vec<String> = command.get_arguments().map(|argument| format!("`{}`", argument.get_id())).collect();
    assert!(unknown.contains(&format!("expected one of {} at", known.join(", "))), "{unknown}");
    for argument in command.get_arguments() {
        let key = argument.get_id().as_str();
        assert_eq!(argument.get_long(), Some(key.replace('_', "-").as_str()));
        assert_eq!(
            argument.get_env().and_then(|name| name.to_str()),
            Some(format!("MONSTRUM_{}", key.to_uppercase()).as_str())
        );
    }
    Ok(())
}

/// Tests the variables that are not settings of the server: the variables of clients and authors, and the master key.
#[tokio::test]
async fn every_variable_of_the_command_line_is_in_the_reference() -> Result<()> {
    let page = page(PAGE)?;
    let server = Server::prepare(&[])?;
    let variable = regex::Regex::new("MONSTRUM_[A-Z_]+[A-Z]")?;
    let mut found = 0;
    for command in [&["serve"][..], &["plugin", "pack"], &["plugin", "install"], &["vault", "rotate"], &["doctor"]] {
        let help = String::from_utf8(run(&server, &[command, &["--help"]].concat()).await?.stdout)?;
        for name in variable.find_iter(&help) {
            found += 1;
            ensure!(page.contains(&format!("`{}`", name.as_str())), "{PAGE} does not name {}", name.as_str());
        }
    }
    ensure!(found > 40, "only {found} variables were found");
    Ok(())
}
