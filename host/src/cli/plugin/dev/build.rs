//! Builds an author's crate with cargo. The terminal shows the messages of cargo unchanged.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use super::super::super::failure::Failure;

const TARGET: &str = "wasm32-wasip2";

/// Builds the crate in `dir` and returns the path of the component.
pub(super) async fn run(dir: &Path, with_cargo_component: bool) -> Result<PathBuf, Failure> {
    let mut command = Command::new("cargo");
    match with_cargo_component {
        true => command.args(["component", "build", "--release"]),
        false => command.args(["build", "--release", "--target", TARGET]),
    };
    // cargo renders errors as usual and reports built files as JSON, so the location of the target folder does not
    // matter.
    command.arg("--message-format=json-render-diagnostics").current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let output = command.spawn().map(tokio::process::Child::wait_with_output);
    let cannot_run = |error| {
        Failure::of("cannot run cargo", &error, "install Rust with rustup, and check that cargo is in the PATH")
    };
    let output = output.map_err(cannot_run)?.await.map_err(cannot_run)?;
    if !output.status.success() {
        let hint = format!("correct the errors above; if the target is missing, run: rustup target add {TARGET}");
        return Err(Failure::new("the plugin was not built", hint));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // cargo builds the author's own crate last.
    let mut messages = text.lines().rev().filter_map(|line| serde_json::from_str(line).ok());
    messages.find_map(|message| component(&message)).ok_or_else(|| {
        Failure::new("cargo built no component", "check that [lib] in Cargo.toml has crate-type = [\"cdylib\"]")
    })
}

/// Returns the .wasm file that a message of cargo reports.
fn component(message: &Value) -> Option<PathBuf> {
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    files.map(PathBuf::from).find(|file| file.extension().is_some_and(|extension| extension == "wasm"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_component_is_found_among_the_messages() {
        let artifact = |file: &str| json!({ "reason": "compiler-artifact", "filenames": [file] });
        assert_eq!(
            component(&artifact("/t/wasm32-wasip2/release/a.wasm")),
            Some("/t/wasm32-wasip2/release/a.wasm".into())
        );
        assert_eq!(component(&artifact("/t/release/deps/libserde.rlib")), None);
        assert_eq!(component(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
