//! The words of the console, in English and in Chinese. Each page has one file of words for each language. The files of
//! one page have the same keys and placeholders, which a test checks.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::LazyLock;

use monstrum_core::language::UiLanguage;

/// The words of one language, by key.
pub(super) struct Words {
    tag: &'static str,
    texts: HashMap<String, String>,
}

/// Embeds the files of words of a language.
macro_rules! files {
    ($tag:literal: $($page:literal),+) => {
        [$(($page, include_str!(concat!("../../../assets/console/words/", $tag, "/", $page, ".json")))),+]
    };
}

/// Lists the pages that have words, for each language.
macro_rules! of_language {
    ($tag:literal) => {
        files!(
            $tag: "frame", "bots", "why", "activity", "bind", "resources", "control", "connect", "conversations",
            "instance", "demo", "device", "gates", "tasks", "budgets", "schedules", "events", "webhooks", "workflows",
            "runs"
        )
    };
}

static ENGLISH: LazyLock<Words> = LazyLock::new(|| Words::parse("en-US", &of_language!("en-US")));
static CHINESE: LazyLock<Words> = LazyLock::new(|| Words::parse("zh-CN", &of_language!("zh-CN")));

impl Words {
    /// Returns the words of a language.
    pub(super) fn of(language: UiLanguage) -> &'static Words {
        match language {
            UiLanguage::English => &ENGLISH,
            UiLanguage::Chinese => &CHINESE,
        }
    }

    /// Returns the language tag (BCP 47).
    pub(super) fn tag(&self) -> &'static str {
        self.tag
    }

    /// Returns the text of a key. A test checks that each key of a page exists.
    pub(super) fn text<'a>(&'a self, key: &'a str) -> &'a str {
        self.texts.get(key).map_or(key, String::as_str)
    }

    /// Returns the text of a key if the key exists.
    pub(super) fn known(&self, key: &str) -> Option<&str> {
        self.texts.get(key).map(String::as_str)
    }

    /// Returns the text of a key with its placeholders `{0}`, `{1}` and so on replaced by `values`.
    pub(super) fn filled(&self, key: &str, values: &[&(dyn Display + Sync)]) -> String {
        let mut rest = self.text(key);
        let mut filled = String::with_capacity(rest.len() + 32);
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            let value = after.split_once('}').and_then(|(place, after)| {
                let value = values.get(place.parse::<usize>().ok()?)?;
                Some((value, after))
            });
            match value {
                Some((value, after)) => {
                    filled.push_str(&value.to_string());
                    rest = after;
                }
                None => {
                    filled.push('{');
                    rest = after;
                }
            }
        }
        filled.push_str(rest);
        filled
    }

    fn parse(tag: &'static str, files: &[(&str, &str)]) -> Words {
        let mut texts = HashMap::new();
        for (page, file) in files {
            let read: HashMap<String, String> = serde_json::from_str(file)
                .unwrap_or_else(|error| panic!("the words {tag}/{page}.json are an object of texts: {error}"));
            texts.extend(read);
        }
        Words { tag, texts }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn places(text: &str) -> BTreeSet<&str> {
        text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(place, _)| place).collect()
    }

    #[test]
    fn both_languages_have_the_same_keys_and_placeholders() {
        let keys = |words: &Words| words.texts.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(keys(&ENGLISH), keys(&CHINESE));
        for (key, text) in &ENGLISH.texts {
            assert_eq!(places(text), places(CHINESE.text(key)), "{key}");
        }
    }

    #[test]
    fn placeholders_are_replaced_once() {
        let words = Words { tag: "en-US", texts: HashMap::from([("a".into(), "{0} of {1}{".into())]) };
        assert_eq!(words.filled("a", &[&"{1}", &2]), "{1} of 2{");
    }

    /// Returns the keys that occur in `text` as the first argument of one of the functions for words.
    fn keys_used(text: &str) -> Vec<&str> {
        [".t(\"", ".t1(\"", ".t2(\"", "filled(\"", ".text(\""]
            .into_iter()
            .flat_map(|call| {
                let found = text.match_indices(call);
                found.filter_map(move |(at, _)| text[at + call.len()..].split('"').next())
            })
            .filter(|key| key.contains('.') && !key.ends_with('.'))
            .collect()
    }

    /// Returns the path and the text of each file that can name words.
    fn sources() -> Vec<(std::path::PathBuf, String)> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut folders = vec![root.join("templates/console"), root.join("src/gateway/console")];
        let mut sources = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.ends_with("words.rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    sources.push((path, text));
                }
            }
        }
        assert!(sources.len() > 10, "{} files", sources.len());
        sources
    }

    #[test]
    fn each_key_of_a_page_exists() {
        for (path, text) in sources() {
            for key in keys_used(&text) {
                assert!(ENGLISH.texts.contains_key(key), "{} names the words {key}", path.display());
            }
        }
    }

    #[test]
    fn each_key_is_used_by_a_page() {
        let all: String = sources().into_iter().map(|(_, text)| text).collect();
        // A page names a key whole, or makes it of a group of words and a value of the API.
        let is_used = |key: &str| {
            let mut groups = key.match_indices('.').map(|(end, _)| &key[..end]);
            all.contains(&format!("\"{key}\""))
                || groups
                    .any(|group| all.contains(&format!("word(\"{group}\"")) || all.contains(&format!("\"{group}.{{")))
        };
        let unused: Vec<&String> = ENGLISH.texts.keys().filter(|key| !is_used(key)).collect();
        assert!(unused.is_empty(), "no page uses the words {unused:?}");
        assert!(!is_used("none.such") && !is_used("bots.such"), "the test finds words that no page uses");
    }
}
