//! The feed of calls that end. Operators may follow the calls of their workspace.

use monstrum_api::audit::AuditedCall;
use monstrum_store::CallFilter;

use super::audit::view;
use super::{OperationError, Operator};
use crate::app::App;
use crate::audit::{FeedCursor, FeedItem, Listening};

/// An open feed.
pub struct CallFeed(Listening);

/// An item of a feed.
pub enum CallFeedItem {
    Call {
        call: Box<AuditedCall>,
        /// The position after this call.
        cursor: FeedCursor,
    },
    /// Calls were left out. Their number may be unknown.
    Lost { count: Option<u64> },
}

/// Begins a feed with the calls that end from now on, or with those that ended after `cursor`.
pub async fn follow(
    app: &App,
    caller: &Operator,
    filter: CallFilter,
    cursor: Option<FeedCursor>,
) -> Result<CallFeed, OperationError> {
    Ok(CallFeed(app.audit_feed.listen(caller.workspace, filter, cursor).await?))
}

/// Returns whether the key of the caller still exists and is unchanged. A feed ends when it is not.
pub fn holds_its_key(app: &App, caller: &Operator) -> bool {
    caller.is_known(&app.policy.load(), app.clock.now())
}

impl CallFeed {
    /// Returns the cursor at which the feed began.
    pub fn cursor(&self) -> FeedCursor {
        self.0.cursor()
    }

    /// Waits for the next item. Returns `None` when the host shuts down. Cancelling this function loses no item.
    pub async fn next(&mut self) -> Result<Option<CallFeedItem>, OperationError> {
        Ok(self.0.next().await?.map(|item| match item {
            FeedItem::Call { row, cursor } => CallFeedItem::Call { call: Box::new(view(*row)), cursor },
            FeedItem::Lost { count } => CallFeedItem::Lost { count },
        }))
    }
}
