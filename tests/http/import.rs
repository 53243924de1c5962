//! `POST /api/import`.

mod faults;
mod many;

use anyhow::{Context, Result, ensure};
use insta::assert_snapshot;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, Server};

use crate::http::export::{exported, exported_of, furnish};
use crate::http::{Answers, made, send, workspace};
use crate::world::{World, text};

const IMPORT: &str = "/api/import";

/// Sends lines to `path`, and returns the status and the body of the response.
async fn post(api: &Api, path: &str, lines: &str) -> Result<(u16, Value)> {
    let request = api.request(Method::POST, path).header("content-type", "application/jsonl").body(lines.to_owned());
    let (status, _, answer) = send(request).await?;
    Ok((status, answer))
}

/// Imports lines and returns the response. Fails unless the response is a success.
async fn import(api: &Api, lines: &str) -> Result<Value> {
    let (status, answer) = post(api, IMPORT, lines).await?;
    ensure!(status == 200, "{status} {answer}");
    Ok(answer)
}

fn joined(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn role(name: &str, repos: &[&str]) -> Value {
    json!({
        "kind": "role", "name": name, "allowed_operations": ["echo.*"], "allowed_tools": null,
        "scope_constraints": { "repos": repos }, "gates": [],
    })
}

fn bot(name: &str) -> Value {
    json!({
        "kind": "bot", "name": name, "description": "", "system_prompt": "", "model": null,
        "use_agent_sandbox": false, "monthly_token_budget": null, "gates": [],
    })
}

fn resource(name: &str) -> Value {
    json!({
        "kind": "resource", "resource_type": "test-echo", "name": name, "config": { "region": "us" },
        "network": { "allow_addresses": [], "allow_http": false }, "labels": [],
    })
}

fn binding(bot: &str, resource: &str, role: &str) -> Value {
    json!({
        "kind": "binding", "bot": bot, "resource": resource, "role": role, "permissions": null,
        "scope_constraints": {}, "delegate": null, "gates": [], "allow_calls": [], "allow_subscribe": false,
        "limits": null, "calls_per_minute": null, "enabled": true, "expires_at": null,
    })
}

/// Returns the changes of the workspace, newest first.
async fn changes(api: &Api) -> Result<Vec<Value>> {
    let (status, list) = api.get("/api/audit/changes?limit=1000").await?;
    ensure!(status == 200, "{status} {list}");
    Ok(list["items"].as_array().context("a list has items")?.clone())
}

#[tokio::test]
async fn an_export_is_imported_into_another_server_once() -> Result<()> {
    let (here, there) = (World::with(&["test-echo"]).await?, World::with(&["test-echo"]).await?);
    let (from, to) = (workspace(&here.api, "acme").await?, workspace(&there.api, "globex").await?);
    furnish(&from, "https://upstream.example").await?;
    let lines = exported(&from).await?;
    let mut first = import(&to, &lines).await?;
    first.as_object_mut().context("the answer is an object")?.remove("plan");
    assert_snapshot!(first, @r#"{"dry_run":false,"workspaces":[{"workspace":"globex","state":"unchanged","created":{"roles":1,"bots":2,"resources":2,"bindings":2},"changed":{"roles":0,"bots":0,"resources":0,"bindings":0},"unchanged":{"roles":0,"bots":0,"resources":0,"bindings":0},"permissions":[{"bot":"triage","gains":[{"kind":"sandbox"},{"kind":"binding","resource":"colleague","role":null,"permissions":{"allowed_operations":["*"]},"scope_constraints":{},"delegate":{"allowed_tools":["test_*"],"scope_constraints":{"repos":["acme/*"]}},"gates":[],"allow_calls":[],"allow_subscribe":false,"limits":null,"calls_per_minute":null,"expires_at":null}],"loses":[]}],"gates":[],"labels":[],"permissions_left_out":0}]}"#);
    assert_eq!(exported(&to).await?, lines);

    let before = changes(&to).await?;
    let again = import(&to, &lines).await?;
    let counts = &again["workspaces"][0];
    assert_eq!(counts["unchanged"], json!({ "roles": 1, "bots": 2, "resources": 2, "bindings": 2 }));
    assert_eq!((&counts["created"], &counts["permissions"]), (&counts["changed"], &json!([])));
    assert_eq!(changes(&to).await?, before, "nothing was recorded, because nothing was written");
    Ok(())
}

#[tokio::test]
async fn a_root_key_imports_all_workspaces() -> Result<()> {
    let (here, there) = (World::with(&["test-echo"]).await?, World::with(&["test-echo"]).await?);
    let acme = workspace(&here.api, "acme").await?;
    furnish(&acme, "https://upstream.example").await?;
    here.api.role("reader", &["*"]).await?;
    let (_, list) = here.api.get("/api/workspaces").await?;
    let item = list["items"].as_array().into_iter().flatten().find(|item| item["name"] == "acme");
    let path = format!("/api/workspaces/{}", text(&item.context("it is there")?["id"]));
    here.api.patch(&path, &json!({ "sandbox": { "idle_s": 60 } })).await?;
    let lines = exported(&here.api).await?;
    let answer = import(&there.api, &lines).await?;
    let states: Vec<String> = answer["workspaces"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| format!("{} {} {}", text(&item["workspace"]), text(&item["state"]), item["created"]))
        .collect();
    assert_eq!(
        states,
        [
            r#"default unchanged {"roles":1,"bots":0,"resources":0,"bindings":0}"#,
            r#"acme created {"roles":1,"bots":2,"resources":2,"bindings":2}"#,
        ]
    );
    assert_eq!(exported(&there.api).await?, lines);
    assert_eq!(there.api.verify_audit().await?["valid"], true);
    let recorded: Vec<Value> = changes(&there.api).await?.iter().map(|change| change["change"].clone()).collect();
    assert_eq!(recorded[..3], ["workspace.create", "import.apply", "bot.create"].map(Value::from)[..]);
    Ok(())
}

#[tokio::test]
async fn the_next_call_is_judged_by_what_was_imported() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let call = async |repo: &str| {
        let answer = world.call("test_echo_run", &json!({ "repo": repo })).await?;
        anyhow::Ok(text(&answer["status"]).to_owned())
    };
    let lines = |repos: &[&str]| {
        joined(&[bot("tester"), resource("site"), role("reader", repos), binding("tester", "site", "reader")])
    };
    import(&world.api, &lines(&["acme/*"])).await?;
    world.api.token(text(&world.api.get("/api/resources").await?.1["items"][0]["id"]), support::TOKEN).await?;
    assert_eq!((call("acme/site").await?, call("globex/site").await?), ("success".into(), "scope_violation".into()));
    let answer = import(&world.api, &lines(&["globex/*"])).await?;
    assert_eq!((call("acme/site").await?, call("globex/site").await?), ("scope_violation".into(), "success".into()));
    let permissions = &answer["workspaces"][0]["permissions"][0];
    assert_eq!(permissions["bot"], "tester");
    for (side, repos) in [("gains", "globex/*"), ("loses", "acme/*")] {
        assert_eq!(permissions[side][0]["role"]["scope_constraints"], json!({ "repos": [repos] }), "{permissions}");
    }
    let mut off = binding("tester", "site", "reader");
    off["enabled"] = json!(false);
    import(&world.api, &joined(&[off])).await?;
    assert_eq!(call("globex/site").await?, "permission_denied");
    Ok(())
}

#[tokio::test]
async fn a_dry_run_writes_nothing() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let state = async || anyhow::Ok((exported(&world.api).await?, changes(&world.api).await?));
    let before = state().await?;
    let lines = joined(&[bot("new"), resource("site"), role("reader", &["*"]), binding("new", "site", "reader")]);
    for path in ["/api/import?dry_run", "/api/import?dry_run=true"] {
        let (status, answer) = post(&world.api, path, &lines).await?;
        assert_eq!((status, &answer["dry_run"]), (200, &json!(true)), "{answer}");
        let created = json!({ "roles": 1, "bots": 1, "resources": 1, "bindings": 1 });
        assert_eq!(answer["workspaces"][0]["created"], created);
        assert_eq!(answer["workspaces"][0]["permissions"][0]["gains"].as_array().map(Vec::len), Some(1));
    }
    assert_eq!(state().await?, before);
    assert_eq!(post(&world.api, "/api/import?dry_run=maybe", &lines).await?.0, 422);
    let (status, answer) = post(&world.api, "/api/import?dry_run=false", &lines).await?;
    assert_eq!((status, &answer["dry_run"]), (200, &json!(false)));
    Ok(())
}

/// The plan of a dry run holds for the same lines, as long as the objects that they change are the same.
#[tokio::test]
async fn an_import_with_a_plan_makes_the_changes_of_that_dry_run_or_none() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let planned = async |lines: &str| {
        let (status, answer) = post(&world.api, "/api/import?dry_run", lines).await?;
        ensure!(status == 200, "{status} {answer}");
        anyhow::Ok(text(&answer["plan"]).to_owned())
    };
    let refused = async |plan: &str, lines: &str| {
        let state = async || anyhow::Ok((exported(&world.api).await?, changes(&world.api).await?));
        let before = state().await?;
        for dry_run in ["false", "true"] {
            let (status, answer) = post(&world.api, &format!("{IMPORT}?dry_run={dry_run}&plan={plan}"), lines).await?;
            ensure!(status == 409 && text(&answer["detail"]).contains("nothing was written"), "{status} {answer}");
        }
        assert_eq!(state().await?, before, "a refused import changed something");
        anyhow::Ok(())
    };
    let lines = joined(&[bot("new"), role("reader", &["acme/*"])]);
    let first = planned(&lines).await?;
    ensure!(first.len() == 64 && planned(&lines).await? == first, "{first}");
    refused(&first, &joined(&[bot("new"), role("reader", &["*"])])).await?;
    refused("", &lines).await?;
    // The role is created after the dry run.
    let role = made(&world.api, "/api/roles", &json!({ "name": "reader", "allowed_operations": ["echo.*"] })).await?;
    refused(&first, &lines).await?;
    let second = planned(&lines).await?;
    // The role is changed after the dry run.
    world.api.patch(&format!("/api/roles/{role}"), &json!({ "allowed_operations": [] })).await?;
    refused(&second, &lines).await?;

    let third = planned(&lines).await?;
    let (status, answer) = post(&world.api, &format!("{IMPORT}?plan={third}"), &lines).await?;
    assert_eq!((status, text(&answer["plan"])), (200, third.as_str()), "{answer}");
    assert_eq!(answer["workspaces"][0]["changed"]["roles"], 1);
    refused(&third, &lines).await
}

#[tokio::test]
async fn admins_import_into_their_workspace_and_root_keys_into_all() -> Result<()> {
    let world = World::with(&[]).await?;
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let of_bot = world.api.with_key(&world.api.new_key("bot", Some(&world.bot)).await?);
    let admin = workspace(&world.api, "acme").await?;
    let plain = joined(&[role("reader", &[])]);
    let mut named = role("reader", &[]);
    named["workspace"] = json!("default");
    let named = joined(&[named]);
    let mut own = role("reader", &[]);
    own["workspace"] = json!("acme");
    let described = joined(&[json!({ "kind": "workspace", "name": "acme", "sandbox": null })]);
    let mut answers = Answers::default();
    answers.add("operator", post(&operator, IMPORT, &plain).await?);
    answers.add("bot", post(&of_bot, IMPORT, &plain).await?);
    answers.add("admin, lines of another workspace", post(&admin, IMPORT, &format!("{plain}{named}")).await?);
    answers.add("admin, lines that name the own workspace", post(&admin, IMPORT, &joined(&[own])).await?);
    answers.add("admin, a workspace", post(&admin, IMPORT, &described).await?);
    let foreign = admin.request(Method::POST, IMPORT).header("Monstrum-Workspace", "default").body(plain.clone());
    let (status, _, answer) = send(foreign).await?;
    answers.add("admin, another workspace in the header", (status, answer));
    assert_snapshot!(answers, @r#"
    operator: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 1]"}
    bot: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"an admin key is required","request_id":"[id 2]"}
    admin, lines of another workspace: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"line 2: a root key is required for lines that name a workspace","request_id":"[id 3]"}
    admin, lines that name the own workspace: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"line 1: a root key is required for lines that name a workspace","request_id":"[id 4]"}
    admin, a workspace: 403 {"type":"urn:monstrum:error:forbidden","title":"This key has no permission for this action","status":403,"detail":"line 1: a root key is required for lines that name a workspace","request_id":"[id 5]"}
    admin, another workspace in the header: 404 {"type":"urn:monstrum:error:not_found","title":"Not found","status":404,"detail":"no such workspace","request_id":"[id 6]"}
    "#);
    assert_eq!(exported(&admin).await?, "", "nothing was written");
    assert!(!exported_of(&world.api, "default").await?.contains("reader"));
    import(&admin, &plain).await?;
    import(&world.api, &named).await?;
    let request = world.api.request(Method::POST, IMPORT).header("Monstrum-Workspace", "acme").body(plain);
    let (status, _, answer) = send(request).await?;
    assert_eq!((status, &answer["workspaces"][0]["unchanged"]["roles"]), (200, &json!(1)), "{answer}");
    Ok(())
}

/// The audit records the ids and digests of the imported objects, and not their content.
#[tokio::test]
async fn the_audit_has_one_row_of_a_transaction() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let lines = joined(&[bot("tester"), bot("new"), role("reader", &["acme/*"])]);
    import(&world.api, &lines).await?;
    import(&world.api, &joined(&[role("reader", &["globex/*"])])).await?;
    let recorded: Vec<Value> =
        changes(&world.api).await?.into_iter().filter(|change| change["change"] == "import.apply").collect();
    let [second, first] = recorded.as_slice() else { anyhow::bail!("two imports: {recorded:?}") };
    assert_eq!(first["request_id"], first["object"]);
    let shown = crate::stable::stable(&json!([first["after"], second["after"]]));
    assert_snapshot!(shown, @r#"[{"objects":[{"kind":"role","id":"[id 1]","before":null,"after":"[hash]","updated_at":"[time]"},{"kind":"bot","id":"[id 2]","before":null,"after":"[hash]","updated_at":"[time]"}]},{"objects":[{"kind":"role","id":"[id 1]","before":"[hash]","after":"[hash]","updated_at":"[time]"}]}]"#);
    let (was, became) = (&first["after"]["objects"][0]["after"], &second["after"]["objects"][0]["before"]);
    assert_eq!(was, became, "the digests are those of the same row");
    assert!(!json!(recorded).to_string().contains("globex"));
    assert_eq!(world.api.verify_audit().await?["valid"], true);
    Ok(())
}

/// An import that changes the configuration of a resource has the same effect as a PATCH: the resource keeps its
/// credential. If the credential would be sent to another origin, it is not used until an admin confirms it.
#[tokio::test]
async fn a_moved_resource_keeps_its_credential_as_a_patch_does() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let state = async |id: &str| {
        let (_, resource) = world.api.get(&format!("/api/resources/{id}")).await?;
        let mut credential = resource["credential"].clone();
        for field in ["id", "created_at", "updated_at"] {
            credential.as_object_mut().context("it has a credential")?.remove(field);
        }
        anyhow::Ok(credential)
    };
    let mut states = Vec::new();
    for name in ["patched", "imported"] {
        let id = world.api.resource("test-echo", name, "https://old.example").await?;
        world.api.token(&id, support::TOKEN).await?;
        if name == "patched" {
            let change = json!({ "config": { "api_base": "https://new.example" } });
            assert_eq!(world.api.patch(&format!("/api/resources/{id}"), &change).await?.0, 200);
        } else {
            let lines = exported_of(&world.api, "default").await?;
            let line = lines.lines().find(|line| line.contains("\"imported\"")).context("it is exported")?;
            import(&world.api, &line.replace("old.example", "new.example")).await?;
        }
        states.push(state(&id).await?);
    }
    assert_eq!(states[0], states[1]);
    Ok(())
}

/// `doctor` compares the rows of an unverified workspace with the audit.
#[tokio::test]
async fn doctor_reads_what_an_import_wrote() -> Result<()> {
    let mut server = Server::prepare(&["test-echo"])?;
    server.launch().await?;
    let api = server.api()?;
    let lines = joined(&[bot("one"), resource("site"), role("reader", &["acme/*"]), binding("one", "site", "reader")]);
    import(&api, &lines).await?;
    let id = |list: Value| text(&list["items"][0]["id"]).to_owned();
    let (role, bot) = (id(api.get("/api/roles").await?.1), id(api.get("/api/bots").await?.1));
    server.stop().await?;
    let data = server.data_dir();
    let folder = data.to_str().context("a temporary folder has a plain name")?;
    let doctor = async || {
        let done = server.command(&["doctor", "--data-dir", folder]).await?;
        anyhow::Ok(format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr)))
    };
    let quiet = doctor().await?;
    ensure!(!quiet.contains("the audit records") && !quiet.contains("in the audit"), "{quiet}");
    // The statement does not change `updated_at`, so only the digest shows that the row was changed.
    let statement = "update roles set scope_constraints = '{}'";
    crate::tamper::sqlite(&data, &[statement, "delete from bot_resources"]).await?;
    let found = doctor().await?;
    ensure!(found.contains(&format!("row roles/{role} differs from its last change in the audit")), "{found}");
    ensure!(found.contains("row bot_resources/") && found.contains("is missing; the audit records"), "{found}");
    ensure!(!found.contains(&format!("row bots/{bot} ")), "{found}");
    Ok(())
}

/// An import neither deletes nor renames objects. Objects without a line are not changed.
#[tokio::test]
async fn objects_without_a_line_stay() -> Result<()> {
    let world = World::with(&[]).await?;
    made(&world.api, "/api/roles", &json!({ "name": "kept", "allowed_operations": ["a"] })).await?;
    import(&world.api, &joined(&[role("new", &[])])).await?;
    let lines = exported_of(&world.api, "default").await?;
    ensure!(lines.contains("\"kept\"") && lines.contains("\"new\"") && lines.contains("\"tester\""), "{lines}");
    let empty = import(&world.api, "").await?;
    assert_eq!((&empty["dry_run"], &empty["workspaces"]), (&json!(false), &json!([])));
    Ok(())
}
