//! Access control: every route of the API description, requested with every kind of key. The table is the policy. A
//! route that is not in the table fails the test.

mod agents;
mod bodies;
mod may;
mod objects;
mod unknown;
mod unread;

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use insta::assert_snapshot;
use monstrum_store::StoreOptions;
use reqwest::Method;
use serde_json::{Value, json};
use support::{Api, FakeLlm, Server, TOKEN};

use self::bodies::{schedule, subscription, trust, webhook};
use crate::http::{Answers, made, send, workspace};
use crate::sandbox::plant;
use crate::tasks::give_model;
use crate::workflows::new_workflow;
use crate::world::{World, text};

/// A world that creates new objects for each request, one for every object that a route can name.
struct Fresh {
    world: World,
    foreign: Api,
    admin: Api,
    operator: Api,
    approver: Api,
    /// The key that makes the calls for which gates ask, because a key does not approve its own calls.
    starter: Api,
    /// The id of a call that is in the audit.
    call: String,
    workspace: String,
    /// A server of a model that rejects every request.
    llm: FakeLlm,
    made: AtomicUsize,
}

/// A request to a route, and the bot that it concerns.
struct Request {
    path: String,
    body: Option<Value>,
    bot: String,
}

impl Fresh {
    async fn start() -> Result<Fresh> {
        // The tests cover the access of keys, not the behaviour of sandboxes.
        let server = Server::prepare(&["test-echo"])?.argument("--sandbox").argument("off");
        let world = World::on(server).await?;
        let foreign = workspace(&world.api, "foreign").await?;
        let admin = world.api.with_key(&world.api.new_key("admin", None).await?);
        let operator = world.api.with_key(&world.api.new_key("operator", None).await?);
        let approver = world.api.with_key(&world.api.new_key("approver", None).await?);
        let starter = json!({ "name": "starter", "kind": "admin" });
        let starter = world.api.with_key(text(&world.api.post("/api/keys", &starter).await?.1["key"]));
        let call = text(&world.call("nothing", &json!({})).await?["request_id"]).to_owned();
        let (_, workspaces) = world.api.get("/api/workspaces").await?;
        let default = workspaces["items"].as_array().into_iter().flatten().find(|one| one["name"] == "default");
        let workspace = text(&default.context("the default workspace does not exist")?["id"]).to_owned();
        let (llm, made) = (FakeLlm::start().await?, AtomicUsize::new(0));
        Ok(Fresh { world, foreign, admin, operator, approver, starter, call, workspace, llm, made })
    }

    /// Returns an unused name.
    fn name(&self) -> String {
        format!("n{}", self.made.fetch_add(1, Ordering::Relaxed))
    }

    async fn key_of(&self, bot: &str) -> Result<Api> {
        let body = json!({ "name": self.name(), "kind": "bot", "bot_id": bot });
        let (_, key) = self.world.api.post("/api/keys", &body).await?;
        Ok(self.world.api.with_key(text(&key["key"])))
    }

    async fn resource(&self) -> Result<String> {
        let resource = self.world.api.resource("test-echo", &self.name(), &self.world.github.url()).await?;
        self.world.api.token(&resource, TOKEN).await?;
        Ok(resource)
    }

    /// Creates a sandbox of the bot in a new conversation and returns its id.
    async fn sandbox(&self, chat: &str) -> Result<String> {
        let store = StoreOptions::sqlite(self.world.server.data_dir().join("monstrum.db"));
        plant(store, self.world.server.data_dir(), &self.workspace, &self.world.bot, "app", chat).await
    }

    /// Returns the body for a new provider. Existing providers are deleted first, because a workspace can have only one
    /// provider for a type.
    async fn provider(&self) -> Result<Value> {
        for api in [&self.world.api, &self.foreign] {
            let (_, list) = api.get("/api/oauth/providers").await?;
            for provider in list["items"].as_array().into_iter().flatten() {
                api.delete(&format!("/api/oauth/providers/{}", text(&provider["id"]))).await?;
            }
        }
        let url = "https://id.example/token";
        Ok(json!({ "resource_type": "test-echo", "client_id": self.name(), "token_url": url }))
    }

    /// Builds a request to a route, with new objects for the ids in its path.
    async fn request(&self, method: &str, template: &str) -> Result<Request> {
        let api = &self.world.api;
        let collection = template.split('/').nth(2).unwrap_or_default();
        let (mut bot, mut decision) = (self.world.bot.clone(), None);
        let id = match collection {
            _ if !template.contains('{') => String::new(),
            "workspaces" | "roles" => made(api, &format!("/api/{collection}"), &json!({ "name": self.name() })).await?,
            "keys" => made(api, "/api/keys", &json!({ "name": self.name(), "kind": "operator" })).await?,
            "resources" if template.contains("/tools") => self.mcp_server().await?,
            "resources" => self.resource().await?,
            "trust" => made(api, "/api/trust", &trust(&self.name())?).await?,
            // The request names a plugin that does not exist, because the other routes need the installed plugin.
            "plugins" if method == "DELETE" => "absent".to_owned(),
            "plugins" | "resource-types" | "platform" => "test-echo".to_owned(),
            "audit" => self.call.clone(),
            "begin" | "connect" => "no-ticket".to_owned(),
            "sandboxes" => self.sandbox(&self.name()).await?,
            "chats" | "apps" => self.name(),
            "approvals" => {
                let approval;
                (approval, bot) = self.approval().await?;
                decision = Some(json!({ "decision": "deny", "digest": approval["digest"] }));
                text(&approval["id"]).to_owned()
            }
            "tasks" | "sessions" => {
                let task;
                (task, bot) = self.task().await?;
                let field = if collection == "tasks" { "id" } else { "session_id" };
                text(&task[field]).to_owned()
            }
            "schedules" => made(api, "/api/schedules", &schedule(&self.name(), &self.world.bot)).await?,
            "webhooks" => made(api, "/api/webhooks", &webhook(&self.name())).await?,
            // A webhook that does not exist, below `/hooks`.
            "{id}" => "01939d2c-7f6a-7000-8000-000000000001".to_owned(),
            "workflows" => made(api, "/api/workflows", &new_workflow(&self.name(), &self.world.bot)).await?,
            "runs" => {
                let run = self.run().await?;
                text(&run["id"]).to_owned()
            }
            "events" => {
                let (_, emitted) = api.post("/api/events", &json!({ "name": self.name() })).await?;
                text(&emitted["event_id"]).to_owned()
            }
            "subscriptions" => {
                let owner = api.bot(&self.name()).await?;
                made(api, "/api/subscriptions", &subscription(&owner)).await?
            }
            // No event has a delivery.
            "deliveries" => "01939d2c-7f6a-7000-8000-000000000002".to_owned(),
            "oauth" => made(api, "/api/oauth/providers", &self.provider().await?).await?,
            // The model is a bot that has one.
            "models" => {
                bot = api.bot(&self.name()).await?;
                give_model(api, &bot, &self.name(), &self.llm).await?;
                bot.clone()
            }
            // A response belongs to the key that has asked for it.
            "responses" => "resp_absent".to_owned(),
            "bots" | "{bot}" | "oauth-protected-resource" => {
                bot = api.bot(&self.name()).await?;
                bot.clone()
            }
            other => bail!("the test does not know which object `/api/{other}/{{id}}` names; add it"),
        };
        let mut path = ["{id}", "{bot}", "{name}", "{request_id}", "{ticket}"]
            .iter()
            .fold(template.to_owned(), |path, name| path.replace(name, &id));
        path = path.replace("{tool}", "test_echo_run").replace("{flow_id}", "01939d2c-7f6a-7000-8000-000000000001");
        path = path.replace("{chat_id}", &format!("{id}?app_id=app")).replace("{app_id}", &id);
        path = path
            .replace("{type}", &id)
            .replace("{function}", "sync")
            .replace("{version}", "1")
            .replace("{step}", "halt");
        if path.contains("{trigger_id}") {
            let triggers = format!("/api/workflows/{id}/triggers");
            path = path.replace("{trigger_id}", &made(api, &triggers, &json!({ "event_pattern": "custom.x" })).await?);
        }
        if template == "/api/search" {
            path.push_str("?q=tester");
        }
        if path.contains("{binding_id}") {
            let role = api.role(&self.name(), &["*"]).await?;
            path = path.replace("{binding_id}", &api.bind(&bot, &self.resource().await?, &role, &json!({})).await?);
        }
        let body = match decision.filter(|_| method == "POST") {
            Some(decision) => Some(decision),
            None => self.body(&format!("{method} {template}")).await?,
        };
        Ok(Request { path, body, bot })
    }

    async fn body(&self, route: &str) -> Result<Option<Value>> {
        let name = self.name();
        Ok(Some(match route {
            "POST /api/keys/{id}/rotate"
            | "POST /api/plugins/{name}/reload"
            | "POST /api/resources/{id}/credential/confirm"
            | "POST /api/resources/{id}/credential/test"
            | "POST /api/resources/{id}/tools/discover"
            | "POST /api/schedules/{id}/fire"
            | "POST /api/webhooks/{id}/rotate"
            | "POST /api/deliveries/{id}/retry"
            | "POST /api/subscriptions/{id}/confirm"
            | "POST /api/runs/{id}/pause"
            | "POST /api/runs/{id}/resume"
            | "POST /api/runs/{id}/retry"
            | "POST /oauth/begin/{ticket}" => return Ok(None),
            "POST /api/resources/{id}/oauth/start"
            | "POST /api/resources/{id}/oauth/device"
            | "POST /api/resources/{id}/oauth/refresh"
            | "POST /api/resources/{id}/oauth/discover"
            | "POST /api/platform/{type}/{function}"
            | "POST /api/runs/{id}/cancel"
            | "POST /api/workflows/{id}/runs"
            | "POST /api/console/tickets" => json!({}),
            "POST /api/runs/{id}/steps/{step}/resolve" => json!({ "as": "failed" }),
            "POST /api/demo" => json!({ "step": "access" }),
            "POST /api/oauth/providers" => self.provider().await?,
            "POST /api/resources/{id}/oauth/confirm" => json!({ "digest": "sha256:0" }),
            "PATCH /api/oauth/providers/{id}" => json!({ "scopes": ["repo"] }),
            "POST /api/plugins/{name}/approve" => json!({}),
            "POST /api/plugins" => json!({ "name": "absent" }),
            "POST /api/trust" => trust(&name)?,
            "POST /api/sandboxes/{id}/exec" => json!({ "command": "true" }),
            "POST /api/core/ai/sandbox/file" | "POST /api/core/ai/sandbox/download" => {
                self.sandbox(&name).await?;
                json!({ "action": "list", "appId": "app", "chatId": name, "path": "." })
            }
            _ if route.starts_with("GET ") || route.starts_with("DELETE ") => return Ok(None),
            "POST /api/workspaces" | "POST /api/roles" | "POST /api/bots" => json!({ "name": name }),
            "PATCH /api/workspaces/{id}"
            | "PATCH /api/roles/{id}"
            | "PATCH /api/bots/{id}"
            | "PATCH /api/schedules/{id}"
            | "PATCH /api/webhooks/{id}"
            | "PATCH /api/resources/{id}" => {
                json!({ "name": name })
            }
            "POST /api/keys" => json!({ "name": name, "kind": "operator" }),
            "POST /api/import" => json!({
                "kind": "role", "name": name, "allowed_operations": null, "allowed_tools": null, "scope_constraints": {},
                "gates": [],
            }),
            "POST /api/resources" => json!({ "resource_type": "test-echo", "name": name }),
            // No server has declared this tool, so nothing is decided.
            "POST /api/resources/{id}/tools/approve" | "POST /api/resources/{id}/tools/reject" => {
                json!({ "tools": [{ "original_name": "absent", "digest": format!("sha256:{:064}", 0) }] })
            }
            "POST /api/schedules" => schedule(&name, &self.world.bot),
            "POST /api/webhooks" => webhook(&name),
            "POST /hooks/{id}" => json!({}),
            "POST /api/events" => json!({ "name": name }),
            "POST /api/subscriptions" => {
                // A bot has a limited number of subscriptions.
                subscription(&self.world.api.bot(&name).await?)
            }
            "PATCH /api/subscriptions/{id}" => json!({ "active": false }),
            "POST /api/schedules/preview" => json!({ "cron": "0 0 * * *" }),
            "POST /api/workflows" | "POST /api/workflows/validate" => new_workflow(&name, &self.world.bot),
            "POST /api/workflows/{id}/triggers" => json!({ "event_pattern": "custom.x" }),
            "PUT /api/budgets" => json!({ "subject": "user", "id": "*", "monthly_tokens": 1_000_000 }),
            "PUT /api/resources/{id}/credential" => {
                json!({ "auth_method": "token", "fields": { "access_token": TOKEN } })
            }
            "POST /api/bots/{id}/resources" => {
                json!({ "resource_id": self.resource().await?, "permissions": { "allowed_tools": ["*"] } })
            }
            "PATCH /api/bots/{id}/resources/{binding_id}"
            | "PATCH /api/workflows/{id}"
            | "PATCH /api/workflows/{id}/triggers/{trigger_id}" => json!({ "enabled": false }),
            "POST /api/bots/{id}/resources/preview" => {
                let draft = json!({ "resource_id": self.resource().await?, "permissions": { "allowed_tools": ["*"] } });
                json!({ "draft": draft })
            }
            "POST /api/bots/{id}/tools/{tool}/call" | "POST /api/bots/{id}/tools/{tool}/check" => json!({}),
            // The bot has no model.
            "POST /api/bots/{id}/tasks" => json!({ "instruction": name }),
            "POST /api/sessions/{id}/messages" => json!({ "text": name }),
            // The bot has no model.
            "POST /v1/chat/completions" => {
                json!({ "model": self.world.bot, "messages": [{ "role": "user", "content": name }] })
            }
            "POST /v1/responses" => json!({ "model": self.world.bot, "input": name }),
            "POST /mcp/{bot}" => json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }),
            other => bail!("the test has no body for `{other}`; add one"),
        }))
    }

    /// Returns the statuses that the callers receive. Each caller sends a separate request.
    async fn row(&self, method: &str, template: &str) -> Result<String> {
        let root = &self.world.api;
        let mut row = Vec::new();
        for kind in ["no key", "unknown key", "root", "admin", "operator", "approver", "bot", "foreign"] {
            let Request { path, body, bot } = self.request(method, template).await?;
            let caller = match kind {
                "no key" => root.with_key(""),
                "unknown key" => root.with_key("mk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
                "root" => root.clone(),
                "admin" => self.admin.clone(),
                "operator" => self.operator.clone(),
                "approver" => self.approver.clone(),
                "bot" => self.key_of(&bot).await?,
                _ => self.foreign.clone(),
            };
            let mut request = caller.request(method.parse()?, &path);
            if template.starts_with("/mcp") {
                // A client of the Model Context Protocol must accept both types.
                request = request.header("accept", "application/json, text/event-stream");
            }
            if let Some(body) = body {
                request = request.json(&body);
            }
            row.push(send(request).await?.0.to_string());
        }
        Ok(format!("{method:6} {template:50} {}", row.join("  ")))
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "the table has a line for each route")]
async fn every_route_answers_every_kind_of_key_as_the_policy_says() -> Result<()> {
    let fresh = Fresh::start().await?;
    let (_, document) = fresh.world.api.get("/api/openapi.json").await?;
    let mut table = Vec::new();
    for (path, item) in document["paths"].as_object().context("the API description has no paths")? {
        for method in item.as_object().context("the path has no methods")?.keys() {
            table.push(fresh.row(&method.to_uppercase(), path).await?);
        }
    }
    table.sort_by_key(|row| row.split_whitespace().nth(1).unwrap_or_default().to_owned());
    may::of_table(&fresh, &document, &table).await?;
    let heading = format!("{:57} none unkn root admn oper appr bot  foreign", "");
    assert_snapshot!([&[heading], table.as_slice()].concat().join("\n"), @"
                                                              none unkn root admn oper appr bot  foreign
    GET    /                                                  200  200  200  200  200  200  200  200
    GET    /.well-known/oauth-protected-resource/mcp/{id}     404  404  404  404  404  404  404  404
    GET    /api/approvals                                     401  401  200  200  200  200  200  200
    GET    /api/approvals/{id}                                401  401  200  200  200  200  200  404
    POST   /api/approvals/{id}                                401  401  200  200  200  200  403  404
    DELETE /api/apps/{app_id}                                 401  401  202  202  202  403  202  202
    GET    /api/attention                                     401  401  200  200  200  200  403  200
    GET    /api/audit                                         401  401  200  200  200  403  403  200
    GET    /api/audit/changes                                 401  401  200  200  403  403  403  200
    GET    /api/audit/export                                  401  401  200  200  200  403  403  200
    GET    /api/audit/stream                                  401  401  422  422  422  403  403  422
    GET    /api/audit/verify                                  401  401  200  403  403  403  403  403
    GET    /api/audit/{request_id}                            401  401  200  200  200  403  403  404
    GET    /api/bots                                          401  401  200  200  200  403  403  200
    POST   /api/bots                                          401  401  201  201  201  403  403  201
    GET    /api/bots/{id}                                     401  401  200  200  200  403  403  404
    DELETE /api/bots/{id}                                     401  401  204  204  204  403  403  404
    PATCH  /api/bots/{id}                                     401  401  200  200  200  403  403  404
    GET    /api/bots/{id}/access                              401  401  200  200  200  403  403  404
    GET    /api/bots/{id}/prompt                              401  401  200  200  200  403  200  404
    GET    /api/bots/{id}/resources                           401  401  200  200  200  403  403  404
    POST   /api/bots/{id}/resources                           401  401  201  201  403  403  403  404
    POST   /api/bots/{id}/resources/preview                   401  401  200  200  200  403  403  404
    GET    /api/bots/{id}/resources/{binding_id}              401  401  200  200  200  403  403  404
    DELETE /api/bots/{id}/resources/{binding_id}              401  401  204  204  403  403  403  404
    PATCH  /api/bots/{id}/resources/{binding_id}              401  401  200  200  403  403  403  404
    GET    /api/bots/{id}/tasks                               401  401  200  200  200  403  200  404
    POST   /api/bots/{id}/tasks                               401  401  409  409  409  403  409  404
    GET    /api/bots/{id}/tools                               401  401  200  200  200  403  200  404
    POST   /api/bots/{id}/tools/{tool}/call                   401  401  200  200  200  403  200  404
    POST   /api/bots/{id}/tools/{tool}/check                  401  401  200  200  200  403  200  404
    GET    /api/bots/{id}/usage                               401  401  200  200  200  403  403  404
    GET    /api/budgets                                       401  401  200  200  200  403  403  200
    PUT    /api/budgets                                       401  401  200  200  403  403  403  200
    DELETE /api/chats/{chat_id}                               401  401  202  202  202  403  202  202
    POST   /api/console/tickets                               401  401  201  201  201  201  403  201
    POST   /api/core/ai/sandbox/download                      401  401  503  503  503  403  403  404
    POST   /api/core/ai/sandbox/file                          401  401  503  503  503  403  403  404
    GET    /api/deliveries                                    401  401  200  200  200  403  403  200
    POST   /api/deliveries/{id}/retry                         401  401  404  404  404  403  403  404
    GET    /api/demo                                          401  401  200  403  403  403  403  403
    POST   /api/demo                                          401  401  409  403  403  403  403  403
    DELETE /api/demo                                          401  401  204  403  403  403  403  403
    GET    /api/events                                        401  401  200  200  200  403  403  200
    POST   /api/events                                        401  401  201  201  201  403  403  201
    GET    /api/events/{id}                                   401  401  200  200  200  403  403  404
    GET    /api/export                                        401  401  200  200  403  403  403  200
    POST   /api/import                                        401  401  200  200  403  403  403  200
    GET    /api/keys                                          401  401  200  200  403  403  403  200
    POST   /api/keys                                          401  401  201  201  403  403  403  201
    DELETE /api/keys/{id}                                     401  401  204  204  403  403  403  404
    POST   /api/keys/{id}/rotate                              401  401  200  200  403  403  403  404
    GET    /api/manifest.schema.json                          401  401  200  200  200  403  200  200
    GET    /api/me                                            401  401  200  200  200  200  200  200
    GET    /api/oauth/callback                                400  400  400  400  400  400  400  400
    GET    /api/oauth/providers                               401  401  200  200  200  403  403  200
    POST   /api/oauth/providers                               401  401  201  201  403  403  403  201
    DELETE /api/oauth/providers/{id}                          401  401  204  204  403  403  403  404
    PATCH  /api/oauth/providers/{id}                          401  401  200  200  403  403  403  404
    GET    /api/openapi.json                                  401  401  200  200  200  403  200  200
    POST   /api/platform/{type}/{function}                    401  401  404  403  403  403  403  403
    GET    /api/plugins                                       401  401  200  200  200  403  403  200
    POST   /api/plugins                                       401  401  422  403  403  403  403  403
    GET    /api/plugins/{name}                                401  401  200  200  200  403  403  200
    DELETE /api/plugins/{name}                                401  401  404  403  403  403  403  403
    POST   /api/plugins/{name}/approve                        401  401  409  403  403  403  403  403
    GET    /api/plugins/{name}/diff                           401  401  404  403  403  403  403  403
    GET    /api/plugins/{name}/icon                           401  401  404  404  404  403  403  404
    POST   /api/plugins/{name}/reload                         401  401  200  403  403  403  403  403
    GET    /api/registry                                      401  401  404  403  403  403  403  403
    GET    /api/resource-types                                401  401  200  200  200  403  403  200
    GET    /api/resource-types/{id}                           401  401  200  200  200  403  403  200
    GET    /api/resources                                     401  401  200  200  200  403  403  200
    POST   /api/resources                                     401  401  201  201  201  403  403  201
    GET    /api/resources/{id}                                401  401  200  200  200  403  403  404
    DELETE /api/resources/{id}                                401  401  204  204  403  403  403  404
    PATCH  /api/resources/{id}                                401  401  200  200  200  403  403  404
    PUT    /api/resources/{id}/credential                     401  401  200  200  403  403  404  404
    DELETE /api/resources/{id}/credential                     401  401  204  204  403  403  404  404
    POST   /api/resources/{id}/credential/confirm             401  401  200  200  403  403  403  404
    POST   /api/resources/{id}/credential/test                401  401  409  409  403  403  403  404
    GET    /api/resources/{id}/credentials                    401  401  200  200  403  403  404  404
    GET    /api/resources/{id}/health                         401  401  200  200  200  403  403  404
    POST   /api/resources/{id}/oauth/confirm                  401  401  409  409  403  403  403  404
    POST   /api/resources/{id}/oauth/device                   401  401  409  409  403  403  403  404
    GET    /api/resources/{id}/oauth/device/{flow_id}         401  401  404  404  403  403  403  404
    POST   /api/resources/{id}/oauth/discover                 401  401  409  409  403  403  403  404
    POST   /api/resources/{id}/oauth/refresh                  401  401  409  409  403  403  403  404
    POST   /api/resources/{id}/oauth/start                    401  401  409  409  403  403  404  404
    GET    /api/resources/{id}/tools                          401  401  200  200  200  403  403  404
    POST   /api/resources/{id}/tools/approve                  401  401  422  422  403  403  403  404
    POST   /api/resources/{id}/tools/discover                 401  401  200  200  200  403  403  404
    POST   /api/resources/{id}/tools/reject                   401  401  422  422  403  403  403  404
    GET    /api/roles                                         401  401  200  200  200  403  403  200
    POST   /api/roles                                         401  401  201  201  403  403  403  201
    GET    /api/roles/{id}                                    401  401  200  200  200  403  403  404
    DELETE /api/roles/{id}                                    401  401  204  204  403  403  403  404
    PATCH  /api/roles/{id}                                    401  401  200  200  403  403  403  404
    GET    /api/runs                                          401  401  200  200  200  403  200  200
    GET    /api/runs/{id}                                     401  401  200  200  200  403  200  404
    POST   /api/runs/{id}/cancel                              401  401  409  409  409  403  409  404
    GET    /api/runs/{id}/events                              401  401  200  200  200  403  200  404
    POST   /api/runs/{id}/pause                               401  401  409  409  409  403  403  404
    POST   /api/runs/{id}/resume                              401  401  409  409  409  403  403  404
    POST   /api/runs/{id}/retry                               401  401  202  202  202  403  403  404
    GET    /api/runs/{id}/steps                               401  401  200  200  200  403  200  404
    POST   /api/runs/{id}/steps/{step}/resolve                401  401  409  409  409  403  403  404
    GET    /api/sandboxes                                     401  401  200  200  200  403  200  200
    GET    /api/sandboxes/{id}                                401  401  200  200  200  403  200  404
    DELETE /api/sandboxes/{id}                                401  401  202  202  202  403  202  404
    GET    /api/sandboxes/{id}/commands                       401  401  200  200  200  403  403  404
    POST   /api/sandboxes/{id}/exec                           401  401  200  200  200  403  200  404
    GET    /api/schedules                                     401  401  200  200  200  403  403  200
    POST   /api/schedules                                     401  401  201  201  201  403  403  422
    POST   /api/schedules/preview                             401  401  200  200  200  403  403  200
    GET    /api/schedules/{id}                                401  401  200  200  200  403  403  404
    DELETE /api/schedules/{id}                                401  401  204  204  204  403  403  404
    PATCH  /api/schedules/{id}                                401  401  200  200  200  403  403  404
    POST   /api/schedules/{id}/fire                           401  401  409  409  409  403  403  404
    GET    /api/search                                        401  401  200  200  200  403  403  200
    GET    /api/sessions                                      401  401  200  200  200  403  200  200
    GET    /api/sessions/{id}                                 401  401  200  200  200  403  200  404
    DELETE /api/sessions/{id}                                 401  401  204  204  204  403  204  404
    GET    /api/sessions/{id}/messages                        401  401  200  200  200  403  200  404
    POST   /api/sessions/{id}/messages                        401  401  202  202  202  403  202  404
    GET    /api/stats                                         401  401  422  422  422  403  403  422
    GET    /api/subscriptions                                 401  401  200  200  200  403  403  200
    POST   /api/subscriptions                                 401  401  201  201  201  403  403  422
    GET    /api/subscriptions/{id}                            401  401  200  200  200  403  403  404
    DELETE /api/subscriptions/{id}                            401  401  204  204  204  403  403  404
    PATCH  /api/subscriptions/{id}                            401  401  200  200  200  403  403  404
    POST   /api/subscriptions/{id}/confirm                    401  401  409  409  403  403  403  404
    GET    /api/tasks                                         401  401  200  200  200  403  200  200
    GET    /api/tasks/{id}                                    401  401  200  200  200  403  200  404
    DELETE /api/tasks/{id}                                    401  401  200  200  200  403  200  404
    GET    /api/tasks/{id}/events                             401  401  200  200  200  403  200  404
    GET    /api/tasks/{id}/steps                              401  401  200  200  200  403  200  404
    GET    /api/trust                                         401  401  200  403  403  403  403  403
    POST   /api/trust                                         401  401  201  403  403  403  403  403
    DELETE /api/trust/{id}                                    401  401  204  403  403  403  403  403
    GET    /api/usage                                         401  401  200  200  200  403  403  200
    GET    /api/wakes                                         401  401  200  200  200  403  403  200
    GET    /api/webhooks                                      401  401  200  200  403  403  403  200
    POST   /api/webhooks                                      401  401  201  201  403  403  403  201
    GET    /api/webhooks/{id}                                 401  401  200  200  403  403  403  404
    DELETE /api/webhooks/{id}                                 401  401  204  204  403  403  403  404
    PATCH  /api/webhooks/{id}                                 401  401  200  200  403  403  403  404
    POST   /api/webhooks/{id}/rotate                          401  401  200  200  403  403  403  404
    GET    /api/workflows                                     401  401  200  200  200  403  403  200
    POST   /api/workflows                                     401  401  201  201  201  403  403  422
    POST   /api/workflows/validate                            401  401  200  200  200  403  403  422
    GET    /api/workflows/{id}                                401  401  200  200  200  403  403  404
    DELETE /api/workflows/{id}                                401  401  204  204  204  403  403  404
    PATCH  /api/workflows/{id}                                401  401  200  200  200  403  403  404
    GET    /api/workflows/{id}/runs                           401  401  200  200  200  403  200  404
    POST   /api/workflows/{id}/runs                           401  401  202  202  202  403  202  404
    GET    /api/workflows/{id}/triggers                       401  401  200  200  200  403  403  404
    POST   /api/workflows/{id}/triggers                       401  401  201  201  201  403  403  404
    DELETE /api/workflows/{id}/triggers/{trigger_id}          401  401  204  204  204  403  403  404
    PATCH  /api/workflows/{id}/triggers/{trigger_id}          401  401  200  200  200  403  403  404
    GET    /api/workflows/{id}/versions                       401  401  200  200  200  403  403  404
    GET    /api/workflows/{id}/versions/{version}             401  401  200  200  200  403  403  404
    GET    /api/workspaces                                    401  401  200  403  403  403  403  403
    POST   /api/workspaces                                    401  401  201  403  403  403  403  403
    GET    /api/workspaces/{id}                               401  401  200  403  403  403  403  403
    DELETE /api/workspaces/{id}                               401  401  204  403  403  403  403  403
    PATCH  /api/workspaces/{id}                               401  401  200  403  403  403  403  403
    GET    /docs                                              401  401  303  303  303  403  303  303
    GET    /healthz                                           200  200  200  200  200  200  200  200
    POST   /hooks/{id}                                        401  401  401  401  401  401  401  401
    GET    /mcp/{bot}                                         401  401  405  405  405  403  405  404
    POST   /mcp/{bot}                                         401  401  200  200  200  403  200  404
    GET    /metrics                                           401  401  200  200  200  403  403  200
    GET    /oauth/begin/{ticket}                              400  400  400  400  400  400  400  400
    POST   /oauth/begin/{ticket}                              400  400  400  400  400  400  400  400
    GET    /oauth/client.json                                 404  404  404  404  404  404  404  404
    GET    /oauth/connect/callback                            400  400  400  400  400  400  400  400
    GET    /oauth/connect/{ticket}                            400  400  400  400  400  400  400  400
    GET    /readyz                                            200  200  200  200  200  200  200  200
    POST   /v1/chat/completions                               401  401  400  400  400  403  400  404
    GET    /v1/models                                         401  401  200  200  200  403  200  200
    GET    /v1/models/{id}                                    401  401  200  200  200  403  200  404
    POST   /v1/responses                                      401  401  400  400  400  403  400  404
    GET    /v1/responses/{id}                                 401  401  404  404  404  403  404  404
    GET    /ws/agent                                          401  401  403  403  403  403  403  403
    ");
    Ok(())
}

/// Operators cannot change where a credential is sent or which permissions are granted, even on routes that they can
/// otherwise use.
#[tokio::test]
async fn an_operator_neither_grants_nor_configures() -> Result<()> {
    let fresh = Fresh::start().await?;
    let operator = &fresh.operator;
    let resource = format!("/api/resources/{}", fresh.resource().await?);
    let bare = made(operator, "/api/resources", &json!({ "resource_type": "test-echo", "name": "bare" })).await?;
    let bot = format!("/api/bots/{}", fresh.world.bot);
    let of_type = |field: &str, value: Value| json!({ "resource_type": "test-echo", "name": "new", field: value });
    let mut answers = Answers::default();
    for (method, path, body) in [
        (Method::POST, "/api/resources", of_type("config", json!({ "region": "us" }))),
        (Method::POST, "/api/resources", of_type("network", json!({ "allow_http": true }))),
        (Method::POST, "/api/resources", of_type("network", json!({ "allow_addresses": ["10.0.0.0/8"] }))),
        (Method::POST, "/api/resources", of_type("network", json!({}))),
        (Method::PATCH, &resource, json!({ "config": null })),
        (Method::PATCH, &resource, json!({ "network": null })),
        (Method::PATCH, &resource, json!({ "name": "renamed", "config": {} })),
        (Method::PATCH, &resource, json!({ "name": "renamed" })),
        (Method::DELETE, &resource, Value::Null),
        (Method::DELETE, &format!("/api/resources/{bare}"), Value::Null),
        (Method::POST, "/api/bots", json!({ "name": "boxed", "use_agent_sandbox": true })),
        (Method::POST, "/api/bots", json!({ "name": "plain", "use_agent_sandbox": false })),
        (Method::PATCH, &bot, json!({ "use_agent_sandbox": true })),
        (Method::PATCH, &bot, json!({ "use_agent_sandbox": null })),
    ] {
        let mut request = operator.request(method.clone(), path);
        if !body.is_null() {
            request = request.json(&body);
        }
        let (status, _, answer) = send(request).await?;
        answers.add(&format!("{method} {body}"), (status, answer["detail"].clone()));
    }
    assert_snapshot!(answers, @r#"
    POST {"resource_type":"test-echo","name":"new","config":{"region":"us"}}: 403 "changing the configuration, network or labels of a resource requires an admin key"
    POST {"resource_type":"test-echo","name":"new","network":{"allow_http":true}}: 403 "changing the configuration, network or labels of a resource requires an admin key"
    POST {"resource_type":"test-echo","name":"new","network":{"allow_addresses":["10.0.0.0/8"]}}: 403 "changing the configuration, network or labels of a resource requires an admin key"
    POST {"resource_type":"test-echo","name":"new","network":{}}: 201
    PATCH {"config":null}: 403 "changing the configuration, network or labels of a resource requires an admin key"
    PATCH {"network":null}: 403 "changing the configuration, network or labels of a resource requires an admin key"
    PATCH {"name":"renamed","config":{}}: 403 "changing the configuration, network or labels of a resource requires an admin key"
    PATCH {"name":"renamed"}: 200
    DELETE null: 403 "an admin key is required"
    DELETE null: 204
    POST {"name":"boxed","use_agent_sandbox":true}: 403 "an admin key is required"
    POST {"name":"plain","use_agent_sandbox":false}: 201
    PATCH {"use_agent_sandbox":true}: 403 "an admin key is required"
    PATCH {"use_agent_sandbox":null}: 403 "an admin key is required"
    "#);
    Ok(())
}
