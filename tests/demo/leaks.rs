//! The search for the token in all output and all files of the server.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use anyhow::{Result, ensure};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use monstrum_search::{Needles, files_beneath};
use support::{Api, Server};

use crate::scenes::TOKEN;

static FORMS: LazyLock<Needles> = LazyLock::new(|| Needles::new(forms()));

/// Searches the answers of the API.
pub(crate) async fn check_api(api: &Api) -> Result<()> {
    for path in ["/api/audit/export", "/api/resources", "/api/bots", "/api/plugins", "/metrics"] {
        println!("searching {path} for the token …");
        let (status, body) = api.get(path).await?;
        ensure!(status == 200, "GET {path} answered {status}");
        check_text(path, &body.to_string())?;
    }
    Ok(())
}

/// Searches the output of the server, and every file of its data folder.
pub(crate) fn check_server(server: &Server) -> Result<()> {
    check_text("the server's output", &server.output())?;
    let files = files_beneath(&server.data_dir())?;
    println!("searching {} files of the data folder for the token …", files.len());
    let began = Instant::now();
    for path in &files {
        check_file(path)?;
    }
    println!("  searched in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Searches a text for the token.
pub(crate) fn check_text(place: &str, text: &str) -> Result<()> {
    ensure!(FORMS.find(text.as_bytes()).is_none(), "the token is in {place}");
    Ok(())
}

fn check_file(path: &Path) -> Result<()> {
    ensure!(FORMS.find_in_file(path)?.is_none(), "the token is in {}", path.display());
    Ok(())
}

/// Returns the token in plain text, reversed, in hex, and in base64 at each alignment.
fn forms() -> Vec<Vec<u8>> {
    let token = TOKEN.as_bytes();
    let mut forms = vec![
        token.to_vec(),
        token.iter().rev().copied().collect(),
        hex::encode(token).into_bytes(),
        hex::encode_upper(token).into_bytes(),
    ];
    for skip in 0..3 {
        // Base64 encodes a group of three bytes in the same way at every position.
        let whole = &token[skip..skip + (token.len() - skip) / 3 * 3];
        forms.push(BASE64_STANDARD_NO_PAD.encode(whole).into_bytes());
        forms.push(BASE64_URL_SAFE_NO_PAD.encode(whole).into_bytes());
    }
    forms
}
