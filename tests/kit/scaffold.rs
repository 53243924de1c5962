//! `monstrum plugin new`, the two ways of building the new plugin, and the steps until its tool answers a call.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use support::Server;

use crate::cli::{parsed, run};
use crate::kit::{BUILDING, cargo, items, kit, weather};

/// The build with cargo alone.
const PLAIN: &[&str] = &["build", "--release", "--target", "wasm32-wasip2"];
/// The build with cargo-component, which `cargo xtask test` installs.
const COMPONENT: &[&str] = &["component", "build", "--release"];

#[tokio::test]
async fn from_nothing_to_an_answered_call_by_plain_cargo() -> Result<()> {
    let _one_at_a_time = BUILDING.lock().await;
    let server = from_nothing_to_an_answered_call(PLAIN, "wasm32-wasip2").await?;
    cargo(&server.home().join("weather"), &["test"]).await?;
    Ok(())
}

#[tokio::test]
async fn from_nothing_to_an_answered_call_by_cargo_component() -> Result<()> {
    let version = tokio::process::Command::new("cargo").args(["component", "--version"]).output().await?;
    ensure!(version.status.success(), "cargo-component is not installed; `cargo xtask test` installs it");
    let _one_at_a_time = BUILDING.lock().await;
    from_nothing_to_an_answered_call(COMPONENT, "wasm32-wasip1").await?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "how long it took is what a reader of the log looks for")]
async fn from_nothing_to_an_answered_call(build: &[&str], target: &str) -> Result<Server> {
    let mut server = Server::prepare(&[])?;
    server.launch().await?;
    let began = Instant::now();
    let folder = weather(&server).await?;
    cargo(&folder, build).await?;
    fs::copy(folder.join("target").join(target).join("release/weather.wasm"), folder.join("plugin.wasm"))?;
    // File permissions that a umask grants to the group do not make the plugin fail.
    fs::set_permissions(folder.join("plugin.wasm"), fs::Permissions::from_mode(0o644))?;
    kit(&server, &["plugin", "validate", "weather"]).await?;
    fs::write(folder.join("tests/guide.yaml"), case_of_the_guide()?)?;
    let told = kit(&server, &["plugin", "test", "weather"]).await?;
    assert!(told.ends_with("3 cases passed\n"), "{told}");
    let (_, packed) = parsed(&server, &["plugin", "pack", "weather", "--key-file", "signing.key"]).await?;
    let trust: Vec<&str> =
        packed["trust"].as_str().context("the output has no command to trust the key")?.split(' ').skip(1).collect();
    kit(&server, &trust).await?;
    let package = packed["file"].as_str().context("the output does not name the package")?;
    kit(&server, &["plugin", "install", package]).await?;
    let answer = call(&server).await?;
    let took = began.elapsed();
    assert_eq!(answer["data"], json!({ "id": "a-7", "authorization": "[redacted]" }), "{answer}");
    println!("from nothing to an answered call by `cargo {}`: {:.1} s", build.join(" "), took.as_secs_f64());
    Ok(server)
}

/// Returns the test case with every field from the author's guide.
fn case_of_the_guide() -> Result<&'static str> {
    let guide = include_str!("../../docs/authors-guide.md");
    let case = guide.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    case.context("the guide contains no test case")
}

async fn call(server: &Server) -> Result<Value> {
    let api = server.api()?;
    let bot = api.bot("helper").await?;
    let upstream = items().await?;
    let scopes = json!({ "items": ["a-*"] });
    api.grant(&bot, "weather", (&upstream, "a-dummy-token"), &["item.read"], &scopes).await?;
    api.call(&bot, "weather_get_item", &json!({ "id": "a-7" })).await
}

#[tokio::test]
async fn what_is_there_already_is_left_alone() -> Result<()> {
    let server = Server::prepare(&[])?;
    let home = server.home();
    fs::create_dir_all(home.join("full/weather"))?;
    fs::write(home.join("full/weather/notes"), "mine")?;
    fs::create_dir_all(home.join("empty/weather"))?;
    fs::create_dir_all(home.join("linked"))?;
    symlink(home.join("empty/weather"), home.join("linked/weather"))?;
    fs::create_dir_all(home.join("file"))?;
    fs::write(home.join("file/weather"), "mine")?;
    for parent in ["full", "linked", "file"] {
        let output = run(&server, &["plugin", "new", "weather", "--dir", parent]).await?;
        assert_eq!(output.status.code(), Some(1), "{parent}");
        let told = String::from_utf8(output.stderr)?;
        let expected = format!(
            "error: {parent}/weather already exists\nhint: choose another name, or another folder with --dir\n"
        );
        assert_eq!(told, expected);
        let entries: Vec<_> = fs::read_dir(home.join(parent))?.collect::<Result<_, _>>()?;
        assert_eq!(entries.len(), 1, "the command left files in {parent}");
    }
    assert_eq!(fs::read_to_string(home.join("full/weather/notes"))?, "mine");
    let (code, made) = parsed(&server, &["plugin", "new", "weather", "--dir", "empty"]).await?;
    assert_eq!((code, &made["name"], &made["folder"]), (Some(0), &json!("weather"), &json!("empty/weather")));
    for file in made["files"].as_array().context("the output does not list the files")? {
        let path = home.join("empty/weather").join(file.as_str().context("the file has no name")?);
        let mode = path.metadata()?.permissions().mode() & 0o777;
        assert_eq!(mode, 0o644, "{}", path.display());
    }
    Ok(())
}

#[tokio::test]
async fn names_that_no_plugin_can_have_are_refused() -> Result<()> {
    let server = Server::prepare(&[])?;
    for (name, why) in [
        ("Weather", "`Weather` is not a valid plugin name"),
        ("../weather", "`../weather` is not a valid plugin name"),
        ("sandbox", "`sandbox` is reserved for the platform"),
        ("web-search", "names that start with `web_` are reserved for the platform"),
        ("match", "`match` is reserved by Rust or the SDK"),
    ] {
        let output = run(&server, &["plugin", "new", name]).await?;
        let told = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(
            told.contains(why) && told.ends_with("hint: choose a name such as weather or acme-tickets\n"),
            "{told}"
        );
    }
    assert_eq!(fs::read_dir(server.home())?.count(), 1, "the folder contains more than the plugins folder");
    let output = run(&server, &["plugin", "new", "weather", "--sdk", "plugins"]).await?;
    assert!(String::from_utf8(output.stderr)?.contains("plugins is not the crate monstrum-sdk"));
    Ok(())
}

/// With `--sdk`, the SDK is not copied, and cargo uses the checkout.
#[tokio::test]
async fn a_checkout_of_the_sdk_may_take_the_place_of_the_copy() -> Result<()> {
    let server = Server::prepare(&[])?;
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk-guest").canonicalize()?;
    kit(&server, &["plugin", "new", "weather", "--sdk", &sdk.display().to_string()]).await?;
    let folder = server.home().join("weather");
    assert!(!folder.join("sdk").exists() && !folder.join("wit").exists());
    assert!(fs::read_to_string(folder.join("Cargo.toml"))?.contains(&format!("{{ path = \"{}\" }}", sdk.display())));
    let metadata = cargo(&folder, &["metadata", "--no-deps", "--format-version", "1"]).await?;
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let wit = metadata["packages"][0]["metadata"]["component"]["target"]["path"]
        .as_str()
        .context("the file does not name a world")?;
    assert!(Path::new(wit).join("world.wit").is_file(), "{wit}");
    Ok(())
}
