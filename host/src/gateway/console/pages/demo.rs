//! The wizard of the demo: five steps on one page, each with its result. The first page of an empty server shows it too.

use askama::Template;
use axum::Extension;
use axum::response::Response;
use http::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::{Call, Calls};
use crate::gateway::console::pages::bot::{self, Why};
use crate::gateway::console::pages::login::set_cookie;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::{Browser, DEMO_COOKIE, SKIPPED, Visit};
use crate::gateway::console::words::Words;

/// The path of the demo in the API.
const DEMO: &str = "/api/demo";
/// The maximum number of characters of a page that a message shows.
const ANSWER_CHARS_MAX: usize = 200;

/// The demo as the API shows it.
#[derive(Deserialize)]
pub(in crate::gateway::console) struct Demo {
    unavailable: Option<String>,
    is_empty: bool,
    is_installed: bool,
    steps: Vec<State>,
    upstream: Option<Text>,
    resource: Option<Named>,
    bot: Option<Named>,
    inside: Try,
    outside: Try,
}

/// A step with its state.
#[derive(Deserialize)]
struct State {
    step: String,
    status: String,
}

#[derive(Deserialize)]
struct Named {
    id: String,
    name: Text,
}

/// A call to try.
#[derive(Deserialize)]
struct Try {
    tool: String,
    params: Map<String, Value>,
}

impl Demo {
    /// Returns whether a workspace without bots and resources can have the demo.
    fn is_offered(&self) -> bool {
        self.is_empty && !self.is_installed && self.unavailable.is_none()
    }

    fn is_done(&self, step: &str) -> bool {
        self.steps.iter().any(|state| state.step == step && state.status == "done")
    }
}

impl Try {
    /// Returns the newest of `calls` with this tool and these parameters.
    fn newest(&self, calls: &[Call]) -> Option<Call> {
        let is_it = |call: &&Call| {
            call.tool.as_ref().is_some_and(|tool| tool.raw() == self.tool)
                && call.params.as_object() == Some(&self.params)
        };
        calls.iter().find(is_it).cloned()
    }
}

/// What the first page of a workspace shows of the demo.
pub(in crate::gateway::console) enum Offer {
    /// The wizard, because the workspace is empty.
    Wizard(Box<Wizard>),
    /// A link to the wizard, because the demo is installed.
    Installed,
    /// A link to the wizard, because a person has skipped it.
    Skipped,
}

impl Offer {
    /// Returns what the first page shows.
    pub(in crate::gateway::console) async fn read(visit: &Visit) -> Option<Offer> {
        if !visit.may("demo_show") {
            return None;
        }
        let demo = visit.client.get::<Demo>(DEMO).await.ok()?;
        if demo.is_installed {
            return Some(Offer::Installed);
        }
        match demo.is_offered() {
            true if visit.browser.look.skips_demo => Some(Offer::Skipped),
            true => Some(Offer::Wizard(Box::new(Wizard::new(visit, &demo).await))),
            false => None,
        }
    }
}

/// A step as the page shows it.
pub(in crate::gateway::console) struct Step {
    pub name: String,
    pub class: &'static str,
    pub status: String,
    pub title: String,
    pub text: String,
    /// What the step has made.
    pub result: Option<String>,
    /// The label of the button, if the step can be made now.
    pub button: Option<String>,
}

/// The steps of the demo.
pub(in crate::gateway::console) struct Wizard {
    pub steps: Vec<Step>,
    /// The path to which the forms are sent.
    pub action: String,
    pub is_installed: bool,
    /// Whether the bot can make calls.
    pub may_call: bool,
    pub inside: Option<Call>,
    pub outside: Option<Call>,
    /// Why the call outside of the bot's access was denied.
    pub why: Option<Why>,
}

impl Wizard {
    async fn new(visit: &Visit, demo: &Demo) -> Wizard {
        let may_call = demo.steps.iter().all(|state| state.status == "done");
        let calls = calls(visit, demo).await;
        let (inside, outside) = (demo.inside.newest(&calls), demo.outside.newest(&calls));
        let why = match (&demo.bot, &outside) {
            (Some(bot), Some(call)) if call.is_denied() => why(visit, bot, &demo.outside).await.ok(),
            _ => None,
        };
        let words = visit.words();
        let next = demo.steps.iter().find(|state| state.status != "done").map(|state| state.step.as_str());
        let steps = demo.steps.iter().map(|state| step(words, demo, state, next == Some(&state.step))).collect();
        let (action, is_installed) = (visit.to("demo"), demo.is_installed);
        Wizard { steps, action, is_installed, may_call, inside, outside, why }
    }
}

/// Reads the newest calls of the bot. Without them, the steps are shown nevertheless.
async fn calls(visit: &Visit, demo: &Demo) -> Vec<Call> {
    let Some(bot) = &demo.bot else { return Vec::new() };
    let path = with_query("/api/audit", &[("bot_id", &bot.id), ("limit", "50")]);
    visit.client.get::<Calls>(&path).await.map(|calls| calls.items).unwrap_or_default()
}

async fn why(visit: &Visit, bot: &Named, outside: &Try) -> Result<Why, Failure> {
    let bot = bot::read(visit, &bot.id).await?;
    bot::ask_why(visit, &bot, &outside.tool, &outside.params).await
}

fn step(words: &'static Words, demo: &Demo, state: &State, is_next: bool) -> Step {
    let word = |key: &str| words.known(&format!("demo.{}.{key}", state.step)).unwrap_or_default().to_owned();
    let is_stopped = state.status == "stopped";
    let button = match is_next {
        true if is_stopped => Some(words.text("demo.start_again").to_owned()),
        true => Some(word("button")),
        false => None,
    };
    Step {
        class: match state.status.as_str() {
            "done" => "success",
            "stopped" => "error",
            _ => "",
        },
        status: words.known(&format!("demo.status.{}", state.status)).unwrap_or(&state.status).to_owned(),
        title: word("title"),
        text: word("text"),
        result: result(words, demo, state),
        button,
        name: state.step.clone(),
    }
}

/// Returns what a step has made, in one sentence.
fn result(words: &Words, demo: &Demo, state: &State) -> Option<String> {
    if state.status == "stopped" {
        return Some(words.text("demo.stopped").to_owned());
    }
    if !demo.is_done(&state.step) {
        return None;
    }
    let (resource, bot) = (demo.resource.as_ref()?, demo.bot.as_ref());
    Some(match state.step.as_str() {
        "plugin" => words.filled("demo.plugin.done", &[&resource.name, demo.upstream.as_ref()?]),
        "bot" => words.filled("demo.bot.done", &[&bot?.name]),
        "credential" => words.filled("demo.credential.done", &[&resource.name]),
        _ => words.filled("demo.access.done", &[&bot?.name, &resource.name]),
    })
}

#[derive(Template)]
#[template(path = "console/demo.html")]
struct DemoPage {
    frame: Frame,
    wizard: Wizard,
    /// The reason why the workspace cannot have the demo.
    unavailable: Option<String>,
}

/// Shows the wizard.
pub(in crate::gateway::console) async fn show(visit: Visit) -> Page {
    let demo = visit.client.get::<Demo>(DEMO).await?;
    let unavailable = demo
        .unavailable
        .as_ref()
        .map(|reason| visit.words().known(&format!("demo.unavailable.{reason}")).unwrap_or(reason).to_owned());
    let wizard = Wizard::new(&visit, &demo).await;
    let frame = visit.frame("overview", visit.words().text("demo.title")).await;
    Ok(page::render(&DemoPage { frame, wizard, unavailable }))
}

/// Makes a step.
pub(in crate::gateway::console) async fn make(visit: Visit) -> Page {
    let (back, step) = (visit.to("demo"), visit.fields().value("step"));
    let made = visit.client.send::<Demo>(Method::POST, DEMO, &json!({"step": step}), Conditions::default()).await;
    match made {
        Ok(_) => Ok(visit.done(visit.words().text("demo.made").to_owned(), &back).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            Ok(visit.refused(refusal.detail, &back).await)
        }
        Err(failure) => Err(failure),
    }
}

/// Makes one of the two calls as the bot, and shows the answer as a message.
pub(in crate::gateway::console) async fn call(visit: Visit) -> Page {
    #[derive(Deserialize)]
    struct Answer {
        status: String,
        #[serde(default)]
        message: Option<Text>,
        #[serde(default)]
        data: Value,
    }
    let back = visit.to("demo");
    let demo = visit.client.get::<Demo>(DEMO).await?;
    let wanted = if visit.fields().value("which") == "outside" { &demo.outside } else { &demo.inside };
    let Some(bot) = &demo.bot else { return Err(Failure::not_found()) };
    let path = format!("/api/bots/{}/tools/{}/call", segment(&bot.id), segment(&wanted.tool));
    let body = json!({"params": wanted.params});
    let answer: Answer = visit.client.send(Method::POST, &path, &body, Conditions::default()).await?;
    let words = visit.words();
    let message = answer.message.unwrap_or_default();
    if answer.status == "success" {
        let text = Text::from(answer.data["text"].as_str().unwrap_or_default()).start(ANSWER_CHARS_MAX);
        return Ok(visit.done(words.filled("demo.answered", &[&text]), &back).await);
    }
    match page::is_denied(&answer.status) {
        true => Ok(visit.done(words.filled("demo.denied", &[&message]), &back).await),
        false => Ok(visit.refused(words.filled("demo.failed", &[&message]), &back).await),
    }
}

/// Removes the demo.
pub(in crate::gateway::console) async fn remove(visit: Visit) -> Page {
    match visit.client.act(Method::DELETE, DEMO, None, Conditions::default()).await {
        Ok(()) => Ok(visit.done(visit.words().text("demo.removed").to_owned(), &visit.to("overview")).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => {
            Ok(visit.refused(refusal.detail, &visit.to("demo")).await)
        }
        Err(failure) => Err(failure),
    }
}

/// Hides the wizard from the first page in this browser.
pub(in crate::gateway::console) async fn skip(visit: Visit, Extension(browser): Extension<Browser>) -> Response {
    let mut response = page::see_other(&visit.to("overview"));
    set_cookie(&mut response, DEMO_COOKIE, SKIPPED, browser.called_as.is_https, false);
    response
}
