//! `monstrum event`: makes, lists, shows and follows events.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::{EventId, UtcMillis};
use serde_json::Value;

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, Text};
use super::names::{self, Noun};
use super::stream::Events;
use super::{Options, output};

const EMIT_EXAMPLES: &str = "\
Examples:
  monstrum event emit order.paid --data '{\"order\": 17}'
  monstrum event emit order.paid --data @order.json --bot triage

The type of the event is custom. and the name. The command prints the id of the event.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum event list
  monstrum event list --type 'task.*' --bot triage
  monstrum event list --source-type webhook --since 2027-01-04T09:00:00Z --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum event show 01998a3c-…
  monstrum event show 01998a3c-… --json     the event and its deliveries";

const TAIL_EXAMPLES: &str = "\
Examples:
  monstrum event tail
  monstrum event tail --type 'custom.github.*' --json | jq .data     one JSON object on each line

Ctrl-C ends the command.";

/// Make, list, show and follow events
#[derive(Subcommand)]
pub(super) enum Event {
    /// Make an event
    #[command(after_help = EMIT_EXAMPLES)]
    Emit {
        /// The name of the event: custom. is put before it
        name: String,
        /// The data as JSON; @FILE reads a file, @- standard input [default: {}]
        #[arg(long, value_name = "JSON")]
        data: Option<Text>,
        /// The name or the id of the bot to which the event belongs [default: an event of the platform]
        #[arg(long)]
        bot: Option<String>,
    },
    /// List events, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        #[command(flatten)]
        filters: Filters,
        /// Only events that happened at this time or later, in RFC 3339 format
        #[arg(long, value_name = "TIME")]
        since: Option<UtcMillis>,
        /// Only events that happened before this time, in RFC 3339 format
        #[arg(long, value_name = "TIME")]
        until: Option<UtcMillis>,
        /// The maximum number of events
        #[arg(long, value_name = "ROWS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Show an event with its deliveries
    #[command(after_help = SHOW_EXAMPLES)]
    Show { id: EventId },
    /// Print each event as it happens, until the command is stopped
    #[command(after_help = TAIL_EXAMPLES)]
    Tail {
        #[command(flatten)]
        filters: Filters,
    },
}

/// Which events a command shows.
#[derive(Args)]
pub(super) struct Filters {
    /// Only events whose type matches this glob, such as task.*
    #[arg(long = "type", value_name = "GLOB")]
    event_type: Option<String>,
    /// Only events of this kind of source, such as webhook
    #[arg(long, value_name = "NAME")]
    source_type: Option<String>,
    /// Only events that belong to this bot, by its name or id
    #[arg(long)]
    bot: Option<String>,
}

impl Filters {
    async fn query(self, client: &Client) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut query = Vec::new();
        query.extend(self.event_type.map(|glob| ("event_type", glob)));
        query.extend(self.source_type.map(|name| ("source_type", name)));
        if let Some(bot) = self.bot {
            query.push(("bot_id", names::id(client, Noun::Bot, &bot).await?));
        }
        Ok(query)
    }
}

impl Event {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (client, is_json) = (Client::new(options)?, options.json);
        match self {
            Event::Emit { name, data, bot } => emit(&client, name, (data, bot), is_json).await?,
            Event::List { filters, since, until, limit } => {
                let mut query = filters.query(&client).await?;
                query.extend(since.map(|time| ("since", time.to_string())));
                query.extend(until.map(|time| ("until", time.to_string())));
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let (mut items, _) = client.list(&["api", "events"], &query, limit).await?;
                if !is_json {
                    for item in &mut items {
                        item["source"] = Value::String(source(item));
                    }
                }
                let header = ["ID", "TYPE", "SOURCE", "BOT", "CREATED"];
                let fields = ["id", "event_type", "source", "bot_id", "created_at"];
                output::list(&items, is_json, "there are no such events", header, fields)?;
            }
            Event::Show { id } => show(&client, id, is_json).await?,
            Event::Tail { filters } => {
                let query = filters.query(&client).await?;
                return tail(&client, &query, is_json).await;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn emit(
    client: &Client,
    name: String,
    (data, bot): (Option<Text>, Option<String>),
    is_json: bool,
) -> Result<(), Failure> {
    let mut body = Body::default();
    body.set("name", Some(name));
    if let Some(data) = data {
        let data: Value = serde_json::from_str(&data.read()?).map_err(|error| {
            Failure::of("the data is not JSON", &error, "set --data to JSON, or to @FILE for a file with JSON")
        })?;
        body.set("data", Some(data));
    }
    if let Some(bot) = bot {
        body.set("bot_id", Some(names::id(client, Noun::Bot, &bot).await?));
    }
    let made = client.post(&["api", "events"], Some(&body.whole())).await?;
    if is_json {
        return output::json(&made);
    }
    output::note(&format!("made an event of type {}", output::plain(&output::cell(&made["event_type"]))));
    output::line(output::plain(&names::text(&made, "event_id")?))
}

/// Returns the kind and the id of the object that an event is about.
fn source(event: &Value) -> String {
    format!("{}/{}", output::cell(&event["source_type"]), output::cell(&event["source_id"]))
}

async fn show(client: &Client, id: EventId, is_json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 8] = [
        ("id", "id"),
        ("type", "event_type"),
        ("source", "source"),
        ("bot", "bot_id"),
        ("sequence", "sequence"),
        ("created", "created_at"),
        ("metadata", "metadata"),
        ("data", "data"),
    ];
    let mut event = client.get(&["api", "events", &id.to_string()], &[]).await?;
    if is_json {
        return output::json(&event);
    }
    event["source"] = Value::String(source(&event));
    output::given_fields(&event, &FIELDS)?;
    let deliveries = event["deliveries"].as_array().map(Vec::as_slice).unwrap_or_default();
    if deliveries.is_empty() {
        output::note("the event has no deliveries");
        return Ok(());
    }
    output::line("")?;
    super::delivery::table(deliveries)
}

/// Prints events until the process is stopped. After a lost connection, continues after the last event.
async fn tail(client: &Client, query: &[(&str, String)], is_json: bool) -> Result<ExitCode, Failure> {
    let mut events = Events::open(client, &["api", "events"], query).await?;
    loop {
        let event = events.next().await?;
        let data = event.json()?;
        if event.name == "error" {
            return Err(Failure::new(output::cell(&data["title"]), "check the server's log"));
        }
        // Other events of the stream say something about the stream itself.
        if !data["event_type"].is_string() {
            continue;
        }
        match is_json {
            true => output::json_line(&data)?,
            false => output::line(output::plain(&line(&data)))?,
        }
    }
}

/// Returns an event on one line.
fn line(event: &Value) -> String {
    let cells = [
        output::cell(&event["created_at"]),
        output::cell(&event["event_type"]),
        source(event),
        event["data"].to_string(),
    ];
    cells.join("  ").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = json!({
            "event_type": "custom.x", "source_type": "webhook", "source_id": "w", "created_at": "t",
            "data": { "body": "a\nb" },
        });
        assert_eq!(line(&event), r#"t  custom.x  webhook/w  {"body":"a\nb"}"#);
    }
}
