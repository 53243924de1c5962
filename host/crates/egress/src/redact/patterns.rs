//! The texts by which one secret is found: itself, and its encodings that are not undone by a view.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::utf8_percent_encode;
use zeroize::Zeroizing;

use super::views::Reading;
use crate::url::RESERVED;

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

/// What base64 makes of the other encodings of a secret. Digits that have lost their case, as in the name of a header,
/// can no longer be read, so that these must be looked for as they are.
pub(super) fn in_base64(secret: &str) -> Vec<Pattern> {
    let bytes = secret.as_bytes();
    let json = Zeroizing::new(serde_json::Value::from(secret).to_string());
    let json = &json[1..json.len() - 1];
    let units = |escape: &dyn Fn(u16) -> String| secret.encode_utf16().map(escape).collect::<String>();
    let percent = |escape: &dyn Fn(&u8) -> String| bytes.iter().map(escape).collect::<String>();
    let reserved = utf8_percent_encode(secret, RESERVED).to_string();
    let texts = [
        percent_lower(&reserved),
        reserved,
        percent(&|byte| format!("%{byte:02X}")),
        percent(&|byte| format!("%{byte:02x}")),
        json.to_owned(),
        json.replace('/', "\\/"),
        json.encode_utf16().map(ascii_or_escape).collect(),
        units(&|unit| format!("\\u{unit:04x}")),
        units(&|unit| format!("\\u{unit:04X}")),
        hex::encode(bytes),
        hex::encode_upper(bytes),
    ];
    let encoded = texts.into_iter().map(String::into_bytes);
    let base64 = base64_of(bytes).into_iter().map(|pattern| pattern.bytes.to_vec());
    let wide = [utf16(secret, u16::to_le_bytes), utf16(secret, u16::to_be_bytes)];
    encoded.chain(base64).chain(wide).map(Zeroizing::new).flat_map(|bytes| base64_of(&bytes)).collect()
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

/// As JSON writes it that is to be in ASCII.
fn ascii_or_escape(unit: u16) -> String {
    match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii() => char::from(byte).to_string(),
        _ => format!("\\u{unit:04x}"),
    }
}

/// Percent-encoded text with its hex digits in lower case.
fn percent_lower(text: &str) -> String {
    let mut escape = 0;
    let lower = |character: char| {
        escape = if character == '%' { 2 } else { i32::max(escape - 1, -1) };
        if escape >= 0 { character.to_ascii_lowercase() } else { character }
    };
    text.chars().map(lower).collect()
}

fn utf16(secret: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
    secret.encode_utf16().flat_map(order).collect()
}
