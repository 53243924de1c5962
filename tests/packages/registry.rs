//! Plugins by name, from a folder and from a web server on the loopback interface. The registry is not trusted.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::{Path as Named, State};
use axum::http::StatusCode;
use insta::assert_snapshot;
use monstrum_package::SigningKey;
use serde_json::{Value, json};
use support::{Api, Server};

use super::{Source, left, trust};
use crate::cli::{parsed, told};
use crate::http::Answers;
use crate::stable::stable;

/// A folder of packages with its index, and the key that signed them.
struct Packages {
    folder: PathBuf,
    key: SigningKey,
}

impl Packages {
    async fn new(server: &Server, versions: &[(&str, &str)]) -> Result<Packages> {
        let packages = Packages { folder: server.home().join("packages"), key: SigningKey::generate()? };
        fs::create_dir(&packages.folder)?;
        for (plugin, version) in versions {
            packages.add(&Source::of(plugin, version)?)?;
        }
        packages.index(server).await?;
        Ok(packages)
    }

    fn add(&self, source: &Source) -> Result<()> {
        let sent = source.packed(&self.key)?;
        fs::write(self.folder.join(&sent.file_name), &sent.package)?;
        fs::write(
            self.folder.join(format!("{}.sig", sent.file_name)),
            sent.signature.context("the package is not signed")?,
        )?;
        Ok(())
    }

    async fn index(&self, server: &Server) -> Result<()> {
        let folder = self.folder.to_str().context("the name of the folder is not UTF-8")?;
        let (code, answer) = parsed(server, &["registry", "index", folder]).await?;
        ensure!(code == Some(0), "{answer}");
        Ok(())
    }
}

/// Starts a server whose registry consists of these packages at `place`.
async fn serving(mut server: Server, packages: &Packages, place: &str) -> Result<(Server, Api)> {
    server = server.argument("--registry").argument(place);
    server.launch().await?;
    let api = server.api()?;
    trust(&api, &packages.key, "*").await?;
    Ok((server, api))
}

/// Serves the files of a folder like any web server.
async fn web(folder: &Path) -> Result<SocketAddr> {
    async fn file(State(folder): State<PathBuf>, Named(name): Named<String>) -> Result<Vec<u8>, StatusCode> {
        fs::read(folder.join(name)).map_err(|_| StatusCode::NOT_FOUND)
    }
    let router = Router::new().route("/mst/{name}", axum::routing::get(file)).with_state(folder.to_owned());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(std::future::IntoFuture::into_future(axum::serve(listener, router)));
    Ok(address)
}

const VERSIONS: [(&str, &str); 4] =
    [("test-echo", "1.0.0"), ("test-echo", "1.1.0"), ("test-echo", "2.0.0-rc.1"), ("test-result", "1.0.0")];

/// Runs the same requests for a registry in a folder and over HTTP.
async fn goes_by_name(api: &Api) -> Result<String> {
    let mut answers = Answers::default();
    let install = async |body: Value| -> Result<(u16, Value)> {
        let (status, answer) = api.post("/api/plugins", &body).await?;
        Ok((status, if status < 300 { answer["version"].clone() } else { answer["detail"].clone() }))
    };
    let (status, list) = api.get("/api/registry?q=").await?;
    answers.add("all", (status, list));
    answers.add("search", api.get("/api/registry?q=RESULT&limit=1").await?);
    answers.add("older first", install(json!({ "name": "test-echo", "version": "1.0.0" })).await?);
    answers.add("newest", install(json!({ "name": "test-echo" })).await?);
    answers.add("older again", install(json!({ "name": "test-echo", "version": "1.0.0" })).await?);
    let named = json!({ "name": "test-echo", "version": "2.0.0-rc.1" });
    answers.add("pre-release by name", install(named).await?);
    answers.add("absent version", install(json!({ "name": "test-echo", "version": "3.0.0" })).await?);
    answers.add("absent", install(json!({ "name": "nothing" })).await?);
    answers.add("no name", install(json!({ "name": "../etc" })).await?);
    Ok(answers.to_string())
}

#[tokio::test]
async fn plugins_come_by_name_from_a_folder_and_from_a_web_server() -> Result<()> {
    let server = Server::prepare(&[])?;
    let packages = Packages::new(&server, &VERSIONS).await?;
    let place = packages.folder.to_str().context("the name of the folder is not UTF-8")?.to_owned();
    let (server, api) = serving(server, &packages, &place).await?;
    let by_folder = goes_by_name(&api).await?;
    drop(server);

    let server = Server::prepare(&[])?;
    let packages = Packages::new(&server, &VERSIONS).await?;
    let address = web(&packages.folder).await?;
    let (_server, api) = serving(server, &packages, &format!("http://{address}/mst")).await?;
    assert_eq!(goes_by_name(&api).await?, by_folder);
    assert_snapshot!(by_folder, @r#"
    all: 200 {"items":[{"name":"test-echo","description":"A guest that returns its parameters, and sends requests unchanged","author":"Monstrum","license":"MIT","tags":["test"],"version":"1.1.0","versions":["2.0.0-rc.1","1.1.0","1.0.0"]},{"name":"test-result","description":"A guest that returns invalid results","author":"Monstrum","license":"MIT","tags":["test"],"version":"1.0.0","versions":["1.0.0"]}],"next_cursor":null}
    search: 200 {"items":[{"name":"test-result","description":"A guest that returns invalid results","author":"Monstrum","license":"MIT","tags":["test"],"version":"1.0.0","versions":["1.0.0"]}],"next_cursor":null}
    older first: 201 "1.0.0"
    newest: 200 "1.1.0"
    older again: 409 "plugin `test-echo`: version 1.0.0 is older than the recorded version 1.1.0 and may be a replay; to install it anyway, use --allow-downgrade"
    pre-release by name: 200 "2.0.0-rc.1"
    absent version: 422 "/name: the registry has no version 3.0.0 of plugin `test-echo`"
    absent: 422 "/name: the registry has no plugin `nothing`"
    no name: 422 "/name: `../etc` is not a valid plugin name: expected 1 to 64 lower-case letters, digits and hyphens, starting with a letter"
    "#);
    Ok(())
}

/// The limit on responses for plugins does not apply to packages.
#[tokio::test]
async fn a_large_package_comes_from_a_web_server() -> Result<()> {
    const BYTES: usize = 12 << 20;
    let server = Server::prepare(&[])?;
    let packages = Packages::new(&server, &[]).await?;
    let mut large = Source::of("test-result", "1.0.0")?;
    let mut state = 0x2545_f491_u32;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::try_from(state >> 24).unwrap_or_default()
    });
    large.files.insert("data.bin".to_owned(), noise.take(BYTES).collect());
    packages.add(&large)?;
    ensure!(fs::metadata(packages.folder.join("test-result-1.0.0.mst"))?.len() > BYTES as u64);
    packages.index(&server).await?;
    let address = web(&packages.folder).await?;
    let (server, api) = serving(server, &packages, &format!("http://{address}/mst/")).await?;
    let (status, entry) = api.post("/api/plugins", &json!({ "name": "test-result" })).await?;
    assert_eq!((status, &entry["status"]), (201, &json!("loaded")), "{entry}");
    assert_eq!(super::in_place(&server, "test-result")?, large.files);
    Ok(())
}

#[tokio::test]
async fn a_registry_that_lies_installs_nothing() -> Result<()> {
    let server = Server::prepare(&[])?;
    let packages = Packages::new(&server, &VERSIONS).await?;
    let place = packages.folder.to_str().context("the name of the folder is not UTF-8")?.to_owned();
    let (server, api) = serving(server, &packages, &place).await?;
    let path = |name: &str| packages.folder.join(name);
    let good = fs::read_to_string(path("index.json"))?;
    let mut lines = Vec::new();
    let mut attempt = async |label: &str| -> Result<()> {
        let before = left(&server)?;
        let (status, answer) = api.post("/api/plugins", &json!({ "name": "test-result" })).await?;
        ensure!(status >= 400, "{label}: {answer}");
        assert_eq!(left(&server)?, before, "{label}");
        let home = server.home().to_string_lossy().into_owned();
        let detail = answer["detail"].as_str().unwrap_or_default().replace(&home, "[home]");
        lines.push(format!("{label}: {status} {}", stable(&json!(detail)).as_str().unwrap_or_default()));
        Ok(())
    };
    for (label, from, to) in [
        ("a path out of it", "\"test-result-1.0.0.mst\"", "\"../test-result-1.0.0.mst\""),
        ("another server", "\"test-result-1.0.0.mst\"", "\"https://evil.example/x.mst\""),
        ("another format", "monstrum-registry-1", "monstrum-registry-9"),
        ("no JSON", "{", "<"),
    ] {
        fs::write(path("index.json"), good.replacen(from, to, 1))?;
        attempt(label).await?;
    }
    fs::write(path("index.json"), vec![b' '; (16 << 20) + 1])?;
    attempt("an endless index").await?;
    fs::write(path("index.json"), &good)?;
    let package = fs::read(path("test-result-1.0.0.mst"))?;
    fs::copy(path("test-echo-1.0.0.mst"), path("test-result-1.0.0.mst"))?;
    attempt("another package in its place").await?;
    fs::write(path("test-result-1.0.0.mst"), [package.as_slice(), b"x"].concat())?;
    attempt("a longer package").await?;
    fs::remove_file(path("test-result-1.0.0.mst"))?;
    std::os::unix::fs::symlink("/etc/passwd", path("test-result-1.0.0.mst"))?;
    attempt("a link out of it").await?;
    fs::remove_file(path("test-result-1.0.0.mst"))?;
    attempt("no package").await?;
    fs::write(path("test-result-1.0.0.mst"), &package)?;
    fs::copy(path("test-echo-1.0.0.mst.sig"), path("test-result-1.0.0.mst.sig"))?;
    attempt("the signature of another").await?;
    let stranger = Packages { folder: packages.folder.clone(), key: SigningKey::generate()? };
    stranger.add(&Source::of("test-result", "1.0.0")?)?;
    stranger.index(&server).await?;
    attempt("signed by whoever runs it").await?;
    let lines = lines.join("\n");
    let keys = regex::Regex::new("ed25519:[A-Za-z0-9+/]{43}=")?;
    assert_snapshot!(keys.replace_all(&lines, "[key]"), @r#"
    a path out of it: 502 the registry cannot be used: the index entry `test-result` 1.0.0 is invalid: `file` is not `NAME-VERSION.mst`
    another server: 502 the registry cannot be used: the index entry `test-result` 1.0.0 is invalid: `file` is not `NAME-VERSION.mst`
    another format: 502 the registry cannot be used: the index is malformed: its format is not `monstrum-registry-1`; create it with `monstrum registry index DIR`
    no JSON: 502 the registry cannot be used: the index is malformed: expected value at line 1 column 1; create it with `monstrum registry index DIR`
    an endless index: 502 [home]/packages/index.json of the registry has more than 16777216 bytes
    another package in its place: 502 [home]/packages/test-result-1.0.0.mst of the registry has more than 19387 bytes
    a longer package: 502 [home]/packages/test-result-1.0.0.mst of the registry has more than 19387 bytes
    a link out of it: 502 cannot read [home]/packages/test-result-1.0.0.mst of the registry: Too many levels of symbolic links (os error 40)
    no package: 502 cannot read [home]/packages/test-result-1.0.0.mst of the registry: No such file or directory (os error 2)
    the signature of another: 422 /signature: the package was changed after it was signed: its digest is [digest], but the signed digest is [digest]
    signed by whoever runs it: 422 /signature: the package is signed by an untrusted key: [key]; to trust it, run `monstrum trust add`
    "#);
    Ok(())
}

/// An operator's registry setting opens only the address that it names.
#[tokio::test]
async fn a_registry_is_reached_through_egress() -> Result<()> {
    for (place, wanted) in [
        ("http://packages.example/", "http:// is allowed only for a loopback address"),
        ("http://10.1.2.3/", "http:// is allowed only for a loopback address"),
        ("ftp://127.0.0.1/", "expected a folder"),
        ("https://user:secret@127.0.0.1/", "must not contain a user"),
    ] {
        let server = Server::prepare(&[])?;
        let output = server.command(&["serve", "--listen", "127.0.0.1:0", "--registry", place]).await?;
        let said = String::from_utf8(output.stderr)?;
        assert!(output.status.code() == Some(2) && said.contains(wanted), "{place}: {said}");
    }
    // The name resolves to this machine, which is not allowed.
    let mut server = Server::prepare(&[])?.argument("--registry").argument("https://localhost:1/");
    server.launch().await?;
    let (status, answer) = server.api()?.get("/api/registry").await?;
    assert_eq!(status, 502, "{answer}");
    assert!(answer["detail"].as_str().is_some_and(|detail| detail.contains("cannot fetch index.json")), "{answer}");
    let server = Server::start(&[]).await?;
    assert_eq!(server.api()?.get("/api/registry").await?.0, 404);
    Ok(())
}

#[tokio::test]
async fn plugins_are_searched_installed_and_updated_by_name() -> Result<()> {
    let server = Server::prepare(&[])?;
    let packages = Packages::new(&server, &[("test-echo", "1.0.0"), ("test-result", "1.0.0")]).await?;
    let place = packages.folder.to_str().context("the name of the folder is not UTF-8")?.to_owned();
    let (server, api) = serving(server, &packages, &place).await?;
    let mut lines = vec![told(&server, &["plugin", "search", "echo"]).await?];
    for name in ["test-echo", "test-result@1.0.0"] {
        assert_eq!(parsed(&server, &["plugin", "install", name]).await?.0, Some(0), "{name}");
    }
    lines.push(told(&server, &["plugin", "update"]).await?);
    let (_, found) = api.get("/api/registry?q=echo").await?;
    assert_eq!(found["items"][0]["tags"], json!(["test"]), "{found}");
    assert_eq!(found["items"][0]["author"], "Monstrum", "{found}");
    packages.add(&Source::of("test-echo", "1.2.0")?)?;
    packages.add(&Source::of("test-result", "1.3.0-rc.1")?)?;
    packages.index(&server).await?;
    let (code, answer) = parsed(&server, &["plugin", "update"]).await?;
    assert_eq!((code, &answer["updated"][0]["version"]), (Some(0), &json!("1.2.0")));
    assert_eq!(answer["updated"].as_array().map(Vec::len), Some(1), "{answer}");
    let version = async |name: &str| anyhow::Ok(api.get(&format!("/api/plugins/{name}")).await?.1["version"].clone());
    assert_eq!((version("test-echo").await?, version("test-result").await?), (json!("1.2.0"), json!("1.0.0")));
    lines.push(told(&server, &["plugin", "update", "test-echo"]).await?);
    lines.push(told(&server, &["plugin", "update", "absent"]).await?);
    lines.push(told(&server, &["plugin", "install", "test-echo@1.0.0"]).await?);
    lines.push(told(&server, &["plugin", "install", "test-echo", "--allow-unsigned"]).await?);
    lines.push(told(&server, &["plugin", "uninstall", "test-result"]).await?);
    lines.push(told(&server, &["plugin", "uninstall", "test-result"]).await?);
    assert_snapshot!(lines.join("\n"), @r#"
     NAME       VERSION  DESCRIPTION                                                        TAGS
     test-echo  1.0.0    A guest that returns its parameters, and sends requests unchanged  test
    [exit 0]
    [stderr]
    no plugin was updated; run `monstrum plugin search` to see the plugins in the registry
    [exit 0]
    [stderr]
    no plugin was updated; run `monstrum plugin search` to see the plugins in the registry
    [exit 0]
    [stderr]
    error: Not found (404)
      no such plugin
      request [id 1]
    hint: check the name or id with `list`; also check --workspace
    [exit 1]
    [stderr]
    error: Conflict (409)
      plugin `test-echo`: version 1.0.0 is older than the recorded version 1.2.0 and may be a replay; to install it anyway, use --allow-downgrade
      request [id 1]
    hint: resolve the conflict that the message names
    [exit 1]
    [stderr]
    error: packages from a registry must be signed
    hint: use --allow-unsigned only with a local file
    [exit 1]
    [stderr]
    plugin `test-result` is removed
    [exit 0]
    [stderr]
    error: Not found (404)
      no such plugin
      request [id 1]
    hint: check the name or id with `list`; also check --workspace
    [exit 1]
    "#);
    Ok(())
}
