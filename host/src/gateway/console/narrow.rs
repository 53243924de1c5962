//! What tasks and runs may do less than their bot: how pages show it, and the fields of the forms that set it.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::form::Fields;
use crate::gateway::console::text::{Text, pretty};

/// The place of an error, and the key of its words.
pub(super) type Fault = (&'static str, &'static str);

/// What tasks and runs may do less than their bot, as the API tells it.
#[derive(Clone, Default, Deserialize)]
pub(super) struct Narrow {
    #[serde(default)]
    allowed_tools: Option<Vec<Text>>,
    #[serde(default)]
    scope_constraints: Value,
}

impl Narrow {
    /// Returns the scopes as JSON, or an empty text.
    pub(super) fn scopes(&self) -> Text {
        match &self.scope_constraints {
            Value::Null => Text::default(),
            Value::Object(map) if map.is_empty() => Text::default(),
            scopes => pretty(scopes),
        }
    }

    /// Returns the tools on one line, if they are restricted.
    pub(super) fn tools(&self) -> Option<String> {
        let tools = self.allowed_tools.as_ref()?;
        Some(tools.iter().map(Text::to_string).collect::<Vec<_>>().join(", "))
    }
}

/// The fields of a form, as they were typed.
#[derive(Default)]
pub(super) struct NarrowFields {
    /// The names of tools, one a line, if they are restricted.
    pub tools: Option<Text>,
    pub scopes: Text,
    /// Whether the form names tools although it asks for all of them.
    is_contradiction: bool,
}

impl NarrowFields {
    /// Returns the fields of a form that was sent.
    pub(super) fn of(fields: &Fields) -> NarrowFields {
        let tools = fields.lines("tools");
        let is_restricted = fields.value("tools.mode") == "only" || !tools.is_empty();
        NarrowFields {
            is_contradiction: fields.value("tools.mode") == "all" && !tools.is_empty(),
            tools: is_restricted.then(|| tools.join("\n").into()),
            scopes: fields.value("scopes").trim().into(),
        }
    }

    /// Returns the fields of a saved object.
    pub(super) fn saved(narrow: Option<&Narrow>) -> NarrowFields {
        let Some(narrow) = narrow else { return NarrowFields::default() };
        let lines = |tools: &Vec<Text>| tools.iter().map(Text::raw).collect::<Vec<_>>().join("\n").into();
        let tools = narrow.allowed_tools.as_ref().map(lines);
        NarrowFields { tools, scopes: narrow.scopes(), is_contradiction: false }
    }

    /// Returns the names of tools, one a line.
    pub(super) fn lines(&self) -> &str {
        self.tools.as_ref().map(Text::raw).unwrap_or_default()
    }

    /// Returns the value as the API reads it, which is null without a restriction.
    pub(super) fn value(&self, faults: &mut Vec<Fault>) -> Value {
        if self.is_contradiction {
            faults.push(("tools", "form.contradiction"));
        }
        let scopes = match self.scopes.raw() {
            "" => Some(json!({})),
            scopes => serde_json::from_str::<Value>(scopes).ok().filter(Value::is_object),
        };
        let Some(scopes) = scopes else {
            faults.push(("scopes", "form.not_json"));
            return Value::Null;
        };
        let has_scopes = scopes.as_object().is_some_and(|scopes| !scopes.is_empty());
        let tools = self.tools.as_ref().map(|tools| tools.raw().lines().collect::<Vec<_>>());
        let mut narrow = Map::new();
        if let Some(tools) = tools {
            narrow.insert("allowed_tools".to_owned(), tools.into());
        }
        if has_scopes {
            narrow.insert("scope_constraints".to_owned(), scopes);
        }
        if narrow.is_empty() { Value::Null } else { narrow.into() }
    }
}

/// The sources of events that a form can choose by themselves.
pub(super) const SOURCES: [&str; 3] = ["own", "platform", "any"];

/// The fields of a form about whose events match, as they were typed.
#[derive(Default)]
pub(super) struct FromFields {
    chosen: Vec<String>,
    /// The ids of bots, one a line.
    pub bots: Text,
}

impl FromFields {
    /// Returns the fields of a new object.
    pub(super) fn blank() -> FromFields {
        FromFields { chosen: vec!["own".to_owned(), "platform".to_owned()], bots: Text::default() }
    }

    /// Returns the fields of a form that was sent.
    pub(super) fn of(fields: &Fields) -> FromFields {
        let chosen = fields.values("from").map(str::to_owned).collect();
        FromFields { chosen, bots: fields.lines("from.bots").join("\n").into() }
    }

    /// Returns the fields of a saved object.
    pub(super) fn saved(from: &[Text]) -> FromFields {
        let (chosen, bots): (Vec<&str>, Vec<&str>) = from.iter().map(Text::raw).partition(|of| SOURCES.contains(of));
        FromFields { chosen: chosen.into_iter().map(str::to_owned).collect(), bots: bots.join("\n").into() }
    }

    pub(super) fn has(&self, source: &str) -> bool {
        self.chosen.iter().any(|chosen| chosen == source)
    }

    /// Returns the value as the API reads it.
    pub(super) fn value(&self) -> Value {
        self.chosen.iter().map(String::as_str).chain(self.bots.raw().lines()).collect::<Vec<_>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn restrictions_are_read_from_a_form() {
        let narrow = |pairs: &[(&str, &str)]| {
            let mut faults = Vec::new();
            let value = NarrowFields::of(&fields(pairs)).value(&mut faults);
            (value, faults)
        };
        assert_eq!(narrow(&[("tools.mode", "all")]), (Value::Null, vec![]));
        assert_eq!(narrow(&[("tools.mode", "only")]), (json!({ "allowed_tools": [] }), vec![]));
        assert_eq!(narrow(&[("tools", "a\r\n b")]), (json!({ "allowed_tools": ["a", "b"] }), vec![]));
        assert_eq!(narrow(&[("scopes", "{\"a\":[]}")]), (json!({ "scope_constraints": { "a": [] } }), vec![]));
        assert_eq!(narrow(&[("scopes", "[1]")]), (Value::Null, vec![("scopes", "form.not_json")]));
        assert_eq!(narrow(&[("tools.mode", "all"), ("tools", "a")]).1, [("tools", "form.contradiction")]);
    }

    #[test]
    fn sources_are_the_chosen_ones_and_bots() {
        let from = FromFields::of(&fields(&[("from", "own"), ("from.bots", "b\nc")]));
        assert_eq!(from.value(), json!(["own", "b", "c"]));
        assert!(from.has("own") && !from.has("any"));
        let saved = FromFields::saved(&["any".into(), "b".into()]);
        assert_eq!((saved.value(), saved.bots.raw()), (json!(["any", "b"]), "b"));
        assert_eq!(FromFields::blank().value(), json!(["own", "platform"]));
    }
}
