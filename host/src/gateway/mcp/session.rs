//! Session ids for clients that begin with `initialize`.
//!
//! A session id is a signed text. The host stores nothing, and every host with the same master key accepts the id. A
//! rotation of the master key invalidates all ids; their clients then initialize again.

use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use monstrum_core::operations::Caller;
use monstrum_types::{BotId, KeyId, UtcMillis};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::gateway::http::problem::Problem;

/// The header that carries a session id.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");

/// The time after which a session id expires. The clients of a working day need one `initialize`.
const LIFE_MS: i64 = 24 * 60 * 60 * 1000;
/// The maximum difference between the clocks of two hosts.
const SKEW_MS: i64 = 5 * 60 * 1000;
/// The version of the text's format.
const FORMAT: &str = "1";

/// The random part of a session id.
pub(super) type Nonce = [u8; 16];

/// What a session id says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Session {
    key: KeyId,
    bot: BotId,
    pub nonce: Nonce,
    /// The revision of the protocol that `initialize` agreed on.
    pub revision: String,
    /// Whether the client can open a URL for its user.
    pub opens_urls: bool,
    issued_at: UtcMillis,
}

/// Issues and verifies session ids.
pub(super) struct Sessions {
    mac: Hmac<Sha256>,
}

impl Sessions {
    pub(super) fn new(secret: &Zeroizing<[u8; 32]>) -> Sessions {
        Sessions { mac: Hmac::new_from_slice(secret.as_slice()).expect("HMAC accepts keys of any length") }
    }

    /// Issues an id for a client of `bot` that uses the caller's key.
    pub(super) fn issue(
        &self,
        caller: &Caller,
        bot: BotId,
        revision: &str,
        opens_urls: bool,
        now: UtcMillis,
    ) -> Result<HeaderValue, Problem> {
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(|error| Problem::internal(&error))?;
        let session =
            Session { key: caller.key, bot, nonce, revision: revision.to_owned(), opens_urls, issued_at: now };
        HeaderValue::from_str(&self.signed(&session)).map_err(|error| Problem::internal(&error))
    }

    /// Returns the session that the request names, or `None` if the request names none.
    pub(super) fn of_request(
        &self,
        headers: &HeaderMap,
        caller: &Caller,
        bot: BotId,
        now: UtcMillis,
    ) -> Result<Option<Session>, Problem> {
        let mut values = headers.get_all(SESSION).iter();
        let session = match (values.next(), values.next()) {
            (None, _) => return Ok(None),
            (Some(value), None) => value.to_str().ok().and_then(|text| self.verified(text)),
            _ => None,
        };
        let is_valid = |session: &Session| {
            let age = now.since_ms(session.issued_at);
            session.key == caller.key && session.bot == bot && (-SKEW_MS..LIFE_MS).contains(&age)
        };
        match session.filter(is_valid) {
            Some(session) => Ok(Some(session)),
            None => Err(Problem::not_found("session; send `initialize` again")),
        }
    }

    fn signed(&self, session: &Session) -> String {
        let Session { key, bot, nonce, revision, opens_urls, issued_at } = session;
        let (nonce, opens_urls) = (hex::encode(nonce), u8::from(*opens_urls));
        let text = format!("{FORMAT}.{key}.{bot}.{nonce}.{revision}.{opens_urls}.{}", issued_at.0);
        let mut mac = self.mac.clone();
        mac.update(text.as_bytes());
        format!("{text}.{}", hex::encode(mac.finalize().into_bytes()))
    }

    fn verified(&self, id: &str) -> Option<Session> {
        let (text, mac_text) = id.rsplit_once('.')?;
        let mut expected = self.mac.clone();
        expected.update(text.as_bytes());
        expected.verify_slice(&hex::decode(mac_text).ok()?).ok()?;
        let mut parts = text.split('.');
        let mut next = || parts.next();
        if next()? != FORMAT {
            return None;
        }
        let (key, bot) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let mut nonce = Nonce::default();
        hex::decode_to_slice(next()?, &mut nonce).ok()?;
        let revision = next()?.to_owned();
        let opens_urls = next()? == "1";
        let issued_at = UtcMillis(next()?.parse().ok()?);
        Some(Session { key, bot, nonce, revision, opens_urls, issued_at })
    }
}

#[cfg(test)]
mod tests {
    use monstrum_store::KeyKind;
    use monstrum_types::{RequestId, WorkspaceId};

    use super::*;

    const NOW: UtcMillis = UtcMillis(1_700_000_000_000);

    fn sessions(byte: u8) -> Sessions {
        Sessions::new(&Zeroizing::new([byte; 32]))
    }

    fn caller() -> Caller {
        let (request, key, workspace) = (RequestId::new(), KeyId::new(), WorkspaceId::new());
        let (bot, resource, token_user) = (None, None, None);
        Caller { request, key, key_hash: [0; 32], kind: KeyKind::Operator, workspace, bot, resource, token_user }
    }

    fn named(id: &HeaderValue) -> HeaderMap {
        HeaderMap::from_iter([(SESSION, id.clone())])
    }

    #[test]
    fn an_id_is_good_for_its_key_and_bot_for_a_day() {
        let (sessions, caller, bot) = (sessions(1), caller(), BotId::new());
        let id = sessions.issue(&caller, bot, "2025-06-18", true, NOW).unwrap();
        let at = |ms| sessions.of_request(&named(&id), &caller, bot, NOW.plus_ms(ms));
        let session = at(0).unwrap().unwrap();
        assert_eq!((session.revision.as_str(), session.opens_urls), ("2025-06-18", true));
        assert!(at(LIFE_MS - 1).is_ok() && at(-SKEW_MS).is_ok());
        assert!(at(LIFE_MS).is_err(), "an expired id");
        assert!(at(-SKEW_MS - 1).is_err(), "an id from the future");
        assert!(sessions.of_request(&named(&id), &caller, BotId::new(), NOW).is_err(), "another bot");
        let other = Caller { key: KeyId::new(), ..caller.clone() };
        assert!(sessions.of_request(&named(&id), &other, bot, NOW).is_err(), "another key");
        assert_eq!(sessions.of_request(&HeaderMap::new(), &caller, bot, NOW).unwrap(), None);
    }

    #[test]
    fn a_changed_id_is_rejected() {
        let (own, caller, bot) = (sessions(1), caller(), BotId::new());
        let id = own.issue(&caller, bot, "2025-06-18", false, NOW).unwrap();
        assert!(sessions(2).of_request(&named(&id), &caller, bot, NOW).is_err(), "another secret");
        let text = id.to_str().unwrap();
        for (at, _) in text.char_indices() {
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let changed = HeaderValue::from_bytes(&bytes).unwrap();
            assert!(own.of_request(&named(&changed), &caller, bot, NOW).is_err(), "{changed:?}");
        }
        for forged in ["", ".", "1", &text[..text.len() - 2], &format!("{text}00")] {
            let forged = HeaderValue::from_str(forged).unwrap();
            assert!(own.of_request(&named(&forged), &caller, bot, NOW).is_err(), "{forged:?}");
        }
        let mut twice = named(&id);
        twice.append(SESSION, id.clone());
        assert!(own.of_request(&twice, &caller, bot, NOW).is_err(), "two ids");
    }
}
