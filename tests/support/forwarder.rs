//! A forwarder for MCP clients that cannot send a key: it adds the header `Authorization` to each request, and changes
//! nothing else.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use anyhow::{Result, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The maximum size of the head of a request, in bytes.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// A port of this machine. Dropping the value closes it to new connections.
pub struct Forwarder {
    address: SocketAddr,
    target: Arc<OnceLock<Target>>,
    accepting: JoinHandle<()>,
}

struct Target {
    server: SocketAddr,
    key: String,
}

impl Forwarder {
    /// Opens the port. Connections fail until the forwarder has a server, which may need the address of the forwarder
    /// for its start.
    pub async fn open() -> Result<Forwarder> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let target = Arc::default();
        let accepting = tokio::spawn(accept(listener, Arc::clone(&target)));
        Ok(Forwarder { address, target, accepting })
    }

    /// Returns the address to which clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the server, and the key that requests get. May be called once.
    pub fn forward_to(&self, server: SocketAddr, key: &str) -> Result<()> {
        let is_first = self.target.set(Target { server, key: key.to_owned() }).is_ok();
        ensure!(is_first, "the forwarder already has a server");
        Ok(())
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: Arc<OnceLock<Target>>) {
    while let Ok((client, _)) = listener.accept().await {
        let target = Arc::clone(&target);
        tokio::spawn(async move {
            if let Some(target) = target.get() {
                // When one side closes the connection, the forwarder also closes the other side.
                drop(carry(client, target).await);
            }
        });
    }
}

async fn carry(client: TcpStream, target: &Target) -> io::Result<()> {
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = TcpStream::connect(target.server).await?.into_split();
    tokio::select! {
        ended = forward(BufReader::new(from_client), to_server, &target.key) => ended,
        ended = tokio::io::copy(&mut from_server, &mut to_client) => ended.map(drop),
    }
}

/// Forwards one request after another, until the client closes the connection.
async fn forward(mut from: BufReader<OwnedReadHalf>, mut to: OwnedWriteHalf, key: &str) -> io::Result<()> {
    loop {
        let head = read_head(&mut from).await?;
        let Some((first, rest)) = head.split_once("\r\n") else { return Ok(()) };
        let body_bytes = body_bytes(rest)?;
        to.write_all(format!("{first}\r\nAuthorization: Bearer {key}\r\n{rest}").as_bytes()).await?;
        if tokio::io::copy(&mut (&mut from).take(body_bytes), &mut to).await? < body_bytes {
            return Ok(());
        }
    }
}

/// Reads a head with the empty line at its end. Returns an empty text at the end of the connection.
async fn read_head(from: &mut BufReader<OwnedReadHalf>) -> io::Result<String> {
    let mut head = String::new();
    let mut from = from.take(HEAD_BYTES_MAX);
    while from.read_line(&mut head).await? > 0 {
        if head.ends_with("\r\n\r\n") {
            return Ok(head);
        }
    }
    if head.is_empty() { Ok(head) } else { Err(io::Error::other("the head of a request is cut off or too long")) }
}

fn body_bytes(headers: &str) -> io::Result<u64> {
    let mut bytes = 0;
    for (name, value) in headers.lines().filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(io::Error::other("the forwarder takes no body in chunks"));
        }
        if name.eq_ignore_ascii_case("content-length") {
            bytes = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_get_the_key_and_are_otherwise_unchanged() -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let forwarder = Forwarder::open().await?;
        forwarder.forward_to(listener.local_addr()?, "mk_key")?;
        let mut client = TcpStream::connect(forwarder.address()).await?;
        let first = "POST /mcp/a HTTP/1.1\r\nhost: evil.example\r\nOrigin:  http://evil.example \r\nContent-Length: 5\r\n\r\na\r\n\r\n";
        let second = "GET /mcp/a HTTP/1.1\r\nHOST: 127.0.0.1:1\r\n\r\n";
        client.write_all(format!("{first}{second}").as_bytes()).await?;
        let (mut server, _) = listener.accept().await?;
        let with_key = |request: &str| request.replacen("\r\n", "\r\nAuthorization: Bearer mk_key\r\n", 1);
        let expected = with_key(first) + &with_key(second);
        let mut received = vec![0; expected.len()];
        server.read_exact(&mut received).await?;
        assert_eq!(String::from_utf8(received)?, expected);

        // The answer arrives unchanged, and the end of the connection too.
        let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nany bytes";
        server.write_all(answer.as_bytes()).await?;
        drop(server);
        let mut received = String::new();
        client.read_to_string(&mut received).await?;
        assert_eq!(received, answer);
        Ok(())
    }
}
