//! Searches a path for a run of path components, in one pass.
//!
//! This module implements the Shift-And algorithm over components. The module `search` applies the same algorithm to
//! characters. Bit `i` of the state is set if the components read so far end with the first `i + 1` components of the
//! run. Each component of a path is compared once with each distinct glob of the run, regardless of the number of
//! partial matches.

use std::collections::HashMap;

use super::glob::Glob;
use super::weight::Matching;

const WORD_BITS: usize = u64::BITS as usize;

/// Maximum number of components in one run: the number of components in the longest path that Linux can open. No path
/// contains a longer run.
pub(super) const RUN_COMPONENTS_MAX: usize = 2048;

/// A compiled search for one run.
#[derive(Clone, Debug)]
pub(super) struct ComponentSearch {
    /// The positions in the run of each component without a wildcard, as a bit set.
    literals: HashMap<Box<str>, Box<[u64]>>,
    /// The positions in the run of each distinct glob, as a bit set.
    globs: Box<[(Glob, Box<[u64]>)]>,
    length: usize,
}

impl ComponentSearch {
    /// Compiles a run of 1 to [`RUN_COMPONENTS_MAX`] components.
    pub(super) fn new(run: &[&str]) -> Self {
        let words = run.len().div_ceil(WORD_BITS);
        let mut places: HashMap<&str, Box<[u64]>> = HashMap::new();
        for (at, component) in run.iter().enumerate() {
            let mask = places.entry(component).or_insert_with(|| vec![0; words].into_boxed_slice());
            mask[at / WORD_BITS] |= 1 << (at % WORD_BITS);
        }
        let (mut literals, mut globs) = (HashMap::<Box<str>, Box<[u64]>>::new(), Vec::new());
        for (component, mask) in places {
            let glob = Glob::new(component);
            match glob.literal() {
                // `[a]` and `a` are the same component.
                Some(text) => match literals.get_mut(text) {
                    Some(known) => known.iter_mut().zip(&mask).for_each(|(known, word)| *known |= word),
                    None => _ = literals.insert(text.into(), mask),
                },
                None => globs.push((glob, mask)),
            }
        }
        ComponentSearch { literals, globs: globs.into_boxed_slice(), length: run.len() }
    }

    /// Returns an upper bound of the cost of a search. A search compares each component with each distinct glob.
    pub(super) fn weight(&self) -> Matching {
        let words = self.length.div_ceil(WORD_BITS) as u64;
        let mut sum = Matching { fixed: 64, per_byte: 1, per_component: 64 + 4 * words };
        for glob in self.globs.iter().map(|(glob, _)| glob.weight()) {
            sum.per_byte = sum.per_byte.saturating_add(glob.per_byte);
            sum.per_component = sum.per_component.saturating_add(glob.fixed + words);
        }
        sum
    }

    /// Returns the components after the first occurrence of the run in `path`.
    pub(super) fn find<'p, 'c>(&self, path: &'p [&'c str]) -> Option<&'p [&'c str]> {
        self.find_by(path, Glob::matches)
    }

    /// Like [`ComponentSearch::find`], but uses `matches` to compare components with globs.
    fn find_by<'p, 'c>(
        &self,
        path: &'p [&'c str],
        mut matches: impl FnMut(&Glob, &str) -> bool,
    ) -> Option<&'p [&'c str]> {
        let words = self.length.div_ceil(WORD_BITS);
        let last_bit = 1 << ((self.length - 1) % WORD_BITS);
        let mut state = vec![0_u64; words];
        let mut accepted = vec![0_u64; words];
        for (at, component) in path.iter().enumerate() {
            accepted.fill(0);
            let literal = self.literals.get(*component);
            let globs = self.globs.iter().filter(|(glob, _)| matches(glob, component)).map(|(_, mask)| mask);
            for mask in literal.into_iter().chain(globs) {
                accepted.iter_mut().zip(mask).for_each(|(word, more)| *word |= more);
            }
            let mut carry = 1;
            for (word, accepted) in state.iter_mut().zip(&accepted) {
                let shifted = *word << 1 | carry;
                carry = *word >> (WORD_BITS - 1);
                *word = shifted & accepted;
            }
            if state[words - 1] & last_bit != 0 {
                return Some(&path[at + 1..]);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Searches naively: returns the components after the first window in which every glob matches its component.
    fn naively<'p, 'c>(run: &[&str], path: &'p [&'c str]) -> Option<&'p [&'c str]> {
        let globs: Vec<Glob> = run.iter().map(|component| Glob::new(component)).collect();
        let fits = |window: &[&str]| globs.iter().zip(window).all(|(glob, component)| glob.matches(component));
        path.windows(run.len()).position(fits).map(|at| &path[at + run.len()..])
    }

    proptest! {
        #[test]
        fn the_first_window_is_found(
            run in prop::collection::vec(prop::sample::select(vec!["a", "b", "[a]", "*", "?", "a*", "ab"]), 1..5),
            path in prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", "aa", ""]), 0..20),
        ) {
            prop_assert_eq!(ComponentSearch::new(&run).find(&path), naively(&run, &path));
        }
    }

    #[test]
    fn runs_of_several_words_are_found() {
        for length in [63, 64, 65, 128, 129, RUN_COMPONENTS_MAX] {
            let run: Vec<&str> = (0..length).map(|at| if at % 3 == 0 { "?" } else { "a" }).collect();
            let path: Vec<&str> = std::iter::repeat_n("b", 7).chain(std::iter::repeat_n("a", length + 2)).collect();
            assert_eq!(ComponentSearch::new(&run).find(&path), naively(&run, &path), "{length}");
            assert_eq!(ComponentSearch::new(&run).find(&path[..length + 5]), None, "{length}");
        }
    }

    #[test]
    fn a_component_is_compared_once_with_each_different_glob() {
        let path = vec!["a"; 10_000];
        for (run, different) in [
            (["?", "?", "?", "?", "?", "?", "?", "b"].as_slice(), 1),
            (&["?", "*", "?", "a*", "?", "*", "b"], 3),
            (&["a", "a", "a", "a", "b"], 0),
        ] {
            let mut compared = 0;
            let found = ComponentSearch::new(run).find_by(&path, |glob, component| {
                compared += 1;
                glob.matches(component)
            });
            assert_eq!((found, compared), (None, path.len() * different), "{run:?}");
        }
    }
}
