//! What a browser sends with a form, and the tokens that show that a form comes from a page of this session.

use hmac::{Hmac, KeyInit, Mac};
use monstrum_types::Secret;
use sha2::Sha256;

/// The field with the token of a form.
pub(super) const TOKEN: &str = "_token";
/// The field with the version of the object that the page showed.
pub(super) const VERSION: &str = "_version";
/// The field with the id of a form that creates an object.
pub(super) const FORM_ID: &str = "_form";
/// The maximum size of a form.
pub(super) const FORM_BYTES_MAX: usize = 2 << 20;

const NONCE_BYTES: usize = 16;

/// Makes and checks the tokens of the forms of one session. A token is a nonce and an authentication code over the
/// action of the form and the nonce. The tokens of two pages differ, because compression reveals a constant one.
#[derive(Clone)]
pub(super) struct Tokens(Secret);

impl Tokens {
    /// Creates the tokens of the session whose cookie is `session`.
    pub(super) fn new(session: Secret) -> Tokens {
        Tokens(session)
    }

    /// Returns a fresh token for the form with this action.
    pub(super) fn token(&self, action: &str) -> String {
        let mut nonce = [0; NONCE_BYTES];
        // Without random bytes, the token is empty, and the form is refused.
        if getrandom::fill(&mut nonce).is_err() {
            return String::new();
        }
        let code = self.code(action, &nonce).finalize().into_bytes();
        format!("{}{}", hex::encode(nonce), hex::encode(code))
    }

    /// Returns whether `token` is a token for the form with this action. The comparison takes the same time for each
    /// wrong token.
    pub(super) fn accepts(&self, action: &str, token: &str) -> bool {
        let Ok(bytes) = hex::decode(token) else { return false };
        match bytes.split_at_checked(NONCE_BYTES) {
            Some((nonce, code)) => self.code(action, nonce).verify_slice(code).is_ok(),
            None => false,
        }
    }

    fn code(&self, action: &str, nonce: &[u8]) -> Hmac<Sha256> {
        let mut code = Hmac::<Sha256>::new_from_slice(self.0.expose().as_bytes()).expect("any length is a key");
        code.update(b"monstrum console form\0");
        code.update(nonce);
        code.update(action.as_bytes());
        code
    }
}

/// The fields of a form, in the order of the page. A name may occur several times.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl FromIterator<(String, String)> for Fields {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Fields {
        Fields(pairs.into_iter().collect())
    }
}

impl Fields {
    /// Reads a body of the type `application/x-www-form-urlencoded`.
    pub(super) fn parse(body: &[u8]) -> Fields {
        Fields(url::form_urlencoded::parse(body).into_owned().collect())
    }

    /// Returns the value of a field, or an empty text.
    pub(super) fn value(&self, name: &str) -> &str {
        self.0.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value)
    }

    /// Returns whether the form has the field, for checkboxes.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field == name)
    }

    /// Returns the values of a field that occurs several times.
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// Returns the lines of a field that are not empty.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        let lines = self.value(name).lines().map(str::trim);
        lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Returns the fields whose names start with `prefix`, without the prefix.
    pub(super) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter_map(move |(field, value)| Some((field.strip_prefix(prefix)?, value.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(session: &str) -> Tokens {
        Tokens::new(Secret::new(session.to_owned()))
    }

    #[test]
    fn a_token_is_good_for_its_session_and_its_action() {
        let token = tokens("a").token("/console/x");
        assert!(tokens("a").accepts("/console/x", &token));
        assert!(!tokens("b").accepts("/console/x", &token));
        assert!(!tokens("a").accepts("/console/y", &token));
        assert_ne!(token, tokens("a").token("/console/x"));
    }

    #[test]
    fn a_forged_token_is_refused() {
        let token = tokens("a").token("/console/x");
        let mut other = token.clone();
        let last = if other.pop() == Some('0') { '1' } else { '0' };
        other.push(last);
        for bad in ["", "zz", "00", &token[..NONCE_BYTES * 2], &token[..token.len() - 2], &other] {
            assert!(!tokens("a").accepts("/console/x", bad), "{bad}");
        }
    }

    #[test]
    fn fields_are_read_as_browsers_send_them() {
        let fields = Fields::parse(b"a=1&b=x+y&a=2&c=%0D%0Aone%0D%0A+two+%0D%0A&p.q=r");
        assert_eq!((fields.value("a"), fields.value("b"), fields.value("z")), ("1", "x y", ""));
        assert_eq!(fields.values("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(fields.lines("c"), ["one", "two"]);
        assert_eq!(fields.with_prefix("p.").collect::<Vec<_>>(), [("q", "r")]);
    }
}
