//! The encodings that redaction promises to see through, written without its help.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

/// One way of writing bytes; None where they cannot be written that way.
pub(crate) type Encode = fn(&[u8]) -> Option<Vec<u8>>;

/// Every encoding of the contract by name. JSON and UTF-16 are for text only.
pub(crate) const ENCODINGS: &[(&str, Encode)] = &[
    ("raw", |bytes| Some(bytes.to_vec())),
    ("percent of reserved", |bytes| Some(percent(bytes, is_reserved, true))),
    ("percent of reserved, lower", |bytes| Some(percent(bytes, is_reserved, false))),
    ("percent of all", |bytes| Some(percent(bytes, |_| true, true))),
    ("percent of all, lower", |bytes| Some(percent(bytes, |_| true, false))),
    ("base64", |bytes| Some(STANDARD.encode(bytes).into_bytes())),
    ("base64 unpadded", |bytes| Some(STANDARD_NO_PAD.encode(bytes).into_bytes())),
    ("base64url", |bytes| Some(URL_SAFE.encode(bytes).into_bytes())),
    ("base64url unpadded", |bytes| Some(URL_SAFE_NO_PAD.encode(bytes).into_bytes())),
    ("base64, second byte", |bytes| Some(STANDARD.encode([b"x", bytes, b"yz"].concat()).into_bytes())),
    ("base64, third byte", |bytes| Some(STANDARD.encode([b"xy", bytes, b"z"].concat()).into_bytes())),
    ("base64url, second byte", |bytes| Some(URL_SAFE_NO_PAD.encode([b"\xff", bytes, b"~"].concat()).into_bytes())),
    ("base64url, third byte", |bytes| Some(URL_SAFE_NO_PAD.encode([b"\xfe\xff", bytes, b"~"].concat()).into_bytes())),
    ("base64 in lines", |bytes| Some(lines(&STANDARD.encode([&[b'-'; 50], bytes].concat()), 76, "\r\n"))),
    ("base64 in short lines", |bytes| Some(lines(&STANDARD.encode(bytes), 8, "\n"))),
    ("hex", |bytes| Some(hex::encode(bytes).into_bytes())),
    ("hex, upper", |bytes| Some(hex::encode_upper(bytes).into_bytes())),
    ("JSON", |bytes| Some(json(text(bytes)?).into_bytes())),
    ("JSON with escaped slashes", |bytes| Some(json(text(bytes)?).replace('/', "\\/").into_bytes())),
    ("JSON in ASCII", |bytes| Some(units(text(bytes)?, |unit| !(0x20..0x7f).contains(&unit), false))),
    ("\\u of all", |bytes| Some(units(text(bytes)?, |_| true, false))),
    ("\\u of all, upper", |bytes| Some(units(text(bytes)?, |_| true, true))),
    ("UTF-16 LE", |bytes| Some(text(bytes)?.encode_utf16().flat_map(u16::to_le_bytes).collect())),
    ("UTF-16 BE", |bytes| Some(text(bytes)?.encode_utf16().flat_map(u16::to_be_bytes).collect())),
];

/// `value` in the encoding of that name.
pub(crate) fn encoding(name: &str) -> Encode {
    ENCODINGS.iter().find(|(known, _)| *known == name).unwrap().1
}

/// Whether `part` lies in `bytes`.
pub(crate) fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn is_reserved(byte: u8) -> bool {
    !byte.is_ascii_alphanumeric() && !b"-._~".contains(&byte)
}

fn percent(bytes: &[u8], escaped: impl Fn(u8) -> bool, upper: bool) -> Vec<u8> {
    let write = |byte: &u8| match (escaped(*byte), upper) {
        (false, _) => char::from(*byte).to_string(),
        (true, true) => format!("%{byte:02X}"),
        (true, false) => format!("%{byte:02x}"),
    };
    bytes.iter().map(write).collect::<String>().into_bytes()
}

fn lines(text: &str, length: usize, end: &str) -> Vec<u8> {
    let lines: Vec<&[u8]> = text.as_bytes().chunks(length).collect();
    lines.join(end.as_bytes())
}

fn json(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

fn units(text: &str, escaped: impl Fn(u16) -> bool, upper: bool) -> Vec<u8> {
    let write = |unit: u16| match (escaped(unit), upper, char::from_u32(u32::from(unit))) {
        (false, _, Some(character @ ('"' | '\\'))) => format!("\\{character}"),
        (false, _, Some(character)) => character.to_string(),
        (_, true, _) => format!("\\u{unit:04X}"),
        (_, false, _) => format!("\\u{unit:04x}"),
    };
    text.encode_utf16().map(write).collect::<String>().into_bytes()
}
