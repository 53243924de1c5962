//! The isolation of workspaces, tested from outside. Two tenants use the same names everywhere. The test requests every
//! route of the API description with the keys of one tenant and the ids of the other. A new route is tested as soon as
//! it is described.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use monstrum_store::StoreOptions;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, FakeLlm, LlmReply, Postgres, Server};

use crate::http::wakes::plant_wakes;
use crate::http::{made, send, workspace};
use crate::runs::run_that_waits;
use crate::sandbox::plant;
use crate::tasks::{ended, give_model};
use crate::workflows::definition;
use crate::world::{World, text};

/// Collections that do not belong to a tenant. Their answers are also searched for the data of the other tenant.
const OF_THE_INSTANCE: [&str; 3] = ["plugins", "resource-types", "trust"];
const NAME: &str = "same";

/// One of two tenants that must not see each other's data.
struct Tenant {
    /// A word that occurs in all texts that the tenant has written.
    marker: &'static str,
    workspace: String,
    admin: Api,
    operator: Api,
    bot_key: Api,
    /// The values of `{id}` for the routes of each collection, and the values of the other path parameters.
    ids: BTreeMap<&'static str, String>,
}

impl Tenant {
    async fn settle(world: &World, store: &StoreOptions, marker: &'static str) -> Result<Tenant> {
        let name = format!("tenant-{marker}");
        let admin = workspace(&world.api, &name).await?;
        let (_, workspaces) = world.api.get("/api/workspaces").await?;
        let items = workspaces["items"].as_array().context("the workspaces are not a list")?;
        let workspace = items.iter().find(|item| item["name"] == name.as_str()).context("it is there")?;
        let key = async |body: Value| -> Result<(String, Api)> {
            let (status, key) = admin.post("/api/keys", &body).await?;
            ensure!(status == 201, "{key}");
            Ok((text(&key["id"]).to_owned(), admin.with_key(text(&key["key"]))))
        };
        let described = json!({ "name": NAME, "description": marker, "system_prompt": marker });
        let bot = made(&admin, "/api/bots", &described).await?;
        let role =
            made(&admin, "/api/roles", &json!({ "name": NAME, "allowed_operations": ["*"], "allowed_tools": ["*"] }))
                .await?;
        let resource = admin.resource("test-echo", NAME, &format!("{}/{marker}", world.github.url())).await?;
        admin.token(&resource, &format!("secret-of-{marker}")).await?;
        let binding = admin.bind(&bot, &resource, &role, &json!({ "repos": [marker] })).await?;
        let token_url = format!("https://id.example/{marker}");
        let provider = json!({ "resource_type": "test-echo", "client_id": marker, "token_url": token_url });
        let provider = made(&admin, "/api/oauth/providers", &provider).await?;
        for (id, subject) in [(json!(bot), "bot"), (json!({ "app_id": marker, "user_id": marker }), "user")] {
            let budget = json!({ "subject": subject, "id": id, "monthly_credits": 5 });
            let (status, set) = admin.put("/api/budgets", &budget).await?;
            ensure!(status == 200, "{set}");
        }
        let (operator_id, operator) = key(json!({ "name": NAME, "kind": "operator" })).await?;
        let (_, bot_key) = key(json!({ "name": "bot", "kind": "bot", "bot_id": bot })).await?;
        let sandbox = plant(store.clone(), world.server.data_dir(), text(&workspace["id"]), &bot, NAME, NAME).await?;
        plant_wakes(store.clone(), &world.server.data_dir(), text(&workspace["id"]), &[marker], Some(marker)).await?;
        let call = admin.call(&bot, "test_echo_run", &json!({ "repo": marker })).await?;
        ensure!(call["status"] == "success", "{call}");
        let subscription = json!({ "bot_id": bot, "pattern": marker, "instruction": marker });
        let subscription = made(&admin, "/api/subscriptions", &subscription).await?;
        let event = json!({ "name": marker, "data": { "text": marker }, "bot_id": bot });
        let (status, event) = admin.post("/api/events", &event).await?;
        ensure!(status == 201, "{event}");
        let llm = FakeLlm::start().await?;
        llm.prepare([LlmReply::json(400, &json!({ "error": { "message": marker } }))]);
        give_model(&admin, &bot, "models", &llm).await?;
        let task = made(&admin, &format!("/api/bots/{bot}/tasks"), &json!({ "instruction": marker })).await?;
        let task = ended(&admin, &task).await?;
        let schedule = json!({
            "name": marker, "bot_id": bot, "instruction": marker, "every_s": 3600, "enabled": false,
        });
        let schedule = made(&admin, "/api/schedules", &schedule).await?;
        let webhook = json!({ "name": marker, "event": marker, "bot_id": bot, "verify": { "kind": "token" } });
        let webhook = made(&admin, "/api/webhooks", &webhook).await?;
        let definition = json!({ "definition": format!("# {marker}\n{}", definition(NAME, &bot)) });
        let workflow = made(&admin, "/api/workflows", &definition).await?;
        let trigger = json!({ "event_pattern": format!("custom.{marker}"), "instruction": marker });
        let trigger = made(&admin, &format!("/api/workflows/{workflow}/triggers"), &trigger).await?;
        let (_, run) = run_that_waits(&admin, "waits", &bot, marker).await?;
        let ids = BTreeMap::from([
            ("runs", text(&run["id"]).to_owned()),
            ("workflows", workflow),
            ("trigger_id", trigger),
            ("workspaces", text(&workspace["id"]).to_owned()),
            ("keys", operator_id),
            ("bots", bot),
            ("roles", role),
            ("resources", resource),
            ("oauth", provider),
            ("sandboxes", sandbox),
            ("tasks", text(&task["id"]).to_owned()),
            ("sessions", text(&task["session_id"]).to_owned()),
            ("schedules", schedule),
            ("webhooks", webhook),
            ("subscriptions", subscription),
            ("events", text(&event["event_id"]).to_owned()),
            ("binding_id", binding),
            ("request_id", text(&call["request_id"]).to_owned()),
        ]);
        Ok(Tenant { marker, workspace: name, admin, operator, bot_key, ids })
    }

    fn id(&self, of: &str) -> &str {
        self.ids.get(of).map_or("", String::as_str)
    }

    fn keys(&self) -> [(&'static str, &Api); 3] {
        [("admin", &self.admin), ("operator", &self.operator), ("bot", &self.bot_key)]
    }

    /// Returns a path of the description with the ids of this tenant.
    fn path(&self, template: &str) -> String {
        let collection = template.split('/').nth(2).unwrap_or_default();
        let mut path = template.replace("{tool}", "test_echo_run").replace("{name}", "test-echo");
        path = path.replace("{binding_id}", self.id("binding_id")).replace("{request_id}", self.id("request_id"));
        path = path.replace("{chat_id}", &format!("{NAME}?app_id={NAME}")).replace("{app_id}", NAME);
        path = path.replace("{trigger_id}", self.id("trigger_id")).replace("{version}", "1");
        path = path.replace("{step}", "go");
        let id = match collection {
            "resource-types" => "test-echo",
            // For a collection without an id here, the path uses an id of this tenant that the other tenant must not
            // see either.
            _ => self.ids.get(collection).map_or_else(|| self.id("bots"), String::as_str),
        };
        path.replace("{id}", id)
    }

    /// Returns all objects of the tenant as its admin reads them. Removes the fields that change when an object is
    /// read.
    async fn all(&self) -> Result<Vec<Value>> {
        let bot = format!("/api/bots/{}", self.id("bots"));
        let paths = [
            "/api/bots",
            "/api/roles",
            "/api/resources",
            "/api/keys",
            "/api/audit",
            "/api/audit/changes",
            "/api/oauth/providers",
            "/api/sandboxes",
            "/api/tasks",
            "/api/sessions",
            "/api/schedules",
            "/api/webhooks",
            "/api/subscriptions",
            "/api/events",
            "/api/deliveries",
            "/api/wakes",
            "/api/workflows",
            "/api/runs",
            "/api/budgets",
            "/api/usage",
            "/api/export",
        ]
        .map(str::to_owned);
        let of_bot = ["", "/resources", "/tools", "/usage", "/prompt"].map(|rest| format!("{bot}{rest}"));
        let read = paths.into_iter().chain(of_bot).map(async |path| {
            let (status, mut body) = self.admin.get(&path).await?;
            ensure!(status == 200, "{path}: {status} {body}");
            for item in body
                .get_mut("items")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
                .filter_map(Value::as_object_mut)
            {
                item.remove("last_used_at");
            }
            Ok(body)
        });
        try_join_all(read).await
    }

    /// Fails if an answer to another tenant contains data of this tenant that `sent` did not contain.
    fn is_hidden_in(&self, answer: &str, sent: &str) -> Result<()> {
        let ids = self.ids.values().map(String::as_str).filter(|id| !sent.contains(id));
        let secret = format!("secret-of-{}", self.marker);
        let texts = [self.marker, secret.as_str(), self.workspace.as_str()];
        for word in ids.chain(texts) {
            ensure!(!answer.contains(word), "the answer contains `{word}`: {answer}");
        }
        Ok(())
    }
}

/// Returns a valid body for the route that contains no data of another tenant.
fn body(method: &str, template: &str, own: &Tenant) -> Option<Value> {
    match (method, template) {
        ("PUT", "/api/resources/{id}/credential") => {
            Some(json!({ "auth_method": "token", "fields": { "access_token": "a-stolen-place" } }))
        }
        ("POST", "/api/bots/{id}/resources") => {
            Some(json!({ "resource_id": own.id("resources"), "role_id": own.id("roles") }))
        }
        ("POST", "/api/bots/{id}/resources/preview") => {
            Some(json!({ "draft": { "resource_id": own.id("resources"), "role_id": own.id("roles") } }))
        }
        ("PATCH", "/api/bots/{id}/resources/{binding_id}") => Some(json!({ "enabled": false })),
        ("PATCH", "/api/oauth/providers/{id}") => Some(json!({ "scopes": ["taken"] })),
        ("PATCH", "/api/workflows/{id}" | "/api/workflows/{id}/triggers/{trigger_id}") => {
            Some(json!({ "enabled": false }))
        }
        ("POST", "/api/runs/{id}/steps/{step}/resolve") => Some(json!({ "as": "failed" })),
        ("POST", "/api/workflows/{id}/triggers") => Some(json!({ "event_pattern": "*" })),
        ("PATCH", "/api/subscriptions/{id}") => Some(json!({ "active": false })),
        ("PATCH", _) => Some(json!({ "name": "taken" })),
        ("POST", "/api/resources/{id}/oauth/confirm") => Some(json!({ "digest": "sha256:0" })),
        ("POST", "/api/sandboxes/{id}/exec") => Some(json!({ "command": "true" })),
        ("POST", "/api/keys/{id}/rotate" | "/api/resources/{id}/credential/confirm" | "/api/plugins/{name}/reload")
        | ("GET" | "DELETE", _) => None,
        _ => Some(json!({})),
    }
}

async fn ask(api: &Api, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, String)> {
    let mut request = api.request(method.parse()?, path);
    if let Some(body) = body {
        request = request.json(body);
    }
    let (status, headers, answer) = send(request).await?;
    Ok((status, format!("{headers:?} {answer}")))
}

/// Requests every route with path parameters, using the other tenant's ids, and every list, which must contain only the
/// caller's data. Returns the number of requests.
async fn walk(description: &Value, own: &Tenant, other: &Tenant) -> Result<usize> {
    let mut requests = 0;
    for (template, item) in description["paths"].as_object().context("the API description has no paths")? {
        for method in item.as_object().context("the path has no methods")?.keys().map(|method| method.to_uppercase()) {
            let collection = template.split('/').nth(2).unwrap_or_default();
            let names = template.contains('{');
            // A collection without path parameters only creates objects of the caller.
            if !names && method != "GET" {
                continue;
            }
            let path = other.path(template);
            let body = body(&method, template, own);
            for (kind, api) in own.keys() {
                let (status, answer) = ask(api, &method, &path, body.as_ref()).await?;
                let sent = format!("{path} {}", body.clone().unwrap_or_default());
                let told = || format!("{kind} of {}: {method} {template}: {status} {answer}", own.marker);
                other.is_hidden_in(&answer, &sent).with_context(told)?;
                // Pages of an authorization are accessible to anyone with their address, and this id is in none. Both
                // tenants have a conversation of the same name, and each deletes only its own.
                let is_refused = matches!(status, 403 | 404)
                    || matches!(collection, "begin" | "connect") && status == 400
                    || template.starts_with("/hooks/") && status == 401
                    || matches!(collection, "chats" | "apps") && status == 202;
                ensure!(!names || OF_THE_INSTANCE.contains(&collection) || is_refused, "{}", told());
                ensure!(status < 500, "{}", told());
                requests += 1;
            }
        }
    }
    Ok(requests)
}

/// Makes the tenant's objects refer to objects of the other tenant: in bodies, in queries, in cursors and by the header
/// of root keys.
#[expect(clippy::too_many_lines, reason = "the tables have a line for each attempt")]
async fn point(own: &Tenant, other: &Tenant) -> Result<()> {
    let bot = format!("/api/bots/{}", own.id("bots"));
    let (bindings, call) = (format!("{bot}/resources"), format!("{bot}/tools/test_echo_run/call"));
    let (check, tasks) = (format!("{bot}/tools/test_echo_run/check"), format!("{bot}/tasks"));
    let binding = format!("{bindings}/{}", own.id("binding_id"));
    let foreign_binding = format!("{bindings}/{}", other.id("binding_id"));
    let [theirs, role, resource] = ["bots", "roles", "resources"].map(|of| other.id(of));
    let triggers = format!("/api/workflows/{}/triggers", own.id("workflows"));
    let foreign_trigger = format!("{triggers}/{}", other.id("trigger_id"));
    let response = format!("resp_{}", other.id("tasks"));
    let attempts = [
        (Method::POST, "/api/keys", json!({ "name": "stolen", "kind": "bot", "bot_id": theirs })),
        (Method::POST, &bindings, json!({ "resource_id": resource, "role_id": own.id("roles") })),
        (Method::POST, &bindings, json!({ "resource_id": own.id("resources"), "role_id": role })),
        (Method::PATCH, &binding, json!({ "role_id": role })),
        (Method::PATCH, &foreign_binding, json!({ "enabled": false })),
        (Method::DELETE, &foreign_binding, Value::Null),
        (Method::PUT, "/api/budgets", json!({ "subject": "bot", "id": theirs, "monthly_tokens": 1 })),
        (Method::POST, &call, json!({ "params": { "repo": other.marker }, "resource_id": resource })),
        (Method::POST, &tasks, json!({ "instruction": "x", "session_id": other.id("sessions") })),
        (Method::POST, &check, json!({ "params": {}, "resource_id": resource })),
        (
            Method::POST,
            "/api/schedules",
            json!({ "name": "stolen", "bot_id": theirs, "instruction": "x", "every_s": 3600, "enabled": false }),
        ),
        (Method::POST, "/api/workflows", json!({ "definition": definition("stolen", theirs) })),
        (Method::POST, "/api/workflows/validate", json!({ "definition": definition("stolen", theirs) })),
        (Method::POST, &triggers, json!({ "event_pattern": "*", "from": [theirs] })),
        (Method::PATCH, &foreign_trigger, json!({ "enabled": false })),
        (Method::DELETE, &foreign_trigger, Value::Null),
        (
            Method::POST,
            "/api/webhooks",
            json!({ "name": "stolen", "event": "x", "bot_id": theirs, "verify": { "kind": "token" } }),
        ),
        (
            Method::POST,
            "/api/subscriptions",
            json!({ "bot_id": theirs, "pattern": "*", "instruction": "x", "active": false }),
        ),
        (
            Method::POST,
            "/api/subscriptions",
            json!({ "bot_id": own.id("bots"), "pattern": "*", "instruction": "x", "from": [theirs] }),
        ),
        (Method::POST, "/api/events", json!({ "name": "stolen", "bot_id": theirs })),
        (
            Method::POST,
            "/v1/chat/completions",
            json!({ "model": theirs, "messages": [{ "role": "user", "content": "x" }] }),
        ),
        (
            Method::POST,
            "/v1/responses",
            json!({ "model": own.id("bots"), "input": "x", "previous_response_id": response }),
        ),
    ];
    let queries = [
        format!("/api/audit?bot_id={theirs}"),
        format!("/api/audit/export?bot_id={theirs}"),
        format!("/api/audit/export?format=ocsf&bot_id={theirs}"),
        format!("/api/audit?resource_id={resource}"),
        format!("/api/stats?by=tool,message&resource_id={resource}"),
        "/api/stats?by=bot_id,resource_id".to_owned(),
        format!("/api/bots?cursor={}", "019a0000-0000-7000-8000-000000000000"),
        format!("/api/roles?cursor={role}"),
        format!("/api/resources?cursor={resource}&limit=1000"),
        format!("/api/keys?cursor={}", other.id("keys")),
        "/api/budgets?limit=1000".to_owned(),
        format!("/api/budgets?cursor=bot/{theirs}"),
        "/api/usage?by=bot,user,task,model".to_owned(),
        format!("/api/search?q={NAME}"),
        format!("/api/search?q={}", other.id("request_id")),
        format!("/api/sandboxes?app_id={NAME}&chat_id={NAME}"),
        format!("/api/tasks?bot_id={theirs}"),
        format!("/api/tasks?session_id={}", other.id("sessions")),
        format!("/api/tasks?schedule_id={}", other.id("schedules")),
        format!("/api/tasks?cursor={}", "fffa0000-0000-7000-8000-000000000000"),
        format!("/api/sessions?bot_id={theirs}"),
        format!("/api/schedules?bot_id={theirs}"),
        format!("/api/schedules?cursor={}", "fffa0000-0000-7000-8000-000000000000"),
        format!("/api/webhooks?cursor={}", other.id("webhooks")),
        format!("/api/subscriptions?bot_id={theirs}"),
        format!("/api/subscriptions?cursor={}", "019a0000-0000-7000-8000-000000000000"),
        format!("/api/events?bot_id={theirs}"),
        format!("/api/events?cursor={}", "fffa0000-0000-7000-8000-000000000000"),
        "/api/events?format=cloudevents".to_owned(),
        format!("/api/deliveries?cursor={}", "fffa0000-0000-7000-8000-000000000000"),
        format!("/api/sandboxes?cursor={}", "019a0000-0000-7000-8000-000000000000"),
        "/api/wakes?cursor=event/0".to_owned(),
        format!("/api/workflows?bot_id={theirs}"),
        format!("/api/runs?workflow_id={}", other.id("workflows")),
        format!("/api/runs?started_by={}", other.id("keys")),
        format!("/api/runs?cursor={}", "fffa0000-0000-7000-8000-000000000000"),
        format!("/api/workflows?cursor={}", "fffa0000-0000-7000-8000-000000000000"),
        format!("{triggers}?cursor={}", "fffa0000-0000-7000-8000-000000000000"),
    ];
    for path in &queries {
        for (kind, api) in own.keys() {
            let (status, answer) = ask(api, "GET", path, None).await?;
            other.is_hidden_in(&answer, path).with_context(|| format!("{kind}: GET {path}: {status} {answer}"))?;
        }
    }
    for workspace in [other.workspace.as_str(), other.id("workspaces")] {
        let request = own.admin.request(Method::GET, "/api/bots").header("Monstrum-Workspace", workspace);
        let (status, _, answer) = send(request).await?;
        other.is_hidden_in(&answer.to_string(), workspace).with_context(|| format!("{status} {answer}"))?;
    }
    // These attempts come last, because the ids that a tenant requests appear in its own audit.
    for (method, path, body) in attempts {
        let (status, answer) = ask(&own.admin, method.as_str(), path, Some(&body)).await?;
        let told = format!("{method} {path} {body}: {status} {answer}");
        let ran = answer.contains("\"status\":\"success\"") || answer.contains("\"decision\":\"allow\"");
        ensure!(matches!(status, 403 | 404 | 409 | 422) || (status == 200 && !ran), "{told}");
        other.is_hidden_in(&answer, &body.to_string()).context(told)?;
    }
    Ok(())
}

/// Checks that an `Idempotency-Key` applies to one caller only: two tenants with the same key create two objects.
async fn keep_apart(one: &Tenant, two: &Tenant) -> Result<()> {
    let mut ids = Vec::new();
    for tenant in [one, two] {
        let request = tenant.admin.request(Method::POST, "/api/roles").header("Idempotency-Key", "k");
        let (status, headers, answer) = send(request.json(&json!({ "name": "kept", "allowed_tools": [] }))).await?;
        ensure!(status == 201 && !headers.contains_key("idempotent-replayed"), "{status} {answer}");
        ids.push(text(&answer["id"]).to_owned());
    }
    ensure!(ids[0] != ids[1], "both have {}", ids[0]);
    Ok(())
}

async fn matrix(server: Server, store: StoreOptions) -> Result<()> {
    // The test covers the access rights of keys, not the behaviour of sandboxes.
    let world = World::on(server.argument("--sandbox").argument("off")).await?;
    let (_, description) = world.api.get("/api/openapi.json").await?;
    let one = Tenant::settle(&world, &store, "amber").await?;
    let two = Tenant::settle(&world, &store, "basalt").await?;
    keep_apart(&one, &two).await?;
    // Each direction is tested twice, with reads and calls in between, so that no cached data of one tenant is served
    // to the other.
    for (own, other) in [(&one, &two), (&two, &one), (&one, &two), (&two, &one)] {
        let before = other.all().await?;
        let requests = walk(&description, own, other).await?;
        ensure!(requests > 100, "only {requests} requests");
        ensure!(before == other.all().await?, "{} has changed {}", own.marker, other.marker);
        let answer = other.admin.call(other.id("bots"), "test_echo_run", &json!({ "repo": other.marker })).await?;
        ensure!(answer["status"] == "success", "{answer}");
    }
    for tenant in [&one, &two] {
        for body in tenant.all().await? {
            let stranger = if tenant.marker == one.marker { &two } else { &one };
            stranger.is_hidden_in(&body.to_string(), "").context("the tenant reads data of the other tenant")?;
        }
    }
    for (own, other) in [(&one, &two), (&two, &one)] {
        let before = other.all().await?;
        point(own, other).await?;
        ensure!(before == other.all().await?, "{} has changed {}", own.marker, other.marker);
    }
    Ok(())
}

#[tokio::test]
async fn no_route_leads_from_one_workspace_into_another() -> Result<()> {
    let server = Server::prepare(&["test-echo"])?;
    let store = StoreOptions::sqlite(server.data_dir().join("monstrum.db"));
    matrix(server, store).await
}

#[tokio::test]
async fn on_postgresql_it_is_the_same() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    postgres.sql("postgres", "create database monstrum")?;
    let url = postgres.url("monstrum");
    let server = Server::prepare(&["test-echo"])?.variable("MONSTRUM_DATABASE_URL", &url);
    matrix(server, StoreOptions::from_url(&url)?).await
}
