//! Patterns for file paths.

use super::components::{ComponentSearch, RUN_COMPONENTS_MAX};
use super::glob::Glob;
use super::weight::Matching;

/// A compiled path pattern.
///
/// Value and pattern are normalised as POSIX paths: `//` and `/./` become `/`, `..` removes the component before it,
/// and a trailing `/` is dropped. Other syntax, such as `~`, backslashes, percent signs and symlinks, is not
/// interpreted.
///
/// | pattern | matches | does not match |
/// | --- | --- | --- |
/// | `/tmp` (no wildcard: the path and its descendants) | `/tmp`, `/tmp/a/b`, `/x/../tmp/a` | `/tmp2`, `/tmp/../etc`, `tmp` |
/// | `/` | every absolute path | `tmp` |
/// | `/tmp/*` (within one level) | `/tmp/a`, `/tmp/.a`, `/tmp/a/` | `/tmp`, `/tmp/a/b` |
/// | `/tmp/**` (any number of levels, including zero) | `/tmp`, `/tmp/a`, `/tmp/a/b` | `/tmp2`, `/tmp/../etc` |
/// | `/a/**/z` | `/a/z`, `/a/b/c/z` | `/a/b`, `/z` |
/// | `/tmp/a*b`, `?`, `[seq]` (as in a glob) | `/tmp/ab`, `/tmp/axb` | `/tmp/a/b` |
/// | `src` (relative) | `src`, `./src/a`, `x/../src/a` | `/src`, `../src`, `src2` |
/// | `.` | every relative path without a leading `..` | `..`, `/tmp` |
/// | the empty pattern | the empty value | all other values |
/// | `/tmp/..` | the same as `/` | |
/// | `../x`, `/a/**/..` (not a definite path) | nothing | all values |
/// | over 2048 components between two `**` (more than a path can have) | nothing | all values |
///
/// No pattern matches a relative value that leads outside its start through `..` (`../x`, `a/../../x`), or a value that
/// contains a NUL.
#[derive(Clone, Debug)]
pub struct PathPattern(pub(super) Shape);

#[derive(Clone, Debug)]
pub(super) enum Shape {
    Never,
    Empty,
    /// A pattern without a wildcard: matches this path and its descendants.
    Below(Located<Box<str>>),
    /// A pattern with wildcards but without `**`: matches a fixed number of components.
    Level(Located<Glob>),
    /// A pattern with `**`: the runs of components before, between and after each `**`.
    Recursive {
        absolute: bool,
        head: Box<[Glob]>,
        middle: Box<[ComponentSearch]>,
        tail: Box<[Glob]>,
    },
}

/// The components of an absolute or relative path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Located<C> {
    pub(super) absolute: bool,
    pub(super) components: Vec<C>,
}

impl PathPattern {
    /// Compiles a pattern. Every text is a valid path pattern.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        PathPattern(Shape::new(pattern))
    }

    /// Returns whether the path `value` matches.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        if value.is_empty() {
            return matches!(self.0, Shape::Empty);
        }
        normalise(value).is_some_and(|path| self.matches_normalised(&path))
    }

    /// Returns an upper bound of the cost to match a normalised path.
    pub(super) fn weight(&self) -> Matching {
        match &self.0 {
            Shape::Never | Shape::Empty => Matching::default(),
            Shape::Below(top) => Matching { fixed: 16 * top.components.len() as u64, per_byte: 1, per_component: 0 },
            Shape::Level(level) => of_globs(&level.components),
            Shape::Recursive { head, middle, tail, .. } => {
                let (head, tail) = (of_globs(head), of_globs(tail));
                // The searches run one after another; each search examines only the components that follow the match of
                // the previous search.
                let middle =
                    middle.iter().map(ComponentSearch::weight).fold(Matching::default(), |one, other| Matching {
                        fixed: one.fixed + other.fixed,
                        per_byte: one.per_byte.max(other.per_byte),
                        per_component: one.per_component.max(other.per_component),
                    });
                Matching {
                    fixed: head.fixed + middle.fixed + tail.fixed,
                    per_byte: head.per_byte.max(middle.per_byte).max(tail.per_byte),
                    per_component: middle.per_component,
                }
            }
        }
    }

    pub(super) fn matches_normalised(&self, path: &Located<&str>) -> bool {
        match &self.0 {
            Shape::Never | Shape::Empty => false,
            Shape::Below(top) => {
                let mut components = path.components.iter();
                top.absolute == path.absolute
                    && top.components.iter().all(|wanted| components.next().is_some_and(|next| **wanted == **next))
            }
            Shape::Level(level) => level.absolute == path.absolute && all_match(&level.components, &path.components),
            Shape::Recursive { absolute, head, middle, tail } => {
                *absolute == path.absolute && matches_around_stars(head, middle, tail, &path.components)
            }
        }
    }
}

impl Shape {
    fn new(pattern: &str) -> Self {
        if pattern.is_empty() {
            return Shape::Empty;
        }
        let Some(Located { absolute, components }) = reduce(pattern, |previous| previous != "**") else {
            return Shape::Never;
        };
        let mut runs: Vec<&[&str]> = components.split(|component| *component == "**").collect();
        let globs = |run: &[&str]| run.iter().map(|component| Glob::new(component)).collect::<Box<[Glob]>>();
        let Some(tail) = runs.pop() else { return Shape::Never };
        let tail = globs(tail);
        if runs.is_empty() {
            let texts: Option<Vec<Box<str>>> = tail.iter().map(|glob| glob.literal().map(Box::from)).collect();
            return match texts {
                Some(components) => Shape::Below(Located { absolute, components }),
                None => Shape::Level(Located { absolute, components: tail.into_vec() }),
            };
        }
        let middle = runs.split_off(1);
        if middle.iter().any(|run| run.len() > RUN_COMPONENTS_MAX) {
            return Shape::Never;
        }
        let middle = middle.into_iter().filter(|run| !run.is_empty()).map(ComponentSearch::new).collect();
        Shape::Recursive { absolute, head: runs.pop().map(globs).unwrap_or_default(), middle, tail }
    }
}

/// Returns the components of a value, or `None` if no pattern may match the value.
pub(super) fn normalise(value: &str) -> Option<Located<&str>> {
    if value.contains('\0') { None } else { reduce(value, |_| true) }
}

/// Resolves `.`, `..` and `//`. Returns `None` if a relative path leads outside its start, or if `..` follows a
/// component for which `removable` returns false.
fn reduce(path: &str, removable: impl Fn(&str) -> bool) -> Option<Located<&str>> {
    let absolute = path.starts_with('/');
    let mut components: Vec<&str> = Vec::new();
    for component in path.split('/') {
        match component {
            "" | "." => {}
            ".." => match components.pop() {
                Some(previous) if removable(previous) => {}
                None if absolute => {}
                Some(_) | None => return None,
            },
            name => components.push(name),
        }
    }
    Some(Located { absolute, components })
}

/// Returns the cost of comparing each of these globs with one component.
fn of_globs(globs: &[Glob]) -> Matching {
    globs.iter().map(Glob::weight).fold(Matching::default(), |sum, glob| Matching {
        fixed: sum.fixed.saturating_add(glob.fixed),
        per_byte: sum.per_byte.max(glob.per_byte),
        per_component: 0,
    })
}

fn all_match(globs: &[Glob], components: &[&str]) -> bool {
    globs.len() == components.len() && globs.iter().zip(components).all(|(glob, component)| glob.matches(component))
}

/// Returns whether the components match a pattern with `**`. As in a glob, the leftmost match of each run between two
/// `**` is sufficient.
fn matches_around_stars(head: &[Glob], middle: &[ComponentSearch], tail: &[Glob], components: &[&str]) -> bool {
    if components.len() < head.len() + tail.len() {
        return false;
    }
    let (start, rest) = components.split_at(head.len());
    let (rest, end) = rest.split_at(rest.len() - tail.len());
    all_match(head, start) && all_match(tail, end) && middle.iter().try_fold(rest, |rest, run| run.find(rest)).is_some()
}
