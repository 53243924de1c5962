//! Finds patterns in text, many at a time.
//!
//! The method is that of Wu and Manber: a look at three bytes tells how far the next pattern can begin at the
//! earliest, so that of ordinary text only every sixth place is looked at. Case is ignored on the way and each hit
//! compared in full, which an automaton over all patterns could do no faster than byte by byte.

use std::collections::HashMap;
use std::ops::Range;

use super::SECRET_BYTES_MIN;
use super::escapes::is_mark;
use super::patterns::Pattern;
use super::views::Reading;

/// Bytes that are looked at in one place.
const BLOCK: usize = 3;

/// How far to go on where no pattern has the block in its first bytes.
const SHIFT_MAX: u8 = (SECRET_BYTES_MIN - BLOCK + 1) as u8;

/// As many shifts as fit into the cache nearest to the processor.
const SHIFTS: usize = 1 << 15;

/// Backslashes at the start of a secret that matter where an escape stands before it by accident. More would make each
/// place of a long run worth a look.
const BACKSLASHES_MAX: usize = 8;

/// Patterns, each of at least [`SECRET_BYTES_MIN`] bytes, ready to be searched for.
pub(super) struct Search {
    patterns: Vec<Pattern>,
    /// By block: the distance to the end of the first bytes of the nearest pattern.
    shifts: Box<[u8]>,
    /// By block: the patterns whose first bytes end with it.
    endings: HashMap<usize, Vec<usize>>,
    /// By block: the patterns that start with it.
    starts: HashMap<usize, Vec<usize>>,
    /// A bit by block: whether a pattern starts with it.
    is_start: Box<[u64]>,
    /// A bit by two bytes: the same.
    is_pair: Box<[u64]>,
    /// By byte: whether a pattern starts with it, in either case.
    is_first: [bool; 256],
    /// The most backslashes with which a pattern starts, as far as that matters.
    backslashes: usize,
}

impl Search {
    pub(super) fn new(patterns: Vec<Pattern>) -> Self {
        let mut shifts = vec![SHIFT_MAX; SHIFTS].into_boxed_slice();
        let mut endings: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut starts: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut is_start = vec![0; SHIFTS / 64].into_boxed_slice();
        let mut is_pair = vec![0; (1 << 16) / 64].into_boxed_slice();
        let mut is_first = [false; 256];
        for (index, pattern) in patterns.iter().enumerate() {
            let first = &pattern.bytes[..SECRET_BYTES_MIN];
            for (block, shift) in first.windows(BLOCK).zip((0..SHIFT_MAX).rev()) {
                let known = &mut shifts[slot(block)];
                *known = shift.min(*known);
            }
            let start = slot(&first[..BLOCK]);
            starts.entry(start).or_default().push(index);
            is_start[start / 64] |= 1 << (start % 64);
            let start = pair(first[0], first[1]);
            is_pair[start / 64] |= 1 << (start % 64);
            for byte in [first[0].to_ascii_lowercase(), first[0].to_ascii_uppercase()] {
                is_first[usize::from(byte)] = true;
            }
            endings.entry(slot(&first[SECRET_BYTES_MIN - BLOCK..])).or_default().push(index);
        }
        let leading = |pattern: &Pattern| pattern.bytes.iter().take_while(|byte| **byte == b'\\').count();
        let backslashes = patterns.iter().map(leading).max().unwrap_or_default().min(BACKSLASHES_MAX);
        Search { patterns, shifts, endings, starts, is_start, is_pair, is_first, backslashes }
    }

    /// How many backslashes may lie at a place from which two views on top of each other show the start of a pattern. Each
    /// of the views leaves half of them.
    pub(super) fn backslashes_max(&self) -> usize {
        4 * self.backslashes + 3
    }

    /// Every place where a pattern lies in `text`, in any order.
    pub(super) fn find(&self, text: &[u8], ignore_case: bool) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut end = SECRET_BYTES_MIN;
        while end <= text.len() {
            let block = slot(&text[end - BLOCK..end]);
            let shift = self.shifts[block];
            if shift > 0 {
                end += usize::from(shift);
                continue;
            }
            let start = end - SECRET_BYTES_MIN;
            let endings = self.endings.get(&block).map_or(&[][..], Vec::as_slice);
            found.extend(endings.iter().filter_map(|index| self.patterns[*index].at(text, start, ignore_case)));
            end += 1;
        }
        found
    }

    /// Whether a pattern may start with the bytes `first`.
    fn may_start(&self, first: &[u8]) -> bool {
        let holds = |bits: &[u64], at: usize| bits[at / 64] & 1 << (at % 64) != 0;
        match first {
            [first] => self.is_first[usize::from(*first)],
            [first, second] => holds(&self.is_pair, pair(*first, *second)),
            first => holds(&self.is_start, slot(first)),
        }
    }

    /// Adds the patterns that lie at `place` of `text`, where it is read on from there in views.
    pub(super) fn find_at(
        &self,
        text: &[u8],
        place: usize,
        reading: Reading,
        ignore_case: bool,
        found: &mut Vec<Range<usize>>,
    ) {
        let first = text[place];
        if !self.is_first[usize::from(first)] && !is_mark(&first) {
            return;
        }
        let Some(block) = reading.first::<BLOCK>(&text[place..], |first| self.may_start(first)) else { return };
        let block = slot(&block);
        let starts = self.starts.get(&block).map_or(&[][..], Vec::as_slice);
        let patterns = starts.iter().map(|index| &self.patterns[*index]);
        found.extend(patterns.filter_map(|pattern| pattern.at_read(text, place, reading, ignore_case)));
    }
}

/// The place of the first two bytes of a pattern; the same for both cases of a letter.
fn pair(first: u8, second: u8) -> usize {
    usize::from(first | 0x20) << 8 | usize::from(second | 0x20)
}

/// The place of a block among the shifts; the same for both cases of a letter.
fn slot(block: &[u8]) -> usize {
    let fold = |byte: u8| usize::from(byte | 0x20);
    (fold(block[0]) ^ fold(block[1]) << 4 ^ fold(block[2]) << 8) % SHIFTS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redact::patterns;

    proptest! {
        #[test]
        fn all_that_is_there_is_found(
            secrets in proptest::collection::vec("[abA=]{8,12}", 1..6), text in "[abA=]{0,200}", ignore_case in any::<bool>()
        ) {
            let search = Search::new(secrets.iter().flat_map(|secret| patterns::of(secret)).collect());
            let mut found = search.find(text.as_bytes(), ignore_case);
            let places = (0..text.len()).flat_map(|at| search.patterns.iter().map(move |pattern| (pattern, at)));
            let mut expected: Vec<Range<usize>> =
                places.filter_map(|(pattern, at)| pattern.at(text.as_bytes(), at, ignore_case)).collect();
            found.sort_by_key(|range| (range.start, range.end));
            expected.sort_by_key(|range| (range.start, range.end));
            prop_assert_eq!(found, expected);
        }
    }
}
