//! Trying a tool of a bot: a check, which runs nothing, or the real call.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Conditions, LINK_BYTES_MAX, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bot::{self, Bot, Tool, Why};
use crate::gateway::console::pages::conversations::within;
use crate::gateway::console::schema::{self, Input};
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// The maximum size of the data on the page.
const DATA_MAX: usize = 192 << 10;
/// The maximum size of parameters in JSON that the page also shows in the fields of the form.
const JSON_IN_FIELDS_MAX: usize = 32 << 10;

/// The answer of a call.
#[derive(Deserialize)]
struct Answer {
    request_id: String,
    status: String,
    #[serde(default)]
    code: Option<Text>,
    #[serde(default)]
    message: Option<Text>,
    #[serde(default)]
    data: Option<Value>,
    /// The approval for which the call waits.
    #[serde(default)]
    approval: Option<Awaited>,
    duration_ms: u64,
    /// What the page shows of the data, and whether this is the start of it.
    #[serde(skip)]
    shown: Text,
    #[serde(skip)]
    is_cut: bool,
}

#[derive(Deserialize)]
struct Awaited {
    id: String,
}

impl Answer {
    /// Returns the class of the status in the style sheet.
    fn class(&self) -> &'static str {
        page::class_of(&self.status)
    }

    /// Shows the data, as far as the page has room.
    fn fitted(mut self) -> Answer {
        let whole = self.data.as_ref().map(pretty).unwrap_or_default();
        let mut room = DATA_MAX;
        let (shown, is_whole) = within(whole.raw(), &mut room);
        (self.shown, self.is_cut) = (shown, !is_whole);
        self
    }
}

#[derive(Template)]
#[template(path = "console/try.html")]
struct TryPage {
    frame: Frame,
    bot: Bot,
    /// The tool, or `None` for a tool that the bot does not see.
    tool: Option<Tool>,
    inputs: Vec<Input>,
    json: Text,
    /// The keys of the words that tell what is wrong with the form.
    errors: Vec<&'static str>,
    answer: Option<Answer>,
    why: Option<Why>,
    action: String,
    may_run: bool,
}

impl TryPage {
    fn writes(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.effect == "write")
    }

    /// Returns whether the explanation below the answer says the same message.
    fn is_told_by_why(&self, message: &Text) -> bool {
        self.why.as_ref().is_some_and(|why| why.check.message.as_ref() == Some(message))
    }
}

/// The parameters of the last check, as JSON.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Given {
    #[serde(default)]
    params: String,
}

async fn blank(visit: &Visit, id: &str, name: &str) -> Result<TryPage, crate::gateway::console::client::Failure> {
    let (bot, tool) = tokio::join!(bot::read(visit, id), bot::tool(visit, id, name));
    let (bot, tool) = (bot?, tool?);
    let frame = visit.frame("bots", &visit.words().filled("try.title", &[&Text::from(name)])).await;
    let inputs = tool.as_ref().map(|tool| schema::of_schema(&tool.input_schema, None)).unwrap_or_default();
    let action = format!("{}/tools/{}", bot.base, segment(name));
    Ok(TryPage {
        frame,
        bot,
        tool,
        inputs,
        json: Text::default(),
        errors: Vec::new(),
        answer: None,
        why: None,
        action,
        may_run: visit.may("tools_call"),
    })
}

/// Shows the form of a tool and, after a check, the answer.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id, name)): Path<(String, String, String)>,
    Query(given): Query<Given>,
) -> Page {
    let mut page = blank(&visit, &id, &name).await?;
    if let Ok(Value::Object(params)) = serde_json::from_str::<Value>(&given.params) {
        if let Some(tool) = &page.tool {
            page.inputs = schema::of_schema(&tool.input_schema, Some(&params));
        } else {
            page.json = pretty(&Value::Object(params.clone()));
        }
        page.why = Some(bot::ask_why(&visit, &page.bot, &name, &params).await?);
    }
    Ok(page::render(&page))
}

/// Checks or makes a call.
pub(in crate::gateway::console) async fn submit(
    visit: Visit,
    Path((_, id, name)): Path<(String, String, String)>,
) -> Page {
    let mut page = blank(&visit, &id, &name).await?;
    let params = match params(&visit, &mut page) {
        Ok(params) => params,
        Err(errors) => {
            page.errors = errors;
            return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
        }
    };
    let params = Value::Object(params);
    if !visit.fields().has("run") {
        let link = with_query(&page.action, &[("params", &params.to_string())]);
        if link.len() > LINK_BYTES_MAX
            && let Value::Object(params) = &params
        {
            page.why = Some(bot::ask_why(&visit, &page.bot, &name, params).await?);
            return Ok(page::render(&page));
        }
        return Ok(page::see_other(&format!("{link}#answer")));
    }
    if page.writes() && !visit.fields().has("sure") {
        page.errors = vec!["try.not_sure"];
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    let path = format!("/api/bots/{}/tools/{}/call", segment(&id), segment(&name));
    let answer: Answer =
        visit.client.send(Method::POST, &path, &json!({"params": params}), Conditions::default()).await?;
    if page::is_denied(&answer.status)
        && let Value::Object(params) = &params
    {
        // A call that is allowed now was denied by a call below it, which its own page shows.
        let why = bot::ask_why(&visit, &page.bot, &name, params).await?;
        page.why = Some(why).filter(|why| !why.check.allows());
    }
    page.answer = Some(answer.fitted());
    Ok(page::render(&page))
}

fn params(visit: &Visit, page: &mut TryPage) -> Result<Map<String, Value>, Vec<&'static str>> {
    let fields = visit.fields();
    let whole = fields.value(schema::WHOLE);
    if whole.trim().is_empty() {
        return schema::read(&mut page.inputs, fields);
    }
    page.json = whole.into();
    match serde_json::from_str(whole) {
        Ok(Value::Object(params)) => {
            if let Some(tool) = page.tool.as_ref().filter(|_| whole.len() <= JSON_IN_FIELDS_MAX) {
                page.inputs = schema::of_schema(&tool.input_schema, Some(&params));
            }
            Ok(params)
        }
        Ok(_) | Err(_) => Err(vec!["form.not_json"]),
    }
}
