//! The fields of forms that errors name. The API names a place by a JSON pointer; a person looks for the label of a field.

use askama::Template;

use crate::gateway::console::page::Prose;
use crate::gateway::console::schema::PREFIX;
use crate::gateway::console::text::Text;
use crate::gateway::console::words::Words;

/// A field with an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Faulty {
    /// The id of the field on the page.
    pub field: Text,
    pub label: Text,
}

/// The names of values, each with the id of its field and the key of its label.
const FIELDS: [(&str, &str, &str); 41] = [
    ("name", "name", "bots.name"),
    ("description", "description", "bots.description"),
    ("system_prompt", "system_prompt", "bot.system_prompt"),
    ("model", "model", "bot.model"),
    ("monthly_token_budget", "monthly_token_budget", "bot.budget"),
    ("role_id", "role_id", "bind.role"),
    ("operations", "operations", "bind.operations"),
    ("allowed_operations", "operations", "bind.operations"),
    ("tools", "tools", "bind.tools"),
    ("allowed_tools", "tools", "bind.tools"),
    ("calls_per_minute", "calls_per_minute", "bind.calls_per_minute"),
    ("expires_at", "expires_at", "bind.expires_at"),
    ("allow_calls", "allow_calls", "bind.allow_calls"),
    ("delegate", "delegate", "bind.delegate"),
    ("allow_addresses", "allow_addresses", "resources.allow_addresses"),
    ("labels", "labels", "resources.labels"),
    ("bot_id", "bot_id", "call.bot"),
    ("instruction", "instruction", "tasks.instruction"),
    ("text", "text", "session.message"),
    ("monthly_tokens", "monthly_tokens", "budgets.monthly_tokens"),
    ("monthly_credits", "monthly_credits", "budgets.monthly_credits"),
    ("scopes", "scopes", "roles.scopes"),
    ("cron", "cron", "schedule.cron"),
    ("every_s", "every", "schedule.every"),
    ("at", "at", "schedule.at"),
    ("timezone", "timezone", "schedule.timezone"),
    ("overlap", "overlap", "schedule.overlap"),
    ("missed", "missed", "schedule.missed"),
    ("jitter_s", "jitter_s", "schedule.jitter"),
    ("pattern", "pattern", "subscription.pattern"),
    ("event_pattern", "event_pattern", "subscription.pattern"),
    ("from", "from", "from.title"),
    ("event", "event", "webhook.event"),
    ("header", "header", "webhook.header"),
    ("prefix", "prefix", "webhook.prefix"),
    ("headers", "headers", "webhook.headers"),
    ("dedupe_header", "dedupe_header", "webhook.dedupe"),
    ("input", "input", "run.input_json"),
    ("version", "version", "workflow.version"),
    ("as", "as", "run.outcome"),
    ("data", "data", "run.resolve_data"),
];

/// The members of a gate. Each is a field of the form of gates, and the words of the form have its label.
const OF_GATES: [&str; 10] =
    ["action", "tools", "operations", "when", "unless", "after", "approvers", "allow_starter", "expires_s", "reason"];

/// The objects of the API whose members have fields of their own.
const AROUND: [&str; 5] = ["draft", "permissions", "network", "narrow", "verify"];

/// Returns the field at a place: the name of a field, or a JSON pointer. A place without a field has none.
pub(super) fn at(words: &Words, place: &str) -> Option<Faulty> {
    let mut steps = place.split('/').filter(|step| !step.is_empty()).map(unescaped);
    let name = steps.find(|step| !AROUND.contains(&step.as_str()))?;
    let of = |field: String, label: &str| Some(Faulty { field: field.into(), label: label.into() });
    if let Some((_, field, label)) = FIELDS.iter().find(|(known, ..)| *known == name) {
        return of((*field).to_owned(), words.text(label));
    }
    if let Some(limit) = name.strip_prefix("limit.") {
        return of(name.clone(), words.known(&format!("limit.{limit}"))?);
    }
    let key = steps.next()?;
    match name.as_str() {
        "gates" => {
            let number = key.parse::<usize>().ok()?;
            let field = format!("gate.{number}");
            match steps.next() {
                None => of(field, &words.filled("gates.number", &[&(number + 1)])),
                Some(member) if OF_GATES.contains(&member.as_str()) => {
                    of(format!("{field}.{member}"), words.known(&format!("gates.{member}"))?)
                }
                Some(_) => None,
            }
        }
        "limits" => of(format!("limit.{key}"), words.known(&format!("limit.{key}"))?),
        "scope_constraints" => {
            let label = words.filled("bind.scope", &[&key]);
            of(format!("scope.entries.{key}"), &label)
        }
        "config" => of(format!("{PREFIX}{key}"), &key.replace('_', " ")),
        _ => None,
    }
}

/// Returns errors of a form that has all scopes in one field: their places below `scopes` are places of that field.
pub(super) fn of_one_field(errors: Vec<(Text, Text)>, scopes: &str) -> Vec<(Text, Text)> {
    let place = |(place, message): (Text, Text)| match place.raw().strip_prefix(scopes) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => (format!("scopes{rest}").into(), message),
        _ => (place, message),
    };
    errors.into_iter().map(place).collect()
}

/// What a page shows at a field: what errors say of it, also without a script.
pub(super) struct Marks {
    field: String,
    hint: String,
    messages: Vec<Prose>,
}

impl Marks {
    /// Returns what `errors` say of a field. `hint` is the id of the hint of the field, or empty.
    pub(super) fn of(words: &Words, errors: &[(Text, Text)], field: &str, hint: &str) -> Marks {
        let is_here = |place: &Text| at(words, place.raw()).is_some_and(|faulty| faulty.field.raw() == field);
        let named = errors.iter().filter(|(place, _)| is_here(place));
        let messages = named.map(|(_, message)| Prose::of(&message.to_string())).collect();
        Marks { field: field.to_owned(), hint: hint.to_owned(), messages }
    }

    /// Returns the class of the element around the field.
    pub(super) fn class(&self) -> &'static str {
        if self.messages.is_empty() { "" } else { " faulty" }
    }

    /// Returns the attributes of the field.
    pub(super) fn attributes(&self) -> Attributes<'_> {
        Attributes { marks: self, is_control: true }
    }

    /// Returns the attributes of a group of controls.
    pub(super) fn of_group(&self) -> Attributes<'_> {
        Attributes { marks: self, is_control: false }
    }

    /// Returns what stands below the field.
    pub(super) fn note(&self) -> Note<'_> {
        Note { marks: self }
    }
}

/// The attributes of a field: whether it is wrong, and the ids of the texts about it.
#[derive(Template)]
#[template(
    source = r#"{% if is_control && !marks.messages.is_empty() %} aria-invalid="true"{% endif %}{% if !marks.hint.is_empty() || !marks.messages.is_empty() %} aria-describedby="{{ marks.hint }}{% if !marks.messages.is_empty() %}{% if !marks.hint.is_empty() %} {% endif %}{{ marks.field }}-fault{% endif %}"{% endif %}"#,
    ext = "html"
)]
pub(super) struct Attributes<'a> {
    marks: &'a Marks,
    /// Whether the field is a control, and not a group of them.
    is_control: bool,
}

impl askama::filters::HtmlSafe for Attributes<'_> {}

/// The messages of errors below their field.
#[derive(Template)]
#[template(
    source = r#"{% if !marks.messages.is_empty() %}<p class="fault" id="{{ marks.field }}-fault">{% for message in marks.messages %}{{ message }} {% endfor %}</p>{% endif %}"#,
    ext = "html"
)]
pub(super) struct Note<'a> {
    marks: &'a Marks,
}

impl askama::filters::HtmlSafe for Note<'_> {}

/// Returns a step of a JSON pointer without its escapes.
fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;

    use super::*;

    #[test]
    fn a_place_is_named_by_the_label_of_its_field() {
        const CASES: [(&str, &str, &str); 17] = [
            ("/gates/0/when/repos/0", "gate.0.when", "When"),
            ("/draft/gates/2/reason", "gate.2.reason", "Reason"),
            ("/gates/1", "gate.1", "Gate 2"),
            ("/draft/role_id", "role_id", "Role"),
            ("/narrow/allowed_tools/1", "tools", "Tools"),
            ("/every_s", "every", "Every"),
            ("/from/1", "from", "Whose events"),
            ("/verify/prefix", "prefix", "Text before the signature"),
            ("/headers/8", "headers", "Headers in the event"),
            ("scopes/repos/0", "scopes", "Scopes (JSON)"),
            ("operations", "operations", "Operations"),
            ("/draft/permissions/allowed_tools/0", "tools", "Tools"),
            ("calls_per_minute", "calls_per_minute", "Calls in a minute"),
            ("limit.fuel", "limit.fuel", "Fuel"),
            ("/limits/fuel", "limit.fuel", "Fuel"),
            ("/scope_constraints/a~1b/0", "scope.entries.a/b", "Scope: a/b"),
            ("/config/api_base", "p.api_base", "api base"),
        ];
        let words = Words::of(UiLanguage::English);
        for (place, field, label) in CASES {
            assert_eq!(at(words, place), Some(Faulty { field: field.into(), label: label.into() }), "{place}");
        }
        for place in [
            "",
            "/",
            "/draft",
            "/limits",
            "/limits/other",
            "limit.other",
            "/config",
            "/unknown/0",
            "/gates",
            "/gates/x/when",
            "/gates/0/colour",
        ] {
            assert_eq!(at(words, place), None, "{place}");
        }
    }

    #[test]
    fn a_field_that_errors_name_is_marked_and_others_are_not() {
        let words = Words::of(UiLanguage::English);
        let errors: Vec<(Text, Text)> = vec![
            ("/name".into(), "must not be `<b>`".into()),
            ("/name".into(), "is taken".into()),
            ("".into(), "of no field".into()),
        ];
        let marks = Marks::of(words, &errors, "name", "name-hint");
        assert_eq!(marks.class(), " faulty");
        assert_eq!(
            marks.attributes().render().unwrap(),
            r#" aria-invalid="true" aria-describedby="name-hint name-fault""#
        );
        assert_eq!(
            marks.note().render().unwrap(),
            r#"<p class="fault" id="name-fault">must not be <code>&#60;b&#62;</code> is taken </p>"#
        );
        assert_eq!(marks.of_group().render().unwrap(), r#" aria-describedby="name-hint name-fault""#);
        let of = |field, hint| Marks::of(words, &errors, field, hint);
        let (plain, hinted) = (of("model", ""), of("model", "h"));
        assert_eq!((plain.class(), plain.attributes().render().unwrap()), ("", String::new()));
        assert_eq!(hinted.attributes().render().unwrap(), r#" aria-describedby="h""#);
        assert_eq!(plain.note().render().unwrap(), "");
    }

    #[test]
    fn places_of_scopes_are_places_of_their_one_field() {
        let told = |place: &str| vec![(Text::from(place), Text::default())];
        for (place, expected) in [
            ("/narrow/scope_constraints/a~1b/0", "scopes/a~1b/0"),
            ("/narrow/scope_constraints", "scopes"),
            ("/narrow/scope_constraints_of", "/narrow/scope_constraints_of"),
            ("/name", "/name"),
        ] {
            assert_eq!(of_one_field(told(place), "/narrow/scope_constraints")[0].0.raw(), expected);
        }
    }

    #[test]
    fn each_label_has_words() {
        for member in OF_GATES {
            assert!(Words::of(UiLanguage::Chinese).known(&format!("gates.{member}")).is_some(), "{member}");
        }
        for (name, _, label) in FIELDS {
            assert!(Words::of(UiLanguage::Chinese).known(label).is_some(), "{name}");
        }
    }
}
