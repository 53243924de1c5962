//! A bot: what it can do, what it did, what was denied, its budget and its settings.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Failure, LINK_BYTES_MAX, Versioned, segment, with_query};
use crate::gateway::console::gates::{self, GateForm};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::{Call, Calls};
use crate::gateway::console::pages::deletion::{ConfirmPage, delete_named};
use crate::gateway::console::pages::stats::{self, Counts, Denial};
use crate::gateway::console::schema::{self, Input};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;
use crate::gateway::console::why::{self, Check};
use crate::gateway::console::words::Words;

/// The head of each page of a bot.
#[derive(Deserialize)]
pub(in crate::gateway::console) struct Bot {
    pub id: String,
    pub name: Text,
    pub description: Text,
    pub system_prompt: Text,
    pub model: Option<Text>,
    pub monthly_token_budget: Option<u64>,
    pub use_agent_sandbox: bool,
    gates: Value,
    /// The calls of 24 hours, on the pages with tabs. Absent if they could not be counted.
    #[serde(skip)]
    pub counts: Option<Counts>,
    #[serde(skip)]
    pub version: String,
    /// The path of the page of the bot.
    #[serde(skip)]
    pub base: String,
}

impl Bot {
    /// Returns the path of the list of this bot's denied calls with the same status and rule.
    fn denied_calls(&self, frame: &Frame, denial: &Denial) -> String {
        let filters = [("bot_id", self.id.as_str()), ("status", denial.status), ("rule", denial.rule.raw())];
        with_query(&frame.to("activity"), &filters)
    }

    /// Returns the path to which the settings are sent.
    fn settings_action(&self) -> String {
        format!("{}/settings", self.base)
    }
}

/// Reads a bot.
pub(in crate::gateway::console) async fn read(visit: &Visit, id: &str) -> Result<Bot, Failure> {
    let Versioned { value, version } = visit.client.get_versioned::<Bot>(&format!("/api/bots/{}", segment(id))).await?;
    let base = visit.to(&format!("bots/{}", segment(&value.id)));
    Ok(Bot { version, base, ..value })
}

/// Reads a bot with the counts that the tabs of its pages show.
pub(in crate::gateway::console) async fn read_head(visit: &Visit, id: &str) -> Result<Bot, Failure> {
    let (bot, counts) = tokio::join!(read(visit, id), stats::of_bot(visit, id));
    Ok(Bot { counts: counts.ok(), ..bot? })
}

/// A tool that a bot may see or that a rule hides from it.
#[derive(Deserialize)]
struct Access {
    tool: Text,
    operation: Text,
    resource: Named,
    binding_id: String,
    role: Option<Named>,
    #[serde(default)]
    switch: Option<String>,
    visible: bool,
    rule: Option<Text>,
    #[serde(default)]
    asks: Option<bool>,
    #[serde(default)]
    scopes: Vec<Scope>,
}

#[derive(Deserialize)]
struct Named {
    id: String,
    name: Text,
}

#[derive(Deserialize)]
struct Scope {
    dimension: Text,
    #[serde(default)]
    entries: Vec<Text>,
}

impl Scope {
    fn listed(&self) -> String {
        self.entries.iter().map(Text::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl Access {
    fn asks(&self) -> bool {
        self.asks.unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct AccessList {
    items: Vec<Access>,
}

/// A resource with the tools that the bot has through it.
struct Group {
    resource: Named,
    binding_id: String,
    role: Option<Text>,
    /// Whether a switch of the bot grants the tools. The binding and the resource then have no page.
    is_of_switch: bool,
    tools: Vec<Access>,
}

/// What a person asks: may the bot make this call?
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Ask {
    #[serde(default)]
    tool: String,
    /// The parameters as JSON.
    #[serde(default)]
    params: String,
    #[serde(default)]
    hidden: String,
}

/// The answer to a question, with the change that would allow the call.
pub(in crate::gateway::console) struct Why {
    pub tool: Text,
    pub params: Text,
    pub check: Check,
    pub sentences: Vec<String>,
    /// The path of the page that shows and makes the change, if there is one and the key may make it.
    pub change: Option<String>,
    pub may_change: bool,
    /// Whether the question is about a call that was made before.
    pub is_again: bool,
}

#[derive(Template)]
#[template(path = "console/bot_can.html")]
struct CanPage {
    frame: Frame,
    bot: Bot,
    tab: &'static str,
    groups: Vec<Group>,
    hidden: usize,
    shows_hidden: bool,
    tools: Vec<Text>,
    asked: Text,
    inputs: Vec<Input>,
    why: Option<Why>,
    may_bind: bool,
}

/// Shows what a bot can do, and answers whether it may make a call.
pub(in crate::gateway::console) async fn can(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(ask): Query<Ask>,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Page {
    let path = format!("/api/bots/{}/access", segment(&id));
    let (bot, access) = tokio::join!(read_head(&visit, &id), visit.client.get::<AccessList>(&path));
    let (bot, access) = (bot?, access?);
    let frame = visit.frame("bots", &bot.name.to_string()).await;
    let hidden = access.items.iter().filter(|item| !item.visible).count();
    let mut tools: Vec<Text> = access.items.iter().map(|item| item.tool.clone()).collect();
    tools.sort();
    tools.dedup();
    let shows_hidden = !ask.hidden.is_empty();
    let (mut inputs, mut why) = (Vec::new(), None);
    if !ask.tool.is_empty() {
        let schema = tool(&visit, &id, &ask.tool).await?.map(|tool| tool.input_schema).unwrap_or(Value::Null);
        let given = params(&schema, &ask.params, &pairs);
        inputs = given.0;
        if let Some(params) = given.1 {
            why = Some(ask_why(&visit, &bot, &ask.tool, &params).await?);
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    for item in access.items.into_iter().filter(|item| item.visible || shows_hidden) {
        match groups.iter_mut().find(|group| group.binding_id == item.binding_id) {
            Some(group) => group.tools.push(item),
            None => {
                let resource = Named { id: item.resource.id.clone(), name: item.resource.name.clone() };
                let role = item.role.as_ref().map(|role| role.name.clone());
                let (binding_id, is_of_switch) = (item.binding_id.clone(), item.switch.is_some());
                groups.push(Group { resource, binding_id, role, is_of_switch, tools: vec![item] });
            }
        }
    }
    let asked = ask.tool.as_str().into();
    let may_bind = visit.may("bindings_create");
    let page = CanPage { frame, bot, tab: "can", groups, hidden, shows_hidden, tools, asked, inputs, why, may_bind };
    Ok(page::render(&page))
}

/// A tool as the list of a bot's tools describes it.
#[derive(Deserialize)]
pub(in crate::gateway::console) struct Tool {
    pub name: Text,
    pub description: Text,
    pub input_schema: Value,
    pub effect: String,
    pub operation: Text,
}

/// Returns a tool that a bot sees, or `None` for a tool that it does not see.
pub(in crate::gateway::console) async fn tool(visit: &Visit, bot: &str, name: &str) -> Result<Option<Tool>, Failure> {
    #[derive(Deserialize)]
    struct Tools {
        items: Vec<Tool>,
    }
    let tools = visit.client.get::<Tools>(&format!("/api/bots/{}/tools", segment(bot))).await?;
    Ok(tools.items.into_iter().find(|tool| tool.name.raw() == name))
}

/// Reads the parameters of a call from a query: from `params` as JSON, or from the fields of the form. Without either,
/// the form has not been sent yet.
fn params(schema: &Value, json: &str, pairs: &[(String, String)]) -> (Vec<Input>, Option<Map<String, Value>>) {
    if let Ok(Value::Object(params)) = serde_json::from_str::<Value>(json) {
        return (schema::of_schema(schema, Some(&params)), Some(params));
    }
    let mut inputs = schema::of_schema(schema, None);
    let is_asked = inputs.is_empty() || pairs.iter().any(|(name, _)| name.starts_with(schema::PREFIX));
    if !is_asked {
        return (inputs, None);
    }
    let fields = pairs.iter().cloned().collect();
    let values = schema::read(&mut inputs, &fields).ok();
    (inputs, values)
}

/// The number of characters that a page shows of parameters that are too long for a link.
const PARAMS_CHARS_MAX: usize = 1_000;

/// Asks the API whether a bot may make a call.
pub(in crate::gateway::console) async fn ask_why(
    visit: &Visit,
    bot: &Bot,
    tool: &str,
    params: &Map<String, Value>,
) -> Result<Why, Failure> {
    let path = format!("/api/bots/{}/tools/{}/check", segment(&bot.id), segment(tool));
    let check: Check = visit.client.send(Method::POST, &path, &json!({"params": params}), Default::default()).await?;
    let params = Value::Object(params.clone()).to_string();
    let may_change = visit.may("bindings_update");
    let change = (!check.changes.is_empty())
        .then(|| with_query(&format!("{}/change", bot.base), &[("tool", tool), ("params", &params)]))
        .filter(|link| link.len() <= LINK_BYTES_MAX);
    let sentences = check.sentences(visit.words());
    // The page shows only the start of parameters that are too long for a link.
    let is_long = params.len() > LINK_BYTES_MAX;
    let params = Text::from(params);
    let params = if is_long { params.start(PARAMS_CHARS_MAX) } else { params };
    Ok(Why { tool: tool.into(), params, check, sentences, change, may_change, is_again: false })
}

#[derive(Template)]
#[template(path = "console/bot_change.html")]
struct ChangePage {
    frame: Frame,
    bot: Bot,
    why: Why,
    edits: Vec<why::Edit>,
    digest: String,
    action: String,
    back: String,
}

/// Shows the change that would allow a call: each object before and after, and the bots that it reaches.
pub(in crate::gateway::console) async fn change(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(ask): Query<Ask>,
) -> Page {
    let bot = read(&visit, &id).await?;
    show_change(&visit, bot, &ask, StatusCode::OK).await
}

async fn show_change(visit: &Visit, bot: Bot, ask: &Ask, status: StatusCode) -> Page {
    let params = object(&ask.params);
    // This is the page that the link of the change leads to.
    let why = Why { change: None, ..ask_why(visit, &bot, &ask.tool, &params).await? };
    let edits = why::edits(&visit.client, &bot.id, &why.check.changes).await?;
    let frame = visit.frame("bots", visit.words().text("why.change_title")).await;
    let digest = why::digest(&edits);
    let action = format!("{}/change", bot.base);
    let back = with_query(&bot.base, &[("tool", &ask.tool), ("params", &ask.params)]);
    Ok(page::render_as(status, &ChangePage { frame, bot, why, edits, digest, action, back }))
}

fn object(json: &str) -> Map<String, Value> {
    match serde_json::from_str(json) {
        Ok(Value::Object(object)) => object,
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Makes the change that the page showed, and asks again.
pub(in crate::gateway::console) async fn make_change(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let bot = read(&visit, &id).await?;
    let fields = visit.fields();
    let (tool, params) = (fields.value("tool").to_owned(), fields.value("params").to_owned());
    let ask = Ask { tool, params, hidden: String::new() };
    let why = ask_why(&visit, &bot, &ask.tool, &object(&ask.params)).await?;
    let edits = why::edits(&visit.client, &bot.id, &why.check.changes).await?;
    if why::digest(&edits) != fields.value("digest") {
        // Another request has changed an object since the page was shown. The page shows the change as it is now.
        return show_change(&visit, bot, &ask, StatusCode::CONFLICT).await;
    }
    let asked = [("tool", ask.tool.as_str()), ("params", ask.params.as_str())];
    match why::save(&visit.client, &edits).await {
        Ok(()) => Ok(visit.done(visit.words().text("why.changed").to_owned(), &with_query(&bot.base, &asked)).await),
        Err(unsaved) if unsaved.saved.is_empty() => Err(unsaved.failure),
        // The page of the change shows the objects as they are now, and what is left to change.
        Err(unsaved) => {
            let rest = with_query(&format!("{}/change", bot.base), &asked);
            Ok(visit.refused(partly(visit.words(), &unsaved), &rest).await)
        }
    }
}

/// Returns what was saved of a change and what was not, in words.
fn partly(words: &Words, unsaved: &why::Unsaved<'_>) -> String {
    let saved = unsaved.saved.iter().map(|edit| edit.named(words)).collect::<Vec<_>>().join(", ");
    let reason = match unsaved.failure.refusal() {
        Some(refusal) if refusal.status == 412 => words.text("error.changed.title").to_owned(),
        Some(refusal) => Text::from(refusal.detail.as_str()).to_string(),
        None => words.text("error.no_answer.text").to_owned(),
    };
    words.filled("why.partly", &[&saved, &unsaved.refused.named(words), &reason])
}

#[derive(Template)]
#[template(path = "console/bot_did.html")]
struct DidPage {
    frame: Frame,
    bot: Bot,
    tab: &'static str,
    calls: Vec<Call>,
    next: Option<String>,
}

/// Shows the calls of a bot.
pub(in crate::gateway::console) async fn did(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(query): Query<super::bots::ListQuery>,
) -> Page {
    let path = with_query("/api/audit", &[("bot_id", &id), ("limit", "50"), ("cursor", &query.cursor)]);
    let (bot, calls) = tokio::join!(read_head(&visit, &id), visit.client.get::<Calls>(&path));
    let (bot, calls) = (bot?, calls?);
    let frame = visit.frame("bots", &bot.name.to_string()).await;
    let next = calls.next_cursor.map(|cursor| with_query(&format!("{}/did", bot.base), &[("cursor", &cursor)]));
    Ok(page::render(&DidPage { frame, bot, tab: "did", calls: calls.items, next }))
}

#[derive(Template)]
#[template(path = "console/bot_denied.html")]
struct DeniedPage {
    frame: Frame,
    bot: Bot,
    tab: &'static str,
    denials: Vec<Denial>,
    calls: Vec<Call>,
}

/// Shows the denied calls of a bot, grouped by their reason.
pub(in crate::gateway::console) async fn denied(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let latest = |status: &'static str| {
        let path = with_query("/api/audit", &[("bot_id", &id), ("status", status), ("limit", "25")]);
        let client = visit.client.clone();
        async move { client.get::<Calls>(&path).await }
    };
    let (bot, denials, by_scope, by_permission) = tokio::join!(
        read_head(&visit, &id),
        stats::denials(&visit, &id),
        latest("scope_violation"),
        latest("permission_denied"),
    );
    let bot = bot?;
    let mut calls = by_scope?.items;
    calls.extend(by_permission?.items);
    calls.sort_by_key(|call| std::cmp::Reverse(call.started_at));
    let frame = visit.frame("bots", &bot.name.to_string()).await;
    Ok(page::render(&DeniedPage { frame, bot, tab: "denied", denials: denials.unwrap_or_default(), calls }))
}

#[derive(Template)]
#[template(path = "console/bot_budget.html")]
struct BudgetPage {
    frame: Frame,
    bot: Bot,
    tab: &'static str,
    months: Vec<Month>,
    /// The path of the form that changes the budget, for keys that may change it.
    change: Option<String>,
}

#[derive(Deserialize)]
struct Month {
    month: Text,
    calls: u64,
    tokens: u64,
    credits_millionths: u64,
}

impl Month {
    fn credits(&self) -> String {
        format!("{}.{:06}", self.credits_millionths / 1_000_000, self.credits_millionths % 1_000_000)
    }

    /// Returns the used part of the budget in percent, at most 100.
    fn percent(&self, budget: &u64) -> u64 {
        (self.tokens.saturating_mul(100) / (*budget).max(1)).min(100)
    }
}

/// Shows what a bot used of its budget.
pub(in crate::gateway::console) async fn budget(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Usage {
        items: Vec<Month>,
    }
    let path = format!("/api/bots/{}/usage", segment(&id));
    let (bot, usage) = tokio::join!(read_head(&visit, &id), visit.client.get::<Usage>(&path));
    let bot = bot?;
    let frame = visit.frame("bots", &bot.name.to_string()).await;
    let change = visit.may("budgets_set").then(|| {
        let tokens = bot.monthly_token_budget.map(|budget| budget.to_string()).unwrap_or_default();
        let fields = [("subject", "bot"), ("bot_id", bot.id.as_str()), ("monthly_tokens", tokens.as_str())];
        with_query(&visit.to("budgets/change"), &fields)
    });
    Ok(page::render(&BudgetPage { frame, bot, tab: "budget", months: usage?.items, change }))
}

#[derive(Template)]
#[template(path = "console/bot_settings.html")]
struct SettingsPage {
    frame: Frame,
    bot: Bot,
    tab: &'static str,
    /// The budget, as it was typed or is saved.
    budget: Text,
    errors: Vec<(Text, Text)>,
    gates: GateForm,
    may_change: bool,
    /// Whether the key may change permissions: the gates, and the use of the agent sandbox.
    may_permit: bool,
}

/// Shows the settings of a bot.
pub(in crate::gateway::console) async fn settings(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let bot = read_head(&visit, &id).await?;
    let gates = GateForm::of(&bot.gates);
    show_settings(&visit, bot, gates, Vec::new(), StatusCode::OK).await
}

async fn show_settings(
    visit: &Visit,
    bot: Bot,
    gates: GateForm,
    errors: Vec<(Text, Text)>,
    status: StatusCode,
) -> Page {
    let frame = visit.frame("bots", &bot.name.to_string()).await;
    let may_change = visit.may("bots_update");
    let may_permit = visit.may("bindings_update");
    let gates = gates.opened(&errors);
    let budget = if visit.browser.is_form {
        visit.fields().value("monthly_token_budget").into()
    } else {
        bot.monthly_token_budget.map(|budget| budget.to_string()).unwrap_or_default().into()
    };
    Ok(page::render_as(
        status,
        &SettingsPage { frame, bot, tab: "settings", budget, errors, gates, may_change, may_permit },
    ))
}

/// Saves the settings of a bot.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let mut bot = read_head(&visit, &id).await?;
    let fields = visit.fields();
    // What was typed stays on the page, which still changes only the version that its person saw.
    let current = std::mem::replace(&mut bot.version, visit.shown_version());
    let optional = |name: &str| Some(fields.value(name)).filter(|value| !value.is_empty());
    (bot.name, bot.description) = (fields.value("name").into(), fields.value("description").into());
    bot.system_prompt = fields.value("system_prompt").replace("\r\n", "\n").into();
    bot.model = optional("model").map(Text::from);
    // Only an admin may send this field. The pages of other keys do not have it.
    let has_sandbox_field = visit.may("bindings_update") || fields.has("use_agent_sandbox");
    if has_sandbox_field {
        bot.use_agent_sandbox = fields.has("use_agent_sandbox");
    }
    let budget = optional("monthly_token_budget").map(|text| text.trim().parse::<u64>());
    let mut unread = Vec::new();
    let budget = budget.transpose().unwrap_or_else(|_| {
        unread.push(("monthly_token_budget".into(), "form.not_integer".into()));
        None
    });
    let gates = gates::read(fields, &mut unread);
    if !unread.is_empty() {
        let told = |(place, key): (Text, Text)| (place, Text::from(visit.words().text(key.raw())));
        let errors = unread.into_iter().map(told).collect();
        let gates = if gates.is_some() { GateForm::typed(fields) } else { GateForm::of(&bot.gates) };
        return show_settings(&visit, bot, gates, errors, StatusCode::UNPROCESSABLE_ENTITY).await;
    }
    let mut body = json!({
        "name": bot.name.raw(),
        "description": bot.description.raw(),
        "system_prompt": bot.system_prompt.raw(),
        "model": optional("model"),
        "monthly_token_budget": budget,
    });
    if has_sandbox_field {
        body["use_agent_sandbox"] = bot.use_agent_sandbox.into();
    }
    if let Some(gates) = gates {
        body["gates"] = gates.into();
    }
    let path = format!("/api/bots/{}", segment(&id));
    match visit.client.act(Method::PATCH, &path, Some(&body), visit.conditions()).await {
        Ok(()) => {
            let text = visit.words().text("frame.saved").to_owned();
            Ok(visit.done(text, &format!("{}/settings", bot.base)).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 412 | 422) => {
            let mut errors = refusal.told();
            if refusal.status == 412 {
                bot.version = current;
                errors = vec![(Text::default(), visit.words().text("form.version_changed").into())];
            }
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            let gates = GateForm::of(body.get("gates").unwrap_or(&bot.gates));
            show_settings(&visit, bot, gates, errors, status).await
        }
        Err(failure) => Err(failure),
    }
}

/// Asks before a bot is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let bot = read(&visit, &id).await?;
    let frame = visit.frame("bots", visit.words().text("bot.delete")).await;
    let (action, back) = (format!("{}/delete", bot.base), format!("{}/settings", bot.base));
    let text = visit.words().text("bot.delete_text").to_owned();
    Ok(page::render(&ConfirmPage { frame, name: bot.name, text, action, version: bot.version, back }))
}

/// Deletes a bot whose name was typed.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let bot = read(&visit, &id).await?;
    delete_named(&visit, &format!("/api/bots/{}", segment(&id)), &bot.name, &format!("{}/delete", bot.base), "bots")
        .await
}
