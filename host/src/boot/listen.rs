//! The accept loop. Connections are counted and have time limits before their API key is known.
//!
//! hyper has no time limit for the first byte of a connection. This module enforces time limits by watching the bytes
//! that are read and written (`activity.rs`). The gateway limits the time of a request body, because only a handler
//! knows when it waits for the body.

mod activity;
mod descriptors;
mod room;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use monstrum_types::RequestId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::config::Connections;
use crate::gateway::{Pace, Problem};
use activity::{Activity, Tracked, Verdict, Watched};
use monstrum_core::meters::{self, RefusedBy};
use room::{Room, Seat};

pub(super) use descriptors::raise as raise_descriptors;

/// The maximum length of a request's head. Keys, ids and a few headers need less than 2 KiB; proxies add some cookies.
/// The server may buffer a head of this length for each connection before the API key is known.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The maximum number of concurrent requests on one HTTP/2 connection. The value is the default of hyper. It is set
/// explicitly, so that an update of hyper cannot raise the limit.
const STREAMS_MAX: u32 = 200;
/// The interval of pings on an idle HTTP/2 connection, and the time-out of a ping. A call runs for up to 30 s, so the
/// server detects a disconnected client within about the time of one call.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The delay after a connection could not be accepted, for example because the process has no descriptor left. Without
/// the delay, the accept loop would keep one processor busy.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of refused connections that get an answer at the same time. Further refused connections are
/// closed without an answer, because each answer uses a descriptor from the half that is reserved for the database,
/// plugins and files.
const REFUSALS_AT_ONCE: usize = 32;
/// The time limit for a refused client to read the answer.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// The minimum time between two log lines about refused connections.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// The maximum number of unsent bytes of an answer that the kernel buffers. With this limit, the written bytes show how
/// much the client has read. Without it, the kernel would accept megabytes at once and then no more bytes for minutes.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 16 << 10;

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The limit from the first to the last byte of a request's head. On a new connection, the time starts when the
    /// connection is accepted. A head of a few KiB takes well under a second on any network.
    pub head: Duration,
    /// The limit between two requests. The limit exceeds the 60 s for which proxies keep connections open by default.
    /// If the server closed a connection first, a request of the proxy could fail.
    pub idle: Duration,
    /// The minimum speed at which a client must read an answer. Only the time with unsent bytes counts.
    pub write: Pace,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { head: Duration::from_secs(10), idle: Duration::from_secs(75), write: Pace::DEFAULT }
    }
}

/// Serves `router` on `listener` until `stop` is cancelled, then returns after the requests in progress are answered.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Connections,
    patience: Patience,
    stop: CancellationToken,
) -> io::Result<()> {
    let room = Room::new(connections, descriptors::limit());
    meters::connections_max(room.in_all());
    let server = Server { router: router.with_state(()), patience, stop };
    let open = TaskTracker::new();
    let refusals = Arc::new(Semaphore::new(REFUSALS_AT_ONCE));
    let (mut refused, mut failed) = (LogInterval::default(), LogInterval::default());
    while let Some(accepted) = server.stop.run_until_cancelled(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            // The client disconnected before the server accepted the connection.
            Err(error) if is_of_the_client(&error) => continue,
            Err(error) => {
                if let Some(times) = failed.count() {
                    tracing::error!(%error, times, "a connection cannot be accepted");
                }
                // A stop ends this delay early.
                server.stop.run_until_cancelled(sleep(ACCEPT_PAUSE)).await;
                continue;
            }
        };
        match room.enter(peer.ip()) {
            Ok(seat) => {
                prepare(&stream);
                open.spawn(server.clone().connection(stream, seat));
            }
            Err(by) => {
                meters::connection_refused(by);
                if let Some(times) = refused.count() {
                    log_refusal(by, peer, times);
                }
                if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
                    open.spawn(refuse(stream, by, permit));
                }
            }
        }
    }
    drop(listener);
    open.close();
    open.wait().await;
    Ok(())
}

fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Sets the socket options of a connection. Options that the operating system rejects are skipped.
fn prepare(stream: &TcpStream) {
    // Each answer is written at once, so Nagle's algorithm would only delay it.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT cannot be set");
    }
}

/// The state that all connections share.
#[derive(Clone)]
struct Server {
    router: Router,
    patience: Patience,
    stop: CancellationToken,
}

impl Server {
    /// Serves one connection until it closes or becomes a WebSocket. `seat` is the permit of the connection, which ends
    /// with the stream.
    async fn connection<S>(self, stream: S, seat: Seat)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let activity = Arc::new(Activity::new(self.patience));
        let service = service_fn(|request: Request<Incoming>| {
            let turn = Activity::begin(&activity, request.version());
            let answer = self.router.clone().oneshot(request.map(Body::new));
            async move {
                let answer = answer.await?;
                Ok::<_, Infallible>(answer.map(|body| Tracked::new(body, turn)))
            }
        });
        let builder = builder();
        let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity), seat));
        let mut connection = std::pin::pin!(builder.serve_connection_with_upgrades(io, service));
        let mut stopped = std::pin::pin!(self.stop.cancelled());
        let (mut is_stopping, mut is_draining) = (false, false);
        let mut check = std::pin::pin!(sleep_until(activity.next_check()));
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::trace!(error, "a connection failed");
                    }
                    return;
                }
                () = &mut stopped, if !is_stopping => {
                    is_stopping = true;
                    if activity.is_without_request() {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                }
                () = check.as_mut() => {
                    match activity.judge() {
                        Verdict::Stays => {}
                        Verdict::Drains if is_draining => {}
                        Verdict::Drains => {
                            is_draining = true;
                            connection.as_mut().graceful_shutdown();
                        }
                        Verdict::Ends(why) => {
                            tracing::debug!(why, "a connection timed out and was closed");
                            return;
                        }
                    }
                    check.as_mut().reset(activity.next_check());
                }
            }
        }
    }
}

/// Returns the builder of a server for HTTP/1.1, and for HTTP/2 with prior knowledge.
fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Sends the answer to a client whose connection is refused.
async fn refuse(mut stream: TcpStream, by: RefusedBy, _permit: OwnedSemaphorePermit) {
    let told = async {
        stream.write_all(refusal(by).as_bytes()).await?;
        stream.shutdown().await?;
        // Closing before the request is read would reset the connection, and the client might lose the answer.
        let mut request = [0; 4096];
        while stream.read(&mut request).await? > 0 {}
        io::Result::Ok(())
    };
    // If the client does not read in time, only the answer is lost.
    drop(timeout(REFUSAL_MAX, told).await);
}

/// Returns the 503 answer of a refused connection, whose request is not read.
fn refusal(by: RefusedBy) -> String {
    let detail = match by {
        RefusedBy::Host => "the server has reached its connection limit; try again later",
        RefusedBy::Address => "too many connections from this address; close some of them",
    };
    let body = Problem::unavailable(detail).text(&RequestId::new().to_string());
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn log_refusal(by: RefusedBy, peer: SocketAddr, times: u64) {
    let address: IpAddr = peer.ip();
    let limit = by.as_str();
    tracing::warn!(%address, limit, refused = times, "refused connections: the connection limit has been reached");
}

/// Counts events that are logged at most once a minute, so that a flood cannot fill the log.
#[derive(Default)]
struct LogInterval {
    since: Option<Instant>,
    events: u64,
}

impl LogInterval {
    /// Counts one event. If a log line is due, returns the number of events since the last line.
    fn count(&mut self) -> Option<u64> {
        self.events += 1;
        if self.since.is_some_and(|since| since.elapsed() < LOGGED_EVERY) {
            return None;
        }
        self.since = Some(Instant::now());
        Some(std::mem::take(&mut self.events))
    }
}

#[cfg(test)]
mod patience_tests;
#[cfg(test)]
mod tests;
