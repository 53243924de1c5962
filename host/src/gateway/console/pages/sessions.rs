//! The sessions: the messages of a conversation with the answers of its bot, and sending a message.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Conditions, Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::conversations::{Sandbox, within};
use crate::gateway::console::pages::deletion::ConfirmPage;
use crate::gateway::console::pages::task::TEXT_MAX;
use crate::gateway::console::pages::tasks::{bots, class_of, name_of};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The messages on the page of a session: their number, and the maximum size of a text as it is written in the page.
const MESSAGES: (&str, usize) = ("10", TEXT_MAX);
/// The newest messages on the page of a conversation, which has commands and files too.
const NEWEST: (&str, usize) = ("3", 4 << 10);

/// A session as the API tells it.
#[derive(Deserialize)]
struct Session {
    id: String,
    bot_id: String,
    chat: Chat,
    used_at: UtcMillis,
    #[serde(default)]
    expired_at: Option<UtcMillis>,
}

#[derive(Deserialize)]
struct Chat {
    app_id: Text,
    user_id: Text,
    chat_id: Text,
}

impl Session {
    fn has_expired(&self) -> bool {
        self.expired_at.is_some()
    }

    fn base(&self, visit: &Visit) -> String {
        visit.to(&format!("sessions/{}", segment(&self.id)))
    }
}

#[derive(Deserialize)]
struct Sessions {
    items: Vec<Session>,
    #[serde(default)]
    next_cursor: Option<String>,
}

/// A message as the API tells it.
#[derive(Deserialize)]
struct Message {
    task_id: String,
    status: String,
    text: String,
    #[serde(default)]
    answer: Option<String>,
    created_at: UtcMillis,
}

/// A message of a page.
pub(super) struct MessageView {
    pub task_id: String,
    pub status: String,
    pub text: Text,
    pub answer: Text,
    pub created_at: UtcMillis,
    /// Whether the page shows the texts shortened.
    pub is_cut: bool,
}

impl MessageView {
    fn of(told: Message, bytes_max: usize) -> MessageView {
        let (text, has_text) = within(&told.text, &mut { bytes_max });
        let (answer, has_answer) = within(told.answer.as_deref().unwrap_or_default(), &mut { bytes_max });
        let Message { task_id, status, created_at, .. } = told;
        MessageView { task_id, status, text, answer, created_at, is_cut: !(has_text && has_answer) }
    }

    /// Returns the class of the status in the style sheet.
    pub(super) fn class(&self) -> &'static str {
        class_of(&self.status)
    }
}

/// Reads messages of a session, newest first, with the cursor of the next page. Messages that together are too large for
/// an answer are read one at a time.
async fn messages(
    visit: &Visit,
    session: &str,
    (limit, bytes_max): (&str, usize),
    cursor: &str,
) -> Result<(Vec<MessageView>, Option<String>), Failure> {
    #[derive(Deserialize)]
    struct Messages {
        items: Vec<Message>,
        next_cursor: Option<String>,
    }
    let path = |limit: &str| {
        with_query(&format!("/api/sessions/{}/messages", segment(session)), &[("limit", limit), ("cursor", cursor)])
    };
    let read = match visit.client.get::<Messages>(&path(limit)).await {
        Err(Failure::NoAnswer) => visit.client.get::<Messages>(&path("1")).await,
        read => read,
    };
    let Messages { items, next_cursor } = read?;
    let view = |told| MessageView::of(told, bytes_max);
    Ok((items.into_iter().map(view).collect(), next_cursor))
}

/// The newest session of a conversation, with its newest messages.
pub(super) struct SessionOf {
    pub page: String,
    pub messages: Vec<MessageView>,
}

/// Finds the newest session of the conversation that has this sandbox.
pub(super) async fn of_conversation(visit: &Visit, sandbox: &Sandbox) -> Option<SessionOf> {
    if !visit.may("sessions_messages") {
        return None;
    }
    let (app, user, chat) = (sandbox.app_id.as_ref()?, sandbox.user_id.as_ref()?, sandbox.chat_id.as_ref()?);
    let filter =
        [("bot_id", sandbox.bot_id.as_str()), ("app_id", app.raw()), ("user_id", user.raw()), ("limit", "200")];
    let sessions = visit.client.get::<Sessions>(&with_query("/api/sessions", &filter)).await.ok()?;
    let session = sessions.items.into_iter().find(|session| session.chat.chat_id == *chat)?;
    let (messages, _) = messages(visit, &session.id, NEWEST, "").await.ok()?;
    Some(SessionOf { page: session.base(visit), messages })
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/sessions.html")]
struct ListPage {
    frame: Frame,
    sessions: Vec<Session>,
    bots: Vec<Named>,
    bot_id: String,
    next: Option<String>,
}

impl ListPage {
    fn bot_name(&self, id: &str) -> Text {
        name_of(&self.bots, id)
    }
}

/// Shows the sessions of the workspace.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    let Filter { bot_id, cursor } = filter;
    let path = with_query("/api/sessions", &[("bot_id", &bot_id), ("limit", "50"), ("cursor", &cursor)]);
    let (frame, list, bots) = tokio::join!(
        visit.frame("sessions", visit.words().text("sessions.title")),
        visit.client.get::<Sessions>(&path),
        bots(&visit),
    );
    let Sessions { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("sessions"), &[("bot_id", &bot_id), ("cursor", &cursor)]));
    Ok(page::render(&ListPage { frame, sessions: items, bots, bot_id, next }))
}

#[derive(Template)]
#[template(path = "console/session.html")]
struct ShowPage {
    frame: Frame,
    session: Session,
    base: String,
    bot: Option<Named>,
    /// Absent if the API did not answer.
    messages: Option<Vec<MessageView>>,
    next: Option<String>,
    /// The page of the sandbox of the conversation.
    sandbox: Option<String>,
    /// The message as it was typed.
    typed: Text,
    errors: Vec<(Text, Text)>,
    may_send: bool,
    may_delete: bool,
}

async fn read(visit: &Visit, id: &str) -> Result<Session, Failure> {
    visit.client.get::<Session>(&format!("/api/sessions/{}", segment(id))).await
}

/// Returns the page of the sandbox of a session's conversation, if it has one.
async fn sandbox_of(visit: &Visit, session: &Session) -> Option<String> {
    #[derive(Deserialize)]
    struct Sandboxes {
        items: Vec<Sandbox>,
    }
    if !visit.may("sandboxes_commands") {
        return None;
    }
    let chat = &session.chat;
    let filter = [("bot_id", session.bot_id.as_str()), ("app_id", chat.app_id.raw()), ("chat_id", chat.chat_id.raw())];
    let found = visit.client.get::<Sandboxes>(&with_query("/api/sandboxes", &filter)).await.ok()?;
    found.items.first().map(|sandbox| sandbox.base(visit))
}

/// Shows a session with its messages.
pub(in crate::gateway::console) async fn show(
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    Query(filter): Query<Filter>,
) -> Page {
    let session = read(&visit, &id).await?;
    show_session(&visit, session, &filter.cursor, Vec::new(), StatusCode::OK).await
}

async fn show_session(
    visit: &Visit,
    session: Session,
    cursor: &str,
    errors: Vec<(Text, Text)>,
    status: StatusCode,
) -> Page {
    let base = session.base(visit);
    let bot = format!("/api/bots/{}", segment(&session.bot_id));
    let (frame, bot, sandbox, messages) = tokio::join!(
        visit.frame("sessions", visit.words().text("session.title")),
        visit.client.get::<Named>(&bot),
        sandbox_of(visit, &session),
        messages(visit, &session.id, MESSAGES, cursor),
    );
    let (messages, next) = match messages {
        Ok((messages, next)) => (Some(messages), next.map(|cursor| with_query(&base, &[("cursor", &cursor)]))),
        // A cursor that is not one of the list.
        Err(Failure::Refused(refusal)) if refusal.status == 422 => return Ok(page::see_other(&base)),
        Err(_) => (None, None),
    };
    let may_send = visit.may("sessions_send") && !session.has_expired();
    let (typed, may_delete) = (visit.fields().value("text").into(), visit.may("sessions_delete"));
    let bot = bot.ok();
    let page = ShowPage { frame, session, base, bot, messages, next, sandbox, typed, errors, may_send, may_delete };
    Ok(page::render_as(status, &page))
}

/// Sends a message to a session, and shows the task that answers it.
pub(in crate::gateway::console) async fn send(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    #[derive(Deserialize)]
    struct Started {
        id: String,
    }
    let session = read(&visit, &id).await?;
    let body = json!({ "text": visit.fields().value("text").replace("\r\n", "\n") });
    let path = format!("/api/sessions/{}/messages", segment(&session.id));
    match visit.client.send::<Started>(Method::POST, &path, &body, visit.conditions()).await {
        Ok(Started { id }) => {
            let task = visit.to(&format!("tasks/{}", segment(&id)));
            Ok(visit.done(visit.words().text("session.sent").to_owned(), &task).await)
        }
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422 | 429) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            show_session(&visit, session, "", refusal.told(), status).await
        }
        Err(failure) => Err(failure),
    }
}

/// Asks before a session is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let session = read(&visit, &id).await?;
    let frame = visit.frame("sessions", visit.words().text("session.delete")).await;
    let text = visit.words().text("session.delete_text").to_owned();
    let back = session.base(&visit);
    let (name, version, action) = (Text::default(), String::new(), format!("{back}/delete"));
    Ok(page::render(&ConfirmPage { frame, name, text, action, version, back }))
}

/// Deletes a session.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let path = format!("/api/sessions/{}", segment(&id));
    match visit.client.act(Method::DELETE, &path, None, Conditions::default()).await {
        Ok(()) => Ok(visit.done(visit.words().text("session.deleted").to_owned(), &visit.to("sessions")).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => {
            Ok(visit.refused(refusal.detail, &visit.to(&format!("sessions/{}", segment(&id)))).await)
        }
        Err(failure) => Err(failure),
    }
}
