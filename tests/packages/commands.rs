//! The commands of authors and operators: pack, trust, install and uninstall, and the index of a registry.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::json;
use support::Server;

use super::{Source, in_place, left};
use crate::cli::{parsed, run, told};
use crate::stable::stable;

/// Returns the output of a command, with public keys and numbers of bytes replaced.
async fn said(server: &Server, arguments: &[&str]) -> Result<String> {
    let text = told(server, arguments).await?;
    let text = regex::Regex::new("ed25519:[A-Za-z0-9+/]{43}=")?.replace_all(&text, "[public key]").into_owned();
    Ok(regex::Regex::new("[0-9]{3,} bytes")?.replace_all(&text, "[n] bytes").into_owned())
}

/// Creates an author's folder next to the server's folder.
fn author(server: &Server, source: &Source) -> Result<String> {
    let folder = server.home().join("author").join(&source.name);
    for (name, content) in &source.files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().context("the file is in no folder")?)?;
        fs::write(&path, content)?;
    }
    for entry in walk(&folder)? {
        let mode = if entry.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(entry, PermissionsExt::from_mode(mode))?;
    }
    Ok(folder.to_str().context("the name of the folder is not UTF-8")?.to_owned())
}

fn walk(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(walk(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

#[tokio::test]
async fn from_a_folder_to_an_installed_plugin() -> Result<()> {
    let home = tempfile::tempdir()?;
    let config = home.path().join("config");
    let mut server = Server::prepare(&[])?.variable("XDG_CONFIG_HOME", config.to_str().context("a plain name")?);
    server.launch().await?;
    let folder = author(&server, &Source::of("test-echo", "1.0.0")?)?;
    fs::create_dir(Path::new(&folder).join("target"))?;
    fs::write(Path::new(&folder).join("target/huge"), "not a part of it")?;

    let (code, packed) = parsed(&server, &["plugin", "pack", &folder]).await?;
    assert_eq!((code, &packed["file"]), (Some(0), &json!("test-echo-1.0.0.mst")), "{packed}");
    let key_file = config.join("monstrum/signing.key");
    assert_eq!(fs::metadata(&key_file)?.permissions().mode() & 0o777, 0o600);
    let package = fs::read(server.home().join("test-echo-1.0.0.mst"))?;
    let (_, again) = parsed(&server, &["plugin", "pack", &folder]).await?;
    assert_eq!(fs::read(server.home().join("test-echo-1.0.0.mst"))?, package, "two packages of the same plugin differ");
    assert_eq!(again["public_key"], packed["public_key"], "the second package was signed with another key");
    let key = fs::read_to_string(&key_file)?;
    assert!(!format!("{packed}{}", server.output()).contains(key.trim()));

    let mut lines = vec![said(&server, &["plugin", "install", "test-echo-1.0.0.mst"]).await?];
    let trust: Vec<&str> = packed["trust"].as_str().context("a line")?.split(' ').skip(1).collect();
    lines.push(said(&server, &trust).await?);
    lines.push(said(&server, &trust).await?);
    let (code, entry) = parsed(&server, &["plugin", "install", "test-echo-1.0.0.mst"]).await?;
    assert_eq!((code, &entry["status"]), (Some(0), &json!("loaded")));
    let names: Vec<String> = in_place(&server, "test-echo")?.into_keys().collect();
    assert_eq!(names, ["README.md", "monstrum.yaml", "plugin.wasm"]);
    lines.push(said(&server, &["trust", "list"]).await?);
    let (_, list) = parsed(&server, &["trust", "list"]).await?;
    let id = list["items"][0]["id"].as_str().context("an id")?.to_owned();
    lines.push(said(&server, &["trust", "remove", &id]).await?);
    lines.push(said(&server, &["trust", "list"]).await?);
    assert_snapshot!(lines.join("\n"), @r#"
    [stderr]
    error: The input is invalid (422)
      /signature: the package is signed by an untrusted key: [public key]; to trust it, run `monstrum trust add`
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    [public key] may sign `test-echo` of resource types `test-echo` ([id 1])
    [exit 0]
    [stderr]
    error: Conflict (409)
      the key is already trusted for these names
      request [id 1]
    hint: resolve the conflict that the message names
    [exit 1]
     ID                                    PLUGINS    TYPES      KEY                                                   SINCE
     [id 1]  test-echo  test-echo  [public key]  [time]
    [exit 0]
    [stderr]
    [id 1] is no longer trusted
    [exit 0]
    [stderr]
    no trusted keys, so no package can be installed; see `monstrum trust add --help`
    [exit 0]
    "#);
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_packed_or_sent_is_explained() -> Result<()> {
    let mut server = Server::prepare(&[])?;
    server.launch().await?;
    let folder = author(&server, &Source::of("test-echo", "1.0.0")?)?;
    let mut lines = vec![said(&server, &["plugin", "pack", &folder]).await?];
    let key = server.home().join("key");
    let key = key.to_str().context("a plain name")?;
    lines.push(said(&server, &["plugin", "pack", &folder, "--key-file", key, "--out", "a.mst"]).await?);
    fs::set_permissions(key, PermissionsExt::from_mode(0o644))?;
    lines.push(said(&server, &["plugin", "pack", &folder, "--key-file", key]).await?);
    fs::write(key, "no key")?;
    fs::set_permissions(key, PermissionsExt::from_mode(0o600))?;
    lines.push(said(&server, &["plugin", "pack", &folder, "--key-file", key]).await?);
    fs::write(Path::new(&folder).join("plugin.wasm"), "no component")?;
    let broken = run(&server, &["plugin", "pack", &folder]).await?;
    let broken = String::from_utf8(broken.stderr)?;
    assert!(broken.contains("not a WebAssembly component") && broken.contains("hint:"), "{broken}");
    fs::write(server.home().join("b.mst"), "text")?;
    for arguments in [
        &["plugin", "install", "absent.mst"][..],
        &["plugin", "install", "b.mst"],
        &["plugin", "install", "b.mst", "--allow-unsigned"],
        &["plugin", "install", "github"],
        &["plugin", "search"],
        &["trust", "add", "ed25519:AAAA", "--name", "github"],
    ] {
        lines.push(said(&server, arguments).await?);
    }
    assert_snapshot!(lines.join("\n"), @r#"
    [stderr]
    error: the signing key has no default path: this user has no home directory
    hint: set --key-file
    [exit 1]
    package    a.mst
    signature  a.mst.sig
    sha256     [digest]
    trust      monstrum trust add [public key] --name test-echo
    [stderr]
    created a signing key in [home]/key; back it up and keep it secret
    [exit 0]
    [stderr]
    error: the signing key [home]/key is accessible to other users (mode 644)
    hint: other users who read the key can sign as you; create a new key, or run: chmod 600 [home]/key
    [exit 1]
    [stderr]
    error: [home]/key contains no signing key
      not a signing key: expected `monstrum-signing-key:` followed by 44 base64 characters
    hint: choose another file with --key-file
    [exit 1]
    [stderr]
    error: cannot read absent.mst
      No such file or directory (os error 2)
    hint: check the name of the file
    [exit 1]
    [stderr]
    error: cannot read b.mst.sig
      No such file or directory (os error 2)
    hint: sign the package with `monstrum plugin pack`, or see --allow-unsigned
    [exit 1]
    [stderr]
    error: the package is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    hint: create the package with `monstrum plugin pack`
    [exit 1]
    [stderr]
    error: The input is invalid (422)
      /name: no registry is configured; start the server with --registry
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    [stderr]
    error: Not found (404)
      no registry is configured; start the server with --registry
      request [id 1]
    hint: start the server with `--registry DIR`, or with the URL of a registry
    [exit 1]
    [stderr]
    error: The input is invalid (422)
      /public_key: not a public key: expected `ed25519:` followed by 44 base64 characters, as `monstrum plugin pack` prints it
      request [id 1]
    hint: correct the input that the message names; run the command with `--help` to see valid input
    [exit 1]
    "#);
    Ok(())
}

/// The command reads the result from the server, whose folder may contain another plugin of the same name.
#[tokio::test]
async fn an_install_into_a_folder_that_is_not_the_servers_is_no_success() -> Result<()> {
    let server = Server::start(&["test-echo"]).await?;
    let key = monstrum_package::SigningKey::generate()?;
    let elsewhere = server.home().join("elsewhere");
    fs::create_dir(&elsewhere)?;
    fs::set_permissions(&elsewhere, PermissionsExt::from_mode(0o755))?;
    // The package has the same version, so that only its bytes differ from the server's plugin.
    let mut same = Source::of("test-echo", "1.0.0")?;
    let component = same.files.get_mut("plugin.wasm").context("the plugin has no component")?;
    // A custom section with the name `x`, which has no effect.
    component.extend([0, 2, 1, b'x']);
    let (_, serving) = server.api()?.get("/api/plugins/test-echo").await?;
    assert_eq!(serving["version"], "1.0.0");
    for source in [same, Source::of("test-echo", "9.0.0")?] {
        let sent = source.packed(&key)?;
        fs::write(server.home().join(&sent.file_name), &sent.package)?;
        let folder = elsewhere.to_str().context("plain")?;
        let arguments = ["plugin", "install", &sent.file_name, "--allow-unsigned", "--plugins-dir", folder];
        let output = run(&server, &arguments).await?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1), "{stderr}");
        let told = "the server has another plugin `test-echo`, version 1.0.0";
        ensure!(stderr.contains("the server did not load the plugin in") && stderr.contains(told), "{stderr}");
        ensure!(stderr.contains("hint: set --plugins-dir to the server's plugins folder"), "{stderr}");
        assert_eq!(
            server.api()?.get("/api/plugins/test-echo").await?.1,
            serving,
            "the plugin of the server was changed"
        );
    }
    Ok(())
}

/// A person with write access to the plugins folder could also copy files by hand. The server itself never accepts
/// unsigned packages.
#[tokio::test]
async fn an_unsigned_package_is_put_in_place_by_hand_and_never_sent() -> Result<()> {
    let server = Server::start(&[]).await?;
    let key = monstrum_package::SigningKey::generate()?;
    let (first, second) = (Source::of("test-echo", "1.0.0")?, Source::of("test-echo", "1.1.0")?);
    let mut broken = Source::of("test-result", "1.0.0")?;
    broken.files.insert("plugin.wasm".to_owned(), b"no component".to_vec());
    for source in [&first, &second, &broken] {
        let sent = source.packed(&key)?;
        fs::write(server.home().join(&sent.file_name), &sent.package)?;
    }
    let install = async |file: &str, more: &[&str]| {
        let arguments = [&["plugin", "install", file, "--allow-unsigned"], more].concat();
        let output = run(&server, &arguments).await?;
        let stderr = stable(&json!(String::from_utf8(output.stderr)?)).as_str().unwrap_or_default().to_owned();
        anyhow::Ok((output.status.code(), stderr))
    };
    let (code, stderr) = install("test-echo-1.1.0.mst", &[]).await?;
    ensure!(code == Some(0), "{stderr}");
    assert!(stderr.contains("is unsigned"), "{stderr}");
    let version = async || anyhow::Ok(server.api()?.get("/api/plugins/test-echo").await?.1["version"].clone());
    assert_eq!(version().await?, "1.1.0");
    let before = left(&server)?;
    let (code, stderr) = install("test-echo-1.0.0.mst", &[]).await?;
    assert!(code == Some(1) && stderr.contains("older than the installed version 1.1.0"), "{stderr}");
    let (code, stderr) = install("test-result-1.0.0.mst", &[]).await?;
    assert!(code == Some(1) && stderr.contains("would not load"), "{stderr}");
    let elsewhere = server.home().join("nowhere");
    let (code, stderr) =
        install("test-echo-1.1.0.mst", &["--plugins-dir", elsewhere.to_str().context("plain")?]).await?;
    assert!(code == Some(1) && stderr.contains("--plugins-dir"), "{stderr}");
    assert_eq!((left(&server)?, version().await?), (before, json!("1.1.0")));
    let (code, stderr) = install("test-echo-1.0.0.mst", &["--allow-downgrade"]).await?;
    ensure!(code == Some(0), "{stderr}");
    assert_eq!(version().await?, "1.0.0");
    Ok(())
}

#[tokio::test]
async fn an_index_holds_only_what_could_be_installed() -> Result<()> {
    let server = Server::prepare(&[])?;
    let folder = server.home().join("packages");
    fs::create_dir(&folder)?;
    let path = folder.to_str().context("a plain name")?;
    let key = monstrum_package::SigningKey::generate()?;
    let sent = Source::of("test-echo", "1.0.0")?.packed(&key)?;
    let write = |name: &str, package: &[u8], signature: Option<&str>| -> Result<()> {
        for entry in fs::read_dir(&folder)? {
            fs::remove_file(entry?.path())?;
        }
        fs::write(folder.join(name), package)?;
        if let Some(signature) = signature {
            fs::write(folder.join(format!("{name}.sig")), signature)?;
        }
        Ok(())
    };
    let signature = sent.signature.clone().context("the package is not signed")?;
    let mut lines = Vec::new();
    for (name, package, signature) in [
        ("test-echo-1.0.0.mst", sent.package.as_slice(), None),
        ("test-echo-1.0.1.mst", &sent.package, Some(signature.as_str())),
        ("echo.mst", &sent.package, Some(&signature)),
        ("test-echo-1.0.0.mst", b"PK", Some(&signature)),
    ] {
        write(name, package, signature)?;
        lines.push(said(&server, &["registry", "index", path]).await?);
        assert!(!folder.join("index.json").exists());
    }
    write(&sent.file_name, &sent.package, Some(&signature))?;
    let (code, _) = parsed(&server, &["registry", "index", path]).await?;
    assert_eq!(code, Some(0));
    let index: serde_json::Value = serde_json::from_slice(&fs::read(folder.join("index.json"))?)?;
    lines.push(stable(&index).to_string());
    lines.push(said(&server, &["registry", "index", "nowhere"]).await?);
    let bytes = regex::Regex::new("\"size\":[0-9]+")?;
    assert_snapshot!(bytes.replace_all(&lines.join("\n"), "\"size\":[n]"), @r#"
    [stderr]
    error: test-echo-1.0.0.mst cannot be part of a registry
      No such file or directory (os error 2)
      expected its signature in test-echo-1.0.0.mst.sig
    hint: pack it again with `monstrum plugin pack`, or remove it from the folder
    [exit 1]
    [stderr]
    error: test-echo-1.0.1.mst cannot be part of a registry
      the package was renamed: the file name contains `test-echo 1.0.1`, but the manifest contains `test-echo 1.0.0`
    hint: pack it again with `monstrum plugin pack`, or remove it from the folder
    [exit 1]
    [stderr]
    error: echo.mst cannot be part of a registry: its name must be test-echo-1.0.0.mst
    hint: rename the package and its signature
    [exit 1]
    [stderr]
    error: test-echo-1.0.0.mst cannot be part of a registry
      the package was changed after it was signed: its digest is [digest], but the signed digest is [digest]
    hint: pack it again with `monstrum plugin pack`, or remove it from the folder
    [exit 1]
    {"format":"monstrum-registry-1","packages":[{"name":"test-echo","version":"1.0.0","description":"A guest that returns its parameters, and sends requests unchanged","author":"Monstrum","license":"MIT","tags":["test"],"file":"test-echo-1.0.0.mst","size":[n],"sha256":"[digest]","signature":"test-echo-1.0.0.mst.sig"}]}
    [stderr]
    error: cannot read nowhere
      No such file or directory (os error 2)
    hint: set DIR to the folder with the packages
    [exit 1]
    "#);
    Ok(())
}
