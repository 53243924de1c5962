//! `monstrum logs`: the newest calls, and with `--follow` each call as it ends.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use reqwest::Response;
use serde_json::Value;

use super::audit::Filters;
use super::client::{Client, NOT_MONSTRUM, NotFollowed};
use super::failure::Failure;
use super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum logs                                     the newest 20 calls, the newest last
  monstrum logs --follow                            each call as it ends, until Ctrl-C
  monstrum logs --follow --status permission_denied
  monstrum logs --follow --json | jq .tool          one JSON object on each line";

/// The maximum time between two pieces of the stream. The server sends a comment every 15 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The time before the command connects again.
const RETRY: Duration = Duration::from_secs(1);
/// The number of attempts to connect again, enough for a restart of a server.
const RETRIES_MAX: u32 = 60;
/// The maximum size of an event. The largest is a step of a task with a result of 1 MiB, whose escapes can make it longer.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// Print the newest calls, and follow calls as they end
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Logs {
    /// Print each call as it ends, until the command is stopped
    #[arg(long, short)]
    follow: bool,
    #[command(flatten)]
    filters: Filters,
    /// The maximum number of calls, without --follow
    #[arg(
        long, value_name = "ROWS", default_value_t = 20, conflicts_with = "follow",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    limit: u32,
}

impl Logs {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let query = self.filters.query();
        if self.follow {
            return follow(&client, &query, options.json).await;
        }
        let (calls, _) = client.list(&["api", "audit"], &query, self.limit as usize).await?;
        if calls.is_empty() && !options.json {
            output::note("no calls");
        }
        for call in calls.iter().rev() {
            tell(call, options.json)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints calls until the process is stopped. After a lost connection, continues after the last call.
async fn follow(client: &Client, query: &[(&str, String)], json: bool) -> Result<ExitCode, Failure> {
    let path = ["api", "audit", "stream"];
    let mut events = Events::new(client.follow(&path, query, None).await?);
    loop {
        match events.next().await? {
            Some(event) => show(&event, json)?,
            None => {
                output::note("the connection was lost; connecting again");
                let last = events.last.take();
                let mut attempt = 0;
                let response = loop {
                    tokio::time::sleep(RETRY).await;
                    attempt += 1;
                    match client.follow(&path, query, last.as_deref()).await {
                        Ok(response) => break response,
                        Err(NotFollowed::Away(_)) if attempt < RETRIES_MAX => {}
                        Err(reason) => return Err(reason.into()),
                    }
                };
                events = Events { last, ..Events::new(response) };
            }
        }
    }
}

fn show(event: &Event, json: bool) -> Result<(), Failure> {
    let data = || {
        serde_json::from_str::<Value>(&event.data)
            .map_err(|error| Failure::of("the server's event is not JSON", &error, NOT_MONSTRUM))
    };
    match event.name.as_str() {
        "call" => tell(&data()?, json),
        "lost" => {
            let what = match data()?["count"].as_u64() {
                Some(count) => format!("{count} calls were left out"),
                None => "calls were left out".to_owned(),
            };
            output::note(&format!("{what}; `monstrum audit list` shows them"));
            Ok(())
        }
        "error" => {
            let problem = data()?;
            let message = problem["title"].as_str().unwrap_or("the server cannot read the audit").to_owned();
            Err(Failure::new(message, "check the server's log"))
        }
        _ => Ok(()),
    }
}

/// Prints one call on one line.
fn tell(call: &Value, json: bool) -> Result<(), Failure> {
    if json {
        return output::json_line(call);
    }
    let name = if call["tool"].is_null() { &call["operation"] } else { &call["tool"] };
    let mut line = ["started_at", "status"].map(|field| output::cell(&call[field])).join("  ");
    for text in [output::cell(name), output::cell(&call["request_id"])] {
        line.push_str("  ");
        line.push_str(&text);
    }
    if let Some(ms) = call["duration_ms"].as_i64() {
        line.push_str(&format!("  {ms} ms"));
    }
    if let Some(message) = call["message"].as_str() {
        line.push_str("  ");
        line.push_str(message);
    }
    // A message of several lines would look like several calls.
    output::line(output::plain(&line.replace('\n', " ")))
}

/// A server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
}

/// The events of a stream.
pub(super) struct Events {
    response: Response,
    parser: Parser,
    /// The id of the last event.
    pub(super) last: Option<String>,
}

impl Events {
    pub(super) fn new(response: Response) -> Events {
        Events { response, parser: Parser::default(), last: None }
    }

    /// Returns the next event, or `None` if the connection has ended.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(event) = self.parser.next(&mut self.last) {
                return Ok(Some(event));
            }
            let Ok(Ok(Some(chunk))) = tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await else {
                return Ok(None);
            };
            self.parser.add(&chunk)?;
        }
    }
}

/// Splits the bytes of a stream into events.
#[derive(Default)]
struct Parser(Vec<u8>);

impl Parser {
    fn add(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.0.len() + bytes.len() > EVENT_BYTES_MAX {
            return Err(Failure::new("an event of the server is too large", NOT_MONSTRUM));
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the next whole event that has data, and sets `last` to the last id before its end. A block without data,
    /// such as the comment that keeps a silent connection open, is not an event.
    fn next(&mut self, last: &mut Option<String>) -> Option<Event> {
        loop {
            let end = self.0.windows(2).position(|pair| pair == b"\n\n")?;
            let text: Vec<u8> = self.0.drain(..end + 2).collect();
            let mut event = Event::default();
            for line in String::from_utf8_lossy(&text).lines() {
                // A line without a colon in front is a field; others are comments.
                match line.split_once(':').map(|(name, value)| (name, value.strip_prefix(' ').unwrap_or(value))) {
                    Some(("id", value)) => *last = Some(value.to_owned()),
                    Some(("event", value)) => event.name = value.to_owned(),
                    Some(("data", value)) => event.data.push_str(value),
                    _ => {}
                }
            }
            if !event.data.is_empty() {
                return Some(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_with_data_are_whole_over_the_borders_of_pieces() {
        let whole = b"id: 1\n\n: comment\n\nevent: call\nid: 2\ndata: {\"a\": 1}\n\nevent: lost\ndata: {}\n\n";
        for size in 1..whole.len() {
            let (mut parser, mut last, mut events) = (Parser::default(), None, Vec::new());
            for piece in whole.chunks(size) {
                parser.add(piece).ok().unwrap();
                while let Some(event) = parser.next(&mut last) {
                    events.push(format!("{last:?} {} {}", event.name, event.data));
                }
            }
            assert_eq!(events, ["Some(\"2\") call {\"a\": 1}", "Some(\"2\") lost {}"], "pieces of {size}");
        }
        assert!(Parser::default().add(&vec![b'x'; EVENT_BYTES_MAX + 1]).is_err());
    }
}
