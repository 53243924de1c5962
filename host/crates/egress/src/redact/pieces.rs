//! Redaction of a text that arrives in pieces, such as the answer of a model.
//!
//! A piece may end at any place in an encoding of a secret. A piece is therefore passed on only up to the first position
//! from which its end may still become an encoding of a secret, by any later piece. For ordinary text, these are the
//! last one to three characters. The pieces that are passed on, put together, are the redacted whole text, unless an
//! encoding is longer than [`ENCODED_BYTES_MAX`] bytes for each byte of a pattern, as with thousands of line breaks in it.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::escapes::{Escapes, is_mark, may_go_on};
use super::views::View;
use super::{Case, Redactor, VIEW_DEPTH_MAX, replace_in};
use crate::redact::runs::Digits;

/// A text that is held back is searched again only when it has grown by this part of its length, if it is longer than
/// [`HELD_SHORT`]. Otherwise, many small pieces of a long encoding would take time in the square of its length.
const GROWTH_PART: usize = 8;
const HELD_SHORT: usize = 4096;

/// The maximum number of bytes of a text for a byte of a pattern: two nested escapes with padded numbers.
const ENCODED_BYTES_MAX: usize = 150;

/// Redacts a text that arrives in pieces.
pub struct PieceRedactor {
    stages: Vec<Stage>,
}

/// The search for the secrets of one redactor. Its input is the output of the stage before it.
struct Stage {
    redactor: Arc<Redactor>,
    /// The text that was not passed on yet.
    held: Zeroizing<String>,
    /// The length of `held` when it was last searched.
    searched: usize,
}

impl PieceRedactor {
    /// Creates a redactor for one text, from which the secrets of all `redactors` are removed.
    #[must_use]
    pub fn new(redactors: impl IntoIterator<Item = Arc<Redactor>>) -> Self {
        let stage = |redactor| Stage { redactor, held: Zeroizing::default(), searched: 0 };
        let holds_secrets = |redactor: &Arc<Redactor>| redactor.search.is_some();
        PieceRedactor { stages: redactors.into_iter().filter(holds_secrets).map(stage).collect() }
    }

    /// Takes the next piece of the text. Returns the redacted text that can be passed on now, which may be empty.
    #[must_use]
    pub fn push(&mut self, piece: &str) -> String {
        self.stages.iter_mut().fold(piece.to_owned(), |piece, stage| stage.push(piece))
    }

    /// Ends the text. Returns the redacted rest.
    #[must_use]
    pub fn finish(self) -> String {
        self.stages.into_iter().fold(String::new(), |piece, stage| stage.finish(&piece))
    }

    /// Returns the number of bytes that are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.stages.iter().map(|stage| stage.held.len()).sum()
    }
}

impl Stage {
    fn push(&mut self, piece: String) -> String {
        if piece.is_empty() {
            return piece;
        }
        self.hold(&piece);
        let length = self.held.len();
        if length > HELD_SHORT && length - self.searched < length / GROWTH_PART {
            return String::new();
        }
        self.searched = length;
        let text = self.held.as_bytes();
        let mut found = self.redactor.find(text, Case::AsWritten);
        let mut end = self.held.floor_char_boundary(self.redactor.open_end(text));
        while let Some(range) = found.last()
            && range.end >= end
        {
            // A match at the end may become longer.
            if range.start < end && (range.end > end || end == length) {
                end = self.held.floor_char_boundary(range.start);
            } else if range.start < end {
                break;
            }
            found.pop();
        }
        let passed = replace_in(self.held[..end].to_owned(), &found);
        let rest = Zeroizing::new(self.held[end..].to_owned());
        self.searched = rest.len();
        self.held = rest;
        passed
    }

    fn finish(mut self, piece: &str) -> String {
        self.hold(piece);
        self.redactor.redact_text(self.held.as_str().to_owned())
    }

    /// Adds `piece` to the held text. A `String` that grows would leave a copy of the text in memory.
    fn hold(&mut self, piece: &str) {
        let longer = Zeroizing::new([self.held.as_str(), piece].concat());
        self.held = longer;
    }
}

impl Redactor {
    /// Returns the first position from which the end of `text` may be the start of an encoding of a secret.
    fn open_end(&self, text: &[u8]) -> usize {
        let Some(search) = &self.search else { return text.len() };
        let tail_max = search.longest().saturating_mul(ENCODED_BYTES_MAX);
        let skipped = text.len().saturating_sub(tail_max);
        skipped + self.open_end_at(&text[skipped..], 0)
    }

    /// Like [`Redactor::open_end`], for the result of `depth` nested decodings.
    fn open_end_at(&self, text: &[u8], depth: usize) -> usize {
        let Some(search) = &self.search else { return text.len() };
        let mut open = search.open_end(text);
        if depth < VIEW_DEPTH_MAX {
            for lens in &self.views {
                let in_view = match lens.view {
                    View::Escapes(escapes) => self.open_in_escapes(escapes, text, depth),
                    View::Even | View::Odd | View::Wide { .. } => open_in_utf16(text),
                };
                let readings = &lens.readings[VIEW_DEPTH_MAX - depth - 1];
                open = open.min(in_view).min(search.open_read(text, readings));
            }
            for digits in Digits::ALL {
                open = open.min(digits.open_end(text, |decoded| self.open_end_at(decoded, depth + 1)));
            }
        }
        open
    }

    fn open_in_escapes(&self, escapes: Escapes, text: &[u8], depth: usize) -> usize {
        if !escapes.are_in(text) {
            // The view is the text.
            return text.len();
        }
        let mut decoded = Zeroizing::new(Vec::with_capacity(text.len()));
        let mut starts = Vec::with_capacity(text.len());
        let (mut at, mut open) = (0, text.len());
        while let Some(unit) = escapes.unit(&text[at..]) {
            if escapes.is_open(&text[at..]) {
                open = at;
                break;
            }
            decoded.extend_from_slice(unit.decoded());
            starts.resize(decoded.len(), at);
            at += unit.length;
        }
        let inner = self.open_end_at(&decoded, depth + 1);
        starts.get(inner).map_or(open, |start| open.min(*start))
    }
}

impl Escapes {
    /// Returns whether `text` may be the start of an escape, or of a longer one.
    pub(super) fn is_open(self, text: &[u8]) -> bool {
        text.first().is_some_and(|first| is_mark(first) && self.holds(*first)) && may_go_on(text)
    }
}

/// Returns the start of the end of `text` that may be UTF-16 or UTF-32 of ASCII, which has a zero in any four bytes. The
/// first character of such a text is found by [`super::search::Search::open_end`] until its zero arrives.
fn open_in_utf16(text: &[u8]) -> usize {
    const BYTES: usize = 4;
    let mut start = text.len();
    while let Some(zero) = text[start.saturating_sub(BYTES)..start].iter().position(|byte| *byte == 0) {
        start = start.saturating_sub(BYTES) + zero;
    }
    if start == text.len() { start } else { start.saturating_sub(BYTES - 1) }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    use monstrum_types::Secret;
    use proptest::prelude::*;

    use super::*;

    fn redactor(secrets: &[&str]) -> Arc<Redactor> {
        Arc::new(Redactor::new(secrets.iter().map(|secret| Secret::new((*secret).to_owned()))))
    }

    fn percent(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }

    fn units(text: &str) -> String {
        text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
    }

    fn html(text: &str) -> String {
        text.chars().map(|character| format!("&#{};", u32::from(character))).collect()
    }

    fn with_zeros(text: &str) -> String {
        text.chars().flat_map(|character| [character, '\0']).collect()
    }

    fn wrapped(text: &str) -> String {
        let characters: Vec<char> = text.chars().collect();
        characters.chunks(10).map(|line| line.iter().collect::<String>()).collect::<Vec<_>>().join("\r\n")
    }

    /// All encodings of a secret that the tests use.
    fn encodings(secret: &str) -> Vec<String> {
        let inside = |text: &str, before: &str| STANDARD.encode(format!("{before}{text} and more"));
        let quoted = serde_json::Value::from(secret).to_string();
        vec![
            secret.to_owned(),
            quoted,
            percent(secret),
            units(secret),
            html(secret),
            hex::encode(secret),
            hex::encode_upper(secret),
            STANDARD.encode(secret),
            URL_SAFE_NO_PAD.encode(secret),
            inside(secret, "a"),
            inside(secret, "ab"),
            inside(secret, "abc"),
            wrapped(&STANDARD.encode(secret)),
            units(&percent(secret)),
            percent(&units(secret)),
            percent(&STANDARD.encode(secret)),
            inside(&percent(secret), "x"),
            inside(&STANDARD.encode(secret), "xy"),
            hex::encode(units(secret)),
            hex::encode(STANDARD.encode(secret)),
            with_zeros(secret),
            wrapped(&inside(&html(secret), "z")).replace("\r\n", "\\n"),
        ]
    }

    /// Passes `text` through in pieces of these numbers of characters, repeated.
    fn in_pieces(redactors: &[Arc<Redactor>], text: &str, lengths: &[usize]) -> String {
        let mut pieces = PieceRedactor::new(redactors.iter().cloned());
        let characters: Vec<char> = text.chars().collect();
        let (mut rest, mut passed) = (characters.as_slice(), String::new());
        for length in lengths.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at(rest.len().min(*length));
            passed += &pieces.push(&piece.iter().collect::<String>());
            rest = after;
        }
        passed + &pieces.finish()
    }

    const SECRETS: [&str; 4] = ["s3cr3t-t0ken/x", "ghp_16C7e42F292c6912E7", "pa ss\"wo\\rd%21&x", "geheim-schlüssel"];

    #[test]
    fn every_encoding_is_found_in_short_pieces() {
        for secret in SECRETS {
            let redactors = [redactor(&[secret])];
            for encoded in encodings(secret) {
                for around in [("", ""), ("x\\", "\\n"), ("abc", "def"), ("k=%2", "&")] {
                    let text = format!("{}{encoded}{}", around.0, around.1);
                    let whole = redactors[0].redact_text(text.clone());
                    for length in [1, 3, 8] {
                        assert_eq!(in_pieces(&redactors, &text, &[length]), whole, "{text:?} in pieces of {length}");
                    }
                }
            }
        }
    }

    #[test]
    fn ordinary_text_is_passed_on() {
        let mut pieces = PieceRedactor::new([redactor(&SECRETS)]);
        let mut passed = String::new();
        for piece in ["Hello", ", the", " issue", " was", " created", ".", " See", " `main", ".rs", "`", ":\n"] {
            passed += &pieces.push(piece);
            assert!(pieces.held() <= 6, "{passed:?} and {} bytes are held", pieces.held());
        }
        assert!(passed.starts_with("Hello, the issue was created. See `main.r"), "{passed:?}");
        assert_eq!(passed + &pieces.finish(), "Hello, the issue was created. See `main.rs`:\n");
    }

    #[test]
    fn a_text_without_secrets_is_not_held() {
        let mut pieces = PieceRedactor::new([Arc::new(Redactor::default())]);
        assert_eq!(pieces.push("s3cr3t-t0ken"), "s3cr3t-t0ken");
        assert_eq!(pieces.held(), 0);
        assert_eq!(pieces.finish(), "");
    }

    #[test]
    fn the_start_of_a_secret_at_the_end_of_a_text_is_no_secret() {
        let redactors = [redactor(&["s3cr3t-t0ken/x"])];
        assert_eq!(in_pieces(&redactors, "this is s3cr3t-t0k", &[3]), "this is s3cr3t-t0k");
    }

    #[test]
    fn a_long_encoding_in_small_pieces_is_searched_seldom() {
        let secret = "0123456789abcdef-".repeat(500);
        let redactors = [redactor(&[&secret])];
        let text = format!("begin {} end", units(&secret));
        let start = std::time::Instant::now();
        assert_eq!(in_pieces(&redactors, &text, &[7]), "begin [redacted] end");
        // A search for each piece would take minutes.
        assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    }

    proptest! {
        #[test]
        fn any_pieces_give_the_redaction_of_the_whole(
            parts in proptest::collection::vec((0_usize..30, 0_usize..4, "[a-zA-Z0-9 .,\\\\%&=\n]{0,12}"), 1..5),
            lengths in proptest::collection::vec(1_usize..12, 1..8),
        ) {
            let part = |(encoding, secret, words): &(usize, usize, String)| {
                let secret = SECRETS[*secret];
                let encoded = encodings(secret);
                format!("{words}{}", encoded.get(*encoding).map_or(secret.get(..6).unwrap_or_default(), String::as_str))
            };
            let text: String = parts.iter().map(part).collect();
            let redactors = [redactor(&SECRETS[..2]), redactor(&SECRETS[2..])];
            let whole = redactors.iter().fold(text.clone(), |text, redactor| redactor.redact_text(text));
            prop_assert_eq!(in_pieces(&redactors, &text, &lengths), whole);
        }
    }
}
