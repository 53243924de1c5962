//! A proxy to a server that can simulate network failures.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How the proxy handles data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All data arrives.
    Open,
    /// No data arrives, and neither side gets an error.
    Swallows,
    /// Requests arrive. The connection breaks instead of returning the answer.
    LosesAnswers,
    /// Connections break, including new connections.
    Cut,
}

/// A port of this machine that forwards to a socket. Dropping the value closes it.
pub struct Proxy {
    port: u16,
    way: watch::Sender<Way>,
    lost: Arc<AtomicBool>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy to `socket` that first lets all data arrive.
    pub async fn to(socket: PathBuf) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let way = watch::Sender::new(Way::Open);
        let lost = Arc::new(AtomicBool::new(false));
        let accepting = tokio::spawn(accept(listener, socket, way.clone(), Arc::clone(&lost)));
        Ok(Proxy { port, way, lost, accepting })
    }

    /// Returns the port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets how the proxy handles data from now on, for all connections.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// Returns whether an answer has been lost.
    #[must_use]
    pub fn has_lost_answers(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Way::Cut);
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, way: watch::Sender<Way>, lost: Arc<AtomicBool>) {
    while let Ok((client, _)) = listener.accept().await {
        let (way, lost, socket) = (way.subscribe(), Arc::clone(&lost), socket.clone());
        tokio::spawn(async move {
            // When one side closes the connection, the proxy also closes the other side.
            drop(carry(client, &socket, way, &lost).await);
        });
    }
}

async fn carry(
    mut client: TcpStream,
    socket: &PathBuf,
    mut way: watch::Receiver<Way>,
    lost: &AtomicBool,
) -> std::io::Result<()> {
    way.wait_for(|way| *way != Way::Swallows).await.map_err(std::io::Error::other)?;
    let mut server = UnixStream::connect(socket).await?;
    let (mut asked, mut answered) = ([0; 16 << 10], [0; 16 << 10]);
    loop {
        let now = *way.borrow_and_update();
        tokio::select! {
            changed = way.changed() => changed.map_err(std::io::Error::other)?,
            read = client.read(&mut asked), if now != Way::Swallows => match read? {
                0 => return Ok(()),
                bytes => server.write_all(&asked[..bytes]).await?,
            },
            read = server.read(&mut answered), if now != Way::Swallows => match read? {
                0 => return Ok(()),
                _ if now == Way::LosesAnswers => {
                    lost.store(true, Ordering::Release);
                    return Ok(());
                }
                bytes => client.write_all(&answered[..bytes]).await?,
            },
        }
        if *way.borrow() == Way::Cut {
            return Ok(());
        }
    }
}
