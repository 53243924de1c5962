//! The client side: for each scenario, the suite starts a server and runs this program with its URL. The program puts the
//! server behind a resource of type `mcp`, approves its tools and calls them as a bot, all through the API.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use reqwest::header::{COOKIE, HeaderName, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Method, Response};
use serde_json::{Map, Value, json};
use support::Api;
use tokio::process::Command;

/// The maximum length of the name of a resource whose tools are from outside.
const NAME_CHARS_MAX: usize = 40;
/// The time after which a discovery is requested again that found no room.
const BUSY_RETRY: Duration = Duration::from_millis(200);
/// The number of times that the server of a scenario is asked until it answers in time.
const TRIES: u32 = 3;
/// The texts by which an answer says that the server of the scenario did not answer in time.
const LATE: [&str; 2] = ["timed out", "did not list its tools within"];
/// The text by which the error of a discovery says that the server requires a credential.
const UNAUTHENTICATED: &str = "HTTP 401";

/// One scenario. The suite sets the variables `MCP_CONFORMANCE_…`, and [`Place::complete`] the others.
#[derive(Args)]
pub(crate) struct ClientScenario {
    #[arg(long, env = "CONFORMANCE_MONSTRUM")]
    monstrum: String,
    #[arg(long, env = "CONFORMANCE_KEY", hide_env_values = true)]
    key: String,
    #[arg(long, env = "CONFORMANCE_BOT")]
    bot: String,
    #[arg(long, env = "CONFORMANCE_ROLE")]
    role: String,
    #[arg(long, env = "MCP_CONFORMANCE_SCENARIO")]
    scenario: String,
    #[arg(long, env = "MCP_CONFORMANCE_PROTOCOL_VERSION")]
    revision: String,
    /// What the scenario requires of its client, as JSON
    #[arg(long, env = "MCP_CONFORMANCE_CONTEXT")]
    context: Option<String>,
    /// The URL of the scenario's server
    url: String,
}

/// Where the scenarios take place.
pub(crate) struct Place {
    variables: [(&'static str, String); 4],
    folder: PathBuf,
}

/// Creates a bot, and a role that allows all tools.
pub(crate) async fn prepare(api: &Api, monstrum: &str) -> Result<Place> {
    let variables = [
        ("CONFORMANCE_MONSTRUM", monstrum.to_owned()),
        ("CONFORMANCE_KEY", api.key().to_owned()),
        ("CONFORMANCE_BOT", api.bot("client").await?),
        ("CONFORMANCE_ROLE", api.role("all tools", &["*"]).await?),
    ];
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    Ok(Place { variables, folder: program.parent().context("the program is in a folder")?.to_owned() })
}

impl Place {
    /// Completes the command of the suite, so that it runs the command `client` of this program.
    pub(crate) fn complete(&self, command: &mut Command) {
        // The suite splits the command at spaces, so it must not contain the path.
        command.current_dir(&self.folder).args(["--command", "./conformance client"]);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }
}

impl ClientScenario {
    pub(crate) async fn play(&self) -> Result<()> {
        let api = Api::new(&self.monstrum, &self.key)?;
        let resource = self.resource(&api).await?;
        let mut discovery = discover(&api, &resource).await?;
        if discovery["error"].as_str().is_some_and(|error| error.contains(UNAUTHENTICATED)) {
            self.authorize(&api, &resource).await?;
            discovery = discover(&api, &resource).await?;
        }
        println!("discovery: {discovery}");
        let tools = approve(&api, &resource).await?;
        for (tool, arguments) in self.calls(&tools)? {
            println!("{}", api.call(&self.bot, tool, &arguments).await?);
        }
        Ok(())
    }

    fn context(&self) -> Result<Value> {
        let context = self.context.as_deref().map(serde_json::from_str).transpose();
        Ok(context.context("the context of the scenario is not JSON")?.unwrap_or_default())
    }

    /// Creates the resource and binds it to the bot. Returns the id of the resource.
    async fn resource(&self, api: &Api) -> Result<String> {
        // Both revisions have scenarios of the same name.
        let name = format!("r{}_{}", self.revision, self.scenario).to_ascii_lowercase();
        let mut name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        name.truncate(NAME_CHARS_MAX);
        let body = json!({
            "resource_type": "mcp", "name": name.trim_end_matches('_'), "config": { "url": self.url },
            "network": { "allow_addresses": ["127.0.0.0/8"], "allow_http": true },
        });
        let made = expect(201, api.post("/api/resources", &body).await?)?;
        let resource = made["id"].as_str().context("the resource has no id")?.to_owned();
        api.bind(&self.bot, &resource, &self.role, &json!({})).await?;
        Ok(resource)
    }

    /// Authorizes Monstrum at the authorization server of the MCP server, with a person who agrees to everything.
    async fn authorize(&self, api: &Api, resource: &str) -> Result<()> {
        let path = |step: &str| format!("/api/resources/{resource}/oauth/{step}");
        let (status, proposal) = in_time(api, &path("discover")).await?;
        ensure!(status == 200, "the authorization server could not be discovered: {status} {proposal}");
        let mut confirmation = json!({ "digest": proposal["digest"] });
        let context = self.context()?;
        for member in ["client_id", "client_secret"] {
            if let Some(value) = context.get(member) {
                confirmation[member] = value.clone();
            }
        }
        expect(200, api.post(&path("confirm"), &confirmation).await?)?;
        let started = expect(200, api.post(&path("start"), &json!({})).await?)?;
        let begin = started["authorization_url"].as_str().context("the authorization has no URL")?;
        let browser = reqwest::Client::builder().no_proxy().redirect(Policy::none()).tls_certs_only([]).build()?;
        let begun = browser.get(begin).send().await?;
        let cookie = header(&begun, &SET_COOKIE)?.split(';').next().unwrap_or_default().to_owned();
        let agreed = browser.get(header(&begun, &LOCATION)?).send().await?;
        let ended = browser.request(Method::GET, header(&agreed, &LOCATION)?).header(COOKIE, cookie).send().await?;
        ensure!(ended.status().is_success(), "the authorization failed: {}", ended.text().await?);
        Ok(())
    }

    /// Returns the calls that the scenario wants: those of its context, or one of each tool.
    fn calls<'a>(&self, tools: &'a [Value]) -> Result<Vec<(&'a str, Value)>> {
        let name = |tool: &'a Value| tool["name"].as_str().context("a tool has no name");
        let context = self.context()?;
        let Some(wanted) = context.get("toolCalls").and_then(Value::as_array) else {
            return tools
                .iter()
                .map(|tool| Ok((name(tool)?, arguments(&tool["definition"]["inputSchema"], tools))))
                .collect();
        };
        let call = |call: &Value| {
            let tool = tools.iter().find(|tool| tool["original_name"] == call["name"]);
            let mut arguments = call["arguments"].as_object().cloned().unwrap_or_default();
            // The schemas of the tools do not permit null, which stands for an argument that is left out.
            arguments.retain(|_, value| !value.is_null());
            Ok((name(tool.with_context(|| format!("the tool of {call} is not approved"))?)?, Value::Object(arguments)))
        };
        wanted.iter().map(call).collect()
    }
}

/// Returns arguments for the required parameters of a schema.
fn arguments(schema: &Value, tools: &[Value]) -> Value {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let value = |name: &str| match schema["properties"][name]["type"].as_str() {
        Some("number" | "integer") => json!(5),
        Some("boolean") => json!(true),
        // A scenario compares the schema of another tool with what its client has received.
        Some("object") => tools
            .iter()
            .map(|tool| &tool["definition"]["inputSchema"])
            .find(|own| *own != schema)
            .cloned()
            .unwrap_or_else(|| json!({})),
        _ => json!("text"),
    };
    Value::Object(required.map(|name| (name.to_owned(), value(name))).collect::<Map<_, _>>())
}

/// Makes a request for which Monstrum asks the server of the scenario. The request is repeated if that server does not
/// answer within Monstrum's time limit, because it starts on a machine that runs many scenarios and other tests.
async fn in_time(api: &Api, path: &str) -> Result<(u16, Value)> {
    for _ in 1..TRIES {
        let answer = api.post(path, &json!({})).await?;
        let text = answer.1.to_string();
        if !LATE.iter().any(|late| text.contains(late)) {
            return Ok(answer);
        }
    }
    api.post(path, &json!({})).await
}

async fn discover(api: &Api, resource: &str) -> Result<Value> {
    loop {
        // The suite runs many scenarios at once, and the discoveries of a workspace are limited.
        match in_time(api, &format!("/api/resources/{resource}/tools/discover")).await? {
            (429, _) => tokio::time::sleep(BUSY_RETRY).await,
            answer => return Ok(expect(200, answer)?["discovery"].take()),
        }
    }
}

/// Approves all tools that can be approved. Returns the approved tools.
async fn approve(api: &Api, resource: &str) -> Result<Vec<Value>> {
    let path = format!("/api/resources/{resource}/tools");
    let tools = items(api.get(&path).await?)?;
    println!("tools: {}", json!(tools));
    let pending = tools.iter().filter(|tool| tool["status"] == "pending");
    let decision = |tool: &Value| json!({ "original_name": tool["original_name"], "digest": tool["digest"] });
    let decisions: Vec<Value> = pending.map(decision).collect();
    if decisions.is_empty() {
        return Ok(Vec::new());
    }
    let tools = items(api.post(&format!("{path}/approve"), &json!({ "tools": decisions })).await?)?;
    Ok(tools.into_iter().filter(|tool| tool["status"] == "approved").collect())
}

fn items(answer: (u16, Value)) -> Result<Vec<Value>> {
    match expect(200, answer)?["items"].take() {
        Value::Array(items) => Ok(items),
        other => bail!("expected a list, found {other}"),
    }
}

fn expect(wanted: u16, (status, body): (u16, Value)) -> Result<Value> {
    ensure!(status == wanted, "expected {wanted}, the server answered {status}: {body}");
    Ok(body)
}

fn header(response: &Response, name: &HeaderName) -> Result<String> {
    let value = response.headers().get(name).with_context(|| format!("{} sent no {name}", response.url()))?;
    Ok(value.to_str()?.to_owned())
}
