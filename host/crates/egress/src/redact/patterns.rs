//! The patterns of a secret: the secret itself, and the encodings of the secret that the views do not decode.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::utf8_percent_encode;
use zeroize::Zeroizing;

use super::SECRET_BYTES_MIN;
use super::escapes::{Escapes, name_of};
use super::views::Reading;
use crate::url::RESERVED;

/// A text to search for.
pub(super) struct Pattern {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    any_case: bool,
}

impl Pattern {
    fn exact(bytes: impl Into<Vec<u8>>) -> Self {
        Pattern { bytes: Zeroizing::new(bytes.into()), any_case: false }
    }

    /// Returns the range of this pattern in `text` if the pattern matches at `start`.
    pub(super) fn at(&self, text: &[u8], start: usize, ignore_case: bool) -> Option<Range<usize>> {
        let range = start..start + self.bytes.len();
        let there = text.get(range.clone())?;
        self.is(there, &self.bytes, ignore_case).then_some(range)
    }

    /// Like [`Pattern::at`], for the text that views decode from `start`.
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

    /// Returns whether `start` is a proper prefix of this pattern.
    pub(super) fn starts_with(&self, start: &[u8]) -> bool {
        start.len() < self.bytes.len() && self.is(start, &self.bytes[..start.len()], false)
    }

    /// Returns whether all of `text`, as decoded by `reading`, may be a proper prefix of this pattern.
    pub(super) fn may_be_read(&self, text: &[u8], reading: Reading) -> bool {
        let (mut at, mut rest) = (0, self.bytes.as_slice());
        while at < text.len() && !rest.is_empty() {
            if reading.is_open(&text[at..]) {
                return true;
            }
            let Some(unit) = reading.unit(&text[at..]) else { return true };
            let Some((next, after)) = rest.split_at_checked(unit.decoded().len()) else { return false };
            if !self.is(unit.decoded(), next, false) {
                return false;
            }
            at += unit.length;
            rest = after;
        }
        !rest.is_empty()
    }

    fn is(&self, there: &[u8], wanted: &[u8], ignore_case: bool) -> bool {
        if self.any_case || ignore_case { there.eq_ignore_ascii_case(wanted) } else { there == wanted }
    }
}

/// Returns all patterns of one secret of at least 8 bytes.
pub(super) fn of(secret: &str) -> Vec<Pattern> {
    let bytes = secret.as_bytes();
    let mut patterns = vec![Pattern::exact(bytes)];
    if secret.contains(' ') {
        // HTML forms encode a space as `+`.
        patterns.push(Pattern::exact(secret.replace(' ', "+")));
    }
    patterns.push(Pattern { bytes: Zeroizing::new(hex::encode(bytes).into_bytes()), any_case: true });
    patterns.extend(base64_of(bytes));
    if !secret.is_ascii() {
        patterns.extend(of_other_characters(secret));
    }
    patterns
}

/// Returns the additional patterns of a secret with non-ASCII characters, which the views do not decode.
fn of_other_characters(secret: &str) -> Vec<Pattern> {
    // A text in UTF-16 may contain too little ASCII to be recognised as UTF-16. String escapes leave the non-ASCII
    // characters of a secret unchanged.
    let quoted = Zeroizing::new(serde_json::Value::from(secret).to_string());
    let json = &quoted[1..quoted.len() - 1];
    let in_single_quotes = secret.replace('\\', "\\\\").replace('\'', "\\'");
    let mut texts = vec![secret.to_owned(), json.to_owned(), json.replace('/', "\\/"), in_single_quotes];
    texts.dedup();
    let texts: Vec<_> = texts.into_iter().map(Zeroizing::new).collect();
    let wide = texts.iter().flat_map(|text| [utf16(text, u16::to_le_bytes), utf16(text, u16::to_be_bytes)]);
    let wide: Vec<_> = wide.map(Zeroizing::new).collect();
    // An escape `\xNN` may stand for a byte or for a character. The patterns in `read` are the bytes that result from
    // the wrong interpretation.
    let mut read: Vec<Vec<u8>> = wide.iter().map(|bytes| read_escaped(bytes)).collect();
    if let Ok(latin_1) = secret.chars().map(u8::try_from).collect::<Result<Vec<u8>, _>>() {
        read.push(read_escaped(&latin_1));
    }
    read.retain(|bytes| bytes.len() >= SECRET_BYTES_MIN && bytes != secret.as_bytes());
    let wide = wide.into_iter().map(|bytes| bytes.to_vec());
    wide.chain(read).map(Pattern::exact).collect()
}

/// Returns the result of decoding `bytes` that were written as `\xNN`.
fn read_escaped(bytes: &[u8]) -> Vec<u8> {
    let text = Zeroizing::new(bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>());
    let (mut read, mut at) = (Vec::new(), 0);
    while let Some(unit) = Escapes::of(b"\\", false).and_then(|escapes| escapes.unit(&text.as_bytes()[at..])) {
        read.extend_from_slice(unit.decoded());
        at += unit.length;
    }
    read
}

/// Returns the base64 of each supported encoding of a secret, such as percent-encoding, JSON, hex and HTML. Header
/// names are in lower case, and base64 in lower case cannot be decoded, so redaction searches header names for these
/// patterns.
pub(super) fn in_base64(secret: &str) -> Vec<Pattern> {
    let bytes = secret.as_bytes();
    let json = Zeroizing::new(serde_json::Value::from(secret).to_string());
    let json = &json[1..json.len() - 1];
    let units = |escape: &dyn Fn(u16) -> String| secret.encode_utf16().map(escape).collect::<String>();
    let percent = |escape: &dyn Fn(&u8) -> String| bytes.iter().map(escape).collect::<String>();
    let reserved = utf8_percent_encode(secret, RESERVED).to_string();
    let mut texts = vec![
        percent_lower(&reserved),
        reserved,
        percent(&|byte| format!("%{byte:02X}")),
        percent(&|byte| format!("%{byte:02x}")),
        percent(&|byte| format!("\\x{byte:02x}")),
        percent(&|byte| format!("\\x{byte:02X}")),
        json.to_owned(),
        json.replace('/', "\\/"),
        secret.replace('\\', "\\\\").replace('\'', "\\'"),
        json.encode_utf16().map(ascii_or_escape).collect(),
        units(&|unit| format!("\\u{unit:04x}")),
        units(&|unit| format!("\\u{unit:04X}")),
        hex::encode(bytes),
        hex::encode_upper(bytes),
    ];
    texts.extend(in_html(secret));
    let encoded = texts.into_iter().map(String::into_bytes);
    let base64 = base64_of(bytes).into_iter().map(|pattern| pattern.bytes.to_vec());
    let wide = [utf16(secret, u16::to_le_bytes), utf16(secret, u16::to_be_bytes)];
    encoded.chain(base64).chain(wide).map(Zeroizing::new).flat_map(|bytes| base64_of(&bytes)).collect()
}

/// Returns the secret in HTML in three forms: with only the necessary characters escaped, with all characters except
/// letters and digits escaped, and with all characters escaped.
fn in_html(secret: &str) -> Vec<String> {
    let all = |_: char| true;
    let reserved = |character: char| !character.is_alphanumeric();
    let must = |character: char| matches!(character, '&' | '<' | '>' | '"' | '\'');
    let each = |is_escaped: &dyn Fn(char) -> bool, escape: &dyn Fn(char) -> String| {
        let write = |character| if is_escaped(character) { escape(character) } else { character.to_string() };
        secret.chars().map(write).collect::<String>()
    };
    let decimal = |character: char| format!("&#{}", u32::from(character));
    let hexadecimal = |character: char| format!("&#x{:x}", u32::from(character));
    let upper = |character: char| format!("&#x{:X}", u32::from(character));
    let braced = |character: char| format!("\\u{{{:x}}}", u32::from(character));
    let named = |character: char| match character {
        '&' => "&amp".to_owned(),
        '<' => "&lt".to_owned(),
        '>' => "&gt".to_owned(),
        '"' => "&quot".to_owned(),
        _ => hexadecimal(character),
    };
    let mut texts = vec![each(&all, &braced), each(&all, &decimal), each(&all, &hexadecimal), each(&all, &upper)];
    let escapes: [&dyn Fn(char) -> String; 4] = [&decimal, &hexadecimal, &upper, &named];
    for escape in escapes {
        let ended = |character: char| format!("{};", escape(character));
        texts.extend([each(&all, &ended), each(&reserved, &ended), each(&must, &ended)]);
    }
    let by_name = |character: char| name_of(character).map(|name| format!("&{name};")).unwrap_or_default();
    texts.push(each(&|character| name_of(character).is_some(), &by_name));
    texts
}

/// Returns the base64 of the secret with and without padding, and the base64 of the secret inside other data: for each
/// of the three alignments, the characters that depend only on the secret. A secret of 8 bytes determines at least 10
/// characters (60 bits), so chance matches are unlikely.
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

/// Writes a UTF-16 code unit as ASCII-only JSON does.
fn ascii_or_escape(unit: u16) -> String {
    match u8::try_from(unit) {
        Ok(byte) if byte.is_ascii() => char::from(byte).to_string(),
        _ => format!("\\u{unit:04x}"),
    }
}

/// Converts the hex digits of percent-encoded text to lower case.
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
