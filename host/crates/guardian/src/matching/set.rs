//! Compiled lists of patterns of one match mode. A single look-up checks all literals of a list.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use monstrum_manifest::MatchMode;
use monstrum_types::{Effort, Overrun};

use super::glob::Glob;
use super::path::{Located, PathPattern, Shape, normalise};
use super::weight::{Compiling, Matching};

/// The cost, in steps, of looking up one value in a table of any size.
const LOOKUP_STEPS: u64 = 64;

/// A compiled list of patterns. A value matches the list if it matches at least one of the patterns.
#[derive(Clone, Debug)]
pub struct PatternSet(Members);

#[derive(Clone, Debug)]
enum Members {
    Pattern { literals: HashSet<Box<str>>, globs: Vec<(Glob, Matching)> },
    Path(PathSet),
    Exact(HashSet<Box<str>>),
}

impl PatternSet {
    /// Compiles the patterns. Every text is a valid pattern.
    #[must_use]
    pub fn new(mode: MatchMode, patterns: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let mut set = PatternSet::empty(mode);
        patterns.into_iter().for_each(|pattern| set.add(pattern.as_ref()));
        set
    }

    /// Like [`PatternSet::new`], but limited by a budget of steps.
    fn within(mode: MatchMode, patterns: &[Box<str>], effort: &Effort) -> Result<Self, Overrun> {
        let mut set = PatternSet::empty(mode);
        for pattern in patterns {
            effort.spend(compiling(mode, pattern).steps)?;
            set.add(pattern);
        }
        Ok(set)
    }

    fn empty(mode: MatchMode) -> Self {
        PatternSet(match mode {
            MatchMode::Pattern => Members::Pattern { literals: HashSet::new(), globs: Vec::new() },
            MatchMode::Path => Members::Path(PathSet::default()),
            MatchMode::Exact => Members::Exact(HashSet::new()),
        })
    }

    fn add(&mut self, pattern: &str) {
        match &mut self.0 {
            Members::Pattern { literals, globs } => {
                let glob = Glob::new(pattern);
                match glob.literal() {
                    Some(text) => _ = literals.insert(text.into()),
                    None => {
                        let weight = glob.weight();
                        globs.push((glob, weight));
                    }
                }
            }
            Members::Path(paths) => paths.add(pattern),
            Members::Exact(texts) => _ = texts.insert(pattern.into()),
        }
    }

    /// Returns whether one of the patterns matches. An empty list matches no value.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        self.matches_within(value, &Effort::of(u64::MAX)).unwrap_or(false)
    }

    /// Like [`PatternSet::matches`], but limited by a budget of steps.
    ///
    /// # Errors
    /// Fails if the budget is exhausted before the result is known.
    pub fn matches_within(&self, value: &str, effort: &Effort) -> Result<bool, Overrun> {
        effort.spend(LOOKUP_STEPS + value.len() as u64)?;
        match &self.0 {
            Members::Pattern { literals, globs } => {
                if literals.contains(value) {
                    return Ok(true);
                }
                any(globs, effort, |weight| weight.steps(value.len(), 0), |glob| glob.matches(value))
            }
            Members::Path(paths) => paths.matches(value, effort),
            Members::Exact(texts) => Ok(texts.contains(value)),
        }
    }
}

/// Returns whether one of the patterns matches. The steps of each comparison are spent before the comparison.
fn any<P>(
    patterns: &[(P, Matching)],
    effort: &Effort,
    steps: impl Fn(Matching) -> u64,
    matches: impl Fn(&P) -> bool,
) -> Result<bool, Overrun> {
    for (pattern, weight) in patterns {
        effort.spend(steps(*weight))?;
        if matches(pattern) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns an upper bound of the memory of a compiled pattern in bytes. The bound is the sum of the bounds for a glob
/// and for a path pattern, because a role may be bound to resource types of both modes.
#[must_use]
pub fn compiled_bytes_max(pattern: &str) -> u64 {
    Compiling::of_glob(pattern).bytes.saturating_add(Compiling::of_path(pattern).bytes)
}

/// Returns the cost of compiling a pattern for a mode.
fn compiling(mode: MatchMode, pattern: &str) -> Compiling {
    match mode {
        MatchMode::Pattern => Compiling::of_glob(pattern),
        MatchMode::Path => Compiling::of_path(pattern),
        MatchMode::Exact => Compiling { steps: LOOKUP_STEPS + pattern.len() as u64, bytes: 0 },
    }
}

/// A list of patterns that is compiled separately for each match mode when a decision first needs that mode.
///
/// Tenants write the patterns, and compiling uses memory and time in proportion to them. A list that no decision has
/// used yet needs memory only for its text.
#[derive(Clone, Debug)]
pub struct PatternList {
    texts: Box<[Box<str>]>,
    /// Whether one of the patterns consists only of stars.
    has_star: bool,
    /// The compiled lists, which exist after the first comparison. Most of the lists of a large host are not compiled,
    /// so that their memory counts.
    compiled: OnceLock<Box<Compiled>>,
}

/// The compiled lists for the modes pattern, path and exact, in this order.
type Compiled = [OnceLock<PatternSet>; 3];

impl PatternList {
    /// Stores the patterns without compiling them. Every text is a valid pattern.
    #[must_use]
    pub fn new(texts: impl IntoIterator<Item: Into<String>>) -> Self {
        let texts: Box<[Box<str>]> = texts.into_iter().map(|text| text.into().into_boxed_str()).collect();
        PatternList {
            has_star: texts.iter().any(|text| !text.is_empty() && text.bytes().all(|byte| byte == b'*')),
            texts,
            compiled: OnceLock::new(),
        }
    }

    /// Returns whether the list is empty and therefore matches no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Returns whether the list matches every value in this mode.
    #[must_use]
    pub fn matches_everything(&self, mode: MatchMode) -> bool {
        self.has_star && mode == MatchMode::Pattern
    }

    /// Returns whether one of the patterns matches. The first call for a mode compiles the list for it.
    ///
    /// # Errors
    /// Fails if the budget is exhausted before the result is known.
    pub fn matches(&self, mode: MatchMode, value: &str, effort: &Effort) -> Result<bool, Overrun> {
        if self.matches_everything(mode) {
            return Ok(true);
        }
        let place = self.place(mode);
        let set = match place.get() {
            Some(set) => set,
            None => {
                // The list is compiled without holding a lock: a second thread compiles a second copy instead of
                // waiting for the lock, so that its call can still be cancelled.
                let compiled = PatternSet::within(mode, &self.texts, effort)?;
                place.get_or_init(|| compiled)
            }
        };
        set.matches_within(value, effort)
    }

    /// Returns whether the list has been compiled for any mode.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.compiled.get().is_some_and(|modes| modes.iter().any(|place| place.get().is_some()))
    }

    fn place(&self, mode: MatchMode) -> &OnceLock<PatternSet> {
        let [pattern, path, exact] = &**self.compiled.get_or_init(Box::default);
        match mode {
            MatchMode::Pattern => pattern,
            MatchMode::Path => path,
            MatchMode::Exact => exact,
        }
    }
}

/// A compiled list of path patterns. Patterns without a wildcard are stored in a tree of components. Patterns with a
/// wildcard are stored in a list.
#[derive(Clone, Debug, Default)]
struct PathSet {
    absolute: Tree,
    relative: Tree,
    others: Vec<(PathPattern, Matching)>,
}

/// A tree of path components. Nodes refer to their children by index, so that dropping a deep tree does not recurse.
/// The root is node 0.
#[derive(Clone, Debug, Default)]
struct Tree {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    children: HashMap<Box<str>, usize>,
    /// Whether a pattern ends here, so that this path and its descendants match.
    is_end: bool,
}

impl PathSet {
    fn add(&mut self, pattern: &str) {
        let pattern = PathPattern::new(pattern);
        match pattern.0 {
            Shape::Below(Located { absolute: true, components }) => self.absolute.insert(components),
            Shape::Below(Located { absolute: false, components }) => self.relative.insert(components),
            _ => {
                let weight = pattern.weight();
                self.others.push((pattern, weight));
            }
        }
    }

    fn matches(&self, value: &str, effort: &Effort) -> Result<bool, Overrun> {
        if value.is_empty() {
            return Ok(self.others.iter().any(|(pattern, _)| pattern.matches(value)));
        }
        let Some(path) = normalise(value) else { return Ok(false) };
        let components = path.components.len();
        effort.spend(LOOKUP_STEPS * components as u64)?;
        let tree = if path.absolute { &self.absolute } else { &self.relative };
        if tree.covers(&path.components) {
            return Ok(true);
        }
        let steps = |weight: Matching| weight.steps(value.len(), components);
        any(&self.others, effort, steps, |pattern| pattern.matches_normalised(&path))
    }
}

impl Tree {
    fn insert(&mut self, components: Vec<Box<str>>) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for component in components {
            let fresh = self.nodes.len();
            let next = *self.nodes[at].children.entry(component).or_insert(fresh);
            if next == fresh {
                self.nodes.push(Node::default());
            }
            at = next;
        }
        self.nodes[at].is_end = true;
    }

    fn covers(&self, components: &[&str]) -> bool {
        let Some(mut node) = self.nodes.first() else { return false };
        for component in components {
            if node.is_end {
                return true;
            }
            match node.children.get(*component) {
                Some(next) => node = &self.nodes[*next],
                None => return false,
            }
        }
        node.is_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_matches_like_its_patterns_one_by_one() {
        let patterns =
            ["", "acme/*", "acme/api", "/tmp", "/tmp/*", "/a/**/z", "src/lib", ".", "/", "[*]", "../x", "**"];
        let values =
            ["", "acme/api", "acme/x", "/tmp", "/tmp/a/b", "/a/z", "/etc", "src", "src/lib/x", "../x", "*", "a\0"];
        for pattern in patterns {
            for value in values {
                let note = format!("{value:?} against {pattern:?}");
                let one = |mode| PatternSet::new(mode, [pattern]).matches(value);
                assert_eq!(one(MatchMode::Pattern), super::super::match_glob(value, pattern), "{note}");
                assert_eq!(one(MatchMode::Path), super::super::match_path(value, pattern), "{note}");
                assert_eq!(one(MatchMode::Exact), value == pattern, "{note}");
            }
        }
        for value in values {
            let all = PatternSet::new(MatchMode::Path, patterns);
            assert_eq!(all.matches(value), super::super::match_any_path(value, patterns), "{value:?}");
        }
    }

    #[test]
    fn a_list_is_compiled_for_the_modes_in_use() {
        let list = PatternList::new(["/tmp/*"]);
        let compiled = |list: &PatternList| {
            [MatchMode::Pattern, MatchMode::Path, MatchMode::Exact].map(|mode| list.place(mode).get().is_some())
        };
        assert!(!list.is_compiled());
        let matches = |mode, value: &str| list.matches(mode, value, &Effort::of(10_000)).unwrap();
        assert!(matches(MatchMode::Pattern, "/tmp/a/b") && matches(MatchMode::Pattern, "/tmp/c"));
        assert!(list.is_compiled());
        assert_eq!(compiled(&list), [true, false, false]);
        assert!(!matches(MatchMode::Path, "/tmp/a/b") && matches(MatchMode::Path, "/tmp/a"));
        assert!(matches(MatchMode::Exact, "/tmp/*") && !matches(MatchMode::Exact, "/tmp/a"));
    }

    #[test]
    fn an_empty_list_matches_nothing() {
        for mode in [MatchMode::Pattern, MatchMode::Path, MatchMode::Exact] {
            let set = PatternSet::new(mode, Vec::<String>::new());
            assert!(!set.matches("") && !set.matches("/") && !set.matches("x"));
        }
    }

    #[test]
    fn literal_paths_match_their_descendants() {
        let set = PatternSet::new(MatchMode::Path, ["/a/b/c", "/a/b", "/a/x/y"]);
        for (value, is_covered) in
            [("/a", false), ("/a/b", true), ("/a/b/d", true), ("/a/x", false), ("/a/x/y/z", true), ("/a/bc", false)]
        {
            assert_eq!(set.matches(value), is_covered, "{value}");
        }
    }
}
