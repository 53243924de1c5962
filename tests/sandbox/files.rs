//! `/api/core/ai/sandbox/…`: the file API with FastGPT's paths and fields.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::http::{Answers, send};
use crate::sandbox::Doors;
use crate::tamper::sqlite;
use crate::world::{eventually, text};

const DOWNLOAD: &str = "/api/core/ai/sandbox/download";

#[tokio::test]
async fn files_are_listed_read_and_written() -> Result<()> {
    let doors = Doors::open().await?;
    let mut answers = Answers::default();
    let ask = async |body: Value| doors.file(&doors.api, &body).await;
    answers.add("no sandbox", ask(json!({ "action": "list", "path": "/workspace" })).await?);
    doors.shell("save made.txt").await?;
    answers.add("write", ask(json!({ "action": "write", "path": "a/b.md", "content": "# é" })).await?);
    // Unknown fields are ignored, because FastGPT's clients send additional fields.
    answers.add("list", ask(json!({ "action": "list", "path": "/workspace", "sandboxId": "x", "teamId": 1 })).await?);
    answers.add("read", ask(json!({ "action": "read", "path": "a/b.md", "userId": "u" })).await?);
    doors.machines.stop_all();
    answers.add("a stopped one", ask(json!({ "action": "read", "path": "/workspace/made.txt" })).await?);
    assert_snapshot!(answers, @r##"
    no sandbox: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such sandbox","request_id":"[id 1]"}
    write: 200 {"action":"write","success":true}
    list: 200 {"action":"list","files":[{"name":"a","path":"/workspace/a","type":"directory","size":0},{"name":"made.txt","path":"/workspace/made.txt","type":"file","size":5}]}
    read: 200 {"action":"read","content":"# é"}
    a stopped one: 200 {"action":"read","content":"saved"}
    "##);
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_done_is_told_by_its_place() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("save made.txt").await?;
    doors.machines.put("/workspace/raw", vec![0xff_u8, 0xfe]);
    doors.machines.put("/workspace/large", vec![b'x'; (16 << 20) + 1]);
    doors.machines.put("/workspace/x.pipe", "");
    let mut answers = Answers::default();
    for (what, body) in [
        ("above", json!({ "action": "read", "path": "../etc/passwd" })),
        ("outside", json!({ "action": "list", "path": "/etc" })),
        ("no path", json!({ "action": "list", "path": "" })),
        ("NUL", json!({ "action": "read", "path": "a\u{0}" })),
        ("a folder as a file", json!({ "action": "read", "path": "/workspace" })),
        ("a file as a folder", json!({ "action": "list", "path": "made.txt" })),
        ("a pipe", json!({ "action": "read", "path": "x.pipe" })),
        ("nothing there", json!({ "action": "read", "path": "none" })),
        ("no text", json!({ "action": "read", "path": "raw" })),
        ("too large", json!({ "action": "read", "path": "large" })),
        ("no content", json!({ "action": "write", "path": "a" })),
        ("no action", json!({ "path": "a" })),
        ("another action", json!({ "action": "delete", "path": "a" })),
        ("another user", json!({ "action": "list", "path": ".", "userId": "v" })),
        ("another conversation", json!({ "action": "list", "path": ".", "chatId": "other" })),
        ("an odd app", json!({ "action": "list", "path": ".", "appId": "a\n" })),
    ] {
        answers.add(what, doors.file(&doors.api, &body).await?);
    }
    doors.machines.is_full.store(true, Ordering::SeqCst);
    answers.add("full", doors.file(&doors.api, &json!({ "action": "write", "path": "a", "content": "x" })).await?);
    doors.machines.is_down.store(true, Ordering::SeqCst);
    doors.machines.stop_all();
    answers.add("down", doors.file(&doors.api, &json!({ "action": "list", "path": "." })).await?);
    assert_snapshot!(answers, @r#"
    above: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: ../etc/passwd: leaves /workspace","request_id":"[id 1]","errors":[{"path":"/path","message":"../etc/passwd: leaves /workspace"}]}
    outside: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: /etc: leaves /workspace","request_id":"[id 2]","errors":[{"path":"/path","message":"/etc: leaves /workspace"}]}
    no path: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: must be 1 to 4096 bytes long and must not contain NUL","request_id":"[id 3]","errors":[{"path":"/path","message":"must be 1 to 4096 bytes long and must not contain NUL"}]}
    NUL: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: must be 1 to 4096 bytes long and must not contain NUL","request_id":"[id 4]","errors":[{"path":"/path","message":"must be 1 to 4096 bytes long and must not contain NUL"}]}
    a folder as a file: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: /workspace: is no file","request_id":"[id 5]","errors":[{"path":"/path","message":"/workspace: is no file"}]}
    a file as a folder: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: /workspace/made.txt: is no folder","request_id":"[id 6]","errors":[{"path":"/path","message":"/workspace/made.txt: is no folder"}]}
    a pipe: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: /workspace/x.pipe: is no file","request_id":"[id 7]","errors":[{"path":"/path","message":"/workspace/x.pipe: is no file"}]}
    nothing there: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"/workspace/none: no such file or folder","request_id":"[id 8]"}
    no text: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: the file is not UTF-8 text; download it with POST /api/core/ai/sandbox/download","request_id":"[id 9]","errors":[{"path":"/path","message":"the file is not UTF-8 text; download it with POST /api/core/ai/sandbox/download"}]}
    too large: 413 {"type":"urn:monstrum:error:too_large","title":"A limit is exceeded","status":413,"detail":"the file exceeds the limit of 16777216 bytes for reading and writing","request_id":"[id 10]"}
    no content: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/content: required when `action` is `write`","request_id":"[id 11]","errors":[{"path":"/content","message":"required when `action` is `write`"}]}
    no action: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/action: required field is missing","request_id":"[id 12]","errors":[{"path":"/action","message":"required field is missing"}]}
    another action: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/action: unknown variant `delete`, expected one of `list`, `read`, `write`","request_id":"[id 13]","errors":[{"path":"/action","message":"unknown variant `delete`, expected one of `list`, `read`, `write`"}]}
    another user: 409 {"type":"urn:monstrum:error:conflict","title":"Conflict","status":409,"detail":"the sandbox of this conversation belongs to another user","request_id":"[id 14]"}
    another conversation: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such sandbox","request_id":"[id 15]"}
    an odd app: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/appId: must be 1 to 256 bytes long and must not contain control characters","request_id":"[id 16]","errors":[{"path":"/appId","message":"must be 1 to 256 bytes long and must not contain control characters"}]}
    full: 413 {"type":"urn:monstrum:error:too_large","title":"A limit is exceeded","status":413,"detail":"no space is left in the sandbox","request_id":"[id 17]"}
    down: 503 {"type":"urn:monstrum:error:unavailable","title":"Temporarily unavailable","status":503,"detail":"The sandbox service is temporarily unavailable, please try again later","request_id":"[id 18]"}
    "#);
    Ok(())
}

#[tokio::test]
async fn what_is_written_is_recorded_without_its_content() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo made").await?;
    let secret = "what nobody else shall read";
    doors.file(&doors.api, &json!({ "action": "write", "path": "a", "content": secret })).await?;
    let (_, changes) = doors.api.get("/api/audit/changes?limit=1").await?;
    let change = &changes["items"][0];
    assert_eq!((text(&change["change"]), text(&change["status"])), ("sandbox.write", "success"));
    assert_eq!(change["bot_id"], json!(doors.bot));
    assert_snapshot!(change["after"], @r#"{"path":"a","bytes":27,"digest":"sha256:6a999070c9adef2767b13e7500da248de491d806f1f63cbbce71ff8c960f6ca9"}"#);
    assert!(!changes.to_string().contains(secret));
    // The maximum size of a file, which exceeds the limit of other request bodies.
    let large = "x".repeat(16 << 20);
    let (status, _) = doors.file(&doors.api, &json!({ "action": "write", "path": "a", "content": large })).await?;
    assert_eq!(status, 200);
    let (status, _) =
        doors.file(&doors.api, &json!({ "action": "write", "path": "a", "content": format!("{large}x") })).await?;
    assert_eq!(status, 413);
    Ok(())
}

#[tokio::test]
async fn a_download_is_whole_or_breaks_off() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo made").await?;
    doors.machines.put("/workspace/data/报告 \"1\".html", "<script>");
    doors.machines.put("/workspace/data/empty", "");
    let ask = |path: &str| {
        let body = json!({ "appId": "a", "chatId": "c", "path": path, "more": true });
        doors.api.request(Method::POST, DOWNLOAD).json(&body)
    };
    let mut lines = Vec::new();
    for path in ["data/报告 \"1\".html", "data/empty", "data", "/workspace"] {
        let response = ask(path).send().await?;
        let headers = response.headers().clone();
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("-").to_owned();
        let status = response.status().as_u16();
        lines.push(format!(
            "{path}: {status} {} {} {} {}\n  {}",
            header("content-type"),
            header("content-length"),
            header("x-content-type-options"),
            header("content-disposition"),
            response.text().await?
        ));
    }
    assert_snapshot!(lines.join("\n"), @r#"
    data/报告 "1".html: 200 application/octet-stream 8 nosniff attachment; filename="__ _1_.html"; filename*=UTF-8''%E6%8A%A5%E5%91%8A%20_1_.html
      <script>
    data/empty: 200 application/octet-stream 0 nosniff attachment; filename="empty"; filename*=UTF-8''empty
      
    data: 200 application/zip - nosniff attachment; filename="data.zip"; filename*=UTF-8''data.zip
      PK of empty, 报告 "1".html
    /workspace: 200 application/zip - nosniff attachment; filename="workspace.zip"; filename*=UTF-8''workspace.zip
      PK of data/empty, data/报告 "1".html
    "#);

    let mut answers = Answers::default();
    doors.machines.put("/workspace/x.pipe", "");
    for path in ["x.pipe", "none", "../.."] {
        let (status, _, body) = send(ask(path)).await?;
        answers.add(path, (status, body));
    }
    assert_snapshot!(answers, @r#"
    x.pipe: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: must be a file or a folder","request_id":"[id 1]","errors":[{"path":"/path","message":"must be a file or a folder"}]}
    none: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"/workspace/none: no such file or folder","request_id":"[id 2]"}
    ../..: 422 {"type":"urn:monstrum:error:invalid","title":"The input is invalid","status":422,"detail":"/path: ../..: leaves /workspace","request_id":"[id 3]","errors":[{"path":"/path","message":"../..: leaves /workspace"}]}
    "#);
    doors.machines.breaks_off.store(true, Ordering::SeqCst);
    for path in ["data", "data/报告 \"1\".html"] {
        // The download fails before or after the response headers are sent. No client receives a complete response.
        let whole = async { ask(path).send().await?.bytes().await };
        assert!(whole.await.is_err(), "{path}: an incomplete response looks complete");
    }
    Ok(())
}

/// Sends the head and a part of the body of a request, and returns the socket on which the response arrives.
async fn sent(doors: &Doors, version: &str, key: &str, path: &str, length: usize, body: &str) -> Result<TcpStream> {
    let mut socket = TcpStream::connect(doors.running.address).await?;
    let head = format!(
        "POST {path} {version}\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    socket.write_all(head.as_bytes()).await?;
    Ok(socket)
}

async fn answered(mut socket: TcpStream) -> Result<String> {
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_secs(20), socket.read_to_string(&mut answer)).await??;
    Ok(answer)
}

#[tokio::test]
async fn a_request_that_waits_ends_when_its_key_is_gone() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("echo made").await?;
    let (status, key) = doors.api.post("/api/keys", &json!({ "name": "writer", "kind": "operator" })).await?;
    assert_eq!(status, 201);
    let body = json!({ "action": "write", "appId": "a", "chatId": "c", "path": "late", "content": "x" }).to_string();
    // The announced length is so large that the request needs a turn, and its body is never complete.
    let path = "/api/core/ai/sandbox/file";
    let waiting = sent(&doors, "HTTP/1.1", text(&key["key"]), path, 2 << 20, &body[..20]).await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (status, _) = doors.api.post(&format!("/api/keys/{}/rotate", text(&key["id"])), &json!({})).await?;
    assert_eq!(status, 200);
    let answer = answered(waiting).await?;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    Ok(())
}

/// The responses are larger than the socket buffers of a client that does not read.
#[tokio::test]
async fn slow_clients_do_not_keep_others_from_small_files() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("save made.txt").await?;
    doors.machines.put("/workspace/large", "x".repeat(15 << 20));
    let body = json!({ "action": "read", "appId": "a", "chatId": "c", "path": "large" }).to_string();
    let path = "/api/core/ai/sandbox/file";
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut socket = sent(&doors, "HTTP/1.1", doors.api.key(), path, body.len(), &body).await?;
        let mut head = [0; 12];
        socket.read_exact(&mut head).await?;
        assert_eq!(&head, b"HTTP/1.1 200");
        slow.push(socket);
    }
    let (status, answer) = doors.file(&doors.api, &json!({ "action": "read", "path": "made.txt" })).await?;
    assert_eq!((status, text(&answer["content"])), (200, "saved"), "{answer}");
    let (status, _) = doors.file(&doors.api, &json!({ "action": "read", "path": "large" })).await?;
    assert_eq!(status, 429, "one key can use unlimited memory");
    drop(slow);
    let (status, _) = doors.file(&doors.api, &json!({ "action": "read", "path": "large" })).await?;
    assert_eq!(status, 200);
    Ok(())
}

#[tokio::test]
async fn a_folder_is_not_sent_where_a_part_could_pass_for_the_whole() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("save a.txt").await?;
    for (path, status) in [("a.txt", "200 OK"), ("/workspace", "505 HTTP Version Not Supported")] {
        let body = json!({ "appId": "a", "chatId": "c", "path": path }).to_string();
        let socket = sent(&doors, "HTTP/1.0", doors.api.key(), DOWNLOAD, body.len(), &body).await?;
        let answer = answered(socket).await?;
        assert!(answer.starts_with(&format!("HTTP/1.0 {status}")), "{path}: {answer}");
    }
    Ok(())
}

/// Returns the only audit row of this read operation, without the values that differ between runs.
async fn reading(doors: &Doors, operation: &str) -> Result<Value> {
    let (status, list) = doors.api.get(&format!("/api/audit?operation={operation}")).await?;
    let items = list["items"].as_array().filter(|items| status == 200 && items.len() == 1);
    let row = items.with_context(|| format!("there must be exactly one row of {operation}: {list}"))?[0].clone();
    assert_eq!(row["bot_id"], json!(doors.bot));
    assert_eq!(row["params"]["object"], doors.sandbox().await?["id"]);
    assert_eq!(row["params"]["key_kind"], "root");
    let mut params = row["params"].clone();
    for known in ["object", "key_id", "key_kind"] {
        params
            .as_object_mut()
            .and_then(|params| params.remove(known))
            .context("the row does not name the sandbox and the key")?;
    }
    Ok(json!([row["operation"], row["tool"], row["status"], row["message"], params]))
}

#[tokio::test]
async fn what_is_read_is_recorded_without_its_content() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("save made.txt").await?;
    doors.machines.put("/workspace/secret.txt", "what nobody else shall read");
    doors.file(&doors.api, &json!({ "action": "list", "path": "/workspace" })).await?;
    doors.file(&doors.api, &json!({ "action": "read", "path": "secret.txt" })).await?;
    assert_snapshot!(reading(&doors, "sandbox.list").await?, @r#"["sandbox.list",null,"success",null,{"path":"/workspace","entries":2}]"#);
    assert_snapshot!(reading(&doors, "sandbox.read").await?, @r#"["sandbox.read",null,"success",null,{"path":"secret.txt","bytes":27}]"#);
    let download = async |path: &str| {
        let body = json!({ "appId": "a", "chatId": "c", "path": path });
        let taken = doors.api.request(Method::POST, DOWNLOAD).json(&body).send().await?.bytes().await;
        // The audit row may be completed after the end of the response.
        let ended = async || {
            let (_, list) = doors.api.get("/api/audit?operation=sandbox.download&limit=1").await?;
            let row = &list["items"][0];
            let is_it = text(&row["params"]["path"]) == path && row["status"] != "running";
            Ok(is_it.then(|| json!([row["status"], row["code"], row["message"], row["params"]["bytes"]])))
        };
        let ended = eventually("the download has ended", ended).await?;
        anyhow::Ok((taken.is_ok(), ended))
    };
    assert_eq!(download("secret.txt").await?, (true, json!(["success", null, null, 27])));
    assert_eq!(
        download("/workspace").await?,
        (true, json!(["success", null, null, 26])),
        "the row of the archive has unexpected values"
    );
    let absent = json!(["error", "invalid_params", "/workspace/none: no such file or folder", null]);
    assert_eq!(download("none").await?, (true, absent));
    doors.machines.breaks_off.store(true, Ordering::SeqCst);
    let broken_off = json!(["error", "unavailable", "the download was interrupted", 13]);
    assert_eq!(download("./secret.txt").await?, (false, broken_off));
    let (_, all) = doors.api.get("/api/audit?limit=1000").await?;
    assert!(!all.to_string().contains("nobody else"), "{all}");
    let (_, changes) = doors.api.get("/api/audit/changes").await?;
    assert!(!changes.to_string().contains("sandbox.read"), "a read operation was recorded as a change");
    Ok(())
}

#[tokio::test]
async fn nothing_is_read_that_cannot_be_recorded() -> Result<()> {
    let doors = Doors::open().await?;
    doors.shell("save made.txt").await?;
    let full = "create trigger full before insert on audit_rows begin select raise(abort, 'full'); end";
    sqlite(&doors.home.data_dir(), &[full]).await?;
    let mut answers = Answers::default();
    for (action, path) in [("list", "/workspace"), ("read", "made.txt"), ("write", "made.txt")] {
        let body = json!({ "action": action, "path": path, "content": "new" });
        answers.add(action, doors.file(&doors.api, &body).await?);
    }
    let body = json!({ "appId": "a", "chatId": "c", "path": "made.txt" });
    answers.add("download", doors.api.post(DOWNLOAD, &body).await?);
    assert_snapshot!(answers, @r#"
    list: 503 {"type":"urn:monstrum:error:unavailable","title":"Temporarily unavailable","status":503,"detail":"the audit cannot be written, so nothing was read","request_id":"[id 1]"}
    read: 503 {"type":"urn:monstrum:error:unavailable","title":"Temporarily unavailable","status":503,"detail":"the audit cannot be written, so nothing was read","request_id":"[id 2]"}
    write: 503 {"type":"urn:monstrum:error:unavailable","title":"Temporarily unavailable","status":503,"detail":"the audit cannot be written; nothing was changed","request_id":"[id 3]"}
    download: 503 {"type":"urn:monstrum:error:unavailable","title":"Temporarily unavailable","status":503,"detail":"the audit cannot be written, so nothing was read","request_id":"[id 4]"}
    "#);
    assert_eq!(doors.machines.files()["/workspace/made.txt"], "saved");
    Ok(())
}
