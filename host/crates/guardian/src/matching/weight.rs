//! The cost of compiling patterns, of storing the compiled patterns and of matching them against a value.
//!
//! All costs are upper bounds computed from the text of a pattern, so that the host knows the cost of a list of
//! patterns before compiling any of them. Steps have the same unit as in [`Effort`](monstrum_types::Effort).

/// The number of bytes that a compiled pattern uses in addition to its text: its table entry and the allocation for the
/// text.
const ENTRY_BYTES: u64 = 80;
/// The number of bytes that a component of a path pattern uses in addition to its text.
const COMPONENT_BYTES: u64 = 100;
/// The number of bytes that an element of a run uses: its entry in a list and one range of characters.
const ELEMENT_BYTES: u64 = 32;
/// Maximum size of the table of a search in bytes.
const TABLE_BYTES_MAX: u64 = 4 << 20;
const WORD_BITS: u64 = u64::BITS as u64;

/// The cost of compiling and storing patterns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compiling {
    /// The cost, in steps, of compiling the patterns.
    pub(crate) steps: u64,
    /// The size of the compiled patterns in bytes.
    pub(crate) bytes: u64,
}

/// The cost, in steps, of matching one value against a compiled pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Matching {
    pub(super) fixed: u64,
    pub(super) per_byte: u64,
    /// The number of steps for each component of a path.
    pub(super) per_component: u64,
}

impl Compiling {
    /// Returns an upper bound of the cost of compiling a glob.
    pub(crate) fn of_glob(pattern: &str) -> Compiling {
        let length = pattern.len() as u64;
        let mut sum = Compiling { steps: 64 + 32 * length, bytes: ENTRY_BYTES + length };
        if !pattern.contains(['?', '[']) {
            return sum;
        }
        sum.bytes += ELEMENT_BYTES * length;
        let classes = 2 * distinct(pattern) + 1;
        for elements in runs_with_sets(pattern) {
            sum.add(Compiling::of_table(elements, classes));
        }
        sum
    }

    /// Returns an upper bound of the cost of compiling a path pattern.
    pub(crate) fn of_path(pattern: &str) -> Compiling {
        let components = pattern.split('/').count() as u64;
        let masks = components.saturating_mul(components.div_ceil(WORD_BITS));
        let mut sum = Compiling {
            steps: 64 + 2 * pattern.len() as u64 + 64 * components + masks,
            bytes: ENTRY_BYTES + COMPONENT_BYTES * components + 8 * masks,
        };
        pattern.split('/').filter(|component| component.contains(['*', '?', '['])).for_each(|component| {
            sum.add(Compiling::of_glob(component));
        });
        sum.bytes += pattern.len() as u64;
        sum
    }

    /// Returns the cost of the search table for a run of `elements` that distinguish `classes` of characters.
    fn of_table(elements: u64, classes: u64) -> Compiling {
        let table = classes.saturating_mul(elements.div_ceil(WORD_BITS)).saturating_mul(8).min(TABLE_BYTES_MAX);
        Compiling { steps: table / 4 + 64 * elements, bytes: table + 4 * classes + 512 }
    }

    pub(crate) fn add(&mut self, other: Compiling) {
        self.steps = self.steps.saturating_add(other.steps);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Returns an upper bound of the number of distinct characters in a pattern.
fn distinct(pattern: &str) -> u64 {
    let mut ascii = [false; 128];
    let mut others = 0;
    for character in pattern.chars() {
        match ascii.get_mut(character as usize) {
            Some(seen) => *seen = true,
            None => others += 1,
        }
    }
    others + ascii.iter().filter(|seen| **seen).count() as u64
}

/// Returns, for each run between stars that contains a set or a `?`, the number of characters that the run matches.
fn runs_with_sets(pattern: &str) -> Vec<u64> {
    let (mut runs, mut elements, mut has_set) = (Vec::new(), 0, false);
    let mut rest = pattern;
    let mut sets_end = false;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        match character {
            '*' => {
                runs.extend(has_set.then_some(elements));
                (elements, has_set) = (0, false);
                continue;
            }
            '?' => has_set = true,
            '[' if !sets_end => match end_of_set(rest) {
                Some(after) => (rest, has_set) = (after, true),
                // If a set is not closed, no later set is closed.
                None => sets_end = true,
            },
            _ => {}
        }
        elements += 1;
    }
    runs.extend(has_set.then_some(elements));
    runs
}

/// Returns the text after a set whose `[` has already been read. A `]` in first position is a member of the set.
fn end_of_set(text: &str) -> Option<&str> {
    let members = text.strip_prefix('!').unwrap_or(text);
    let others = members.strip_prefix(']').unwrap_or(members);
    others.split_once(']').map(|(_, after)| after)
}

impl Matching {
    /// Returns the number of steps for a value with this number of bytes and components.
    pub(super) fn steps(self, bytes: usize, components: usize) -> u64 {
        let (bytes, components) = (bytes as u64, components as u64);
        self.fixed
            .saturating_add(self.per_byte.saturating_mul(bytes))
            .saturating_add(self.per_component.saturating_mul(components))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_like_the_compiler_counts_them() {
        for (pattern, runs) in [
            ("acme/*", vec![]),
            ("a?c*[xy]*z", vec![3, 1]),
            ("*[*]x[!]a]*", vec![3]),
            ("[ab]?[", vec![3]),
            ("[]", vec![]),
            ("é?", vec![2]),
        ] {
            assert_eq!(runs_with_sets(pattern), runs, "{pattern}");
        }
        assert_eq!(distinct("[ab][ab]丁丁"), 4 + 2);
    }
}
