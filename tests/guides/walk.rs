//! Runs the examples of a page exactly as written, and compares their output with the output on the page.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use tokio::process::Command;

/// A time-out that is far longer than the examples of a page need, even on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(120);
/// Separates the outputs of two examples: ASCII's record separator, which no example prints.
const SEPARATOR: char = '\u{1e}';
/// Matches any text in an output on a page.
const ANY: char = '…';

/// A block of commands, and the output that follows it on the page.
pub(super) struct Example {
    /// The heading of the section.
    pub(super) section: String,
    pub(super) commands: String,
    shown: Option<String>,
}

/// Returns the `sh` blocks of a page. A `json` or `text` block directly after an `sh` block is the output of the `sh`
/// block.
pub(super) fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let (mut section, mut language, mut block) = (String::new(), None::<String>, String::new());
    let mut follows_commands = false;
    for line in page.lines() {
        match (line.strip_prefix("```"), language.take()) {
            (Some(name), None) => language = Some(name.to_owned()),
            (Some(_), Some(name)) => {
                let text = std::mem::take(&mut block);
                let is_output = matches!(name.as_str(), "json" | "text");
                match (examples.last_mut().filter(|_| follows_commands && is_output), name.as_str()) {
                    (Some(example), _) => example.shown = Some(text),
                    (None, "sh") => examples.push(Example { section: section.clone(), commands: text, shown: None }),
                    _ => {}
                }
                follows_commands = name == "sh";
            }
            (None, Some(name)) => {
                block.push_str(line);
                block.push('\n');
                language = Some(name);
            }
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    heading.clone_into(&mut section);
                }
                follows_commands &= line.is_empty();
            }
        }
    }
    examples
}

/// Returns the indented blocks of the sections whose headings start with one of `headings`, in the order of the page.
pub(super) fn indented(page: &str, headings: &[&str]) -> Vec<Example> {
    let is_wanted = |section: &&str| headings.iter().any(|heading| section.starts_with(heading));
    let example = |section: &str| {
        let commands: String =
            section.lines().filter_map(|line| line.strip_prefix("    ")).flat_map(|line| [line, "\n"]).collect();
        Example { section: section.lines().next().unwrap_or_default().to_owned(), commands, shown: None }
    };
    page.split("\n## ").filter(is_wanted).map(example).collect()
}

/// The environment of the examples.
pub(super) struct Place<'a> {
    pub(super) folder: &'a Path,
    pub(super) variables: Vec<(&'a str, String)>,
    /// Replacements for texts of the page, such as a fixed address, because tests use free ports.
    pub(super) replacements: Vec<(&'a str, String)>,
}

impl Place<'_> {
    /// Runs the examples, and compares each output with the output on the page.
    pub(super) async fn run(&self, examples: &[Example]) -> Result<()> {
        for (example, printed) in examples.iter().zip(self.outputs(examples).await?) {
            let Some(shown) = &example.shown else { continue };
            let Example { section, commands, .. } = example;
            ensure!(
                is_as_shown(&printed, shown)?,
                "{section}: the commands\n{commands}\nprint\n{printed}\nand not\n{shown}"
            );
        }
        Ok(())
    }

    /// Runs the examples in one shell, so that variables and functions persist. Returns the output of each example,
    /// including errors.
    pub(super) async fn outputs(&self, examples: &[Example]) -> Result<Vec<String>> {
        let mut script = "exec 2>&1\nset -u\numask 022\n".to_owned();
        for Example { commands, .. } in examples {
            script
                .push_str(&self.replacements.iter().fold(commands.clone(), |text, (from, to)| text.replace(from, to)));
            script.push_str("printf '\\036'\n");
        }
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &script]).current_dir(self.folder).stdin(Stdio::null()).kill_on_drop(true);
        bash.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let output = tokio::time::timeout(RUN_MAX, bash.output())
            .await
            .context("timed out waiting for the examples to end")??;
        let printed = String::from_utf8(output.stdout)?;
        let outputs: Vec<&str> = printed.split(SEPARATOR).collect();
        ensure!(outputs.len() == examples.len() + 1, "the shell ended early:\n{printed}");
        let trimmed = |text: &&str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        Ok(outputs[..examples.len()].iter().map(trimmed).collect())
    }
}

/// Returns whether an output matches the output on the page, where `…` matches any text.
fn is_as_shown(printed: &str, shown: &str) -> Result<bool> {
    let pieces: Vec<String> = shown.trim().split(ANY).map(regex::escape).collect();
    Ok(Regex::new(&format!("^{}$", pieces.join("(?s:.*)")))?.is_match(printed.trim()))
}

#[test]
fn an_output_belongs_to_the_commands_right_before_it() {
    let page =
        "## A\n```sh\none\n```\n\n```json\n1\n```\n```sh\ntwo\n```\nwords\n```json\n2\n```\n## B\n```yaml\n3\n```\n";
    let found: Vec<_> =
        examples(page).into_iter().map(|example| (example.section, example.commands, example.shown)).collect();
    let example = |commands: &str, shown: Option<&str>| ("A".to_owned(), commands.to_owned(), shown.map(str::to_owned));
    assert_eq!(found, [example("one\n", Some("1\n")), example("two\n", None)]);
}

#[test]
fn an_ellipsis_stands_for_any_text_and_nothing_else_does() -> Result<()> {
    assert!(is_as_shown("{\"id\":\"7\",\"n\":1}\n", "{\"id\":\"…\",\"n\":1}")?);
    assert!(!is_as_shown("{\"id\":\"7\",\"n\":2}", "{\"id\":\"…\",\"n\":1}")?);
    assert!(!is_as_shown("more {\"n\":1}", "{\"n\":1}")?);
    Ok(())
}
