//! Changes of permissions. Before a change is made, the audit writes the change to disk, with the states before and
//! after it.

use monstrum_store::StoreError;
use monstrum_types::{BotId, ResourceId, UtcMillis};
use serde::Serialize;
use serde_json::Value;

use super::{Caller, Expected, OperationError};
use crate::app::App;
use crate::audit;

/// A change that an operation is about to make.
pub struct Change {
    what: &'static str,
    object: String,
    bot: Option<BotId>,
    resource: Option<ResourceId>,
    before: Value,
    after: Value,
    expected: Expected,
}

impl Change {
    /// Creates a change. `what` is a noun and a verb, such as `role.update`; `object` is the id or the name of the
    /// changed object.
    pub fn new(what: &'static str, object: &(impl ToString + ?Sized)) -> Change {
        let (before, after) = (Value::Null, Value::Null);
        Change { what, object: object.to_string(), bot: None, resource: None, before, after, expected: Expected::Any }
    }

    /// Sets the state before the change as the API shows it, which never includes a secret.
    pub fn from(self, before: &impl Serialize) -> Change {
        Change { before: shown(before), ..self }
    }

    /// Sets the state after the change.
    pub fn to(self, after: &impl Serialize) -> Change {
        Change { after: shown(after), ..self }
    }

    /// Sets the bot whose permissions change.
    pub fn of_bot(self, bot: impl Into<Option<BotId>>) -> Change {
        Change { bot: bot.into(), ..self }
    }

    /// Sets the resource that the change concerns.
    pub(super) fn of_resource(self, resource: ResourceId) -> Change {
        Change { resource: Some(resource), ..self }
    }

    /// Sets the precondition, which the caller of this function has already checked once.
    #[must_use]
    pub fn at(self, expected: Expected) -> Change {
        Change { expected, ..self }
    }

    /// Records the change, writes a new row, and brings it into force.
    pub(super) async fn create(
        self,
        app: &App,
        caller: &Caller,
        write: impl Future<Output = Result<(), StoreError>>,
    ) -> Result<(), OperationError> {
        self.apply(app, caller, async { Ok(write.await?) }).await
    }

    /// Records the change, writes a row, and brings it into force. `write` returns false if the row has changed since
    /// the caller read it.
    pub(super) async fn update(
        self,
        app: &App,
        caller: &Caller,
        write: impl Future<Output = Result<bool, StoreError>>,
    ) -> Result<(), OperationError> {
        let expected = self.expected.clone();
        let write = async { if write.await? { Ok(()) } else { Err(expected.changed_meanwhile()) } };
        self.apply(app, caller, write).await
    }

    /// Records the change, deletes a row, and brings the deletion into force. `delete` returns false if the row did not
    /// exist; the error then names the row by `kind`.
    pub(super) async fn delete(
        self,
        app: &App,
        caller: &Caller,
        kind: &str,
        delete: impl Future<Output = Result<bool, StoreError>>,
    ) -> Result<(), OperationError> {
        let delete = async { if delete.await? { Ok(()) } else { Err(OperationError::not_found(kind)) } };
        self.apply(app, caller, delete).await
    }

    /// Records the change, makes it by running `work`, and brings it into force.
    pub async fn apply<T>(
        self,
        app: &App,
        caller: &Caller,
        work: impl Future<Output = Result<T, OperationError>>,
    ) -> Result<T, OperationError> {
        let work = async {
            let done = work.await?;
            app.changed().await?;
            Ok(done)
        };
        self.record(app, caller, work).await
    }

    /// Records the change, makes it by running `work`, and records the outcome. If the first record cannot be written,
    /// `work` does not run.
    pub async fn record<T>(
        self,
        app: &App,
        caller: &Caller,
        work: impl Future<Output = Result<T, OperationError>>,
    ) -> Result<T, OperationError> {
        // The key may have been revoked while the input arrived.
        if !caller.is_known(&app.policy.load(), app.clock.now()) {
            return Err(OperationError::Unauthenticated("the API key was deleted or rotated".to_owned()));
        }
        let change = audit::Change {
            request_id: caller.request,
            workspace: caller.workspace,
            key: Some(caller.key),
            key_kind: Some(caller.kind.as_str()),
            what: self.what,
            object: self.object,
            bot: self.bot,
            resource: self.resource,
            before: self.before,
            after: self.after,
        };
        let recorded = app.auditor.record(change, work, OperationError::code).await;
        let (done, closed) =
            recorded.map_err(|_| OperationError::unavailable("the audit cannot be written; nothing was changed"))?;
        if closed.is_err() {
            tracing::error!(request.id = %caller.request, "the outcome of a change has not been written to the audit \
                                                           yet");
        }
        done
    }
}

/// Replaces `field` if the change includes this field.
pub(super) fn set<T>(field: &mut T, named: Option<T>) {
    if let Some(value) = named {
        *field = value;
    }
}

/// Returns the time of a change to an object that last changed at `before`. The returned time is always later than
/// `before`, so that the two versions have different times.
pub fn changed_at(app: &App, before: UtcMillis) -> UtcMillis {
    later_than(before, app.clock.now())
}

/// Returns `now`, or the time just after `before` if that is later.
pub(super) fn later_than(before: UtcMillis, now: UtcMillis) -> UtcMillis {
    now.max(before.plus_ms(1))
}

fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("an object of the API can be serialized as JSON")
}
