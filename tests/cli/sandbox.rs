//! `monstrum sandbox`: the report on the machine's support for sandboxes, and the building of a system for sandboxes.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use support::Server;

use crate::cli::{parsed, told};
use crate::world::text;

/// The command needs neither a server nor a data folder, and creates nothing.
#[tokio::test]
async fn the_doctor_looks_at_this_machine() -> Result<()> {
    let server = Server::prepare(&[])?;
    let (code, report) = parsed(&server, &["sandbox", "doctor"]).await?;
    let checks = report["checks"].as_array().context("the report has no checks")?;
    let is_missing = |check: &Value| check["status"] == "missing";
    assert_eq!(report["ready"], json!(!checks.iter().any(is_missing)), "{report}");
    assert_eq!(code, Some(i32::from(report["ready"] == json!(false))));
    for check in checks {
        let is_fine = check["status"] == "ok";
        assert!(!text(&check["name"]).is_empty() && !text(&check["detail"]).is_empty(), "{check}");
        assert_eq!(text(&check["remedy"]).is_empty(), is_fine, "{check}");
    }
    let said = told(&server, &["sandbox", "doctor"]).await?;
    let verdict = if code == Some(0) {
        "sandboxes can run on this machine\n[exit 0]"
    } else {
        "sandboxes cannot run on this machine\n[exit 1]"
    };
    assert!(said.ends_with(verdict) && said.contains(": kernel: Linux "), "{said}");
    assert!(!server.data_dir().exists(), "the command created the data folder");
    Ok(())
}

#[tokio::test]
async fn a_release_that_is_none_is_refused_before_anything_is_made() -> Result<()> {
    let server = Server::prepare(&[])?;
    let build = ["sandbox", "template", "build", "--mirror=https://mirror.example/debian", "--suite=../bookworm"];
    assert_eq!(
        told(&server, &build).await?,
        "[stderr]\n\
         error: the release `../bookworm` or the mirror `https://mirror.example/debian` is not valid\n\
         hint: run `monstrum sandbox template build --help` to see the requirements\n\
         [exit 1]"
    );
    assert!(!server.data_dir().exists());
    Ok(())
}
