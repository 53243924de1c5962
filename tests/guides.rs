//! README.md and the other pages: the examples run exactly as written, and all items that the pages mention exist.

mod api;
mod configuration;
mod demo;
mod mentions;
mod operators;
mod readme;
mod start;
mod triage;
mod walk;
mod webhooks;
mod workflows;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use monstrum_egress::SECRET_BYTES_MIN;
use regex::Regex;

/// A Markdown page of the repository.
struct Page {
    /// The path relative to the root of the repository.
    name: String,
    text: String,
}

fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("tests/ is not in the workspace")?;
    Ok(root.to_owned())
}

/// Returns the text of a page or another file. It is read at run time, so that a change of a page needs no build.
fn page(name: &str) -> Result<String> {
    fs::read_to_string(root()?.join(name)).with_context(|| format!("cannot read {name}"))
}

/// Returns every page for readers: the pages of the root and of docs/.
fn pages() -> Result<Vec<Page>> {
    let root = root()?;
    let mut pages = Vec::new();
    for folder in ["", "docs"] {
        for entry in fs::read_dir(root.join(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(&root)?.to_string_lossy().into_owned();
                pages.push(Page { name, text: fs::read_to_string(&path)? });
            }
        }
    }
    ensure!(pages.len() > 10, "only {} pages were found", pages.len());
    pages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pages)
}

/// Returns the folders in which the commands of a page find programs.
#[expect(clippy::disallowed_methods, reason = "the commands of the page find programs where this test does")]
fn search_path() -> Result<String> {
    std::env::var("PATH").context("PATH is not set")
}

/// The API rejects secrets that are too short with 422.
#[test]
fn secrets_in_examples_are_long_enough_to_be_saved() -> Result<()> {
    let secret = Regex::new(r#""(access_token|api_key|api_token|client_secret|password)": *"([^"]*)""#)?;
    let mut found = 0;
    for Page { name, text } in pages()? {
        for example in secret.captures_iter(&text) {
            found += 1;
            let value = &example[2];
            ensure!(value.len() >= SECRET_BYTES_MIN, "{name}: `{value}` is refused");
            ensure!(value.is_ascii(), "{name}: `{value}` cannot be sent in a header");
        }
    }
    ensure!(found >= 4, "only {found} examples were found");
    Ok(())
}
