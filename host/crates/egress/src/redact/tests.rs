use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn redactor(values: &[&str]) -> Redactor {
    Redactor::new(values.iter().map(|value| Secret::new((*value).to_owned())))
}

/// Returns all encodings of `secret` that redaction decodes or recognises, by name.
fn encodings(secret: &str) -> Vec<(&'static str, Vec<u8>)> {
    let bytes = secret.as_bytes();
    let each = |write: &dyn Fn(usize, u8) -> String| -> Vec<u8> {
        bytes.iter().enumerate().map(|(at, byte)| write(at, *byte)).collect::<String>().into_bytes()
    };
    let percent = |byte: u8, upper: bool| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let units = |write: &dyn Fn(usize, u16) -> String| -> Vec<u8> {
        secret.encode_utf16().enumerate().map(|(at, unit)| write(at, unit)).collect::<String>().into_bytes()
    };
    let points = |write: &dyn Fn(u32) -> String| -> Vec<u8> {
        secret.chars().map(|character| write(character.into())).collect::<String>().into_bytes()
    };
    let hex = hex::encode(bytes);
    let mixed_hex = hex.char_indices().map(|(at, digit)| if at % 3 == 0 { digit.to_ascii_uppercase() } else { digit });
    vec![
        ("raw", bytes.to_vec()),
        (
            "percent of reserved",
            each(&|_, byte| if plain(byte) { char::from(byte).into() } else { percent(byte, true) }),
        ),
        ("percent of all, upper", each(&|_, byte| percent(byte, true))),
        ("percent of all, lower", each(&|_, byte| percent(byte, false))),
        ("percent of all, mixed", each(&|at, byte| percent(byte, at % 2 == 0))),
        ("percent twice", each(&|_, byte| format!("%25{byte:02x}"))),
        ("base64", STANDARD.encode(bytes).into_bytes()),
        ("base64 unpadded", STANDARD_NO_PAD.encode(bytes).into_bytes()),
        ("base64url", URL_SAFE.encode(bytes).into_bytes()),
        ("base64url unpadded", URL_SAFE_NO_PAD.encode(bytes).into_bytes()),
        ("base64 with escaped slashes", STANDARD.encode(bytes).replace('/', "\\/").into_bytes()),
        ("hex, lower", hex::encode(bytes).into_bytes()),
        ("hex, upper", hex::encode_upper(bytes).into_bytes()),
        ("hex, mixed", mixed_hex.collect::<String>().into_bytes()),
        ("JSON", serde_json::to_string(secret).unwrap().into_bytes()),
        ("JSON in JSON", json!(serde_json::to_string(secret).unwrap()).to_string().into_bytes()),
        ("JSON with escaped slashes", serde_json::to_string(secret).unwrap().replace('/', "\\/").into_bytes()),
        ("\\u of all, lower", units(&|_, unit| format!("\\u{unit:04x}"))),
        ("\\u of all, upper", units(&|_, unit| format!("\\u{unit:04X}"))),
        ("\\x of all", each(&|_, byte| format!("\\x{byte:02x}"))),
        (
            "\\x of all, mixed",
            each(&|at, byte| if at % 2 == 0 { format!("\\x{byte:02x}") } else { format!("\\x{byte:02X}") }),
        ),
        ("single quotes", secret.replace('\\', "\\\\").replace('\'', "\\'").into_bytes()),
        ("\\u{} of all", points(&|code| format!("\\u{{{code:x}}}"))),
        ("\\u{} of all, padded", points(&|code| format!("\\u{{{code:06X}}}"))),
        ("\\U of all", points(&|code| format!("\\U{code:08X}"))),
        ("HTML", html(secret).into_bytes()),
        ("HTML twice", html(&html(secret)).into_bytes()),
        ("HTML of all, decimal", points(&|code| format!("&#{code};"))),
        ("HTML of all, decimal, without ;", points(&|code| format!("&#{code}"))),
        ("HTML of all, hexadecimal", points(&|code| format!("&#x{code:x};"))),
        ("HTML of all, hexadecimal, without ;", points(&|code| format!("&#X{code:X}"))),
        ("UTF-16 LE", secret.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("UTF-16 BE", secret.encode_utf16().flat_map(u16::to_be_bytes).collect()),
    ]
}

/// Escapes HTML like the standard libraries of Python and Go.
fn html(text: &str) -> String {
    let escape = |character: char| match character {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&#34;".to_owned(),
        '\'' => "&#x27;".to_owned(),
        '+' => "&#43;".to_owned(),
        other => other.to_string(),
    };
    text.chars().map(escape).collect()
}

const SECRETS: &[&str] = &[
    "s3cr3t/t0k+n?=&",
    "ghp_abcDEF0123456789abcdef",
    "12345678",
    "pä\"ss\\wörd 😀!",
    "a b%41c d\\u0041",
    "s3cr3t-T0ken/+abc==\"&<x>'q",
    "x&lt;y&amp#65;z&",
    "äöüÿÃ¤",
];

#[test]
fn all_encodings_are_replaced() {
    for secret in SECRETS {
        let redactor = redactor(&[secret]);
        for (name, encoded) in encodings(secret) {
            assert!(redactor.contains(&encoded), "{secret} as {name}");
            let text = [b"before ".as_slice(), &encoded, b" after"].concat();
            let redacted = redactor.redact_bytes(text);
            assert!(redacted.starts_with(b"before ") && redacted.ends_with(b" after"), "{secret} as {name}");
            assert!(redacted.windows(10).any(|window| window == REDACTED.as_bytes()), "{secret} as {name}");
            assert!(!redactor.contains(&redacted), "{secret} as {name}");
            assert!(!redacted.windows(encoded.len()).any(|window| window == encoded), "{secret} as {name}");
        }
    }
}

#[test]
fn base64_is_found_at_each_alignment_in_other_data() {
    for secret in SECRETS {
        let redactor = redactor(&[secret]);
        for before in 0..6 {
            for after in 0..4 {
                let data = ["x".repeat(before), (*secret).to_owned(), "y".repeat(after)].concat();
                for encoded in [STANDARD.encode(&data), URL_SAFE_NO_PAD.encode(&data)] {
                    let redacted = redactor.redact_text(encoded.clone());
                    assert!(redacted.contains(REDACTED), "{secret} in {encoded}");
                    // Only characters that encode parts of both the secret and its neighbours may remain.
                    let left = redacted.replace(REDACTED, "").trim_end_matches('=').len();
                    assert!(left <= (before * 8).div_ceil(6) + (after * 8).div_ceil(6) + 2, "{encoded} -> {redacted}");
                }
            }
        }
    }
}

#[test]
fn a_form_writes_spaces_as_plus() {
    assert_eq!(redactor(&["pass phrase!"]).redact_text("p=pass+phrase%21&q=1".into()), "p=[redacted]&q=1");
}

#[test]
fn nested_encodings_are_found() {
    let secret = "s3cr3t/t0k\"n";
    let redactor = redactor(&[secret]);
    let json = serde_json::to_string(secret).unwrap();
    for wrapped in [
        json!({ "inner": json }).to_string(),
        percent_encoding::utf8_percent_encode(&json, crate::url::RESERVED).to_string(),
        json!(percent_encoding::utf8_percent_encode(secret, crate::url::RESERVED).to_string()).to_string(),
    ] {
        assert!(redactor.redact_text(wrapped.clone()).contains(REDACTED), "{wrapped}");
    }
}

#[test]
fn an_accidental_escape_does_not_hide_a_secret() {
    for secret in ["s3cr3t-t0ken", "0aa\\\\ Abc", "A0A  x%0/", "dead/beef/\\n"] {
        let escaped: String = secret.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        let percent = percent_encoding::utf8_percent_encode(secret, crate::url::RESERVED).to_string();
        let base64 = STANDARD.encode(secret).replace('/', "\\/");
        let html: String = secret.bytes().map(|byte| format!("&#{byte};")).collect();
        let hexadecimal: String = secret.bytes().map(|byte| format!("\\x{byte:02x}")).collect();
        for before in [
            "\\",
            "\\\\",
            "\\\\\\",
            "%",
            "%4",
            "\\u",
            "\\u00",
            "\\u004",
            "\\x",
            "\\x4",
            "\\u{",
            "\\u{4",
            "&",
            "&am",
            "&amp",
            "&#",
            "&#3",
            "&#x",
            "&#x4",
            "&DiacriticalGrav",
        ] {
            for encoded in [&escaped, &percent, &base64, &html, &hexadecimal] {
                let redacted = redactor(&[secret]).redact_text(format!("C:{before}{encoded}"));
                assert!(redacted.starts_with("C:") && redacted.ends_with(REDACTED), "{before}{encoded}: {redacted}");
            }
        }
    }
}

/// A run of line breaks is not a run of digits, regardless of its length.
#[test]
fn line_breaks_without_digits_are_text() {
    let redactor = redactor(&["s3cr3t-t0ken"]);
    for breaks in ["\n", "\r\n", "\r"] {
        for times in 1..60 {
            for digits in ["", "a", "ab", "-", "0-"] {
                let text = format!("{digits}{}", breaks.repeat(times));
                assert_eq!(redactor.redact_text(text.clone()), text);
                let echo = format!("{text}s3cr3t-t0ken");
                assert_eq!(redactor.redact_text(echo), format!("{text}[redacted]"));
            }
        }
    }
}

/// A character reference without `;` is ambiguous. Digits after the reference must not hide an ASCII secret.
#[test]
fn digits_after_a_reference_do_not_hide_a_secret() {
    for (text, expected) in [
        ("&#115&#51&#99&#114&#51&#116&#45&#116&#48&#107&#101&#1101", "[redacted]1"),
        ("s3cr3t&#x2dt0ken!", "[redacted]!"),
        ("&#x733cr3t-t0ke&#x6eabc", "[redacted]abc"),
    ] {
        assert_eq!(redactor(&["s3cr3t-t0ken"]).redact_text(text.to_owned()), expected, "{text}");
    }
}

#[test]
fn json_stays_json() {
    let redactor = redactor(&["s3cr3t\"t0ken"]);
    let body = json!({ "s3cr3t\"t0ken": ["s3cr3t\"t0ken", "x s3cr3t\"t0ken y"], "other": 1 });
    let redacted = redactor.redact_text(body.to_string());
    let expected = json!({ "[redacted]": ["[redacted]", "x [redacted] y"], "other": 1 });
    assert_eq!(serde_json::from_str::<Value>(&redacted).unwrap(), expected);
    assert_eq!(redactor.redact_json(JsonText::from(&body)).value(), expected);
}

#[test]
fn numbers_are_redacted_too() {
    assert_eq!(
        redactor(&["12345678"]).redact_json(JsonText::from(&json!([12_345_678, 1]))).value(),
        json!(["[redacted]", 1])
    );
}

#[test]
fn header_names_in_lower_case_are_redacted() {
    let redactor = redactor(&["S3cr3t-T0ken"]);
    assert_eq!(redactor.redact_name("x-s3cr3t-t0ken".into()), "x-[redacted]");
    assert_eq!(redactor.redact_text("x-s3cr3t-t0ken".into()), "x-s3cr3t-t0ken");
    // In this text, the percent-encoded `\U` of each character has become `\u`.
    let escaped: String = "s3cr3t-t0ken".bytes().map(|byte| format!("%5cu{byte:08x}")).collect();
    assert_eq!(redactor.redact_name(format!("x-{escaped}")), "x-[redacted]");
}

#[test]
fn ordinary_text_is_unchanged() {
    let redactor = redactor(&["ghp_0123456789abcdefABCDEF", "deadbeef-cafe-4321-8765-0123456789ab", "password1"]);
    let image: Vec<u8> = (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for text in [
        "8f14e45fceea167a5a36dedd4bea2543d9c5b1a0".to_owned(),
        "deadbeef-cafe-4321-8765-0123456789ac".to_owned(),
        "ghp_0123456789ABCDEFabcdef Password1 password 100% \\u00e9 C:\\dir %zz".to_owned(),
        STANDARD.encode(&image),
        hex::encode(&image),
    ] {
        assert_eq!(redactor.redact_text(text.clone()), text);
    }
    assert_eq!(redactor.redact_bytes(image.clone()), image);
}

#[test]
fn short_values_are_not_redacted() {
    assert!(!redactor(&["", "x", "1234567"]).contains(b"1234567 x"));
}

#[test]
fn values_are_also_redacted_without_surrounding_space() {
    assert_eq!(redactor(&["  s3cr3t-t0ken "]).redact_text("<s3cr3t-t0ken>".into()), "<[redacted]>");
}

#[test]
fn neighbours_and_overlaps() {
    let redactor = redactor(&["aaaaaaaa", "aaaabbbb"]);
    assert_eq!(redactor.redact_text("aaaaaaaaaaaaaaaa".into()), "[redacted]");
    assert_eq!(redactor.redact_text("aaaaaaaabbbb.".into()), "[redacted].");
    assert_eq!(redactor.redact_text("aaaabbbbaaaabbbb".into()), "[redacted][redacted]");
}

#[test]
fn a_cell_keeps_all_values() {
    let cell = RedactorCell::new(Arc::new(redactor(&["first-secret"])));
    let secret = |value: &str| vec![Secret::new(value.to_owned())];
    assert!(!cell.learn(secret("first-secret")));
    assert!(!cell.learn(secret("short")));
    assert!(cell.learn(secret("second-secret")));
    let text = "first-secret second-secret".to_owned();
    assert_eq!(cell.current().redact_text(text), "[redacted] [redacted]");
}

proptest! {
    #[test]
    fn all_encodings_of_random_secrets_are_replaced(
        secret in "[ -~äß€😀]{8,40}", before in "[ -~é\\\\%]{0,20}", after in "[ -~é\\\\%]{0,20}", which in any::<prop::sample::Index>()
    ) {
        prop_assume!(secret.trim().len() >= SECRET_BYTES_MIN);
        let all = encodings(&secret);
        let (name, encoded) = &all[which.index(all.len())];
        // After a numeric reference without `;`, further digits are read as part of the number. An exception is a
        // number whose value would exceed ASCII, if all secrets are ASCII.
        let after = if name.ends_with("without ;") && !secret.is_ascii() { format!("-{after}") } else { after };
        let redactor = redactor(&[&secret]);
        let text = [before.as_bytes(), encoded, after.as_bytes()].concat();
        let redacted = redactor.redact_bytes(text);
        prop_assert!(!redacted.windows(encoded.len()).any(|window| window == encoded.as_slice()), "{}", name);
        prop_assert!(!redacted.windows(secret.len()).any(|window| window == secret.as_bytes()), "{}", name);
    }

    #[test]
    fn text_without_secrets_is_unchanged(text in "[ -~é\\\\%\u{0}]{0,200}") {
        let redactor = redactor(&["\u{1}never-there\u{1}"]);
        prop_assert_eq!(redactor.redact_text(text.clone()), text);
    }

    #[test]
    fn redaction_accepts_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let redactor = redactor(&["s3cr3t-t0ken", "üüüüüüüü"]);
        prop_assert_eq!(redactor.contains(&bytes), redactor.redact_bytes(bytes.clone()) != bytes);
    }
}

/// The result contains only text that was searched. In the result, numbers have only the spelling that was searched,
/// and objects have no duplicate keys, which the parser drops.
#[test]
fn json_with_duplicate_keys_or_unusual_numbers() {
    let told = |secret: &str, text: &str| {
        let text = JsonText::parse(text).unwrap();
        redactor(&[secret]).redact_json(text).as_str().to_owned()
    };
    for (secret, text) in [
        ("s3cr3t-t0ken", r#"{"a":"s3cr3t-t0ken","a":"x"}"#),
        ("s3cr3t-t0ken", r#"{"a":"s3cr3t-t0ken","a":"\n"}"#),
        ("s3cr3t-t0ken", r#"{"a":"s3cr3t-t0ken\n","a":1}"#),
        ("123456789012345678901234", r#"[123456789012345678901234]"#),
        ("123456789012345678901234", r#"["\n",123456789012345678901234]"#),
    ] {
        assert!(!told(secret, text).contains(secret), "{text}: {}", told(secret, text));
    }
    for text in ["[1.2345678e7]", "[12345678.0]", "[123456780E-1]"] {
        assert_eq!(told("12345678", text), "[\"[redacted]\"]", "{text}");
    }
    assert_eq!(told("s3cr3t-t0ken", r#"{ "a": [1.50, "x"] }"#), r#"{ "a": [1.50, "x"] }"#);
}

/// All texts of a value are searched at once. Each encoding must be found in each text, and text that spans two texts
/// must not match.
#[test]
fn each_text_of_a_json_value_is_searched() {
    let secret = "s3cret-token/0001";
    let redactor = redactor(&[secret]);
    let halves = json!({"s3cret-": "token/0001", "a": ["s3cret-token", "/0001", 0, 1]});
    assert_eq!(redactor.redact_json(JsonText::from(&halves)).value(), halves);
    for (name, written) in encodings(secret) {
        let Ok(text) = String::from_utf8(written) else { continue };
        for value in
            [json!({"a": ["", text]}), json!({text.clone(): {"b": null}}), json!([["ab", text, "cd"], "%", "\\"])]
        {
            let redacted = redactor.redact_json(JsonText::from(&value)).value();
            assert_ne!(redacted, value, "{name}");
            assert_eq!(redacted, redactor.redact_each(value, None), "{name}");
        }
    }
}
