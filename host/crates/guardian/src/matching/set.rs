//! A list of patterns of one match mode, compiled so that literals cost one look-up however many there are.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use monstrum_manifest::MatchMode;

use super::glob::Glob;
use super::path::{Located, PathPattern, Shape, normalise};

/// A compiled list of patterns. A value must match one of them.
#[derive(Clone, Debug)]
pub struct PatternSet(Members);

#[derive(Clone, Debug)]
enum Members {
    Pattern { literals: HashSet<Box<str>>, globs: Vec<Glob> },
    Path(PathSet),
    Exact(HashSet<Box<str>>),
}

impl PatternSet {
    /// Compiles the patterns, each of which may be any text.
    #[must_use]
    pub fn new(mode: MatchMode, patterns: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let patterns = patterns.into_iter();
        PatternSet(match mode {
            MatchMode::Pattern => {
                let (mut literals, mut globs) = (HashSet::new(), Vec::new());
                for pattern in patterns {
                    let glob = Glob::new(pattern.as_ref());
                    match glob.literal() {
                        Some(text) => _ = literals.insert(text.into()),
                        None => globs.push(glob),
                    }
                }
                Members::Pattern { literals, globs }
            }
            MatchMode::Path => Members::Path(PathSet::new(patterns)),
            MatchMode::Exact => Members::Exact(patterns.map(|pattern| pattern.as_ref().into()).collect()),
        })
    }

    /// Whether one of the patterns matches. An empty list matches nothing.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        match &self.0 {
            Members::Pattern { literals, globs } => {
                literals.contains(value) || globs.iter().any(|glob| glob.matches(value))
            }
            Members::Path(paths) => paths.matches(value),
            Members::Exact(texts) => texts.contains(value),
        }
    }
}

/// A list of patterns that is compiled for a match mode when a decision first needs that mode, and kept from then on.
///
/// Compiling takes memory and time in proportion to the patterns, which a tenant writes. A list that no decision needs
/// costs its text alone.
#[derive(Clone, Debug)]
pub struct PatternList {
    texts: Box<[String]>,
    /// For the modes pattern, path and exact.
    compiled: [OnceLock<PatternSet>; 3],
}

impl PatternList {
    /// Keeps the patterns, each of which may be any text. Nothing is compiled yet.
    #[must_use]
    pub fn new(texts: impl IntoIterator<Item: Into<String>>) -> Self {
        PatternList { texts: texts.into_iter().map(Into::into).collect(), compiled: Default::default() }
    }

    /// Whether the list has no pattern, so that nothing matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether one of the patterns matches. Compiles the list for `mode` if this is the first question.
    #[must_use]
    pub fn matches(&self, mode: MatchMode, value: &str) -> bool {
        self.place(mode).get_or_init(|| PatternSet::new(mode, &self.texts)).matches(value)
    }

    /// Whether a question has compiled the list, for any mode.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.compiled.iter().any(|place| place.get().is_some())
    }

    fn place(&self, mode: MatchMode) -> &OnceLock<PatternSet> {
        let [pattern, path, exact] = &self.compiled;
        match mode {
            MatchMode::Pattern => pattern,
            MatchMode::Path => path,
            MatchMode::Exact => exact,
        }
    }
}

/// Path patterns without a wildcard in a tree of components, the others in a list.
#[derive(Clone, Debug, Default)]
struct PathSet {
    absolute: Tree,
    relative: Tree,
    others: Vec<PathPattern>,
}

/// Nodes refer to one another by index, so that a deep pattern is no deep recursion. The root is node 0.
#[derive(Clone, Debug, Default)]
struct Tree {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    children: HashMap<Box<str>, usize>,
    /// A pattern ends here: this path and all below it match.
    is_end: bool,
}

impl PathSet {
    fn new(patterns: impl Iterator<Item: AsRef<str>>) -> Self {
        let mut set = PathSet::default();
        for pattern in patterns {
            let pattern = PathPattern::new(pattern.as_ref());
            match pattern.0 {
                Shape::Below(Located { absolute: true, components }) => set.absolute.insert(components),
                Shape::Below(Located { absolute: false, components }) => set.relative.insert(components),
                _ => set.others.push(pattern),
            }
        }
        set
    }

    fn matches(&self, value: &str) -> bool {
        if value.is_empty() {
            return self.others.iter().any(|pattern| pattern.matches(value));
        }
        let Some(path) = normalise(value) else { return false };
        let tree = if path.absolute { &self.absolute } else { &self.relative };
        tree.covers(&path.components) || self.others.iter().any(|pattern| pattern.matches_normalised(&path))
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
    fn a_set_agrees_with_its_patterns_one_by_one() {
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
    fn a_list_is_compiled_for_the_modes_that_are_asked_for() {
        let list = PatternList::new(["/tmp/*"]);
        let compiled = |list: &PatternList| list.compiled.each_ref().map(|place| place.get().is_some());
        assert!(!list.is_compiled());
        assert!(list.matches(MatchMode::Pattern, "/tmp/a/b") && list.matches(MatchMode::Pattern, "/tmp/c"));
        assert!(list.is_compiled());
        assert_eq!(compiled(&list), [true, false, false]);
        assert!(!list.matches(MatchMode::Path, "/tmp/a/b") && list.matches(MatchMode::Path, "/tmp/a"));
        assert!(list.matches(MatchMode::Exact, "/tmp/*") && !list.matches(MatchMode::Exact, "/tmp/a"));
    }

    #[test]
    fn an_empty_list_matches_nothing() {
        for mode in [MatchMode::Pattern, MatchMode::Path, MatchMode::Exact] {
            let set = PatternSet::new(mode, Vec::<String>::new());
            assert!(!set.matches("") && !set.matches("/") && !set.matches("x"));
        }
    }

    #[test]
    fn prefixes_in_a_tree_cover_what_lies_below_them() {
        let set = PatternSet::new(MatchMode::Path, ["/a/b/c", "/a/b", "/a/x/y"]);
        for (value, is_covered) in
            [("/a", false), ("/a/b", true), ("/a/b/d", true), ("/a/x", false), ("/a/x/y/z", true), ("/a/bc", false)]
        {
            assert_eq!(set.matches(value), is_covered, "{value}");
        }
    }
}
