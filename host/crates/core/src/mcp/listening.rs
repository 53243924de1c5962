//! Notifications of servers that their list of tools has changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use monstrum_mcp::client::ClientError;
use tokio::time::Instant;

use super::wire::ResourceWire;
use super::{Access, Link, Mcp};
use crate::policy::Resource;

/// The time after which a stream of notifications is closed. The next discovery opens another one.
const STREAM_MAX: Duration = Duration::from_secs(3600);

impl Mcp {
    /// Reads the notifications of a server in the background, if the server sends any and this host has room.
    pub(super) fn listen(self: &Arc<Self>, resource: &Arc<Resource>, link: &Arc<Link>) {
        if !link.connection.identity().is_some_and(|server| server.notifies) {
            return;
        }
        if link.is_listening.swap(true, Ordering::AcqRel) {
            return;
        }
        let Ok(room) = Arc::clone(&self.listeners).try_acquire_owned() else {
            link.is_listening.store(false, Ordering::Release);
            return;
        };
        let (mcp, resource, link) = (Arc::clone(self), Arc::clone(resource), Arc::clone(link));
        self.tasks.spawn(async move {
            let _room = room;
            let listened = tokio::select! {
                listened = mcp.follow_changes(&resource, &link) => listened,
                () = mcp.until_changed(&resource) => Ok(()),
                () = mcp.stop.cancelled() => Ok(()),
            };
            if let Err(error) = listened {
                tracing::debug!(resource.id = %resource.row.id, %error, "the notifications of an MCP server ended");
            }
            link.is_listening.store(false, Ordering::Release);
        });
    }

    async fn follow_changes(&self, resource: &Arc<Resource>, link: &Link) -> Result<(), ClientError> {
        let wire = ResourceWire::new(&self.egress, Access::shared(resource), Instant::now() + STREAM_MAX);
        let mut subscription = link.connection.subscribe(&wire).await?;
        while subscription.changed().await? {
            self.nudge(resource.row.id);
        }
        Ok(())
    }

    /// Waits until the resource is deleted, or has another URL, network or credential.
    async fn until_changed(&self, resource: &Arc<Resource>) {
        let mut renewals = self.policy.renewals();
        while self.is_current(resource) {
            if renewals.changed().await.is_err() {
                return;
            }
        }
    }
}
