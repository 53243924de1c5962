//! The device flow (RFC 8628). The host polls the provider until a person has entered a code on another device.

use std::sync::Arc;
use std::time::Duration;

use monstrum_api::oauth::{DeviceProgress, DeviceStarted};
use monstrum_manifest::AuthKind;
use monstrum_store::{FlowStatus, OauthFlowRow};
use monstrum_types::{KeyId, Secret, is_invisible};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Oauth, OauthError, ReturnTo, new_flow, stored_url};
use crate::credentials::provider::{parse_url, scopes};
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
/// The maximum length of a verification URI in bytes. Browsers and servers support URLs of this length.
const URI_BYTES_MAX: usize = 2048;
/// The reason for the end of an authorization when another one takes its place.
const SUPERSEDED: &str = "another authorization of this resource was started";
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

impl DeviceAnswer {
    /// Returns the checked answer, or the reason why it cannot be used.
    fn checked(self) -> Result<DeviceRecord, &'static str> {
        const NO_ADDRESS: &str = "its verification_uri is not an https address";
        const NO_CODE: &str = "its user_code cannot be typed";
        if self.user_code.trim().is_empty() || self.user_code.len() > USER_CODE_BYTES_MAX {
            return Err(NO_CODE);
        }
        // Such a character could make a person type another code than the code that is displayed.
        if self.user_code.chars().any(is_invisible) {
            return Err(NO_CODE);
        }
        let verification_uri = web_address(&self.verification_uri).ok_or(NO_ADDRESS)?;
        let complete = self.verification_uri_complete.as_deref();
        let verification_uri_complete = complete.map(|uri| web_address(uri).ok_or(NO_ADDRESS)).transpose()?;
        let interval_s = lifetime_s(self.interval.as_ref()).unwrap_or(POLL_INTERVAL_S).min(POLL_INTERVAL_S_MAX);
        Ok(DeviceRecord {
            device_code: self.device_code,
            user_code: self.user_code,
            verification_uri,
            verification_uri_complete,
            interval_s,
        })
    }
}

/// The sealed record of a pending authorization: the device code, and what a person needs to enter the user code.
#[derive(Deserialize)]
struct DeviceRecord {
    device_code: Secret,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    /// The interval that the provider has asked for, before it answered `slow_down`.
    interval_s: i64,
}

impl DeviceRecord {
    fn to_text(&self) -> Secret {
        let record = json!({
            "device_code": self.device_code.expose(),
            "user_code": self.user_code,
            "verification_uri": self.verification_uri,
            "verification_uri_complete": self.verification_uri_complete,
            "interval_s": self.interval_s,
        });
        Secret::new(record.to_string())
    }

    /// Parses a record. Returns `None` for the record of an earlier version of the host, which is the device code alone.
    fn parse(text: &Secret) -> Option<DeviceRecord> {
        serde_json::from_str(text.expose()).ok()
    }
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
        let expires_in_s = lifetime_s(answer.expires_in.as_ref()).unwrap_or(DEVICE_LIFETIME_S_MAX);
        let expires_in_s = expires_in_s.min(DEVICE_LIFETIME_S_MAX);
        let record = answer.checked().map_err(unusable)?;
        let interval_s = record.interval_s;
        let flow = OauthFlowRow {
            status: FlowStatus::Pending,
            poll_interval_s: Some(interval_s),
            next_poll_at: Some(now.plus_ms(interval_s * 1000)),
            expires_at: now.plus_ms(expires_in_s * 1000),
            return_to: return_to.map(ReturnTo::into_text),
            ..new_flow(resource, &provider, key, &given_for, now)
        };
        let flow = OauthFlowRow { sealed: Some(self.seal(&flow, &record.to_text())?), ..flow };
        // A resource has at most one pending authorization. A new authorization ends the previous authorization.
        self.store.end_pending_oauth_flows(flow.workspace_id, flow.resource_id, SUPERSEDED).await?;
        self.store.insert_oauth_flow(&flow).await?;
        Ok(DeviceStarted {
            id: flow.id,
            user_code: record.user_code,
            verification_uri: record.verification_uri,
            verification_uri_complete: record.verification_uri_complete,
            expires_in: expires_in_s,
            interval: interval_s,
        })
    }

    /// Returns the progress of an authorization with a user code. While it is pending, the progress repeats what a person
    /// needs to enter the code.
    pub fn device_progress(&self, flow: OauthFlowRow) -> Result<DeviceProgress, OauthError> {
        let status = match flow.status {
            FlowStatus::Done | FlowStatus::Failed => flow.status,
            _ if flow.expires_at <= self.clock.now() => FlowStatus::Failed,
            _ => FlowStatus::Pending,
        };
        let is_pending = status == FlowStatus::Pending;
        let record = if is_pending { DeviceRecord::parse(&self.unseal(&flow)?) } else { None };
        let interval = flow.poll_interval_s.filter(|_| is_pending);
        let slow_down =
            record.as_ref().zip(interval).is_some_and(|(record, interval_s)| interval_s > record.interval_s);
        let reason = (status == FlowStatus::Failed).then(|| failure_reason(flow.message.as_deref()));
        let (user_code, verification_uri, verification_uri_complete) = match record {
            Some(record) => (Some(record.user_code), Some(record.verification_uri), record.verification_uri_complete),
            None => (None, None, None),
        };
        Ok(DeviceProgress {
            id: flow.id,
            status: status.as_str(),
            user_code,
            verification_uri,
            verification_uri_complete,
            interval,
            slow_down,
            reason,
            message: flow.message,
            expires_at: flow.expires_at,
            return_to: flow.return_to,
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
            let text = self.unseal(flow)?;
            let device_code = DeviceRecord::parse(&text).map_or(text, |record| record.device_code);
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

/// Returns the address of a page that a person can open in a browser, in its normal form, or `None` for any other text.
/// Like the addresses of a provider, it uses https, or http with a loopback address.
fn web_address(text: &str) -> Option<String> {
    if text.len() > URI_BYTES_MAX {
        return None;
    }
    let url = Url::parse(text).ok()?;
    let mut without_fragment = url.clone();
    without_fragment.set_fragment(None);
    parse_url(without_fragment.as_str()).ok()?;
    Some(url.into())
}

/// Returns the reason for the failure of an authorization with this message. An authorization that expired before the
/// next poll has no message.
fn failure_reason(message: Option<&str>) -> &'static str {
    let Some(message) = message else { return "expired" };
    let answered = |code: &str| {
        let refused = TokenError::Refused { error: code.to_owned(), description: String::new() };
        message.starts_with(&refused.to_string())
    };
    if answered("access_denied") {
        "denied"
    } else if answered("expired_token") {
        "expired"
    } else if message == SUPERSEDED {
        "superseded"
    } else {
        "error"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(changes: &Value) -> Result<DeviceRecord, &'static str> {
        let mut answer = json!({
            "device_code": "device-code", "user_code": "WDJB-MJHT", "verification_uri": "https://id.example/device",
        });
        for (name, value) in changes.as_object().unwrap() {
            answer[name] = value.clone();
        }
        serde_json::from_value::<DeviceAnswer>(answer).unwrap().checked()
    }

    #[test]
    fn a_person_gets_only_codes_and_addresses_that_can_be_used() {
        for good in [
            json!({}),
            json!({ "verification_uri": "http://127.0.0.1:8080/device" }),
            json!({ "verification_uri": "https://id.example/#/device" }),
            json!({ "verification_uri_complete": "https://id.example/device?user_code=WDJB-MJHT" }),
            json!({ "user_code": "<b>1234</b>" }),
        ] {
            assert!(checked(&good).is_ok(), "{good}");
        }
        for uri in [
            "javascript:alert(1)",
            "data:text/html,x",
            "http://id.example/device",
            "http://127.0.0.1.id.example/",
            "https://id.example@evil.example/",
            "//id.example/device",
            "device",
            "",
            &format!("https://id.example/{}", "a".repeat(URI_BYTES_MAX)),
        ] {
            for field in ["verification_uri", "verification_uri_complete"] {
                assert!(checked(&json!({ field: uri })).is_err(), "{field} {uri}");
            }
        }
        for code in ["", "  ", "WDJB\u{200b}MJHT", "\u{202e}THJM", "a\nb", &"a".repeat(USER_CODE_BYTES_MAX + 1)] {
            assert!(checked(&json!({ "user_code": code })).is_err(), "{code:?}");
        }
    }

    #[test]
    fn an_address_is_shown_in_its_normal_form() {
        let record = checked(&json!({ "verification_uri": "HTTPS://ID.example/\u{202e}device" })).unwrap();
        assert_eq!(record.verification_uri, "https://id.example/%E2%80%AEdevice");
    }

    #[test]
    fn a_record_of_an_earlier_version_is_the_device_code() {
        let record = checked(&json!({ "interval": 7 })).unwrap();
        let read = DeviceRecord::parse(&record.to_text()).unwrap();
        assert_eq!(
            (read.device_code.expose(), read.user_code.as_str(), read.interval_s),
            ("device-code", "WDJB-MJHT", 7)
        );
        assert!(DeviceRecord::parse(&Secret::new("device-code".to_owned())).is_none());
    }

    #[test]
    fn the_reason_for_a_failure_comes_from_the_code_of_the_provider() {
        let message = |code: &str, description: &str| {
            TokenError::Refused { error: code.to_owned(), description: description.to_owned() }.to_string()
        };
        assert_eq!(failure_reason(None), "expired");
        assert_eq!(failure_reason(Some(&message("access_denied", ": no"))), "denied");
        assert_eq!(failure_reason(Some(&message("expired_token", ""))), "expired");
        assert_eq!(failure_reason(Some(SUPERSEDED)), "superseded");
        assert_eq!(failure_reason(Some(&message("invalid_grant", ": `access_denied`"))), "error");
    }
}
