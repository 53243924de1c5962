//! Numbers of calls by their properties. A statement reads the newest rows only, so that its cost has a limit.

use monstrum_types::{UtcMillis, WorkspaceId, words};

use super::CallFilter;
use crate::db::{Arg, args, from_row};
use crate::{Store, StoreError};

/// The maximum number of rows of the audit that are read for numbers of calls.
pub const STATS_ROWS_MAX: u32 = 200_000;
/// The maximum number of groups. Bots choose the names of the tools that they request, so the number of groups has no
/// other limit.
pub const STATS_GROUPS_MAX: u32 = 10_000;
/// The id of a request is made before its call starts, at most this long before.
const STARTS_WITHIN_MS: i64 = 3_600_000;

words! {
    /// A property by which calls are counted.
    pub enum CallProperty {
        BotId = "bot_id",
        Tool = "tool",
        ResourceId = "resource_id",
        Status = "status",
        Rule = "rule",
        Message = "message",
    }
}

/// What to count.
#[derive(Clone, Debug)]
pub struct StatsQuery<'a> {
    pub filter: &'a CallFilter,
    /// One or two properties.
    pub by: (CallProperty, Option<CallProperty>),
    pub since: UtcMillis,
    pub until: UtcMillis,
    /// The width of the buckets, in milliseconds. Buckets begin at multiples of their width since 1970.
    pub bucket_ms: Option<i64>,
}

/// The number of calls with the same properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCount {
    /// The values of the properties, in the order of the query.
    pub first: Option<String>,
    pub second: Option<String>,
    /// The beginning of the bucket.
    pub bucket_at: Option<UtcMillis>,
    pub calls: i64,
    /// The time at which the newest of these calls started.
    pub last_at: UtcMillis,
}

/// The numbers of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCounts {
    /// The largest groups first.
    pub groups: Vec<CallCount>,
    /// Whether groups are missing, because there are more than [`STATS_GROUPS_MAX`].
    pub has_more_groups: bool,
    /// Rows that are older than this time were not read.
    pub truncated_before: Option<UtcMillis>,
}

struct GroupRow {
    first_value: Option<String>,
    second_value: Option<String>,
    bucket_at: i64,
    calls: i64,
    last_at: UtcMillis,
}
from_row!(GroupRow { first_value, second_value, bucket_at, calls, last_at });

/// The text of a string in the canonical text of a row, with its escapes. `$after` is the length of the key with its
/// punctuation. Each key is followed by another key, except the last one.
macro_rules! member {
    ($key:literal, $after:literal) => {
        concat!(
            "case when instr(body, '\"",
            $key,
            "\":\"') > 0 then substr(substr(body, instr(body, '\"",
            $key,
            "\":\"') + ",
            $after,
            "), 1, instr(substr(body, instr(body, '\"",
            $key,
            "\":\"') + ",
            $after,
            "), '\",\"') - 1) end"
        )
    };
}

macro_rules! value_of_version_2 {
    ($property:literal) => {
        concat!(
            "case ",
            $property,
            " when 'bot_id' then ",
            member!("bot_id", "10"),
            " when 'tool' then ",
            member!("tool", "8"),
            " when 'resource_id' then ",
            member!("resource_id", "15"),
            " when 'status' then status when 'rule' then ",
            member!("rule", "8"),
            " when 'message' then ",
            member!("message", "11"),
            " end"
        )
    };
}

macro_rules! value_of_version_1 {
    ($property:literal) => {
        concat!(
            "case ",
            $property,
            " when 'bot_id' then bot_id when 'tool' then tool when 'resource_id' then resource_id when 'status' then ",
            "case kind when 'started' then 'running' when 'interrupted' then 'interrupted' else status end ",
            "when 'rule' then rule when 'message' then message end"
        )
    };
}

/// `$1` workspace, `$2` lowest id, `$3` to `$10` the filter, `$11` rows, `$12` and `$13` properties, `$14` width,
/// `$15` groups.
macro_rules! groups {
    ($table:literal, $columns:literal, $first:expr, $second:expr, $status:literal, $by:literal, $latest:expr, $indexed:literal) => {
        concat!(
            "select ",
            $first,
            " as first_value, ",
            $second,
            " as second_value, started_at - started_at % $14 as bucket_at, count(*) as calls, \
             max(started_at) as last_at from (select ",
            $columns,
            " from ",
            $table,
            " where workspace_id = $1 and request_id >= $2",
            $indexed,
            " order by request_id desc limit $11) as event \
             where (flags is null or flags <> 'change') and ($3 is null or bot_id = $3) and ($4 is null or tool = $4) \
             and ($5 is null or ",
            $status,
            " = $5) and started_at >= $6 and started_at < $7 and ($8 is null or operation = $8)",
            $by,
            " and ",
            $latest,
            " group by first_value, second_value, bucket_at order by calls desc, last_at desc limit $15"
        )
    };
}

macro_rules! groups_of_version_2 {
    ($indexed:literal) => {
        groups!(
            "audit_rows",
            "body, kind, flags, request_id, bot_id, tool, operation, status, started_at, writer, sequence",
            value_of_version_2!("$12"),
            value_of_version_2!("$13"),
            "status",
            " and ($9 is null or substr(body, instr(body, '\"resource_id\":\"') + 15, 36) = $9) \
             and ($10 is null or instr(body, $10) > 0)",
            "(kind = 'finished' or not exists (select 1 from audit_rows as other where other.workspace_id = $1 \
             and other.request_id = event.request_id \
             and (case other.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end, \
                  other.started_at, other.writer, other.sequence) \
               > (case event.kind when 'finished' then 2 when 'interrupted' then 1 else 0 end, \
                  event.started_at, event.writer, event.sequence)))",
            $indexed
        )
    };
}

/// A call that was running while its host was upgraded has an end of version 2, so starts of version 1 do not count.
const GROUPS_1: &str = groups!(
    "audit_events",
    "kind, flags, request_id, bot_id, tool, operation, status, started_at, resource_id, rule, message",
    value_of_version_1!("$12"),
    value_of_version_1!("$13"),
    "case kind when 'started' then 'running' when 'interrupted' then 'interrupted' else status end",
    " and ($9 is null or resource_id = $9) and ($10 is null or rule = $10)",
    "kind <> 'started'",
    ""
);
const GROUPS_2: &str = groups_of_version_2!("");
const GROUPS_OF_BOT: &str = groups_of_version_2!(" and bot_id = $3");
const GROUPS_OF_TOOL: &str = groups_of_version_2!(" and tool = $4");
const GROUPS_OF_RESOURCE: &str = groups_of_version_2!(
    " and instr(body, '\"resource_id\":\"') > 0 and substr(body, instr(body, '\"resource_id\":\"') + 15, 36) = $9"
);
const GROUPS_OF_FAILED: &str = groups_of_version_2!(" and status <> 'success' and status <> 'running'");

macro_rules! oldest {
    ($table:literal, $indexed:literal) => {
        concat!(
            "select started_at as value from ",
            $table,
            " where workspace_id = $1 and request_id >= $2",
            $indexed,
            " order by request_id desc limit 1 offset $3"
        )
    };
}

/// The statements for the rows of version 2: the groups, and the time of the row at an offset.
struct Statements {
    groups: &'static str,
    oldest: &'static str,
    /// The value of the index in `oldest`, as parameter `$4`.
    key: IndexKey,
}

#[derive(Clone, Copy)]
enum IndexKey {
    None,
    Bot,
    Tool,
    Resource,
}

impl StatsQuery<'_> {
    fn statements(&self) -> Statements {
        let (groups, oldest, key) = match self.filter {
            CallFilter { tool: Some(_), .. } => {
                (GROUPS_OF_TOOL, oldest!("audit_rows", " and tool = $4"), IndexKey::Tool)
            }
            CallFilter { rule: Some(_), .. } => (
                GROUPS_OF_FAILED,
                oldest!("audit_rows", " and status <> 'success' and status <> 'running'"),
                IndexKey::None,
            ),
            CallFilter { status: Some(status), .. } if status != "success" && status != "running" => (
                GROUPS_OF_FAILED,
                oldest!("audit_rows", " and status <> 'success' and status <> 'running'"),
                IndexKey::None,
            ),
            CallFilter { resource_id: Some(_), .. } => (
                GROUPS_OF_RESOURCE,
                oldest!(
                    "audit_rows",
                    " and instr(body, '\"resource_id\":\"') > 0 \
                     and substr(body, instr(body, '\"resource_id\":\"') + 15, 36) = $4"
                ),
                IndexKey::Resource,
            ),
            CallFilter { bot_id: Some(_), .. } => {
                (GROUPS_OF_BOT, oldest!("audit_rows", " and bot_id = $4"), IndexKey::Bot)
            }
            _ => (GROUPS_2, oldest!("audit_rows", ""), IndexKey::None),
        };
        Statements { groups, oldest, key }
    }

    /// The values of the parameters after the filter.
    fn rest(&self) -> (String, String, i64) {
        let (first, second) = self.by;
        let second = second.map(|second| second.as_str().to_owned()).unwrap_or_default();
        (first.as_str().to_owned(), second, self.bucket_ms.unwrap_or(i64::MAX))
    }
}

/// Returns the lowest id that a request from `since` on can have. Ids are UUIDs of version 7, which begin with the time
/// in milliseconds.
fn lowest_id(since: UtcMillis) -> [u8; 16] {
    let millis = since.0.saturating_sub(STARTS_WITHIN_MS).clamp(0, (1 << 48) - 1).to_be_bytes();
    let mut id = [0; 16];
    id[..6].copy_from_slice(&millis[2..]);
    id
}

fn hyphenated(id: &[u8; 16]) -> String {
    let hex = hex::encode(id);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

impl Store {
    /// Counts calls in a workspace by one or two properties. Each call counts once.
    pub async fn call_counts(&self, workspace: WorkspaceId, query: &StatsQuery<'_>) -> Result<CallCounts, StoreError> {
        let filter = CallFilter { since: Some(query.since), until: Some(query.until), ..query.filter.clone() };
        let (lowest, ours) = (lowest_id(query.since), workspace.as_bytes().as_slice());
        let (first, second, width) = query.rest();
        let limits = (i64::from(STATS_ROWS_MAX), i64::from(STATS_GROUPS_MAX) + 1);
        let rest =
            || [Arg::from(limits.0), Arg::from(&first), Arg::from(&second), Arg::from(width), Arg::from(limits.1)];
        let statements = query.statements();

        let mut session = self.db.read_at_length().await?;
        let values = filter.of_version_2();
        let mut args = vec![Arg::from(ours), Arg::from(lowest.as_slice())];
        args.extend(values.args());
        args.extend(rest());
        let mut groups: Vec<GroupRow> = session.all(statements.groups, &args).await?;

        let mut oldest = vec![Arg::from(ours), Arg::from(lowest.as_slice()), Arg::from(limits.0)];
        let resource = query.filter.resource_id.map(|id| id.to_string());
        match statements.key {
            IndexKey::None => {}
            IndexKey::Bot => {
                oldest.push(Arg::Bytes(query.filter.bot_id.as_ref().map(|id| id.as_bytes().as_slice())));
            }
            IndexKey::Tool => oldest.push(Arg::from(&query.filter.tool)),
            IndexKey::Resource => oldest.push(Arg::from(&resource)),
        }
        let mut truncated: Option<i64> = session.one(statements.oldest, &oldest).await?;
        for group in &mut groups {
            group.first_value = unescaped(query.by.0, group.first_value.take());
            group.second_value = query.by.1.and_then(|by| unescaped(by, group.second_value.take()));
        }
        if truncated.is_none() {
            let lowest = hyphenated(&lowest);
            let values = filter.of_version_1();
            let mut args = vec![Arg::from(workspace), Arg::from(&lowest)];
            args.extend(values.args());
            args.extend(rest());
            groups.extend(session.all::<GroupRow>(GROUPS_1, &args).await?);
            truncated = session.one(oldest!("audit_events", ""), args![workspace, &lowest, limits.0]).await?;
        }
        let truncated_before = truncated.map(UtcMillis).filter(|oldest| *oldest >= query.since);
        Ok(merged(groups, query.bucket_ms.is_some(), truncated_before))
    }
}

/// Decodes the text of a string in a row's canonical text. The status is a column.
fn unescaped(by: CallProperty, value: Option<String>) -> Option<String> {
    let value = value?;
    if by == CallProperty::Status || !value.contains('\\') {
        return Some(value);
    }
    Some(serde_json::from_str(&format!("\"{value}\"")).unwrap_or(value))
}

/// Adds up groups of the two versions with the same properties.
fn merged(rows: Vec<GroupRow>, has_buckets: bool, truncated_before: Option<UtcMillis>) -> CallCounts {
    let mut groups = std::collections::BTreeMap::new();
    for row in rows {
        let bucket_at = has_buckets.then_some(UtcMillis(row.bucket_at));
        let (calls, last_at) = groups.entry((row.first_value, row.second_value, bucket_at)).or_insert((0, row.last_at));
        *calls += row.calls;
        *last_at = row.last_at.max(*last_at);
    }
    let groups = groups.into_iter().map(|((first, second, bucket_at), (calls, last_at))| CallCount {
        first,
        second,
        bucket_at,
        calls,
        last_at,
    });
    let mut groups: Vec<CallCount> = groups.collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.calls, group.last_at)));
    let has_more_groups = groups.len() > STATS_GROUPS_MAX as usize;
    groups.truncate(STATS_GROUPS_MAX as usize);
    CallCounts { groups, has_more_groups, truncated_before }
}
