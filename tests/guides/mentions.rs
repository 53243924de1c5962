//! All items that the pages mention exist: pages, files, routes, commands with their flags, and tasks.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use support::Server;

use super::{Page, page, pages, root};
use crate::cli::run;

const DESCRIPTION: &str = "host/openapi.json";
const TASKS: &str = "host/crates/xtask/src/main.rs";

/// Returns the code of a page: blocks line by line, and spans.
fn code(page: &str) -> Result<Vec<String>> {
    let span = Regex::new("`([^`]+)`")?;
    let mut code = Vec::new();
    let mut is_fenced = false;
    let mut prose = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced || line.starts_with("    ") {
            code.push(line.trim().to_owned());
        } else {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    code.extend(span.captures_iter(&prose).map(|found| found[1].replace('\n', " ")));
    Ok(code)
}

#[test]
fn links_lead_to_pages_and_sections_that_exist() -> Result<()> {
    let pages = pages()?;
    let link = Regex::new(r"\]\(([^)\s]+)\)")?;
    let mut found = 0;
    for Page { name, text } in &pages {
        for link in link.captures_iter(text).map(|link| link[1].to_owned()) {
            if link.contains("://") {
                continue;
            }
            found += 1;
            let (file, section) = link.split_once('#').map_or((link.as_str(), None), |(file, at)| (file, Some(at)));
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            let target = root()?.join(if file.is_empty() {
                name.clone()
            } else {
                format!("{folder}/{file}").trim_start_matches('/').to_owned()
            });
            ensure!(target.exists(), "{name}: the target of {link} does not exist");
            if let Some(section) = section {
                let text = std::fs::read_to_string(&target)?;
                let sections: Vec<String> = text.lines().filter_map(heading).collect();
                ensure!(
                    sections.iter().any(|known| known == section),
                    "{name}: no section of {sections:?} has the anchor {link}"
                );
            }
        }
    }
    ensure!(found > 20, "only {found} links were found");
    Ok(())
}

/// Returns GitHub's anchor of a heading.
fn heading(line: &str) -> Option<String> {
    let text = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|character| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_'));
    Some(kept.map(|character| if character == ' ' { '-' } else { character }).collect())
}

/// Checks the paths of tests and sources, such as those that SECURITY.md lists for its promises.
#[test]
fn files_that_are_named_exist() -> Result<()> {
    let file = Regex::new(r"^(\.\./)?(tests|host|crates|src|sdk-guest|plugins-wasm|migrations|wit|docs)/[\w./-]+$")?;
    let mut found = 0;
    for Page { name, text } in pages()? {
        for path in code(&text)?.iter().filter(|path| file.is_match(path)) {
            found += 1;
            let exists = ["", "host"].iter().any(|base| root().is_ok_and(|root| root.join(base).join(path).exists()));
            // These are folders that any crate may have.
            ensure!(exists || path.starts_with("tests/corpus"), "{name}: {path} does not exist");
        }
    }
    ensure!(found > 50, "only {found} paths were found");
    Ok(())
}

#[test]
fn routes_that_are_named_are_in_the_description() -> Result<()> {
    let description: serde_json::Value = serde_json::from_str(&page(DESCRIPTION)?)?;
    let parameter = Regex::new(r"\\\{[^}]+\}")?;
    let mut routes = Vec::new();
    for (path, item) in description["paths"].as_object().context("the API description has no paths")? {
        let pattern = parameter.replace_all(&regex::escape(path), "[^/]+").into_owned();
        for method in item.as_object().context("the path has no methods")?.keys() {
            routes.push((method.to_uppercase(), Regex::new(&format!("^{pattern}$"))?));
        }
    }
    let mention = Regex::new(r"\b(GET|POST|PUT|PATCH|DELETE)\s+(/(?:api|healthz|readyz|metrics|docs|oauth)[^\s`?]*)")?;
    let mut found = 0;
    for Page { name, text } in pages()? {
        for mention in mention.captures_iter(&text) {
            found += 1;
            let is_known = routes.iter().any(|(method, path)| *method == mention[1] && path.is_match(&mention[2]));
            ensure!(is_known, "{name}: the route {} {} does not exist", &mention[1], &mention[2]);
        }
    }
    ensure!(found > 20, "only {found} routes were found");
    Ok(())
}

#[test]
fn tasks_that_are_named_exist() -> Result<()> {
    let tasks = page(TASKS)?;
    let mention = Regex::new(r"cargo xtask ([a-z]+)")?;
    for Page { name, text } in pages()? {
        for task in mention.captures_iter(&text) {
            let variant = format!("{}{}", task[1][..1].to_uppercase(), &task[1][1..]);
            let is_task = Regex::new(&format!(r"(?m)^    {variant}\b"))?.is_match(&tasks);
            ensure!(is_task, "{name}: the task {} does not exist", &task[1]);
        }
    }
    Ok(())
}

/// Every `monstrum …` in code is a command, and its help lists the flags.
#[tokio::test]
async fn commands_that_are_named_exist_with_their_flags() -> Result<()> {
    let server = Server::prepare(&[])?;
    let mention = Regex::new(r"(?:^|[\s(/])monstrum ([^`|#;&)>]+)")?;
    let (word, flag) = (Regex::new("^[a-z][a-z-]*$")?, Regex::new("^--[a-z-]+")?);
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut found = 0;
    for Page { name, text } in pages()? {
        for line in code(&text)? {
            for mention in mention.captures_iter(&line) {
                let words: Vec<&str> = mention[1].split_whitespace().collect();
                let leading: Vec<&str> = words.iter().copied().take_while(|text| word.is_match(text)).take(3).collect();
                let Some((path, help)) = command(&server, &mut helps, &leading).await? else {
                    ensure!(leading.is_empty(), "{name}: `monstrum {}` is not a command", words.join(" "));
                    continue;
                };
                found += 1;
                let needs_more = help.contains("<COMMAND>") && leading.len() > path;
                ensure!(!needs_more, "{name}: `monstrum {}` is not a command", leading.join(" "));
                for flag in words.iter().filter_map(|text| flag.find(text)) {
                    ensure!(
                        help.contains(flag.as_str()),
                        "{name}: `monstrum {}` has no {}",
                        leading[..path].join(" "),
                        flag.as_str()
                    );
                }
            }
        }
    }
    ensure!(found > 60, "only {found} commands were found");
    Ok(())
}

/// Finds the longest command at the start of `words`. Returns its number of words and its help.
async fn command(
    server: &Server,
    helps: &mut BTreeMap<Vec<String>, String>,
    words: &[&str],
) -> Result<Option<(usize, String)>> {
    for length in (1..=words.len()).rev() {
        let path: Vec<String> = words[..length].iter().map(|word| (*word).to_owned()).collect();
        let help = match helps.get(&path) {
            Some(help) => help.clone(),
            None => {
                let output = run(server, &[&words[..length], &["--help"]].concat()).await?;
                let help = String::from_utf8(output.stdout)?;
                let is_its_own = help.contains(&format!("Usage: monstrum {}", path.join(" ")));
                let help = if is_its_own { help } else { String::new() };
                helps.insert(path, help.clone());
                help
            }
        };
        if !help.is_empty() {
            return Ok(Some((length, help)));
        }
    }
    Ok(None)
}
