//! Finds patterns in text, many at a time.
//!
//! The method is that of Wu and Manber: a look at three bytes tells how far the next pattern can begin at the
//! earliest, so that of ordinary text only every sixth place is looked at. Case is ignored on the way and each hit
//! compared in full, which an automaton over all patterns could do no faster than byte by byte.

use std::collections::HashMap;
use std::ops::Range;

use super::SECRET_BYTES_MIN;
use super::patterns::Pattern;
use super::views::{Reading, is_mark};

/// Bytes that are looked at in one place.
const BLOCK: usize = 3;

/// How far to go on where no pattern has the block in its first bytes.
const SHIFT_MAX: u8 = (SECRET_BYTES_MIN - BLOCK + 1) as u8;

/// As many shifts as fit into the cache nearest to the processor.
const SHIFTS: usize = 1 << 15;

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
    /// By byte: whether a pattern starts with it, in either case.
    is_first: [bool; 256],
}

impl Search {
    pub(super) fn new(patterns: Vec<Pattern>) -> Self {
        let mut shifts = vec![SHIFT_MAX; SHIFTS].into_boxed_slice();
        let mut endings: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut starts: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut is_start = vec![0; SHIFTS / 64].into_boxed_slice();
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
            for byte in [first[0].to_ascii_lowercase(), first[0].to_ascii_uppercase()] {
                is_first[usize::from(byte)] = true;
            }
            endings.entry(slot(&first[SECRET_BYTES_MIN - BLOCK..])).or_default().push(index);
        }
        Search { patterns, shifts, endings, starts, is_start, is_first }
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

    /// Adds the patterns that lie at `place` of `text`, where it is read on from there in views.
    pub(super) fn find_at(
        &self,
        text: &[u8],
        place: usize,
        reading: Reading,
        ignore_case: bool,
        found: &mut Vec<Range<usize>>,
    ) {
        if !self.is_first[usize::from(text[place])] && !is_mark(&text[place]) {
            return;
        }
        let Some(block) = reading.first::<BLOCK>(&text[place..]) else { return };
        let block = slot(&block);
        if self.is_start[block / 64] & 1 << (block % 64) == 0 {
            return;
        }
        let starts = self.starts.get(&block).map_or(&[][..], Vec::as_slice);
        let patterns = starts.iter().map(|index| &self.patterns[*index]);
        found.extend(patterns.filter_map(|pattern| pattern.at_read(text, place, reading, ignore_case)));
    }
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
