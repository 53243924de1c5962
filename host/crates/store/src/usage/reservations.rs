//! Reservations of rounds. A row of `reservations` takes room in the budgets of its subjects until the round is settled.

use monstrum_types::{AppUser, BotId, RequestId, ReservationId, UtcMillis, WorkspaceId};

use super::{ADD_ROW, ADD_TOTALS, Account, Counters, LOCK, LOCK_OF_BOT, Payer, Spent};
use crate::db::{FromRow, Row, Session, args, from_row, retry};
use crate::{Store, StoreError};

/// A row of `reservations`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationRow {
    pub id: ReservationId,
    pub workspace_id: WorkspaceId,
    pub bot_id: BotId,
    /// The [key](AppUser::key) of the user; empty without a user.
    pub user_key: String,
    /// The task; empty without a task.
    pub task_id: String,
    pub request_id: RequestId,
    /// The model as `resource/model`.
    pub model: String,
    /// The month in UTC, such as `2026-11`.
    pub month: String,
    pub tokens_input: i64,
    pub tokens_output: i64,
    pub credits_millionths: i64,
    /// The host that runs the round.
    pub node: String,
    /// The time after which the host is considered dead.
    pub expires_at: UtcMillis,
}

from_row! {
    ReservationRow {
        id, workspace_id, bot_id, user_key, task_id, request_id, model, month, tokens_input, tokens_output,
        credits_millionths, node, expires_at,
    }
}

/// Selects reservations.
#[derive(Clone, Copy, Debug)]
pub enum ReservationFilter<'a> {
    /// Those that the host `node` has made, and those that have expired.
    Lost { node: &'a str, now: UtcMillis },
    /// Those that have expired.
    Expired { now: UtcMillis },
    /// Those that other hosts than `node` have made for a task.
    OfTask { workspace: WorkspaceId, task_id: &'a str, node: &'a str },
}

/// Some reservations, in the order of their ids.
#[derive(Debug)]
pub struct ReservationPage {
    pub rows: Vec<ReservationRow>,
    /// The errors of the rows that cannot be read.
    pub unreadable: Vec<StoreError>,
    /// The text after which the next page begins. `None` if this is the last page.
    pub next: Option<String>,
}

/// A row of a page, which another program may have made unreadable.
struct FoundRow {
    id: Result<String, StoreError>,
    row: Result<ReservationRow, StoreError>,
}

impl FromRow for FoundRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(FoundRow { id: row.get("id"), row: ReservationRow::from_row(row) })
    }
}

/// What a round has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub tokens_input: i64,
    pub tokens_output: i64,
    pub credits_millionths: i64,
    pub is_estimated: bool,
    /// Whether an earlier reservation of the same round was charged, so that the round is already counted.
    pub is_retry: bool,
}

const INSERT: &str = "insert into reservations (id, workspace_id, bot_id, user_key, task_id, request_id, model, month, \
    tokens_input, tokens_output, credits_millionths, node, expires_at) \
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";
const DELETE: &str = "delete from reservations where id = $1";
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "select id, workspace_id, bot_id, user_key, task_id, request_id, model, month, tokens_input, tokens_output, \
             credits_millionths, node, expires_at from reservations ",
            $rest,
        )
    };
}
const BY_ID: &str = select!("where id = $1");
const LOST: &str = select!("where (node = $1 or expires_at <= $2) and id > $3 order by id limit $4");
const OF_TASK: &str =
    select!("where workspace_id = $1 and task_id = $2 and node <> $3 and id > $4 order by id limit $5");
const EXPIRED: &str = select!("where expires_at <= $1 and id > $2 order by id limit $3");

impl ReservationRow {
    /// Returns the use of the whole reservation.
    #[must_use]
    pub fn whole(&self) -> Used {
        Used {
            tokens_input: self.tokens_input,
            tokens_output: self.tokens_output,
            credits_millionths: self.credits_millionths,
            is_estimated: true,
            is_retry: false,
        }
    }
}

impl Used {
    fn is_nothing(&self) -> bool {
        (self.tokens_input, self.tokens_output, self.credits_millionths) == (0, 0, 0)
    }
}

impl Store {
    /// Reserves room for a round. `decide` receives what the workspace, the bot and the user have spent and reserved, and
    /// returns a result with the row to insert, or the reason for which there is no room. No other charge or reservation
    /// of the workspace takes place between the reads and the insert. Returns `None` if the bot does not exist.
    pub async fn reserve<T, R>(
        &self,
        (workspace, bot, user): (WorkspaceId, BotId, Option<&AppUser>),
        month: &str,
        decide: impl Fn([Spent; 3]) -> Result<(T, ReservationRow), R>,
    ) -> Result<Option<Result<T, R>>, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            if session.run(LOCK_OF_BOT, args![workspace, bot, month]).await? == 0 {
                return Ok(None);
            }
            let of_user = match user {
                Some(user) => session.spent(workspace, &Payer::User(user.clone()), month).await?,
                None => Spent::default(),
            };
            let of_workspace = session.spent(workspace, &Payer::Workspace, month).await?;
            let of_bot = session.spent(workspace, &Payer::Bot(bot), month).await?;
            match decide([of_workspace, of_bot, of_user]) {
                Ok((decided, row)) => {
                    session.insert_reservation(&row).await?;
                    session.commit().await?;
                    Ok(Some(Ok(decided)))
                }
                Err(refused) => Ok(Some(Err(refused))),
            }
        })
    }

    /// Deletes a reservation, and charges what its round has used: `used`, or the whole reservation. The usage is charged
    /// regardless of budgets. A round that has used nothing is not counted. Returns false if the reservation has already
    /// been settled.
    pub async fn settle(&self, id: ReservationId, used: Option<Used>) -> Result<bool, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let Some(row): Option<ReservationRow> = session.one(BY_ID, args![id]).await? else { return Ok(false) };
            session.run(LOCK, args![row.workspace_id, &row.month]).await?;
            if session.run(DELETE, args![id]).await? == 0 {
                return Ok(false);
            }
            session.charge_round(&row, used.unwrap_or_else(|| row.whole())).await?;
            session.commit().await?;
            Ok(true)
        })
    }

    /// Deletes a reservation whose round was not sent, if there is such a reservation. Waits for a running transaction that
    /// inserts the reservation, so that none is inserted afterwards.
    pub async fn release(&self, id: ReservationId, workspace: WorkspaceId, month: &str) -> Result<(), StoreError> {
        let released = retry!(async {
            let mut session = self.db.write().await?;
            session.run(LOCK, args![workspace, month]).await?;
            if session.run(DELETE, args![id]).await? > 0 {
                session.commit().await?;
            }
            Ok(())
        });
        match released {
            // The reservations of a workspace are deleted with the workspace.
            Err(StoreError::UnknownReference) => Ok(()),
            released => released,
        }
    }

    /// Returns up to `limit` reservations whose ids are greater than `after`. Rows that cannot be read do not hide others.
    pub async fn reservations(
        &self,
        filter: ReservationFilter<'_>,
        after: &str,
        limit: u32,
    ) -> Result<ReservationPage, StoreError> {
        let rows = i64::from(limit);
        let found: Vec<FoundRow> = match filter {
            ReservationFilter::Lost { node, now } => self.db.all(LOST, args![node, now, after, rows]).await?,
            ReservationFilter::Expired { now } => self.db.all(EXPIRED, args![now, after, rows]).await?,
            ReservationFilter::OfTask { workspace, task_id, node } => {
                self.db.all(OF_TASK, args![workspace, task_id, node, after, rows]).await?
            }
        };
        let is_full = u32::try_from(found.len()).is_ok_and(|length| length >= limit);
        let mut page = ReservationPage { rows: Vec::new(), unreadable: Vec::new(), next: None };
        for FoundRow { id, row } in found {
            // Ids that are no texts follow all others.
            page.next = id.ok();
            match row {
                Ok(row) => page.rows.push(row),
                Err(error) => page.unreadable.push(error),
            }
        }
        page.next = page.next.filter(|_| is_full);
        Ok(page)
    }
}

impl Session {
    async fn insert_reservation(&mut self, row: &ReservationRow) -> Result<(), StoreError> {
        let ReservationRow { id, workspace_id, bot_id, user_key, task_id, request_id, model, month, .. } = row;
        let args = args![
            id,
            workspace_id,
            bot_id,
            user_key,
            task_id,
            request_id,
            model,
            month,
            row.tokens_input,
            row.tokens_output,
            row.credits_millionths,
            &row.node,
            row.expires_at,
        ];
        self.run(INSERT, args).await.map(drop)
    }

    async fn charge_round(&mut self, row: &ReservationRow, used: Used) -> Result<(), StoreError> {
        // The round never ran, or the provider refused it.
        if used.is_nothing() {
            return Ok(());
        }
        let account = Account {
            workspace_id: row.workspace_id,
            bot_id: row.bot_id,
            user_key: &row.user_key,
            task_id: &row.task_id,
            model: &row.model,
            month: &row.month,
        };
        let counters = Counters {
            tokens: used.tokens_input.saturating_add(used.tokens_output),
            tokens_input: used.tokens_input,
            tokens_output: used.tokens_output,
            credits_millionths: used.credits_millionths,
            rounds: i64::from(!used.is_retry),
            rounds_estimated: i64::from(used.is_estimated && !used.is_retry),
            calls: 0,
        };
        self.run(ADD_TOTALS, &account.totals(&counters)).await?;
        self.run(ADD_ROW, &account.row(&counters)).await?;
        Ok(())
    }
}
