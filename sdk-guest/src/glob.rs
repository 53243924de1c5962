//! Shell-style globs, as used by the host: `*`, `?`, `[seq]` and `[!seq]`. A glob matches the whole text,
//! case-sensitively.

/// Returns whether the whole of `text` matches `pattern`, by the rules of Python's `fnmatchcase`: `*` matches any text,
/// including `/` and the empty text; `?` matches one character; `[seq]` matches one of the listed characters or ranges;
/// `[!seq]` matches any other character. An unclosed `[` is a literal.
///
/// ```
/// use monstrum_sdk::glob;
///
/// assert!(glob::matches("issue.*", "issue.label.write"));
/// assert!(glob::matches("v[0-9]?", "v12"));
/// assert!(!glob::matches("acme/*", "other/site"));
/// ```
#[must_use]
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern = parse(pattern);
    let text: Vec<char> = text.chars().collect();
    // The position from which to retry if the text after the last `*` does not match. Earlier stars need no retry.
    let mut resume: Option<(usize, usize)> = None;
    let (mut at_piece, mut at_char) = (0, 0);
    while at_char < text.len() {
        match pattern.get(at_piece) {
            Some(Piece::Any) => {
                at_piece += 1;
                resume = Some((at_piece, at_char));
            }
            Some(piece) if piece.accepts(text[at_char]) => {
                at_piece += 1;
                at_char += 1;
            }
            _ => match resume {
                Some((piece, start)) => {
                    resume = Some((piece, start + 1));
                    (at_piece, at_char) = (piece, start + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at_piece..].iter().all(|piece| matches!(piece, Piece::Any))
}

enum Piece {
    Any,
    One,
    Char(char),
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl Piece {
    fn accepts(&self, character: char) -> bool {
        match self {
            Piece::Any => false,
            Piece::One => true,
            Piece::Char(own) => *own == character,
            Piece::Set { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&character)) != *negated
            }
        }
    }
}

fn parse(pattern: &str) -> Vec<Piece> {
    let chars: Vec<char> = pattern.chars().collect();
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(character) = chars.get(at) {
        at += 1;
        pieces.push(match character {
            '*' => Piece::Any,
            '?' => Piece::One,
            '[' => match set(&chars[at..]) {
                Some((piece, length)) => {
                    at += length;
                    piece
                }
                None => Piece::Char('['),
            },
            other => Piece::Char(*other),
        });
    }
    pieces
}

/// Parses the set after a `[` and returns it with its length, including the `]`. A `]` at the start of the set and a
/// `-` at its start or end are members of the set.
///
/// Python drops reversed ranges before it checks whether the set starts with `!`, so `[z-a!b]` means `[!b]`. If the
/// dropped range leaves `!-b` at the start, the set matches all characters except `-` and `b`.
fn set(chars: &[char]) -> Option<(Piece, usize)> {
    let start = usize::from(chars.first() == Some(&'!'));
    let end = start + 1 + chars.get(start + 1..)?.iter().position(|character| *character == ']')?;
    let mut ranges = ranges(&chars[..end]);
    let negated = match ranges.first() {
        Some(('!', '!')) => {
            ranges.remove(0);
            true
        }
        Some(('!', last)) => {
            let last = *last;
            ranges.splice(..1, [('-', '-'), (last, last)]);
            true
        }
        _ => false,
    };
    Some((Piece::Set { negated, ranges }, end + 1))
}

/// Splits a set into ranges. A hyphen at the start, at the end, or directly after a range is a literal. Reversed ranges
/// are dropped.
fn ranges(body: &[char]) -> Vec<(char, char)> {
    let one = |character: &char| (*character, *character);
    let mut ranges = Vec::new();
    let mut literals_from = 0;
    let mut search_from = if body.first() == Some(&'!') { 2 } else { 1 };
    while let Some(offset) = body.get(search_from..).and_then(|rest| rest.iter().position(|next| *next == '-')) {
        let hyphen = search_from + offset;
        let Some(last) = body.get(hyphen + 1) else { break };
        ranges.extend(body[literals_from..hyphen - 1].iter().map(one));
        if body[hyphen - 1] <= *last {
            ranges.push((body[hyphen - 1], *last));
        }
        literals_from = hyphen + 2;
        search_from = hyphen + 3;
    }
    ranges.extend(body[literals_from..].iter().map(one));
    ranges
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn globs_are_those_of_fnmatch() {
        let cases = [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("issue.*", "issue.", true),
            ("issue.*", "issue", false),
            ("*/site", "a/b/site", true),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbXb", false),
            ("?", "", false),
            ("?", "é", true),
            ("[ab]c", "bc", true),
            ("[!ab]c", "bc", false),
            ("[!ab]c", "xc", true),
            ("[a-c]", "b", true),
            ("[c-a]", "b", false),
            ("[!c-a]", "b", true),
            ("[z-a!b]", "b", false),
            ("[z-a!-b]", "c", true),
            ("[]]", "]", true),
            ("[!]]", "]", false),
            ("[", "[", true),
            ("[a", "[a", true),
            ("[]", "[]", true),
            ("[!]", "[!]", true),
            ("[a-]", "-", true),
            ("[-a]", "-", true),
            ("A", "a", false),
            ("a.c", "abc", false),
            ("a\nb*", "a\nbc", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern, text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn many_stars_take_little_time() {
        assert!(!matches(&format!("{}b", "a*".repeat(60)), &"a".repeat(20_000)));
    }
}
