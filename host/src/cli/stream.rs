//! Streams of server-sent events, which commands follow over lost connections.

use std::process::ExitCode;
use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};

use super::client::{Client, NOT_MONSTRUM, NotFollowed};
use super::failure::Failure;
use super::output;

/// The maximum time between two pieces of the stream. The server sends a comment every 15 seconds.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The time before a command connects again.
const RETRY: Duration = Duration::from_secs(1);
/// The number of attempts to connect again, enough for a restart of a server.
const RETRIES_MAX: u32 = 60;
/// The maximum size of an event. The largest is a step of a task with a result of 1 MiB, whose escapes can make it longer.
const EVENT_BYTES_MAX: usize = 8 << 20;

/// A server-sent event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) name: String,
    pub(super) data: String,
}

impl Event {
    /// Returns the data.
    pub(super) fn json(&self) -> Result<Value, Failure> {
        serde_json::from_str(&self.data)
            .map_err(|error| Failure::of("the server's event is not JSON", &error, NOT_MONSTRUM))
    }
}

/// Follows the events of a task or a run until its end, and prints each as a line of JSON or by `print`. The exit code says
/// whether it is completed.
pub(super) async fn until_its_end(
    client: &Client,
    path: &[&str],
    is_json: bool,
    mut print: impl FnMut(&str, &Value) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let mut events = Events::open(client, path, &[]).await?;
    loop {
        let event = events.next().await?;
        let data = event.json()?;
        if is_json {
            output::json_line(&json!({ "event": event.name, "data": data }))?;
        } else {
            print(&event.name, &data)?;
        }
        match event.name.as_str() {
            "end" if data["status"] == "completed" => return Ok(ExitCode::SUCCESS),
            "end" => return Ok(ExitCode::FAILURE),
            "error" => return Err(Failure::new(output::cell(&data["title"]), "check the server's log")),
            _ => {}
        }
    }
}

/// The events of a route.
pub(super) struct Events<'a> {
    client: &'a Client,
    path: &'a [&'a str],
    query: &'a [(&'a str, String)],
    response: Response,
    parser: Parser,
    /// The id of the last event.
    last: Option<String>,
}

impl<'a> Events<'a> {
    /// Begins to follow a route.
    pub(super) async fn open(
        client: &'a Client,
        path: &'a [&'a str],
        query: &'a [(&'a str, String)],
    ) -> Result<Events<'a>, Failure> {
        let response = client.follow(path, query, None).await?;
        Ok(Events { client, path, query, response, parser: Parser::default(), last: None })
    }

    /// Waits for the next event. After a lost connection, connects again and continues after the last event.
    pub(super) async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            if let Some(event) = self.parser.next(&mut self.last) {
                return Ok(event);
            }
            match tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await {
                Ok(Ok(Some(chunk))) => self.parser.add(&chunk)?,
                _ => self.connect_again().await?,
            }
        }
    }

    async fn connect_again(&mut self) -> Result<(), Failure> {
        output::note("the connection was lost; connecting again");
        let mut attempt = 0;
        self.response = loop {
            tokio::time::sleep(RETRY).await;
            attempt += 1;
            match self.client.follow(self.path, self.query, self.last.as_deref()).await {
                Ok(response) => break response,
                Err(NotFollowed::Away(_)) if attempt < RETRIES_MAX => {}
                Err(reason) => return Err(reason.into()),
            }
        };
        // The rest of an event that was cut comes again.
        self.parser = Parser::default();
        Ok(())
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
