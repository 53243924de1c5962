//! The accept loop: every connection to the server comes in here, counted and with time limits, before any key is known.
//!
//! hyper has no limit of its own that covers the time before the first byte, so the limits of time are kept here, by
//! what is read, written and answered (`activity.rs`). How fast a body arrives is the gateway's to judge, because only a
//! handler knows when it waits for one.

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
use crate::meters::{self, RefusedBy};
use activity::{Activity, Tracked, Verdict, Watched};
use room::{Room, Seat};

pub use descriptors::raise as raise_descriptors;

/// The longest head of a request. Keys, ids and a few headers take less than 2 KiB; proxies add some cookies. Each
/// connection may make the server hold this much before its key is known.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Requests at once on one connection of HTTP/2: hyper's own default, stated so that an update cannot raise it.
const STREAMS_MAX: u32 = 200;
/// How often the other end of a quiet connection of HTTP/2 is asked whether it is still there, and how long it may take
/// to say so. A call takes up to 30 s, so this finds a client that is gone within about the time of one.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long to wait when a connection cannot be accepted, as when the process has no descriptor left. Trying again at
/// once would take a whole processor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that are told at once why they are refused; all further ones are closed without a word. Each holds a
/// descriptor of those that are kept back for other uses.
const REFUSALS_AT_ONCE: usize = 32;
/// How long a refused client may take to read why.
const REFUSAL_MAX: Duration = Duration::from_secs(1);
/// How often the log says that connections are refused, or cannot be accepted.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// How much of an answer the kernel holds before it is sent. What is written then says what the client has read, to
/// within half of this: without a limit the kernel takes megabytes at once and nothing for minutes after that.
#[cfg(target_os = "linux")]
const UNSENT_BYTES_MAX: u32 = 16 << 10;

/// How long a connection may keep the server waiting.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first byte of a request's head to its last one; on a new connection, from when it was accepted. A head
    /// of a few KiB takes well under a second on any line.
    pub head: Duration,
    /// Between two requests. Above the 60 s that proxies keep a connection open for by default, since one that the
    /// server closes first costs them a failed request now and then.
    pub idle: Duration,
    /// How fast an answer has to be read. Time counts while there is something to send.
    pub write: Pace,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { head: Duration::from_secs(10), idle: Duration::from_secs(75), write: Pace::DEFAULT }
    }
}

/// Serves `router` on `listener` until `stop` is cancelled, then ends once the open connections have had their answers.
pub async fn serve(
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
            // The client has gone away before it was accepted.
            Err(error) if is_of_the_client(&error) => continue,
            Err(error) => {
                if let Some(times) = failed.count() {
                    tracing::error!(%error, times, "a connection cannot be accepted");
                }
                // Cut short by a stop, not by another failure.
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

/// Sets the options of a connection. It is served without those that the system refuses.
fn prepare(stream: &TcpStream) {
    // Answers are written whole, so waiting for more to send only delays them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set");
    }
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX) {
        tracing::debug!(%error, "TCP_NOTSENT_LOWAT cannot be set");
    }
}

/// What all connections share.
#[derive(Clone)]
struct Server {
    router: Router,
    patience: Patience,
    stop: CancellationToken,
}

impl Server {
    /// Serves one connection to its end. `_seat` is its place among all.
    async fn connection<S>(self, stream: S, _seat: Seat)
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
        let io = TokioIo::new(Watched::new(stream, Arc::clone(&activity)));
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
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
                            tracing::debug!(why, "a connection took too long and was closed");
                            return;
                        }
                    }
                    check.as_mut().reset(activity.next_check());
                }
            }
        }
    }
}

/// HTTP/1.1, and HTTP/2 for clients that begin with it.
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

/// Tells a client that there is no room for its connection.
async fn refuse(mut stream: TcpStream, by: RefusedBy, _permit: OwnedSemaphorePermit) {
    let told = async {
        stream.write_all(refusal(by).as_bytes()).await?;
        stream.shutdown().await?;
        // Closing before the request is read would reset the connection, and the client might not see the answer.
        let mut request = [0; 4096];
        while stream.read(&mut request).await? > 0 {}
        io::Result::Ok(())
    };
    // A client that does not read loses the answer only.
    drop(timeout(REFUSAL_MAX, told).await);
}

/// The answer to a request that is not read.
fn refusal(by: RefusedBy) -> String {
    let detail = match by {
        RefusedBy::Host => "the server has no room for another connection",
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
    tracing::warn!(%address, limit = by.label(), refused = times, "connections are refused: too many are open");
}

/// Counts events of which the log has a line once a minute at most: a flood of them must not fill it.
#[derive(Default)]
struct LogInterval {
    since: Option<Instant>,
    events: u64,
}

impl LogInterval {
    /// Counts one. If a line is due, tells how many events there were since the one before, with this one.
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
