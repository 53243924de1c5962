//! README.md and docs/: what their examples send can be pasted as it stands.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use monstrum_egress::SECRET_BYTES_MIN;
use regex::Regex;

/// Shorter secrets are refused with 422.
#[test]
fn secrets_in_examples_are_long_enough_to_be_saved() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("tests/ lies in the workspace")?;
    let mut guides = vec![root.join("README.md")];
    for entry in fs::read_dir(root.join("docs"))? {
        guides.push(entry?.path());
    }
    let secret = Regex::new(r#""(access_token|api_key|api_token|client_secret|password)": *"([^"]*)""#)?;
    let mut found = 0;
    for guide in guides.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(guide)?;
        for example in secret.captures_iter(&text) {
            found += 1;
            let value = &example[2];
            ensure!(value.len() >= SECRET_BYTES_MIN, "{}: `{value}` is refused", guide.display());
            ensure!(value.is_ascii(), "{}: `{value}` is no text of a header", guide.display());
        }
    }
    ensure!(found >= 4, "only {found} examples were found");
    Ok(())
}
