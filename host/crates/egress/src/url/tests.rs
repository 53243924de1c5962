use proptest::prelude::*;

use super::*;

fn built(base: &str, text: &str) -> Result<String, FailureCode> {
    let base = Url::parse(base).unwrap();
    build(Some(&base), text, &[]).map(String::from).map_err(|failure| failure.code)
}

#[test]
fn a_path_is_appended_as_text() {
    for (base, path, expected) in [
        ("https://api.example.com", "/repos", "https://api.example.com/repos"),
        ("https://api.example.com/", "/repos", "https://api.example.com/repos"),
        ("https://ghe.example.com/api/v3", "/repos", "https://ghe.example.com/api/v3/repos"),
        ("https://ghe.example.com/api/v3/", "/repos", "https://ghe.example.com/api/v3/repos"),
        ("https://ghe.example.com/api/v3//", "/repos", "https://ghe.example.com/api/v3//repos"),
        ("https://a.example/x", "", "https://a.example/x"),
        ("https://a.example/x/", "?q=1", "https://a.example/x?q=1"),
        ("https://a.example", "", "https://a.example/"),
        // The text is a path with an empty first segment, not a reference to another host.
        ("https://a.example", "//evil.example/x", "https://a.example//evil.example/x"),
        ("https://a.example", "/https://evil.example/", "https://a.example/https://evil.example/"),
        // Escapes are sent as written.
        ("https://a.example", "/a%2Fb%2fc%3F", "https://a.example/a%2Fb%2fc%3F"),
        ("https://a.example", "/100%", "https://a.example/100%"),
        ("https://a.example", "/é{x}", "https://a.example/%C3%A9%7Bx%7D"),
        // These segments are neither `.` nor `..`.
        ("https://a.example", "/.../.git/a..b/..c", "https://a.example/.../.git/a..b/..c"),
        ("https://a.example", "/%252e%252e/x", "https://a.example/%252e%252e/x"),
        ("https://a.example", "/x?path=../../y", "https://a.example/x?path=../../y"),
    ] {
        assert_eq!(built(base, path), Ok(expected.to_owned()), "{base} + {path}");
    }
}

#[test]
fn absolute_urls_are_used_unchanged() {
    for url in
        ["https://b.example/x?y=z", "http://b.example:8080/", "https://93.184.216.34/", "https://[2606:4700::1111]/"]
    {
        assert_eq!(built("https://a.example", url), Ok(url.to_owned()));
    }
    assert_eq!(built("https://a.example", "HTTPS://B.example"), Ok("https://b.example/".to_owned()));
}

#[test]
fn urls_that_a_parser_would_change_are_invalid() {
    for text in [
        "repos",
        ".evil.example",
        "@evil.example",
        ":8080/",
        "a:b",
        "file:///etc/passwd",
        "ftp://a.example/",
        "javascript:alert(1)",
        "https:b.example",
        "https:/b.example",
        "https:///b.example",
        "https://",
        "https://?x",
        "https://user@b.example/",
        "https://user:pass@b.example/",
        "https://@b.example/",
        "https://b.example@evil.example/",
        "/x#fragment",
        "/x#",
        "https://b.example#",
        "/a\\b",
        "\\\\evil.example",
        "https:\\\\evil.example",
        "https://b.example\\@evil.example/",
        "/a b",
        " /a",
        "/a ",
        "/a\tb",
        "/a\nb",
        "/a\r\nHost: x",
        "/a\0",
        "/\u{7f}",
        "/\u{85}",
        "/a%00",
        "/a%0d%0aX: y",
        "/a%1F",
        "/a%7f",
        "/?q=%0a",
        "/?q=%C2%85",
        "/\u{2028}",
        "/.",
        "/..",
        "/./a",
        "/a/../b",
        "/a/..",
        "/%2e",
        "/%2E%2e/a",
        "/.%2e/a",
        "/a/%2e%2e%2fb",
        "/acme/..%2f..",
        "/acme/..%2F..%2Fuser",
        "/a%2f.%2fb",
        "/a/..;/b",
        "/a/%2e%2e;x/b",
        "/a/..%5cb",
        "/a%5c..%5cb",
        "/../?x",
        "https://b.example/../x",
        "https://b.example/%2e%2e?x",
        "https://b.%65xample/",
        "https://bücher.example/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://１２７.0.0.1/",
        "https://[::1/",
        "https://[::1%25eth0]/",
        "https://b.example:99999/",
        "https://b.example:x/",
        "https://b_ex ample/",
        "https://b<ex/",
        "https:// b.example/",
        "https://*.example/\u{0}",
    ] {
        assert_eq!(built("https://a.example/base", text), Err(FailureCode::Invalid), "{text:?}");
    }
}

#[test]
fn a_base_must_not_have_a_query_or_fragment() {
    for base in ["https://a.example/?x", "https://a.example/#x", "https://u@a.example/", "https://u:p@a.example/"] {
        assert_eq!(built(base, "/x"), Err(FailureCode::Invalid), "{base}");
    }
    assert_eq!(build(None, "/x", &[]).unwrap_err().code, FailureCode::Invalid);
    assert!(build(None, "https://a.example/x", &[]).is_ok());
}

#[test]
fn query_parameters_are_encoded() {
    let base = Url::parse("https://a.example").unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let query = [pair("q", "a b&c=d/é+~"), pair("n&", ""), pair("", "x")];
    for (path, expected) in [
        ("/s", "https://a.example/s?q=a%20b%26c%3Dd%2F%C3%A9%2B~&n%26=&=x"),
        ("/s?", "https://a.example/s?q=a%20b%26c%3Dd%2F%C3%A9%2B~&n%26=&=x"),
        ("/s?p=1", "https://a.example/s?p=1&q=a%20b%26c%3Dd%2F%C3%A9%2B~&n%26=&=x"),
    ] {
        assert_eq!(build(Some(&base), path, &query).unwrap().as_str(), expected);
    }
    let control = build(Some(&base), "/s", &[pair("q", "a\nb")]).unwrap_err();
    assert_eq!(control.code, FailureCode::Invalid);
}

#[test]
fn urls_have_at_most_8_kib() {
    let path = |length: usize| format!("/{}", "x".repeat(length - "https://a.example/".len()));
    assert!(built("https://a.example", &path(URL_BYTES_MAX)).is_ok());
    assert_eq!(built("https://a.example", &path(URL_BYTES_MAX + 1)), Err(FailureCode::Invalid));
    let base = Url::parse("https://a.example").unwrap();
    let swollen = [("q".to_owned(), "&".repeat(URL_BYTES_MAX / 2))];
    assert_eq!(build(Some(&base), "/", &swollen).unwrap_err().code, FailureCode::Invalid);
}

#[test]
fn redirects_are_resolved_and_checked() {
    let from = Url::parse("https://a.example/x/y?z").unwrap();
    for (location, expected) in [
        ("https://b.example/z", Some("https://b.example/z")),
        ("/z", Some("https://a.example/z")),
        ("z#there", Some("https://a.example/x/z")),
        ("../z", Some("https://a.example/z")),
        ("//b.example/z", Some("https://b.example/z")),
        ("?q", Some("https://a.example/x/y?q")),
        ("https://u@b.example/", None),
        ("//u:p@b.example/", None),
        ("ftp://b.example/", None),
        ("javascript:1", None),
        ("\\\\b.example", None),
        ("/a\tb", None),
        ("/a%0d%0a", None),
        ("https://b.example/a/../b", None),
        ("/a%2f..%2fb", None),
        ("https://0x7f.1/", None),
    ] {
        let to = follow(&from, location).ok().map(String::from);
        assert_eq!(to.as_deref(), expected, "{location}");
    }
}

proptest! {
    #[test]
    fn building_never_panics_and_never_leaves_the_base(text in ".{0,60}", name in ".{0,9}", value in ".{0,9}") {
        let base = Url::parse("https://a.example:8443/v1").unwrap();
        if let Ok(url) = build(Some(&base), &text, &[(name, value)])
            && !is_absolute(&text)
        {
            prop_assert_eq!(url.origin(), base.origin());
            prop_assert!(url.path().starts_with("/v1"));
        }
    }

    #[test]
    fn the_host_is_never_changed(
        text in r"(https?://)?([a-z0-9.@:\[\]%\\/?#-]|\.\.|%2[eEfF]|%5c|;|\t| |é){0,24}"
    ) {
        let base = Url::parse("https://a.example/v1").unwrap();
        if let Ok(url) = build(Some(&base), &text, &[]) {
            let host = url.host_str().unwrap();
            prop_assert!(host == "a.example" || text.to_ascii_lowercase().contains(host), "{} -> {}", text, url);
            prop_assert!(!url.path().split('/').any(|segment| segment == ".." || segment == "."));
            prop_assert!(url.username().is_empty() && url.fragment().is_none());
        }
    }

    #[test]
    fn following_never_panics(location in ".{0,60}") {
        let from = Url::parse("https://a.example/x/y").unwrap();
        if let Ok(url) = follow(&from, &location) {
            prop_assert!(matches!(url.scheme(), "http" | "https"));
        }
    }
}
