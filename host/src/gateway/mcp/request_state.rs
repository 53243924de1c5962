//! Request states: signed texts with which a client repeats a call that a person must approve, or whose user must
//! authorize a resource.
//!
//! A request state names an approval or a resource and permits nothing. The signature covers the call: its caller, bot,
//! tool, user and arguments. The approval or the credential decides, and the call itself is judged again. The host stores nothing, and every host with the
//! same master key accepts the text. A rotation of the master key invalidates all request states; clients then make their
//! calls anew.

use hmac::{Hmac, KeyInit, Mac};
use monstrum_api::tools::Chat;
use monstrum_core::operations::Caller;
use monstrum_types::{ApprovalId, AwaitedApproval, BotId, CredentialId, ResourceId, UtcMillis, canonical};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// The versions of the formats of a text that names an approval, and of a text that names a resource.
const FORMAT: &str = "1";
const FORMAT_OF_AUTHORIZATION: &str = "2";
/// The place of the credential in the text of a user without a credential.
const NO_CREDENTIAL: &str = "none";
/// The time for which a request state outlives its approval, so that a client that repeats its call late is told how the
/// approval ended.
const GRACE_MS: i64 = 24 * 60 * 60 * 1000;
/// The maximum length of a request state that is read. Texts from this host are shorter.
const BYTES_MAX: usize = 256;

/// The SHA-256 of a call: its caller, bot, tool, user and arguments.
pub(super) struct CallBinding([u8; 32]);

impl CallBinding {
    pub(super) fn of(
        caller: &Caller,
        bot: BotId,
        tool: &str,
        chat: Option<&Chat>,
        arguments: &Map<String, Value>,
    ) -> CallBinding {
        let user = chat.map(|chat| [chat.app_id.as_str(), chat.user_id.as_str()]);
        let call = json!({"caller": caller.key, "workspace": caller.workspace, "bot": bot, "tool": tool, "user": user});
        let mut text = String::new();
        canonical::write(&call, &mut text);
        canonical::write_object(arguments, &mut text);
        CallBinding(Sha256::digest(text).into())
    }
}

/// The authorization that a call lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lacking {
    pub(super) resource: ResourceId,
    /// The credential of the user that was not accepted, or `None` if the user had none.
    pub(super) known: Option<CredentialId>,
}

/// Issues and verifies request states.
pub(super) struct RequestStates {
    mac: Hmac<Sha256>,
}

impl RequestStates {
    pub(super) fn new(secret: &Zeroizing<[u8; 32]>) -> RequestStates {
        RequestStates { mac: Hmac::new_from_slice(secret.as_slice()).expect("HMAC accepts keys of any length") }
    }

    /// Issues the request state with which a client repeats this call.
    pub(super) fn issue(&self, approval: &AwaitedApproval, call: &CallBinding) -> String {
        let text = format!("{FORMAT}.{}.{}", approval.id, approval.expires_at.plus_ms(GRACE_MS).0);
        self.signed(&text, call)
    }

    /// Issues the request state with which a client repeats this call after its user has authorized the resource.
    pub(super) fn issue_for_user(&self, lacking: &Lacking, expires_at: UtcMillis, call: &CallBinding) -> String {
        let Lacking { resource, known } = lacking;
        let known = known.map_or_else(|| NO_CREDENTIAL.to_owned(), |known| known.to_string());
        let until = expires_at.plus_ms(GRACE_MS).0;
        self.signed(&format!("{FORMAT_OF_AUTHORIZATION}.{resource}.{known}.{until}"), call)
    }

    /// Returns the authorization that a request state names, or `None` if the text names none, was not issued for this
    /// call, or has expired.
    pub(super) fn lacking(&self, state: &str, call: &CallBinding, now: UtcMillis) -> Option<Lacking> {
        let [format, resource, known, until] = self.parts(state, call)?;
        let is_valid = format == FORMAT_OF_AUTHORIZATION && until.parse().is_ok_and(|until| now < UtcMillis(until));
        let known = match known {
            NO_CREDENTIAL => None,
            known => Some(known.parse().ok()?),
        };
        Some(Lacking { resource: resource.parse().ok()?, known }).filter(|_| is_valid)
    }

    /// Returns the parts of a text that was issued for this call.
    fn parts<'a, const N: usize>(&self, state: &'a str, call: &CallBinding) -> Option<[&'a str; N]> {
        let (text, mac) = state.rsplit_once('.').filter(|_| state.len() <= BYTES_MAX)?;
        self.mac_of(text, call).verify_slice(&hex::decode(mac).ok()?).ok()?;
        text.split('.').collect::<Vec<_>>().try_into().ok()
    }

    fn signed(&self, text: &str, call: &CallBinding) -> String {
        format!("{text}.{}", hex::encode(self.mac_of(text, call).finalize().into_bytes()))
    }

    /// Returns the approval that a request state names, or `None` if the text was not issued for this call or has
    /// expired.
    pub(super) fn verified(&self, state: &str, call: &CallBinding, now: UtcMillis) -> Option<ApprovalId> {
        let [format, id, until] = self.parts(state, call)?;
        let is_valid = format == FORMAT && until.parse().is_ok_and(|until| now < UtcMillis(until));
        is_valid.then(|| id.parse().ok()).flatten()
    }

    fn mac_of(&self, text: &str, call: &CallBinding) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        // The digest has a fixed length, so no other pair of texts has the same bytes.
        mac.update(&call.0);
        mac.update(text.as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use monstrum_store::KeyKind;
    use monstrum_types::{KeyId, RequestId, WorkspaceId};

    use super::*;

    const EXPIRY: UtcMillis = UtcMillis(1_700_000_000_000);

    fn states(byte: u8) -> RequestStates {
        RequestStates::new(&Zeroizing::new([byte; 32]))
    }

    fn caller() -> Caller {
        let (request, key, workspace) = (RequestId::new(), KeyId::new(), WorkspaceId::new());
        let (bot, resource, token_user) = (None, None, None);
        Caller { request, key, key_hash: [0; 32], kind: KeyKind::Operator, workspace, bot, resource, token_user }
    }

    fn arguments(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_request_state_is_good_for_its_call_until_a_day_after_its_approval() {
        let (states, caller, bot, given) = (states(1), caller(), BotId::new(), arguments(&json!({"a": 1, "b": 2})));
        let chat =
            |app: &str, user: &str| Chat { app_id: app.to_owned(), user_id: user.to_owned(), chat_id: "c".to_owned() };
        let user = chat("app", "7");
        let own = CallBinding::of(&caller, bot, "tool", Some(&user), &given);
        let approval = AwaitedApproval { id: ApprovalId::new(), url: None, expires_at: EXPIRY };
        let state = states.issue(&approval, &own);
        let is_valid = |call: &CallBinding, now| states.verified(&state, call, now) == Some(approval.id);
        assert!(is_valid(&own, EXPIRY.plus_ms(GRACE_MS - 1)));
        assert!(!is_valid(&own, EXPIRY.plus_ms(GRACE_MS)), "an expired request state");
        let reordered = arguments(&json!({"b": 2, "a": 1}));
        assert!(
            is_valid(&CallBinding::of(&caller, bot, "tool", Some(&user), &reordered), EXPIRY),
            "the same arguments"
        );
        let others = [
            ("key", CallBinding::of(&Caller { key: KeyId::new(), ..caller.clone() }, bot, "tool", Some(&user), &given)),
            (
                "workspace",
                CallBinding::of(
                    &Caller { workspace: WorkspaceId::new(), ..caller.clone() },
                    bot,
                    "tool",
                    Some(&user),
                    &given,
                ),
            ),
            ("bot", CallBinding::of(&caller, BotId::new(), "tool", Some(&user), &given)),
            ("tool", CallBinding::of(&caller, bot, "tool2", Some(&user), &given)),
            ("user", CallBinding::of(&caller, bot, "tool", Some(&chat("app", "8")), &given)),
            ("app", CallBinding::of(&caller, bot, "tool", Some(&chat("app2", "7")), &given)),
            ("no user", CallBinding::of(&caller, bot, "tool", None, &given)),
            ("arguments", CallBinding::of(&caller, bot, "tool", Some(&user), &arguments(&json!({"a": 1, "b": 3})))),
        ];
        for (what, call) in others {
            assert!(!is_valid(&call, EXPIRY), "{what}");
        }
    }

    #[test]
    fn a_request_state_of_an_authorization_names_a_resource_and_a_credential() {
        let (states, caller, bot) = (states(1), caller(), BotId::new());
        let own = CallBinding::of(&caller, bot, "tool", None, &Map::new());
        let other = CallBinding::of(&caller, bot, "other", None, &Map::new());
        for known in [None, Some(CredentialId::new())] {
            let lacking = Lacking { resource: ResourceId::new(), known };
            let state = states.issue_for_user(&lacking, EXPIRY, &own);
            assert_eq!(states.lacking(&state, &own, EXPIRY), Some(lacking));
            assert_eq!(states.lacking(&state, &own, EXPIRY.plus_ms(GRACE_MS)), None, "expired");
            assert_eq!(states.lacking(&state, &other, EXPIRY), None, "another call");
            assert_eq!(states.verified(&state, &own, EXPIRY), None, "it names no approval");
        }
        let approval = AwaitedApproval { id: ApprovalId::new(), url: None, expires_at: EXPIRY };
        assert_eq!(states.lacking(&states.issue(&approval, &own), &own, EXPIRY), None);
    }

    #[test]
    fn a_changed_request_state_is_rejected() {
        let call = CallBinding::of(&caller(), BotId::new(), "tool", None, &Map::new());
        let approval = AwaitedApproval { id: ApprovalId::new(), url: None, expires_at: EXPIRY };
        let own = states(1);
        let state = own.issue(&approval, &call);
        assert!(states(2).verified(&state, &call, EXPIRY).is_none(), "another secret");
        for (at, _) in state.char_indices() {
            let mut bytes = state.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(own.verified(&changed, &call, EXPIRY).is_none(), "{changed}");
        }
        for forged in ["", ".", "1", &state[..state.len() - 2], &format!("{state}00"), &"1.".repeat(200)] {
            assert!(own.verified(forged, &call, EXPIRY).is_none(), "{forged}");
        }
    }
}
