//! Labels: what a caller has read, as far as gates ask for it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The word for every label, in lists and in stored texts. No label has this name.
const EVERY: &str = "*";
static NONE: LazyLock<Arc<BTreeSet<String>>> = LazyLock::new(Arc::default);

/// The labels that a call, a task or a session carries: those of the resources whose results were read. Labels can only
/// be added.
///
/// As JSON, labels are a list of names, or the list `["*"]` for a caller of which the host cannot know what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Option<Arc<BTreeSet<String>>>);

impl Labels {
    /// Every label: nothing is known about what was read, so every gate that asks for labels applies.
    pub const ALL: Labels = Labels(None);

    /// Returns no labels.
    #[must_use]
    pub fn none() -> Labels {
        Labels(Some(Arc::clone(&NONE)))
    }

    /// Returns every label.
    #[must_use]
    pub const fn all() -> Labels {
        Labels::ALL
    }

    /// Returns the labels in a stored text, which [`Labels`] writes with `to_string`. A text that was not written so
    /// counts as every label.
    #[must_use]
    pub fn from_text(text: &str) -> Labels {
        let is_name = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        if words.iter().all(|word| is_name(word)) {
            words.into_iter().map(str::to_owned).collect()
        } else {
            Labels::ALL
        }
    }

    /// Adds labels.
    pub fn add(&mut self, others: &Labels) {
        match (&mut self.0, &others.0) {
            (Some(names), Some(others)) if !others.is_subset(names) => {
                Arc::make_mut(names).extend(others.iter().cloned());
            }
            (Some(_), Some(_)) => {}
            (names, None) => *names = None,
            (None, Some(_)) => {}
        }
    }

    /// Returns these labels and others.
    #[must_use]
    pub fn with(mut self, others: &Labels) -> Labels {
        self.add(others);
        self
    }

    /// Returns whether one of the names is among these labels.
    #[must_use]
    pub fn has_any(&self, names: &[String]) -> bool {
        self.0.as_ref().is_none_or(|own| names.iter().any(|name| own.contains(name)))
    }

    /// Returns whether these are no labels.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.as_ref().is_some_and(|names| names.is_empty())
    }

    /// Returns whether these are all labels.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the names in their order, or `*` for every label.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match &self.0 {
            Some(names) => names.iter().cloned().collect(),
            None => vec![EVERY.to_owned()],
        }
    }
}

impl Default for Labels {
    fn default() -> Labels {
        Labels::none()
    }
}

impl FromIterator<String> for Labels {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Labels {
        let names: BTreeSet<String> = names.into_iter().collect();
        if names.contains(EVERY) { Labels::ALL } else { Labels(Some(Arc::new(names))) }
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.names().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[&str]) -> Labels {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn labels_only_grow() {
        let mut read = Labels::none();
        assert!(read.is_none() && !read.has_any(&["private".to_owned()]));
        read.add(&labels(&["untrusted", "private"]));
        read.add(&labels(&["private"]));
        assert_eq!(read, labels(&["private", "untrusted"]));
        assert!(read.has_any(&["other".to_owned(), "private".to_owned()]) && !read.has_any(&["other".to_owned()]));
        read.add(&Labels::all());
        read.add(&labels(&["private"]));
        assert!(read.is_all() && read.has_any(&["other".to_owned()]) && read.has_any(&[]));
    }

    #[test]
    fn texts_that_cannot_be_read_are_every_label() {
        for known in [Labels::none(), labels(&["a"]), labels(&["a", "b-c"]), Labels::all()] {
            assert_eq!(Labels::from_text(&known.to_string()), known);
            let json = serde_json::to_string(&known).unwrap();
            assert_eq!(serde_json::from_str::<Labels>(&json).unwrap(), known);
        }
        for text in ["*", "a *", "A", "[\"a\"]", "a,b"] {
            assert!(Labels::from_text(text).is_all(), "{text}");
        }
        assert!(serde_json::from_str::<Labels>("\"untrusted\"").is_err());
    }
}
