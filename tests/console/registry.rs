//! Plugins by name: the registry's plugins on the page of plugins, their installation, and who signed a version that waits.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use monstrum_package::SigningKey;
use serde_json::{Value, json};
use support::Server;

use super::{Browser, base};
use crate::call::plugins::edit;
use crate::cli::parsed;
use crate::packages::{Source, trust, trusted};
use crate::world::{World, text};

/// Returns version 1.1.0 of the plugin, which asks for more than version 1.0.0.
fn grown() -> Result<Source> {
    let mut source = Source::of("test-echo", "1.1.0")?;
    source.edit(|text| text + "executor:\n  egress: [\"https://evil.example\"]\n")?;
    Ok(source)
}

/// Puts packages into a folder and indexes it.
async fn indexed(server: &Server, folder: &PathBuf, key: &SigningKey, sources: &[Source]) -> Result<()> {
    fs::create_dir_all(folder)?;
    for source in sources {
        let sent = source.packed(key)?;
        fs::write(folder.join(&sent.file_name), &sent.package)?;
        let signature = sent.signature.context("a signature")?;
        fs::write(folder.join(format!("{}.sig", sent.file_name)), signature)?;
    }
    let (code, answer) = parsed(server, &["registry", "index", &folder.to_string_lossy()]).await?;
    ensure!(code == Some(0), "{answer}");
    Ok(())
}

/// Starts a server with a registry of these packages, whose key it does not trust yet.
async fn with_registry(sources: &[Source]) -> Result<(World, PathBuf, SigningKey)> {
    let server = Server::prepare(&[])?;
    let (folder, key) = (server.home().join("packages"), SigningKey::generate()?);
    indexed(&server, &folder, &key, sources).await?;
    let place = folder.to_string_lossy().into_owned();
    Ok((World::on(server.argument("--registry").argument(&place)).await?, folder, key))
}

#[tokio::test]
async fn a_plugin_of_the_registry_is_installed_updated_and_approved() -> Result<()> {
    let hostile = |mut source: Source| -> Result<Source> {
        source.edit(|text| text.replace("description: A guest", "description: <img src=x> A guest"))?;
        Ok(source)
    };
    let (world, folder, key) = with_registry(&[hostile(Source::of("test-echo", "1.0.0")?)?]).await?;
    trust(&world.api, &key, "*").await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (list, action) = (format!("{base}/plugins"), format!("{base}/registry/install"));
    let page = browser.page(&list).await?;
    assert!(page.contains("Plugins of the registry") && page.contains("test-echo"), "{page}");
    assert!(!page.contains("<img src=x>"), "{page}");
    let fields = [("name", "test-echo"), ("version", "1.0.0")];
    for headers in [&[][..], &[("sec-fetch-site", "cross-site")]] {
        assert_eq!(browser.send(reqwest::Method::POST, &action, &fields, headers).await?.status, 403);
    }
    assert_eq!(world.api.get("/api/plugins").await?.1["items"], json!([]));
    let plugin = format!("{list}/test-echo");
    let installed = browser.submit(&list, &action, &[]).await?;
    assert_eq!((installed.status, installed.location()), (303, plugin.as_str()), "{}", installed.text);
    let shown = browser.page(&list).await?;
    assert!(shown.contains("1.0.0 is installed") && !shown.contains(&action), "{shown}");

    // A newer version that asks for more waits, and its page says who signed it.
    indexed(&world.server, &folder, &key, &[grown()?]).await?;
    let shown = browser.page(&format!("{list}?q=echo")).await?;
    assert!(shown.contains("Update to 1.1.0"), "{shown}");
    let updated = browser.submit(&list, &action, &[]).await?;
    assert_eq!((updated.status, updated.location()), (303, plugin.as_str()), "{}", updated.text);
    let waiting = browser.page(&plugin).await?;
    for part in [
        "waits for your approval",
        "Signed by",
        &key.public().to_string(),
        "egress to <code>https://evil.example</code>",
    ] {
        assert!(waiting.contains(part), "{part}: {waiting}");
    }
    let approved = browser.submit(&plugin, &format!("{plugin}/approve"), &[]).await?;
    assert_eq!(approved.status, 303, "{}", approved.text);
    assert_eq!(world.api.get("/api/plugins/test-echo").await?.1["version"], "1.1.0");
    assert!(browser.page(&format!("{list}?q=nothing")).await?.contains("The registry has no such plugin."));

    // Only root keys install plugins.
    let admin = Browser::log_in(&world, &world.api.new_key("admin", None).await?).await?;
    assert!(!admin.page(&list).await?.contains("Plugins of the registry"));
    Ok(())
}

#[tokio::test]
async fn a_package_that_is_not_accepted_is_told_in_words() -> Result<()> {
    let (world, folder, key) = with_registry(&[Source::of("test-echo", "1.0.0")?]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let base = base(&world).await?;
    let (list, action) = (format!("{base}/plugins"), format!("{base}/registry/install"));
    let untrusted = browser.submit(&list, &action, &[]).await?;
    let told = "no trusted key has signed it for this name";
    assert!(untrusted.status == 422 && untrusted.text.contains(told), "{} {}", untrusted.status, untrusted.text);
    let named = "untrusted key: ";
    assert!(untrusted.text.contains(named) && untrusted.text.contains(&key.public().to_string()), "{}", untrusted.text);

    trust(&world.api, &key, "*").await?;
    let unknown = browser.submit(&list, &action, &[("name", "nothing")]).await?;
    let told = "The registry has no such plugin or version.";
    assert!(unknown.status == 422 && unknown.text.contains(told), "{} {}", unknown.status, unknown.text);
    let no_name = browser.submit(&list, &action, &[("name", "../etc")]).await?;
    assert_eq!(no_name.status, 422, "{}", no_name.text);

    // A signature of another key over other bytes.
    let page = browser.page(&list).await?;
    let signature = folder.join("test-echo-1.0.0.mst.sig");
    let other = Source::of("test-echo", "1.0.0")?.signed(b"other bytes".to_vec(), &key)?;
    fs::write(&signature, other.signature.context("a signature")?)?;
    let hidden = super::hidden_fields(&page, &action)?;
    let fields: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let bad = browser.send(reqwest::Method::POST, &action, &fields, &[("accept-language", "zh-CN")]).await?;
    assert!(bad.status == 422 && bad.text.contains("签名有误"), "{} {}", bad.status, bad.text);
    // A registry that does not answer is a part of the page that says so.
    fs::write(folder.join("index.json"), "<")?;
    let broken = browser.page(&list).await?;
    assert!(broken.contains("This part did not answer."), "{broken}");
    let failed = browser.send(reqwest::Method::POST, &action, &fields, &[]).await?;
    assert!(
        failed.status == 502 && failed.text.contains("Nothing was installed."),
        "{} {}",
        failed.status,
        failed.text
    );
    assert_eq!(world.api.get("/api/plugins").await?.1["items"], json!([]));
    Ok(())
}

#[tokio::test]
async fn without_a_registry_the_page_has_none() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let browser = Browser::log_in(&world, world.api.key()).await?;
    let list = format!("{}/plugins", base(&world).await?);
    let page = browser.page(&list).await?;
    assert!(!page.contains("Plugins of the registry"), "{page}");
    Ok(())
}

#[tokio::test]
async fn the_signer_of_a_version_that_waits_is_told_for_that_version_only() -> Result<()> {
    let world = World::with(&[]).await?;
    let key = trusted(&world.api).await?;
    for source in [Source::of("test-echo", "1.0.0")?, grown()?] {
        let (status, plugin) = source.packed(&key)?.to(&world.api).await?;
        ensure!(status < 300, "{status} {plugin}");
    }
    let diff = async || -> Result<Value> {
        let (status, diff) = world.api.get("/api/plugins/test-echo/diff").await?;
        ensure!(status == 200, "{status} {diff}");
        Ok(diff)
    };
    let signed = diff().await?;
    assert_eq!(text(&signed["to"]["signed_by"]), key.public().to_string(), "{signed}");
    assert_eq!(signed["from"]["signed_by"], Value::Null, "{signed}");
    // Files that were changed after the installation are not what the key has signed.
    edit(&world.server.plugins_dir().join("test-echo"), |text| text.replace("tags: [test", "tags: [changed, test"))?;
    let (_, reloaded) = world.api.post("/api/plugins/test-echo/reload", &Value::Null).await?;
    ensure!(reloaded["status"] == "needs_approval", "{reloaded}");
    let changed = diff().await?;
    assert_ne!(changed["to"]["manifest_digest"], signed["to"]["manifest_digest"]);
    assert_eq!(changed["to"]["signed_by"], Value::Null, "{changed}");
    Ok(())
}
