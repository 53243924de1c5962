//! The columns that contain sealed records. A rotation of the master key reseals these records.
//!
//! To add a column, add a variant to [`SealedColumn`] with its statements. The compiler then requires the associated
//! data of the column in `host/src/boot/rotation.rs`. No other code lists these columns.

use crate::db::{Arg, Row, args};
use crate::{Store, StoreError};

/// A column of sealed records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SealedColumn {
    /// The fields of credentials.
    Credentials,
    /// Stored responses to requests with an `Idempotency-Key` header.
    IdempotencyAnswers,
    /// The secrets of OAuth clients.
    OauthClientSecrets,
    /// The PKCE verifiers and device codes of unfinished authorizations.
    OauthFlows,
    /// The parameters of calls that a person approves.
    ApprovalParams,
    /// The commands of sandboxes and their outputs.
    SandboxOutputs,
    /// The instructions and results of tasks.
    Tasks,
    /// The steps of tasks.
    TaskSteps,
    /// What schedules do.
    Schedules,
    /// The inputs and outputs of runs.
    Runs,
    /// The steps of runs.
    RunSteps,
    /// The data of events.
    Events,
    /// The secrets of webhooks.
    WebhookSecrets,
    /// The keys of the instance, such as the audit keys.
    InstanceKeys,
}

/// A sealed record and the values that it is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedRow {
    /// The values of the table's primary key.
    pub key: Vec<String>,
    /// The values of other columns that the record is bound to.
    pub bound: Vec<String>,
    /// The sealed record in its text form.
    pub sealed: String,
}

/// A page of the records of a column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedPage {
    /// The records of the page; empty only if no records remain.
    pub records: Vec<SealedRow>,
    /// The keys, as text for display, of rows whose key cannot be decoded. The list contains the rows before the last
    /// record of this page. Later rows are in the list of the next page.
    pub unnamed: Vec<Vec<String>>,
}

struct Statements {
    table: &'static str,
    column: &'static str,
    key: &'static [&'static str],
    bound: &'static [&'static str],
    /// Selects the rows after a key. The last parameter is the limit.
    page: &'static str,
    /// Replaces a record. The parameters are the new record, the old record, the key, and the version of the master
    /// key if the row has a column for that version.
    replace: &'static str,
    has_key_version: bool,
    count: &'static str,
    /// Counts the rows that no page contains because their key is empty or NULL.
    out_of_reach: &'static str,
}

impl SealedColumn {
    /// All columns, in the order of a rotation. The keys of the instance are last because a host uses them to check
    /// its master key at startup: once they are resealed, all other columns are resealed as well.
    pub const ALL: [SealedColumn; 14] = [
        SealedColumn::Credentials,
        SealedColumn::IdempotencyAnswers,
        SealedColumn::OauthClientSecrets,
        SealedColumn::OauthFlows,
        SealedColumn::ApprovalParams,
        SealedColumn::SandboxOutputs,
        SealedColumn::Tasks,
        SealedColumn::TaskSteps,
        SealedColumn::Schedules,
        SealedColumn::Runs,
        SealedColumn::RunSteps,
        SealedColumn::Events,
        SealedColumn::WebhookSecrets,
        SealedColumn::InstanceKeys,
    ];

    /// Returns the name of the table that contains the column.
    #[must_use]
    pub fn table(self) -> &'static str {
        self.statements().table
    }

    fn statements(self) -> &'static Statements {
        match self {
            SealedColumn::Credentials => &CREDENTIALS,
            SealedColumn::IdempotencyAnswers => &IDEMPOTENCY_ANSWERS,
            SealedColumn::OauthClientSecrets => &OAUTH_CLIENT_SECRETS,
            SealedColumn::OauthFlows => &OAUTH_FLOWS,
            SealedColumn::ApprovalParams => &APPROVAL_PARAMS,
            SealedColumn::SandboxOutputs => &SANDBOX_OUTPUTS,
            SealedColumn::Tasks => &TASKS,
            SealedColumn::TaskSteps => &TASK_STEPS,
            SealedColumn::Schedules => &SCHEDULES,
            SealedColumn::Runs => &RUNS,
            SealedColumn::RunSteps => &RUN_STEPS,
            SealedColumn::Events => &EVENTS,
            SealedColumn::WebhookSecrets => &WEBHOOK_SECRETS,
            SealedColumn::InstanceKeys => &INSTANCE_KEYS,
        }
    }
}

const CREDENTIALS: Statements = Statements {
    table: "credentials",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "resource_id", "subject_kind", "subject_id", "given_for"],
    page: "select id, workspace_id, resource_id, subject_kind, subject_id, given_for, sealed from credentials \
           where id > $1 order by id limit $2",
    replace: "update credentials set sealed = $1, key_version = $4 where sealed = $2 and id = $3",
    has_key_version: true,
    count: "select count(*) as value from credentials",
    out_of_reach: "select count(*) as value from credentials where (id > '') is not true",
};

const IDEMPOTENCY_ANSWERS: Statements = Statements {
    table: "idempotency_keys",
    column: "answer",
    key: &["workspace_id", "caller", "route", "key"],
    bound: &["body_hash", "status"],
    page: "select workspace_id, caller, route, key, body_hash, cast(status as text) as status, answer \
           from idempotency_keys where answer is not null and (workspace_id, caller, route, key) > ($1, $2, $3, $4) \
           order by workspace_id, caller, route, key limit $5",
    replace: "update idempotency_keys set answer = $1 \
              where answer = $2 and workspace_id = $3 and caller = $4 and route = $5 and key = $6",
    has_key_version: false,
    count: "select count(*) as value from idempotency_keys where answer is not null",
    out_of_reach: "select count(*) as value from idempotency_keys where answer is not null \
                   and ((workspace_id, caller, route, key) > ('', '', '', '')) is not true",
};

const OAUTH_CLIENT_SECRETS: Statements = Statements {
    table: "oauth_providers",
    column: "client_secret",
    key: &["id"],
    bound: &["workspace_id", "resource_type", "client_id", "token_url", "device_authorization_url"],
    page: "select id, workspace_id, resource_type, client_id, token_url, \
           coalesce(device_authorization_url, '') as device_authorization_url, client_secret from oauth_providers \
           where client_secret is not null and id > $1 order by id limit $2",
    replace: "update oauth_providers set client_secret = $1 where client_secret = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from oauth_providers where client_secret is not null",
    out_of_reach: "select count(*) as value from oauth_providers \
                   where client_secret is not null and (id > '') is not true",
};

const OAUTH_FLOWS: Statements = Statements {
    table: "oauth_flows",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "resource_id", "provider_id", "given_for", "subject"],
    page: "select id, workspace_id, resource_id, provider_id, given_for, coalesce(subject, 'null') as subject, sealed \
           from oauth_flows \
           where sealed is not null and id > $1 order by id limit $2",
    replace: "update oauth_flows set sealed = $1 where sealed = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from oauth_flows where sealed is not null",
    out_of_reach: "select count(*) as value from oauth_flows where sealed is not null and (id > '') is not true",
};

const APPROVAL_PARAMS: Statements = Statements {
    table: "approvals",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "digest"],
    page: "select id, workspace_id, digest, sealed from approvals \
           where sealed is not null and id > $1 order by id limit $2",
    replace: "update approvals set sealed = $1 where sealed = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from approvals where sealed is not null",
    out_of_reach: "select count(*) as value from approvals where sealed is not null and (id > '') is not true",
};

const SANDBOX_OUTPUTS: Statements = Statements {
    table: "sandbox_outputs",
    column: "sealed",
    key: &["request_id"],
    bound: &["workspace_id", "sandbox_id"],
    page: "select request_id, workspace_id, sandbox_id, sealed from sandbox_outputs \
           where request_id > $1 order by request_id limit $2",
    replace: "update sandbox_outputs set sealed = $1 where sealed = $2 and request_id = $3",
    has_key_version: false,
    count: "select count(*) as value from sandbox_outputs",
    out_of_reach: "select count(*) as value from sandbox_outputs where (request_id > '') is not true",
};

const TASKS: Statements = Statements {
    table: "tasks",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "bot_id", "session_id", "parent_id", "key_id"],
    page: "select id, workspace_id, bot_id, coalesce(session_id, '') as session_id, \
           coalesce(parent_id, '') as parent_id, coalesce(key_id, '') as key_id, sealed from tasks \
           where id > $1 order by id limit $2",
    replace: "update tasks set sealed = $1 where sealed = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from tasks",
    out_of_reach: "select count(*) as value from tasks where (id > '') is not true",
};

const TASK_STEPS: Statements = Statements {
    table: "task_steps",
    column: "sealed",
    key: &["task_id", "sequence"],
    bound: &["workspace_id", "kind", "request_id", "tool", "effect"],
    page: "select task_id, cast(sequence as text) as sequence, workspace_id, kind, \
           coalesce(request_id, '') as request_id, coalesce(tool, '') as tool, coalesce(effect, '') as effect, \
           sealed from task_steps \
           where (task_id, cast(sequence as text)) > ($1, $2) order by task_id, cast(sequence as text) limit $3",
    replace: "update task_steps set sealed = $1 where sealed = $2 and task_id = $3 and cast(sequence as text) = $4",
    has_key_version: false,
    count: "select count(*) as value from task_steps",
    out_of_reach: "select count(*) as value from task_steps \
                   where ((task_id, cast(sequence as text)) > ('', '')) is not true",
};

const SCHEDULES: Statements = Statements {
    table: "schedules",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "bot_id", "name", "created_at", "updated_at"],
    page: "select id, workspace_id, bot_id, name, cast(created_at as text) as created_at, \
           cast(updated_at as text) as updated_at, sealed from schedules \
           where id > $1 order by id limit $2",
    replace: "update schedules set sealed = $1 where sealed = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from schedules",
    out_of_reach: "select count(*) as value from schedules where (id > '') is not true",
};

const RUNS: Statements = Statements {
    table: "runs",
    column: "sealed",
    key: &["id"],
    bound: &[
        "workspace_id",
        "bot_id",
        "workflow_id",
        "version",
        "started_by_kind",
        "started_by_id",
        "event_id",
        "delivery_id",
        "parent_run_id",
    ],
    page: "select id, workspace_id, bot_id, workflow_id, cast(version as text) as version, started_by_kind, \
           started_by_id, coalesce(event_id, '') as event_id, coalesce(delivery_id, '') as delivery_id, \
           coalesce(parent_run_id, '') as parent_run_id, sealed from runs where id > $1 order by id limit $2",
    replace: "update runs set sealed = $1 where sealed = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from runs",
    out_of_reach: "select count(*) as value from runs where (id > '') is not true",
};

// The key of a step is one text, because its item may be empty, and parts of keys are never empty.
const RUN_STEPS: Statements = Statements {
    table: "run_steps",
    column: "sealed",
    key: &["position"],
    bound: &[
        "workspace_id",
        "run_id",
        "phase",
        "step",
        "item",
        "run_attempt",
        "attempt",
        "kind",
        "request_id",
        "effect",
    ],
    page: "select position, workspace_id, run_id, phase, step, item, cast(run_attempt as text) as run_attempt, \
           cast(attempt as text) as attempt, kind, coalesce(request_id, '') as request_id, \
           coalesce(effect, '') as effect, sealed from run_steps where position > $1 order by position limit $2",
    replace: "update run_steps set sealed = $1 where sealed = $2 and position = $3",
    has_key_version: false,
    count: "select count(*) as value from run_steps",
    out_of_reach: "select count(*) as value from run_steps where (position > '') is not true",
};

const EVENTS: Statements = Statements {
    table: "events",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "event_type", "source_type", "source_id", "bot_id", "root_event_id", "depth", "links"],
    page: "select id, workspace_id, event_type, source_type, source_id, coalesce(bot_id, '') as bot_id, \
           root_event_id, cast(depth as text) as depth, links, sealed from events \
           where id > $1 order by id limit $2",
    replace: "update events set sealed = $1 where sealed = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from events",
    out_of_reach: "select count(*) as value from events where (id > '') is not true",
};

const WEBHOOK_SECRETS: Statements = Statements {
    table: "webhooks",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "secret_created_at"],
    page: "select id, workspace_id, cast(secret_created_at as text) as secret_created_at, sealed from webhooks \
           where id > $1 order by id limit $2",
    replace: "update webhooks set sealed = $1 where sealed = $2 and id = $3",
    has_key_version: false,
    count: "select count(*) as value from webhooks",
    out_of_reach: "select count(*) as value from webhooks where (id > '') is not true",
};

const INSTANCE_KEYS: Statements = Statements {
    table: "instance_keys",
    column: "sealed",
    key: &["name", "version"],
    bound: &[],
    page: "select name, cast(version as text) as version, sealed from instance_keys \
           where (name, cast(version as text)) > ($1, $2) order by name, cast(version as text) limit $3",
    replace: "update instance_keys set sealed = $1 where sealed = $2 and name = $3 and cast(version as text) = $4",
    has_key_version: false,
    count: "select count(*) as value from instance_keys",
    out_of_reach: "select count(*) as value from instance_keys \
                   where ((name, cast(version as text)) > ('', '')) is not true",
};

impl Store {
    /// Returns a page of the records of a column, ordered by key. The page starts after the key `behind`, or at the
    /// first record if `behind` is `None`. Rows that another program wrote do not hide other records. A page without
    /// records is the last page.
    pub async fn sealed_records(
        &self,
        column: SealedColumn,
        behind: Option<&[String]>,
        limit: u32,
    ) -> Result<SealedPage, StoreError> {
        let statements = column.statements();
        let mut requested = i64::from(limit);
        loop {
            // The empty key sorts before all other keys, because key parts are never empty.
            let mut args: Vec<Arg<'_>> = match behind {
                Some(key) => key.iter().map(Arg::from).collect(),
                None => statements.key.iter().map(|_| Arg::from("")).collect(),
            };
            args.push(Arg::from(requested));
            let rows = self.db.read_at_length().await?.fetch(statements.page, &args).await?;
            let page = statements.page_of(&rows, limit);
            let was_last = i64::try_from(rows.len()).is_ok_and(|found| found < requested);
            if !page.records.is_empty() || was_last || limit == 0 {
                return Ok(page);
            }
            requested = requested.saturating_mul(2);
        }
    }

    /// Counts the rows that no page contains because their key is empty or NULL. A host never writes such rows.
    pub async fn count_sealed_out_of_reach(&self, column: SealedColumn) -> Result<u64, StoreError> {
        let count: Option<i64> = self.db.one(column.statements().out_of_reach, args![]).await?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    /// Replaces records in one transaction. Skips records that have changed since they were read. Returns the number
    /// of replaced records. The changes are on disk when this function returns.
    pub async fn replace_sealed(
        &self,
        column: SealedColumn,
        records: &[(SealedRow, String)],
        key_version: u32,
    ) -> Result<u64, StoreError> {
        let statements = column.statements();
        let mut session = self.db.write().await?;
        let mut replaced = 0;
        for (row, sealed) in records {
            let mut args = vec![Arg::from(sealed), Arg::from(&row.sealed)];
            args.extend(row.key.iter().map(Arg::from));
            if statements.has_key_version {
                args.push(Arg::from(i64::from(key_version)));
            }
            replaced += session.run(statements.replace, &args).await?;
        }
        if matches!(column, SealedColumn::Credentials | SealedColumn::WebhookSecrets) && replaced > 0 {
            // These records are part of the policy, so hosts must read the policy again.
            session.bump_generation().await?;
        }
        session.commit().await?;
        Ok(replaced)
    }

    /// Returns the number of records in a column.
    pub async fn count_sealed(&self, column: SealedColumn) -> Result<u64, StoreError> {
        let count: Option<i64> = self.db.one(column.statements().count, args![]).await?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    /// Returns the versions of the master key that sealed the credentials, according to the credential rows.
    pub async fn credential_key_versions(&self) -> Result<Vec<i64>, StoreError> {
        self.db.all("select distinct key_version as value from credentials order by key_version", args![]).await
    }
}

impl Statements {
    /// Builds a page of up to `limit` records.
    fn page_of(&self, rows: &[Row], limit: u32) -> SealedPage {
        let (mut page, mut unnamed) = (SealedPage::default(), Vec::new());
        for row in rows {
            match self.read(row) {
                Some(record) => {
                    page.unnamed.append(&mut unnamed);
                    page.records.push(record);
                }
                None => unnamed.push(self.key.iter().map(|column| row.display(column)).collect()),
            }
            if page.records.len() >= limit as usize {
                break;
            }
        }
        if page.records.is_empty() {
            page.unnamed = unnamed;
        }
        page
    }

    /// Decodes a record. Returns `None` if its key cannot be decoded. If the record or a bound value is not text,
    /// uses an empty string instead, so that unsealing the record fails.
    fn read(&self, row: &Row) -> Option<SealedRow> {
        // A key that contains U+0000 cannot be a query parameter.
        let part = |column: &&'static str| row.get(column).ok().filter(|text: &String| !text.contains('\0'));
        let key = self.key.iter().map(part).collect::<Option<_>>()?;
        let text = |column: &'static str| row.get::<String>(column).unwrap_or_default();
        Some(SealedRow {
            key,
            bound: self.bound.iter().map(|column| text(column)).collect(),
            sealed: text(self.column),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that is not listed, because its records are encrypted with the row key, which is itself an instance
    /// key.
    const UNDER_THE_ROW_KEY: &str = "policy_seals";

    /// All sealed columns have recognizable names, so this test can detect a column that is missing from
    /// `SealedColumn`.
    #[test]
    fn every_column_with_the_name_of_a_secret_is_listed() {
        let known: Vec<(&str, &str)> =
            SealedColumn::ALL.map(|column| (column.statements().table, column.statements().column)).to_vec();
        let mut found = Vec::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../migrations/sqlite")).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let mut table = String::new();
            for line in text.lines().map(str::trim_start) {
                let words: Vec<&str> = line.trim_end_matches([',', ';']).split_whitespace().collect();
                if let [_, "table", name, ..] = words.as_slice() {
                    // A table that SQLite cannot alter is rebuilt under a name that ends with `_rebuilt`.
                    table = name.trim_end_matches("_rebuilt").to_owned();
                }
                let column = match words.as_slice() {
                    ["alter", _, _, "add", "column", column, "text", ..] | [column, "text", ..] => *column,
                    _ => continue,
                };
                if table == UNDER_THE_ROW_KEY {
                    continue;
                }
                if column == "answer" || column.contains("sealed") || column.contains("secret") {
                    found.push((table.clone(), column.to_owned()));
                }
            }
        }
        found.sort();
        found.dedup();
        for (table, column) in &found {
            assert!(known.contains(&(table, column)), "{table}.{column} is not resealed: add it to SealedColumn");
        }
        assert_eq!(found.len(), known.len(), "{found:?}");
    }
}
