//! The nesting depth of JSON text, computed before parsing.

/// Returns the maximum nesting depth of arrays and objects in `text`: 0 for a scalar, 1 for `[]`.
///
/// The function makes one pass, without recursion or allocation. If the text is not valid JSON, the result is an upper
/// bound of the depth that a parser could reach.
#[must_use]
pub fn json_depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => {
                            bytes.next();
                        }
                        _ => {}
                    }
                }
            }
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_count() {
        for (text, depth) in [
            ("", 0),
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[{"b":1}],"c":[]}"#, 3),
            (r#""[[[[""#, 0),
            (r#"["\"[[", "\\", []]"#, 2),
            ("]]]][", 1),
            (r#"["unclosed [[["#, 1),
        ] {
            assert_eq!(json_depth(text.as_bytes()), depth, "{text}");
        }
        assert_eq!(json_depth("[".repeat(1_000_000).as_bytes()), 1_000_000);
    }
}
