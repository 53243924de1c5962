//! The frame around each page: the bars, the words, the look, and the messages of the session.

use std::fmt::Display;
use std::sync::LazyLock;

use askama::Template;
use axum::response::{Html, IntoResponse, Response};
use http::StatusCode;
use monstrum_core::console_sessions::Message;
use monstrum_types::UtcMillis;

use crate::gateway::console::assets::{ASSETS, Assets};
use crate::gateway::console::client::Failure;
use crate::gateway::console::fields::{self, Faulty, Marks};
use crate::gateway::console::form::{FORM_ID, TOKEN, Tokens, VERSION};
use crate::gateway::console::rules::{self, Stage};
use crate::gateway::console::text::Text;
use crate::gateway::console::why::Check;
use crate::gateway::console::words::Words;

/// The answer of a page.
pub(super) type Page = Result<Response, Failure>;

/// What a page shows around its content.
pub(super) struct Frame {
    pub words: &'static Words,
    pub lang: &'static str,
    pub theme: &'static str,
    pub css: &'static str,
    pub js: &'static str,
    pub icon: &'static str,
    pub title: String,
    pub path: String,
    pub now: UtcMillis,
    pub messages: Vec<Message>,
    /// What only a page of a session has.
    pub inside: Option<Inside>,
}

/// The part of a frame that a session has.
pub(super) struct Inside {
    pub workspace: Text,
    /// The start of the paths of the pages of this workspace.
    pub base: String,
    pub workspaces: Vec<(Text, String)>,
    pub groups: Vec<NavGroup>,
    pub key_name: Text,
    pub key_kind: &'static str,
    pub tokens: Tokens,
}

/// A group of entries in the side bar.
pub(super) struct NavGroup {
    pub label: &'static str,
    pub items: Vec<NavItem>,
}

/// An entry in the side bar.
pub(super) struct NavItem {
    pub label: &'static str,
    pub href: String,
    pub count: Option<u64>,
    pub current: bool,
}

impl Frame {
    /// Returns the text of a key.
    pub(super) fn t<'a>(&self, key: &'a str) -> &'a str {
        self.words.text(key)
    }

    /// Returns the text of a key with one value.
    pub(super) fn t1(&self, key: &str, value: impl Display + Sync) -> String {
        self.words.filled(key, &[&value])
    }

    /// Returns the text of a key with two values.
    pub(super) fn t2(&self, key: &str, first: impl Display + Sync, second: impl Display + Sync) -> String {
        self.words.filled(key, &[&first, &second])
    }

    /// Returns the word for a value of the API, such as the status of a call. A value that has no word is shown as it
    /// is.
    pub(super) fn word<'a>(&'a self, group: &str, value: &'a str) -> &'a str {
        self.words.known(&format!("{group}.{value}")).unwrap_or(value)
    }

    /// Returns what a rule says, in words. A rule that is not one of a check has none.
    pub(super) fn rule(&self, code: &Text) -> Option<String> {
        rules::sentence(self.words, code.raw())
    }

    /// Returns what a rule says about a call for which a gate may ask a person, in words.
    pub(super) fn rule_of(&self, code: &Text, asks: bool) -> Option<String> {
        if asks { rules::asking(self.words, code.raw()) } else { self.rule(code) }
    }

    /// Returns why a rule hides a tool, in words. A rule that is not one of a check has none.
    pub(super) fn hiding(&self, code: &Text) -> Option<String> {
        rules::hiding(self.words, code.raw())
    }

    /// Returns the field that an error names by this place, if the place is that of a field.
    pub(super) fn faulty(&self, place: &Text) -> Option<Faulty> {
        fields::at(self.words, place.raw())
    }

    /// Returns what errors say of a field. `hint` is the id of the hint of the field, or empty.
    pub(super) fn marks(&self, errors: &[(Text, Text)], field: &str, hint: &str) -> Marks {
        Marks::of(self.words, errors, field, hint)
    }

    /// Returns what errors say of a field whose hint has the id of the field with `-hint`.
    pub(super) fn marks_hinted(&self, errors: &[(Text, Text)], field: &str) -> Marks {
        Marks::of(self.words, errors, field, &format!("{field}-hint"))
    }

    /// Returns what errors say of the values of a scope.
    pub(super) fn marks_of_scope(&self, errors: &[(Text, Text)], key: &str) -> Marks {
        self.marks_hinted(errors, &format!("scope.entries.{key}"))
    }

    /// Returns what errors say of a limit.
    pub(super) fn marks_of_limit(&self, errors: &[(Text, Text)], name: &str) -> Marks {
        self.marks(errors, &format!("limit.{name}"), "")
    }

    /// Returns the stages of a check.
    pub(super) fn stages(&self, check: &Check) -> Vec<Stage> {
        rules::stages(self.words, check)
    }

    /// Returns a token for the form with this action.
    pub(super) fn token(&self, action: &str) -> String {
        self.inside.as_ref().map(|inside| inside.tokens.token(action)).unwrap_or_default()
    }

    /// Returns the path of a page of this workspace.
    pub(super) fn to(&self, rest: &str) -> String {
        let base = self.inside.as_ref().map_or("/console", |inside| &inside.base);
        format!("{base}/{rest}")
    }

    /// Returns the words of the script as JSON.
    pub(super) fn script_words(&self) -> String {
        let words = serde_json::json!({
            "copy": self.t("script.copy"),
            "copied": self.t("script.copied"),
            "show": self.t("script.show"),
            "keys": self.t("script.keys"),
            "close": self.t("script.close"),
            "off": self.t("script.off"),
            "on": self.t("script.on"),
            "list": [
                self.t("script.key_find"),
                self.t("script.key_bots"),
                self.t("script.key_resources"),
                self.t("script.key_plugins"),
                self.t("script.key_activity"),
                self.t("script.key_rows"),
                self.t("script.key_pause"),
                self.t("script.key_help"),
                self.t("script.key_close"),
            ],
        });
        words.to_string()
    }

    /// Returns how long ago a time is, in words.
    pub(super) fn ago(&self, at: &UtcMillis) -> String {
        let seconds = self.now.since_ms(*at) / 1000;
        let (key, number) = match seconds.abs() {
            0..60 => ("time.seconds", seconds),
            60..3600 => ("time.minutes", seconds / 60),
            3600..86400 => ("time.hours", seconds / 3600),
            _ => ("time.days", seconds / 86400),
        };
        let span = self.t1(key, number.abs());
        if seconds < 0 { self.t1("time.in", span) } else { self.t1("time.ago", span) }
    }

    /// Returns a text whose parts between backticks are shown as code, as messages of the API mean them.
    pub(super) fn prose(&self, text: impl Display) -> Prose {
        Prose::of(&text.to_string())
    }

    /// Returns a time in words.
    pub(super) fn time(&self, at: &UtcMillis) -> Time {
        Time { at: *at, words: self.ago(at) }
    }

    /// Returns a status. Its class decides its shape and its colour.
    pub(super) fn status(&self, class: &str, word: &str) -> Status {
        Status { class: class.to_owned(), word: word.to_owned() }
    }

    /// Returns the hidden fields of a form with this action.
    pub(super) fn token_field(&self, action: impl AsRef<str>) -> Hidden {
        Hidden { name: TOKEN, value: self.token(action.as_ref()) }
    }

    /// Returns the hidden field with the token of the form whose action is below `base`.
    pub(super) fn token_at(&self, base: &str, rest: &str) -> Hidden {
        self.token_field(format!("{base}/{rest}"))
    }

    /// Returns the hidden field with the version of the object that the page shows.
    pub(super) fn version_field(&self, version: &str) -> Hidden {
        Hidden { name: VERSION, value: version.to_owned() }
    }

    /// Returns the hidden field with a fresh id of a form that creates an object.
    pub(super) fn form_id(&self) -> Hidden {
        Hidden { name: FORM_ID, value: uuid::Uuid::new_v4().to_string() }
    }
}

/// A status: a shape by its class, and a word.
#[derive(Template)]
#[template(source = r#"<span class="status {{ class }}">{{ word }}</span>"#, ext = "html")]
pub(super) struct Status {
    class: String,
    word: String,
}

impl askama::filters::HtmlSafe for Status {}

/// A text with parts that are shown as code.
#[derive(Debug, PartialEq, Eq, Template)]
#[template(
    source = "{% for (is_code, text) in parts %}{% if *is_code %}<code>{{ text }}</code>{% else %}{{ text }}{% endif %}{% endfor %}",
    ext = "html"
)]
pub(super) struct Prose {
    /// Whether a part is code, and its text.
    parts: Vec<(bool, String)>,
}

impl askama::filters::HtmlSafe for Prose {}

impl Prose {
    /// Splits a text at its pairs of backticks. A backtick without another one, and two that enclose nothing, stay as
    /// they are.
    pub(super) fn of(text: &str) -> Prose {
        let mut parts = Vec::new();
        let (mut plain, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once('`') {
            plain.push_str(before);
            match after.split_once('`') {
                Some((code, after)) if !code.is_empty() => {
                    parts.push((false, std::mem::take(&mut plain)));
                    parts.push((true, code.to_owned()));
                    rest = after;
                }
                Some((_, after)) => {
                    plain.push_str("``");
                    rest = after;
                }
                None => {
                    plain.push('`');
                    rest = after;
                    break;
                }
            }
        }
        plain.push_str(rest);
        parts.push((false, plain));
        parts.retain(|(_, text)| !text.is_empty());
        Prose { parts }
    }
}

/// A time in words, with the exact time as a title.
#[derive(Template)]
#[template(source = r#"<time datetime="{{ at }}" title="{{ at }}">{{ words }}</time>"#, ext = "html")]
pub(super) struct Time {
    at: UtcMillis,
    words: String,
}

impl askama::filters::HtmlSafe for Time {}

/// A hidden field of a form.
#[derive(Template)]
#[template(source = r#"<input type="hidden" name="{{ name }}" value="{{ value }}">"#, ext = "html")]
pub(super) struct Hidden {
    name: &'static str,
    value: String,
}

impl askama::filters::HtmlSafe for Hidden {}

/// Renders a page.
pub(super) fn render(page: &impl Template) -> Response {
    render_as(StatusCode::OK, page)
}

/// Renders a page with another status than 200.
pub(super) fn render_as(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page of the console cannot be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Redirects the browser to a page of this console.
pub(super) fn see_other(path: &str) -> Response {
    let location = http::HeaderValue::from_str(path).unwrap_or(http::HeaderValue::from_static("/console"));
    (StatusCode::SEE_OTHER, [(http::header::LOCATION, location)]).into_response()
}

/// Returns the paths of the assets.
pub(super) fn assets() -> &'static Assets {
    LazyLock::force(&ASSETS)
}

/// Returns whether a call with this status was denied.
pub(super) fn is_denied(status: &str) -> bool {
    matches!(status, "scope_violation" | "permission_denied")
}

/// Returns the class of a call's status in the style sheet.
pub(super) fn class_of(status: &str) -> &'static str {
    match status {
        "success" => "success",
        "scope_violation" | "permission_denied" => "denied",
        "approval_required" => "waiting",
        "running" => "running",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_between_backticks_are_code_and_markup_is_text() {
        const CASES: [(&str, &str); 8] = [
            ("add `a/b` to `repos` of x", "add <code>a/b</code> to <code>repos</code> of x"),
            ("`a`", "<code>a</code>"),
            ("plain", "plain"),
            ("", ""),
            ("one ` alone", "one ` alone"),
            ("`a` and ` alone", "<code>a</code> and ` alone"),
            ("nothing `` here `a`", "nothing `` here <code>a</code>"),
            ("<b> `<i>&`", "&#60;b&#62; <code>&#60;i&#62;&#38;</code>"),
        ];
        for (text, expected) in CASES {
            assert_eq!(Prose::of(text).render().unwrap(), expected, "{text}");
        }
    }
}
