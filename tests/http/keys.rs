//! Tests of `/api/keys`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, Server};

use crate::http::roles::faults;
use crate::http::{Answers, made, send, workspace};
use crate::world::{World, eventually, text};

/// Returns the key's entry in the list.
pub(crate) async fn listed(api: &Api, id: &str) -> Result<Value> {
    let (_, list) = api.get("/api/keys?limit=1000").await?;
    let key = list["items"].as_array().into_iter().flatten().find(|key| key["id"] == id);
    key.cloned().with_context(|| format!("the list does not contain the key {id}: {list}"))
}

/// Sends a request whose body arrives in two pieces, and runs `between` after the key was authenticated and before the
/// second piece.
async fn interrupted(
    root: &Api,
    (id, key): (&str, &str),
    (method, path): (Method, &str),
    body: &Value,
    between: impl AsyncFnOnce() -> Result<()>,
) -> Result<(u16, Value)> {
    let body = body.to_string().into_bytes();
    let (first, second) = body.split_at(body.len() / 2);
    let (pieces, sent) = futures::channel::mpsc::unbounded::<std::io::Result<Vec<u8>>>();
    let request = root.with_key(key).request(method, path).header("content-type", "application/json");
    let request = tokio::spawn(request.body(reqwest::Body::wrap_stream(sent)).send());
    pieces.unbounded_send(Ok(first.to_vec()))?;
    eventually("the key is used", async || Ok((!listed(root, id).await?["last_used_at"].is_null()).then_some(())))
        .await?;
    between().await?;
    pieces.unbounded_send(Ok(second.to_vec()))?;
    drop(pieces);
    let answer = request.await??;
    Ok((answer.status().as_u16(), answer.json().await?))
}

#[tokio::test]
async fn a_key_that_is_rotated_while_a_body_comes_calls_and_changes_nothing() -> Result<()> {
    let world = World::with(&["github"]).await?;
    world.grant_all("github").await?;
    let made = async |body: Value| -> Result<(String, String)> {
        let (status, key) = world.api.post("/api/keys", &body).await?;
        ensure!(status == 201, "{status} {key}");
        Ok((text(&key["id"]).to_owned(), text(&key["key"]).to_owned()))
    };
    let rotate = async |id: &str| -> Result<()> {
        let (status, answer) = world.api.post(&format!("/api/keys/{id}/rotate"), &Value::Null).await?;
        ensure!(status == 200, "{status} {answer}");
        Ok(())
    };
    let (id, key) = made(json!({ "name": "b", "kind": "bot", "bot_id": world.bot })).await?;
    let path = format!("/api/bots/{}/tools/github_get_repo/call", world.bot);
    let call = json!({ "params": { "repo": "acme/site" } });
    let (status, answer) =
        interrupted(&world.api, (&id, &key), (Method::POST, &path), &call, async || rotate(&id).await).await?;
    assert_eq!((status, text(&answer["status"])), (200, "permission_denied"), "{answer}");
    assert_eq!(world.audit_of(&answer).await?["rule"], "revoked.key");
    assert_eq!(world.github.requests().len(), 0, "the call sent a request");

    let (id, key) = made(json!({ "name": "a", "kind": "admin" })).await?;
    let role = json!({ "name": "late", "allowed_tools": ["*"] });
    let (status, answer) =
        interrupted(&world.api, (&id, &key), (Method::POST, "/api/roles"), &role, async || rotate(&id).await).await?;
    assert_eq!(status, 401, "{answer}");
    let (_, roles) = world.api.get("/api/roles").await?;
    let names: Vec<&str> = roles["items"].as_array().into_iter().flatten().map(|role| text(&role["name"])).collect();
    assert!(!names.contains(&"late"), "{names:?}");
    Ok(())
}

#[tokio::test]
async fn a_key_is_shown_once_rotated_and_deleted() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    let api = server.api()?;
    let bot = api.bot("triage").await?;
    let mut answers = Answers::default();
    let created = api.post("/api/keys", &json!({ "name": "ci", "kind": "operator" })).await?;
    let (path, first) = (format!("/api/keys/{}", text(&created.1["id"])), text(&created.1["key"]).to_owned());
    answers.add("create", created);
    let of_bot = api.post("/api/keys", &json!({ "name": "t", "kind": "bot", "bot_id": bot })).await?;
    answers.add("create a bot's", of_bot);
    answers.add("list", api.get("/api/keys").await?);
    let rotated = api.post(&format!("{path}/rotate"), &Value::Null).await?;
    let second = text(&rotated.1["key"]).to_owned();
    answers.add("rotate", rotated);
    answers.add("the old text", api.with_key(&first).get("/api/bots?limit=1").await?);
    answers.add("the new text", faults(api.with_key(&second).get("/api/roles").await?));
    answers.add("delete", api.delete(&path).await?);
    answers.add("the new text", api.with_key(&second).get("/api/roles").await?);
    answers.add("delete again", api.delete(&path).await?);
    answers.add("rotate", api.post(&format!("{path}/rotate"), &Value::Null).await?);
    assert_snapshot!(answers, @r#"
    create: 201 {"id":"[id 1]","key":"[key]","name":"ci","kind":"operator","bot_id":null,"resource_id":null,"prefix":"[key]","created_at":"[time]"}
    create a bot's: 201 {"id":"[id 2]","key":"[key]","name":"t","kind":"bot","bot_id":"[id 3]","resource_id":null,"prefix":"[key]","created_at":"[time]"}
    list: 200 {"items":[{"id":"[id 4]","name":"admin","kind":"root","bot_id":null,"resource_id":null,"prefix":"[key]","created_at":"[time]","last_used_at":"[time]"},{"id":"[id 1]","name":"ci","kind":"operator","bot_id":null,"resource_id":null,"prefix":"[key]","created_at":"[time]","last_used_at":null},{"id":"[id 2]","name":"t","kind":"bot","bot_id":"[id 3]","resource_id":null,"prefix":"[key]","created_at":"[time]","last_used_at":null}],"next_cursor":null}
    rotate: 200 {"id":"[id 1]","key":"[key]","name":"ci","kind":"operator","bot_id":null,"resource_id":null,"prefix":"[key]","created_at":"[time]"}
    the old text: 401 {"type":"urn:monstrum:error:unauthenticated","title":"A valid API key is required","status":401,"detail":"unknown API key","request_id":"[id 5]"}
    the new text: 200
    delete: 204
    the new text: 401 {"type":"urn:monstrum:error:unauthenticated","title":"A valid API key is required","status":401,"detail":"unknown API key","request_id":"[id 6]"}
    delete again: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such key","request_id":"[id 7]"}
    rotate: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such key","request_id":"[id 8]"}
    "#);
    assert!(first.strip_prefix("mk_").is_some_and(|bits| bits.len() == 43) && first != second, "256 bits each");
    server.stop().await?;
    for key in [first, second] {
        assert!(!server.output().contains(&key[3..]), "the log contains a key");
        for entry in std::fs::read_dir(server.data_dir())?.flatten().filter(|entry| entry.path().is_file()) {
            let bytes = std::fs::read(entry.path())?;
            let found = bytes.windows(key.len()).any(|window| window == key.as_bytes());
            assert!(!found, "{} contains a key", entry.path().display());
        }
    }
    Ok(())
}

#[tokio::test]
async fn keys_know_their_place() -> Result<()> {
    let server = Server::start(&[]).await?;
    let root = server.api()?;
    let foreign = workspace(&root, "foreign").await?;
    let their_bot = foreign.bot("theirs").await?;
    let admin = root.with_key(&root.new_key("admin", None).await?);
    let own = made(&root, "/api/keys", &json!({ "name": "second root", "kind": "root" })).await?;
    let mut answers = Answers::default();
    for body in [
        json!({}),
        json!({ "name": "", "kind": "admin" }),
        json!({ "name": "x", "kind": "god" }),
        json!({ "name": "x", "kind": "bot" }),
        json!({ "name": "x", "kind": "admin", "bot_id": their_bot }),
        json!({ "name": "x", "kind": "bot", "bot_id": their_bot }),
        json!({ "name": "x", "kind": "bot", "bot_id": "theirs" }),
        json!({ "name": "x", "kind": "admin", "key": "mk_chosen" }),
    ] {
        let label = format!("POST {body}").replace(&their_bot, "THEIRS");
        answers.add(&label, faults(root.post("/api/keys", &body).await?));
    }
    answers.add("an admin makes root", faults(admin.post("/api/keys", &json!({ "name": "x", "kind": "root" })).await?));
    let seen = async |api: &support::Api| -> Result<Value> {
        let (_, list) = api.get("/api/keys").await?;
        Ok(list["items"].as_array().into_iter().flatten().map(|key| &key["name"]).cloned().collect())
    };
    answers.add("what root sees", (200, seen(&root).await?));
    answers.add("what an admin sees", (200, seen(&admin).await?));
    answers.add("what an admin elsewhere sees", (200, seen(&foreign).await?));
    let path = format!("/api/keys/{own}");
    for (who, api) in [("an admin", &admin), ("an admin elsewhere", &foreign)] {
        answers.add(&format!("{who} deletes root's"), faults(api.delete(&path).await?));
        let rotated = api.post(&format!("{path}/rotate"), &Value::Null).await?;
        answers.add(&format!("{who} rotates root's"), faults(rotated));
    }
    answers.add("one of two root keys goes", root.delete(&path).await?);
    let (_, list) = root.get("/api/keys?limit=1").await?;
    let last = format!("/api/keys/{}", text(&list["items"][0]["id"]));
    answers.add("the last one stays", faults(root.delete(&last).await?));
    assert_snapshot!(answers, @r#"
    POST {}: 422 [{"path":"/name","message":"required field is missing"}]
    POST {"name":"","kind":"admin"}: 422 [{"path":"/name","message":"must not be empty"}]
    POST {"name":"x","kind":"god"}: 422 [{"path":"/kind","message":"unknown variant `god`, expected one of `root`, `admin`, `operator`, `approver`, `bot`, `agent`"}]
    POST {"name":"x","kind":"bot"}: 422 [{"path":"/bot_id","message":"required when `kind` is `bot`"}]
    POST {"name":"x","kind":"admin","bot_id":"THEIRS"}: 422 [{"path":"/bot_id","message":"allowed only when `kind` is `bot`"}]
    POST {"name":"x","kind":"bot","bot_id":"THEIRS"}: 422 [{"path":"/bot_id","message":"no such bot in this workspace"}]
    POST {"name":"x","kind":"bot","bot_id":"theirs"}: 422 [{"path":"/bot_id","message":"`theirs` is not a valid bot id: expected a UUID in lower case with hyphens"}]
    POST {"name":"x","kind":"admin","key":"mk_chosen"}: 422 [{"path":"/key","message":"unknown field `key`, expected one of `name`, `kind`, `bot_id`, `resource_id`"}]
    an admin makes root: 403 "a root key is required"
    what root sees: 200 ["admin","a admin key","second root"]
    what an admin sees: 200 ["a admin key"]
    what an admin elsewhere sees: 200 ["admin"]
    an admin deletes root's: 404 "no such key"
    an admin rotates root's: 404 "no such key"
    an admin elsewhere deletes root's: 404 "no such key"
    an admin elsewhere rotates root's: 404 "no such key"
    one of two root keys goes: 204
    the last one stays: 409 "this is the last root key; create another root key first"
    "#);
    Ok(())
}

/// A request must have exactly one `Authorization` header with a well-formed key.
#[tokio::test]
async fn a_key_comes_in_one_bearer_header() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = api.key().to_owned();
    let mut answers = Answers::default();
    for (label, values) in [
        ("none", vec![]),
        ("bearer in lower case", vec![format!("bearer {key}")]),
        ("more blanks", vec![format!("Bearer   {key}")]),
        ("no scheme", vec![key.clone()]),
        ("basic", vec![format!("Basic {key}")]),
        ("twice", vec![format!("Bearer {key}"), format!("Bearer {key}")]),
        ("cut off", vec![format!("Bearer {}", &key[..key.len() - 1])]),
        ("in other case", vec![format!("Bearer {}", key.to_uppercase())]),
        ("empty", vec!["Bearer ".to_owned()]),
        ("its hash", vec![format!("Bearer {}", "0".repeat(64))]),
    ] {
        let mut request = api.with_key("").request(Method::GET, "/api/roles");
        for value in values {
            request = request.header("Authorization", value);
        }
        let (status, headers, answer) = send(request).await?;
        let asks = headers.get("www-authenticate").map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        assert_eq!(status == 401, asks.is_some());
        answers.add(label, faults((status, answer)));
    }
    answers.add("in the query", faults(api.with_key("").get(&format!("/api/roles?key={key}")).await?));
    assert_snapshot!(answers, @r#"
    none: 401 "send exactly one header `Authorization: Bearer mk_…`"
    bearer in lower case: 200
    more blanks: 200
    no scheme: 401 "send `Authorization: Bearer mk_…`"
    basic: 401 "send `Authorization: Bearer mk_…`"
    twice: 401 "send exactly one header `Authorization: Bearer mk_…`"
    cut off: 401 "unknown API key"
    in other case: 401 "unknown API key"
    empty: 401 "send `Authorization: Bearer mk_…`"
    its hash: 401 "unknown API key"
    in the query: 422 [{"path":"key","message":"unknown query parameter (supported: cursor, limit)"}]
    "#);
    Ok(())
}

/// Rotating a key changes only its text, for every kind of key. A rotation does not write the key file.
#[tokio::test]
async fn a_rotated_key_is_the_same_key() -> Result<()> {
    let server = Server::start(&[]).await?;
    let mut root = server.api()?;
    let bot = root.bot("triage").await?;
    let (_, first) = root.get("/api/keys").await?;
    let mut ids = vec![text(&first["items"][0]["id"]).to_owned()];
    for kind in ["root", "admin", "operator"] {
        ids.push(made(&root, "/api/keys", &json!({ "name": kind, "kind": kind })).await?);
    }
    ids.push(made(&root, "/api/keys", &json!({ "name": "bot", "kind": "bot", "bot_id": bot })).await?);
    let file = std::fs::read_to_string(server.key_file())?;
    for (index, id) in ids.iter().enumerate() {
        let before = listed(&root, id).await?;
        let (status, rotated) = root.post(&format!("/api/keys/{id}/rotate"), &Value::Null).await?;
        assert_eq!(status, 200, "{rotated}");
        if index == 0 {
            assert_eq!(root.get("/api/keys").await?.0, 401, "a key that rotates itself is gone with the answer");
            root = root.with_key(text(&rotated["key"]));
        }
        let after = listed(&root, id).await?;
        for field in ["id", "name", "kind", "bot_id", "resource_id", "created_at"] {
            assert!(after[field] == before[field] && rotated[field] == before[field], "{field}: {rotated}");
        }
        assert!(after["prefix"] != before["prefix"] && after["prefix"] == rotated["prefix"], "{after}");
        let own = format!("/api/bots/{bot}/tools");
        assert_eq!(root.with_key(text(&rotated["key"])).get(&own).await?.0, 200);
    }
    assert_eq!(std::fs::read_to_string(server.key_file())?, file);
    assert_eq!(server.api()?.get("/api/keys").await?.0, 401);
    Ok(())
}

/// Calls repeatedly with a key until `ended` is set, and then five more times. Returns the statuses of the last five
/// calls.
async fn call_until_ended(
    api: Api,
    path: String,
    ended: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
) -> Result<Vec<u16>> {
    let mut after = Vec::new();
    while after.len() < 5 {
        let is_over = ended.load(Ordering::SeqCst);
        let (status, answer) = api.post(&path, &json!({})).await?;
        if is_over {
            after.push(status);
        } else {
            ensure!(status == 200 || status == 401, "{status} {answer}");
            served.fetch_add(usize::from(status == 200), Ordering::SeqCst);
        }
    }
    Ok(after)
}

#[tokio::test]
async fn amid_calls_a_key_never_works_again_once_its_end_was_answered() -> Result<()> {
    const CALLERS: usize = 16;
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let path = format!("/api/bots/{}/tools/test_echo_run/call", world.bot);
    for (round, is_rotated) in [true, false, true, false].into_iter().enumerate() {
        let body = json!({ "name": format!("of round {round}"), "kind": "bot", "bot_id": world.bot });
        let (_, key) = world.api.post("/api/keys", &body).await?;
        let api = world.api.with_key(text(&key["key"]));
        let (ended, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| tokio::spawn(call_until_ended(api.clone(), path.clone(), Arc::clone(&ended), Arc::clone(&served))))
            .collect();
        eventually("calls are served", async || Ok((served.load(Ordering::SeqCst) > CALLERS).then_some(()))).await?;
        let id = text(&key["id"]);
        let answer = if is_rotated {
            world.api.post(&format!("/api/keys/{id}/rotate"), &Value::Null).await?
        } else {
            world.api.delete(&format!("/api/keys/{id}")).await?
        };
        ended.store(true, Ordering::SeqCst);
        for caller in callers {
            assert_eq!(caller.await??, [401; 5], "round {round}");
        }
        let new = answer.1["key"].as_str().map(|key| world.api.with_key(key));
        assert_eq!(new.is_some(), is_rotated, "{answer:?}");
        if let Some(new) = new {
            assert_eq!(new.post(&path, &json!({})).await?.0, 200);
        }
    }
    Ok(())
}

/// If two rotations run concurrently, one of them fails with a conflict, so that no caller receives a key that does not
/// work.
#[tokio::test]
async fn of_rotations_at_once_one_key_remains() -> Result<()> {
    let server = Server::start(&[]).await?;
    let root = server.api()?;
    let id = made(&root, "/api/keys", &json!({ "name": "ci", "kind": "operator" })).await?;
    let path = format!("/api/keys/{id}/rotate");
    let mut conflicts = 0;
    for _ in 0..20 {
        let answers = futures::future::try_join_all((0..8).map(|_| root.post(&path, &Value::Null))).await?;
        let mut working = 0;
        for (status, answer) in answers {
            if status == 409 {
                conflicts += 1;
                assert_eq!(
                    answer["detail"],
                    "another request rotated the key at the same time; read the key again and retry"
                );
                continue;
            }
            assert_eq!(status, 200, "{answer}");
            let (status, _) = root.with_key(text(&answer["key"])).get("/api/roles").await?;
            working += usize::from(status == 200);
        }
        assert_eq!(working, 1);
    }
    assert!(conflicts > 0, "no two rotations ran concurrently");
    Ok(())
}

#[tokio::test]
async fn a_key_tells_when_it_was_last_used() -> Result<()> {
    let mut server = Server::start(&[]).await?;
    let root = server.api()?;
    let last_use = async |api: &Api, id: &str| anyhow::Ok(listed(api, id).await?["last_used_at"].take());
    let mut keys = Vec::new();
    for (path, expected) in [("/api/roles", 200), ("/api/keys", 403), ("/api/roles/absent", 404)] {
        let (_, key) = root.post("/api/keys", &json!({ "name": path, "kind": "operator" })).await?;
        root.with_key("mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").get(path).await?;
        assert_eq!(last_use(&root, text(&key["id"])).await?, Value::Null);
        assert_eq!(root.with_key(text(&key["key"])).get(path).await?.0, expected);
        let at = last_use(&root, text(&key["id"])).await?;
        assert!(text(&at) >= text(&key["created_at"]), "the use of the key was not recorded: {at}");
        keys.push((key, at));
    }
    let (key, at) = &keys[0];
    let (id, old) = (text(&key["id"]), root.with_key(text(&key["key"])));
    let (_, unused) = root.post("/api/keys", &json!({ "name": "unused", "kind": "operator" })).await?;
    let rotated = root.post(&format!("/api/keys/{}/rotate", text(&unused["id"])), &Value::Null).await?;
    assert_eq!(rotated.0, 200);
    assert_eq!(root.with_key(text(&unused["key"])).get("/api/roles").await?.0, 401);
    assert_eq!(
        last_use(&root, text(&unused["id"])).await?,
        Value::Null,
        "a rotation or a call with the old key was recorded as a use"
    );
    assert_eq!(root.post(&format!("/api/keys/{id}/rotate"), &Value::Null).await?.0, 200);
    assert_eq!(old.get("/api/roles").await?.0, 401);
    assert_eq!(last_use(&root, id).await?, *at, "the rotation changed the last use of the key");
    server.restart().await?;
    let root = server.api()?;
    for (key, at) in &keys {
        assert_eq!(last_use(&root, text(&key["id"])).await?, *at, "the last use was not written at shutdown");
    }
    assert!(!server.output().contains("last-use times of API keys"), "{}", server.output());
    Ok(())
}

#[tokio::test]
async fn a_used_name_is_a_conflict() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let mut answers = Vec::new();
    for kind in ["root", "root", "admin", "admin"] {
        let (status, answer) = api.post("/api/keys", &json!({ "name": "taken", "kind": kind })).await?;
        answers.push(format!("{kind}: {status} {}", answer["detail"]));
    }
    assert_snapshot!(answers.join("\n"), @r#"
    root: 201 null
    root: 409 "another root key has this name"
    admin: 201 null
    admin: 409 "the name is already used in this workspace"
    "#);
    Ok(())
}
