//! The search for the token in everything that the server gives out or leaves behind.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use support::{Api, Server};

use crate::scenes::TOKEN;

/// Searches what the server prints and what its API gives; names what was searched.
pub(crate) async fn check_outputs(server: &Server, api: &Api) -> Result<[&'static str; 5]> {
    check_text("the server's output", &server.output())?;
    for path in ["/api/audit/export", "/api/resources", "/api/bots", "/api/plugins", "/metrics"] {
        let (status, body) = api.get(path).await?;
        ensure!(status == 200, "GET {path} answered {status}");
        check_text(path, &body.to_string())?;
    }
    check_files(server)?;
    Ok(["the answers", "the audit", "the API", "the logs", "the data folder"])
}

/// Searches the files of the server.
pub(crate) fn check_files(server: &Server) -> Result<()> {
    let mut folders = vec![server.data_dir()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            // Files of the database come and go while it is in use.
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                check(&path.display().to_string(), &bytes)?;
            }
        }
    }
    Ok(())
}

/// Searches a text.
pub(crate) fn check_text(place: &str, text: &str) -> Result<()> {
    check(place, text.as_bytes())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let entries: std::io::Result<Vec<PathBuf>> = read();
    entries.with_context(|| format!("cannot read {}", folder.display()))
}

fn check(place: &str, bytes: &[u8]) -> Result<()> {
    for form in forms() {
        ensure!(!bytes.windows(form.len()).any(|window| window == form), "the token is in {place}");
    }
    Ok(())
}

/// The token in clear, reversed, in hex, and in base64 at each alignment.
fn forms() -> Vec<Vec<u8>> {
    let token = TOKEN.as_bytes();
    let mut forms = vec![
        token.to_vec(),
        token.iter().rev().copied().collect(),
        hex::encode(token).into_bytes(),
        hex::encode_upper(token).into_bytes(),
    ];
    for skip in 0..3 {
        // Whole groups of three bytes are encoded alike wherever they stand.
        let whole = &token[skip..skip + (token.len() - skip) / 3 * 3];
        forms.push(BASE64_STANDARD_NO_PAD.encode(whole).into_bytes());
        forms.push(BASE64_URL_SAFE_NO_PAD.encode(whole).into_bytes());
    }
    forms
}
