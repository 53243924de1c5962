//! Names of servers whose addresses change between two checks.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{LookupError, Resolve};
use serde_json::json;
use support::{FakeMcp, Generation, InProcess};

use super::{Here, advance, tool};
use crate::world::text;

/// The time for which the host keeps the addresses of a name.
const KEPT_MAX: Duration = Duration::from_secs(30);

/// A resolver whose answer for every name can be changed.
#[derive(Default)]
struct Names(Mutex<Vec<IpAddr>>);

impl Names {
    fn set(&self, addresses: &[&str]) -> Result<()> {
        let addresses = addresses.iter().map(|address| address.parse()).collect::<Result<_, _>>()?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
        Ok(())
    }
}

impl Resolve for Names {
    fn lookup<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        let addresses = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        async move { Ok(addresses) }.boxed()
    }
}

/// The check and the connection use the same answer, so a name that moves reaches no forbidden address.
#[tokio::test]
async fn a_name_that_moves_to_a_forbidden_address_gets_no_request() -> Result<()> {
    let mcp = FakeMcp::start(Generation::Stateless, &[tool("note", "Adds")]).await?;
    let names = Arc::new(Names::default());
    names.set(&["127.0.0.1"])?;
    let host = InProcess::start_resolving(&[], names.clone()).await?;
    let url = mcp.url().replace("127.0.0.1", "mcp.example");
    let here = Here::start(host, &url, &json!({})).await?;
    assert_eq!(here.call().await?["status"], "success");

    let requests = mcp.requests().len();
    // The last answer also has the permitted address, as an answer that is made for a second look-up would.
    for addresses in [&["169.254.169.254"][..], &["127.0.0.2"], &["::1"], &["127.0.0.1", "10.0.0.1"]] {
        names.set(addresses)?;
        advance(KEPT_MAX).await;
        let answer = here.call().await?;
        assert_eq!(answer["status"], "error", "{addresses:?}: {answer}");
        let refusal = "`mcp.example` has an address to which this resource may not connect";
        assert!(text(&answer["message"]).contains(refusal), "{addresses:?}: {answer}");
        let discovery = here.discover().await?;
        assert!(text(&discovery["error"]).contains(refusal), "{addresses:?}: {discovery}");
    }
    assert_eq!(mcp.requests().len(), requests);
    names.set(&["127.0.0.1"])?;
    advance(KEPT_MAX).await;
    assert_eq!(here.call().await?["status"], "success", "the stored tool still serves");
    here.host.stop().await;
    Ok(())
}
