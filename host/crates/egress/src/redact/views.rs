//! Decoded views of a text, in which a secret is plain however its characters were escaped.
//!
//! A view keeps no table of offsets: only where something was found in it is the text decoded a second time, to trace
//! the ranges back. So a view costs no more memory than the text, whatever a hostile upstream puts into it.

use std::ops::Range;

/// One way of looking at a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// `\uXXXX` and the short escapes of a JSON string undone.
    Json,
    /// `%XX` undone.
    Percent,
    /// Both of these undone in one go.
    Escapes,
    /// The bytes at even offsets: ASCII in UTF-16, of either byte order.
    Even,
    /// The bytes at odd offsets: the same, where the text starts within a character.
    Odd,
}

/// The longest escape: a pair of surrogates.
const ESCAPE_MAX: usize = 12;

/// One place of a text, and the bytes that it stands for.
pub(super) struct Unit {
    decoded: [u8; 4],
    decoded_length: usize,
    /// Bytes that it takes in the text.
    pub(super) length: usize,
}

impl View {
    /// For secrets without `%` and `\`: undoing both escapes at once leaves them as they are, and shows them however
    /// the escapes are mixed and nested.
    pub(super) const TOGETHER: &[View] = &[View::Escapes, View::Even, View::Odd];

    /// For secrets that hold what looks like an escape, and would not survive the other kind being undone.
    pub(super) const ONE_BY_ONE: &[View] = &[View::Json, View::Percent, View::Even, View::Odd];

    /// The ways to read on from within an escape of this view, if `levels` views may lie on top of each other.
    pub(super) fn readings(self, levels: usize) -> &'static [Reading] {
        const fn once(outer: View) -> Reading {
            Reading { outer, inner: None }
        }
        const fn twice(outer: View, inner: View) -> Reading {
            Reading { outer, inner: Some(inner) }
        }
        // What has no marks reads the same after one view and after a second, so that the second finds both.
        match (self, levels) {
            (View::Even | View::Odd, _) | (_, 0) => &[],
            (View::Escapes, 1) => const { &[once(View::Escapes)] },
            (View::Json, 1) => const { &[once(View::Json)] },
            (View::Percent, 1) => const { &[once(View::Percent)] },
            (View::Escapes, _) => const { &[twice(View::Escapes, View::Escapes)] },
            (View::Json, _) => {
                const { &[once(View::Json), twice(View::Json, View::Json), twice(View::Json, View::Percent)] }
            }
            (View::Percent, _) => {
                const { &[once(View::Percent), twice(View::Percent, View::Json), twice(View::Percent, View::Percent)] }
            }
        }
    }

    /// The text in this view; None where that would show nothing new. `within` is told of every place that lies within
    /// an escape: there, too, a secret may start, if the escape is none but by accident.
    pub(super) fn decode(self, text: &[u8], within: impl FnMut(usize)) -> Option<Vec<u8>> {
        match self {
            View::Even => looks_like_utf16(text).then(|| text.iter().copied().step_by(2).collect()),
            View::Odd => looks_like_utf16(text).then(|| text.iter().copied().skip(1).step_by(2).collect()),
            View::Json => self.unescape(text, (b'\\', b'\\'), within),
            View::Percent => self.unescape(text, (b'%', b'%'), within),
            View::Escapes => self.unescape(text, (b'\\', b'%'), within),
        }
    }

    fn unescape(self, text: &[u8], marks: (u8, u8), mut within: impl FnMut(usize)) -> Option<Vec<u8>> {
        let mut decoded = Vec::new();
        let mut copied = 0;
        let mut at = 0;
        while let Some(distance) = position(&text[at..], marks) {
            at += distance;
            let Some(unit) = self.escape(&text[at..]) else {
                at += 1;
                continue;
            };
            if copied == 0 {
                decoded.reserve_exact(text.len());
            }
            (at + 1..at + unit.length).for_each(&mut within);
            decoded.extend_from_slice(&text[copied..at]);
            decoded.extend_from_slice(unit.decoded());
            at += unit.length;
            copied = at;
        }
        if copied == 0 {
            return None;
        }
        decoded.extend_from_slice(&text[copied..]);
        Some(decoded)
    }

    /// Where in `text` the `ranges` of its view come from. They are sorted and do not overlap.
    pub(super) fn trace_back(self, text: &[u8], ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        let offset = match self {
            View::Even => 0,
            View::Odd => 1,
            View::Json | View::Percent | View::Escapes => return self.trace_back_escapes(text, ranges),
        };
        let place = |decoded: usize| 2 * decoded + offset;
        ranges.iter().map(|range| place(range.start)..place(range.end - 1) + 1).collect()
    }

    fn trace_back_escapes(self, text: &[u8], ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut traced = Vec::with_capacity(ranges.len());
        let (mut at, mut decoded, mut start) = (0, 0, None);
        let mut waiting = ranges.iter();
        let mut next = waiting.next();
        while let Some(range) = next
            && let Some(unit) = self.unit(&text[at..])
        {
            if start.is_none() && range.start < decoded + unit.decoded_length {
                start = Some(at);
            }
            if range.end <= decoded + unit.decoded_length {
                traced.extend(start.take().map(|start| start..at + unit.length));
                // It may start within this same unit.
                next = waiting.next();
                continue;
            }
            at += unit.length;
            decoded += unit.decoded_length;
        }
        traced
    }

    /// What `text` starts with: an escape, or a byte that stands for itself. None at the end.
    pub(super) fn unit(self, text: &[u8]) -> Option<Unit> {
        self.escape(text).or_else(|| text.first().map(|byte| Unit::byte(*byte, 1)))
    }

    /// The escape with which `text` starts.
    fn escape(self, text: &[u8]) -> Option<Unit> {
        match (self, text) {
            (View::Percent | View::Escapes, [b'%', high, low, ..]) => {
                Some(Unit::byte(hex(*high)? << 4 | hex(*low)?, 3))
            }
            (View::Json | View::Escapes, [b'\\', ..]) => json_escape(text),
            _ => None,
        }
    }
}

/// A text as it reads after one view, or after two on top of each other.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) outer: View,
    pub(super) inner: Option<View>,
}

impl Reading {
    /// The first bytes that `text` stands for; None where it ends before.
    pub(super) fn first<const N: usize>(self, text: &[u8]) -> Option<[u8; N]> {
        if let Some(first) = text.first_chunk()
            && !first.iter().any(is_mark)
        {
            return Some(*first);
        }
        let (mut first, mut filled, mut at) = ([0; N], 0, 0);
        while filled < N {
            let unit = self.unit(&text[at..])?;
            for byte in unit.decoded().iter().take(N - filled) {
                first[filled] = *byte;
                filled += 1;
            }
            at += unit.length;
        }
        Some(first)
    }

    /// What `text` starts with, as [`View::unit`].
    pub(super) fn unit(self, text: &[u8]) -> Option<Unit> {
        let outer = self.outer.unit(text)?;
        let Some(inner) = self.inner.filter(|_| outer.decoded().first().is_some_and(is_mark)) else {
            return Some(outer);
        };
        // The escape that the outer view may bring to light, and where in the text each of its bytes ends.
        let (mut escape, mut ends, mut filled, mut at) = ([0; ESCAPE_MAX], [0; ESCAPE_MAX], 0, 0);
        while filled < ESCAPE_MAX
            && let Some(unit) = self.outer.unit(&text[at..])
            && let [byte] = unit.decoded()
        {
            at += unit.length;
            (escape[filled], ends[filled]) = (*byte, at);
            filled += 1;
        }
        let unit = inner.unit(&escape[..filled])?;
        Some(Unit { length: ends[unit.length - 1], ..unit })
    }
}

/// Whether an escape starts with `byte`.
pub(super) fn is_mark(byte: &u8) -> bool {
    matches!(byte, b'\\' | b'%')
}

impl Unit {
    fn byte(byte: u8, length: usize) -> Self {
        Unit { decoded: [byte, 0, 0, 0], decoded_length: 1, length }
    }

    pub(super) fn decoded(&self) -> &[u8] {
        &self.decoded[..self.decoded_length]
    }
}

/// The first place of one of two bytes. Where none is near, whole chunks are looked at, which a processor does in a
/// few steps.
fn position(text: &[u8], (one, other): (u8, u8)) -> Option<usize> {
    const NEAR: usize = 4;
    const CHUNK: usize = 64;
    let is_mark = |byte: &u8| *byte == one || *byte == other;
    let (near, far) = text.split_at(text.len().min(NEAR));
    if let Some(distance) = near.iter().position(is_mark) {
        return Some(distance);
    }
    let holds = |chunk: &[u8]| chunk.iter().fold(false, |found, byte| found | (*byte == one) | (*byte == other));
    let first = far.chunks(CHUNK).position(holds)? * CHUNK;
    far[first..].iter().position(is_mark).map(|distance| NEAR + first + distance)
}

/// Whether there is ASCII in UTF-16 for at least half the length of the shortest secret; also in UTF-16 of UTF-16, which
/// is UTF-32.
fn looks_like_utf16(text: &[u8]) -> bool {
    let mut at = 0;
    while let Some(distance) = position(&text[at..], (0, 0)) {
        at += distance + 1;
        let is_text = match text[at..] {
            [a, 0, b, 0, c, 0, ..] if a != 0 => b != 0 && c != 0,
            [0, 0, a, 0, 0, 0, b, 0, 0, 0, c, ..] => a != 0 && b != 0 && c != 0,
            _ => false,
        };
        if is_text {
            return true;
        }
    }
    false
}

fn json_escape(text: &[u8]) -> Option<Unit> {
    let [b'\\', kind, rest @ ..] = text else { return None };
    let byte = match kind {
        b'"' | b'\\' | b'/' => *kind,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'f' => 12,
        b'r' => b'\r',
        b'u' => return json_character(rest),
        _ => return None,
    };
    Some(Unit::byte(byte, 2))
}

/// The character whose `\u` has been read; two escapes where it is a surrogate pair.
fn json_character(digits: &[u8]) -> Option<Unit> {
    let first = code_unit(digits)?;
    let (character, length) = match char::from_u32(u32::from(first)) {
        Some(character) => (character, 6),
        None => {
            let [b'\\', b'u', digits @ ..] = digits.get(4..)? else { return None };
            let pair = [first, code_unit(digits)?];
            (char::decode_utf16(pair).next()?.ok()?, 12)
        }
    };
    let mut decoded = [0; 4];
    let decoded_length = character.encode_utf8(&mut decoded).len();
    Some(Unit { decoded, decoded_length, length })
}

fn code_unit(digits: &[u8]) -> Option<u16> {
    let digits = digits.get(..4)?;
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | u16::from(hex(*digit)?)))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
