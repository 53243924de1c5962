//! Reports of the usage in one month.

use monstrum_types::{AppUser, BotId, WorkspaceId};

use crate::db::{FromRow, Row, args};
use crate::{Store, StoreError, UsageRow};

/// The columns by which a report groups usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageBy {
    pub bot: bool,
    pub user: bool,
    pub task: bool,
    pub model: bool,
}

/// The usage of one group. The columns that [`UsageBy`] does not name are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageGroup {
    pub bot: Option<BotId>,
    /// The user; the inner `None` stands for calls without a user.
    pub user: Option<Option<AppUser>>,
    /// The task; empty for calls without a task.
    pub task: Option<String>,
    /// The model; empty for calls that are no rounds.
    pub model: Option<String>,
    pub usage: UsageRow,
}

/// The groups of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageGroups {
    /// The groups with the most tokens, in descending order.
    pub items: Vec<UsageGroup>,
    /// Whether there are further groups.
    pub has_more: bool,
}

/// The values of the grouping columns, which are empty if the report does not group by them.
struct GroupRow {
    bot_id: String,
    user_key: String,
    task_id: String,
    model: String,
    usage: UsageRow,
}

impl FromRow for GroupRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(GroupRow {
            bot_id: row.get("bot_id")?,
            user_key: row.get("user_key")?,
            task_id: row.get("task_id")?,
            model: row.get("model")?,
            usage: UsageRow::from_row(row)?,
        })
    }
}

/// Sums a column. Each addend is at most 2^50, so that the sum of thousands of absurd costs does not overflow.
macro_rules! sum {
    ($column:literal) => {
        concat!(
            "cast(sum(case when ",
            $column,
            " > 1125899906842624 then 1125899906842624 else ",
            $column,
            " end) as bigint) as ",
            $column,
        )
    };
}

const GROUPS: &str = concat!(
    "select case when $3 then bot_id else '' end as bot_id, case when $4 then user_key else '' end as user_key, \
     case when $5 then task_id else '' end as task_id, case when $6 then model else '' end as model, \
     cast($2 as text) as month, ",
    sum!("tokens"),
    ", ",
    sum!("tokens_input"),
    ", ",
    sum!("tokens_output"),
    ", ",
    sum!("credits_millionths"),
    ", ",
    sum!("rounds"),
    ", ",
    sum!("rounds_estimated"),
    ", ",
    sum!("calls"),
    " from usage_rows where workspace_id = $1 and month = $2 group by 1, 2, 3, 4 \
     order by 6 desc, 9 desc, 1, 2, 3, 4 limit $7",
);

impl Store {
    /// Returns the usage of a workspace in a month, grouped by the columns of `by`: the `limit` groups with the most
    /// tokens.
    pub async fn usage_groups(
        &self,
        workspace: WorkspaceId,
        month: &str,
        by: UsageBy,
        limit: u32,
    ) -> Result<UsageGroups, StoreError> {
        let rows = i64::from(limit) + 1;
        let args = args![workspace, month, by.bot, by.user, by.task, by.model, rows];
        let mut found: Vec<GroupRow> = self.db.all(GROUPS, args).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let has_more = found.len() > limit;
        found.truncate(limit);
        let items = found.into_iter().map(|row| UsageGroup {
            bot: if by.bot { row.bot_id.parse().ok() } else { None },
            user: by.user.then(|| AppUser::of_key(&row.user_key)),
            task: by.task.then_some(row.task_id),
            model: by.model.then_some(row.model),
            usage: row.usage,
        });
        Ok(UsageGroups { items: items.collect(), has_more })
    }
}
