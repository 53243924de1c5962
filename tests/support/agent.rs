//! A remote agent over a plain WebSocket, for tests.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

/// A time-out that is longer than any step needs, unless the server hangs.
const STEP_MAX: Duration = Duration::from_secs(60);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A connected agent.
pub struct Agent {
    sink: SplitSink<Socket, Message>,
    stream: SplitStream<Socket>,
    /// The last welcome.
    pub welcome: Value,
}

impl Agent {
    /// Returns the request that opens the socket of the server at `url`, which starts with `http://`.
    pub fn request(url: &str, key: &str) -> Result<Request> {
        let mut request = format!("{}/ws/agent", url.replacen("http://", "ws://", 1)).into_client_request()?;
        let headers = request.headers_mut();
        headers.insert("authorization", HeaderValue::from_str(&format!("Bearer {key}"))?);
        headers.insert("sec-websocket-protocol", HeaderValue::from_static("monstrum.agent.v1"));
        Ok(request)
    }

    /// Opens a socket with this request. Returns the status of a server that refuses it.
    pub async fn open(request: Request) -> Result<std::result::Result<Agent, u16>> {
        let config = WebSocketConfig::default();
        match tokio::time::timeout(STEP_MAX, connect_async_with_config(request, Some(config), true)).await? {
            Ok((socket, _)) => {
                let (sink, stream) = socket.split();
                Ok(Ok(Agent { sink, stream, welcome: Value::Null }))
            }
            Err(Error::Http(response)) => Ok(Err(response.status().as_u16())),
            Err(error) => bail!("the socket cannot be opened: {error}"),
        }
    }

    /// Connects and says hello. The members of `change` replace those of a standard hello.
    pub async fn connect(url: &str, key: &str, tools: &Value, change: &Value) -> Result<Agent> {
        let opened = Agent::open(Agent::request(url, key)?).await?;
        let mut agent = opened.map_err(|status| anyhow::anyhow!("the server refused the socket with {status}"))?;
        agent.send(&hello(tools, change)).await?;
        let welcome = agent.next().await?;
        ensure!(welcome["type"] == "welcome", "the hello was refused: {welcome}");
        agent.welcome = welcome;
        Ok(agent)
    }

    /// Sends a frame.
    pub async fn send(&mut self, frame: &Value) -> Result<()> {
        self.send_text(frame.to_string()).await
    }

    /// Sends a text frame.
    pub async fn send_text(&mut self, text: String) -> Result<()> {
        self.send_message(Message::text(text)).await
    }

    /// Sends a message of any type.
    pub async fn send_message(&mut self, message: Message) -> Result<()> {
        tokio::time::timeout(STEP_MAX, self.sink.send(message)).await.context("the server does not read")??;
        Ok(())
    }

    /// Returns the next frame.
    pub async fn next(&mut self) -> Result<Value> {
        self.next_until(Instant::now() + STEP_MAX).await
    }

    /// Returns the next frame. Pings of the server do not extend the time.
    async fn next_until(&mut self, until: Instant) -> Result<Value> {
        loop {
            let item = timeout_at(until, self.stream.next()).await.context("the server sends no frame")?;
            match item.context("the socket was closed")?? {
                Message::Text(text) => return Ok(serde_json::from_str(text.as_str())?),
                Message::Close(frame) => bail!("the socket was closed: {frame:?}"),
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// Returns the next frame of this type. Skips other frames.
    pub async fn next_of(&mut self, kind: &str) -> Result<Value> {
        let until = Instant::now() + STEP_MAX;
        loop {
            let frame = self.next_until(until).await.with_context(|| format!("no frame of type {kind}"))?;
            if frame["type"] == kind {
                return Ok(frame);
            }
        }
    }

    /// Answers a call with success.
    pub async fn succeed(&mut self, call: &Value, data: &Value) -> Result<()> {
        self.send(&json!({"type": "result", "id": call["id"], "status": "success", "data": data})).await
    }

    /// Reads until the server closes the socket. Returns the code and the text frames before it. The code is 0 if the
    /// socket ended without a close frame.
    pub async fn closed(&mut self) -> Result<(u16, Vec<Value>)> {
        let mut frames = Vec::new();
        loop {
            let item = tokio::time::timeout(STEP_MAX, self.stream.next()).await.context("the socket stays open")?;
            match item {
                Some(Ok(Message::Text(text))) => frames.push(serde_json::from_str(text.as_str())?),
                Some(Ok(Message::Close(frame))) => {
                    // The library answers the close frame when the socket is read to its end.
                    while let Ok(Some(Ok(_))) = tokio::time::timeout(STEP_MAX, self.stream.next()).await {}
                    return Ok((frame.map_or(0, |frame| frame.code.into()), frames));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Ok((0, frames)),
            }
        }
    }

    /// Answers each call with its parameters until the socket ends. Returns the number of calls.
    pub async fn echo(mut self) -> usize {
        let mut calls = 0;
        while let Ok(frame) = self.next().await {
            if frame["type"] == "call" {
                calls += 1;
                if self.succeed(&frame, &frame["params"]).await.is_err() {
                    break;
                }
            }
        }
        calls
    }
}

/// Returns a hello with these tools. The members of `change` replace the standard ones.
#[must_use]
pub fn hello(tools: &Value, change: &Value) -> Value {
    let mut hello = json!({
        "type": "hello", "protocol": 1, "name": "lab", "version": "1.0", "instance": "one", "concurrency": 8,
        "tools": tools,
    });
    if let (Some(hello), Some(change)) = (hello.as_object_mut(), change.as_object()) {
        hello.extend(change.clone());
    }
    hello
}
