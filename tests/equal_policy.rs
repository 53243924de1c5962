//! `monstrum export` and `monstrum apply` carry the whole policy: an empty server to which an export is applied answers
//! the same questions with the same decisions, rules and reasons. `cargo xtask test --long` tests it with 200 bots and
//! 10 000 questions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use support::{Api, Random, Server};

const PLUGINS: [&str; 2] = ["github", "test-echo"];
/// The seed of the configuration and of the questions.
const SEED: u64 = 17;
const FILE: &str = "configuration.yaml";

const REPOS: [&str; 6] = ["acme/site", "acme/shop", "acme/shop-2", "beta/site", "other/secret", "acme/größe"];
const REPO_PATTERNS: [&[&str]; 5] =
    [&["acme/*"], &["acme/s?op*", "beta/*"], &["acme/site"], &["*/site", "other/*"], &["acme/[a-s]*"]];
const OPERATIONS: [&[&str]; 6] = [&["*"], &["*"], &["*.read", "*.write"], &["echo.*", "issue.*"], &["*.read"], &[]];
const GATED: [&[&str]; 4] = [&["*"], &["*.write"], &["echo.*", "bot.call"], &["issue.*", "fetch.run"]];

#[tokio::test(flavor = "multi_thread")]
async fn of_20_bots_on_300_questions() -> Result<()> {
    holds(20, 300).await
}

/// Fills a server, applies its export to an empty server, and compares the answers of both.
pub(crate) async fn holds(bots: usize, questions: usize) -> Result<()> {
    let (first, second) = tokio::try_join!(Server::start(&PLUGINS), Server::start(&PLUGINS))?;
    let (here, there) = (first.api()?, second.api()?);
    let bound = fill(&here, bots).await?;
    let exported = monstrum(&first, &["export"]).await?;
    fs::write(second.home().join(FILE), &exported)?;
    monstrum(&second, &["apply", FILE, "--yes"]).await?;
    ensure!(monstrum(&second, &["export"]).await? == exported, "the second server exports another configuration");

    let (ids_here, ids_there) = (Ids::of(&here).await?, Ids::of(&there).await?);
    let mut random = Random::new(SEED, 2);
    let (mut decisions, mut rules) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
    for number in 0..questions {
        let question = Question::new(&mut random, &bound);
        let (one, other) = tokio::try_join!(question.ask(&here, &ids_here), question.ask(&there, &ids_there))?;
        ensure!(one == other, "question {number}, {question:?}:\n{one}\n{other}");
        *decisions.entry(text(&one["decision"])).or_default() += 1;
        rules.insert(text(&one["rule"]));
    }
    for decision in ["allow", "ask", "deny"] {
        let count = decisions.get(decision).copied().unwrap_or_default();
        ensure!(count * 100 >= questions, "the questions do not tell policies apart: {decisions:?}");
    }
    ensure!(rules.len() >= 6, "the questions do not reach different rules: {rules:?}");
    Ok(())
}

/// Runs a command that must succeed, and returns its standard output.
async fn monstrum(server: &Server, arguments: &[&str]) -> Result<String> {
    let output = server.command(arguments).await?;
    ensure!(output.status.success(), "monstrum {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// A resource of the filled server: its name and its type.
#[derive(Clone, Debug)]
struct Resource {
    name: String,
    kind: &'static str,
}

/// A bot of the filled server, with the resources that it is bound to.
struct Bound {
    bot: String,
    resources: Vec<Resource>,
}

/// Creates resources, roles and bots. The bots differ in their bindings, and the bindings in every field.
async fn fill(api: &Api, bots: usize) -> Result<Vec<Bound>> {
    let mut random = Random::new(SEED, 1);
    let mut roles = Vec::new();
    for number in 0..8 + bots / 20 {
        let mut role = json!({ "name": format!("role {number}"), "allowed_operations": pick(&mut random, &OPERATIONS),
            "scope_constraints": repos(&mut random), "gates": gates(&mut random) });
        if one_in(&mut random, 6) {
            role["allowed_tools"] = json!(["test_echo_[orw]*", "github_*", "bot_*"]);
        }
        roles.push(created(api, "/api/roles", &role).await?);
    }
    let resources = resources(api, &mut random, bots).await?;
    let mut filled = Vec::new();
    for number in 0..bots {
        let name = format!("bot {number}: \"quoted\"");
        let bot = json!({ "name": name, "description": format!("# {number}\n- no: yes"),
            "system_prompt": "Be brief.\n\nBe kind: \"always\".\n", "model": format!("m-{}", number % 3),
            "use_agent_sandbox": number % 4 == 0, "monthly_token_budget": 1000 + number, "gates": gates(&mut random) });
        let bot = created(api, "/api/bots", &bot).await?;
        let mut bound = BTreeMap::new();
        for _ in 0..=random.below(4) {
            let index = random.below(resources.len());
            let (id, resource) = &resources[index];
            if bound.insert(index, resource.clone()).is_none() {
                let role = pick(&mut random, &roles).clone();
                let binding = binding(&mut random, (id, resource.kind), &role);
                created(api, &format!("/api/bots/{bot}/resources"), &binding).await?;
            }
        }
        filled.push(Bound { bot: name, resources: bound.into_values().collect() });
    }
    Ok(filled)
}

/// Creates resources of three types, and returns each with its id.
async fn resources(api: &Api, random: &mut Random, bots: usize) -> Result<Vec<(String, Resource)>> {
    created(api, "/api/bots", &json!({ "name": "colleague" })).await?;
    let mut resources = Vec::new();
    for (kind, count) in [("test-echo", 4 + bots / 10), ("github", 3 + bots / 20), ("bot", 2)] {
        for number in 0..count {
            let name = format!("{kind} {number}");
            let config = match kind {
                "test-echo" => json!({ "api_base": "https://echo.example", "region": pick(random, &["eu", "us"]) }),
                "github" => json!({ "api_base": "https://github.example" }),
                _ => json!({ "bot": "colleague" }),
            };
            let labels = if one_in(random, 3) { json!(["private"]) } else { json!([]) };
            let body = json!({ "resource_type": kind, "name": name, "config": config, "labels": labels });
            resources.push((created(api, "/api/resources", &body).await?, Resource { name, kind }));
        }
    }
    Ok(resources)
}

/// Returns a binding of the resource with this id and type.
fn binding(random: &mut Random, (resource, kind): (&str, &str), role: &str) -> Value {
    let mut scopes = if kind == "bot" { Map::new() } else { repos(random) };
    let dimensions: &[(&str, &[&str])] = match kind {
        "test-echo" => &[("paths", &["docs/*"]), ("labels", &["bug", "p*"]), ("kinds", &["page"])],
        "bot" => &[("tools", &["test_echo_*"])],
        _ => &[],
    };
    for (dimension, entries) in dimensions {
        if one_in(random, 8) {
            scopes.insert((*dimension).to_owned(), json!(entries));
        }
    }
    let mut binding = json!({ "resource_id": resource, "scope_constraints": scopes,
        "gates": if kind == "bot" { json!([]) } else { gates(random) }, "enabled": !one_in(random, 10),
        "calls_per_minute": 1 + random.below(1000), "limits": { "timeout_s": 1 + random.below(60) } });
    // A binding has a role, permissions, or both.
    let (has_role, has_permissions) = *pick(random, &[(true, false), (true, false), (false, true), (true, true)]);
    if has_role {
        binding["role_id"] = json!(role);
    }
    if has_permissions {
        binding["permissions"] = json!({ "allowed_operations": pick(random, &OPERATIONS) });
    }
    if kind == "bot" {
        binding["delegate"] = json!({ "allowed_tools": ["test_*"], "scope_constraints": { "repos": ["acme/*"] }, "gates": gates(random) });
    }
    if one_in(random, 5) {
        binding["allow_calls"] = json!(["github_*"]);
        binding["expires_at"] = json!("2100-01-02T03:04:05.678Z");
    }
    binding
}

/// Returns scopes that restrict the repositories, or no scopes.
fn repos(random: &mut Random) -> Map<String, Value> {
    let patterns = *pick(random, &REPO_PATTERNS);
    if one_in(random, 3) { Map::from_iter([("repos".to_owned(), json!(patterns))]) } else { Map::new() }
}

/// Returns one gate or none.
fn gates(random: &mut Random) -> Value {
    let mut gate =
        json!({ "operations": pick(random, &GATED), "action": pick(random, &["ask", "ask", "ask", "deny"]) });
    match random.below(5) {
        0 => gate["when"] = json!({ "repos": pick(random, &REPO_PATTERNS) }),
        1 => gate["unless"] = json!({ "repos": pick(random, &REPO_PATTERNS) }),
        2 => gate["after"] = json!(["private"]),
        3 => gate["reason"] = json!("a person decides: \"yes\" or \"no\""),
        _ => {}
    }
    if gate["action"] == "ask" && one_in(random, 2) {
        gate["approvers"] = json!(["admin", "operator"]);
        gate["expires_s"] = json!(600);
    }
    if one_in(random, 2) { json!([gate]) } else { json!([]) }
}

/// The ids of the bots and resources of a server, by name.
struct Ids {
    bots: HashMap<String, String>,
    resources: HashMap<String, String>,
}

impl Ids {
    async fn of(api: &Api) -> Result<Ids> {
        Ok(Ids { bots: ids(api, "/api/bots").await?, resources: ids(api, "/api/resources").await? })
    }
}

async fn ids(api: &Api, path: &str) -> Result<HashMap<String, String>> {
    let (status, list) = api.get(&format!("{path}?limit=1000")).await?;
    ensure!(status == 200, "{path}: {status} {list}");
    let items = list["items"].as_array().with_context(|| format!("{path} is no list: {list}"))?;
    Ok(items.iter().map(|item| (text(&item["name"]), text(&item["id"]))).collect())
}

/// A question: whether a bot may call a tool with these parameters.
#[derive(Debug)]
struct Question {
    bot: String,
    resource: Option<String>,
    tool: &'static str,
    params: Value,
}

impl Question {
    /// Most questions name a resource that the bot is bound to and a tool of its type.
    fn new(random: &mut Random, bound: &[Bound]) -> Question {
        let own = pick(random, bound);
        let of = if one_in(random, 20) { pick(random, bound) } else { own };
        let resource = pick(random, &of.resources);
        let tool = match resource.kind {
            _ if one_in(random, 40) => "absent",
            "test-echo" => pick(
                random,
                &["test_echo_run", "test_echo_again", "test_echo_write", "test_echo_open", "test_echo_fetch"],
            ),
            "github" => pick(random, &["github_list_issues", "github_create_issue", "github_get_repo"]),
            _ => pick(random, &["bot_list_tools", "bot_call_tool"]),
        };
        let named = (!one_in(random, 8)).then(|| resource.name.clone());
        Question { bot: own.bot.clone(), resource: named, tool, params: params(random, tool) }
    }

    async fn ask(&self, api: &Api, ids: &Ids) -> Result<Value> {
        let Question { bot, resource, tool, params } = self;
        let bot = ids.bots.get(bot).with_context(|| format!("no bot {bot}"))?;
        let mut body = json!({ "params": params });
        if let Some(name) = resource {
            body["resource_id"] = json!(ids.resources.get(name).with_context(|| format!("no resource {name}"))?);
        }
        let (status, answer) = api.post(&format!("/api/bots/{bot}/tools/{tool}/check"), &body).await?;
        ensure!(status == 200, "{self:?}: {status} {answer}");
        // The suggested changes name their objects by id.
        let compared = ["decision", "rule", "message", "reason", "smallest_change", "gates"];
        Ok(compared.iter().map(|field| ((*field).to_owned(), answer[*field].clone())).collect::<Map<_, _>>().into())
    }
}

/// Returns parameters of a tool. A few lack a required field or have a wrong type.
fn params(random: &mut Random, tool: &str) -> Value {
    let mut params = Map::new();
    let mut set = |field: &str, value: Value| params.insert(field.to_owned(), value);
    match tool {
        "test_echo_fetch" => drop(set("path", json!("/"))),
        "bot_call_tool" => drop(set("tool", json!(pick(random, &["test_echo_run", "github_get_repo"])))),
        "bot_list_tools" | "absent" => {}
        _ => {
            if !one_in(random, 12) {
                set("repo", json!(pick(random, &REPOS)));
            }
            if one_in(random, 30) {
                set("repo", json!(7));
            }
            if tool == "github_create_issue" {
                set("title", json!("Slow"));
            }
        }
    }
    if ["test_echo_run", "test_echo_again", "test_echo_write"].contains(&tool) {
        for (field, values) in [
            ("file", [json!("docs/a.md"), json!("docs/../secret")]),
            ("labels", [json!(["bug", "p1"]), json!(["bug", "other"])]),
            ("kind", [json!("page"), json!("post")]),
        ] {
            if one_in(random, 2) {
                set(field, pick(random, &values).clone());
            }
        }
    }
    Value::Object(params)
}

fn pick<'a, T>(random: &mut Random, items: &'a [T]) -> &'a T {
    &items[random.below(items.len())]
}

fn one_in(random: &mut Random, count: usize) -> bool {
    random.below(count) == 0
}

/// Creates an object and returns its id.
async fn created(api: &Api, path: &str, body: &Value) -> Result<String> {
    let (status, answer) = api.post(path, body).await?;
    ensure!(status == 201, "POST {path} {body}: {status} {answer}");
    Ok(text(&answer["id"]))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
