//! `monstrum webhook`: the routes by which systems outside make events.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, NamedChanges};
use super::names::{self, Noun};
use super::{Options, objects, output};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum webhook create site-pushes --event github.push --header X-GitHub-Event --dedupe-header X-GitHub-Delivery
  monstrum webhook create builds --event build.ended --bot triage --token
  monstrum webhook create orders --event order.paid --signature-header X-Signature --signature-prefix ''

The command prints the secret, which is not shown again. By default, the sender signs each body with the secret as GitHub does:
the header X-Hub-Signature-256 is sha256= and the HMAC-SHA-256 of the body in hex digits. With --token, the sender sends the
header `Authorization: Bearer SECRET`.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum webhook list
  monstrum webhook list --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum webhook show site-pushes
  monstrum webhook show site-pushes --json";

const EDIT_EXAMPLES: &str = "\
Examples:
  monstrum webhook edit site-pushes --event github.site
  monstrum webhook edit site-pushes --header X-GitHub-Event --header X-GitHub-Hook-ID
  monstrum webhook edit site-pushes --clear bot_id --clear dedupe_header

Headers replace the whole list. The URL and the secret stay as they are.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  monstrum webhook rotate site-pushes

The old secret ends at once. The command prints the new one, which is not shown again.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum webhook delete site-pushes

The events that the webhook has made are kept.";

/// Let systems outside make events
#[derive(Subcommand)]
pub(super) enum Webhook {
    /// Create a webhook and print its secret once
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name
        name: String,
        /// The name of the events: custom. is put before it
        #[arg(long, value_name = "NAME")]
        event: String,
        #[command(flatten)]
        fields: Fields,
    },
    /// List webhooks
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Show a webhook
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// The name or the id of the webhook
        webhook: String,
    },
    /// Change a webhook
    #[command(after_help = EDIT_EXAMPLES)]
    Edit {
        /// The name or the id of the webhook
        webhook: String,
        /// The new name of the events
        #[arg(long, value_name = "NAME")]
        event: Option<String>,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        changes: NamedChanges,
    },
    /// Give a webhook a new secret and print it once
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate {
        /// The name or the id of the webhook
        webhook: String,
    },
    /// Delete a webhook
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The name or the id of the webhook
        webhook: String,
    },
}

/// The fields of a webhook besides its names.
#[derive(Args)]
pub(super) struct Fields {
    /// The name or the id of the bot to which the events belong [default: events of the platform]
    #[arg(long)]
    bot: Option<String>,
    /// The sender sends the secret as a bearer token, and signs nothing
    #[arg(long, conflicts_with_all = ["signature_header", "signature_prefix"])]
    token: bool,
    /// The header of the signature [default: X-Hub-Signature-256]
    #[arg(long, value_name = "HEADER")]
    signature_header: Option<String>,
    /// The text before the signature [default: sha256=]
    #[arg(long, value_name = "TEXT")]
    signature_prefix: Option<String>,
    /// A header that becomes part of the event; can be repeated
    #[arg(long, value_name = "HEADER")]
    header: Vec<String>,
    /// The header whose value makes one event of repeated requests
    #[arg(long, value_name = "HEADER")]
    dedupe_header: Option<String>,
}

impl Fields {
    async fn into_body(self, client: &Client) -> Result<Body, Failure> {
        let verify = self.verify();
        let mut body = Body::default();
        if let Some(bot) = &self.bot {
            body.set("bot_id", Some(names::id(client, Noun::Bot, bot).await?));
        }
        body.set("verify", verify);
        body.set_list("headers", self.header);
        body.set("dedupe_header", self.dedupe_header);
        Ok(body)
    }

    /// Returns how requests are authenticated, if a flag says it.
    fn verify(&self) -> Option<Value> {
        let mut signed = Body::default();
        signed.set("kind", Some("hmac_sha256"));
        signed.set("header", self.signature_header.as_ref());
        signed.set("prefix", self.signature_prefix.as_ref());
        match (self.token, self.signature_header.is_some() || self.signature_prefix.is_some()) {
            (true, _) => Some(json!({ "kind": "token" })),
            (false, true) => Some(signed.whole()),
            (false, false) => None,
        }
    }
}

impl Webhook {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (client, is_json) = (Client::new(options)?, options.json);
        match self {
            Webhook::Create { name, event, fields } => create(&client, name, event, fields, is_json).await?,
            Webhook::List => list(&client, is_json).await?,
            Webhook::Show { webhook } => show(&client, &webhook, is_json).await?,
            Webhook::Edit { webhook, event, fields, changes } => {
                let mut body = fields.into_body(&client).await?;
                body.set("event", event);
                objects::edit(&client, Noun::Webhook, &webhook, (body, changes), is_json).await?;
            }
            Webhook::Rotate { webhook } => {
                let id = names::id(&client, Noun::Webhook, &webhook).await?;
                let rotated = client.post(&["api", "webhooks", &id, "rotate"], None).await?;
                let what = "the old secret no longer works, and the new secret will not be shown again:";
                tell_secret(&rotated, "rotated", what, is_json)?;
            }
            Webhook::Delete { webhook } => objects::delete(&client, Noun::Webhook, &webhook, is_json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn create(client: &Client, name: String, event: String, fields: Fields, is_json: bool) -> Result<(), Failure> {
    let verify = fields.verify().unwrap_or_else(|| json!({ "kind": "hmac_sha256" }));
    let mut body = fields.into_body(client).await?;
    body.set("name", Some(name));
    body.set("event", Some(event));
    body.set("verify", Some(verify));
    let created = client.post(&["api", "webhooks"], Some(&body.whole())).await?;
    tell_secret(&created, "created", "the secret will not be shown again:", is_json)
}

/// Prints a secret that the server shows only once. `done` names the action that made the secret, and `what` tells the user
/// what to know about it. Without `--json`, standard output contains only the secret.
fn tell_secret(webhook: &Value, done: &str, what: &str, is_json: bool) -> Result<(), Failure> {
    if is_json {
        return output::json(webhook);
    }
    let cell = |field: &str| output::plain(&output::cell(&webhook[field]));
    for warning in webhook["warnings"].as_array().into_iter().flatten() {
        output::warning(&output::cell(warning));
    }
    output::note(&format!("{done} webhook {} with the URL {}; {what}", cell("name"), cell("url")));
    output::line(cell("secret"))
}

async fn list(client: &Client, is_json: bool) -> Result<(), Failure> {
    let mut items = client.items(&["api", "webhooks"], &[]).await?;
    if !is_json {
        for item in &mut items {
            item["kind"] = item["verify"]["kind"].clone();
        }
    }
    let header = ["NAME", "ID", "EVENT", "BOT", "VERIFIED BY", "URL"];
    let fields = ["name", "id", "event", "bot_id", "kind", "url"];
    output::list(&items, is_json, "no webhooks; `monstrum webhook create` creates one", header, fields)
}

async fn show(client: &Client, webhook: &str, is_json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 12] = [
        ("name", "name"),
        ("id", "id"),
        ("url", "url"),
        ("event", "event"),
        ("bot", "bot_id"),
        ("verified by", "kind"),
        ("signature header", "signature_header"),
        ("signature prefix", "signature_prefix"),
        ("headers", "headers"),
        ("dedupe header", "dedupe_header"),
        ("created", "created_at"),
        ("secret created", "secret_created_at"),
    ];
    let mut webhook = names::find(client, Noun::Webhook, webhook).await?;
    if is_json {
        return output::json(&webhook);
    }
    for (field, of) in [("kind", "kind"), ("signature_header", "header"), ("signature_prefix", "prefix")] {
        webhook[field] = webhook["verify"][of].clone();
    }
    output::given_fields(&webhook, &FIELDS)
}
