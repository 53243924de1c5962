//! The device flow (RFC 8628). The host polls the provider until a person has entered a code on another device.

use std::sync::Arc;
use std::time::Duration;

use monstrum_api::oauth::DeviceStarted;
use monstrum_manifest::AuthKind;
use monstrum_store::{FlowStatus, OauthFlowRow};
use monstrum_types::{KeyId, Secret};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Oauth, OauthError, ReturnTo, new_flow, stored_url};
use crate::credentials::provider::scopes;
use crate::credentials::token_endpoint::{Grant, TokenError, lifetime_s};
use crate::policy::Resource;

/// The maximum lifetime of a device code, in seconds. If the provider sends a longer lifetime, the host uses this
/// maximum.
const DEVICE_LIFETIME_S_MAX: i64 = 30 * 60;
/// The default poll interval, in seconds, for a provider that sends no interval (RFC 8628, section 3.2).
const POLL_INTERVAL_S: i64 = 5;
const POLL_INTERVAL_S_MAX: i64 = 120;
/// The number of seconds that the error `slow_down` adds to the interval (RFC 8628, section 3.5).
const SLOW_DOWN_S: i64 = 5;
/// The maximum length of a user code in bytes. A person has to type the code.
const USER_CODE_BYTES_MAX: usize = 64;
/// The interval at which this host checks for due polls.
const DUE_INTERVAL: Duration = Duration::from_millis(500);
const DUE_AT_ONCE: u32 = 16;

/// The answer of a device authorization endpoint (RFC 8628, section 3.2).
#[derive(Deserialize)]
struct DeviceAnswer {
    device_code: Secret,
    user_code: String,
    #[serde(alias = "verification_url")]
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: Option<Value>,
    interval: Option<Value>,
}

impl Oauth {
    /// Starts an authorization in which a person enters a code on another device.
    pub async fn start_device(
        &self,
        resource: &Resource,
        key: KeyId,
        return_to: Option<ReturnTo>,
    ) -> Result<DeviceStarted, OauthError> {
        let (provider, given_for) = self.of_type(resource, AuthKind::Oauth2DeviceCode).await?;
        let url = provider.device_authorization_url.as_deref();
        let url = stored_url(url.ok_or(OauthError::NoUrl { field: "device_authorization_url" })?)?;
        let scopes = scopes(&provider);
        let form = if scopes.is_empty() { vec![] } else { vec![("scope", scopes.as_str())] };
        let client = self.client_of(resource, &provider)?;
        let now = self.clock.now();
        let answer = self.provider(resource, &provider, &client).ask(&url, &form).await?;
        let unusable = |why| OauthError::Token(TokenError::Unusable { why });
        let answer: DeviceAnswer = serde_json::from_value(answer.into())
            .map_err(|_| unusable("it is not a valid device authorization response"))?;
        if ![Some(&answer.verification_uri), answer.verification_uri_complete.as_ref()]
            .into_iter()
            .flatten()
            .all(|uri| is_of_web(uri))
        {
            return Err(unusable("its verification_uri is not a web address"));
        }
        if answer.user_code.len() > USER_CODE_BYTES_MAX || answer.user_code.chars().any(char::is_control) {
            return Err(unusable("its user_code cannot be typed"));
        }
        let expires_in_s = lifetime_s(answer.expires_in.as_ref()).unwrap_or(DEVICE_LIFETIME_S_MAX);
        let expires_in_s = expires_in_s.min(DEVICE_LIFETIME_S_MAX);
        let interval_s = lifetime_s(answer.interval.as_ref()).unwrap_or(POLL_INTERVAL_S).min(POLL_INTERVAL_S_MAX);
        let flow = OauthFlowRow {
            status: FlowStatus::Pending,
            poll_interval_s: Some(interval_s),
            next_poll_at: Some(now.plus_ms(interval_s * 1000)),
            expires_at: now.plus_ms(expires_in_s * 1000),
            return_to: return_to.map(ReturnTo::into_text),
            ..new_flow(resource, &provider, key, &given_for, now)
        };
        let flow = OauthFlowRow { sealed: Some(self.seal(&flow, &answer.device_code)?), ..flow };
        // A resource has at most one pending authorization. A new authorization ends the previous authorization.
        let superseded = "another authorization of this resource was started";
        self.store.end_pending_oauth_flows(flow.workspace_id, flow.resource_id, superseded).await?;
        self.store.insert_oauth_flow(&flow).await?;
        Ok(DeviceStarted {
            id: flow.id,
            user_code: answer.user_code,
            verification_uri: answer.verification_uri,
            verification_uri_complete: answer.verification_uri_complete,
            expires_in: expires_in_s,
            interval: interval_s,
        })
    }

    /// Polls providers until `stop` is cancelled. The database contains the times of the next polls, so that another
    /// host, or this host after a restart, continues to poll.
    pub async fn follow_devices(self: &Arc<Self>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(DUE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            let due = match self.store.due_oauth_flows(self.clock.now(), DUE_AT_ONCE).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::debug!(%error, "failed to read the pending device authorizations; retrying");
                    continue;
                }
            };
            // Each poll is a separate task, so that a slow provider does not delay the polls of other providers. After
            // a poll is claimed, the next poll is due when the interval has passed.
            for flow in due {
                let this = Arc::clone(self);
                self.running.spawn(async move { this.poll(&flow).await });
            }
        }
    }

    async fn poll(&self, flow: &OauthFlowRow) {
        if let Err(error) = self.try_poll(flow).await {
            tracing::warn!(oauth_flow.id = %flow.id, %error, "failed to poll the provider for a device authorization");
        }
    }

    async fn try_poll(&self, flow: &OauthFlowRow) -> Result<(), OauthError> {
        let now = self.clock.now();
        let interval_s = flow.poll_interval_s.unwrap_or(POLL_INTERVAL_S);
        let next = now.plus_ms(interval_s * 1000);
        if !self.store.claim_oauth_poll(flow, interval_s, next).await? {
            return Ok(());
        }
        if !self.auditor.is_healthy() {
            // The poll is skipped. The host stores a token only if it can record the change in the audit.
            return Ok(());
        }
        if flow.expires_at <= now {
            let expired = TokenError::Refused { error: "expired_token".to_owned(), description: String::new() };
            return self.end(flow, FlowStatus::Pending, Err(expired.into())).await;
        }
        let asked = async {
            let (resource, provider) = self.unchanged(flow).await?;
            let device_code = self.unseal(flow)?;
            let tokens = self.ask(&resource, &provider, &Grant::Device { device_code: &device_code }).await?;
            Ok::<_, OauthError>((resource, tokens))
        };
        match asked.await {
            Ok((resource, tokens)) => {
                if !self.store.move_oauth_flow(flow.id, FlowStatus::Pending, FlowStatus::Taken, None).await? {
                    return Ok(());
                }
                let saved = self.recorded(flow, &resource, async { Ok(tokens) }).await;
                self.end(flow, FlowStatus::Taken, saved).await
            }
            Err(OauthError::Token(error)) => match error.code() {
                Some("authorization_pending") => Ok(()),
                Some("slow_down") => {
                    let interval_s = (interval_s + SLOW_DOWN_S).min(POLL_INTERVAL_S_MAX);
                    let claimed = OauthFlowRow { next_poll_at: Some(next), ..flow.clone() };
                    self.store.claim_oauth_poll(&claimed, interval_s, now.plus_ms(interval_s * 1000)).await?;
                    Ok(())
                }
                Some(_) => self.end(flow, FlowStatus::Pending, Err(error.into())).await,
                // The provider sent no error code. Polling continues until the device code expires.
                None => Err(error.into()),
            },
            Err(error @ (OauthError::Store(_) | OauthError::Audit(_))) => Err(error),
            Err(error) => self.end(flow, FlowStatus::Pending, Err(error)).await,
        }
    }
}

/// Returns whether a person can open the URI in a browser.
fn is_of_web(uri: &str) -> bool {
    Url::parse(uri).is_ok_and(|uri| matches!(uri.scheme(), "https" | "http") && uri.has_host())
}
