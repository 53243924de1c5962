//! The encodings that redaction supports, implemented independently.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

/// An encoding of bytes. The function returns `None` if it cannot encode the bytes.
pub(crate) type Encode = fn(&[u8]) -> Option<Vec<u8>>;

/// All supported encodings by name. JSON, HTML and UTF-16 encode only text.
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
    ("\\x of reserved", |bytes| Some(hexadecimal(bytes, is_reserved, false))),
    ("\\x of all", |bytes| Some(hexadecimal(bytes, |_| true, false))),
    ("\\x of all, upper", |bytes| Some(hexadecimal(bytes, |_| true, true))),
    ("\\x of Latin-1", |bytes| Some(latin_1(text(bytes)?).into_bytes())),
    ("a string in single quotes", |bytes| Some(text(bytes)?.replace('\\', "\\\\").replace('\'', "\\'").into_bytes())),
    ("\\u{} of reserved", |bytes| Some(characters(text(bytes)?, is_special, |code| format!("\\u{{{code:x}}}")))),
    ("\\u{} of all", |bytes| Some(characters(text(bytes)?, |_| true, |code| format!("\\u{{{code:x}}}")))),
    ("\\U of all", |bytes| Some(characters(text(bytes)?, |_| true, |code| format!("\\U{code:08x}")))),
    ("HTML", |bytes| Some(characters(text(bytes)?, is_markup, named))),
    ("HTML in decimal", |bytes| Some(characters(text(bytes)?, is_markup, |code| format!("&#{code};")))),
    ("HTML in decimal, padded", |bytes| Some(characters(text(bytes)?, is_markup, |code| format!("&#{code:03};")))),
    ("HTML of reserved", |bytes| Some(characters(text(bytes)?, is_special, |code| format!("&#{code};")))),
    ("HTML of reserved, hexadecimal", |bytes| {
        Some(characters(text(bytes)?, is_special, |code| format!("&#x{code:X};")))
    }),
    ("HTML of all, decimal", |bytes| Some(characters(text(bytes)?, |_| true, |code| format!("&#{code};")))),
    ("HTML of all, hexadecimal", |bytes| Some(characters(text(bytes)?, |_| true, |code| format!("&#x{code:x};")))),
    ("HTML of all, upper", |bytes| Some(characters(text(bytes)?, |_| true, |code| format!("&#X{code:X};")))),
    ("HTML by name", |bytes| Some(characters(text(bytes)?, is_named, name))),
    ("HTML without ;", |bytes| Some(without_ends(text(bytes)?, is_markup, named))),
    ("HTML of reserved without ;", |bytes| Some(without_ends(text(bytes)?, is_special, |code| format!("&#{code};")))),
    ("HTML of all without ;, decimal", |bytes| Some(without_ends(text(bytes)?, |_| true, |code| format!("&#{code};")))),
    ("HTML of all without ;, hexadecimal", |bytes| {
        Some(without_ends(text(bytes)?, |_| true, |code| format!("&#x{code:x};")))
    }),
    ("UTF-16 LE", |bytes| Some(text(bytes)?.encode_utf16().flat_map(u16::to_le_bytes).collect())),
    ("UTF-16 BE", |bytes| Some(text(bytes)?.encode_utf16().flat_map(u16::to_be_bytes).collect())),
];

/// Returns the encoding of this name.
pub(crate) fn encoding(name: &str) -> Encode {
    ENCODINGS.iter().find(|(known, _)| *known == name).unwrap().1
}

/// Returns whether `bytes` contain `part`.
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

fn hexadecimal(bytes: &[u8], escaped: impl Fn(u8) -> bool, upper: bool) -> Vec<u8> {
    let write = |byte: &u8| match (escaped(*byte), upper) {
        (false, _) => vec![*byte],
        (true, true) => format!("\\x{byte:02X}").into_bytes(),
        (true, false) => format!("\\x{byte:02x}").into_bytes(),
    };
    bytes.iter().flat_map(write).collect()
}

/// Writes text in ASCII like JavaScript and Python.
fn latin_1(text: &str) -> String {
    let write = |unit: u16| match u8::try_from(unit) {
        Ok(byte @ (b'\\' | b'\'')) => format!("\\{}", char::from(byte)),
        Ok(byte @ 0x20..0x7f) => char::from(byte).to_string(),
        Ok(byte) => format!("\\x{byte:02x}"),
        Err(_) => format!("\\u{unit:04x}"),
    };
    text.encode_utf16().map(write).collect()
}

fn is_special(character: char) -> bool {
    !character.is_ascii_alphanumeric() && !"-._~".contains(character)
}

/// Returns whether HTML must escape the character.
fn is_markup(character: char) -> bool {
    "&<>\"'".contains(character)
}

/// Writes a character reference like Python's standard library.
fn named(code: u32) -> String {
    match char::from_u32(code) {
        Some('&') => "&amp;".to_owned(),
        Some('<') => "&lt;".to_owned(),
        Some('>') => "&gt;".to_owned(),
        Some('"') => "&quot;".to_owned(),
        _ => format!("&#x{code:x};"),
    }
}

const NAMED: &[(char, &str)] = &[
    ('!', "excl"),
    ('"', "quot"),
    ('#', "num"),
    ('$', "dollar"),
    ('%', "percnt"),
    ('&', "amp"),
    ('\'', "apos"),
    ('(', "lpar"),
    (')', "rpar"),
    ('*', "ast"),
    ('+', "plus"),
    (',', "comma"),
    ('.', "period"),
    ('/', "sol"),
    (':', "colon"),
    (';', "semi"),
    ('<', "lt"),
    ('=', "equals"),
    ('>', "gt"),
    ('?', "quest"),
    ('@', "commat"),
    ('[', "lbrack"),
    ('\\', "bsol"),
    (']', "rsqb"),
    ('^', "Hat"),
    ('_', "lowbar"),
    ('`', "grave"),
    ('{', "lcub"),
    ('|', "vert"),
    ('}', "rcub"),
    ('ß', "szlig"),
    ('ä', "auml"),
    ('é', "eacute"),
    ('ö', "ouml"),
    ('€', "euro"),
];

fn is_named(character: char) -> bool {
    NAMED.iter().any(|(known, _)| *known == character)
}

fn name(code: u32) -> String {
    let (_, name) = NAMED.iter().find(|(known, _)| u32::from(*known) == code).unwrap();
    format!("&{name};")
}

fn characters(text: &str, escaped: impl Fn(char) -> bool, write: impl Fn(u32) -> String) -> Vec<u8> {
    let write = |character| if escaped(character) { write(character.into()) } else { character.to_string() };
    text.chars().map(write).collect::<String>().into_bytes()
}

/// Replaces characters with the references that `write` returns. The `;` of a reference is omitted if the next
/// character cannot be read as part of the reference.
fn without_ends(text: &str, escaped: impl Fn(char) -> bool, write: impl Fn(u32) -> String) -> Vec<u8> {
    let mut written = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if !escaped(character) {
            written.push(character);
            continue;
        }
        let reference = write(character.into());
        let next = characters.peek().filter(|next| !escaped(**next));
        let is_read_on = next.is_some_and(|next| *next == ';' || next.is_ascii_alphanumeric());
        written.push_str(if is_read_on { &reference } else { reference.trim_end_matches(';') });
    }
    written.into_bytes()
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
