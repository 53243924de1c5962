//! `/api/audit/changes`, and how a handler changes what is permitted: the audit has it on disk, with before and after, before
//! it is made.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use monstrum_store::AuditRow;
use monstrum_types::{BotId, CallOutcome, Code, JsonText, KeyId, RequestId, ResourceId, UtcMillis};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::gateway::extract::{Admin, Caller, PageQuery, Params};
use crate::gateway::problem::{Problem, ProblemBody};
use monstrum_core::app::App;
use monstrum_core::audit;

/// A change that a handler is about to make.
pub struct Change {
    what: &'static str,
    object: String,
    bot: Option<BotId>,
    resource: Option<ResourceId>,
    before: Value,
    after: Value,
}

impl Change {
    /// `what` is a noun and a verb, such as `role.update`; `object` the id or the name of what is changed.
    pub fn new(what: &'static str, object: &(impl ToString + ?Sized)) -> Change {
        let (before, after) = (Value::Null, Value::Null);
        Change { what, object: object.to_string(), bot: None, resource: None, before, after }
    }

    /// How it was, as the API shows it: never a secret.
    pub fn from(self, before: &impl Serialize) -> Change {
        Change { before: shown(before), ..self }
    }

    /// How it will be.
    pub fn to(self, after: &impl Serialize) -> Change {
        Change { after: shown(after), ..self }
    }

    /// Whose permissions change.
    pub fn of_bot(self, bot: BotId) -> Change {
        Change { bot: Some(bot), ..self }
    }

    /// Which resource is concerned.
    pub fn of_resource(self, resource: ResourceId) -> Change {
        Change { resource: Some(resource), ..self }
    }

    /// Records the change, makes it by `work`, and records how that ended. Without the first record nothing is done.
    pub async fn made<T>(
        self,
        app: &App,
        caller: &Caller,
        work: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        // The body may have taken long.
        if app.policy.load().key_hash(caller.key) != Some(&caller.key_hash) {
            return Err(Problem::unauthenticated("the key is gone"));
        }
        let unavailable = |_| Problem::unavailable("the audit cannot be written, so nothing was changed");
        let entry = app.auditor.open_change(audit::Change {
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
        });
        let entry = entry.map_err(unavailable)?;
        entry.started().await.map_err(unavailable)?;
        let done = work.await;
        let outcome = match &done {
            Ok(_) => CallOutcome::success(JsonText::from(&Value::Null)),
            Err(problem) => CallOutcome::error(Code::Unavailable, problem.detail()),
        };
        // What was begun is on disk, with all that there is to know; its end is written when the audit can.
        let closed = async { entry.close(&outcome).await?.committed().await };
        if closed.await.is_err() {
            tracing::error!(request.id = %caller.request, "the end of a change is not in the audit yet");
        }
        done
    }
}

/// The time of a change of what was last changed at `before`: always a later one, so that it tells the two apart.
pub fn changed_at(app: &App, before: UtcMillis) -> UtcMillis {
    app.clock.now().max(before.plus_ms(1))
}

fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("what the API shows is JSON")
}

/// A change of what is permitted.
#[derive(Serialize, ToSchema)]
pub struct AuditedChange {
    pub request_id: RequestId,
    /// The API key that asked; null for an offline command.
    #[schema(value_type = Option<KeyId>)]
    pub key_id: Value,
    #[schema(value_type = String)]
    pub key_kind: Value,
    /// What was done to what, such as `role.update`.
    pub change: Option<String>,
    /// The id or the name of what was changed.
    #[schema(value_type = String)]
    pub object: Value,
    pub bot_id: Option<BotId>,
    pub resource_id: Option<ResourceId>,
    /// `success`, `error`, `running` or `interrupted`: only the first was made for certain.
    pub status: Option<String>,
    pub message: Option<String>,
    /// As the API shows it; null for what was new.
    #[schema(value_type = Object)]
    pub before: Value,
    /// Null for what was deleted.
    #[schema(value_type = Object)]
    pub after: Value,
    pub started_at: UtcMillis,
    pub finished_at: Option<UtcMillis>,
}

/// A page of changes, newest first.
#[derive(Serialize, ToSchema)]
pub struct AuditedChangeList {
    pub items: Vec<AuditedChange>,
    pub next_cursor: Option<String>,
}

impl From<AuditRow> for AuditedChange {
    fn from(row: AuditRow) -> Self {
        let mut params: Value =
            row.params.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let mut member = |name: &str| params.get_mut(name).map(Value::take).unwrap_or_default();
        AuditedChange {
            status: row.call_status().map(str::to_owned),
            finished_at: row.finished_at(),
            key_id: member("key_id"),
            key_kind: member("key_kind"),
            object: member("object"),
            before: member("before"),
            after: member("after"),
            request_id: row.request_id,
            change: row.operation,
            bot_id: row.bot_id,
            resource_id: row.resource_id,
            message: row.message,
            started_at: row.started_at,
        }
    }
}

/// Lists changes of what is permitted, newest first
#[utoipa::path(get, path = "/api/audit/changes", tag = "audit", params(PageQuery),
    responses((status = 200, body = AuditedChangeList), (status = "4XX", body = ProblemBody)))]
pub async fn changes(
    State(app): State<Arc<App>>,
    Admin(caller): Admin,
    Params(page): Params<PageQuery>,
) -> Result<Json<AuditedChangeList>, Problem> {
    let listed = app.store.changes(caller.workspace, &page.page()?).await?;
    let items = listed.items.into_iter().map(AuditedChange::from).collect();
    Ok(Json(AuditedChangeList { items, next_cursor: listed.next_cursor.map(String::from) }))
}
