//! The changes of approvals as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, stream};
use http::HeaderMap;
use monstrum_api::approvals::Approval;
use monstrum_core::app::App;
use monstrum_core::operations::{Reviewer, approvals};
use monstrum_store::ApprovalFilter;
use monstrum_types::{ApprovalId, UtcMillis};
use tokio::sync::broadcast::Receiver;

use crate::gateway::http::problem::Problem;
use crate::gateway::http::streams::{StreamPlace, Streams, last_event_id};

/// The maximum number of concurrent streams. Each stream reads the database once a second.
const STREAMS_MAX: usize = 256;
/// The maximum number of concurrent streams of one key, so that one key cannot use up the streams of all tenants.
const STREAMS_OF_KEY_MAX: usize = 16;
static STREAMS: LazyLock<Streams> = LazyLock::new(|| Streams::new(STREAMS_OF_KEY_MAX, STREAMS_MAX));
/// The maximum number of changes that are read at once.
const CHANGES_AT_ONCE: u32 = 100;

/// Returns a stream of the changes after the event that the client has received last, or of all changes from now on. The
/// stream ends when the key is deleted or rotated, and when the server stops.
pub(super) async fn events(
    app: Arc<App>,
    caller: Reviewer,
    filter: ApprovalFilter,
    headers: &HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>> + use<>>, Problem> {
    let place = STREAMS.enter(caller.key)?;
    // The subscription precedes the first read, so that no change is missed.
    let changes = app.approvals.subscribe();
    let after = match last_event_id(headers)? {
        None => approvals::last_change(&app, &caller).await?,
        Some(id) => UtcMillis(id),
    };
    let events =
        Events { app, caller, filter, after, changes, queued: VecDeque::new(), has_failed: false, _place: place };
    let events = stream::unfold(events, |mut events| async move { Some((Ok(events.next().await?), events)) });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

struct Events {
    app: Arc<App>,
    caller: Reviewer,
    filter: ApprovalFilter,
    /// The time of the last change that is queued or sent.
    after: UtcMillis,
    changes: Receiver<ApprovalId>,
    queued: VecDeque<Event>,
    has_failed: bool,
    _place: StreamPlace,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Some(event);
            }
            if self.has_failed || !approvals::holds_its_key(&self.app, &self.caller) {
                return None;
            }
            let (app, caller) = (&self.app, &self.caller);
            match approvals::changed(app, caller, self.filter, self.after, CHANGES_AT_ONCE).await {
                Ok(changed) if !changed.is_empty() => {
                    for (at, approval) in changed {
                        self.after = at;
                        self.queued.push_back(event(at, &approval));
                    }
                    continue;
                }
                Ok(_) => {}
                Err(error) => {
                    self.has_failed = true;
                    let request = self.caller.request.to_string();
                    return Some(Event::default().event("error").data(Problem::from(error).text(&request)));
                }
            }
            let approvals = &self.app.approvals;
            tokio::select! {
                () = approvals.changed_or_due(&mut self.changes) => {}
                () = approvals.closed() => return None,
            }
        }
    }
}

fn event(at: UtcMillis, approval: &Approval) -> Event {
    let text = serde_json::to_string(approval).expect("an approval is plain JSON");
    Event::default().event("approval").id(at.0.to_string()).data(text)
}
