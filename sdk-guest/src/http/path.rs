//! The target of a request: a path with encoded variable parts, or a URL.

use std::fmt::Display;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::Error;

/// All characters except the unreserved characters of RFC 3986, which have no special meaning in any part of a path.
pub(crate) const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The target of a request: a path that is appended to the base, or an absolute URL.
///
/// A literal is used unchanged. For variable parts, use [`path!`](crate::path!), which encodes them. A `String` is not
/// accepted, because text from the caller could then select a path that is not authorized.
#[derive(Clone, Debug, PartialEq)]
pub struct Path(Result<String, Error>);

impl Path {
    /// Creates a path or URL from computed text, which is used unchanged. Use this function for URLs from the upstream,
    /// never for text from the caller.
    #[must_use]
    pub fn raw(text: impl Into<String>) -> Self {
        Path(Ok(text.into()))
    }

    /// Replaces each `{}` of a template with an encoded value. Prefer [`path!`](crate::path!), which checks the number
    /// of values.
    #[must_use]
    pub fn from_template(template: &str, values: &[&dyn Display]) -> Self {
        let mut parts = template.split("{}");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (part, value) in parts.zip(values) {
            let value = value.to_string();
            if value.is_empty() {
                return Path(Err(bad_segment()));
            }
            text.extend(utf8_percent_encode(&value, RESERVED));
            text.push_str(part);
        }
        if text.split(['/', '?']).any(|segment| matches!(segment, "." | "..")) {
            return Path(Err(bad_segment()));
        }
        Path(Ok(text))
    }

    /// Removes a trailing `/` from `base` and appends the path. Returns an absolute URL unchanged.
    pub(super) fn join(self, base: &str) -> Result<String, Error> {
        let text = self.0?;
        let is_absolute = ["http://", "https://"]
            .iter()
            .any(|scheme| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
        if is_absolute {
            return Ok(text);
        }
        // If the `/` were missing, the path could extend the host name.
        let slash = if text.starts_with('/') { "" } else { "/" };
        Ok(format!("{}{slash}{text}", base.strip_suffix('/').unwrap_or(base)))
    }
}

impl From<&'static str> for Path {
    fn from(text: &'static str) -> Self {
        Path::raw(text)
    }
}

fn bad_segment() -> Error {
    Error::message("a segment of the URL path must not be empty, `.` or `..`")
}

/// Returns the number of `{}` in a template.
#[doc(hidden)]
#[must_use]
pub const fn placeholders(template: &str) -> usize {
    let bytes = template.as_bytes();
    let (mut at, mut count) = (0, 0);
    while at + 1 < bytes.len() {
        if bytes[at] == b'{' && bytes[at + 1] == b'}' {
            count += 1;
        }
        at += 1;
    }
    count
}

/// Creates a [`Path`](crate::Path) from a template. Each `{}` is replaced with a percent-encoded value, so that a value
/// cannot leave its segment. If a value is empty or makes a segment `.` or `..`, sending the request fails.
///
/// ```
/// use monstrum_sdk::{Path, path};
///
/// assert_eq!(path!("/labels/{}", "good first/issue"), Path::raw("/labels/good%20first%2Fissue"));
/// assert_eq!(path!("/issues/{}/comments", 7), Path::raw("/issues/7/comments"));
/// ```
///
/// A template with more or fewer `{}` than values does not compile:
///
/// ```compile_fail
/// monstrum_sdk::path!("/repos/{}/{}", "acme");
/// ```
#[macro_export]
macro_rules! path {
    ($template:literal $(, $value:expr)* $(,)?) => {{
        // The array length makes a wrong number of values a compile error.
        let values: [&dyn ::core::fmt::Display; $crate::http::placeholders($template)] = [$(&$value),*];
        $crate::Path::from_template($template, &values)
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(base: &str, path: Path) -> String {
        path.join(base).unwrap()
    }

    #[test]
    fn a_path_is_appended_as_text() {
        let cases = [
            ("https://a.example", "/x", "https://a.example/x"),
            ("https://a.example/", "/x", "https://a.example/x"),
            ("https://a.example/v1//", "/x", "https://a.example/v1//x"),
            ("https://a.example", "x", "https://a.example/x"),
            ("https://a.example", ".evil.example/x", "https://a.example/.evil.example/x"),
            ("https://a.example", "@evil.example/x", "https://a.example/@evil.example/x"),
            ("https://a.example", "HTTPS://b.example/x", "HTTPS://b.example/x"),
            ("https://a.example", "//b.example/x", "https://a.example//b.example/x"),
            ("", "/x", "/x"),
        ];
        for (base, path, url) in cases {
            assert_eq!(joined(base, Path::raw(path)), url);
        }
    }

    #[test]
    fn a_value_stays_inside_its_segment() {
        let cases = [
            ("a/b", "/x/a%2Fb/y"),
            ("a?b#c", "/x/a%3Fb%23c/y"),
            ("..%2f..", "/x/..%252f../y"),
            ("../..", "/x/..%2F../y"),
            ("é\r\n", "/x/%C3%A9%0D%0A/y"),
            ("A-z_0.~", "/x/A-z_0.~/y"),
        ];
        for (value, expected) in cases {
            assert_eq!(path!("/x/{}/y", value), Path::raw(expected));
        }
    }

    #[test]
    fn dot_segments_and_empty_values_are_refused() {
        for path in [path!("/x/{}", ""), path!("/x/{}", "."), path!("/{}/x", ".."), path!("/{}{}/x", ".", ".")] {
            assert_eq!(path.join(""), Err(bad_segment()));
        }
        assert_eq!(path!("/x/{}", "..."), Path::raw("/x/..."));
        assert_eq!(path!("/x/{}.json", ".a"), Path::raw("/x/.a.json"));
    }
}
