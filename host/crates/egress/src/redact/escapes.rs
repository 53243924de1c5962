//! Decodes escapes.
//!
//! Each kind of escape starts with a different byte, the mark: `\` in strings of JSON, JavaScript, Python and Rust, `%`
//! in URLs, and `&` in HTML. SECURITY.md lists the supported escapes.

use std::sync::LazyLock;

/// The bytes that start escapes.
pub(super) const MARKS: [u8; 3] = [b'\\', b'%', b'&'];

/// The length of the longest escape: the longest HTML name of a character, between `&` and `;`.
pub(super) const ESCAPE_BYTES_MAX: usize = NAME_BYTES_MAX + 2;

/// The length of the longest HTML name, `DiacriticalGrave`.
const NAME_BYTES_MAX: usize = 16;

/// The maximum number of digits between `&#` and `;` or in `\u{…}`. Unicode needs at most seven digits, but some
/// programs pad numbers with zeros.
const NUMBER_DIGITS_MAX: usize = 8;

/// A set of kinds of escapes that are decoded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Escapes {
    /// The marks of the kinds. If there are fewer than three kinds, the last mark is repeated.
    marks: [u8; 3],
    /// Whether a numeric HTML character reference without `;` ends at the last digit for which the value is still
    /// ASCII, so that `&#x2Fabc` is read as `/abc`. HTML parsers read all digits, but the resulting character cannot
    /// occur in a secret if all secrets are ASCII.
    pub(super) short_numbers: bool,
    /// Whether `\u0000` to `\u0003` is read as the start of an escape `\UNNNNNNNN` whose case was lost. Without it, they
    /// are control characters, as JSON writes the zeros of UTF-16. A text can be meant in both ways.
    lost_case: bool,
}

/// A unit of a text, which is an escape or a plain byte, with its decoded bytes.
pub(super) struct Unit {
    decoded: [u8; 4],
    decoded_length: usize,
    /// The length of the unit in the text, in bytes.
    pub(super) length: usize,
}

/// Returns whether `byte` is a mark.
pub(super) fn is_mark(byte: &u8) -> bool {
    matches!(byte, b'\\' | b'%' | b'&')
}

impl Escapes {
    /// Returns the kinds with these marks, or `None` if `marks` is empty.
    pub(super) fn of(marks: &[u8], short_numbers: bool) -> Option<Self> {
        let last = *marks.last()?;
        let mark = |at: usize| marks.get(at).copied().unwrap_or(last);
        Some(Escapes { marks: [mark(0), mark(1), mark(2)], short_numbers, lost_case: false })
    }

    /// Returns these kinds for text in which the case of `\U` was lost, such as the name of a header. Returns `None` if
    /// the kinds do not contain these escapes.
    pub(super) fn with_lost_case(self) -> Option<Self> {
        self.holds(b'\\').then_some(Escapes { lost_case: true, ..self })
    }

    /// Returns whether the text may contain escapes that only this set decodes in this way.
    pub(super) fn are_in(self, text: &[u8]) -> bool {
        if !self.lost_case {
            return self.position(text).is_some();
        }
        let mut at = 0;
        while let Some(distance) = position(&text[at..], [b'\\']) {
            at += distance + 1;
            if text[at..].starts_with(b"u000") {
                return true;
            }
        }
        false
    }

    /// Returns whether the set contains all kinds.
    pub(super) fn are_all(self) -> bool {
        MARKS.iter().all(|mark| self.marks.contains(mark))
    }

    /// Returns whether the set contains the kind with this mark.
    pub(super) fn holds(self, mark: u8) -> bool {
        self.marks.contains(&mark)
    }

    /// Returns the distance to the first mark. If the first bytes have no mark, the function searches whole chunks,
    /// which compiles to SIMD instructions.
    pub(super) fn position(self, text: &[u8]) -> Option<usize> {
        let [one, two, three] = self.marks;
        if two == three { position(text, [one, two]) } else { position(text, self.marks) }
    }

    /// Returns the escape at the start of `text`.
    pub(super) fn escape(self, text: &[u8]) -> Option<Unit> {
        let mark = text.first().filter(|byte| self.marks.contains(byte))?;
        match mark {
            b'%' => percent(text),
            b'&' => reference(text, self.short_numbers),
            _ => backslash(text, self.lost_case),
        }
    }

    /// Returns the unit at the start of `text`: an escape or a plain byte. Returns `None` at the end.
    pub(super) fn unit(self, text: &[u8]) -> Option<Unit> {
        self.escape(text).or_else(|| text.first().map(|byte| Unit::byte(*byte, 1)))
    }
}

impl Unit {
    fn byte(byte: u8, length: usize) -> Self {
        Unit { decoded: [byte, 0, 0, 0], decoded_length: 1, length }
    }

    pub(super) fn character(character: char, length: usize) -> Self {
        let mut decoded = [0; 4];
        let decoded_length = character.encode_utf8(&mut decoded).len();
        Unit { decoded, decoded_length, length }
    }

    /// Returns this unit with its length in the text replaced by `length`.
    pub(super) fn of_length(self, length: usize) -> Self {
        Unit { length, ..self }
    }

    pub(super) fn decoded(&self) -> &[u8] {
        &self.decoded[..self.decoded_length]
    }
}

/// Returns whether `text` may be a proper prefix of an escape. If the result is false, no further bytes can complete an
/// escape.
pub(super) fn may_go_on(text: &[u8]) -> bool {
    match text {
        [] | [_] => true,
        [b'%', digit] => hex(*digit).is_some(),
        [b'\\', b'x', rest @ ..] => rest.len() < 4 * 4 - 2,
        [b'\\', b'u' | b'U', rest @ ..] => rest.len() < NUMBER_DIGITS_MAX + 2,
        [b'&', rest @ ..] => {
            rest.len() < NAME_BYTES_MAX + 1
                && rest.last().is_some_and(|byte| *byte == b'#' || byte.is_ascii_alphanumeric())
        }
        _ => false,
    }
}

/// Returns the first position of one of the `wanted` bytes.
pub(super) fn position<const N: usize>(text: &[u8], wanted: [u8; N]) -> Option<usize> {
    const NEAR: usize = 4;
    const CHUNK: usize = 64;
    let (near, far) = text.split_at(text.len().min(NEAR));
    if let Some(distance) = near.iter().position(|byte| wanted.contains(byte)) {
        return Some(distance);
    }
    // The loop has no early exit, so that the compiler can vectorize it.
    let is_wanted = |byte: &u8| wanted.iter().fold(false, |found, wanted| found | (byte == wanted));
    let holds = |chunk: &[u8]| chunk.iter().fold(false, |found, byte| found | is_wanted(byte));
    let first = far.chunks(CHUNK).position(holds)? * CHUNK;
    far[first..].iter().position(is_wanted).map(|distance| NEAR + first + distance)
}

/// Decodes a percent escape: `%XX`.
fn percent(text: &[u8]) -> Option<Unit> {
    let [b'%', high, low, ..] = text else { return None };
    Some(Unit::byte(hex(*high)? << 4 | hex(*low)?, 3))
}

/// Decodes a backslash escape, as in strings of JSON, JavaScript, Python and Rust.
fn backslash(text: &[u8], lost_case: bool) -> Option<Unit> {
    let [b'\\', kind, rest @ ..] = text else { return None };
    let byte = match kind {
        b'"' | b'\\' | b'/' | b'\'' => *kind,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'f' => 12,
        b'r' => b'\r',
        b'x' => return escaped_byte(text),
        b'u' if rest.first() == Some(&b'{') => return braced(&rest[1..]),
        b'u' if lost_case => return code_point_in_lower_case(rest).or_else(|| code_units(rest)),
        b'u' => return code_units(rest),
        b'U' => return code_point(rest),
        _ => return None,
    };
    Some(Unit::byte(byte, 2))
}

/// Decodes an escape `\UNNNNNNNN` from the text after its `\U`.
fn code_point(text: &[u8]) -> Option<Unit> {
    let (character, digits) = number(text.get(..NUMBER_DIGITS_MAX)?, 16)?;
    (digits == NUMBER_DIGITS_MAX).then(|| Unit::character(character, 2 + digits))
}

/// Like [`code_point`], for text in which the case of `\U` was lost. If the text were read as a `\u` escape, its first
/// four digits would be a control character from U+0000 to U+0003, which does not occur in secrets.
fn code_point_in_lower_case(text: &[u8]) -> Option<Unit> {
    matches!(text, [b'0', b'0', b'0', b'0'..=b'3', ..]).then(|| code_point(text))?
}

/// Decodes an escape `\xNN`. The escape is a byte of a UTF-8 character if the next escapes complete the character, as
/// in Python's bytes. Otherwise, the escape is a Latin-1 character, as in strings.
fn escaped_byte(text: &[u8]) -> Option<Unit> {
    let (mut bytes, mut length) = ([0; 4], 0);
    for (escape, byte) in text.chunks_exact(4).zip(&mut bytes) {
        let [b'\\', b'x', high, low] = escape else { break };
        let (Some(high), Some(low)) = (hex(*high), hex(*low)) else { break };
        *byte = high << 4 | low;
        length += 1;
    }
    let first = bytes[..length].first()?;
    let wanted = usize::try_from(first.leading_ones()).unwrap_or_default().max(1);
    let character = bytes[..length].get(..wanted).and_then(|bytes| std::str::from_utf8(bytes).ok()?.chars().next());
    Some(match character {
        Some(character) => Unit::character(character, 4 * wanted),
        None => Unit::character(char::from(*first), 4),
    })
}

/// Decodes an escape `\u{…}` from the text after its `\u{`.
fn braced(text: &[u8]) -> Option<Unit> {
    let (character, digits) = number(text, 16)?;
    (text.get(digits) == Some(&b'}')).then(|| Unit::character(character, 3 + digits + 1))
}

/// Decodes an escape `\uNNNN`, or two such escapes that form a surrogate pair, from the text after the first `\u`.
fn code_units(digits: &[u8]) -> Option<Unit> {
    let first = code_unit(digits)?;
    if let Some(character) = char::from_u32(u32::from(first)) {
        return Some(Unit::character(character, 6));
    }
    let [b'\\', b'u', digits @ ..] = digits.get(4..)? else { return None };
    let pair = [first, code_unit(digits)?];
    Some(Unit::character(char::decode_utf16(pair).next()?.ok()?, 12))
}

fn code_unit(digits: &[u8]) -> Option<u16> {
    let digits = digits.get(..4)?;
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | u16::from(hex(*digit)?)))
}

/// Decodes a character reference of HTML, with or without `;` at its end.
fn reference(text: &[u8], short_numbers: bool) -> Option<Unit> {
    let (base, before) = match text {
        [b'&', b'#', b'x' | b'X', ..] => (16, 3),
        [b'&', b'#', ..] => (10, 2),
        [b'&', name @ ..] => {
            let (name, character) = named(name)?;
            let ends = text.get(1 + name.len()) == Some(&b';');
            return Some(Unit::character(*character, 1 + name.len() + usize::from(ends)));
        }
        _ => return None,
    };
    let digits = &text[before..];
    let greedy = number(digits, base);
    if let Some((character, length)) = greedy
        && (character.is_ascii() || !short_numbers || digits.get(length) == Some(&b';'))
    {
        return Some(Unit::character(character, before + length + usize::from(digits.get(length) == Some(&b';'))));
    }
    let (character, length) = short_numbers.then(|| ascii_number(digits, base)).flatten()?;
    Some(Unit::character(character, before + length))
}

/// Parses the number at the start of `text`. Returns the character with this code point, and the number of digits read.
fn number(text: &[u8], base: u32) -> Option<(char, usize)> {
    let digit = |byte: &u8| char::from(*byte).to_digit(base);
    let (mut value, mut length) = (0, 0);
    for digit in text.iter().take(NUMBER_DIGITS_MAX).map_while(digit) {
        // Eight hexadecimal digits fit into 32 bits.
        value = value * base + digit;
        length += 1;
    }
    let character = char::from_u32(value)?;
    (length > 0).then_some((character, length))
}

/// Like [`number`], but reads only as many digits as keep the value within ASCII.
fn ascii_number(text: &[u8], base: u32) -> Option<(char, usize)> {
    let longest = (1..=NUMBER_DIGITS_MAX.min(text.len())).rev();
    longest.filter_map(|length| number(&text[..length], base)).find(|(character, _)| character.is_ascii())
}

/// Returns the longest name at the start of `text`.
fn named(text: &[u8]) -> Option<&'static Name> {
    let [first, second, ..] = text else { return None };
    let names = NAMES.get(usize::from(*first))?;
    names.iter().find(|(name, _)| name[1] == *second && text.starts_with(name))
}

/// The HTML name of a character, and the character.
type Name = (&'static [u8], char);

/// The HTML names of characters, grouped by first letter, longest name first. All names have at least two letters.
static NAMES: LazyLock<Vec<Vec<Name>>> = LazyLock::new(|| {
    let mut names = vec![Vec::new(); 128];
    let latin_1 = LATIN_1_NAMES.split_whitespace().zip('\u{a0}'..);
    let ascii = ASCII_NAMES.iter().flat_map(|(names, character)| names.split(' ').map(|name| (name, *character)));
    for (name, character) in latin_1.chain(ascii) {
        names[usize::from(name.as_bytes()[0])].push((name.as_bytes(), character));
    }
    for names in &mut names {
        names.sort_by_key(|(name, _): &Name| std::cmp::Reverse(name.len()));
    }
    names
});

/// Returns the usual HTML name of a character, if it has a name.
pub(super) fn name_of(character: char) -> Option<&'static str> {
    if let Some((names, _)) = ASCII_NAMES.iter().find(|(_, known)| *known == character) {
        return names.split(' ').next();
    }
    let position = u32::from(character).checked_sub(0xa0)?;
    LATIN_1_NAMES.split_whitespace().nth(usize::try_from(position).ok()?)
}

/// The names of ASCII characters in HTML, with the most common name first.
const ASCII_NAMES: &[(&str, char)] = &[
    ("Tab", '\t'),
    ("NewLine", '\n'),
    ("excl", '!'),
    ("quot QUOT", '"'),
    ("num", '#'),
    ("dollar", '$'),
    ("percnt", '%'),
    ("amp AMP", '&'),
    ("apos", '\''),
    ("lpar", '('),
    ("rpar", ')'),
    ("ast midast", '*'),
    ("plus", '+'),
    ("comma", ','),
    ("period", '.'),
    ("sol", '/'),
    ("colon", ':'),
    ("semi", ';'),
    ("lt LT", '<'),
    ("equals", '='),
    ("gt GT", '>'),
    ("quest", '?'),
    ("commat", '@'),
    ("lbrack lsqb", '['),
    ("bsol", '\\'),
    ("rsqb rbrack", ']'),
    ("Hat", '^'),
    ("lowbar UnderBar", '_'),
    ("grave DiacriticalGrave", '`'),
    ("lcub lbrace", '{'),
    ("vert verbar VerticalLine", '|'),
    ("rcub rbrace", '}'),
    ("euro", '€'),
];

/// The names of the characters U+00A0 to U+00FF, in this order.
const LATIN_1_NAMES: &str = "
    nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr
    deg plusmn sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest
    Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml
    ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig
    agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml
    eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml";

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, short_numbers: bool) -> Option<(String, usize)> {
        let escapes = Escapes::of(&MARKS, short_numbers).unwrap();
        let unit = escapes.escape(text.as_bytes())?;
        Some((String::from_utf8_lossy(unit.decoded()).into_owned(), unit.length))
    }

    fn whole(text: &str) -> Option<String> {
        read(text, false).filter(|(_, length)| *length == text.len()).map(|(decoded, _)| decoded)
    }

    #[test]
    fn all_escapes_are_decoded() {
        for (escape, character) in [
            ("%2f", "/"),
            ("\\\"", "\""),
            ("\\'", "'"),
            ("\\/", "/"),
            ("\\n", "\n"),
            ("\\x2F", "/"),
            ("\\xe4", "ä"),
            ("\\xc3\\xa4", "ä"),
            ("\\xf0\\x9f\\x98\\x80", "😀"),
            ("\\u002f", "/"),
            ("\\ud83d\\ude00", "😀"),
            ("\\u{2f}", "/"),
            ("\\u{1F600}", "😀"),
            ("\\u{0000002f}", "/"),
            ("\\U0001f600", "😀"),
            ("&lt;", "<"),
            ("&lt", "<"),
            ("&apos", "'"),
            ("&DiacriticalGrave;", "`"),
            ("&auml;", "ä"),
            ("&AElig", "Æ"),
            ("&yuml;", "ÿ"),
            ("&nbsp;", "\u{a0}"),
            ("&#47;", "/"),
            ("&#47", "/"),
            ("&#00000047;", "/"),
            ("&#x2f;", "/"),
            ("&#X2F", "/"),
            ("&#128512;", "😀"),
        ] {
            assert_eq!(whole(escape).as_deref(), Some(character), "{escape}");
        }
    }

    #[test]
    fn an_escape_whose_case_was_lost_is_not_a_control_character() {
        let escapes = Escapes::of(&MARKS, false).unwrap();
        let lost = escapes.with_lost_case().unwrap();
        for (escape, character, control) in [("\\u0001f600", "😀", "\u{1}"), ("\\u00000021", "!", "\0")] {
            let read = |escapes: Escapes| {
                let unit = escapes.escape(escape.as_bytes()).unwrap();
                (String::from_utf8_lossy(unit.decoded()).into_owned(), unit.length)
            };
            assert_eq!(read(lost), (character.to_owned(), escape.len()));
            assert_eq!(read(escapes), (control.to_owned(), "\\u0000".len()));
            assert!(lost.are_in(escape.as_bytes()) && !lost.are_in(&escape.as_bytes()[1..]));
        }
        assert!(!lost.are_in(b"\\u002f") && escapes.are_in(b"\\u002f"));
        assert!(Escapes::of(b"%", false).unwrap().with_lost_case().is_none());
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in [
            "%",
            "%2",
            "%2g",
            "%u002f",
            "\\",
            "\\a",
            "\\x2",
            "\\xg0",
            "\\u002",
            "\\ud83d",
            "\\ud83d\\u0041",
            "\\u{}",
            "\\u{2f",
            "\\u{110000}",
            "\\U0001f60",
            "\\U00110000",
            "&",
            "&;",
            "&l",
            "&#",
            "&#;",
            "&#x;",
            "&#xg",
            "&#x110000;",
            "&nosuch;",
        ] {
            assert_eq!(read(text, false), None, "{text}");
        }
    }

    #[test]
    fn the_longest_name_is_decoded() {
        assert_eq!(read("&ampx;", false), Some(("&".to_owned(), 4)));
        assert_eq!(read("&notin;", false), Some(("¬".to_owned(), 4)));
        assert_eq!(read("&sup1;", false), Some(("¹".to_owned(), 6)));
        assert_eq!(read("&plusmn;", false), Some(("±".to_owned(), 8)));
    }

    #[test]
    fn a_number_without_semicolon_may_stay_within_ascii() {
        for (text, greedy, short) in [
            ("&#x2fabc", Some(("\u{2fabc}", 8)), ("/", 5)),
            ("&#x2fabcdef", None, ("/", 5)),
            ("&#x0000002fabc", Some(("/", 11)), ("/", 11)),
            ("&#x2fabc;", Some(("\u{2fabc}", 9)), ("\u{2fabc}", 9)),
            ("&#471", Some(("\u{1d7}", 5)), ("/", 4)),
            ("&#1151", Some(("\u{47f}", 6)), ("s", 5)),
        ] {
            let owned = |read: (&str, usize)| (read.0.to_owned(), read.1);
            assert_eq!(read(text, false), greedy.map(owned), "{text}");
            assert_eq!(read(text, true), Some(owned(short)), "{text}");
        }
    }

    /// Nested views depend on the correctness of `may_go_on`.
    #[test]
    fn each_prefix_of_an_escape_may_go_on() {
        for escape in [
            "%2f",
            "\\n",
            "\\x2f",
            "\\xf0\\x9f\\x98\\x80",
            "\\u002f",
            "\\ud83d\\ude00",
            "\\u{10ffff}",
            "\\U0001f600",
            "&#x0000002f;",
            "&lt;",
        ] {
            let bytes = escape.as_bytes();
            assert!((0..bytes.len()).all(|end| may_go_on(&bytes[..end])), "{escape}");
            assert!(bytes.len() <= ESCAPE_BYTES_MAX);
        }
        for (names, _) in ASCII_NAMES {
            assert!(names.split(' ').all(|name| name.len() <= NAME_BYTES_MAX));
        }
        assert_eq!(LATIN_1_NAMES.split_whitespace().count(), 96);
    }
}
