//! Decodes runs of base64 and hex digits in a text.
//!
//! The decoded data may contain further encodings of a secret, whose patterns do not occur in the text. The start of an
//! encoding in a run is unknown, so the run is decoded at each alignment. Runs continue after line breaks, because MIME
//! and PEM wrap lines.

use std::ops::Range;

use zeroize::Zeroizing;

use super::{SECRET_BYTES_MIN, merge};

/// An encoding in digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Digits {
    /// Base64 in both alphabets of RFC 4648, which may be mixed. Padding ends a run.
    Base64,
    /// Hexadecimal digits in upper and lower case, which may be mixed.
    Hex,
}

/// The table entry of bytes that are not digits.
const NO_DIGIT: u8 = 0xff;

/// The table entry of line breaks.
const BREAK: u8 = 0xfe;

/// The number of zero digits that are added on each side of a base64 run, so that the first and last digits of the run
/// are decoded at each alignment.
const MARGIN: usize = 3;

impl Digits {
    pub(super) const ALL: [Digits; 2] = [Digits::Base64, Digits::Hex];

    /// Returns the ranges of `text` whose decoded bytes `search` finds. If all secrets are `printable`, decoded bytes
    /// that are not printable are skipped. The ranges that `search` returns must be sorted and must not overlap.
    pub(super) fn find(
        self,
        text: &[u8],
        printable: bool,
        mut search: impl FnMut(&[u8]) -> Vec<Range<usize>>,
    ) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut values = Zeroizing::new(Vec::new());
        let mut decoded = Zeroizing::new(Vec::new());
        let mut at = 0;
        while let Some(run) = self.next_run(text, at) {
            at = run.end;
            let run = &text[run];
            let mut within = Vec::new();
            self.read_values(run, &mut values);
            if values.len() - 2 * MARGIN < self.run_min() {
                // The run consists mostly of line breaks.
                continue;
            }
            let mut take = |digits: Range<usize>, decoded: &[u8]| {
                if !printable || holds_printable(decoded) {
                    within.extend(search(decoded).into_iter().map(|bytes| self.digits_of(&bytes, digits.start)));
                }
            };
            match self {
                Digits::Base64 => each_base64(&values, printable, &mut decoded, &mut take),
                Digits::Hex => each_hex(&values, &mut decoded, &mut take),
            }
            if !within.is_empty() {
                self.place(run, at - run.len(), within, &mut found);
            }
        }
        found
    }

    /// Returns the first position from which the end of `text` may be the digits of an encoding of a secret that is
    /// not complete. `open_end` returns the same for the decoded bytes.
    pub(super) fn open_end(self, text: &[u8], mut open_end: impl FnMut(&[u8]) -> usize) -> usize {
        let table = self.table();
        let start = text.iter().rposition(|byte| table[usize::from(*byte)] == NO_DIGIT).map_or(0, |other| other + 1);
        let value = |at: usize| table[usize::from(text[at])];
        let places: Vec<usize> = (start..text.len()).filter(|at| value(*at) != BREAK).collect();
        // A byte that starts in the last digit of base64 is not complete.
        let Some(mut open) = places.last().copied() else { return text.len() };
        let mut decoded = Zeroizing::new(Vec::new());
        let digits: Zeroizing<Vec<u8>> = Zeroizing::new(places.iter().map(|at| value(*at)).collect());
        let alignments = match self {
            Digits::Base64 => 0..4,
            Digits::Hex => 0..2,
        };
        for margin in alignments {
            self.read_bytes(&digits, margin, &mut decoded);
            let inner = open_end(&decoded);
            if inner < decoded.len() {
                let digit = self.digits_of(&(inner..inner + 1), 0).start;
                open = open.min(places[digit.saturating_sub(margin)]);
            }
        }
        open
    }

    /// Decodes the complete bytes of `margin` zero digits and `digits`.
    fn read_bytes(self, digits: &[u8], margin: usize, decoded: &mut Vec<u8>) {
        decoded.clear();
        let bits_each = match self {
            Digits::Base64 => 6,
            Digits::Hex => 4,
        };
        let (mut held, mut bits) = (0_u32, 0);
        for digit in std::iter::repeat_n(&0, margin).chain(digits) {
            held = held << bits_each | u32::from(*digit);
            bits += bits_each;
            if bits >= 8 {
                bits -= 8;
                let [byte, ..] = (held >> bits).to_le_bytes();
                decoded.push(byte);
                held &= (1 << bits) - 1;
            }
        }
    }

    fn table(self) -> &'static [u8; 256] {
        const BASE64: [u8; 256] = base64_values();
        const HEX: [u8; 256] = hex_values();
        match self {
            Digits::Base64 => &BASE64,
            Digits::Hex => &HEX,
        }
    }

    /// Returns the minimum number of digits of an encoded secret.
    fn run_min(self) -> usize {
        match self {
            Digits::Base64 => (SECRET_BYTES_MIN * 8).div_ceil(6),
            Digits::Hex => SECRET_BYTES_MIN * 2,
        }
    }

    /// Returns the next run at or after `from`. The function examines candidates from their ends, so that it skips most
    /// of a text without runs.
    fn next_run(self, text: &[u8], from: usize) -> Option<Range<usize>> {
        let (table, length) = (self.table(), self.run_min());
        let is_within = |byte: &u8| table[usize::from(*byte)] != NO_DIGIT;
        let mut start = from;
        loop {
            let candidate = text.get(start..start + length)?;
            match candidate.iter().rposition(|byte| !is_within(byte)) {
                Some(other) => start += other + 1,
                None => {
                    let rest = &text[start + length..];
                    let more = rest.iter().position(|byte| !is_within(byte)).unwrap_or(rest.len());
                    return Some(start..start + length + more);
                }
            }
        }
    }

    fn read_values(self, run: &[u8], values: &mut Vec<u8>) {
        let table = self.table();
        let margin = [0; MARGIN];
        values.clear();
        values.extend_from_slice(&margin);
        values.extend(run.iter().map(|byte| table[usize::from(*byte)]).filter(|value| *value != BREAK));
        values.extend_from_slice(&margin);
    }

    /// Returns the range of digits, including the margin, for a range of bytes that were decoded from the digit
    /// `start`.
    fn digits_of(self, bytes: &Range<usize>, start: usize) -> Range<usize> {
        let last = bytes.end - 1;
        match self {
            Digits::Base64 => start + bytes.start / 3 * 4 + bytes.start % 3..start + last / 3 * 4 + last % 3 + 2,
            Digits::Hex => start + bytes.start * 2..start + bytes.end * 2,
        }
    }

    /// Converts ranges of digits, including the margin, to ranges of the text that contains `run` at `offset`.
    fn place(self, run: &[u8], offset: usize, digits: Vec<Range<usize>>, found: &mut Vec<Range<usize>>) {
        let table = self.table();
        let mut ranges = merge(digits).into_iter();
        let mut next = ranges.next();
        let (mut number, mut begun) = (MARGIN, None);
        for (at, _) in run.iter().enumerate().filter(|(_, byte)| table[usize::from(**byte)] != BREAK) {
            let Some(range) = &next else { return };
            number += 1;
            if begun.is_none() && number > range.start {
                begun = Some(offset + at);
            }
            if number >= range.end {
                found.extend(begun.take().map(|start| start..offset + at + 1));
                next = ranges.next();
            }
        }
        found.extend(begun.map(|start| start..offset + run.len()));
    }
}

/// Decodes the digits at each of the four alignments and calls `take`. If all secrets are `printable`, only groups of
/// digits that can contain enough consecutive ASCII bytes are decoded.
fn each_base64(values: &[u8], printable: bool, decoded: &mut Vec<u8>, take: &mut impl FnMut(Range<usize>, &[u8])) {
    if !printable {
        for start in 0..4 {
            read_base64(values, start..values.len(), decoded, take);
        }
        return;
    }
    // Eight bytes of ASCII fill at least two groups of four digits. In these groups, the top bit of each byte is clear.
    let holds_ascii = |start: usize| {
        let digits = &values[start..start + 3];
        (digits[0] & 0x20) | (digits[1] & 0x08) | (digits[2] & 0x02) == 0
    };
    if !may_hold_ascii(values) {
        return;
    }
    for first in 0..4 {
        let groups = (values.len() - first) / 4;
        let mut group = 0;
        while group < groups {
            let is_ascii = |group: &usize| holds_ascii(first + 4 * group);
            let end = (group..groups).find(|group| !is_ascii(group)).unwrap_or(groups);
            if end >= group + 2 {
                // The adjacent groups may contain the first and the last bytes of a secret.
                let digits = first + 4 * group.saturating_sub(1)..first + 4 * groups.min(end + 1);
                read_base64(values, digits, decoded, take);
            }
            group = end + 1;
        }
    }
}

/// Returns whether two consecutive groups of digits can be ASCII, at any alignment.
fn may_hold_ascii(values: &[u8]) -> bool {
    values.windows(7).any(|digits| {
        let both = |at: usize| digits[at] | digits[at + 4];
        (both(0) & 0x20) | (both(1) & 0x08) | (both(2) & 0x02) == 0
    })
}

fn read_base64(values: &[u8], digits: Range<usize>, decoded: &mut Vec<u8>, take: &mut impl FnMut(Range<usize>, &[u8])) {
    let (groups, _) = values[digits.clone()].as_chunks::<4>();
    decoded.clear();
    decoded.extend(groups.iter().flat_map(|[a, b, c, d]| [a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]));
    take(digits, decoded);
}

fn each_hex(values: &[u8], decoded: &mut Vec<u8>, take: &mut impl FnMut(Range<usize>, &[u8])) {
    for start in [MARGIN, MARGIN + 1] {
        let digits = start..values.len() - MARGIN;
        let (pairs, _) = values[digits.clone()].as_chunks::<2>();
        decoded.clear();
        decoded.extend(pairs.iter().map(|[high, low]| high << 4 | low));
        take(digits, decoded);
    }
}

/// Returns whether the bytes contain a run of printable bytes, line breaks or zeros of UTF-16 that is as long as the
/// shortest secret.
fn holds_printable(bytes: &[u8]) -> bool {
    let mut length = 0;
    bytes.iter().any(|byte| {
        length = if matches!(byte, b' '..=b'~' | 0 | b'\r' | b'\n') { length + 1 } else { 0 };
        length == SECRET_BYTES_MIN
    })
}

const fn base64_values() -> [u8; 256] {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut values = values_of(digits);
    values[b'+' as usize] = 62;
    values[b'-' as usize] = 62;
    values[b'/' as usize] = 63;
    values[b'_' as usize] = 63;
    values
}

const fn hex_values() -> [u8; 256] {
    let mut values = values_of(b"0123456789abcdef");
    let mut digit = b'a';
    while digit <= b'f' {
        values[digit.to_ascii_uppercase() as usize] = values[digit as usize];
        digit += 1;
    }
    values
}

const fn values_of(digits: &[u8]) -> [u8; 256] {
    let mut values = [NO_DIGIT; 256];
    values[b'\r' as usize] = BREAK;
    values[b'\n' as usize] = BREAK;
    let mut value = 0;
    while value < digits.len() {
        values[digits[value] as usize] = value as u8;
        value += 1;
    }
    values
}
