//! Searches for many patterns at once.
//!
//! This module implements the Wu-Manber algorithm. Three bytes determine the distance to the next possible start of a
//! pattern, so the search examines only every sixth position of ordinary text. The shifts ignore case, and each
//! candidate is then compared exactly. An automaton over all patterns would have to examine every byte.

use std::collections::HashMap;
use std::ops::Range;

use super::SECRET_BYTES_MIN;
use super::escapes::is_mark;
use super::patterns::Pattern;
use super::views::Reading;

/// The number of bytes that determine a shift.
const BLOCK: usize = 3;

/// The shift for blocks that do not occur in the first [`SECRET_BYTES_MIN`] bytes of any pattern.
const SHIFT_MAX: u8 = (SECRET_BYTES_MIN - BLOCK + 1) as u8;

/// The number of slots for each block of a pattern. With 16 slots, a block that does not occur in a pattern shares its
/// slot with one in about 6 % of the cases, and is then compared in vain or skipped by fewer bytes.
const SLOTS_PER_BLOCK: usize = 16;
/// The limits of the number of slots. The tables of a single secret take about 2 KiB, so that those of many resources
/// fit into a cache. The tables of many secrets still fit into the L1 cache.
const SLOTS: Range<usize> = 1 << 11..1 << 15;

/// The maximum number of backslashes at the start of a secret that the search considers after an accidental escape.
/// Without the limit, the search would have to examine each position of a long run of backslashes.
const BACKSLASHES_MAX: usize = 8;

/// A compiled set of patterns, each of at least [`SECRET_BYTES_MIN`] bytes.
pub(super) struct Search {
    patterns: Vec<Pattern>,
    slots: Slots,
    /// For each slot of a block, the smallest distance from the block to the end of the first [`SECRET_BYTES_MIN`] bytes of a
    /// pattern.
    shifts: Box<[u8]>,
    /// For each slot of a block, the patterns whose first [`SECRET_BYTES_MIN`] bytes end with such a block.
    endings: HashMap<usize, Vec<usize>>,
    /// For each slot of a block, the patterns that start with such a block.
    starts: HashMap<usize, Vec<usize>>,
    /// A bit for each slot of a block, which is set if a pattern starts with such a block.
    is_start: Box<[u64]>,
    /// A bit for each slot of two bytes, which is set if a pattern starts with such bytes.
    is_pair: Box<[u64]>,
    /// For each byte, whether a pattern starts with the byte in upper or lower case.
    is_first: [bool; 256],
    /// The maximum number of backslashes at the start of a pattern, up to [`BACKSLASHES_MAX`].
    backslashes: usize,
}

impl Search {
    pub(super) fn new(patterns: Vec<Pattern>) -> Self {
        let slots = Slots::of(patterns.len());
        let mut shifts = vec![SHIFT_MAX; slots.count()].into_boxed_slice();
        let mut endings: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut starts: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut is_start = vec![0; slots.count() / 64].into_boxed_slice();
        let mut is_pair = vec![0; slots.count() / 64].into_boxed_slice();
        let mut is_first = [false; 256];
        for (index, pattern) in patterns.iter().enumerate() {
            let first = &pattern.bytes[..SECRET_BYTES_MIN];
            for (block, shift) in first.windows(BLOCK).zip((0..SHIFT_MAX).rev()) {
                let known = &mut shifts[slots.of_block(block)];
                *known = shift.min(*known);
            }
            let start = slots.of_block(&first[..BLOCK]);
            starts.entry(start).or_default().push(index);
            is_start[start / 64] |= 1 << (start % 64);
            let start = slots.of_pair(first[0], first[1]);
            is_pair[start / 64] |= 1 << (start % 64);
            for byte in [first[0].to_ascii_lowercase(), first[0].to_ascii_uppercase()] {
                is_first[usize::from(byte)] = true;
            }
            endings.entry(slots.of_block(&first[SECRET_BYTES_MIN - BLOCK..])).or_default().push(index);
        }
        let leading = |pattern: &Pattern| pattern.bytes.iter().take_while(|byte| **byte == b'\\').count();
        let backslashes = patterns.iter().map(leading).max().unwrap_or_default().min(BACKSLASHES_MAX);
        Search { patterns, slots, shifts, endings, starts, is_start, is_pair, is_first, backslashes }
    }

    /// Returns the maximum number of backslashes at a position from which two nested views can reveal the start of a
    /// pattern. Each view halves the number of backslashes.
    pub(super) fn backslashes_max(&self) -> usize {
        4 * self.backslashes + 3
    }

    /// Returns all matches of the patterns in `text`, in any order.
    pub(super) fn find(&self, text: &[u8], ignore_case: bool) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut end = SECRET_BYTES_MIN;
        while end <= text.len() {
            let block = self.slots.of_block(&text[end - BLOCK..end]);
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

    /// Returns the length of the longest pattern.
    pub(super) fn longest(&self) -> usize {
        self.patterns.iter().map(|pattern| pattern.bytes.len()).max().unwrap_or_default()
    }

    /// Returns the first position from which the end of `text` is a proper prefix of a pattern.
    pub(super) fn open_end(&self, text: &[u8]) -> usize {
        let from = text.len().saturating_sub(self.longest());
        let is_open = |start: &usize| {
            let end = &text[*start..];
            self.is_first[usize::from(end[0])] && self.patterns.iter().any(|pattern| pattern.starts_with(end))
        };
        (from..text.len()).find(is_open).unwrap_or(text.len())
    }

    /// Returns the first position from which the end of `text`, as decoded by one of the `readings`, may be a proper
    /// prefix of a pattern.
    pub(super) fn open_read(&self, text: &[u8], readings: &[Reading]) -> usize {
        let Some(last_mark) = text.iter().rposition(is_mark) else { return text.len() };
        let is_open = |start: &usize| {
            let end = &text[*start..];
            let may_start = is_mark(&end[0]) || self.is_first[usize::from(end[0])];
            let is_open = |reading: &Reading| self.patterns.iter().any(|pattern| pattern.may_be_read(end, *reading));
            may_start && readings.iter().any(is_open)
        };
        (0..=last_mark).find(is_open).unwrap_or(text.len())
    }

    /// Returns whether a pattern may start with the bytes `first`.
    fn may_start(&self, first: &[u8]) -> bool {
        let holds = |bits: &[u64], at: usize| bits[at / 64] & 1 << (at % 64) != 0;
        match first {
            [first] => self.is_first[usize::from(*first)],
            [first, second] => holds(&self.is_pair, self.slots.of_pair(*first, *second)),
            first => holds(&self.is_start, self.slots.of_block(first)),
        }
    }

    /// Decodes `text` from `place` with `reading`, and adds the patterns that match there to `found`.
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
        let block = self.slots.of_block(&block);
        let starts = self.starts.get(&block).map_or(&[][..], Vec::as_slice);
        let patterns = starts.iter().map(|index| &self.patterns[*index]);
        found.extend(patterns.filter_map(|pattern| pattern.at_read(text, place, reading, ignore_case)));
    }
}

/// Maps blocks and pairs of bytes to slots of the tables, ignoring case.
#[derive(Clone, Copy)]
struct Slots {
    /// The base-2 logarithm of the number of slots.
    bits: u32,
}

impl Slots {
    /// Returns the slots for this number of patterns.
    fn of(patterns: usize) -> Slots {
        let blocks = patterns.saturating_mul(SECRET_BYTES_MIN - BLOCK + 1);
        let wanted = blocks.saturating_mul(SLOTS_PER_BLOCK).clamp(SLOTS.start, SLOTS.end);
        Slots { bits: wanted.next_power_of_two().ilog2() }
    }

    fn count(self) -> usize {
        1 << self.bits
    }

    fn of_block(self, block: &[u8]) -> usize {
        self.hash(u32::from_le_bytes([block[0] | 0x20, block[1] | 0x20, block[2] | 0x20, 0]))
    }

    fn of_pair(self, first: u8, second: u8) -> usize {
        self.hash(u32::from_le_bytes([first | 0x20, second | 0x20, 0, 0]))
    }

    /// Returns the upper bits of a product (Fibonacci hashing).
    fn hash(self, bytes: u32) -> usize {
        const GOLDEN_RATIO: u32 = 0x9e37_79b9;
        (bytes.wrapping_mul(GOLDEN_RATIO) >> (u32::BITS - self.bits)) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::redact::patterns;

    proptest! {
        #[test]
        fn all_matches_are_found(
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
