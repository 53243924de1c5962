//! Searches a text for a run of characters and sets, in one pass.

use super::glob::{Element, strip_elements};

/// Maximum number of words in the table of one search: 4 MiB, enough for runs of 4 000 distinct elements, and for much
/// longer runs whose elements repeat. The elements of a longer run that do not fit into the table are compared one by
/// one.
const TABLE_WORDS_MAX: usize = 1 << 19;
const WORD_BITS: usize = u64::BITS as usize;

/// A compiled search for one run.
#[derive(Clone, Debug)]
pub(super) struct Search {
    /// The first code point of each character class that the elements distinguish, starting with 0.
    class_starts: Box<[u32]>,
    /// The class of each ASCII character, by its code.
    ascii_classes: Box<[u32]>,
    /// The masks of the classes, with `words` words for each class. Bit `i` of a mask is set if element `i` accepts the
    /// class.
    masks: Box<[u64]>,
    words: usize,
    last_bit: u64,
    rest: Box<[Element]>,
}

/// Builds the table. Each row is a copy of the previous row, except for the bits of the elements whose ranges begin or
/// end at this class. The time therefore depends on the size of the table, not on the number of classes that an element
/// accepts.
fn masks(elements: &[Element], classes: usize, words: usize, class_of: impl Fn(u32) -> usize) -> Vec<u64> {
    let mut changes: Vec<(usize, usize)> = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        for (low, high) in element.ranges() {
            changes.extend([(class_of(low), index), (class_of(high) + 1, index)]);
        }
    }
    changes.sort_unstable();
    let mut changes = changes.into_iter().peekable();
    let (mut table, mut row) = (Vec::with_capacity(classes * words), vec![0_u64; words]);
    for class in 0..classes {
        while let Some((_, index)) = changes.next_if(|(at, _)| *at == class) {
            // The ranges of an element are not adjacent, so each change flips the element's bit.
            row[index / WORD_BITS] ^= 1 << (index % WORD_BITS);
        }
        table.extend_from_slice(&row);
    }
    table
}

impl Search {
    /// Compiles a run of at least one element.
    pub(super) fn new(run: &[Element]) -> Self {
        let mut starts: Vec<u32> =
            run.iter().flat_map(Element::ranges).flat_map(|(low, high)| [low, high + 1]).chain([0]).collect();
        starts.sort_unstable();
        starts.dedup();
        let words_max = (TABLE_WORDS_MAX / starts.len()).max(1);
        let (head, rest) = run.split_at(run.len().min(words_max * WORD_BITS));
        let words = head.len().div_ceil(WORD_BITS);
        let class_of = |code: u32| starts.partition_point(|start| *start <= code) - 1;
        let masks = masks(head, starts.len(), words, class_of);
        let ascii_classes = (0..128).map(|code| u32::try_from(class_of(code)).unwrap_or(u32::MAX)).collect();
        let last_bit = 1 << ((head.len() - 1) % WORD_BITS);
        Search {
            class_starts: starts.into_boxed_slice(),
            ascii_classes,
            masks: masks.into_boxed_slice(),
            words,
            last_bit,
            rest: rest.into(),
        }
    }

    /// Returns an upper bound of the steps for each byte of a text: the number of words of the state, plus the number
    /// of elements that do not fit into the table.
    pub(super) fn steps_per_byte(&self) -> u64 {
        4 + 2 * self.words as u64 + 4 * self.rest.len() as u64
    }

    /// Returns the text after the first occurrence of the run in `text`.
    pub(super) fn find<'t>(&self, text: &'t str) -> Option<&'t str> {
        let mut state = vec![0_u64; self.words];
        for (at, character) in text.char_indices() {
            let class = self.class(character);
            let mask = &self.masks[class * self.words..][..self.words];
            let mut carry = 1;
            for (word, accepted) in state.iter_mut().zip(mask) {
                let shifted = *word << 1 | carry;
                carry = *word >> (WORD_BITS - 1);
                *word = shifted & accepted;
            }
            if state[self.words - 1] & self.last_bit != 0 {
                let after = &text[at + character.len_utf8()..];
                if let Some(after) = strip_elements(&self.rest, after) {
                    return Some(after);
                }
            }
        }
        None
    }

    fn class(&self, character: char) -> usize {
        let code = character as u32;
        match self.ascii_classes.get(code as usize) {
            Some(class) => *class as usize,
            None => self.class_starts.partition_point(|start| *start <= code) - 1,
        }
    }
}
