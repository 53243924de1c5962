//! Webhooks: the secrets of systems outside, and the check that a request knows the secret of its webhook.
//!
//! A stranger who sends a request learns nothing from its refusal. An unknown webhook is checked against a secret that no
//! request knows, with the same work.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use monstrum_store::{WebhookKind, WebhookRow};
use monstrum_types::{Secret, UtcMillis, WebhookId, WorkspaceId};
use monstrum_vault::{AssociatedData, Sealed, Vault, VaultError, hmac_sha256};
use serde_json::json;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The header of the signature, unless a webhook names another one: that of GitHub.
pub const SIGNATURE_HEADER: &str = "X-Hub-Signature-256";
/// The text before the hex digits of the signature, unless a webhook names another one.
pub const SIGNATURE_PREFIX: &str = "sha256=";

/// The maximum number of requests to a webhook in a minute. A repository in which many people work makes less than one
/// event a second.
const REQUESTS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(120).expect("120 is not zero");
/// The number of requests between two sweeps of the limiter.
const REQUESTS_PER_SWEEP: u32 = 4096;
/// The text with which secrets begin, by which people and scanners recognize them.
const SECRET_PREFIX: &str = "wh_";

/// Makes a secret of 32 random bytes.
///
/// # Errors
///
/// The operating system has no random bytes.
pub fn generate_secret() -> Result<Secret, getrandom::Error> {
    let mut bits = zeroize::Zeroizing::new([0_u8; 32]);
    getrandom::fill(bits.as_mut_slice())?;
    Ok(Secret::new(format!("{SECRET_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(*bits))))
}

/// Seals a secret for the webhook of `row`.
///
/// # Errors
///
/// The vault failed.
pub fn seal_secret(vault: &Vault, row: &WebhookRow, secret: &Secret) -> Result<Sealed, VaultError> {
    vault.seal(secret.expose().as_bytes(), place_of(row))
}

fn open_secret(vault: &Vault, row: &WebhookRow) -> Result<Secret, VaultError> {
    let plaintext = vault.unseal(&row.sealed.parse()?, place_of(row))?;
    let text = std::str::from_utf8(&plaintext).map_err(|_| VaultError::NotSealed { what: "it is not UTF-8 text" })?;
    Ok(Secret::new(text.to_owned()))
}

fn place_of(row: &WebhookRow) -> AssociatedData {
    place(row.workspace_id, row.id, &row.secret_created_at.0.to_string())
}

/// Returns the associated data of a secret. It contains the time at which the secret was made, which the MAC of the row
/// covers, so that an earlier secret cannot be restored.
#[must_use]
pub fn place(workspace: WorkspaceId, webhook: WebhookId, created_at: &str) -> AssociatedData {
    AssociatedData::new("webhook")
        .with("workspace", &workspace)
        .with("webhook", &webhook)
        .with("secret created at", created_at)
}

/// The headers of a request, by name in lower case. Values that are not visible ASCII are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaders(Vec<(String, String)>);

impl FromIterator<(String, String)> for RequestHeaders {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(headers: I) -> Self {
        RequestHeaders(headers.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect())
    }
}

impl RequestHeaders {
    fn all<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'h str> {
        let is_named = move |(own, _): &&(String, String)| own.eq_ignore_ascii_case(name);
        self.0.iter().filter(is_named).map(|(_, value)| value.as_str())
    }

    /// Returns the value of a header that occurs once.
    fn single<'h>(&'h self, name: &'h str) -> Option<&'h str> {
        let mut values = self.all(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Returns the values of a header, separated by commas; `None` if the request does not have it.
    #[must_use]
    pub fn joined(&self, name: &str) -> Option<String> {
        let values: Vec<&str> = self.all(name).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }
}

/// A request that knows the secret of its webhook.
pub struct Authenticated {
    /// The secret, which must not become part of the event.
    pub secret: Secret,
    /// The HMAC of the body, which identifies the body.
    pub mac: [u8; 32],
}

/// The requests to the webhooks of a host: who may make events, and how many.
pub struct Receiver {
    /// The webhook that stands for unknown ones.
    decoy: WebhookRow,
    limiter: DefaultKeyedRateLimiter<WebhookId>,
    clock: DefaultClock,
    requests: AtomicU32,
}

impl Receiver {
    /// Creates the receiver of a host.
    ///
    /// # Errors
    ///
    /// The vault failed.
    pub fn new(vault: &Vault) -> Result<Receiver, VaultError> {
        let mut decoy = WebhookRow {
            id: WebhookId::new(),
            workspace_id: WorkspaceId::new(),
            name: String::new(),
            event: String::new(),
            bot_id: None,
            kind: WebhookKind::HmacSha256,
            signature_header: Some(SIGNATURE_HEADER.to_owned()),
            signature_prefix: Some(SIGNATURE_PREFIX.to_owned()),
            headers: json!([]),
            dedupe_header: None,
            created_at: UtcMillis(0),
            updated_at: UtcMillis(0),
            secret_created_at: UtcMillis(0),
            sealed: String::new(),
        };
        let secret = generate_secret().map_err(VaultError::Random)?;
        decoy.sealed = seal_secret(vault, &decoy, &secret)?.to_string();
        let limiter = RateLimiter::keyed(Quota::per_minute(REQUESTS_PER_MINUTE));
        Ok(Receiver { decoy, limiter, clock: DefaultClock::default(), requests: AtomicU32::new(0) })
    }

    /// Checks whether a request knows the secret of the webhook `row`. The work does not depend on the kind of the
    /// webhook, on whether the webhook is known, and on how the check ends.
    pub fn authenticate(
        &self,
        vault: &Vault,
        row: Option<&WebhookRow>,
        headers: &RequestHeaders,
        body: &[u8],
    ) -> Option<Authenticated> {
        let webhook = row.unwrap_or(&self.decoy);
        let opened = open_secret(vault, webhook).inspect_err(|error| {
            // Any sender can cause this entry, so it counts as a request.
            if self.admit(webhook.id).is_ok() {
                tracing::error!(%error, webhook.id = %webhook.id, "the secret of a webhook cannot be opened");
            }
        });
        let is_opened = opened.is_ok();
        let secret = opened.or_else(|_| open_secret(vault, &self.decoy)).ok()?;
        let mac = hmac_sha256(&secret, body);
        let is_signed = is_signed(webhook, headers, &mac);
        let has_token = has_token(headers, &secret);
        let is_authentic = match webhook.kind {
            WebhookKind::HmacSha256 => is_signed,
            WebhookKind::Token => has_token,
        };
        let is_authentic = bool::from(is_authentic) && row.is_some() && is_opened;
        is_authentic.then_some(Authenticated { secret, mac })
    }

    /// Counts an authentic request to a webhook.
    ///
    /// # Errors
    ///
    /// The webhook has had too many requests. The error is the time after which another one is accepted.
    pub fn admit(&self, webhook: WebhookId) -> Result<(), Duration> {
        // The keys are ids of webhooks that exist or were deleted since the last sweep.
        if self.requests.fetch_add(1, Ordering::Relaxed) % REQUESTS_PER_SWEEP == REQUESTS_PER_SWEEP - 1 {
            self.limiter.retain_recent();
        }
        self.limiter.check_key(&webhook).map_err(|refused| refused.wait_time_from(self.clock.now()))
    }
}

/// Returns whether the signature of a request is `mac`.
fn is_signed(webhook: &WebhookRow, headers: &RequestHeaders, mac: &[u8; 32]) -> Choice {
    let header = webhook.signature_header.as_deref().unwrap_or(SIGNATURE_HEADER);
    let prefix = webhook.signature_prefix.as_deref().unwrap_or_default();
    let digits = headers.single(header).and_then(|value| value.strip_prefix(prefix));
    let mut sent = [0; 32];
    let is_readable = digits.is_some_and(|digits| hex::decode_to_slice(digits, &mut sent).is_ok());
    sent.ct_eq(mac) & Choice::from(u8::from(is_readable))
}

/// Returns whether the bearer token of a request is the secret. The digests are compared, so that the time does not
/// depend on the texts.
fn has_token(headers: &RequestHeaders, secret: &Secret) -> Choice {
    let sent = headers.single("authorization").and_then(|value| value.split_once(' '));
    let token = sent.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map_or("", |(_, token)| token.trim());
    let (sent, expected) = (Sha256::digest(token.as_bytes()), Sha256::digest(secret.expose().as_bytes()));
    sent.as_slice().ct_eq(expected.as_slice())
}

#[cfg(test)]
mod tests {
    use monstrum_vault::MasterKeys;

    use super::*;

    const BODY: &[u8] = br#"{"action":"opened"}"#;

    fn vault() -> Vault {
        Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap())
    }

    fn webhook(vault: &Vault, receiver: &Receiver, kind: WebhookKind) -> (WebhookRow, Secret) {
        let mut row = WebhookRow { id: WebhookId::new(), kind, ..receiver.decoy.clone() };
        let secret = generate_secret().unwrap();
        row.sealed = seal_secret(vault, &row, &secret).unwrap().to_string();
        (row, secret)
    }

    fn headers(headers: &[(&str, &str)]) -> RequestHeaders {
        headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn signature(secret: &Secret, body: &[u8]) -> String {
        format!("sha256={}", hex::encode(hmac_sha256(secret, body)))
    }

    #[test]
    fn a_signature_holds_for_its_body_and_its_webhook() {
        let vault = vault();
        let receiver = Receiver::new(&vault).unwrap();
        let (row, secret) = webhook(&vault, &receiver, WebhookKind::HmacSha256);
        let signed = signature(&secret, BODY);
        let check = |row: Option<&WebhookRow>, sent: &[(&str, &str)], body: &[u8]| {
            receiver.authenticate(&vault, row, &headers(sent), body).is_some()
        };
        assert!(check(Some(&row), &[("x-hub-signature-256", &signed)], BODY));
        assert!(check(Some(&row), &[("X-HUB-SIGNATURE-256", &signed)], BODY));
        assert!(!check(None, &[("x-hub-signature-256", &signed)], BODY), "an unknown webhook");
        assert!(!check(Some(&row), &[("x-hub-signature-256", &signed)], b"{}"), "another body");
        let bare = signed.strip_prefix("sha256=").unwrap();
        let twice = [("x-hub-signature-256", signed.as_str()), ("x-hub-signature-256", signed.as_str())];
        let token = [("authorization", format!("Bearer {}", secret.expose()))];
        let token = token.each_ref().map(|(name, value)| (*name, value.as_str()));
        for sent in
            [&[][..], &[("x-hub-signature-256", bare)], &[("x-hub-signature-256", &signed[..70])], &twice, &token]
        {
            assert!(!check(Some(&row), sent, BODY), "{sent:?}");
        }
        let (other, _) = webhook(&vault, &receiver, WebhookKind::HmacSha256);
        assert!(!check(Some(&other), &[("x-hub-signature-256", &signed)], BODY), "another webhook");
    }

    #[test]
    fn a_token_is_the_secret() {
        let vault = vault();
        let receiver = Receiver::new(&vault).unwrap();
        let (row, secret) = webhook(&vault, &receiver, WebhookKind::Token);
        let check = |value: &str| {
            receiver.authenticate(&vault, Some(&row), &headers(&[("authorization", value)]), BODY).is_some()
        };
        assert!(check(&format!("Bearer {}", secret.expose())) && check(&format!("bearer  {}", secret.expose())));
        for wrong in ["", "Bearer", "Bearer ", "Bearer wh_x", secret.expose(), &format!("Basic {}", secret.expose())] {
            assert!(!check(wrong), "{wrong}");
        }
        let signed = headers(&[("x-hub-signature-256", &signature(&secret, BODY))]);
        assert!(receiver.authenticate(&vault, Some(&row), &signed, BODY).is_none(), "a signature is not the token");
    }

    #[test]
    fn a_secret_opens_only_in_its_row() {
        let vault = vault();
        let receiver = Receiver::new(&vault).unwrap();
        let (row, secret) = webhook(&vault, &receiver, WebhookKind::Token);
        assert_eq!(open_secret(&vault, &row).unwrap().expose(), secret.expose());
        for moved in [
            WebhookRow { id: WebhookId::new(), ..row.clone() },
            WebhookRow { workspace_id: WorkspaceId::new(), ..row.clone() },
            WebhookRow { secret_created_at: UtcMillis(1), ..row.clone() },
        ] {
            assert!(open_secret(&vault, &moved).is_err(), "{moved:?}");
            let sent = headers(&[("authorization", &format!("Bearer {}", secret.expose()))]);
            assert!(receiver.authenticate(&vault, Some(&moved), &sent, BODY).is_none());
        }
        let renamed = WebhookRow { name: "renamed".to_owned(), updated_at: UtcMillis(1), ..row };
        assert!(open_secret(&vault, &renamed).is_ok(), "the MAC of the row covers the other columns");
    }

    #[test]
    fn requests_over_the_limit_wait() {
        let receiver = Receiver::new(&vault()).unwrap();
        let (webhook, other) = (WebhookId::new(), WebhookId::new());
        let admitted = (0..500).take_while(|_| receiver.admit(webhook).is_ok()).count();
        // More than 120 are admitted only if a part of a second has passed meanwhile.
        assert!((120..200).contains(&admitted), "{admitted}");
        assert!(receiver.admit(webhook).is_err_and(|wait| wait <= Duration::from_secs(1)));
        assert_eq!(receiver.admit(other), Ok(()), "another webhook has a limit of its own");
    }
}
