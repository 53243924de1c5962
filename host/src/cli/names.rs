//! Objects of a workspace by name or id.

use serde_json::Value;
use uuid::Uuid;

use super::client::{Client, NOT_MONSTRUM};
use super::failure::Failure;
use super::output;

/// A kind of object that commands refer to by name or id.
#[derive(Clone, Copy)]
pub(super) enum Noun {
    Bot,
    Resource,
    Role,
    Schedule,
    Webhook,
    Workflow,
    Workspace,
}

impl Noun {
    /// Returns the word for one object.
    pub(super) fn word(self) -> &'static str {
        match self {
            Noun::Bot => "bot",
            Noun::Resource => "resource",
            Noun::Role => "role",
            Noun::Schedule => "schedule",
            Noun::Webhook => "webhook",
            Noun::Workflow => "workflow",
            Noun::Workspace => "workspace",
        }
    }

    /// Returns the segment of the routes of these objects.
    pub(super) fn segment(self) -> &'static str {
        match self {
            Noun::Bot => "bots",
            Noun::Resource => "resources",
            Noun::Role => "roles",
            Noun::Schedule => "schedules",
            Noun::Webhook => "webhooks",
            Noun::Workflow => "workflows",
            Noun::Workspace => "workspaces",
        }
    }

    fn unknown(self, name: &str) -> Failure {
        let (word, name) = (self.word(), output::plain(name));
        match self {
            Noun::Workspace => Failure::new(
                format!("there is no workspace `{name}`"),
                "`monstrum workspace list` lists the workspaces",
            ),
            _ => Failure::new(
                format!("the workspace has no {word} `{name}`"),
                format!("`monstrum {word} list` lists the {}; --workspace sets another workspace", self.segment()),
            ),
        }
    }
}

/// Returns the id of the object with this name or id. An id is returned without a request, because a key may be allowed
/// to use an object but not to list the objects.
pub(super) async fn id(client: &Client, noun: Noun, name_or_id: &str) -> Result<String, Failure> {
    if is_id(name_or_id) {
        return Ok(name_or_id.to_owned());
    }
    text(&by_name(client, noun, name_or_id).await?, "id")
}

/// Returns the object with this name or id.
pub(super) async fn find(client: &Client, noun: Noun, name_or_id: &str) -> Result<Value, Failure> {
    if is_id(name_or_id) {
        return client.get(&["api", noun.segment(), name_or_id], &[]).await;
    }
    by_name(client, noun, name_or_id).await
}

/// Returns a field of an answer that must be a string.
pub(super) fn text(answer: &Value, field: &str) -> Result<String, Failure> {
    let text = answer[field].as_str().map(str::to_owned);
    text.ok_or_else(|| Failure::new(format!("the server's response contains no `{field}`"), NOT_MONSTRUM))
}

fn is_id(text: &str) -> bool {
    text.parse::<Uuid>().is_ok()
}

/// Returns the id of the object with this name, even if the name looks like an id.
pub(super) async fn id_of_name(client: &Client, noun: Noun, name: &str) -> Result<String, Failure> {
    text(&by_name(client, noun, name).await?, "id")
}

/// Returns the object with this name, even if the name looks like an id.
pub(super) async fn find_by_name(client: &Client, noun: Noun, name: &str) -> Result<Value, Failure> {
    by_name(client, noun, name).await
}

async fn by_name(client: &Client, noun: Noun, name: &str) -> Result<Value, Failure> {
    let items = client.items(&["api", noun.segment()], &[]).await?;
    items.into_iter().find(|item| item["name"] == name).ok_or_else(|| noun.unknown(name))
}
