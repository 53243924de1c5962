//! The language of a caller. The texts of a plugin are translated key by key into the best matching language. A key
//! without a translation keeps the text of the manifest.

use monstrum_guardian::Denial;
use monstrum_manifest::{Locales, accepted_languages};

/// The language for a caller that states no preference. Most manifests are in this language.
const DEFAULT: &str = "en-US";
/// The maximum length of an Accept-Language header in bytes. Browsers send fewer than 100 bytes.
const HEADER_BYTES_MAX: usize = 1024;

/// A language in which the texts of the platform are available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UiLanguage {
    English,
    Chinese,
}

/// The languages that a caller prefers: the value of an Accept-Language header (RFC 9110).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Language(String);

impl Language {
    /// Creates the preferences from the value of the header. If a request has several header lines, the caller of this
    /// function joins their values with commas. Ignores a value that exceeds the maximum length.
    pub fn new(accept_language: String) -> Language {
        if accept_language.len() > HEADER_BYTES_MAX { Language::default() } else { Language(accept_language) }
    }

    /// Returns the translation that matches the caller's preferences best, or `None` for the texts of the manifest.
    pub fn best<'a>(&self, locales: &'a Locales) -> Option<&'a str> {
        if self.0.is_empty() { None } else { locales.best(&self.0) }
    }

    /// Returns the language for the texts of the platform: Chinese if the caller prefers it to English, and English
    /// otherwise.
    pub fn ui_language(&self) -> UiLanguage {
        let primary = |tag: &&str| tag.split('-').next().unwrap_or_default().to_ascii_lowercase();
        let known = accepted_languages(&self.0).iter().map(primary).find(|tag| tag == "en" || tag == "zh");
        if known.as_deref() == Some("zh") { UiLanguage::Chinese } else { UiLanguage::English }
    }

    /// Returns the language tag (BCP 47) that the caller prefers. Plugins answer in this language.
    pub fn tag(&self) -> &str {
        accepted_languages(&self.0).first().copied().unwrap_or(DEFAULT)
    }

    /// Translates the denial into the caller's language, if the plugin has a translated template for the denial.
    pub fn of_denial(&self, denial: Denial, locales: &Locales) -> Denial {
        denial.translated(|dimension| {
            let key = format!("scope_dimensions.{dimension}.error_template");
            Some(locales.text(self.best(locales), &key, "")).filter(|template| !template.is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_has_texts_in_english_and_chinese() {
        for (header, language) in [
            ("", UiLanguage::English),
            ("zh-CN", UiLanguage::Chinese),
            ("fr, ZH;q=0.5, en;q=0.4", UiLanguage::Chinese),
            ("en, zh;q=0.9", UiLanguage::English),
            ("fr", UiLanguage::English),
        ] {
            assert_eq!(Language::new(header.to_owned()).ui_language(), language, "{header}");
        }
    }

    #[test]
    fn the_tag_is_the_first_of_the_most_preferred() {
        for (header, tag) in [
            ("", "en-US"),
            ("*", "en-US"),
            ("zh-CN", "zh-CN"),
            ("fr;q=0.5, zh-CN, en;q=0.9, de", "zh-CN"),
            ("en;q=0.1,pt-BR;q=0.8", "pt-BR"),
            ("de;q=0", "en-US"),
            ("de;q=x, ../etc, fr;q=2, \u{e9}", "en-US"),
        ] {
            assert_eq!(Language::new(header.to_owned()).tag(), tag, "{header}");
        }
        assert_eq!(Language::new("de,".repeat(1000)).tag(), "en-US");
    }
}
