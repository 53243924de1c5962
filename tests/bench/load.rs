//! A load generator. Each connection stays open and sends the next request as soon as the answer arrives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::sample::Sample;
use crate::scene::SUCCESS;

/// The results of many connections.
pub struct Load {
    pub sample: Sample,
    /// The number of failed answers.
    pub failed: usize,
    /// An example of the failed answers.
    failure: Option<String>,
}

impl Load {
    /// Returns the times, or an error if any call failed.
    fn all_well(self) -> Result<Sample> {
        match self.failure {
            Some(failure) => bail!("{} calls failed; an example: {failure}", self.failed),
            None => Ok(self.sample),
        }
    }
}

/// Loads the server at `address` over one connection per request, and returns the times of all answers. Fails if any
/// call fails.
pub async fn run(address: &str, requests: &[Vec<u8>], duration: Duration) -> Result<Sample> {
    count(address, requests, duration).await?.all_well()
}

/// Like [`run`], but distributes the connections over several servers.
pub async fn run_on(addresses: &[String], requests: &[Vec<u8>], duration: Duration) -> Result<Sample> {
    drive(addresses, alone(requests), duration).await?.all_well()
}

/// Returns one list for each request.
fn alone(requests: &[Vec<u8>]) -> Vec<Arc<[Vec<u8>]>> {
    requests.iter().map(|request| Arc::from([request.clone()])).collect()
}

/// Like [`run`], but counts failed calls.
pub async fn count(address: &str, requests: &[Vec<u8>], duration: Duration) -> Result<Load> {
    drive(&[address.to_owned()], alone(requests), duration).await
}

/// Loads the server at `address` over `connections` connections. Each connection sends all `requests` one after
/// another.
pub async fn in_turn(address: &str, requests: &[Vec<u8>], connections: usize, duration: Duration) -> Result<Sample> {
    let rotated = |first: usize| [&requests[first % requests.len()..], &requests[..first % requests.len()]].concat();
    let step = requests.len().div_ceil(connections);
    let each = (0..connections).map(|number| Arc::from(rotated(number * step))).collect();
    drive(&[address.to_owned()], each, duration).await?.all_well()
}

/// Sends one request repeatedly over one connection, and returns the times of the answers.
pub async fn again(address: &str, request: &[u8], duration: Duration) -> Result<Sample> {
    let mut connection = Connection::open(address).await?;
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < duration {
        let sent = Instant::now();
        let answer = connection.ask(request).await?;
        times.push(sent.elapsed());
        ensure!(answer.has_status(200), "{answer}");
    }
    ensure!(!times.is_empty(), "{address} sent no answers");
    Ok(Sample::new(times, began.elapsed()))
}

/// Loads the servers at `addresses` in turn, over one connection per list of requests.
async fn drive(addresses: &[String], requests: Vec<Arc<[Vec<u8>]>>, duration: Duration) -> Result<Load> {
    let mut connections = Vec::with_capacity(requests.len());
    for address in addresses.iter().cycle().take(requests.len()) {
        connections.push(Connection::open(address).await?);
    }
    let mut tasks = JoinSet::new();
    let began = Instant::now();
    for (connection, requests) in connections.into_iter().zip(requests) {
        tasks.spawn(again_and_again(connection, requests, began + duration));
    }
    let (mut times, mut failed, mut failure) = (Vec::new(), 0, None);
    while let Some(ended) = tasks.join_next().await {
        let seen = ended.context("a connection's task failed")??;
        times.extend(seen.times);
        failed += seen.failed;
        failure = failure.or(seen.failure);
    }
    ensure!(!times.is_empty(), "{} sent no answers", addresses.join(" and "));
    Ok(Load { sample: Sample::new(times, began.elapsed()), failed, failure })
}

/// Sends `a_second` requests per second at fixed times over one connection per element of `requests`, even if earlier
/// requests are not answered yet. The time of a request starts when the request is due, so a request that waits for a
/// connection counts as late.
pub async fn paced(address: String, requests: Vec<Vec<u8>>, a_second: f64, duration: Duration) -> Result<Sample> {
    let (due, queue) = mpsc::unbounded_channel::<Instant>();
    let queue = Arc::new(Mutex::new(queue));
    let mut tasks = JoinSet::new();
    for request in requests {
        let mut connection = Connection::open(&address).await?;
        let queue = Arc::clone(&queue);
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                // The lock is held during the wait: one connection waits for the next due time, and the other
                // connections wait for the lock.
                let Some(at) = queue.lock().await.recv().await else { return anyhow::Ok(times) };
                let answer = connection.ask(&request).await?;
                ensure!(answer.is_success(), "a call failed: {answer}");
                times.push(at.elapsed());
            }
        });
    }
    let began = Instant::now();
    // A thread is used because a timer of the runtime has a resolution of a millisecond.
    let clock = std::thread::spawn(move || {
        let count = (a_second * duration.as_secs_f64()) as u64;
        for number in 0..count {
            let at = began + Duration::from_secs_f64(number as f64 / a_second);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if due.send(at).is_err() {
                return;
            }
        }
    });
    let mut times = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        times.extend(ended.context("a connection's task failed")??);
    }
    clock.join().ok().context("the thread that starts the requests panicked")?;
    ensure!(!times.is_empty(), "{address} sent no answers");
    Ok(Sample::new(times, began.elapsed()))
}

#[derive(Default)]
struct Seen {
    times: Vec<Duration>,
    failed: usize,
    failure: Option<String>,
}

async fn again_and_again(mut connection: Connection, requests: Arc<[Vec<u8>]>, until: Instant) -> Result<Seen> {
    let mut seen = Seen::default();
    for request in requests.iter().cycle() {
        let sent = Instant::now();
        if sent >= until {
            break;
        }
        let answer = connection.ask(request).await?;
        seen.times.push(sent.elapsed());
        if !answer.is_success() {
            seen.failed += 1;
            seen.failure.get_or_insert_with(|| answer.to_string());
        }
    }
    Ok(seen)
}

/// The end of an answer of the Model Context Protocol that indicates a successful call.
const MCP_SUCCESS: &[u8] = br#""isError":false}}"#;

/// An HTTP/1.1 connection that sends one request after another.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// A complete answer, with head and body.
pub struct Answer<'a>(&'a [u8]);

impl Connection {
    /// Connects to the server at `address`.
    pub async fn open(address: &str) -> Result<Connection> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(16 << 10) })
    }

    /// Sends a request and reads its answer.
    pub async fn ask(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.send(request).await?;
        self.answer().await
    }

    /// Sends a request.
    pub async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await.context("cannot send a request")
    }

    /// Reads an answer.
    pub async fn answer(&mut self) -> Result<Answer<'_>> {
        self.buffer.clear();
        let mut whole = None;
        loop {
            if whole.is_none() {
                whole = bytes_of_answer(&self.buffer)?;
            }
            if whole.is_some_and(|whole| self.buffer.len() >= whole) {
                return Ok(Answer(&self.buffer));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                bail!("the server closed the connection");
            }
        }
    }
}

impl Answer<'_> {
    /// Returns whether the call succeeded.
    pub fn is_success(&self) -> bool {
        self.has_status(200) && (self.holds(SUCCESS) || self.0.ends_with(MCP_SUCCESS))
    }

    /// Returns the body.
    pub fn body(&self) -> &[u8] {
        const END: &[u8] = b"\r\n\r\n";
        memmem::find(self.0, END).map_or(&[], |end| &self.0[end + END.len()..])
    }

    /// Returns whether the HTTP status is `status`.
    pub fn has_status(&self, status: u16) -> bool {
        self.0.starts_with(format!("HTTP/1.1 {status} ").as_bytes())
    }

    /// Returns whether the start of the answer contains `part`. The outcome of a call precedes its data.
    pub fn holds(&self, part: &[u8]) -> bool {
        const HEAD_BYTES_MAX: usize = 2048;
        memmem::find(&self.0[..self.0.len().min(HEAD_BYTES_MAX)], part).is_some()
    }
}

impl std::fmt::Display for Answer<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN_BYTES_MAX: usize = 600;
        formatter.write_str(&String::from_utf8_lossy(&self.0[..self.0.len().min(SHOWN_BYTES_MAX)]))
    }
}

/// Returns the length of the head and the body, once the head is complete.
fn bytes_of_answer(read: &[u8]) -> Result<Option<usize>> {
    const LENGTH: &[u8] = b"content-length: ";
    let Some(end) = memmem::find(read, b"\r\n\r\n") else { return Ok(None) };
    let head = &read[..end];
    let at = memmem::find(head, LENGTH)
        .with_context(|| format!("the answer has no content-length: {}", String::from_utf8_lossy(head)))?;
    let digits = head[at + LENGTH.len()..].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let body: usize = std::str::from_utf8(digits)?.parse()?;
    Ok(Some(end + 4 + body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_an_answer_is_that_of_head_and_body() {
        assert_eq!(bytes_of_answer(b"HTTP/1.1 200 OK\r\ncontent-le").unwrap(), None);
        assert_eq!(bytes_of_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe").unwrap(), Some(43));
        assert!(bytes_of_answer(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn only_a_success_is_one() {
        let is_success = |answer: &str| Answer(answer.as_bytes()).is_success();
        assert!(is_success("HTTP/1.1 200 OK\r\n\r\n{\"request_id\":\"1\",\"status\":\"success\"}"));
        assert!(!is_success("HTTP/1.1 200 OK\r\n\r\n{\"request_id\":\"1\",\"status\":\"error\"}"));
        assert!(!is_success("HTTP/1.1 429 Too Many Requests\r\n\r\n{\"status\":\"success\"}"));
    }
}
