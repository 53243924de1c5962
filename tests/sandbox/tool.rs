//! `sandbox_shell`: which bots have the tool, which answers the tool gives, and which part of a long output a model
//! reads.

use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::sandbox::{Doors, RUNNING_MAX, shown};
use crate::world::text;

const HIDDEN: [&str; 3] = ["sandbox_list_files", "sandbox_read_file", "sandbox_write_file"];

async fn tools(doors: &Doors) -> Result<Value> {
    Ok(doors.api.get(&format!("/api/bots/{}/tools", doors.bot)).await?.1)
}

#[tokio::test]
async fn the_switch_is_the_grant() -> Result<()> {
    let doors = Doors::open().await?;
    let listed = tools(&doors).await?;
    let mut tool = listed["items"][0].clone();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    tool.as_object_mut().context("the tool is not an object")?.remove("description");
    assert_snapshot!(tool, @r#"{"name":"sandbox_shell","cost":null,"input_schema":{"type":"object","properties":{"command":{"type":"string","minLength":1,"maxLength":32768,"description":"The command for bash"},"timeout":{"type":"integer","minimum":1,"maximum":300,"default":60,"description":"Time-out in seconds; the command and all processes that it has started are then ended"}},"required":["command"]},"output_schema":null,"effect":"write","result":"json","operation":"sandbox.exec","asks":false,"resource_type":"sandbox","resources":[]}"#);
    let answer = doors.shell("echo hello").await?;
    assert_snapshot!(shown(&answer), @r#"{"data":{"stdout":"hello\n","stderr":"","exitCode":0,"termination":"exited","truncated":false,"durationMs":7},"status":"success"}"#);
    assert_eq!(doors.api.check(&doors.bot, "sandbox_shell", &json!({ "command": "x" })).await?["decision"], "allow");

    let mut record = doors.api.audit(text(&answer["request_id"])).await?;
    let events = record.as_object_mut().and_then(|record| record.remove("events")).context("the call has no events")?;
    let kinds: Vec<&str> = events.as_array().into_iter().flatten().map(|event| text(&event["kind"])).collect();
    assert_eq!(kinds, ["started", "finished"]);
    for gone in ["request_id", "bot_id", "task_id", "duration_ms", "started_at", "finished_at"] {
        record.as_object_mut().and_then(|record| record.remove(gone));
    }
    assert_snapshot!(record, @r#"{"delegation":null,"parent_request_id":null,"user":{"app_id":"a","user_id":"u"},"params":{"command":"echo hello"},"resource_id":null,"tool":"sandbox_shell","operation":"sandbox.exec","plugin":"sandbox","plugin_digest":null,"status":"success","code":null,"message":null,"rule":null}"#);

    doors.switch(&doors.bot, false).await?;
    assert_eq!(tools(&doors).await?["items"], json!([]));
    assert_snapshot!(shown(&doors.shell("echo hello").await?), @r#"{"message":"Permission denied: tool 'sandbox_shell' is not available to this bot","status":"permission_denied","code":"denied"}"#);
    let check = doors.api.check(&doors.bot, "sandbox_shell", &json!({ "command": "x" })).await?;
    assert_eq!((&check["decision"], &check["rule"]), (&json!("deny"), &json!("unknown_tool")));
    Ok(())
}

#[tokio::test]
async fn the_tools_of_the_import_are_nobodys_to_see_or_call() -> Result<()> {
    let doors = Doors::open().await?;
    for tool in HIDDEN {
        let params = json!({ "path": "x", "bytes": 0, "digest": "" });
        let called = doors.call(tool, &params).await?;
        assert_eq!(text(&called["message"]), format!("Permission denied: tool '{tool}' is not available to this bot"));
        let check = doors.api.check(&doors.bot, tool, &params).await?;
        assert_eq!(check["rule"], "unknown_tool", "{check}");
    }
    let (_, types) = doors.api.get("/api/resource-types").await?;
    assert!(!types.to_string().contains("sandbox"), "a resource of the type can be created: {types}");
    let (status, body) = doors.api.post("/api/resources", &json!({ "resource_type": "sandbox", "name": "x" })).await?;
    assert_eq!(status, 422, "{body}");
    assert_eq!(doors.machines.count(), 0, "the rejected call created a sandbox");
    Ok(())
}

#[tokio::test]
async fn what_a_command_ends_with_is_an_answer() -> Result<()> {
    let doors = Doors::open().await?;
    let mut lines = Vec::new();
    for command in ["fail 7", "nonsense", "slow", "lost"] {
        lines.push(format!("{command}: {}", shown(&doors.shell(command).await?)));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    fail 7: {"data":{"stdout":"","stderr":"failed\n","exitCode":7,"termination":"exited","truncated":false,"durationMs":7},"status":"success"}
    nonsense: {"data":{"stdout":"","stderr":"bash: nonsense: command not found\n","exitCode":127,"termination":"exited","truncated":false,"durationMs":7},"status":"success"}
    slow: {"data":{"stdout":"begun\n","stderr":"","exitCode":124,"termination":"timed_out","truncated":false,"durationMs":7},"status":"success"}
    lost: {"data":{"stdout":"","stderr":"","exitCode":0,"termination":"lost","truncated":false,"durationMs":7},"status":"error","code":"interrupted","message":"the sandbox was stopped or deleted while the command ran; the command may have had effects"}
    "#);
    assert_eq!(doors.machines.created.load(Ordering::SeqCst), 1, "the conversation has more than one sandbox");
    Ok(())
}

#[tokio::test]
async fn a_command_has_its_own_time_and_not_that_of_plugins() -> Result<()> {
    let doors = Doors::open().await?;
    // This server limits the calls of plugins to 2 s.
    let answer = doors.shell("sleep 2500").await?;
    assert_eq!(answer["status"], "success", "{answer}");
    Ok(())
}

/// After a change of its bot, a running command is authorized again. The text of this command is so long that the check
/// runs on the pool of threads.
#[tokio::test]
async fn a_long_command_is_judged_again_after_the_time_of_plugins() -> Result<()> {
    let doors = Doors::open().await?;
    let begun = tokio::time::Instant::now();
    let command = format!("sleep {}5000", "0".repeat(16_000));
    let changed = async {
        doors.counted("a command begins", &doors.machines.begun, 1).await?;
        // This server limits the calls of plugins to 2 s.
        tokio::time::sleep_until(begun + std::time::Duration::from_secs(3)).await;
        doors.api.patch(&format!("/api/bots/{}", doors.bot), &json!({ "description": "changed" })).await
    };
    let (answer, changed) = tokio::join!(doors.shell(&command), changed);
    assert_eq!(changed?.0, 200);
    let answer = answer?;
    assert_eq!(answer["status"], "success", "{answer}");
    Ok(())
}

#[tokio::test]
async fn parameters_and_conversations_are_checked() -> Result<()> {
    let doors = Doors::open().await?;
    let mut lines = Vec::new();
    let long = "x".repeat(32 << 10);
    let wide = "é".repeat(20 << 10);
    for (what, params, chat) in [
        ("nothing", json!({}), Some(Doors::chat("c"))),
        ("an empty command", json!({ "command": "" }), Some(Doors::chat("c"))),
        ("too many bytes", json!({ "command": wide }), Some(Doors::chat("c"))),
        ("too many characters", json!({ "command": format!("{long}x") }), Some(Doors::chat("c"))),
        ("NUL", json!({ "command": "a\u{0}b" }), Some(Doors::chat("c"))),
        ("no time", json!({ "command": "x", "timeout": 0 }), Some(Doors::chat("c"))),
        ("too much time", json!({ "command": "x", "timeout": 301 }), Some(Doors::chat("c"))),
        ("another parameter", json!({ "command": "x", "cwd": "/" }), Some(Doors::chat("c"))),
        ("no conversation", json!({ "command": "x" }), None),
    ] {
        let answer = doors.call_as(&doors.bot, "sandbox_shell", &params, chat, "en").await?;
        lines.push(format!("{what}: {} {}", text(&answer["code"]), text(&answer["message"])));
    }
    assert_snapshot!(lines.join("\n").replace(&long, "x…"), @r#"
    nothing: invalid_params Invalid parameters: /command: required parameter is missing
    an empty command: invalid_params Invalid parameters: /command: "" is shorter than 1 character
    too many bytes: invalid_params Invalid parameters: /command: has 40960 bytes; at most 32768 are allowed
    too many characters: invalid_params Invalid parameters: /command: the value is longer than 32768 characters
    NUL: invalid_params Invalid parameters: /command: must not contain NUL
    no time: invalid_params Invalid parameters: /timeout: 0 is less than the minimum of 1
    too much time: invalid_params Invalid parameters: /timeout: 301 is greater than the maximum of 300
    another parameter: invalid_params Invalid parameters: /cwd: undeclared parameter
    no conversation: invalid_params Invalid parameters: a sandbox belongs to a conversation; name the conversation in `chat`, next to the parameters
    "#);
    assert_eq!(doors.machines.count(), 0);
    let call = format!("/api/bots/{}/tools/sandbox_shell/call", doors.bot);
    for odd in ["", "a\nb", &"x".repeat(257)] {
        let body = json!({ "params": { "command": "x" }, "chat": Doors::chat(odd) });
        let (status, answer) = doors.api.post(&call, &body).await?;
        assert_eq!((status, text(&answer["errors"][0]["path"])), (422, "/chat/chat_id"), "{answer}");
    }
    let longest = doors.call("sandbox_shell", &json!({ "command": format!("echo {}", &long[5..]) })).await?;
    assert_eq!(longest["status"], "success", "{longest}");
    Ok(())
}

#[tokio::test]
async fn without_a_provider_a_user_reads_why_and_the_next_call_works_again() -> Result<()> {
    let doors = Doors::open().await?;
    doors.machines.is_down.store(true, Ordering::SeqCst);
    let ask = async |language: &str| {
        let params = json!({ "command": "echo x" });
        doors.call_as(&doors.bot, "sandbox_shell", &params, Some(Doors::chat("c")), language).await
    };
    assert_snapshot!(shown(&ask("en").await?), @r#"{"data":{"stdout":"","stderr":"","exitCode":-1,"termination":"lost","truncated":false,"durationMs":0},"status":"error","code":"unavailable","message":"The sandbox service is temporarily unavailable, please try again later"}"#);
    assert_eq!(ask("zh-CN").await?["message"], "沙盒服务暂时不可用,请稍后重试");
    doors.machines.is_down.store(false, Ordering::SeqCst);
    assert_eq!(ask("en").await?["status"], "success");
    Ok(())
}

#[tokio::test]
async fn a_conversation_is_one_users_and_one_bots() -> Result<()> {
    let doors = Doors::open().await?;
    let other = doors.api.bot("other").await?;
    doors.switch(&other, true).await?;
    doors.shell("echo mine").await?;
    let params = json!({ "command": "echo x" });
    let another_user = json!({ "app_id": "a", "user_id": "v", "chat_id": "c" });
    let by_user = doors.call_as(&doors.bot, "sandbox_shell", &params, Some(another_user), "en").await?;
    let by_bot = doors.call_as(&other, "sandbox_shell", &params, Some(Doors::chat("c")), "en").await?;
    assert_snapshot!(shown(&by_user), @r#"{"message":"Permission denied: the sandbox of this name belongs to another conversation, user or bot","status":"permission_denied","code":"denied"}"#);
    assert_eq!(shown(&by_bot), shown(&by_user));
    let check = doors.api.audit(text(&by_bot["request_id"])).await?;
    assert_eq!(check["rule"], "sandbox.conversation");
    Ok(())
}

#[tokio::test]
async fn without_the_switch_an_operator_reads_what_to_change() -> Result<()> {
    let doors = Doors::open().await?;
    doors.switch(&doors.bot, false).await?;
    let verdict = doors.api.check(&doors.bot, "sandbox_shell", &json!({ "command": "echo x" })).await?;
    assert_snapshot!(verdict, @r#"{"decision":"deny","message":"Permission denied: tool 'sandbox_shell' is not available to this bot","rule":"unknown_tool","reason":"the switch `use_agent_sandbox` of the bot is off","smallest_change":"turn on the switch `use_agent_sandbox` of the bot"}"#);
    Ok(())
}

#[tokio::test]
async fn turning_the_switch_off_ends_what_runs() -> Result<()> {
    let doors = Doors::open().await?;
    let switched = async {
        doors.counted("a command begins", &doors.machines.begun, 1).await?;
        doors.switch(&doors.bot, false).await
    };
    let (answer, switched) = tokio::join!(doors.shell("hang"), switched);
    switched?;
    assert_snapshot!(shown(&answer?), @r#"{"message":"Permission denied: tool 'sandbox_shell' is not available to this bot","status":"permission_denied","code":"denied"}"#);
    doors.counted("the command is ended", &doors.machines.ended, 1).await
}

#[tokio::test]
async fn a_sandbox_that_goes_takes_its_command_along() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo made").await?;
    let sandbox = format!("/api/sandboxes/{}", text(&doors.sandbox().await?["id"]));
    let deleted = async {
        doors.counted("a command begins", &doors.machines.begun, 2).await?;
        doors.api.delete(&sandbox).await
    };
    let (answer, deleted) = tokio::join!(doors.shell("hang"), deleted);
    assert_eq!(deleted?.0, 202);
    assert_snapshot!(shown(&answer?), @r#"{"data":{"stdout":"","stderr":"","exitCode":-1,"termination":"lost","truncated":false,"durationMs":0},"status":"error","code":"interrupted","message":"the sandbox was stopped or deleted while the command ran; the command may have had effects"}"#);
    // The next command gets a new sandbox.
    assert_eq!(doors.shell("echo again").await?["status"], "success");
    assert_eq!(doors.machines.created.load(Ordering::SeqCst), 2);
    Ok(())
}

#[tokio::test]
async fn a_host_without_room_says_that_it_is_busy() -> Result<()> {
    let doors = Doors::open().await?;
    let ask = async |chat: u32| {
        let params = json!({ "command": "echo x" });
        doors.call_as(&doors.bot, "sandbox_shell", &params, Some(Doors::chat(&format!("c{chat}"))), "en").await
    };
    for chat in 0..RUNNING_MAX {
        assert_eq!(ask(chat).await?["status"], "success");
    }
    let refused = ask(RUNNING_MAX).await?;
    assert_eq!((text(&refused["status"]), text(&refused["code"])), ("error", "busy"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_model_reads_the_end_and_finds_the_rest_in_a_file() -> Result<()> {
    let doors = Doors::open().await?;
    let answer = doors.shell("lines 60000").await?;
    let data = &answer["data"];
    let path = text(&data["outputFile"]);
    assert_eq!(path, format!("/workspace/.monstrum/output/{}.txt", text(&answer["request_id"])));
    let stdout = text(&data["stdout"]);
    assert!(stdout.len() <= 50_000 && stdout.lines().count() <= 2_000, "{} bytes", stdout.len());
    let marker = stdout.lines().next().context("the output does not begin with the marker of the cut")?;
    assert!(marker.ends_with(&format!("were cut here; the whole output is in {path}]")), "{marker}");
    assert!(stdout.ends_with("\n59999\n60000\n"));
    assert_eq!((&data["truncated"], &data["exitCode"]), (&json!(true), &json!(0)));
    let kept = doors.machines.files();
    let kept =
        String::from_utf8_lossy(kept.get(path).context("the file with the whole output is missing")?).into_owned();
    assert_eq!(
        kept,
        (1..=60_000).map(|line| format!("{line}\n")).collect::<String>(),
        "the file differs from the written output"
    );

    // The output exceeds the size that a provider captures.
    let flood = doors.shell("bytes 3000000").await?;
    let marker = text(&flood["data"]["stdout"]).lines().next().unwrap_or_default().to_owned();
    assert!(marker.contains("the captured part is in /workspace/.monstrum/output/"), "{marker}");
    Ok(())
}

#[tokio::test]
async fn the_newest_twenty_outputs_are_kept_and_nothing_else_is_touched() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo first").await?;
    doors.machines.put("/workspace/.monstrum/output/notes.txt", "mine");
    let mut paths = Vec::new();
    for _ in 0..23 {
        paths.push(text(&doors.shell("lines 2001").await?["data"]["outputFile"]).to_owned());
    }
    let kept: Vec<String> = doors.machines.files().into_keys().collect();
    let mut expected = paths.split_off(3);
    expected.push("/workspace/.monstrum/output/notes.txt".to_owned());
    assert_eq!(kept, expected);
    Ok(())
}

#[tokio::test]
async fn a_full_disk_costs_the_file_and_not_the_answer() -> Result<()> {
    let doors = Doors::open().await?;
    doors.machines.is_full.store(true, Ordering::SeqCst);
    let answer = doors.shell("lines 2001").await?;
    let data = &answer["data"];
    assert_eq!((&answer["status"], data.get("outputFile")), (&json!("success"), None));
    let marker = text(&data["stdout"]).lines().next().unwrap_or_default();
    assert_snapshot!(marker, @"[6 bytes in 3 lines were cut here; the output could not be saved to a file: no space is left in the sandbox]");
    Ok(())
}
