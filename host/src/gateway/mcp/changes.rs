//! Notices when the list of a bot's tools changes.

use std::sync::{Arc, Weak};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use monstrum_core::operations::{OperationError, tools};
use monstrum_core::policy::Bot;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch::Receiver;

use crate::gateway::mcp::offer::BotOffer;

/// The tool list of a bot, watched for a caller.
pub(super) struct Watched {
    offer: BotOffer,
    renewals: Receiver<()>,
    /// The bot at the last look, and at first the bot at the time of the request. Snapshots of the policy share
    /// unchanged bots.
    seen: Weak<Bot>,
    /// The digest of the list at the last look, or `None` if the list was not available.
    digest: Option<[u8; 32]>,
    has_begun: bool,
}

/// Returns a stream with an item for each change. The stream ends with the key of the caller, with the bot, or when the
/// server stops.
pub(super) fn stream(watched: Watched) -> BoxStream<'static, ()> {
    stream::unfold(watched, |mut watched| async move { watched.changed().await.then_some(((), watched)) }).boxed()
}

impl Watched {
    pub(super) fn new(offer: BotOffer) -> Watched {
        let renewals = offer.app.policy.renewals();
        let seen = Weak::clone(&offer.seen);
        Watched { offer, renewals, seen, digest: None, has_begun: false }
    }

    /// Waits for the next change. Returns `false` when the watch ends.
    async fn changed(&mut self) -> bool {
        if !self.has_begun {
            self.has_begun = true;
            self.digest = self.list_digest().await.ok();
            let Some(bot) = self.bot() else { return false };
            // The client may have listed the tools between the request and this look.
            if self.is_new(&bot) {
                return true;
            }
        }
        loop {
            tokio::select! {
                renewed = self.renewals.changed() => if renewed.is_err() { return false },
                () = self.offer.caller.expired(&*self.offer.app.clock) => return false,
                () = self.offer.stop.cancelled() => return false,
            }
            let Some(bot) = self.bot() else { return false };
            if !self.is_new(&bot) && self.digest.is_some() {
                continue;
            }
            match self.list_digest().await {
                Ok(digest) if self.digest == Some(digest) => {}
                Ok(digest) => {
                    self.digest = Some(digest);
                    return true;
                }
                Err(OperationError::NotFound(_)) => return false,
                // The list may have changed. The client learns the reason when it lists the tools.
                Err(_) => {
                    self.digest = None;
                    return true;
                }
            }
        }
    }

    /// Returns whether the bot has changed since the last look.
    fn is_new(&mut self, bot: &Arc<Bot>) -> bool {
        let last = std::mem::replace(&mut self.seen, Arc::downgrade(bot));
        !Weak::ptr_eq(&last, &self.seen)
    }

    /// Returns the bot, if the caller's key still exists or the bot still admits its user.
    fn bot(&self) -> Option<Arc<Bot>> {
        let BotOffer { app, caller, bot, .. } = &self.offer;
        let snapshot = app.policy.load();
        snapshot.bot(caller.workspace, *bot).filter(|_| caller.is_known(&snapshot, app.clock.now())).cloned()
    }

    async fn list_digest(&self) -> Result<[u8; 32], OperationError> {
        let BotOffer { app, caller, bot, language, .. } = &self.offer;
        let mut hash = Sha256::new();
        for tool in tools::list(app, caller, *bot, language.clone()).await? {
            let output = tool.output_schema.as_ref().map_or("", monstrum_types::JsonText::as_str);
            let (effect, asks) = (format!("{:?}", tool.effect), tool.asks.to_string());
            let (input, operation) = (tool.input_schema.as_str(), tool.operation.as_str());
            // No title is empty.
            let title = tool.title.as_deref().unwrap_or_default();
            let texts = [tool.name.as_str(), title, &tool.description, input, output, operation, &effect, &asks];
            for text in texts {
                hash.update((text.len() as u64).to_be_bytes());
                hash.update(text);
            }
        }
        Ok(hash.finalize().into())
    }
}
