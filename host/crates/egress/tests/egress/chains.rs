//! Tests that a secret in two nested encodings is redacted at any position of a text.

use monstrum_egress::{REDACTED, Redactor};
use monstrum_types::Secret;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Deserialize;

use crate::encodings::{ENCODINGS, encoding, holds};
use crate::support::corpus;

/// An echo of a secret in a text.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Echo {
    pub(crate) secret: String,
    inner: String,
    outer: String,
    pub(crate) before: String,
    pub(crate) after: String,
}

impl Echo {
    /// Returns the encoded secret, or `None` if the encoding does not exist, such as JSON of bytes that are not text.
    pub(crate) fn encoded(&self) -> Option<Vec<u8>> {
        encoding(&self.inner)(self.secret.as_bytes()).and_then(|inner| encoding(&self.outer)(&inner))
    }

    pub(crate) fn text(&self, encoded: &[u8]) -> Vec<u8> {
        [self.before.as_bytes(), encoded, self.after.as_bytes()].concat()
    }

    pub(crate) fn has_lines(&self) -> bool {
        [&self.inner, &self.outer].iter().any(|name| name.contains("lines"))
    }

    /// Returns whether the chain is base64 of a string escape or a character reference. Base64 in lower case cannot be
    /// decoded, and escapes have too many variants to search for each.
    pub(crate) fn is_base64_of_escapes(&self) -> bool {
        let escapes = ["\\x", "\\u{}", "\\U", "HTML", "a string in single quotes"];
        self.outer.starts_with("base64") && escapes.iter().any(|escape| self.inner.starts_with(escape))
    }

    /// Asserts that `bytes` contain neither the echo nor any single encoding of the secret.
    pub(crate) fn assert_gone(&self, bytes: &[u8], encoded: &[u8]) {
        let shown = String::from_utf8_lossy(bytes);
        // The outermost base64 digits may belong to the neighbouring text. They do not reveal the secret.
        let core = if encoded.len() > 20 { &encoded[4..encoded.len() - 4] } else { encoded };
        assert!(!holds(bytes, core), "{shown:?} still contains the encoded secret of {self:?}");
        for (name, encode) in ENCODINGS {
            let single = encode(self.secret.as_bytes()).unwrap();
            assert!(!holds(bytes, &single), "{shown:?} still contains the secret of {self:?} as {name}");
        }
    }

    fn check(&self) {
        let Some(encoded) = self.encoded() else { return };
        let redactor = Redactor::new([Secret::new(self.secret.clone())]);
        let text = self.text(&encoded);
        assert!(redactor.contains(&text), "{self:?} is not found");
        let redacted = redactor.redact_bytes(text);
        assert!(holds(&redacted, REDACTED.as_bytes()), "{self:?}");
        assert!(!redactor.contains(&redacted), "{self:?} is found again in {:?}", String::from_utf8_lossy(&redacted));
        self.assert_gone(&redacted, &encoded);
    }
}

fn secrets() -> impl Strategy<Value = String> {
    prop_oneof![
        "[!-~]{8,40}",
        "[!-~][ -~]{6,30}[!-~]",
        "ghp_[A-Za-z0-9]{36}",
        "[0-9a-f]{32}",
        "[A-Za-z0-9+/]{8,60}=",
        "[ab]{8,12}",
        "[!-~äß€😀屋]{8,20}",
        "[%\\\\uA-F0-9]{8,20}",
        "[&#;xalmpt0-9]{8,20}",
        "[&<>\"'/=+a-z]{8,20}",
    ]
}

/// Generates text next to the secret, including the starts of escapes, and digits that continue a run.
fn neighbours() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[ -~\n]{0,20}",
        "[A-Za-z0-9+/]{0,9}",
        "[0-9a-f]{0,9}",
        "(%|%2|%25|\\\\|\\\\\\\\|\\\\u|\\\\u00|\\\\u00e)",
        "(\\\\x|\\\\x4|\\\\u\\{|\\\\u\\{4|&|&a|&am|&amp|&#|&#3|&#x|&#x4)",
        "[é日😀 ]{0,4}",
    ]
}

pub(crate) fn echoes() -> impl Strategy<Value = Echo> {
    let names: Vec<&str> = ENCODINGS.iter().map(|(name, _)| *name).collect();
    (secrets(), select(names.clone()), select(names), neighbours(), neighbours()).prop_map(
        |(secret, inner, outer, mut before, mut after)| {
            // If the text before the secret merges with the first escape, redaction finds only patterns and later
            // escapes. An upstream that hides a secret in this way on purpose could just as well send the secret in
            // reverse order.
            if inner.contains("lines") || inner.contains("UTF-16") {
                before.push(' ');
            }
            // Digits and letters after a reference without `;` belong to the reference.
            if inner.contains("without") || outer.contains("without") {
                after.insert(0, '-');
            }
            Echo { secret, inner: inner.to_owned(), outer: outer.to_owned(), before, after }
        },
    )
}

#[test]
fn the_corpus_is_redacted() {
    for echo in corpus::<Echo>(include_str!("../corpus/chains.jsonl")) {
        echo.check();
    }
}

#[test]
fn all_pairs_of_encodings_are_redacted() {
    for secret in
        ["ghp_S3cr3t/T0ken+value=", "12345678", "pä\"ss\\wörd/😀!", "a b%41c d\\u0041", "a&lt;b&#x41c&amp'", "äöüß"]
    {
        for (inner, _) in ENCODINGS {
            for (outer, _) in ENCODINGS {
                let name = |name: &str| name.to_owned();
                let quotes = || "\"".to_owned();
                Echo {
                    secret: name(secret),
                    inner: name(inner),
                    outer: name(outer),
                    before: quotes(),
                    after: quotes(),
                }
                .check();
            }
        }
    }
}

proptest! {
    #[test]
    fn random_chains_of_two_encodings_are_redacted(echo in echoes()) {
        echo.check();
    }
}
