//! The import `monstrum:plugin/sandbox`: each operation of a plugin in the sandbox is a child call of the plugin.

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::sandbox::{Doors, shown};
use crate::world::text;

const GUEST: &str = "test-sandbox";

/// Starts a server with the guest plugin, which the bot may use.
async fn doors() -> Result<Doors> {
    granted(Doors::with(&[GUEST]).await?).await
}

async fn granted(doors: Doors) -> Result<Doors> {
    let resource = doors.api.resource(GUEST, GUEST, "http://127.0.0.1:9").await?;
    let role = doors.api.role(GUEST, &["*"]).await?;
    doors.api.bind(&doors.bot, &resource, &role, &json!({})).await?;
    Ok(doors)
}

/// Calls a tool of the guest and returns the result that the guest received.
async fn guest(doors: &Doors, tool: &str, params: &Value) -> Result<Value> {
    let answer = doors.call(&format!("test_sandbox_{tool}"), params).await?;
    ensure!(answer["status"] == "success", "{answer}");
    Ok(answer["data"].clone())
}

#[tokio::test]
async fn a_plugin_uses_the_sandbox_of_its_conversation() -> Result<()> {
    let doors = doors().await?;
    let mut lines = Vec::new();
    for (tool, params) in [
        ("exec", json!({ "command": "echo from a plugin" })),
        ("exec", json!({ "command": "fail 9", "timeout": 300 })),
        ("exec", json!({ "command": "slow" })),
        ("write", json!({ "path": "out/a.txt", "text": "café" })),
        ("read", json!({ "path": "/workspace/out/a.txt" })),
        ("list", json!({ "path": "out" })),
        ("list", json!({ "path": "." })),
    ] {
        lines.push(format!("{tool}: {}", guest(&doors, tool, &params).await?));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    exec: {"stdout":"from a plugin\n","stderr":"","exit_code":0,"termination":"exited","truncated":false}
    exec: {"stdout":"","stderr":"failed\n","exit_code":9,"termination":"exited","truncated":false}
    exec: {"stdout":"begun\n","stderr":"","exit_code":124,"termination":"timed_out","truncated":false}
    write: "written"
    read: {"bytes":5,"begin":"café"}
    list: [{"name":"a.txt","path":"/workspace/out/a.txt","kind":"file","size":5}]
    list: [{"name":"out","path":"/workspace/out","kind":"directory","size":0}]
    "#);
    assert_eq!(doors.machines.created.load(Ordering::SeqCst), 1, "the plugin did not use the sandbox of the bot");
    // A plugin gets the complete captured output. A model would get only a part of the output.
    let lines = guest(&doors, "exec", &json!({ "command": "lines 3000" })).await?;
    assert_eq!((text(&lines["stdout"]).lines().count(), &lines["truncated"]), (3000, &json!(false)));
    let flood = guest(&doors, "exec", &json!({ "command": "bytes 900000" })).await?;
    assert_eq!(text(&flood["stdout"]).len(), 900_000);
    let files: Vec<String> = doors.machines.files().into_keys().collect();
    assert_eq!(files, ["/workspace/out/a.txt"]);
    Ok(())
}

#[tokio::test]
async fn each_use_is_a_call_with_a_record() -> Result<()> {
    let doors = doors().await?;
    let content = "what nobody else shall read";
    let answer = doors.call("test_sandbox_write", &json!({ "path": "a", "text": content })).await?;
    doors.call("test_sandbox_read", &json!({ "path": "a" })).await?;
    let (_, list) = doors.api.get("/api/audit").await?;
    let rows = list["items"].as_array().cloned().unwrap_or_default();
    let row = |tool: &str| rows.iter().find(|row| row["tool"] == tool).cloned().unwrap_or_default();
    let written = row("sandbox_write_file");
    assert_eq!(written["parent_request_id"], answer["request_id"]);
    assert_eq!((&written["operation"], &written["resource_id"]), (&json!("sandbox.write"), &Value::Null));
    assert!(!written.to_string().contains(content), "the audit contains the content of the file: {written}");
    assert_eq!(written["params"]["bytes"], 27);
    assert_eq!(row("sandbox_read_file")["status"], "success");
    assert_eq!(doors.api.verify_audit().await?["valid"], true);
    Ok(())
}

/// An approval is also of the bytes that travel beside the parameters.
#[tokio::test]
async fn an_approval_to_write_a_file_permits_no_other_content() -> Result<()> {
    let doors = doors().await?;
    let gates = json!([{ "action": "ask", "tools": ["sandbox_write_file"], "allow_starter": true }]);
    let (status, body) = doors.api.patch(&format!("/api/bots/{}", doors.bot), &json!({ "gates": gates })).await?;
    ensure!(status == 200, "{status} {body}");
    let write = async |text: &str| guest(&doors, "write", &json!({ "path": "a.txt", "text": text })).await;
    assert_eq!(write("first").await?["code"], "denied");
    let (_, list) = doors.api.get("/api/approvals?status=pending").await?;
    let approval = &list["items"][0];
    assert_eq!((&approval["tool"], &approval["params"]["bytes"]), (&json!("sandbox_write_file"), &json!(5)), "{list}");
    let decision = json!({ "decision": "approve", "digest": approval["digest"] });
    let (status, body) = doors.api.post(&format!("/api/approvals/{}", text(&approval["id"])), &decision).await?;
    ensure!(status == 200, "{status} {body}");
    // The other content has the same length.
    assert_eq!(write("other").await?["code"], "denied");
    assert!(doors.machines.files().is_empty());
    assert_eq!(write("first").await?, "written");
    assert_eq!(doors.machines.files().get("/workspace/a.txt").map(|content| &content[..]), Some(&b"first"[..]));
    assert_eq!(write("first").await?["code"], "denied", "one approval permits one write");
    Ok(())
}

#[tokio::test]
async fn what_is_refused_says_why_in_the_codes_of_the_contract() -> Result<()> {
    let doors = doors().await?;
    doors.shell("save a.txt").await?;
    doors.machines.put("/workspace/large", vec![b'x'; (16 << 20) + 1]);
    for number in 0..=10_000 {
        doors.machines.put(&format!("/workspace/many/{number}"), "");
    }
    let mut lines = Vec::new();
    for (what, tool, params) in [
        ("above", "read", json!({ "path": "../etc/passwd" })),
        ("outside", "list", json!({ "path": "/proc" })),
        ("no path", "write", json!({ "path": "" })),
        ("nothing there", "read", json!({ "path": "none" })),
        ("a large file", "read", json!({ "path": "large" })),
        ("a large folder", "list", json!({ "path": "many" })),
        ("a large content", "write", json!({ "path": "b", "bytes": (16 << 20) + 1 })),
        ("no command", "exec", json!({ "command": "" })),
        ("a long command", "exec", json!({ "command": "x".repeat(40_000) })),
        ("too much time", "exec", json!({ "command": "x", "timeout": 301 })),
    ] {
        lines.push(format!("{what}: {}", guest(&doors, tool, &params).await?));
    }
    doors.machines.is_full.store(true, Ordering::SeqCst);
    lines.push(format!("a full disk: {}", guest(&doors, "write", &json!({ "path": "b", "text": "x" })).await?));
    doors.machines.is_down.store(true, Ordering::SeqCst);
    lines.push(format!("no provider: {}", guest(&doors, "exec", &json!({ "command": "x" })).await?));
    doors.machines.is_down.store(false, Ordering::SeqCst);
    let params = json!({ "command": "echo x" });
    let outside = doors.call_as(&doors.bot, "test_sandbox_exec", &params, None, "en").await?;
    lines.push(format!("no conversation: {}", outside["data"]));
    doors.switch(&doors.bot, false).await?;
    lines.push(format!("the switch is off: {}", guest(&doors, "exec", &params).await?));
    assert_snapshot!(lines.join("\n"), @r#"
    above: {"code":"invalid","message":"../etc/passwd: leaves /workspace","sent":false}
    outside: {"code":"invalid","message":"/proc: leaves /workspace","sent":false}
    no path: {"code":"invalid","message":"the path must be 1 to 4096 bytes long","sent":false}
    nothing there: {"code":"invalid","message":"/workspace/none: no such file or folder","sent":false}
    a large file: {"code":"too_large","message":"the file exceeds the limit of 16777216 bytes","sent":false}
    a large folder: {"code":"too_large","message":"/workspace/many: has too many entries","sent":false}
    a large content: {"code":"too_large","message":"the content exceeds the limit of 16777216 bytes","sent":false}
    no command: {"code":"invalid","message":"Invalid parameters: /command: \"\" is shorter than 1 character","sent":false}
    a long command: {"code":"invalid","message":"the command exceeds the limit of 32768 bytes","sent":false}
    too much time: {"code":"invalid","message":"Invalid parameters: /timeout: 301 is greater than the maximum of 300","sent":false}
    a full disk: {"code":"limit","message":"no space is left in the sandbox","sent":false}
    no provider: {"code":"unavailable","message":"The sandbox service is temporarily unavailable, please try again later","sent":false}
    no conversation: {"code":"unavailable","message":"the call has no conversation, so it cannot use a sandbox","sent":false}
    the switch is off: {"code":"denied","message":"Permission denied: tool 'sandbox_shell' is not available to this bot","sent":false}
    "#);
    Ok(())
}

#[tokio::test]
async fn a_plugin_gets_no_more_time_than_it_has() -> Result<()> {
    let doors = doors().await?;
    // This server limits the plugin's call to 2 s, including the commands that it runs.
    let late = doors.call("test_sandbox_exec", &json!({ "command": "hang" })).await?;
    assert_snapshot!(shown(&late), @r#"{"message":"the call took longer than 2 s","status":"error","code":"timeout"}"#);
    doors.counted("the command is ended", &doors.machines.ended, 1).await?;
    Ok(())
}

#[tokio::test]
async fn a_plugin_gets_no_more_calls_than_it_has() -> Result<()> {
    // The limit leaves enough time for all calls, even on a busy machine.
    let doors = granted(Doors::within(&[GUEST], 60).await?).await?;
    let many = guest(&doors, "exec", &json!({ "command": "echo x", "times": 101 })).await?;
    assert_snapshot!(many, @r#"{"code":"limit","message":"the root call has reached its limit of 100 child calls","sent":false}"#);
    Ok(())
}
