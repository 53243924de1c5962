//! `monstrum subscription`: the events for which bots get tasks.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, Changes};
use super::names::{self, Noun};
use super::{Options, objects, output};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum subscription create triage 'custom.github.*' 'A push has arrived: {data}'
  monstrum subscription create triage task.failed 'Find out why it failed: {data}' --from helper --allow-tool 'github_get_*'

In the instruction, {event_type}, {source_type}, {source_id}, {data} and {metadata} stand for the parts of the event; {{ and }} are
braces. The command prints the id of the subscription.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum subscription list
  monstrum subscription list --bot triage --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum subscription show 01998a3c-…";

const EDIT_EXAMPLES: &str = "\
Examples:
  monstrum subscription edit 01998a3c-… --pattern 'custom.github.push'
  monstrum subscription edit 01998a3c-… --inactive
  monstrum subscription edit 01998a3c-… --clear narrow";

const CONFIRM_EXAMPLES: &str = "\
Examples:
  monstrum subscription confirm 01998a3c-…

A subscription that a plugin has made then has no end. This takes an admin key.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum subscription delete 01998a3c-…

Tasks that the subscription has started go on.";

/// Give bots tasks when events happen
#[derive(Subcommand)]
pub(super) enum Subscription {
    /// Create a subscription of a bot
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name or the id of the bot
        bot: String,
        /// A glob for the types of events, such as task.*
        pattern: String,
        /// What the bot is to do
        instruction: String,
        #[command(flatten)]
        fields: Fields,
    },
    /// List subscriptions
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The name or the id of the bot
        #[arg(long)]
        bot: Option<String>,
    },
    /// Show a subscription
    #[command(after_help = SHOW_EXAMPLES)]
    Show { id: String },
    /// Change a subscription
    #[command(after_help = EDIT_EXAMPLES)]
    Edit {
        id: String,
        /// The new glob for the types of events
        #[arg(long, value_name = "GLOB")]
        pattern: Option<String>,
        /// What the bot is to do
        #[arg(long, value_name = "TEXT")]
        instruction: Option<String>,
        /// Let the subscription start tasks
        #[arg(long, conflicts_with = "inactive")]
        active: bool,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        changes: Changes,
    },
    /// Let a subscription that a plugin has made go on
    #[command(after_help = CONFIRM_EXAMPLES)]
    Confirm { id: String },
    /// Delete a subscription
    #[command(after_help = DELETE_EXAMPLES)]
    Delete { id: String },
}

/// The fields of a subscription that new and changed ones have.
#[derive(Args)]
pub(super) struct Fields {
    /// Whose events count: own, platform, any, or a bot by its name or id; can be repeated [default: own and platform]
    #[arg(long, value_name = "WHOSE")]
    from: Vec<String>,
    /// A glob for the tools that the tasks may use; can be repeated [default: all tools of the bot]
    #[arg(long, value_name = "GLOB")]
    allow_tool: Vec<String>,
    /// Start no tasks
    #[arg(long)]
    inactive: bool,
}

impl Fields {
    async fn into_body(self, client: &Client) -> Result<Body, Failure> {
        let mut from = Vec::new();
        for whose in self.from {
            from.push(match whose.as_str() {
                "own" | "platform" | "any" => whose,
                bot => names::id(client, Noun::Bot, bot).await?,
            });
        }
        let mut body = Body::default();
        body.set_list("from", from);
        body.set("narrow", (!self.allow_tool.is_empty()).then(|| json!({ "allowed_tools": self.allow_tool })));
        body.set("active", self.inactive.then_some(false));
        Ok(body)
    }
}

impl Subscription {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (client, is_json) = (Client::new(options)?, options.json);
        match self {
            Subscription::Create { bot, pattern, instruction, fields } => {
                let mut body = fields.into_body(&client).await?;
                body.set("bot_id", Some(names::id(&client, Noun::Bot, &bot).await?));
                body.set("pattern", Some(&pattern));
                body.set("instruction", Some(instruction));
                let created = client.post(&["api", "subscriptions"], Some(&body.whole())).await?;
                objects::tell_created(&created, "subscription to", &pattern, is_json)?;
            }
            Subscription::List { bot } => list(&client, bot, is_json).await?,
            Subscription::Show { id } => show(&client, &id, is_json).await?,
            Subscription::Edit { id, pattern, instruction, active, fields, changes } => {
                let mut body = fields.into_body(&client).await?;
                body.set("pattern", pattern);
                body.set("instruction", instruction);
                body.set("active", active.then_some(true));
                body.apply(changes)?;
                let changed = client.patch(&["api", "subscriptions", &id], &body.change()?).await?;
                objects::tell_changed(&changed, "subscription", &id, is_json)?;
            }
            Subscription::Confirm { id } => {
                let confirmed = client.post(&["api", "subscriptions", &id, "confirm"], None).await?;
                output::done(is_json, &confirmed, &format!("confirmed subscription {id}"))?;
            }
            Subscription::Delete { id } => {
                client.delete(&["api", "subscriptions", &id]).await?;
                objects::tell_deleted(&id, "subscription", &id, is_json)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(client: &Client, bot: Option<String>, is_json: bool) -> Result<(), Failure> {
    let mut query = Vec::new();
    if let Some(bot) = bot {
        query.push(("bot_id", names::id(client, Noun::Bot, &bot).await?));
    }
    let items = client.items(&["api", "subscriptions"], &query).await?;
    let header = ["ID", "BOT", "PATTERN", "FROM", "ACTIVE", "ENDS", "INSTRUCTION"];
    let fields = ["id", "bot_id", "pattern", "from", "active", "expires_at", "instruction"];
    output::list(
        &items,
        is_json,
        "there are no subscriptions; `monstrum subscription create` creates one",
        header,
        fields,
    )
}

async fn show(client: &Client, id: &str, is_json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 11] = [
        ("id", "id"),
        ("bot", "bot_id"),
        ("pattern", "pattern"),
        ("from", "from"),
        ("narrow", "narrow"),
        ("active", "active"),
        ("made by", "maker"),
        ("ends", "expires_at"),
        ("created", "created_at"),
        ("updated", "updated_at"),
        ("instruction", "instruction"),
    ];
    let mut subscription = client.get(&["api", "subscriptions", id], &[]).await?;
    if is_json {
        return output::json(&subscription);
    }
    let made_by = &subscription["made_by"];
    if made_by.is_object() {
        let maker = format!("{} {}", output::cell(&made_by["kind"]), output::cell(&made_by["id"]));
        subscription["maker"] = Value::String(maker);
    }
    output::given_fields(&subscription, &FIELDS)
}
