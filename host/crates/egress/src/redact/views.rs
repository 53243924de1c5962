//! Decoded views of a text, in which a secret is plain however its characters were escaped.
//!
//! A view keeps no table of offsets: only where something was found in it is the text decoded a second time, to trace
//! the ranges back. So a view costs no more memory than the text, whatever a hostile upstream puts into it.

use std::ops::Range;

use super::escapes::{ESCAPE_BYTES_MAX, Escapes, MARKS, Unit, is_mark, may_go_on, position};

/// One way of looking at a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Escapes of some kinds undone in one go.
    Escapes(Escapes),
    /// The bytes at even offsets: ASCII in UTF-16, of either byte order.
    Even,
    /// The bytes at odd offsets: the same, where the text starts within a character.
    Odd,
    /// UTF-16 read as UTF-8.
    Wide { big_endian: bool, offset: usize },
}

/// What views of secrets are chosen by.
#[derive(Clone, Copy)]
pub(super) struct Nature {
    /// Whether all secrets are printable ASCII.
    pub(super) printable: bool,
    /// By mark: whether a secret holds it.
    pub(super) marks: [bool; MARKS.len()],
}

impl View {
    /// The views in which secrets of this nature show. Escapes are undone in one view, which shows a secret however they
    /// are mixed and nested. A kind with whose mark a secret could itself hold an escape has a view of its own, because
    /// that secret would not survive another kind being undone along with it.
    pub(super) fn of(nature: Nature) -> Vec<View> {
        let escapes = |marks: &[u8]| Escapes::of(marks, nature.printable).map(View::Escapes);
        let (alone, together): (Vec<_>, Vec<_>) = MARKS.into_iter().zip(nature.marks).partition(|(_, held)| *held);
        let together: Vec<u8> = together.into_iter().map(|(mark, _)| mark).collect();
        let mut views: Vec<View> = escapes(&together).into_iter().collect();
        views.extend(alone.into_iter().filter_map(|(mark, _)| escapes(&[mark])));
        if nature.printable {
            views.extend([View::Even, View::Odd]);
        } else {
            let orders = [false, true].into_iter().flat_map(|big_endian| [(big_endian, 0), (big_endian, 1)]);
            views.extend(orders.map(|(big_endian, offset)| View::Wide { big_endian, offset }));
        }
        views
    }

    /// The ways to read on from within an escape of this view, one of `views`, if `levels` of them may lie on top of each
    /// other.
    pub(super) fn readings(self, views: &[View], levels: usize) -> Vec<Reading> {
        let View::Escapes(outer) = self else { return Vec::new() };
        let inner = views.iter().filter_map(|view| match view {
            View::Escapes(inner) => Some(*inner),
            _ => None,
        });
        match levels {
            0 => Vec::new(),
            1 => vec![Reading { outer, inner: None }],
            // What has no marks reads the same after one view and after a second, so that the second finds both.
            _ if outer.are_all() => vec![Reading { outer, inner: Some(outer) }],
            _ => std::iter::once(None).chain(inner.map(Some)).map(|inner| Reading { outer, inner }).collect(),
        }
    }

    /// Whether this view shows anything only in a text that [`looks_like_utf16`].
    pub(super) fn is_of_utf16(self) -> bool {
        !matches!(self, View::Escapes(_))
    }

    /// The text in this view; None where that would show nothing new. `within` is told of every place that lies within
    /// an escape: there, too, a secret may start, if the escape is one only by accident. In a run of backslashes it is
    /// told only of places from which at most `backslashes_max` of them are left.
    pub(super) fn decode(self, text: &[u8], backslashes_max: usize, within: impl FnMut(usize)) -> Option<Vec<u8>> {
        match self {
            View::Even => Some(text.iter().copied().step_by(2).collect()),
            View::Odd => Some(text.iter().copied().skip(1).step_by(2).collect()),
            View::Wide { big_endian, offset } => Some(decode_utf16(text, big_endian, offset)),
            View::Escapes(escapes) => unescape(escapes, text, backslashes_max, within),
        }
    }

    /// Where in `text` the `ranges` of its view come from. They are sorted and do not overlap.
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

/// Where in `text`, of which the first `at` bytes are left out, the `ranges` of its decoded units come from.
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
            // It may start within this same unit.
            next = waiting.next();
            continue;
        }
        at += unit.length;
        decoded += length;
    }
    traced
}

/// A text as it reads after one view, or after two on top of each other.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    outer: Escapes,
    inner: Option<Escapes>,
}

impl Reading {
    /// The first bytes that `text` stands for; None where it ends before, or where `may_be` says of the first one or more
    /// of them that nothing starts like this.
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

    /// What `text` starts with: an escape, or a byte that stands for itself. None at the end.
    pub(super) fn unit(self, text: &[u8]) -> Option<Unit> {
        let outer = self.outer.unit(text)?;
        let Some(inner) = self.inner.filter(|_| outer.decoded().first().is_some_and(is_mark)) else {
            return Some(outer);
        };
        // The escape that the outer view may bring to light, and where in the text each of its bytes ends.
        let (mut escape, mut ends, mut filled, mut at) = ([0; ESCAPE_BYTES_MAX], [0; ESCAPE_BYTES_MAX], 0, 0);
        while filled < ESCAPE_BYTES_MAX
            && may_go_on(&escape[..filled])
            && let Some(unit) = self.outer.unit(&text[at..])
            && let [byte] = unit.decoded()
        {
            at += unit.length;
            (escape[filled], ends[filled]) = (*byte, at);
            filled += 1;
        }
        let unit = inner.unit(&escape[..filled])?;
        let length = ends[unit.length - 1];
        Some(unit.of_length(length))
    }
}

/// Whether there is ASCII in UTF-16 for at least half the length of the shortest secret; also in UTF-16 of UTF-16, which
/// is UTF-32.
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

/// The character with which `text` starts. Half of a surrogate pair is as good as any character that is in no secret.
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

    /// Every part of a run of backslashes starts with a backslash.
    #[test]
    fn a_run_of_backslashes_is_looked_at_once() {
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
