//! The caller's language, as its Accept-Language header says (RFC 9110). Texts of a plugin are given in the translation
//! that suits it best, and in the manifest's own words where there is none.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use http::header;
use monstrum_manifest::Locales;

use crate::app::App;

/// The language of a caller that names none: that of the texts which manifests usually hold.
const DEFAULT: &str = "en-US";
/// How many languages of a list are looked at: browsers send fewer than ten.
const ACCEPTED_MAX: usize = 32;

/// What the caller would like to read.
pub struct Language(String);

impl FromRequestParts<Arc<App>> for Language {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Infallible> {
        let lines = parts.headers.get_all(header::ACCEPT_LANGUAGE).iter();
        // A line that is no text names no language.
        let lines: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
        Ok(Language(lines.join(",")))
    }
}

impl Language {
    /// The translation that the caller likes best; `None` where the manifest's own texts serve as well as any.
    pub fn best<'a>(&self, locales: &'a Locales) -> Option<&'a str> {
        locales.best(&self.0)
    }

    /// The language tag (BCP 47) that the caller likes best, for a plugin to answer in.
    pub fn tag(&self) -> String {
        let ranges = self.0.split(',').take(ACCEPTED_MAX).filter_map(range);
        // The first of the best: `max_by` would take the last.
        let best = ranges.reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.filter(|(_, weight)| *weight > 0.0).map_or(DEFAULT, |(tag, _)| tag).to_owned()
    }
}

/// One entry of the list with its weight.
fn range(entry: &str) -> Option<(&str, f32)> {
    let (tag, parameters) = entry.split_once(';').unwrap_or((entry, ""));
    let tag = tag.trim();
    let is_tag = !tag.is_empty()
        && tag.len() <= 35
        && tag.split('-').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let weight = match parameters.trim() {
        "" => 1.0,
        text => text.strip_prefix("q=")?.parse().ok().filter(|weight| (0.0..=1.0).contains(weight))?,
    };
    is_tag.then_some((tag, weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_the_first_of_the_best() {
        for (header, tag) in [
            ("", "en-US"),
            ("*", "en-US"),
            ("zh-CN", "zh-CN"),
            ("fr;q=0.5, zh-CN, en;q=0.9, de", "zh-CN"),
            ("en;q=0.1,pt-BR;q=0.8", "pt-BR"),
            ("de;q=0", "en-US"),
            ("de;q=x, ../etc, fr;q=2, \u{e9}", "en-US"),
        ] {
            assert_eq!(Language(header.to_owned()).tag(), tag, "{header}");
        }
    }
}
