//! OAuth authorizations. Each step is one compare-and-swap on the status, so only one of several concurrent browsers,
//! hosts or attempts can perform the step.

use monstrum_types::{KeyId, OauthFlowId, OauthProviderId, ResourceId, UtcMillis, WorkspaceId, words};
use serde_json::Value;

use crate::db::{args, values};
use crate::rows::{Scope, authentic};
use crate::{Store, StoreError};

words! {
    /// The progress of an authorization.
    pub enum FlowStatus {
        /// The browser was redirected to the issuer at which the user must sign in first.
        SigningIn = "signing_in",
        /// The user has not opened the page that begins the authorization, or has not confirmed there.
        Started = "started",
        /// The browser was redirected to the provider.
        Begun = "begun",
        /// The host polls the provider until the user has entered the device code.
        Pending = "pending",
        /// The provider has redirected back, and the host is fetching the token.
        Taken = "taken",
        /// The credential is stored.
        Done = "done",
        /// The authorization ended without a credential. `message` contains the reason.
        Failed = "failed",
    }
}

/// A row of `oauth_flows`.
#[derive(Clone, Debug, PartialEq)]
pub struct OauthFlowRow {
    pub id: OauthFlowId,
    pub workspace_id: WorkspaceId,
    pub resource_id: ResourceId,
    pub provider_id: OauthProviderId,
    /// The API key that started the authorization.
    pub key_id: KeyId,
    pub auth_method: String,
    /// The `given_for` value of the credential to be created.
    pub given_for: Value,
    pub status: FlowStatus,
    /// The hex-encoded SHA-256 of the ticket, which is in the URL of the begin page.
    pub ticket_hash: Option<String>,
    /// The hex-encoded SHA-256 of the OAuth `state` parameter.
    pub state_hash: Option<String>,
    /// The hex-encoded SHA-256 of the browser's cookie.
    pub browser_hash: Option<String>,
    /// A sealed record in its text form, which contains the PKCE verifier or the device code.
    pub sealed: Option<String>,
    pub message: Option<String>,
    pub poll_interval_s: Option<i64>,
    pub next_poll_at: Option<UtcMillis>,
    pub created_at: UtcMillis,
    pub expires_at: UtcMillis,
    /// The user for whom the authorization obtains a credential, as JSON; `None` for a shared credential.
    pub subject: Option<Value>,
    /// The URL to which the browser goes when the credential is stored.
    pub return_to: Option<String>,
}

authentic! {
    OauthFlowRow in OauthFlows("oauth_flows"), select: select, scope: |row| Scope::from(row.workspace_id),
    covered: [
        id, workspace_id, resource_id, provider_id, key_id, auth_method, given_for, ticket_hash, created_at, expires_at,
    ],
    optional: [subject, return_to],
    // These columns record the progress of the authorization, which changes while the MAC stays the same.
    others: [status, state_hash, browser_hash, sealed, message, poll_interval_s, next_poll_at],
    spec: { is_counted: false },
}

const BY_ID: &str = select!("where workspace_id = $1 and resource_id = $2 and id = $3");
const BY_TICKET: &str = select!("where ticket_hash = $1 and expires_at > $2");
const BY_STATE: &str = select!("where state_hash = $1 and expires_at > $2");
const DUE: &str = select!("where status = 'pending' and next_poll_at <= $1 order by next_poll_at limit $2");

impl Store {
    /// Inserts an authorization.
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

    /// Returns the authorization with this id, if it belongs to the resource.
    pub async fn oauth_flow(
        &self,
        workspace: WorkspaceId,
        resource: ResourceId,
        id: OauthFlowId,
    ) -> Result<Option<OauthFlowRow>, StoreError> {
        self.authentic_one(BY_ID, args![workspace, resource, id]).await
    }

    /// Returns the authorization with this ticket hash, unless it has expired.
    pub async fn oauth_flow_of_ticket(&self, hash: &str, now: UtcMillis) -> Result<Option<OauthFlowRow>, StoreError> {
        self.authentic_one(BY_TICKET, args![hash, now]).await
    }

    /// Returns the authorization with this state hash, unless it has expired.
    pub async fn oauth_flow_of_state(&self, hash: &str, now: UtcMillis) -> Result<Option<OauthFlowRow>, StoreError> {
        self.authentic_one(BY_STATE, args![hash, now]).await
    }

    /// Returns the authorizations whose next poll of the provider is due at `now`, ordered by the time of that poll.
    pub async fn due_oauth_flows(&self, now: UtcMillis, limit: u32) -> Result<Vec<OauthFlowRow>, StoreError> {
        self.authentic_up_to(DUE, values![now], limit).await
    }

    /// Binds the authorization to the browser with this hash. Returns `false` if it has been opened already.
    pub async fn show_oauth_flow(&self, id: OauthFlowId, browser_hash: &str) -> Result<bool, StoreError> {
        let sql =
            "update oauth_flows set browser_hash = $2 where id = $1 and status = 'started' and browser_hash is null";
        Ok(self.db.run(sql, args![id, browser_hash]).await? > 0)
    }

    /// Prepares the sign-in of the browser of `row`, with a new state and verifier. Returns `false` if the user has
    /// signed in, or if the authorization is bound to another browser.
    pub async fn sign_in_oauth_flow(&self, row: &OauthFlowRow) -> Result<bool, StoreError> {
        let sql = "update oauth_flows set state_hash = $2, sealed = $3 \
                   where id = $1 and status = 'signing_in' and browser_hash = $4";
        Ok(self.db.run(sql, args![row.id, &row.state_hash, &row.sealed, &row.browser_hash]).await? > 0)
    }

    /// Records that the browser has signed in. `sealed` is the proof. Returns `false` if another answer of the issuer
    /// was handled first. The state is good for one answer.
    pub async fn signed_in_oauth_flow(&self, row: &OauthFlowRow, sealed: &str) -> Result<bool, StoreError> {
        let sql = "update oauth_flows set status = 'started', state_hash = null, sealed = $3 \
                   where id = $1 and status = 'signing_in' and state_hash = $2";
        Ok(self.db.run(sql, args![row.id, &row.state_hash, sealed]).await? > 0)
    }

    /// Ends an authorization that is at the sign-in with this state. Returns `false` if it has moved on.
    pub async fn refuse_sign_in(&self, row: &OauthFlowRow, message: &str) -> Result<bool, StoreError> {
        let sql = "update oauth_flows set status = 'failed', message = $3, sealed = null, state_hash = null \
                   where id = $1 and status = 'signing_in' and state_hash = $2";
        Ok(self.db.run(sql, args![row.id, &row.state_hash, message]).await? > 0)
    }

    /// Binds the authorization to the browser of `row`, with a new state and verifier. Returns `false` if its status is
    /// no longer the status of `before`, or if it is bound to another browser.
    pub async fn begin_oauth_flow(&self, before: &OauthFlowRow, row: &OauthFlowRow) -> Result<bool, StoreError> {
        let sql = "update oauth_flows set status = 'begun', state_hash = $2, browser_hash = $3, sealed = $4 \
                   where id = $1 and status = $5 and (browser_hash is null or browser_hash = $3)";
        let args = args![row.id, &row.state_hash, &row.browser_hash, &row.sealed, before.status.as_str()];
        Ok(self.db.run(sql, args).await? > 0)
    }

    /// Changes the status of an authorization from `from` to `to`. A final status also deletes the sealed record.
    /// Returns whether the status was `from`.
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

    /// Marks the pending device authorizations of a resource as failed, and deletes their sealed records.
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

    /// Claims the due poll of an authorization for one host, and schedules the next poll at `next`. Returns `false` if
    /// another host has already claimed the due poll, or if the authorization has ended.
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

    /// Deletes authorizations that expired before `before`. Returns the number of deleted authorizations.
    pub async fn purge_oauth_flows(&self, before: UtcMillis) -> Result<u64, StoreError> {
        self.db.run("delete from oauth_flows where expires_at < $1", args![before]).await
    }
}
