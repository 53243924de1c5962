//! The name under which a browser saves a download (RFC 6266). The name comes from a sandbox, so only characters that
//! are harmless in a header, in a dialog and in a file name are kept.

use http::HeaderValue;
use monstrum_types::is_invisible;

/// The maximum length of a name, which most file systems accept.
const NAME_BYTES_MAX: usize = 200;

/// Returns `attachment` with the name in two forms: an ASCII name for old clients, and the complete name for all other
/// clients.
pub(super) fn attachment(name: &str) -> HeaderValue {
    let name = harmless(name);
    let plain: String = name.chars().map(|c| if c.is_ascii() && c != '%' { c } else { '_' }).collect();
    let mut text = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''");
    for byte in name.bytes() {
        // These are the attr-chars of RFC 8187, which need no encoding.
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    HeaderValue::try_from(text).expect("ASCII without control characters is a header value")
}

/// Replaces separators, quotes, control characters, and characters that change the direction of text, because such
/// characters can make a name look like another name.
fn harmless(name: &str) -> String {
    let mut harmless: String = name.chars().map(|c| if is_harmful(c) { '_' } else { c }).collect();
    harmless.truncate(harmless.floor_char_boundary(NAME_BYTES_MAX));
    // Without leading dots, the name is neither a hidden file nor a parent folder. Windows removes trailing dots and
    // spaces.
    let trimmed = harmless.trim_matches(|c: char| c == '.' || c == ' ');
    if trimmed.is_empty() { "download".to_owned() } else { trimmed.to_owned() }
}

fn is_harmful(c: char) -> bool {
    is_invisible(c) || matches!(c, '/' | '\\' | '"' | '<' | '>' | ':' | '|' | '?' | '*' | ';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_harmless_whatever_the_file_is_called() {
        let header = |name: &str| attachment(name).to_str().unwrap().to_owned();
        let both = |plain: &str, all: &str| format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{all}");
        assert_eq!(header("report.txt"), both("report.txt", "report.txt"));
        assert_eq!(header("a b.txt"), both("a b.txt", "a%20b.txt"));
        assert_eq!(header("报告.md"), both("__.md", "%E6%8A%A5%E5%91%8A.md"));
        assert_eq!(header("a\"; filename=\"b.exe"), both("a__ filename=_b.exe", "a__%20filename%3D_b.exe"));
        assert_eq!(header("a\r\nSet-Cookie: x"), both("a__Set-Cookie_ x", "a__Set-Cookie_%20x"));
        assert_eq!(header("a\u{202e}gpj.exe"), both("a_gpj.exe", "a_gpj.exe"));
        assert_eq!(header("100%41"), both("100_41", "100%2541"));
        for nothing in ["", ".", "..", "...", " "] {
            assert_eq!(header(nothing), both("download", "download"), "{nothing}");
        }
        assert_eq!(header(".bashrc"), both("bashrc", "bashrc"));
        let long = "é".repeat(300);
        assert!(header(&long).len() < 1_000);
    }
}
