//! The fields `gates` of bots, roles and bindings, and `labels` of resources.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use serde_json::{Value, json};
use support::Api;

use crate::http::export::exported;
use crate::http::roles::faults;
use crate::http::{Answers, made, send, workspace};
use crate::world::{World, text};

/// A gate with a value in every field.
fn whole() -> Value {
    json!({
        "tools": ["test_echo_*"], "operations": ["echo.write"], "when": { "repos": ["acme/*"] },
        "unless": { "paths": ["docs/**"] }, "after": ["untrusted"], "action": "ask",
        "approvers": ["operator", "approver"], "allow_starter": true, "expires_s": 600, "reason": "It writes.",
    })
}

/// The paths of one bot, role, binding and resource.
struct Holders {
    bot: String,
    role: String,
    binding: String,
    resource: String,
}

impl Holders {
    async fn of(world: &World) -> Result<Holders> {
        let bound = world.grant_all("test-echo").await?;
        let roles = world.api.get("/api/roles").await?.1;
        Ok(Holders {
            bot: format!("/api/bots/{}", world.bot),
            role: format!("/api/roles/{}", text(&roles["items"][0]["id"])),
            binding: format!("/api/bots/{}/resources/{}", world.bot, bound.binding),
            resource: format!("/api/resources/{}", bound.resource),
        })
    }
}

/// Returns the stored gates of a holder.
async fn stored(api: &Api, path: &str) -> Result<Value> {
    let path = path.to_owned();
    let Some((list, id)) =
        path.rsplit_once('/').filter(|(list, _)| list.ends_with("/resources") && list.contains("/bots/"))
    else {
        return Ok(api.get(&path).await?.1["gates"].clone());
    };
    let items = api.get(list).await?.1["items"].clone();
    let found = items.as_array().into_iter().flatten().find(|item| item["id"] == id);
    Ok(found.map(|item| item["gates"].clone()).unwrap_or_default())
}

#[tokio::test]
async fn gates_are_shown_as_they_were_set() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let holders = Holders::of(&world).await?;
    let gates = json!([whole(), { "action": "deny" }]);
    for path in [&holders.bot, &holders.role, &holders.binding] {
        assert_eq!(stored(&world.api, path).await?, json!([]));
        for (change, expected) in [
            (json!({ "gates": gates }), &gates),
            (json!({}), &gates),
            (json!({ "gates": null }), &json!([])),
            (json!({ "gates": [whole()] }), &json!([whole()])),
            (json!({ "gates": [{ "action": "ask", "tools": null, "reason": null }] }), &json!([{ "action": "ask" }])),
            (json!({ "gates": [] }), &json!([])),
        ] {
            let (status, answer) = world.api.patch(path, &change).await?;
            ensure!(status == 200, "{path} {change}: {answer}");
            assert_eq!((&answer["gates"], &stored(&world.api, path).await?), (expected, expected), "{path} {change}");
        }
    }
    let (status, answer) = world.api.post("/api/bots", &json!({ "name": "new", "gates": gates })).await?;
    assert_eq!((status, &answer["gates"]), (201, &gates));
    let (status, answer) = world.api.post("/api/roles", &json!({ "name": "new", "gates": gates })).await?;
    assert_eq!((status, &answer["gates"]), (201, &gates));
    Ok(())
}

#[tokio::test]
async fn faults_of_gates_are_named() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let holders = Holders::of(&world).await?;
    let mut answers = Answers::default();
    for gate in [
        json!({}),
        json!({ "action": "allow" }),
        json!({ "action": "ask", "colour": "red" }),
        json!({ "action": "ask", "tools": [] }),
        json!({ "action": "ask", "tools": "x" }),
        json!({ "action": "ask", "operations": ["a", ""] }),
        json!({ "action": "ask", "when": { "repos": [] } }),
        json!({ "action": "ask", "when": { "repos": ["a", "x".repeat(4097)] } }),
        json!({ "action": "ask", "unless": {} }),
        json!({ "action": "ask", "unless": { "repos": [] } }),
        json!({ "action": "ask", "after": [] }),
        json!({ "action": "ask", "after": ["Untrusted", "a b", ""] }),
        json!({ "action": "ask", "after": ["a", "b", "c", "d", "e"] }),
        json!({ "action": "ask", "approvers": [] }),
        json!({ "action": "ask", "approvers": ["root"] }),
        json!({ "action": "ask", "approvers": ["admin", "admin"] }),
        json!({ "action": "ask", "allow_starter": "yes" }),
        json!({ "action": "ask", "expires_s": 59 }),
        json!({ "action": "ask", "expires_s": 604_801 }),
        json!({ "action": "ask", "expires_s": -1 }),
        json!({ "action": "ask", "reason": "é".repeat(513) }),
    ] {
        let body = json!({ "gates": [{ "action": "deny" }, gate] });
        let first = faults(world.api.patch(&holders.bot, &body).await?);
        for path in [&holders.role, &holders.binding] {
            assert_eq!(faults(world.api.patch(path, &body).await?), first, "{path} {gate}");
        }
        let label = gate.to_string().replace(&"x".repeat(4097), "x…").replace(&"é".repeat(513), "é…");
        answers.add(&label, first);
        // The gates of a delegation have the same rules, at another path.
        let delegate = json!({ "delegate": { "gates": body["gates"] } });
        let (status, answer) = world.api.patch(&holders.binding, &delegate).await?;
        ensure!(status == 422, "{answer}");
        let path = text(&answer["errors"][0]["path"]);
        ensure!(path.starts_with("/delegate/gates/1") || gate == json!({}), "{path}");
    }
    let many = json!({ "gates": vec![json!({ "action": "ask" }); 21] });
    answers.add("21 gates", faults(world.api.patch(&holders.role, &many).await?));
    let unknown =
        json!([{ "action": "ask", "when": { "projects": ["X"] } }, { "action": "ask", "unless": { "a/b": ["X"] } }]);
    answers.add("unknown keys", faults(world.api.patch(&holders.binding, &json!({ "gates": unknown })).await?));
    assert_snapshot!(answers, @r#"
    {}: 422 [{"path":"/gates/1/action","message":"required field is missing"}]
    {"action":"allow"}: 422 [{"path":"/gates/1/action","message":"unknown variant `allow`, expected `ask` or `deny`"}]
    {"action":"ask","colour":"red"}: 422 [{"path":"/gates/1/colour","message":"unknown field `colour`, expected one of `tools`, `operations`, `when`, `unless`, `after`, `action`, `approvers`, `allow_starter`, `expires_s`, `reason`"}]
    {"action":"ask","tools":[]}: 422 [{"path":"/gates/1/tools","message":"must not be empty"}]
    {"action":"ask","tools":"x"}: 422 [{"path":"/gates/1/tools","message":"invalid type: string \"x\", expected a sequence"}]
    {"action":"ask","operations":["a",""]}: 422 [{"path":"/gates/1/operations/1","message":"must not be empty"}]
    {"action":"ask","when":{"repos":[]}}: 422 [{"path":"/gates/1/when/repos","message":"must not be empty"}]
    {"action":"ask","when":{"repos":["a","x…"]}}: 422 [{"path":"/gates/1/when/repos/1","message":"the pattern is too long; at most 4096 bytes are allowed"}]
    {"action":"ask","unless":{}}: 422 [{"path":"/gates/1/unless","message":"must not be empty"}]
    {"action":"ask","unless":{"repos":[]}}: 422 [{"path":"/gates/1/unless/repos","message":"must not be empty"}]
    {"action":"ask","after":[]}: 422 [{"path":"/gates/1/after","message":"must not be empty"}]
    {"action":"ask","after":["Untrusted","a b",""]}: 422 [{"path":"/gates/1/after/0","message":"must have 1 to 32 characters, each of which is a-z or `-`"},{"path":"/gates/1/after/1","message":"must have 1 to 32 characters, each of which is a-z or `-`"},{"path":"/gates/1/after/2","message":"must have 1 to 32 characters, each of which is a-z or `-`"}]
    {"action":"ask","after":["a","b","c","d","e"]}: 422 [{"path":"/gates/1/after","message":"must have at most 4 entries"}]
    {"action":"ask","approvers":[]}: 422 [{"path":"/gates/1/approvers","message":"must not be empty"}]
    {"action":"ask","approvers":["root"]}: 422 [{"path":"/gates/1/approvers/0","message":"unknown variant `root`, expected one of `admin`, `operator`, `approver`"}]
    {"action":"ask","approvers":["admin","admin"]}: 422 [{"path":"/gates/1/approvers/1","message":"duplicate entry"}]
    {"action":"ask","allow_starter":"yes"}: 422 [{"path":"/gates/1/allow_starter","message":"invalid type: string \"yes\", expected a boolean"}]
    {"action":"ask","expires_s":59}: 422 [{"path":"/gates/1/expires_s","message":"must be from 60 to 604800"}]
    {"action":"ask","expires_s":604801}: 422 [{"path":"/gates/1/expires_s","message":"must be from 60 to 604800"}]
    {"action":"ask","expires_s":-1}: 422 [{"path":"/gates/1/expires_s","message":"invalid value: integer `-1`, expected u32"}]
    {"action":"ask","reason":"é…"}: 422 [{"path":"/gates/1/reason","message":"must have at most 1024 bytes"}]
    21 gates: 422 [{"path":"/gates","message":"must have at most 20 entries"}]
    unknown keys: 422 [{"path":"/gates/0/when/projects","message":"unknown scope dimension (known dimensions: repos, paths, labels, kinds)"},{"path":"/gates/1/unless/a~1b","message":"unknown scope dimension (known dimensions: repos, paths, labels, kinds)"}]
    "#);
    for (path, change) in [
        (&holders.role, json!({ "gates": unknown })),
        (&holders.bot, json!({ "gates": unknown })),
        (&holders.binding, json!({ "delegate": { "scope_constraints": {}, "gates": unknown } })),
    ] {
        let (status, answer) = world.api.patch(path, &change).await?;
        ensure!(status == 200, "these gates apply to tools of several types: {path} {answer}");
    }
    Ok(())
}

#[tokio::test]
async fn labels_of_a_resource_are_set_shown_and_checked() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let resource = Holders::of(&world).await?.resource;
    let mut answers = Answers::default();
    let mut labelled = async |labels: Value| {
        let (status, answer) = world.api.patch(&resource, &json!({ "labels": labels })).await?;
        let shown = if status == 200 { (status, answer["labels"].clone()) } else { faults((status, answer)) };
        answers.add(&labels.to_string(), shown);
        anyhow::Ok(())
    };
    for labels in [
        json!(["untrusted", "private", "a-b", "x".repeat(32)]),
        json!(null),
        json!(["a"]),
        json!([]),
        json!(["a", "b", "c", "d", "e"]),
        json!(["", "A", "a_b", "x".repeat(33), "é"]),
        json!(["", "A", "a_b", "é"]),
        json!(["a", "b", "a"]),
        json!("untrusted"),
        json!([1]),
    ] {
        labelled(labels).await?;
    }
    assert_snapshot!(answers, @r#"
    ["untrusted","private","a-b","xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]: 200 ["untrusted","private","a-b","xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]
    null: 200 []
    ["a"]: 200 ["a"]
    []: 200 []
    ["a","b","c","d","e"]: 422 [{"path":"/labels","message":"must have at most 4 entries"}]
    ["","A","a_b","xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","é"]: 422 [{"path":"/labels","message":"must have at most 4 entries"}]
    ["","A","a_b","é"]: 422 [{"path":"/labels/0","message":"must have 1 to 32 characters, each of which is a-z or `-`"},{"path":"/labels/1","message":"must have 1 to 32 characters, each of which is a-z or `-`"},{"path":"/labels/2","message":"must have 1 to 32 characters, each of which is a-z or `-`"},{"path":"/labels/3","message":"must have 1 to 32 characters, each of which is a-z or `-`"}]
    ["a","b","a"]: 422 [{"path":"/labels/2","message":"duplicate entry"}]
    "untrusted": 422 [{"path":"/labels","message":"invalid type: string \"untrusted\", expected a sequence"}]
    [1]: 422 [{"path":"/labels/0","message":"invalid type: integer `1`, expected a string"}]
    "#);
    let body = json!({ "resource_type": "test-echo", "name": "new", "labels": ["untrusted"] });
    let (status, answer) = world.api.post("/api/resources", &body).await?;
    assert_eq!((status, &answer["labels"]), (201, &json!(["untrusted"])));
    assert_eq!(
        world.api.get(&format!("/api/resources/{}", text(&answer["id"]))).await?.1["labels"],
        json!(["untrusted"])
    );
    Ok(())
}

#[tokio::test]
async fn gates_and_labels_are_an_admins() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let holders = Holders::of(&world).await?;
    let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
    let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
    let gates = json!([{ "action": "ask" }]);
    for path in [&holders.bot, &holders.role, &holders.binding] {
        assert_eq!(admin.patch(path, &json!({ "gates": gates })).await?.0, 200);
        for change in [json!([]), json!(null), gates.clone(), json!([{ "action": "deny" }])] {
            assert_eq!(operator.patch(path, &json!({ "gates": change })).await?.0, 403, "{path} {change}");
        }
        assert_eq!(stored(&admin, path).await?, gates);
    }
    assert_eq!(admin.patch(&holders.resource, &json!({ "labels": ["private"] })).await?.0, 200);
    for change in [json!([]), json!(null), json!(["private"])] {
        assert_eq!(operator.patch(&holders.resource, &json!({ "labels": change })).await?.0, 403, "{change}");
    }
    let new = json!({ "name": "gated", "gates": gates });
    assert_eq!((operator.post("/api/bots", &new).await?.0, admin.post("/api/bots", &new).await?.0), (403, 201));
    let new = json!({ "resource_type": "test-echo", "name": "labelled", "labels": ["private"] });
    assert_eq!(
        (operator.post("/api/resources", &new).await?.0, admin.post("/api/resources", &new).await?.0),
        (403, 201)
    );
    // Other changes keep the gates and the labels.
    let (status, bot) = operator.patch(&holders.bot, &json!({ "description": "renamed" })).await?;
    assert_eq!((status, &bot["gates"]), (200, &gates));
    let (status, resource) = operator.patch(&holders.resource, &json!({ "name": "renamed" })).await?;
    assert_eq!((status, &resource["labels"]), (200, &json!(["private"])));
    assert_eq!(operator.get(&holders.bot).await?.1["gates"], gates, "an operator sees the gates");
    Ok(())
}

#[tokio::test]
async fn gates_and_labels_are_exported_imported_and_compared() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    let holders = Holders::of(&world).await?;
    let ask = json!([whole()]);
    for path in [&holders.bot, &holders.role, &holders.binding] {
        assert_eq!(world.api.patch(path, &json!({ "gates": ask })).await?.0, 200);
    }
    assert_eq!(world.api.patch(&holders.resource, &json!({ "labels": ["private"] })).await?.0, 200);
    let lines: Vec<Value> = exported(&world.api.with_key(&world.api.new_key("admin", None).await?))
        .await?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    for line in &lines {
        let field = if line["kind"] == "resource" { ("labels", json!(["private"])) } else { ("gates", ask.clone()) };
        assert_eq!(line[field.0], field.1, "{line}");
    }
    let import = async |api: &Api, lines: &[Value]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let request = api.request(reqwest::Method::POST, "/api/import").header("content-type", "application/jsonl");
        let (status, _, answer) = send(request.body(text)).await?;
        anyhow::Ok((status, answer))
    };
    let there = workspace(&world.api, "there").await?;
    let (status, answer) = import(&there, &lines).await?;
    ensure!(status == 200, "{answer}");
    let of_bot = &answer["workspaces"][0]["gates"];
    assert_eq!(*of_bot, json!([{ "bot": "tester", "before": [], "after": ask }]));
    let grant = &answer["workspaces"][0]["permissions"][0]["gains"][0];
    assert_eq!((&grant["gates"], &grant["role"]["gates"]), (&ask, &ask));
    let labels = &answer["workspaces"][0]["labels"];
    let name = lines.iter().find(|line| line["kind"] == "resource").map(|line| line["name"].clone());
    assert_eq!(*labels, json!([{ "resource": name, "before": [], "after": ["private"] }]));

    // The gates of a role are part of the grants of its bindings.
    let mut changed = lines.clone();
    for line in &mut changed {
        let field = if line["kind"] == "resource" { "labels" } else { "gates" };
        line[field] = json!([]);
    }
    let (_, answer) = import(&there, &changed).await?;
    let of_workspace = &answer["workspaces"][0];
    assert_eq!(of_workspace["gates"], json!([{ "bot": "tester", "before": ask, "after": [] }]));
    assert_eq!(of_workspace["labels"], json!([{ "resource": name, "before": ["private"], "after": [] }]));
    let permissions = &of_workspace["permissions"][0];
    assert_eq!((&permissions["loses"][0]["gates"], &permissions["gains"][0]["gates"]), (&ask, &json!([])));

    // A line without its gates is shortened, and would remove them.
    for line in &lines {
        let mut short = line.clone();
        let field = if line["kind"] == "resource" { "labels" } else { "gates" };
        if let Some(line) = short.as_object_mut() {
            line.remove(field);
        }
        let (status, answer) = import(&there, &[short]).await?;
        let fault = json!([{ "path": format!("line 1: /{field}"), "message": "required field is missing" }]);
        assert_eq!((status, &answer["errors"]), (422, &fault));
    }
    let mut wrong = lines.iter().find(|line| line["kind"] == "bot").cloned().unwrap_or_default();
    wrong["gates"][0]["expires_s"] = json!(1);
    let (status, answer) = import(&there, &[wrong]).await?;
    assert_eq!((status, &answer["errors"][0]["path"]), (422, &json!("line 1: /gates/0/expires_s")));
    Ok(())
}

/// The memory of compiled patterns includes the patterns of gates.
#[tokio::test]
async fn patterns_of_gates_count_towards_the_memory_of_a_workspace() -> Result<()> {
    let server = support::Server::prepare(&["test-echo"])?.argument("--workspace-patterns-mib").argument("1");
    let world = World::on(server).await?;
    // Each pattern needs a table of more than 100 KiB.
    let pattern = |from: u32| {
        let set = |at: u32| char::from_u32(from + at).map(|one| format!("[{one}x]")).unwrap_or_default();
        format!("*{}*", (0..680).map(set).collect::<String>())
    };
    let patterns: Vec<String> = (0..15).map(|number| pattern(0x4e00 + number)).collect();
    let gates = json!([{ "action": "ask", "when": { "repos": patterns } }]);
    let bot = format!("/api/bots/{}", world.bot);
    let (status, answer) = world.api.patch(&bot, &json!({ "gates": gates })).await?;
    ensure!(status == 422 && text(&answer["detail"]).contains("compiled patterns of this workspace"), "{answer}");
    let role = made(&world.api, "/api/roles", &json!({ "name": "r", "allowed_tools": ["*"] })).await?;
    let (status, answer) = world.api.patch(&format!("/api/roles/{role}"), &json!({ "gates": gates })).await?;
    ensure!(status == 422, "{answer}");
    Ok(())
}
