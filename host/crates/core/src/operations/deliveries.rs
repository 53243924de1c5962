//! Deliveries of events: listing and retrying them.

use monstrum_api::events::{Delivery, DeliveryList, DeliveryTarget};
use monstrum_store::{DeliveryFilter, DeliveryRow, Page, RetriedDelivery};
use monstrum_types::DeliveryId;

use super::change::Change;
use super::{OperationError, Operator, list};
use crate::app::App;

/// Lists deliveries, newest first.
pub async fn list(
    app: &App,
    caller: &Operator,
    filter: &DeliveryFilter,
    page: &Page<DeliveryId>,
) -> Result<DeliveryList, OperationError> {
    Ok(list::page(app.store.deliveries(caller.workspace, filter, page).await?, shown))
}

/// Makes a dead delivery pending again. The host then tries again to start what it has not started.
pub async fn retry(app: &App, caller: &Operator, id: DeliveryId) -> Result<Delivery, OperationError> {
    let row = app.store.delivery(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("delivery"))?;
    let retry = async {
        match app.store.retry_delivery(caller.workspace, id, app.clock.now()).await? {
            RetriedDelivery::Pending(wake) => Ok(wake),
            RetriedDelivery::NotDead => {
                Err(OperationError::conflict("the delivery is not dead, so there is nothing to retry"))
            }
            RetriedDelivery::Absent => Err(OperationError::not_found("delivery")),
        }
    };
    let change = Change::new("delivery.retry", &id).of_bot(row.bot_id).from(&shown(row));
    let wake = change.record(app, caller, retry).await?;
    // The delivery is read before its turn begins, so that the caller sees that it is pending.
    let row = app.store.delivery(caller.workspace, id).await?.ok_or_else(|| OperationError::not_found("delivery"))?;
    app.emitter.signal_wakes(&[wake]);
    Ok(shown(row))
}

/// Returns a delivery as the API shows it.
pub(super) fn shown(row: DeliveryRow) -> Delivery {
    Delivery {
        id: row.id,
        event_id: row.event_id,
        target: DeliveryTarget { kind: row.target_kind.as_str().to_owned(), id: row.target_id },
        status: row.status.as_str().to_owned(),
        attempts: row.attempts,
        next_at: row.next_at,
        reason: row.reason.map(|reason| reason.as_str().to_owned()),
        invalid_paths: row.invalid_paths.and_then(|paths| serde_json::from_value(paths).ok()),
        task_id: row.task_id,
        run_id: row.run_id,
        created_at: row.created_at,
        ended_at: row.ended_at,
    }
}
