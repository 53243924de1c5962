//! Connections that send no complete request. Such connections do not prevent other clients from using the server, and
//! the server closes the connections after a time-out.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::{join_all, try_join_all};
use support::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::world::World;

/// A time-out that is far longer than any operation needs. It passes only if the server hangs.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Time-out for the head of a request.
const HEAD_MAX: Duration = Duration::from_secs(10);
const IN_ALL: usize = 60;
const PER_ADDRESS: usize = 40;

const UNFINISHED: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-a: ";
const WHOLE: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

async fn crowded() -> Result<(World, SocketAddr)> {
    let server = Server::prepare(&[])?;
    let server = server.argument(&format!("--max-connections={IN_ALL}"));
    let world = World::on(server.argument(&format!("--max-connections-per-address={PER_ADDRESS}"))).await?;
    let address =
        world.server.url().and_then(|url| url.strip_prefix("http://")).context("the server is not running")?.parse()?;
    Ok((world, address))
}

/// Opens a connection from this loopback address and sends `sent` on it.
async fn connect(from: &str, to: SocketAddr, sent: &[u8]) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from.parse::<IpAddr>()?, 0))?;
    let mut stream = socket.connect(to).await?;
    // The server may already have closed the connection.
    drop(stream.write_all(sent).await);
    Ok(stream)
}

/// Reads until the connection ends and returns the beginning of the first line.
async fn told(stream: &mut TcpStream) -> Result<String> {
    let mut bytes = Vec::new();
    let read = timeout(WAIT_MAX, stream.read_to_end(&mut bytes))
        .await
        .context("timed out waiting for the server to close the connection")?;
    // A reset also ends the connection.
    drop(read);
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().next().unwrap_or_default().chars().take("HTTP/1.1 200".len()).collect())
}

#[tokio::test]
async fn idle_heads_of_one_address_shut_no_other_out_and_end_after_ten_seconds() -> Result<()> {
    let (world, address) = crowded().await?;
    let began = Instant::now();
    let idle = try_join_all((0..2 * PER_ADDRESS).map(|_| connect("127.0.0.1", address, UNFINISHED))).await?;
    let mut other = connect("127.0.0.2", address, WHOLE).await?;
    assert_eq!(told(&mut other).await?, "HTTP/1.1 200", "another address");
    let ends =
        join_all(idle.into_iter().map(async |mut stream| told(&mut stream).await.map(|told| (told, began.elapsed()))));
    let ends = ends.await.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(ends.iter().all(|(told, _)| told.is_empty() || told == "HTTP/1.1 503"), "{ends:?}");
    let held = ends.iter().filter(|(_, after)| *after >= HEAD_MAX).count();
    ensure!((1..=PER_ADDRESS).contains(&held), "{held} connections were open until the time-out for a head");
    let mut again = connect("127.0.0.1", address, WHOLE).await?;
    assert_eq!(told(&mut again).await?, "HTTP/1.1 200", "the address still has no free connections");
    let (_, metrics) = world.api.get("/metrics").await?;
    let metrics = metrics.as_str().unwrap_or_default().to_owned();
    for line in [r#"monstrum_http_connections_refused_total{limit="address"} "#, "monstrum_http_connections_max 60"] {
        ensure!(metrics.contains(line), "the metrics do not contain `{line}`: {metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn heads_without_an_end_take_64_kib_each_at_most() -> Result<()> {
    let (world, address) = crowded().await?;
    let mut head = UNFINISHED.to_vec();
    head.resize(370 << 10, b'a');
    let before = world.resident_kib()?;
    // Uses only half of the connection limit, so that no connection is refused because of it.
    for _ in 0..5 {
        let unfinished = try_join_all((0..PER_ADDRESS / 2).map(|_| connect("127.0.0.1", address, &head))).await?;
        let ends = join_all(unfinished.into_iter().map(async |mut stream| told(&mut stream).await)).await;
        let ends = ends.into_iter().collect::<Result<Vec<_>>>()?;
        // A reset may discard the response, but does not do so every time. A connection that reaches the time-out ends
        // with no response.
        ensure!(ends.iter().all(|told| matches!(told.as_str(), "HTTP/1.1 431" | "")), "{ends:?}");
        ensure!(
            ends.iter().any(|told| !told.is_empty()),
            "no connection was rejected because of the length of its head"
        );
    }
    let grown = world.resident_kib()?.saturating_sub(before);
    ensure!(grown < 16 << 10, "the memory of the server grew by {grown} KiB");
    Ok(())
}
