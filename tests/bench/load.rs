//! A load generator: connections that stay open, each sending its request again as soon as it has the answer.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::sample::Sample;
use crate::scene::SUCCESS;

/// Loads the server at `address`, one connection for each of `requests`, and gives the times of all answers.
pub async fn run(address: &str, requests: &[Vec<u8>], duration: Duration) -> Result<Sample> {
    let mut connections = JoinSet::new();
    let mut streams = Vec::with_capacity(requests.len());
    for _ in requests {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let began = Instant::now();
    for (stream, request) in streams.into_iter().zip(requests) {
        connections.spawn(connection(stream, request.clone(), began + duration));
    }
    let mut times = Vec::new();
    while let Some(ended) = connections.join_next().await {
        times.extend(ended.context("a connection's task failed")??);
    }
    ensure!(!times.is_empty(), "{address} answered nothing");
    Ok(Sample::new(times, began.elapsed()))
}

async fn connection(mut stream: TcpStream, request: Vec<u8>, until: Instant) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let mut buffer = Vec::with_capacity(16 << 10);
    loop {
        let sent = Instant::now();
        if sent >= until {
            return Ok(times);
        }
        stream.write_all(&request).await?;
        answer(&mut stream, &mut buffer).await?;
        times.push(sent.elapsed());
    }
}

/// Reads one answer and checks that it is a success.
async fn answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<()> {
    buffer.clear();
    let mut whole = None;
    loop {
        if whole.is_none() {
            whole = bytes_of_answer(buffer)?;
        }
        if whole.is_some_and(|whole| buffer.len() >= whole) {
            break;
        }
        if stream.read_buf(buffer).await? == 0 {
            bail!("the server closed the connection");
        }
    }
    let is_success = buffer.starts_with(b"HTTP/1.1 200 ") && memmem::find(buffer, SUCCESS).is_some();
    ensure!(is_success, "not a success: {}", String::from_utf8_lossy(buffer));
    Ok(())
}

/// The length of head and body, once the head is there.
fn bytes_of_answer(read: &[u8]) -> Result<Option<usize>> {
    const LENGTH: &[u8] = b"content-length: ";
    let Some(end) = memmem::find(read, b"\r\n\r\n") else { return Ok(None) };
    let head = &read[..end];
    let at = memmem::find(head, LENGTH).with_context(|| format!("no length: {}", String::from_utf8_lossy(head)))?;
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
}
