//! The signatures of packages. A package that was changed, renamed, replayed or signed by another key is rejected. Each
//! case has a specific message.

use anyhow::Result;
use insta::assert_snapshot;
use monstrum_package::SigningKey;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};
use support::Server;

use super::{Sent, Source, detail, left, trust, trusted};
use crate::http::{Answers, send};
use crate::stable::stable;

/// Formats a rejection, with the values that differ between runs replaced.
fn told(answer: &(u16, Value)) -> String {
    let text = stable(&json!(detail(answer))).as_str().unwrap_or_default().to_owned();
    let keys = regex::Regex::new("ed25519:[A-Za-z0-9+/]{43}=").expect("the pattern is valid");
    keys.replace_all(&text, "[key]").into_owned()
}

#[tokio::test]
async fn each_attack_on_a_signature_is_refused_with_its_own_message() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let (old, new) = (Source::of("test-echo", "1.0.0")?, Source::of("test-echo", "1.1.0")?);
    let (old_sent, sent) = (old.packed(&key)?, new.packed(&key)?);
    let stranger = SigningKey::generate()?;
    let narrow = SigningKey::generate()?;
    trust(&api, &narrow, "github*").await?;
    trust(&api, &narrow, "test-ech").await?;

    let mut tampered = sent.clone();
    let last = tampered.package.len() / 2;
    tampered.package[last] ^= 1;
    let mut evil = new.clone();
    evil.files.insert("README.md".to_owned(), b"another".to_vec());
    let swapped = Sent { package: evil.packed(&stranger)?.package, ..sent.clone() };
    let edit = |from: &str, to: &str| {
        let signature = sent.signature.as_ref().map(|text| text.replace(from, to));
        Sent { signature, ..sent.clone() }
    };
    let forged_key = edit(&key.public().to_string(), &narrow.public().to_string());
    let cases = [
        ("unsigned", Sent { signature: None, ..sent.clone() }),
        ("no signature at all", Sent { signature: Some("trust me".to_owned()), ..sent.clone() }),
        ("tampered", tampered),
        ("another package under its signature", swapped),
        ("by a stranger", new.packed(&stranger)?),
        ("by a key for other names", new.packed(&narrow)?),
        ("another key named in the signature", forged_key),
        ("another version in the signature", edit("\"1.1.0\"", "\"9.9.9\"")),
        ("another name in the signature", edit("\"test-echo\"", "\"test-other\"")),
        ("the signature of another version", Sent { signature: old_sent.signature.clone(), ..sent.clone() }),
        ("file renamed to another plugin", Sent { file_name: "github-1.1.0.mst".to_owned(), ..sent.clone() }),
        ("file renamed to another version", Sent { file_name: "test-echo-2.0.0.mst".to_owned(), ..sent.clone() }),
        ("signed as another plugin", Source { name: "test-other".to_owned(), ..new.clone() }.packed(&key)?),
        ("signed as another version", Source { version: "2.0.0".to_owned(), ..new.clone() }.packed(&key)?),
    ];
    let before = left(&server)?;
    let mut lines = Vec::new();
    for (name, case) in cases {
        lines.push(format!("{name}: {}", told(&case.to(&api).await?)));
        assert_eq!(left(&server)?, before, "{name}");
    }
    assert_eq!(sent.to(&api).await?.0, 201);
    lines.push(format!("an older version, replayed: {}", told(&old_sent.to(&api).await?)));
    assert_eq!(api.get("/api/plugins/test-echo").await?.1["version"], "1.1.0");
    assert_eq!(old_sent.with(&api, true).await?.0, 200, "an operator cannot install an older version");
    assert_eq!(api.get("/api/plugins/test-echo").await?.1["version"], "1.0.0");
    assert_snapshot!(lines.join("\n"), @r#"
    unsigned: 422 /signature: the package is not signed; send its signature NAME-VERSION.mst.sig too
    no signature at all: 422 /signature: the signature file is malformed: expected ident at line 1 column 4; create it with `monstrum plugin pack`
    tampered: 422 /signature: the package was changed after it was signed: its digest is [digest], but the signed digest is [digest]
    another package under its signature: 422 /signature: the package was changed after it was signed: its digest is [digest], but the signed digest is [digest]
    by a stranger: 422 /signature: the package is signed by an untrusted key: [key]; to trust it, run `monstrum trust add`
    by a key for other names: 422 /signature: the package is signed by [key], which is trusted for `github*`, `test-ech` but not for `test-echo`; to trust the key for this name, run `monstrum trust add`
    another key named in the signature: 422 /signature: the signature is invalid: it was made with another key, or for another name, version or package
    another version in the signature: 422 /signature: the signature is invalid: it was made with another key, or for another name, version or package
    another name in the signature: 422 /signature: the signature is invalid: it was made with another key, or for another name, version or package
    the signature of another version: 422 /signature: the package was changed after it was signed: its digest is [digest], but the signed digest is [digest]
    file renamed to another plugin: 422 /package: the package was renamed: the file name contains `github 1.1.0`, but the manifest contains `test-echo 1.1.0`
    file renamed to another version: 422 /package: the package was renamed: the file name contains `test-echo 2.0.0`, but the manifest contains `test-echo 1.1.0`
    signed as another plugin: 422 /package: the package was renamed: the signature contains `test-other 1.1.0`, but the manifest contains `test-echo 1.1.0`
    signed as another version: 422 /package: the package was renamed: the signature contains `test-echo 2.0.0`, but the manifest contains `test-echo 1.1.0`
    an older version, replayed: 409 plugin `test-echo`: version 1.0.0 is older than the recorded version 1.1.0 and may be a replay; to install it anyway, use --allow-downgrade
    "#);
    Ok(())
}

/// The record of the installed version outlives the folder. Otherwise, an old version could be installed after an
/// uninstall.
#[tokio::test]
async fn an_older_version_is_a_replay_after_an_uninstall_and_a_start_as_well() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let (old, new) = (Source::of("test-echo", "1.0.0")?, Source::of("test-echo", "1.1.0")?);
    assert_eq!(new.packed(&key)?.to(&api).await?.0, 201);
    assert_eq!(api.delete("/api/plugins/test-echo").await?.0, 204);
    assert_eq!(old.packed(&key)?.to(&api).await?.0, 409);
    server.restart().await?;
    let api = server.api()?;
    assert_eq!(old.packed(&key)?.to(&api).await?.0, 409);
    assert_eq!(left(&server)?, ["plugins"]);
    assert_eq!(new.packed(&key)?.to(&api).await?.0, 201);
    Ok(())
}

#[tokio::test]
async fn trust_is_given_listed_and_taken_back() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = SigningKey::generate()?;
    let public_key = key.public().to_string();
    let other_key = SigningKey::generate()?.public().to_string();
    let source = Source::of("test-echo", "1.0.0")?;
    let mut answers = Answers::default();
    answers.add("none", api.get("/api/trust").await?);
    for (label, body) in [
        ("given", json!({ "public_key": public_key, "name_glob": "test-*" })),
        ("twice", json!({ "public_key": public_key, "name_glob": "test-*" })),
        ("types", json!({ "public_key": other_key, "name_glob": "a-*", "type_glob": "tracker" })),
        ("no types", json!({ "public_key": public_key, "name_glob": "b", "type_glob": "" })),
        ("no key", json!({ "public_key": "ed25519:AAAA", "name_glob": "test-*" })),
        ("no names", json!({ "public_key": public_key, "name_glob": "" })),
        ("nothing", json!({})),
    ] {
        let (status, body) = api.post("/api/trust", &body).await?;
        let globs = json!([body["name_glob"], body["type_glob"]]);
        let shown = if status == 201 { globs } else { body["detail"].clone() };
        answers.add(label, (status, shown));
    }
    let (_, list) = api.get("/api/trust").await?;
    assert_eq!(list["items"][0]["public_key"], public_key.as_str());
    assert_eq!(source.packed(&key)?.to(&api).await?.0, 201);
    let path = format!("/api/trust/{}", list["items"][0]["id"].as_str().unwrap_or_default());
    answers.add("taken back", api.delete(&path).await?);
    let (status, again) = api.delete(&path).await?;
    answers.add("again", (status, again["detail"].clone()));
    assert_snapshot!(answers, @r#"
    none: 200 {"items":[],"next_cursor":null}
    given: 201 ["test-*","test-*"]
    twice: 409 "the key is already trusted for these names"
    types: 201 ["a-*","tracker"]
    no types: 422 "/type_glob: must not be empty"
    no key: 422 "/public_key: not a public key: expected `ed25519:` followed by 44 base64 characters, as `monstrum plugin pack` prints it"
    no names: 422 "/name_glob: must not be empty"
    nothing: 422 "/public_key: required field is missing"
    taken back: 204
    again: 404 "no such trusted key"
    "#);
    let answer = Source::of("test-echo", "1.1.0")?.packed(&key)?.to(&api).await?;
    assert!(answer.0 == 422 && detail(&answer).contains("untrusted"), "{answer:?}");
    // The installed version remains.
    assert_eq!(api.get("/api/plugins/test-echo").await?.1["version"], "1.0.0");
    Ok(())
}

/// The API always requires a signature.
#[tokio::test]
async fn a_form_that_is_none_is_refused_by_its_field() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let sent = Source::of("test-echo", "1.0.0")?.packed(&key)?;
    let package = || Part::bytes(sent.package.clone());
    let signature = || Part::text(sent.signature.clone().unwrap_or_default());
    let forms = [
        ("no package", Form::new().part("signature", signature())),
        ("unsigned", Form::new().part("package", package()).text("allow_unsigned", "true")),
        ("two packages", Form::new().part("package", package()).part("package", package())),
        ("two signatures", Form::new().part("signature", signature()).part("signature", signature())),
        ("a long signature", Form::new().text("signature", "x".repeat(5000))),
        ("a wrong flag", Form::new().part("package", package()).text("allow_downgrade", "maybe")),
    ];
    let mut answers = Answers::default();
    for (label, form) in forms {
        let (status, _, body) = send(api.request(Method::POST, "/api/plugins").multipart(form)).await?;
        answers.add(label, (status, json!([body["errors"][0]["path"], body["errors"][0]["message"]])));
    }
    let cut = "--x\r\nContent-Disposition: form-data; name=\"package\"\r\n\r\nPK";
    let request = api.request(Method::POST, "/api/plugins").header("Content-Type", "multipart/form-data; boundary=x");
    let (status, _, body) = send(request.body(cut)).await?;
    answers.add("cut off", (status, json!([body["errors"][0]["path"], null])));
    let named = api.post("/api/plugins", &json!({ "name": "test-echo", "allow_unsigned": true })).await?;
    answers.add("by name", (named.0, named.1["detail"].clone()));
    assert_snapshot!(answers, @r#"
    no package: 422 ["/package","required field is missing"]
    unsigned: 422 ["/allow_unsigned","unknown field, expected `package`, `signature` or `allow_downgrade`"]
    two packages: 422 ["/package","duplicate field"]
    two signatures: 422 ["/signature","duplicate field"]
    a long signature: 422 ["/signature","exceeds the limit of 4096 bytes"]
    a wrong flag: 422 ["/allow_downgrade","expected `true` or `false`"]
    cut off: 422 ["",null]
    by name: 422 "/allow_unsigned: unknown field `allow_unsigned`, expected one of `name`, `version`, `allow_downgrade`"
    "#);
    assert_eq!(left(&server)?, ["plugins"]);
    Ok(())
}
