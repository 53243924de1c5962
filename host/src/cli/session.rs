//! `monstrum session`: lists, shows and deletes sessions, which are the tasks of one conversation.

use std::process::ExitCode;

use clap::Subcommand;
use monstrum_types::SessionId;
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::names::{self, Noun};
use super::{Options, output};

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum session list
  monstrum session list --bot triage --app-id open-webui --user-id ada";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum session show 01998a3c-…
  monstrum session show 01998a3c-… --json

The messages are shown in the order of the conversation.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum session delete 01998a3c-…
  monstrum session delete 01998a3c-… --yes     does not ask for confirmation

The tasks of the session and the sandbox of its conversation are deleted too.";

/// The number of sessions that `list` shows.
const LISTED_MAX: usize = 50;

/// List, show and delete the conversations of bots
#[derive(Subcommand)]
pub(super) enum Session {
    /// List sessions, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The name or the id of the bot
        #[arg(long)]
        bot: Option<String>,
        /// The app of the conversations
        #[arg(long, value_name = "ID")]
        app_id: Option<String>,
        /// The user of the conversations
        #[arg(long, value_name = "ID")]
        user_id: Option<String>,
    },
    /// Show a session with its messages
    #[command(after_help = SHOW_EXAMPLES)]
    Show { id: SessionId },
    /// Delete a session
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        id: SessionId,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

impl Session {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Session::List { bot, app_id, user_id } => {
                let mut query = Vec::new();
                if let Some(bot) = bot {
                    query.push(("bot_id", names::id(&client, Noun::Bot, &bot).await?));
                }
                query.extend(app_id.map(|id| ("app_id", id)));
                query.extend(user_id.map(|id| ("user_id", id)));
                let (items, _) = client.list(&["api", "sessions"], &query, LISTED_MAX).await?;
                list(&items, options.json)?;
            }
            Session::Show { id } => show(&client, id, options.json).await?,
            Session::Delete { id, yes } => {
                if !yes {
                    let question = format!("delete session {id} with its tasks and its sandbox?");
                    output::confirm(&question, "check the session", "nothing was deleted")?;
                }
                client.delete(&["api", "sessions", &id.to_string()]).await?;
                output::done(options.json, &json!({ "id": id }), &format!("deleted session {id}"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list(items: &[Value], is_json: bool) -> Result<(), Failure> {
    if is_json {
        return output::json(&json!({ "items": items, "next_cursor": null }));
    }
    let row = |item: &Value| {
        let chat = ["app_id", "user_id", "chat_id"].map(|part| output::cell(&item["chat"][part]));
        [&[output::cell(&item["id"]), output::cell(&item["bot_id"])], &chat[..], &[output::cell(&item["used_at"])]]
            .concat()
    };
    output::table(&["ID", "BOT", "APP", "USER", "CHAT", "LAST USED"], items.iter().map(row).collect())
}

async fn show(client: &Client, id: SessionId, is_json: bool) -> Result<(), Failure> {
    let id = id.to_string();
    let session = client.get(&["api", "sessions", &id], &[]).await?;
    let mut messages = client.items(&["api", "sessions", &id, "messages"], &[]).await?;
    messages.reverse();
    if is_json {
        return output::json(&json!({ "session": session, "messages": messages }));
    }
    let mut fields: Vec<(&str, String)> = [("id", "id"), ("bot", "bot_id"), ("created", "created_at")]
        .map(|(name, field)| (name, output::cell(&session[field])))
        .to_vec();
    let chat = ["app_id", "user_id", "chat_id"].map(|part| output::cell(&session["chat"][part]));
    fields.push(("conversation", chat.join(" / ")));
    for message in &messages {
        fields.push(("user", output::cell(&message["text"])));
        let answer = &message["answer"];
        fields.push((
            "bot",
            if answer.is_null() { format!("({})", output::cell(&message["status"])) } else { output::cell(answer) },
        ));
    }
    output::fields(&fields)
}
