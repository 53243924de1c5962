//! The fields of forms that errors name. The API names a place by a JSON pointer; a person looks for the label of a field.

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
const FIELDS: [(&str, &str, &str); 21] = [
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
];

/// The objects of the API whose members have fields of their own.
const AROUND: [&str; 3] = ["draft", "permissions", "network"];

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
        "limits" => of(format!("limit.{key}"), words.known(&format!("limit.{key}"))?),
        "scope_constraints" => {
            let label = words.filled("bind.scope", &[&key]);
            of(format!("scope.entries.{key}"), &label)
        }
        "config" => of(format!("{PREFIX}{key}"), &key.replace('_', " ")),
        _ => None,
    }
}

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
        const CASES: [(&str, &str, &str); 8] = [
            ("/draft/role_id", "role_id", "Role"),
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
        for place in ["", "/", "/draft", "/limits", "/limits/other", "limit.other", "/config", "/unknown/0"] {
            assert_eq!(at(words, place), None, "{place}");
        }
    }

    #[test]
    fn each_label_has_words() {
        for (name, _, label) in FIELDS {
            assert!(Words::of(UiLanguage::Chinese).known(label).is_some(), "{name}");
        }
    }
}
