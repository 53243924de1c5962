//! How connections end: a killed agent, a cut cable, and the end of the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use support::Agent;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::python::Example;
use super::{Scene, ending, sum, timed};

#[tokio::test]
async fn the_tools_of_a_killed_agent_are_gone_within_a_second() -> Result<()> {
    let scene = Scene::start().await?;
    let mut example = Example::start(&scene, &scene.url()?)?;
    scene.has(&["lab__count_down", "lab__disk_usage"]).await?;
    let call = scene.call("lab__count_down", &json!({"seconds": 50}));
    example.says("running count_down").await?;
    example.kill().await?;
    let took = timed(scene.has(&[])).await?;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(call.await??["code"], "uncertain");
    Ok(())
}

/// A port that forwards to a server. It can stop to forward, like a cut cable: both sockets stay open.
pub(super) struct Cable {
    port: u16,
    is_cut: Arc<AtomicBool>,
    to: Arc<Mutex<String>>,
}

impl Cable {
    /// Forwards to the server at `url`.
    pub(super) async fn to(url: &str) -> Result<Cable> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let cable = Cable { port, is_cut: Arc::default(), to: Arc::default() };
        cable.plug(url);
        let (to, cut) = (Arc::clone(&cable.to), Arc::clone(&cable.is_cut));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let address = to.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let Ok(server) = TcpStream::connect(&address).await else { continue };
                let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
                tokio::spawn(forward(client_in, server_out, Arc::clone(&cut)));
                tokio::spawn(forward(server_in, client_out, Arc::clone(&cut)));
            }
        });
        Ok(cable)
    }

    /// Sends new connections to the server at `url`.
    pub(super) fn plug(&self, url: &str) {
        *self.to.lock().unwrap_or_else(PoisonError::into_inner) = url.trim_start_matches("http://").to_owned();
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    cut: Arc<AtomicBool>,
) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        if cut.load(Ordering::Acquire) {
            // The sockets stay open, and nothing arrives any more.
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

/// A cut cable sends no end of the connection. The host notices the silence.
#[tokio::test]
async fn the_tools_behind_a_cut_cable_are_gone_within_46_seconds() -> Result<()> {
    let scene = Scene::start().await?;
    let cable = Cable::to(&scene.url()?).await?;
    let mut agent = Agent::connect(&cable.url(), &scene.key, &json!([sum()]), &json!({})).await?;
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({}));
    agent.next_of("call").await?;
    cable.cut();
    let took = timed(scene.has(&[])).await?;
    assert!(took < Duration::from_secs(46), "{took:?}");
    assert_eq!(call.await??["code"], "uncertain");
    Ok(())
}

/// A server that stops says goodbye, lets the running calls end, and closes the sockets.
#[tokio::test]
async fn a_server_that_stops_says_goodbye() -> Result<()> {
    let mut scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    let call = scene.call("lab__sum", &json!({"n": 1}));
    let frame = agent.next_of("call").await?;
    let mut silent = scene.socket().await?;
    let stopping = async { scene.world.server.stop().await };
    let serving = async {
        let bye = agent.next_of("bye").await?;
        assert_eq!(bye["retry_after_ms"], 1000);
        agent.succeed(&frame, &json!("done")).await?;
        let (code, _) = agent.closed().await?;
        assert_eq!(code, 1012);
        let (code, _) = silent.closed().await?;
        assert_eq!(code, 1012, "a socket that has not said hello");
        anyhow::Ok(())
    };
    let (stopped, served) = tokio::join!(stopping, serving);
    stopped.context("the server does not stop")?;
    served?;
    assert_eq!(ending(&call.await??), r#"success   "done""#);
    Ok(())
}

/// Closing the socket is an end too, with any code.
#[tokio::test]
async fn an_agent_that_closes_its_socket_takes_its_tools_away() -> Result<()> {
    let scene = Scene::start().await?;
    let mut agent = scene.agent(&json!([sum()])).await?;
    scene.has(&["lab__sum"]).await?;
    agent.send_message(tokio_tungstenite::tungstenite::Message::Close(None)).await?;
    let took = timed(scene.has(&[])).await?;
    assert!(took < Duration::from_secs(1), "{took:?}");
    Ok(())
}
