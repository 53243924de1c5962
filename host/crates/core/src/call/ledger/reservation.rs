//! Reservations of rounds. A round with a model reserves the most that it can cost before it is sent, and is settled
//! with what it has used when it ends.

use std::fmt;
use std::sync::Arc;

use monstrum_store::{ReservationRow, Spent, StoreError};
use monstrum_types::{AppUser, BotId, CallOutcome, Code, RequestId, ReservationId, WorkspaceId};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::budget::{Exceeded, RESERVED_MAX, RoundCost};
use super::settling::{Settlement, Settling};
use super::{Ledger, Payers, month, of_payers, storable, storable_user};

/// The number of output tokens below which a reservation is refused instead of lowered. A model that may write fewer
/// tokens cannot finish a call of a tool.
pub const OUTPUT_TOKENS_MIN: u64 = 256;

/// The prices of a model, in millionths of a credit for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    pub input: u64,
    /// The price of input tokens that the provider has read from its cache.
    pub cached_input: u64,
    pub output: u64,
}

/// The most that a round can cost, and the subjects that pay for it: the workspace, the bot, and the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveRequest {
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The user on whose behalf the round runs. `None` charges no user.
    pub user: Option<AppUser>,
    pub task_id: Option<String>,
    /// The request id of the call that runs the round.
    pub request_id: RequestId,
    /// The model as `resource/model`.
    pub model: String,
    /// The estimated number of input tokens.
    pub input_tokens: u64,
    /// The largest number of tokens that the model may write. The reservation may lower this number.
    pub output_tokens: u64,
    /// The prices of the model; `None` if its tokens cost no credits.
    pub price: Option<Price>,
    /// Whether an earlier reservation of the same round was charged, so that the round is already counted.
    pub is_retry: bool,
}

/// The tokens that a round has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// The number of input tokens, including those of `cached_input_tokens`.
    pub input_tokens: u64,
    pub cached_input_tokens: u64,
    pub output_tokens: u64,
    /// Whether the numbers are an estimate because the provider has reported none, or more than is possible.
    pub is_estimated: bool,
}

/// The room that a round has reserved in the budgets of its workspace, bot and user. A reservation that is dropped
/// without [`Reservation::settle`] is settled in the background: with nothing before [`Reservation::begin`], and then as if
/// the round had used all of it.
#[must_use = "a reservation that is dropped has no room for its round"]
pub struct Reservation {
    id: ReservationId,
    workspace_id: WorkspaceId,
    month: String,
    output_tokens: u64,
    price: Price,
    is_retry: bool,
    settling: Arc<Settling>,
    /// The runtime that settles a dropped reservation.
    runtime: Handle,
    /// Whether the round may have been sent.
    has_begun: bool,
    is_settled: bool,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("id", &self.id)
            .field("output_tokens", &self.output_tokens)
            .finish_non_exhaustive()
    }
}

impl Reservation {
    /// Returns the largest number of tokens that the model may write: the requested number, or fewer if the budgets have
    /// less room. It is never below [`OUTPUT_TOKENS_MIN`] unless fewer were requested.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        self.output_tokens
    }

    /// Records that the round is about to be sent.
    pub fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Charges what the round has used, and releases the rest. The usage is charged even if it exceeds the reservation
    /// or the budgets. The charge is on disk when this function returns, unless the database is unavailable: it is then
    /// repeated in the background. Dropping the future does not cancel the charge.
    pub async fn settle(mut self, used: Used) {
        self.is_settled = true;
        let tokens = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let used = monstrum_store::Used {
            tokens_input: tokens(used.input_tokens),
            tokens_output: tokens(used.output_tokens),
            credits_millionths: self.price.cost(&used),
            is_estimated: used.is_estimated,
            is_retry: self.is_retry,
        };
        self.settling.spawn(&self.runtime, self.id, Settlement::Used(used)).await;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let settlement = if self.has_begun {
            Settlement::Whole
        } else {
            Settlement::Unsent { workspace: self.workspace_id, month: std::mem::take(&mut self.month) }
        };
        drop(self.settling.spawn(&self.runtime, self.id, settlement));
    }
}

impl Ledger {
    /// Reserves room for a round in the budgets of its workspace, bot and user. If they have less room than the request
    /// asks for, lowers the output tokens. Returns an outcome with the code `budget` and the rule `budget` if fewer than
    /// [`OUTPUT_TOKENS_MIN`] would remain; such a round must not run.
    ///
    /// The reservation is written by a task of its own. If the future is dropped, or the answer of the database is lost, the
    /// reservation is released.
    pub async fn reserve(&self, request: ReserveRequest) -> Result<Reservation, CallOutcome> {
        let ReserveRequest { workspace_id, bot_id, user, task_id, request_id, model, .. } = request;
        let user = user.as_ref().map(storable_user);
        let now = self.clock.now();
        let month = month(now);
        let limits = of_payers(&(self.limits)(Payers { workspace: workspace_id, bot: bot_id, user: user.as_ref() }));
        let price = request.price.unwrap_or_default();
        let cost = RoundCost { input_tokens: request.input_tokens, output_tokens: request.output_tokens, price };
        let id = ReservationId::new();
        let empty = ReservationRow {
            id,
            workspace_id,
            bot_id,
            user_key: user.as_ref().map(AppUser::key).unwrap_or_default(),
            task_id: task_id.as_deref().map(storable).unwrap_or_default(),
            request_id,
            model: storable(&model),
            month: month.clone(),
            tokens_input: reserved(request.input_tokens),
            tokens_output: 0,
            credits_millionths: 0,
            node: self.node.clone(),
            expires_at: now.plus_ms(RESERVED_MS_MAX),
        };
        let decide = move |spent: [Spent; 3]| -> Result<(u64, ReservationRow), Exceeded> {
            let output = cost.fitting(limits, spent)?;
            let credits_millionths = cost.credits(output).min(RESERVED_MAX);
            Ok((output, ReservationRow { tokens_output: reserved(output), credits_millionths, ..empty.clone() }))
        };
        let reservation = Reservation {
            id,
            workspace_id,
            month: month.clone(),
            output_tokens: 0,
            price,
            is_retry: request.is_retry,
            settling: Arc::clone(&self.settling),
            runtime: Handle::current(),
            has_begun: false,
            is_settled: false,
        };
        let store = self.store.clone();
        let (answer, answered) = oneshot::channel();
        let reserving = async move {
            let reserved = store.reserve((workspace_id, bot_id, user.as_ref()), &month, decide).await;
            // If the caller no longer waits, the reservation is dropped here and thus released.
            drop(answer.send(reservation.reserved(reserved, &month)));
        };
        self.settling.tasks.spawn_on(reserving, &Handle::current());
        // The task ends without an answer only if the runtime is shut down.
        answered.await.unwrap_or_else(|_| Err(unreadable()))
    }
}

impl Reservation {
    /// Returns the reservation, or the reason for which it was not written.
    fn reserved(
        mut self,
        written: Result<Option<Result<u64, Exceeded>>, StoreError>,
        month: &str,
    ) -> Result<Reservation, CallOutcome> {
        let refused = match written {
            Ok(Some(Ok(output_tokens))) => {
                self.output_tokens = output_tokens;
                return Ok(self);
            }
            Ok(Some(Err(exceeded))) => exceeded.outcome("this round needs at least", month),
            Ok(None) => CallOutcome::error(Code::Budget, "the bot of this round was deleted").by_rule("budget"),
            Err(error) => {
                tracing::error!(%error, "a reservation could not be written");
                // The database may have written the reservation all the same, so the drop releases it.
                return Err(unreadable());
            }
        };
        self.is_settled = true;
        Err(refused)
    }
}

fn unreadable() -> CallOutcome {
    CallOutcome::error(Code::Unavailable, "the budgets could not be read; try again")
}

/// The time after which the host of a reservation is considered dead. It exceeds the time that a round with all its
/// attempts may take.
const RESERVED_MS_MAX: i64 = 2 * 3600 * 1000;

fn reserved(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX).min(RESERVED_MAX)
}

impl Price {
    /// Returns the cost in millionths of a credit, rounded up. Saturates at the maximum that the database can store.
    #[must_use]
    pub fn cost(&self, used: &Used) -> i64 {
        let cached = used.cached_input_tokens.min(used.input_tokens);
        let parts =
            [(used.input_tokens - cached, self.input), (cached, self.cached_input), (used.output_tokens, self.output)];
        // Each product has at most 128 bits, and their sum may have more.
        let sum = parts
            .into_iter()
            .fold(0_u128, |sum, (tokens, price)| sum.saturating_add(u128::from(tokens) * u128::from(price)));
        i64::try_from(sum.div_ceil(TOKENS_OF_PRICE)).unwrap_or(i64::MAX)
    }

    /// Returns the most that these tokens can cost, in millionths of a credit.
    pub(super) fn most(&self, input_tokens: u64, output_tokens: u64) -> i64 {
        let dearest = Price { input: self.dearest_input(), ..*self };
        dearest.cost(&Used { input_tokens, output_tokens, ..Used::default() })
    }

    /// Returns the price of input tokens if it is not known which of them are cached.
    pub(super) fn dearest_input(&self) -> u64 {
        self.input.max(self.cached_input)
    }
}

/// The number of tokens to which a price applies.
pub(super) const TOKENS_OF_PRICE: u128 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_rounded_up_to_a_millionth_and_saturates() {
        let price = Price { input: 2_000_000, cached_input: 500_000, output: 10_000_001 };
        let used = |input_tokens, cached_input_tokens, output_tokens| Used {
            input_tokens,
            cached_input_tokens,
            output_tokens,
            is_estimated: false,
        };
        assert_eq!(price.cost(&used(0, 0, 0)), 0);
        assert_eq!(price.cost(&used(1000, 0, 0)), 2000);
        assert_eq!(price.cost(&used(1000, 400, 0)), 1200 + 200);
        assert_eq!(price.cost(&used(0, 0, 1)), 11, "10.000001 millionths");
        assert_eq!(price.cost(&used(1, 5, 0)), 1, "no more cached tokens than input tokens");
        assert_eq!(price.cost(&used(u64::MAX, 0, u64::MAX)), i64::MAX);
        assert_eq!(
            Price { input: u64::MAX, cached_input: u64::MAX, output: u64::MAX }.cost(&used(u64::MAX, 9, u64::MAX)),
            i64::MAX
        );
    }
}
