//! Decoded views of a text. An encoded secret is plain text in one of these views.
//!
//! A view does not store offsets. If a view has matches, the text is decoded a second time to trace their ranges back.
//! A view therefore never needs more memory than the text, even for hostile input.

use std::ops::Range;

use super::escapes::{ESCAPE_BYTES_MAX, Escapes, MARKS, Unit, is_mark, may_go_on, position};

/// One decoding of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Escapes of some kinds, decoded in one pass.
    Escapes(Escapes),
    /// The bytes at even offsets: ASCII in UTF-16, of either byte order.
    Even,
    /// The bytes at odd offsets: ASCII in UTF-16, if the text starts inside a character.
    Odd,
    /// UTF-16 converted to UTF-8.
    Wide { big_endian: bool, offset: usize },
}

/// The properties of the secrets that determine the views.
#[derive(Clone, Copy)]
pub(super) struct Nature {
    /// Whether all secrets are printable ASCII.
    pub(super) printable: bool,
    /// For each mark, whether a secret contains the mark.
    pub(super) marks: [bool; MARKS.len()],
}

impl View {
    /// Returns the views for secrets of this nature. One view decodes all kinds of escapes, so that mixed and nested
    /// escapes are found. Kinds whose mark occurs in a secret have separate views, because the secret may look like an
    /// escape, and decoding it along with other kinds would change the secret.
    pub(super) fn of(nature: Nature) -> Vec<View> {
        let escapes = |marks: &[u8]| Escapes::of(marks, nature.printable).map(View::Escapes);
        let (alone, together): (Vec<_>, Vec<_>) = MARKS.into_iter().zip(nature.marks).partition(|(_, held)| *held);
        let together: Vec<u8> = together.into_iter().map(|(mark, _)| mark).collect();
        let mut views: Vec<View> = escapes(&together).into_iter().collect();
        views.extend(alone.into_iter().filter_map(|(mark, _)| escapes(&[mark])));
        let with_lost_case = |view: &View| match view {
            View::Escapes(escapes) => escapes.with_lost_case().map(View::Escapes),
            _ => None,
        };
        views.extend(views.iter().filter_map(with_lost_case).collect::<Vec<_>>());
        if nature.printable {
            views.extend([View::Even, View::Odd]);
        } else {
            let orders = [false, true].into_iter().flat_map(|big_endian| [(big_endian, 0), (big_endian, 1)]);
            views.extend(orders.map(|(big_endian, offset)| View::Wide { big_endian, offset }));
        }
        views
    }

    /// Returns the readings, with up to `levels` nested views, for a secret that starts inside an escape of this view.
    /// `views` contains all views, including this one.
    pub(super) fn readings(self, views: &[View], levels: usize) -> Vec<Reading> {
        let View::Escapes(outer) = self else { return Vec::new() };
        let inner = views.iter().filter_map(|view| match view {
            View::Escapes(inner) => Some(*inner),
            _ => None,
        });
        match levels {
            0 => Vec::new(),
            1 => vec![Reading { outer, inner: None }],
            // The second view does not change text without marks, so the reading with two views also finds the matches
            // of the reading with one view.
            _ if outer.are_all() => vec![Reading { outer, inner: Some(outer) }],
            _ => std::iter::once(None).chain(inner.map(Some)).map(|inner| Reading { outer, inner }).collect(),
        }
    }

    /// Returns whether this view is useful only for text that [`looks_like_utf16`].
    pub(super) fn is_of_utf16(self) -> bool {
        !matches!(self, View::Escapes(_))
    }

    /// Decodes the text. Returns `None` if decoding does not change the text. Calls `within` for each position inside
    /// an escape, because the escape may be accidental and a secret may start there. In a run of backslashes, calls
    /// `within` only for positions with at most `backslashes_max` remaining backslashes.
    pub(super) fn decode(self, text: &[u8], backslashes_max: usize, within: impl FnMut(usize)) -> Option<Vec<u8>> {
        match self {
            View::Even => Some(text.iter().copied().step_by(2).collect()),
            View::Odd => Some(text.iter().copied().skip(1).step_by(2).collect()),
            View::Wide { big_endian, offset } => Some(decode_utf16(text, big_endian, offset)),
            View::Escapes(escapes) if escapes.are_in(text) => unescape(escapes, text, backslashes_max, within),
            View::Escapes(_) => None,
        }
    }

    /// Returns the ranges of `text` that correspond to `ranges` of its view. The `ranges` must be sorted and must not
    /// overlap.
    pub(super) fn trace_back(self, text: &[u8], ranges: &[Range<usize>]) -> Vec<Range<usize>> {
        let offset = match self {
            View::Even => 0,
            View::Odd => 1,
            View::Wide { big_endian, offset } => {
                return trace_units(text, offset, ranges, |text| utf16_unit(text, big_endian));
            }
            View::Escapes(escapes) => return trace_units(text, 0, ranges, |text| escapes.unit(text)),
        };
        let place = |decoded: usize| 2 * decoded + offset;
        ranges.iter().map(|range| place(range.start)..place(range.end - 1) + 1).collect()
    }
}

fn unescape(escapes: Escapes, text: &[u8], backslashes_max: usize, mut within: impl FnMut(usize)) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(distance) = escapes.position(&text[at..]) {
        at += distance;
        let Some(unit) = escapes.escape(&text[at..]) else {
            at += 1;
            continue;
        };
        if copied == 0 {
            decoded.reserve_exact(text.len());
        }
        decoded.extend_from_slice(&text[copied..at]);
        if text[at..].starts_with(b"\\\\") {
            let run = text[at..].iter().position(|byte| *byte != b'\\').unwrap_or(text.len() - at);
            let skipped = run.saturating_sub(backslashes_max) / 2 * 2;
            (at + skipped + 1..at + run).step_by(2).for_each(&mut within);
            decoded.resize(decoded.len() + run / 2, b'\\');
            at += run / 2 * 2;
        } else {
            (at + 1..at + unit.length).for_each(&mut within);
            decoded.extend_from_slice(unit.decoded());
            at += unit.length;
        }
        copied = at;
    }
    if copied == 0 {
        return None;
    }
    decoded.extend_from_slice(&text[copied..]);
    Some(decoded)
}

/// Returns the ranges of `text` that correspond to `ranges` of its decoded units. Skips the first `at` bytes of the
/// text.
fn trace_units(
    text: &[u8],
    mut at: usize,
    ranges: &[Range<usize>],
    unit_of: impl Fn(&[u8]) -> Option<Unit>,
) -> Vec<Range<usize>> {
    let mut traced = Vec::with_capacity(ranges.len());
    let (mut decoded, mut start) = (0, None);
    let mut waiting = ranges.iter();
    let mut next = waiting.next();
    while let Some(range) = next
        && let Some(unit) = unit_of(&text[at..])
    {
        let length = unit.decoded().len();
        if start.is_none() && range.start < decoded + length {
            start = Some(at);
        }
        if range.end <= decoded + length {
            traced.extend(start.take().map(|start| start..at + unit.length));
            // The next range may start in the same unit.
            next = waiting.next();
            continue;
        }
        at += unit.length;
        decoded += length;
    }
    traced
}

/// A decoding of a text through one view, or through two nested views.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    outer: Escapes,
    inner: Option<Escapes>,
}

impl Reading {
    /// Returns the first decoded bytes of `text`. Returns `None` if the text is too short, or if `may_be` returns false
    /// for the decoded bytes or the start of them.
    pub(super) fn first<const N: usize>(self, text: &[u8], may_be: impl Fn(&[u8]) -> bool) -> Option<[u8; N]> {
        let (mut first, mut filled, mut at) = ([0; N], 0, 0);
        while filled < N {
            let unit = self.unit(&text[at..])?;
            for byte in unit.decoded().iter().take(N - filled) {
                first[filled] = *byte;
                filled += 1;
                if !may_be(&first[..filled]) {
                    return None;
                }
            }
            at += unit.length;
        }
        Some(first)
    }

    /// Returns the unit at the start of `text`: an escape or a plain byte. Returns `None` at the end.
    pub(super) fn unit(self, text: &[u8]) -> Option<Unit> {
        let outer = self.outer.unit(text)?;
        let Some(inner) = self.inner.filter(|_| outer.decoded().first().is_some_and(is_mark)) else {
            return Some(outer);
        };
        let Produced { escape, ends, filled, .. } = self.produced(text, |_| false);
        let unit = inner.unit(&escape[..filled])?;
        let length = ends[unit.length - 1];
        Some(unit.of_length(length))
    }

    /// Returns whether more text may change the unit at the start of `text`.
    pub(super) fn is_open(self, text: &[u8]) -> bool {
        if self.outer.is_open(text) {
            return true;
        }
        let is_mark = |unit: Unit| unit.decoded().first().is_some_and(is_mark);
        let Some(inner) = self.inner.filter(|_| self.outer.unit(text).is_some_and(is_mark)) else { return false };
        let is_open = |text: &[u8]| text.is_empty() || self.outer.is_open(text);
        let Produced { escape, filled, read, .. } = self.produced(text, is_open);
        is_open(&text[read..]) && inner.is_open(&escape[..filled])
    }

    /// Returns the escape at the start of the text that the outer view produces from `text`, up to where `is_end` returns
    /// true for the rest.
    fn produced(self, text: &[u8], is_end: impl Fn(&[u8]) -> bool) -> Produced {
        let (mut escape, mut ends, mut filled, mut read) = ([0; ESCAPE_BYTES_MAX], [0; ESCAPE_BYTES_MAX], 0, 0);
        while filled < ESCAPE_BYTES_MAX
            && may_go_on(&escape[..filled])
            && !is_end(&text[read..])
            && let Some(unit) = self.outer.unit(&text[read..])
            && let [byte] = unit.decoded()
        {
            read += unit.length;
            (escape[filled], ends[filled]) = (*byte, read);
            filled += 1;
        }
        Produced { escape, ends, filled, read }
    }
}

/// An escape that the outer view of a [`Reading`] may produce.
struct Produced {
    escape: [u8; ESCAPE_BYTES_MAX],
    /// For each byte of the escape, the end of its source in the text.
    ends: [usize; ESCAPE_BYTES_MAX],
    /// The length of the escape.
    filled: usize,
    /// The number of bytes of the text that were read.
    read: usize,
}

/// Returns whether the text contains ASCII in UTF-16 that is at least half as long as the shortest secret. Also detects
/// UTF-16 of UTF-16, which is UTF-32.
pub(super) fn looks_like_utf16(text: &[u8]) -> bool {
    let mut at = 0;
    while let Some(distance) = position(&text[at..], [0]) {
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

fn decode_utf16(text: &[u8], big_endian: bool, offset: usize) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len() / 2);
    let mut at = offset;
    while let Some(unit) = text.get(at..).and_then(|text| utf16_unit(text, big_endian)) {
        decoded.extend_from_slice(unit.decoded());
        at += unit.length;
    }
    decoded
}

/// Decodes the first character of `text`. An unpaired surrogate becomes a character that does not occur in secrets.
fn utf16_unit(text: &[u8], big_endian: bool) -> Option<Unit> {
    let unit = |bytes: &[u8; 2]| if big_endian { u16::from_be_bytes(*bytes) } else { u16::from_le_bytes(*bytes) };
    let first = unit(text.first_chunk()?);
    if let Some(character) = char::from_u32(u32::from(first)) {
        return Some(Unit::character(character, 2));
    }
    let second = text[2..].first_chunk().map(unit);
    let pair = std::iter::once(first).chain(second);
    match char::decode_utf16(pair).next() {
        Some(Ok(character)) => Some(Unit::character(character, 4)),
        _ => Some(Unit::character(char::REPLACEMENT_CHARACTER, 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_backslashes_is_examined_once() {
        let view = View::of(Nature { printable: true, marks: [false; MARKS.len()] })[0];
        for length in [2, 3, 5, 6, 1000, 1001, 1 << 20] {
            let text = [b"a".as_slice(), &vec![b'\\'; length], b"z"].concat();
            let mut places = Vec::new();
            let decoded = view.decode(&text, 3, |place| places.push(place)).unwrap();
            assert_eq!(decoded.len(), 2 + length.div_ceil(2), "{length}");
            assert!(places.len() <= 2, "{length}: {places:?}");
            assert!(places.iter().all(|place| (1..=3).contains(&(length + 1 - place))), "{length}: {places:?}");
        }
    }
}
