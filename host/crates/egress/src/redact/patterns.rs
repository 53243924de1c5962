//! The texts by which one secret is found: itself, and its encodings that are not undone by a view.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use super::views::Reading;

/// One text to look for.
pub(super) struct Pattern {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    any_case: bool,
}

impl Pattern {
    fn exact(bytes: impl Into<Vec<u8>>) -> Self {
        Pattern { bytes: Zeroizing::new(bytes.into()), any_case: false }
    }

    /// Where this pattern lies in `text`, if it lies at `start`.
    pub(super) fn at(&self, text: &[u8], start: usize, ignore_case: bool) -> Option<Range<usize>> {
        let range = start..start + self.bytes.len();
        let there = text.get(range.clone())?;
        self.is(there, &self.bytes, ignore_case).then_some(range)
    }

    /// The same, where the text is read on from `start` in views.
    pub(super) fn at_read(
        &self,
        text: &[u8],
        start: usize,
        reading: Reading,
        ignore_case: bool,
    ) -> Option<Range<usize>> {
        let (mut at, mut rest) = (start, self.bytes.as_slice());
        while !rest.is_empty() {
            let unit = reading.unit(&text[at..])?;
            let (next, after) = rest.split_at_checked(unit.decoded().len())?;
            if !self.is(unit.decoded(), next, ignore_case) {
                return None;
            }
            at += unit.length;
            rest = after;
        }
        Some(start..at)
    }

    fn is(&self, there: &[u8], wanted: &[u8], ignore_case: bool) -> bool {
        if self.any_case || ignore_case { there.eq_ignore_ascii_case(wanted) } else { there == wanted }
    }
}

/// All patterns of one secret of at least 8 bytes.
pub(super) fn of(secret: &str) -> Vec<Pattern> {
    let bytes = secret.as_bytes();
    let mut patterns = vec![Pattern::exact(bytes)];
    if secret.contains(' ') {
        // The space of HTML forms.
        patterns.push(Pattern::exact(secret.replace(' ', "+")));
    }
    patterns.push(Pattern { bytes: Zeroizing::new(hex::encode(bytes).into_bytes()), any_case: true });
    patterns.extend(base64_of(bytes));
    if !secret.is_ascii() {
        // ASCII in UTF-16 is found by a view, together with its encodings. Escapes of JSON leave other characters as
        // they are, so that no view shows them in UTF-16.
        let quoted = Zeroizing::new(serde_json::Value::from(secret).to_string());
        let json = &quoted[1..quoted.len() - 1];
        let mut texts = vec![Zeroizing::new(secret.to_owned()), Zeroizing::new(json.to_owned())];
        texts.push(Zeroizing::new(json.replace('/', "\\/")));
        texts.dedup();
        for text in texts {
            patterns.push(Pattern::exact(utf16(&text, u16::to_le_bytes)));
            patterns.push(Pattern::exact(utf16(&text, u16::to_be_bytes)));
        }
    }
    patterns
}

/// The secret alone with and without padding, and inside other data: at each of the three alignments the characters
/// that it determines on its own. For 8 bytes these are at least 10 characters, 60 bits: no chance hit.
fn base64_of(bytes: &[u8]) -> Vec<Pattern> {
    let mut texts = vec![STANDARD.encode(bytes), URL_SAFE.encode(bytes)];
    for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
        texts.push(engine.encode(bytes));
        for unknown in 0..3 {
            let mut padded = Zeroizing::new(vec![0; unknown]);
            padded.extend_from_slice(bytes);
            let first = (8 * unknown).div_ceil(6);
            let end = 8 * padded.len() / 6;
            texts.push(engine.encode(padded.as_slice())[first..end].to_owned());
        }
    }
    texts.sort_unstable();
    texts.dedup();
    texts.into_iter().map(Pattern::exact).collect()
}

fn utf16(secret: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
    secret.encode_utf16().flat_map(order).collect()
}
