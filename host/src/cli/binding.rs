//! `monstrum binding`: manages bindings, which give a bot the use of a resource.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::UtcMillis;
use serde_json::{Map, Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, Changes, Extra};
use super::names::{self, Noun};
use super::role::Grant;
use super::{Options, objects, output};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum binding create triage tracker --role reader --scope 'repos=acme/*'
  monstrum binding create triage tracker --allow-operation '*.read'
  monstrum binding create triage tracker --role writer --calls-per-minute 30 --expires-at 2027-01-01T00:00:00Z

A binding needs a role, or --allow-operation or --allow-tool. With both, both must allow a call.";

const EDIT_EXAMPLES: &str = "\
Examples:
  monstrum binding edit triage tracker --scope 'repos=acme/*' --scope 'repos=beta/*'
  monstrum binding edit triage tracker --role writer
  monstrum binding edit triage tracker --enabled false
  monstrum binding edit triage tracker --clear calls_per_minute

Flags that can be repeated replace the whole list.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum binding delete triage tracker

Running calls through this binding end.";

/// Create, list, show, edit and delete bindings, which give bots the use of resources
#[derive(Subcommand)]
pub(super) enum Binding {
    /// Give a bot the use of a resource
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name or the id of the bot
        bot: String,
        /// The name or the id of the resource
        resource: String,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        extra: Extra,
    },
    /// List the bindings of a bot
    #[command(after_help = "Examples:\n  monstrum binding list triage")]
    List {
        /// The name or the id of the bot
        bot: String,
    },
    /// Show a binding
    #[command(after_help = "Examples:\n  monstrum binding show triage tracker")]
    Show(Place),
    /// Change a binding
    #[command(after_help = EDIT_EXAMPLES)]
    Edit {
        #[command(flatten)]
        place: Place,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        changes: Changes,
    },
    /// Take a resource away from a bot
    #[command(after_help = DELETE_EXAMPLES)]
    Delete(Place),
}

/// Which binding a command means.
#[derive(Args)]
pub(super) struct Place {
    /// The name or the id of the bot
    bot: String,
    /// The name or the id of the resource, or the id of the binding
    resource: String,
}

#[derive(Args)]
pub(super) struct Fields {
    /// The name or the id of the role
    #[arg(long)]
    role: Option<String>,
    #[command(flatten)]
    grant: Grant,
    /// A glob for tools of other plugins that this resource's plugin may call; can be repeated
    #[arg(long, value_name = "GLOB")]
    allow_call: Vec<String>,
    /// A limit of each call: fuel, memory_mib, timeout_s or concurrent; can be repeated
    #[arg(long, value_name = "NAME=NUMBER", value_parser = limit)]
    limit: Vec<(String, u64)>,
    /// The maximum number of calls in a minute
    #[arg(long, value_name = "CALLS")]
    calls_per_minute: Option<u32>,
    /// Whether the binding grants anything
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    /// The time at which the binding ends, in RFC 3339 format
    #[arg(long, value_name = "TIME")]
    expires_at: Option<UtcMillis>,
}

fn limit(text: &str) -> Result<(String, u64), String> {
    let (name, number) = text.split_once('=').ok_or("expected NAME=NUMBER")?;
    let number = number.parse().map_err(|error| format!("the limit is not a number: {error}"))?;
    Ok((name.to_owned(), number))
}

impl Fields {
    async fn into_body(self, client: &Client) -> Result<Body, Failure> {
        let mut body = Body::default();
        if let Some(role) = self.role {
            body.set("role_id", Some(names::id(client, Noun::Role, &role).await?));
        }
        let mut permissions = Map::new();
        let Grant { allow_operation, allow_tool, scope } = self.grant;
        for (field, globs) in [("allowed_operations", allow_operation), ("allowed_tools", allow_tool)] {
            if !globs.is_empty() {
                permissions.insert(field.to_owned(), json!(globs));
            }
        }
        body.set("permissions", (!permissions.is_empty()).then_some(permissions));
        body.set_scopes(scope);
        body.set_list("allow_calls", self.allow_call);
        let limits: BTreeMap<String, u64> = self.limit.into_iter().collect();
        body.set("limits", (!limits.is_empty()).then_some(limits));
        body.set("calls_per_minute", self.calls_per_minute);
        body.set("enabled", self.enabled);
        body.set("expires_at", self.expires_at);
        Ok(body)
    }
}

impl Binding {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Binding::Create { bot, resource, fields, extra } => {
                let bot_id = names::id(&client, Noun::Bot, &bot).await?;
                let mut body = fields.into_body(&client).await?;
                body.set("resource_id", Some(names::id(&client, Noun::Resource, &resource).await?));
                body.add(extra)?;
                let created = client.post(&["api", "bots", &bot_id, "resources"], Some(&body.whole())).await?;
                objects::tell_created(&created, "binding", &format!("of {bot} and {resource}"), options.json)?;
            }
            Binding::List { bot } => {
                let items = of_bot(&client, &names::id(&client, Noun::Bot, &bot).await?).await?;
                list(&client, &items, options.json).await?;
            }
            Binding::Show(place) => show(&client, place, options.json).await?,
            Binding::Edit { place, fields, changes } => {
                let mut body = fields.into_body(&client).await?;
                body.apply(changes)?;
                let (body, found) = (body.change()?, place.find(&client).await?);
                let changed = client.patch(&found.path(), &body).await?;
                objects::tell_changed(&changed, "binding", &place.name(), options.json)?;
            }
            Binding::Delete(place) => {
                let found = place.find(&client).await?;
                client.delete(&found.path()).await?;
                objects::tell_deleted(&found.id, "binding", &place.name(), options.json)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A binding and the bot to which it belongs.
struct Found {
    bot: String,
    id: String,
    binding: Value,
}

impl Found {
    fn path(&self) -> [&str; 5] {
        ["api", "bots", &self.bot, "resources", &self.id]
    }
}

impl Place {
    fn name(&self) -> String {
        format!("of {} and {}", self.bot, self.resource)
    }

    async fn find(&self, client: &Client) -> Result<Found, Failure> {
        let bot = names::id(client, Noun::Bot, &self.bot).await?;
        let bindings = of_bot(client, &bot).await?;
        let found = |field: &str, id: &str| bindings.iter().find(|binding| binding[field] == *id).cloned();
        let binding = match found("id", &self.resource) {
            Some(binding) => Some(binding),
            None => found("resource_id", &names::id(client, Noun::Resource, &self.resource).await?),
        };
        let binding = binding.ok_or_else(|| {
            let message = format!("the bot `{}` has no binding of `{}`", self.bot, self.resource);
            Failure::new(output::plain(&message), format!("`monstrum binding list {}` lists its bindings", self.bot))
        })?;
        Ok(Found { bot, id: names::text(&binding, "id")?, binding })
    }
}

/// Returns the bindings of the bot with this id.
pub(super) async fn of_bot(client: &Client, bot: &str) -> Result<Vec<Value>, Failure> {
    client.items(&["api", "bots", bot, "resources"], &[]).await
}

/// Writes bindings as a table with the names of their resources and roles, or as JSON.
pub(super) async fn list(client: &Client, bindings: &[Value], json: bool) -> Result<(), Failure> {
    if json || bindings.is_empty() {
        let empty = "no bindings; `monstrum binding create` gives a bot a resource";
        return output::list(bindings, json, empty, ["ID"], ["id"]);
    }
    let (resources, roles) = (named(client, Noun::Resource).await?, named(client, Noun::Role).await?);
    let rows = bindings.iter().map(|binding| {
        vec![
            name_of(&resources, &binding["resource_id"]),
            name_of(&roles, &binding["role_id"]),
            permissions(&binding["permissions"]),
            objects::scopes(&binding["scope_constraints"]),
            state(binding),
        ]
    });
    output::table(&["RESOURCE", "ROLE", "PERMISSIONS", "SCOPES", "STATE"], rows.collect())
}

async fn show(client: &Client, place: Place, json: bool) -> Result<(), Failure> {
    let Found { binding, .. } = place.find(client).await?;
    if json {
        return output::json(&binding);
    }
    let (resources, roles) = (named(client, Noun::Resource).await?, named(client, Noun::Role).await?);
    let cell = |field: &str| output::cell(&binding[field]);
    output::fields(&[
        ("id", cell("id")),
        ("resource", name_of(&resources, &binding["resource_id"])),
        ("role", name_of(&roles, &binding["role_id"])),
        ("permissions", permissions(&binding["permissions"])),
        ("scopes", objects::scopes(&binding["scope_constraints"])),
        ("gates", cell("gates")),
        ("delegate", cell("delegate")),
        ("allowed calls", cell("allow_calls")),
        ("limits", cell("limits")),
        ("calls per minute", cell("calls_per_minute")),
        ("state", state(&binding)),
        ("expires", cell("expires_at")),
        ("created", cell("created_at")),
        ("updated", cell("updated_at")),
    ])
}

/// The names of objects by their ids.
async fn named(client: &Client, noun: Noun) -> Result<BTreeMap<String, String>, Failure> {
    let items = client.items(&["api", noun.segment()], &[]).await?;
    Ok(items.iter().map(|item| (output::cell(&item["id"]), output::cell(&item["name"]))).collect())
}

fn name_of(names: &BTreeMap<String, String>, id: &Value) -> String {
    let id = output::cell(id);
    names.get(&id).cloned().unwrap_or(id)
}

fn permissions(permissions: &Value) -> String {
    if permissions.is_null() {
        return String::new();
    }
    let [operations, tools] = ["allowed_operations", "allowed_tools"].map(|field| objects::globs(&permissions[field]));
    format!("operations: {operations}; tools: {tools}")
}

fn state(binding: &Value) -> String {
    let expires: Option<UtcMillis> = binding["expires_at"].as_str().and_then(|time| time.parse().ok());
    match (&binding["enabled"], expires) {
        (Value::Bool(false), _) => "disabled".to_owned(),
        (_, Some(time)) if time <= monstrum_types::Clock::now(&monstrum_types::SystemClock) => "expired".to_owned(),
        _ => "enabled".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_with_names() {
        assert_eq!(limit("timeout_s=5").unwrap(), ("timeout_s".to_owned(), 5));
        for wrong in ["timeout_s", "timeout_s=", "timeout_s=-1", "timeout_s=five"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_expired_binding_is_shown_as_such() {
        let of = |enabled: bool, expires: Value| state(&json!({ "enabled": enabled, "expires_at": expires }));
        assert_eq!(of(true, Value::Null), "enabled");
        assert_eq!(of(true, json!("2020-01-01T00:00:00.000Z")), "expired");
        assert_eq!(of(true, json!("2999-01-01T00:00:00.000Z")), "enabled");
        assert_eq!(of(false, json!("2020-01-01T00:00:00.000Z")), "disabled");
    }
}
