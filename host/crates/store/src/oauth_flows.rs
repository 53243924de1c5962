//! Authorizations by OAuth that are under way. Every step is one compare-and-swap on the status, so that each is taken
//! once, whatever browser, host or second attempt asks for it.

use monstrum_types::{KeyId, OauthFlowId, OauthProviderId, ResourceId, UtcMillis, WorkspaceId};
use serde_json::Value;

use crate::db::{Arg, FromRow, Row, args, unfit, values};
use crate::rows::{Authentic, Scope, Table};
use crate::{Store, StoreError};

/// How far an authorization has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowStatus {
    /// Nobody has opened its begin page.
    Started,
    /// A browser has been sent to the provider.
    Begun,
    /// The provider is asked from time to time whether the user has entered the code.
    Pending,
    /// The provider has answered, and the token is being fetched.
    Taken,
    /// The credential is stored.
    Done,
    /// There is no credential; the message says why.
    Failed,
}

impl FlowStatus {
    /// The word in the column and in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FlowStatus::Started => "started",
            FlowStatus::Begun => "begun",
            FlowStatus::Pending => "pending",
            FlowStatus::Taken => "taken",
            FlowStatus::Done => "done",
            FlowStatus::Failed => "failed",
        }
    }

    fn from_word(word: &str) -> Result<Self, StoreError> {
        use FlowStatus::{Begun, Done, Failed, Pending, Started, Taken};
        let all = [Started, Begun, Pending, Taken, Done, Failed];
        all.into_iter().find(|status| status.as_str() == word).ok_or_else(|| unfit("status", "not of the right form"))
    }
}

/// A row of `oauth_flows`.
#[derive(Clone, Debug, PartialEq)]
pub struct OauthFlowRow {
    pub id: OauthFlowId,
    pub workspace_id: WorkspaceId,
    pub resource_id: ResourceId,
    pub provider_id: OauthProviderId,
    /// The API key that asked.
    pub key_id: KeyId,
    pub auth_method: String,
    /// What the credential will be given for.
    pub given_for: Value,
    pub status: FlowStatus,
    /// Of the begin page's address; hashes are SHA-256 in hex.
    pub ticket_hash: Option<String>,
    pub state_hash: Option<String>,
    /// Of the cookie.
    pub browser_hash: Option<String>,
    /// The text of a sealed record: the PKCE verifier, or the device code.
    pub sealed: Option<String>,
    pub message: Option<String>,
    pub poll_interval_s: Option<i64>,
    pub next_poll_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub expires_at: UtcMillis,
}

macro_rules! columns {
    () => {
        "id, workspace_id, resource_id, provider_id, key_id, auth_method, given_for, status, ticket_hash, state_hash, \
         browser_hash, sealed, message, poll_interval_s, next_poll_at, created_at, expires_at, mac"
    };
}

const BY_ID: &str =
    concat!("select ", columns!(), " from oauth_flows where workspace_id = $1 and resource_id = $2 and id = $3");
const BY_TICKET: &str = concat!("select ", columns!(), " from oauth_flows where ticket_hash = $1 and expires_at > $2");
const BY_STATE: &str = concat!("select ", columns!(), " from oauth_flows where state_hash = $1 and expires_at > $2");
const DUE: &str = concat!(
    "select ",
    columns!(),
    " from oauth_flows where status = 'pending' and next_poll_at <= $1 order by next_poll_at limit $2"
);

impl FromRow for OauthFlowRow {
    fn from_row(row: &Row) -> Result<Self, StoreError> {
        Ok(OauthFlowRow {
            id: row.id("id")?,
            workspace_id: row.id("workspace_id")?,
            resource_id: row.id("resource_id")?,
            provider_id: row.id("provider_id")?,
            key_id: row.id("key_id")?,
            auth_method: row.text("auth_method")?,
            given_for: row.json("given_for")?,
            status: FlowStatus::from_word(&row.text("status")?)?,
            ticket_hash: row.text_opt("ticket_hash")?,
            state_hash: row.text_opt("state_hash")?,
            browser_hash: row.text_opt("browser_hash")?,
            sealed: row.text_opt("sealed")?,
            message: row.text_opt("message")?,
            poll_interval_s: row.int_opt("poll_interval_s")?,
            next_poll_at: row.time_opt("next_poll_at")?,
            created_at: row.time("created_at")?,
            expires_at: row.time("expires_at")?,
        })
    }
}

impl Authentic for OauthFlowRow {
    const TABLE: Table = Table::OauthFlows;

    fn scope(&self) -> Scope {
        Scope::Workspace(self.workspace_id)
    }

    fn covered(&self) -> Vec<Arg<'_>> {
        values![
            self.id,
            self.workspace_id,
            self.resource_id,
            self.provider_id,
            self.key_id,
            &self.auth_method,
            &self.given_for,
            &self.ticket_hash,
            self.created_at,
            self.expires_at
        ]
    }
}

impl Store {
    /// Adds an authorization.
    pub async fn insert_oauth_flow(&self, row: &OauthFlowRow) -> Result<(), StoreError> {
        let left_out = values![
            row.status.as_str(),
            &row.state_hash,
            &row.browser_hash,
            &row.sealed,
            &row.message,
            row.poll_interval_s,
            row.next_poll_at,
        ];
        self.insert_uncounted(row, left_out).await
    }

    /// An authorization of a resource.
    pub async fn oauth_flow(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        id: OauthFlowId,
    ) -> Result<Option<OauthFlowRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, resource, id]).await
    }

    /// The authorization whose begin page has this address, unless it has expired.
    pub async fn oauth_flow_of_ticket(&self, hash: &str, now: UtcMillis) -> Result<Option<OauthFlowRow>, StoreError> {
        self.authentic_one(BY_TICKET, args![hash, now]).await
    }

    /// The authorization that has this state, unless it has expired.
    pub async fn oauth_flow_of_state(&self, hash: &str, now: UtcMillis) -> Result<Option<OauthFlowRow>, StoreError> {
        self.authentic_one(BY_STATE, args![hash, now]).await
    }

    /// Authorizations whose provider is to be asked at `now`, the longest waiting first.
    pub async fn due_oauth_flows(&self, now: UtcMillis, limit: u32) -> Result<Vec<OauthFlowRow>, StoreError> {
        self.authentic_up_to(DUE, values![now], limit).await
    }

    /// Binds the authorization to the browser that `row` names, with a new state and a new verifier. It must stand as
    /// `before` says: unopened, or open in that same browser.
    pub async fn begin_oauth_flow(&self, before: &OauthFlowRow, row: &OauthFlowRow) -> Result<bool, StoreError> {
        let sql = "update oauth_flows set status = 'begun', state_hash = $2, browser_hash = $3, sealed = $4 \
                   where id = $1 and status = $5 and (browser_hash is null or browser_hash = $3)";
        let args = args![row.id, &row.state_hash, &row.browser_hash, &row.sealed, before.status.as_str()];
        Ok(self.db.run(sql, args).await? > 0)
    }

    /// Takes an authorization that stands at `from` to `to`, for good where that is an end; whether it stood there. What
    /// was secret of it is forgotten at its end.
    pub async fn move_oauth_flow(
        &self,
        id: OauthFlowId,
        from: FlowStatus,
        to: FlowStatus,
        message: Option<&str>,
    ) -> Result<bool, StoreError> {
        let is_end = matches!(to, FlowStatus::Done | FlowStatus::Failed);
        let sql = "update oauth_flows set status = $3, message = $4, \
                   sealed = case when $5 then null else sealed end where id = $1 and status = $2";
        Ok(self.db.run(sql, args![id, from.as_str(), to.as_str(), message, is_end]).await? > 0)
    }

    /// Ends the authorizations by device that a resource has, and forgets what was secret of them.
    pub async fn end_pending_oauth_flows(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        message: &str,
    ) -> Result<(), StoreError> {
        let sql = "update oauth_flows set status = 'failed', message = $3, sealed = null \
                   where workspace_id = $1 and resource_id = $2 and status = 'pending'";
        self.db.run(sql, args![workspace, resource, message]).await?;
        Ok(())
    }

    /// Claims the next question to the provider for one host: it is due again at `next`. Whether it was due at
    /// `row.next_poll_at` still.
    pub async fn claim_oauth_poll(
        &self,
        row: &OauthFlowRow,
        interval_s: i64,
        next: UtcMillis,
    ) -> Result<bool, StoreError> {
        let sql = "update oauth_flows set poll_interval_s = $3, next_poll_at = $4 \
                   where id = $1 and status = 'pending' and next_poll_at = $2";
        Ok(self.db.run(sql, args![row.id, row.next_poll_at, interval_s, next]).await? > 0)
    }

    /// Forgets authorizations that expired before `before`; how many.
    pub async fn purge_oauth_flows(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run("delete from oauth_flows where expires_at < $1", args![before]).await
    }
}
