//! Translations: flat JSON files that map keys to translations of the manifest's texts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::Manifest;

/// Maximum size of a translation file in bytes, equal to the maximum size of a manifest.
const FILE_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of languages of a plugin. Products are usually translated into fewer languages.
const LOCALES_MAX: usize = 200;
/// Maximum number of entries that are read from an Accept-Language header. Browsers send fewer than ten entries.
const ACCEPTED_MAX: usize = 32;

/// The translations of a plugin, by language tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Locales {
    files: BTreeMap<String, BTreeMap<String, String>>,
}

/// The reason for rejecting a translation file.
#[derive(Debug, thiserror::Error)]
pub enum LocaleError {
    /// The name of the file is not a language tag.
    #[error("`{0}` is not a language tag such as en-US")]
    Tag(String),
    /// There are too many files.
    #[error("the plugin has {0} languages; at most {LOCALES_MAX} are allowed")]
    TooMany(usize),
    /// A file is too large.
    #[error("the translation file for `{tag}` has {bytes} bytes; at most {FILE_BYTES_MAX} are allowed")]
    TooLarge {
        /// The language.
        tag: String,
        /// The size of the file.
        bytes: usize,
    },
    /// A file is not a JSON object of strings.
    #[error("the translation file for `{tag}` is not a JSON object of strings")]
    Shape {
        /// The language.
        tag: String,
        /// The error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
}

impl Locales {
    /// Reads the files of a plugin's locales folder, given as JSON text by language tag.
    ///
    /// # Errors
    /// Returns an error for the first file that is not a flat object of strings, is too large, or is not named after a
    /// language.
    pub fn load(files: BTreeMap<String, String>) -> Result<Locales, LocaleError> {
        if files.len() > LOCALES_MAX {
            return Err(LocaleError::TooMany(files.len()));
        }
        let mut loaded = BTreeMap::new();
        for (tag, text) in files {
            if !is_language_tag(&tag) {
                return Err(LocaleError::Tag(crate::error::cut(&tag, 64)));
            }
            if text.len() > FILE_BYTES_MAX {
                return Err(LocaleError::TooLarge { tag, bytes: text.len() });
            }
            match serde_json::from_str(&text) {
                Ok(texts) => loaded.insert(tag, texts),
                Err(source) => return Err(LocaleError::Shape { tag, source }),
            };
        }
        Ok(Locales { files: loaded })
    }

    /// Returns the available languages.
    pub fn tags(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Returns the available language that best matches an Accept-Language header (RFC 9110). For each accepted
    /// language, in order of preference, the function looks for the same tag, then for the tag without its last
    /// subtags, and then for any tag with the same primary subtag. Returns `None` if none of the accepted languages is
    /// available, or if the caller prefers English, in which the manifest's texts are written.
    #[must_use]
    pub fn best(&self, accept_language: &str) -> Option<&str> {
        for wanted in accepted_languages(accept_language) {
            let found = self.find(wanted);
            if found.is_some() {
                return found;
            }
            // Manifests are written in English, so a caller that accepts English receives the manifest's texts.
            if primary(wanted).eq_ignore_ascii_case("en") {
                return None;
            }
        }
        None
    }

    fn find(&self, wanted: &str) -> Option<&str> {
        let mut prefix = wanted;
        loop {
            if let Some(tag) = self.tags().find(|tag| tag.eq_ignore_ascii_case(prefix)) {
                return Some(tag);
            }
            match prefix.rsplit_once('-') {
                Some((shorter, _)) => prefix = shorter,
                None => break,
            }
        }
        self.tags().find(|tag| primary(tag).eq_ignore_ascii_case(prefix))
    }

    /// Returns the translation of `key` in the language `tag`, or `own`, the manifest's text, if
    /// the translation is missing.
    #[must_use]
    pub fn text<'a>(&'a self, tag: Option<&str>, key: &str, own: &'a str) -> &'a str {
        let translated = tag.and_then(|tag| self.files.get(tag)).and_then(|texts| texts.get(key));
        translated.map_or(own, String::as_str)
    }

    /// Returns a warning for each translation key that does not name a text of the manifest.
    #[must_use]
    pub fn warnings(&self, manifest: &Manifest) -> Vec<String> {
        let mut found = Vec::new();
        for (tag, texts) in &self.files {
            for key in texts.keys().filter(|key| !stands_for_a_text(manifest, key)) {
                let key = crate::error::cut(key, 128);
                found.push(format!("translation file `{tag}`: the key `{key}` does not name a text of the manifest"));
            }
        }
        found
    }
}

/// Returns whether `key` names a text of the manifest.
fn stands_for_a_text(manifest: &Manifest, key: &str) -> bool {
    let resource_type = &manifest.resource_type;
    if key == "description" {
        return true;
    }
    if let Some(name) = key.strip_prefix("tools.").and_then(|rest| rest.strip_suffix(".description")) {
        return resource_type.tools.iter().any(|tool| tool.name.as_str() == name);
    }
    if let Some(name) = key.strip_prefix("scope_dimensions.").and_then(|rest| rest.strip_suffix(".error_template")) {
        return resource_type.scope_dimensions.iter().any(|dimension| dimension.key == name);
    }
    let method = key.strip_prefix("auth_methods.").and_then(|rest| rest.split_once('.'));
    method.is_some_and(|(index, part)| {
        matches!(part, "label" | "description")
            && (0..resource_type.auth_methods.len()).any(|known| known.to_string() == index)
    })
}

/// Returns the languages of an Accept-Language header (RFC 9110), sorted by descending quality. Languages of equal
/// quality keep the caller's order. Entries with `q=0` and invalid language tags are omitted.
#[must_use]
pub fn accepted_languages(accept_language: &str) -> Vec<&str> {
    let ranges = accept_language.split(',').take(ACCEPTED_MAX).filter_map(range);
    let mut wanted: Vec<(&str, u16)> = ranges.filter(|(_, quality)| *quality > 0).collect();
    wanted.sort_by_key(|(_, quality)| std::cmp::Reverse(*quality));
    wanted.into_iter().map(|(tag, _)| tag).collect()
}

/// Returns the primary language subtag, without script and region.
fn primary(tag: &str) -> &str {
    tag.split_once('-').map_or(tag, |(language, _)| language)
}

/// Parses one entry of Accept-Language, with its quality in thousandths. Returns `None` for invalid entries and for
/// `*`.
fn range(entry: &str) -> Option<(&str, u16)> {
    let mut parts = entry.split(';').map(str::trim);
    let tag = parts.next().filter(|tag| is_language_tag(tag))?;
    let quality = match parts.next() {
        None => 1_000,
        Some(weight) => thousandths(weight.strip_prefix("q=").or_else(|| weight.strip_prefix("Q="))?)?,
    };
    Some((tag, quality))
}

/// Parses a qvalue such as `0.8` and returns it in thousandths.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction: u16 = format!("{fraction:0<3}").parse().ok()?;
    match whole {
        "0" => Some(fraction),
        "1" if fraction == 0 => Some(1_000),
        _ => None,
    }
}

/// Returns whether `text` has the form of a language tag (BCP 47): parts of at most 8 letters and digits, separated by
/// `-`. The first part contains only letters.
fn is_language_tag(text: &str) -> bool {
    let part = |part: &str| (1..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 64
        && text.split('-').all(part)
        && text.split('-').next().is_some_and(|first| first.bytes().all(|byte| byte.is_ascii_alphabetic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locales(files: &[(&str, &str)]) -> Result<Locales, LocaleError> {
        Locales::load(files.iter().map(|(tag, text)| ((*tag).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn the_best_language_is_found() {
        let locales = locales(&[("en-US", "{}"), ("zh-CN", "{}"), ("zh-TW", "{}"), ("pt", "{}")]).unwrap();
        for (accept, best) in [
            ("", None),
            ("*", None),
            ("fr", None),
            ("zh-CN", Some("zh-CN")),
            ("ZH-cn", Some("zh-CN")),
            ("zh", Some("zh-CN")),
            ("zh-TW, zh;q=0.9", Some("zh-TW")),
            ("zh-Hant-HK", Some("zh-CN")),
            ("en-GB", Some("en-US")),
            ("pt-BR", Some("pt")),
            ("fr, de;q=0.9, en;q=0.1", Some("en-US")),
            ("en;q=0.5, zh;q=0.8", Some("zh-CN")),
            ("en;q=0", None),
            ("en;q=0, zh;q=0.001", Some("zh-CN")),
            ("en;q=2, zh;q=x, pt;q=0.1234", None),
            ("e n, \u{e9}", None),
            ("fr, en-GB;q=0.9, zh;q=0.8", Some("en-US")),
        ] {
            assert_eq!(locales.best(accept), best, "{accept}");
        }
    }

    #[test]
    fn the_manifest_serves_english_if_there_is_no_english_file() {
        let locales = locales(&[("zh-CN", "{}"), ("de", "{}")]).unwrap();
        for (accept, best) in
            [("en, zh;q=0.5", None), ("zh, en;q=0.5", Some("zh-CN")), ("fr, en-GB;q=0.5, de;q=0.1", None)]
        {
            assert_eq!(locales.best(accept), best, "{accept}");
        }
    }

    #[test]
    fn texts_fall_back_key_by_key() {
        let locales = locales(&[("de", r#"{"description": "Probe"}"#)]).unwrap();
        assert_eq!(locales.text(Some("de"), "description", "Sample"), "Probe");
        assert_eq!(locales.text(Some("de"), "tools.a.description", "Own"), "Own");
        assert_eq!(locales.text(Some("fr"), "description", "Sample"), "Sample");
        assert_eq!(locales.text(None, "description", "Sample"), "Sample");
    }

    #[test]
    fn unknown_keys_are_reported() {
        let manifest = crate::parse("m", include_str!("../fixtures/github.yaml")).unwrap();
        let texts = r#"{
            "description": "", "tools.github_get_repo.description": "", "scope_dimensions.repos.error_template": "",
            "auth_methods.0.label": "", "auth_methods.1.description": "",
            "title": "", "tools.other.description": "", "auth_methods.2.label": "", "auth_methods.00.label": ""
        }"#;
        insta::assert_snapshot!(locales(&[("de", texts)]).unwrap().warnings(&manifest).join("\n"), @r###"
        translation file `de`: the key `auth_methods.00.label` does not name a text of the manifest
        translation file `de`: the key `auth_methods.2.label` does not name a text of the manifest
        translation file `de`: the key `title` does not name a text of the manifest
        translation file `de`: the key `tools.other.description` does not name a text of the manifest
        "###);
    }

    #[test]
    fn invalid_files_are_refused() {
        let says = |tag: &str, text: &str| locales(&[(tag, text)]).unwrap_err().to_string();
        assert_eq!(says("../x", "{}"), "`../x` is not a language tag such as en-US");
        for bad in ["[]", "{\"a\": {\"b\": \"c\"}}", "{\"a\": 1}", "{", "{\"a\": null}"] {
            assert_eq!(says("de", bad), "the translation file for `de` is not a JSON object of strings", "{bad}");
        }
        let large = format!("{{\"a\": \"{}\"}}", "x".repeat(FILE_BYTES_MAX));
        assert_eq!(says("de", &large), "the translation file for `de` has 262153 bytes; at most 262144 are allowed");
    }
}
