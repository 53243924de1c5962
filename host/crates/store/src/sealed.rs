//! Sealed records, wherever they stand: what a rotation of the master key walks through and replaces.
//!
//! A further column of sealed records is a further variant of [`SealedColumn`] with its statements; the compiler then
//! asks `host/src/rotation.rs` what its records are bound to. Nothing else knows of the columns one by one.

use crate::db::{Arg, Row, args};
use crate::{Store, StoreError};

/// A column of sealed records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SealedColumn {
    /// The fields of credentials.
    Credentials,
    /// Answers that are kept for their `Idempotency-Key`.
    IdempotencyAnswers,
    /// Secrets of OAuth clients.
    OauthClientSecrets,
    /// PKCE verifiers and device codes of authorizations that are under way.
    OauthFlows,
    /// Keys of the instance, such as those of the audit.
    InstanceKeys,
}

/// A sealed record, and what it is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedRow {
    /// The values of the table's primary key.
    pub key: Vec<String>,
    /// What else of the row the record is bound to.
    pub bound: Vec<String>,
    /// The text of the sealed record.
    pub sealed: String,
}

/// Records of a column, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealedPage {
    /// None only behind the last record.
    pub records: Vec<SealedRow>,
    /// Rows among them whose key cannot be read, by what of the key can be shown. Rows behind the last of the records are
    /// with the next page.
    pub unnamed: Vec<Vec<String>>,
}

struct Statements {
    table: &'static str,
    column: &'static str,
    key: &'static [&'static str],
    bound: &'static [&'static str],
    /// A page behind a key, as many rows as the last parameter says.
    page: &'static str,
    /// Parameters: the new text, the old text, the key, and the version of the master key where the row tells it.
    replace: &'static str,
    tells_version: bool,
    count: &'static str,
    /// How many rows are on no page, since their key is empty or has no value.
    out_of_reach: &'static str,
}

impl SealedColumn {
    /// All of them, in the order of a rotation. The keys of the instance are last: by them a start sees whether it has
    /// the right master key, so once they are of the newest, everything is.
    pub const ALL: [SealedColumn; 5] = [
        SealedColumn::Credentials,
        SealedColumn::IdempotencyAnswers,
        SealedColumn::OauthClientSecrets,
        SealedColumn::OauthFlows,
        SealedColumn::InstanceKeys,
    ];

    /// The table in which it stands.
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
            SealedColumn::InstanceKeys => &INSTANCE_KEYS,
        }
    }
}

const CREDENTIALS: Statements = Statements {
    table: "credentials",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "resource_id", "given_for"],
    page: "select id, workspace_id, resource_id, given_for, sealed from credentials \
           where id > $1 order by id limit $2",
    replace: "update credentials set sealed = $1, key_version = $4 where sealed = $2 and id = $3",
    tells_version: true,
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
    tells_version: false,
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
    tells_version: false,
    count: "select count(*) as value from oauth_providers where client_secret is not null",
    out_of_reach: "select count(*) as value from oauth_providers \
                   where client_secret is not null and (id > '') is not true",
};

const OAUTH_FLOWS: Statements = Statements {
    table: "oauth_flows",
    column: "sealed",
    key: &["id"],
    bound: &["workspace_id", "resource_id", "provider_id", "given_for"],
    page: "select id, workspace_id, resource_id, provider_id, given_for, sealed from oauth_flows \
           where sealed is not null and id > $1 order by id limit $2",
    replace: "update oauth_flows set sealed = $1 where sealed = $2 and id = $3",
    tells_version: false,
    count: "select count(*) as value from oauth_flows where sealed is not null",
    out_of_reach: "select count(*) as value from oauth_flows where sealed is not null and (id > '') is not true",
};

const INSTANCE_KEYS: Statements = Statements {
    table: "instance_keys",
    column: "sealed",
    key: &["name", "version"],
    bound: &[],
    page: "select name, cast(version as text) as version, sealed from instance_keys \
           where (name, cast(version as text)) > ($1, $2) order by name, cast(version as text) limit $3",
    replace: "update instance_keys set sealed = $1 where sealed = $2 and name = $3 and cast(version as text) = $4",
    tells_version: false,
    count: "select count(*) as value from instance_keys",
    out_of_reach: "select count(*) as value from instance_keys \
                   where ((name, cast(version as text)) > ('', '')) is not true",
};

impl Store {
    /// The records of a column behind the one of this key, in the order of keys; from the first where there is none. Rows
    /// that another program has written do not hide others: a page has no record only where there is none left.
    pub async fn sealed_records(
        &self,
        column: SealedColumn,
        behind: Option<&[String]>,
        limit: u32,
    ) -> Result<SealedPage, StoreError> {
        let statements = column.statements();
        let mut asked = i64::from(limit);
        loop {
            // No part of a key is empty, so the empty key is before all.
            let mut args: Vec<Arg<'_>> = match behind {
                Some(key) => key.iter().map(Arg::from).collect(),
                None => statements.key.iter().map(|_| Arg::from("")).collect(),
            };
            args.push(Arg::from(asked));
            let rows = self.db.read_at_length().await?.fetch(statements.page, &args).await?;
            let page = statements.page_of(&rows, limit);
            let was_last = i64::try_from(rows.len()).is_ok_and(|found| found < asked);
            if !page.records.is_empty() || was_last || limit == 0 {
                return Ok(page);
            }
            asked = asked.saturating_mul(2);
        }
    }

    /// How many rows of a column no page has, since their key is empty or has no value. A server writes none of them.
    pub async fn count_sealed_out_of_reach(&self, column: SealedColumn) -> Result<u64, StoreError> {
        let count: Option<i64> = self.db.one(column.statements().out_of_reach, args![]).await?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    /// Replaces the texts of records, each only where it still is the one that was read; how many it replaced. All of
    /// them stand on disk when this returns, or none.
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
            if statements.tells_version {
                args.push(Arg::from(i64::from(key_version)));
            }
            replaced += session.run(statements.replace, &args).await?;
        }
        if column == SealedColumn::Credentials && replaced > 0 {
            // The policy holds the rows of credentials.
            session.bump_generation().await?;
        }
        session.commit().await?;
        Ok(replaced)
    }

    /// How many records a column has.
    pub async fn count_sealed(&self, column: SealedColumn) -> Result<u64, StoreError> {
        let count: Option<i64> = self.db.one(column.statements().count, args![]).await?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    /// The versions of the master key by which credentials are sealed, as their rows tell.
    pub async fn credential_key_versions(&self) -> Result<Vec<i64>, StoreError> {
        self.db.all("select distinct key_version as value from credentials order by key_version", args![]).await
    }
}

impl Statements {
    /// What rows hold, up to as many records.
    fn page_of(&self, rows: &[Row], limit: u32) -> SealedPage {
        let (mut page, mut unnamed) = (SealedPage::default(), Vec::new());
        for row in rows {
            match self.read(row) {
                Some(record) => {
                    page.unnamed.append(&mut unnamed);
                    page.records.push(record);
                }
                None => unnamed.push(self.key.iter().map(|column| row.shown(column)).collect()),
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

    /// A record. One that another program has written may not be text: it is read as an empty one, which does not open.
    /// `None` where no key can be read, by which the row could be named.
    fn read(&self, row: &Row) -> Option<SealedRow> {
        // A key with U+0000 cannot be a parameter.
        let part = |column: &&'static str| row.text(column).ok().filter(|text| !text.contains('\0'));
        let key = self.key.iter().map(part).collect::<Option<_>>()?;
        let text = |column: &'static str| row.text(column).unwrap_or_default();
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

    /// Its records are encrypted under the row key, which is among the keys of the instance.
    const UNDER_THE_ROW_KEY: &str = "policy_seals";

    /// Columns are named for what they hold, so a sealed one that no rotation knows can be found by its name.
    #[test]
    fn every_column_that_is_named_like_a_secret_is_known() {
        let known: Vec<(&str, &str)> =
            SealedColumn::ALL.map(|column| (column.statements().table, column.statements().column)).to_vec();
        let mut found = Vec::new();
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../migrations/sqlite")).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let mut table = String::new();
            for line in text.lines().map(str::trim_start) {
                let words: Vec<&str> = line.trim_end_matches([',', ';']).split_whitespace().collect();
                if let [_, "table", name, ..] = words.as_slice() {
                    table = (*name).to_owned();
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
        for (table, column) in &found {
            assert!(known.contains(&(table, column)), "{table}.{column} is not rotated: see SealedColumn");
        }
        assert_eq!(found.len(), known.len(), "{found:?}");
    }
}
