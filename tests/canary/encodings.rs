//! The forms in which a secret can leak, and the search for them.

use std::path::Path;

use anyhow::Result;
use base64::Engine;
use base64::prelude::{BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use monstrum_search::{Needles, files_beneath};

/// Returns whether the character is unreserved (RFC 3986). Encoders escape such characters only if they escape all
/// characters.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Returns every form of `secret`, with its name.
pub(crate) fn encodings(secret: &str) -> Vec<(&'static str, Vec<u8>)> {
    let bytes = secret.as_bytes();
    let mut forms = vec![("the text", bytes.to_vec())];
    let mut add = |name, form: String| forms.push((name, form.into_bytes()));
    let percent = |is_plain: fn(u8) -> bool, escape: fn(u8) -> String| -> String {
        bytes.iter().map(|byte| if is_plain(*byte) { char::from(*byte).to_string() } else { escape(*byte) }).collect()
    };
    let (upper, lower) = (|byte: u8| format!("%{byte:02X}"), |byte: u8| format!("%{byte:02x}"));
    add("percent, reserved, upper case", percent(is_unreserved, upper));
    add("percent, reserved, lower case", percent(is_unreserved, lower));
    add("percent, all, upper case", percent(|_| false, upper));
    add("percent, all, lower case", percent(|_| false, lower));
    add("a form field", percent(|byte| is_unreserved(byte) || byte == b' ', upper).replace(' ', "+"));
    for (skipped, names) in [
        ("base64", "base64url"),
        ("base64 after one byte", "base64url after one byte"),
        ("base64 after two bytes", "base64url after two bytes"),
    ]
    .into_iter()
    .enumerate()
    {
        add(names.0, base64_at(&BASE64_STANDARD_NO_PAD, bytes, skipped));
        add(names.1, base64_at(&BASE64_URL_SAFE_NO_PAD, bytes, skipped));
    }
    add("hex, lower case", hex::encode(bytes));
    add("hex, upper case", hex::encode_upper(bytes));
    let quoted = serde_json::to_string(secret).expect("a text is JSON");
    add("a JSON string", quoted[1..quoted.len() - 1].to_owned());
    add("a JSON string with escaped slashes", quoted[1..quoted.len() - 1].replace('/', "\\/"));
    add("JSON escapes, lower case", secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect());
    add("JSON escapes, upper case", secret.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect());
    let points = |escape: &dyn Fn(u32) -> String| -> String {
        secret.chars().map(|character| escape(character.into())).collect()
    };
    let markup = secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    add("HTML, as Python writes it", markup.replace('\'', "&#x27;"));
    add("HTML, as Handlebars writes it", markup.replace('/', "&#x2F;").replace('=', "&#x3D;"));
    add("HTML, without ends", markup.replace(';', ""));
    add("single quotes", secret.replace('\\', "\\\\").replace('\'', "\\'"));
    add("HTML, decimal", points(&|code| format!("&#{code};")));
    add("HTML, decimal, without an end", points(&|code| format!("&#{code}")));
    add("HTML, hexadecimal", points(&|code| format!("&#x{code:x};")));
    add("HTML, hexadecimal, upper case", points(&|code| format!("&#X{code:X};")));
    add("HTML, hexadecimal, without an end", points(&|code| format!("&#x{code:x}")));
    add("hexadecimal escapes", bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect());
    add("hexadecimal escapes, upper case", bytes.iter().map(|byte| format!("\\x{byte:02X}")).collect());
    add("escapes in braces", points(&|code| format!("\\u{{{code:x}}}")));
    forms.push(("UTF-16, little end first", secret.encode_utf16().flat_map(u16::to_le_bytes).collect()));
    forms.push(("UTF-16, big end first", secret.encode_utf16().flat_map(u16::to_be_bytes).collect()));
    forms
}

/// Returns the base64 characters that depend on `bytes` only, if `skipped` bytes precede them in their group of three.
fn base64_at(engine: &impl Engine, bytes: &[u8], skipped: usize) -> String {
    let before = [vec![0; skipped], bytes.to_vec()].concat();
    let text = engine.encode(&before);
    let (first, last) = ((skipped * 8).div_ceil(6), before.len() * 8 / 6);
    text[first..last].to_owned()
}

/// Finds a secret in every form in one pass.
pub(crate) struct Search {
    names: Vec<&'static str>,
    forms: Needles,
}

impl Search {
    /// Creates a search for `secret`.
    pub(crate) fn of(secret: &str) -> Search {
        let (names, forms): (Vec<_>, Vec<_>) = encodings(secret).into_iter().unzip();
        Search { names, forms: Needles::new(forms) }
    }

    /// Returns the form in which the secret occurs in `bytes`.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<&'static str> {
        self.forms.find(bytes).map(|found| self.names[found])
    }

    /// Returns the files in a folder and its subfolders that contain the secret, each with the form.
    pub(crate) fn find_beneath(&self, folder: &Path) -> Result<Vec<String>> {
        let mut leaks = Vec::new();
        for path in files_beneath(folder)? {
            if let Some(found) = self.forms.find_in_file(&path)? {
                leaks.push(format!("{}: {}", path.display(), self.names[found]));
            }
        }
        Ok(leaks)
    }
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};

    use super::*;

    /// A secret with a character for every difference between the encodings.
    const SECRET: &str = "s3cr3t+/~\"&= \u{fc}\u{1f511}";

    #[test]
    fn every_encoding_is_found_wherever_it_stands() {
        let plain = SECRET.as_bytes();
        let search = Search::of(SECRET);
        for lead in ["", "x", "xy", "xyz"] {
            let around = |text: String| format!("{lead}{text}{lead}").into_bytes();
            let whole = [lead.as_bytes(), plain, lead.as_bytes()].concat();
            let utf16 = |text: &str| text.encode_utf16().collect::<Vec<u16>>();
            for (name, bytes) in [
                ("as it is", whole.clone()),
                ("base64", around(BASE64_STANDARD.encode(&whole))),
                ("base64url", around(BASE64_URL_SAFE.encode(&whole))),
                ("hex", around(hex::encode(plain))),
                ("HEX", around(hex::encode_upper(plain))),
                ("percent", around(plain.iter().map(|byte| format!("%{byte:02x}")).collect())),
                ("PERCENT", around(plain.iter().map(|byte| format!("%{byte:02X}")).collect())),
                ("form", around("s3cr3t%2B%2F~%22%26%3D+%C3%BC%F0%9F%94%91".to_owned())),
                ("query", around("s3cr3t%2b%2f~%22%26%3d%20%c3%bc%f0%9f%94%91".to_owned())),
                ("JSON", serde_json::to_vec(&[SECRET]).expect("a text is JSON")),
                ("JSON escapes", around(utf16(SECRET).iter().map(|unit| format!("\\u{unit:04x}")).collect())),
                ("JSON ESCAPES", around(utf16(SECRET).iter().map(|unit| format!("\\u{unit:04X}")).collect())),
                ("UTF-16LE", utf16(&format!("{lead}{SECRET}")).into_iter().flat_map(u16::to_le_bytes).collect()),
                ("UTF-16BE", utf16(&format!("{lead}{SECRET}")).into_iter().flat_map(u16::to_be_bytes).collect()),
            ] {
                assert!(search.find(&bytes).is_some(), "{name} after {lead:?}");
            }
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        for bytes in [&b""[..], b"s3cr3t", b"[redacted]", &[0; 4096]] {
            assert_eq!(Search::of(SECRET).find(bytes), None);
        }
    }
}
