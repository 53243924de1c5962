//! A plugin that tries to obtain its own credential. Every attempt fails, and the plugin finds no secret.

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use serde_json::json;
use support::{FakeGithub, TOKEN};

use crate::canary::encodings::{Search, encodings};
use crate::stable::{lines, stable};
use crate::world::World;

/// Encodes `bytes` as the guest expects a search pattern: reversed and in hex, so that the guest's memory contains no
/// plain copy. Leading zeros are omitted, because most of a memory is zeros, and examining each zero would use up the
/// guest's budget.
pub(crate) fn pattern(bytes: &[u8]) -> String {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    hex::encode(bytes[zeros..].iter().rev().copied().collect::<Vec<u8>>())
}

#[tokio::test]
async fn every_attempt_to_get_the_credential_fails() -> Result<()> {
    let world = World::with(&["test-steal"]).await?;
    world.grant_all("test-steal").await?;
    let thief = FakeGithub::start_with_token("none").await?;
    let params = json!({ "target": format!("{}/collect", thief.url()) });
    let mut answer = world.call("test_steal_run", &params).await?;
    ensure!(Search::of(TOKEN).find(answer.to_string().as_bytes()).is_none(), "the answer contains the token: {answer}");
    let report = answer["data"].as_object_mut().context("it reports")?;
    // The memory is not compared, because its size depends on the compiler. It is searched below.
    report.remove("memory");
    if let Some(headers) = report["echo"]["headers"].as_array_mut() {
        headers.retain(|header| header[0] == "x-echo-authorization");
    }
    let told: Vec<String> = report.iter().map(|(attempt, result)| format!("{attempt}: {}", stable(result))).collect();
    assert_snapshot!(told.join("\n"), @r#"
    environment: []
    arguments: []
    files: [["/proc/self/environ",{"error":"No such file or directory (os error 44)"}],["/proc/self/maps",{"error":"No such file or directory (os error 44)"}],["/etc/passwd",{"error":"No such file or directory (os error 44)"}],["/var/run/secrets",{"error":"No such file or directory (os error 44)"}],["monstrum.yaml",{"error":"No such file or directory (os error 44)"}],[".env",{"error":"No such file or directory (os error 44)"}]]
    folders: [["/",{"error":"No such file or directory (os error 44)"}],[".",{"error":"No such file or directory (os error 44)"}],["/proc/self/fd",{"error":"No such file or directory (os error 44)"}]]
    socket: {"error":"Permission denied (os error 2)"}
    credential_status: "ready"
    elsewhere: {"failure":{"code":"denied","message":"this resource may not connect to the origin `http://[upstream]`","sent":false}}
    echo: {"status":200,"headers":[["x-echo-authorization","[redacted]"]],"body":"{\"method\":\"GET\",\"path\":\"/echo-headers\",\"query\":\"\",\"headers\":{\"user-agent\":\"monstrum/0.1.0\",\"accept-encoding\":\"gzip\",\"authorization\":\"[redacted]\",\"accept\":\"*/*\",\"host\":\"[upstream]\"},\"body\":\"\"}"}
    forged: {"failure":{"code":"denied","message":"only the host may set the header `authorization`","sent":false}}
    smuggled: {"failure":{"code":"invalid","message":"the value of the header `x-smuggled` is malformed","sent":false}}
    given: [{"api_base":"http://[upstream]"},{}]
    "#);
    assert_snapshot!(lines(&world.github.requests(), TOKEN).join("\n"), @r#"GET /echo-headers (Bearer TOKEN)"#);
    assert_eq!(lines(&thief.requests(), TOKEN), [""; 0]);
    Ok(())
}

#[tokio::test]
async fn the_memory_of_the_plugin_holds_the_credential_in_no_form() -> Result<()> {
    let world = World::with(&["test-steal"]).await?;
    world.grant_all("test-steal").await?;
    let known = [&b"/echo-headers"[..], b"[redacted]"];
    let forms = encodings(TOKEN);
    let patterns: Vec<String> =
        known.into_iter().chain(forms.iter().map(|(_, bytes)| bytes.as_slice())).map(pattern).collect();
    let answer =
        world.call("test_steal_run", &json!({ "target": "http://127.0.0.1:1/", "patterns": patterns })).await?;
    let hits = answer["data"]["memory"]["hits"].as_array().with_context(|| format!("no hits in {answer}"))?;
    let (control, of_forms) = hits.split_at(known.len());
    assert!(control.iter().all(|hits| hits.as_u64() > Some(0)), "the search itself finds nothing: {control:?}");
    for ((name, _), hits) in forms.iter().zip(of_forms) {
        assert_eq!(hits, 0, "{name} of the token is in the guest's memory");
    }
    assert_eq!(of_forms.len(), forms.len());
    Ok(())
}
