//! The form of gates, which bots, roles and bindings share. It shows each gate of a list as fields, and one empty gate to
//! add. A gate that the fields cannot hold is shown as JSON, so that saving the form never changes it.

use monstrum_api::gates::{Approver, Gate, GateAction};
use monstrum_api::roles::ScopeConstraints;
use serde_json::Value;

use crate::gateway::console::fields::Marks;
use crate::gateway::console::form::Fields;
use crate::gateway::console::page::Frame;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::words::Words;

/// The hidden field of a form that has gates.
const FORM: &str = "gates";
/// The hidden fields with the numbers of the gates of a list, and with the number of the empty gate.
const SAVED: &str = "gate";
const NEW: &str = "gate.new";
/// The maximum number of gates that a form may send. Reading a field takes time in proportion to the form.
const SENT_MAX: usize = 64;

const APPROVERS: [(Approver, &str); 3] =
    [(Approver::Admin, "admin"), (Approver::Operator, "operator"), (Approver::Approver, "approver")];

/// The gates of a form.
#[derive(Default)]
pub(super) struct GateForm {
    pub gates: Vec<GateFields>,
}

/// A gate of a form, as it is typed.
#[derive(Clone, Default)]
pub(super) struct GateFields {
    /// The position in the list, from 0, as the messages of the API count.
    pub number: usize,
    /// Whether this is the empty gate, which a person may fill in.
    pub is_new: bool,
    pub is_open: bool,
    /// What is chosen: `ask` or `deny`, `keep` for a gate shown as JSON, `remove`, or `none` for the empty gate.
    choice: String,
    pub tools: Text,
    pub operations: Text,
    pub when: Text,
    pub unless: Text,
    pub after: Text,
    approvers: Vec<Approver>,
    pub allow_starter: bool,
    pub expires_s: Text,
    pub reason: Text,
    /// The gate as JSON, if the fields cannot hold it.
    pub json: Option<Text>,
}

impl GateForm {
    /// Returns the form of a list of gates.
    pub(super) fn of(gates: &Value) -> GateForm {
        let list = gates.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut gates: Vec<GateFields> = list.iter().enumerate().map(|(at, gate)| GateFields::of(at, gate)).collect();
        gates.push(GateFields { number: gates.len(), is_new: true, ..GateFields::default() });
        GateForm { gates }
    }

    /// Returns the form as it was typed.
    pub(super) fn typed(fields: &Fields) -> GateForm {
        let numbers = |name: &'static str| fields.values(name).filter_map(|number| number.parse().ok());
        let saved = numbers(SAVED).map(|number| GateFields::typed(fields, number, false));
        let new = numbers(NEW).take(1).map(|number| GateFields::typed(fields, number, true));
        GateForm { gates: saved.take(SENT_MAX + 1).chain(new).collect() }
    }

    /// Returns whether the list has gates. The empty gate does not count.
    pub(super) fn has_gates(&self) -> bool {
        self.gates.iter().any(|gate| !gate.is_new)
    }

    /// Opens the gates that an error names.
    pub(super) fn opened(mut self, errors: &[(Text, Text)]) -> GateForm {
        for gate in &mut self.gates {
            let path = gate.path("");
            let is_named =
                |place: &str| place.strip_prefix(&path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            gate.is_open = gate.is_open || errors.iter().any(|(place, _)| is_named(place.raw()));
        }
        self
    }
}

/// Reads the gates that a form describes, or `None` if the form has no gates. Adds the places of what cannot be read to
/// `errors`, each with the key of a word.
pub(super) fn read(fields: &Fields, errors: &mut Vec<(Text, Text)>) -> Option<Vec<Value>> {
    if !fields.has(FORM) {
        return None;
    }
    let form = GateForm::typed(fields);
    if form.gates.len() > SENT_MAX {
        errors.push((Text::from("/gates"), Text::from("gates.too_many")));
        return Some(Vec::new());
    }
    Some(form.gates.iter().filter_map(|gate| gate.read(errors)).collect())
}

impl GateFields {
    fn of(number: usize, value: &Value) -> GateFields {
        let json = || {
            let choice = "keep".to_owned();
            GateFields { number, choice, json: Some(pretty(value)), ..GateFields::default() }
        };
        let Ok(mut gate) = serde_json::from_value::<Gate>(value.clone()) else { return json() };
        // These say the same as what the form sends.
        gate.allow_starter = gate.allow_starter.filter(|may| *may);
        if let Some(approvers) = &mut gate.approvers {
            approvers.sort_by_key(|kind| APPROVERS.iter().position(|(known, _)| known == kind));
        }
        let lines = |list: Option<&[String]>| Text::from(list.unwrap_or_default().join("\n"));
        let fields = GateFields {
            number,
            choice: match gate.action {
                GateAction::Ask => "ask".to_owned(),
                GateAction::Deny => "deny".to_owned(),
            },
            tools: lines(gate.tools.as_deref()),
            operations: lines(gate.operations.as_deref()),
            when: conditions(gate.when.as_ref()),
            unless: conditions(gate.unless.as_ref()),
            after: lines(gate.after.as_deref()),
            approvers: gate.approvers.clone().unwrap_or_default(),
            allow_starter: gate.allow_starter.is_some(),
            expires_s: gate.expires_s.map(|seconds| seconds.to_string()).unwrap_or_default().into(),
            reason: gate.reason.clone().unwrap_or_default().into(),
            ..GateFields::default()
        };
        // Browsers change the line ends of a field.
        let has_returns = value.to_string().contains("\\r");
        let is_held = !has_returns && fields.gate(&mut Vec::new()).as_ref() == Some(&gate);
        if is_held { fields } else { json() }
    }

    fn typed(fields: &Fields, number: usize, is_new: bool) -> GateFields {
        let name = |field: &str| format!("gate.{number}.{field}");
        let text = |field: &str| Text::from(fields.value(&name(field)).replace("\r\n", "\n"));
        let (kinds, json) = (name("approvers"), name("json"));
        let gate = GateFields {
            number,
            is_new,
            is_open: false,
            choice: fields.value(&name("action")).to_owned(),
            tools: text("tools"),
            operations: text("operations"),
            when: text("when"),
            unless: text("unless"),
            after: text("after"),
            approvers: APPROVERS
                .into_iter()
                .filter(|(_, word)| fields.values(&kinds).any(|chosen| chosen == *word))
                .map(|(kind, _)| kind)
                .collect(),
            allow_starter: fields.has(&name("allow_starter")),
            expires_s: text("expires_s"),
            reason: text("reason"),
            json: fields.has(&json).then(|| text("json")),
        };
        GateFields { is_open: is_new && !(gate.is_blank() && gate.is_unchosen()), ..gate }
    }

    fn is_unchosen(&self) -> bool {
        matches!(self.choice.as_str(), "" | "none")
    }

    fn is_blank(&self) -> bool {
        let texts =
            [&self.tools, &self.operations, &self.when, &self.unless, &self.after, &self.expires_s, &self.reason];
        texts.iter().all(|text| text.raw().trim().is_empty()) && self.approvers.is_empty() && !self.allow_starter
    }

    /// Returns the gate as the API takes it. Returns `None` for a gate that is removed or not filled in, and for one that
    /// cannot be read.
    fn read(&self, errors: &mut Vec<(Text, Text)>) -> Option<Value> {
        match (self.choice.as_str(), &self.json) {
            ("remove", _) if !self.is_new => None,
            _ if self.is_new && self.is_unchosen() && self.is_blank() => None,
            ("keep", Some(json)) => match serde_json::from_str(json.raw()) {
                Ok(value) => Some(value),
                Err(_) => {
                    errors.push((self.path("").into(), "form.not_json".into()));
                    None
                }
            },
            _ => serde_json::to_value(self.gate(errors)?).ok(),
        }
    }

    /// Reads the fields.
    fn gate(&self, errors: &mut Vec<(Text, Text)>) -> Option<Gate> {
        let before = errors.len();
        let action = match self.choice.as_str() {
            "ask" => Some(GateAction::Ask),
            "deny" => Some(GateAction::Deny),
            _ => {
                errors.push((self.path("/action").into(), "gates.no_action".into()));
                None
            }
        };
        let list = |text: &Text| {
            let entries: Vec<String> = lines(text).map(str::to_owned).collect();
            (!entries.is_empty()).then_some(entries)
        };
        let mut map = |text: &Text, field: &str| {
            let read = read_conditions(text);
            if read.is_none() {
                errors.push((self.path(field).into(), "gates.not_a_condition".into()));
            }
            read.filter(|map| !map.is_empty())
        };
        let (when, unless) = (map(&self.when, "/when"), map(&self.unless, "/unless"));
        let expires_s = match self.expires_s.raw().trim() {
            "" => None,
            text => {
                let seconds = text.parse::<u32>().ok();
                if seconds.is_none() {
                    errors.push((self.path("/expires_s").into(), "form.not_integer".into()));
                }
                seconds
            }
        };
        let gate = Gate {
            tools: list(&self.tools),
            operations: list(&self.operations),
            when,
            unless,
            after: list(&self.after),
            action: action?,
            approvers: (!self.approvers.is_empty()).then(|| self.approvers.clone()),
            allow_starter: self.allow_starter.then_some(true),
            expires_s,
            reason: Some(self.reason.raw().to_owned()).filter(|reason| !reason.trim().is_empty()),
        };
        (errors.len() == before).then_some(gate)
    }

    /// Returns the JSON pointer of a field in the list of gates.
    fn path(&self, field: &str) -> String {
        format!("/gates/{}{field}", self.number)
    }

    /// Returns what errors say of a field of the gate, or of the whole gate if the name is empty.
    pub(super) fn mark(&self, frame: &Frame, errors: &[(Text, Text)], field: &str) -> Marks {
        match field {
            "" => frame.marks(errors, &format!("gate.{}", self.number), ""),
            "action" | "allow_starter" => frame.marks(errors, &format!("gate.{}.{field}", self.number), ""),
            _ => frame.marks_hinted(errors, &format!("gate.{}.{field}", self.number)),
        }
    }

    /// Returns the number as persons count.
    pub(super) fn ordinal(&self) -> usize {
        self.number + 1
    }

    /// Returns what a person can choose, and whether it is chosen.
    pub(super) fn choices(&self) -> Vec<(&'static str, bool)> {
        let names: &[&'static str] = match (self.is_new, &self.json) {
            (true, _) => &["none", "ask", "deny"],
            (false, None) => &["ask", "deny", "remove"],
            (false, Some(_)) => &["keep", "remove"],
        };
        let is_chosen = |name: &str| self.choice == name || (name == "none" && self.choice.is_empty());
        names.iter().map(|name| (*name, is_chosen(name))).collect()
    }

    /// Returns what the gate does, as the end of a key of a word.
    pub(super) fn kind(&self) -> &str {
        &self.choice
    }

    /// Returns the kinds of keys that may approve, and whether each is chosen.
    pub(super) fn kinds(&self) -> [(&'static str, bool); 3] {
        APPROVERS.map(|(kind, word)| (word, self.approvers.contains(&kind)))
    }

    /// Returns the conditions of the gate in one line.
    pub(super) fn conditions(&self, words: &Words) -> String {
        let parts = [
            ("gates.tools", &self.tools),
            ("gates.operations", &self.operations),
            ("gates.when", &self.when),
            ("gates.unless", &self.unless),
            ("gates.after", &self.after),
        ];
        let shown = parts.into_iter().filter(|(_, text)| !text.raw().trim().is_empty()).map(|(key, text)| {
            let entries = lines(text).map(|line| Text::from(line).to_string()).collect::<Vec<_>>().join(", ");
            format!("{}: {entries}", words.text(key))
        });
        let shown: Vec<String> = shown.collect();
        match (shown.is_empty(), &self.json) {
            (true, None) => words.text("gates.every_call").to_owned(),
            _ => shown.join(" · "),
        }
    }
}

/// Returns the lines of a field that are not empty.
fn lines(text: &Text) -> impl Iterator<Item = &str> {
    text.raw().lines().map(str::trim).filter(|line| !line.is_empty())
}

/// Returns conditions as lines, each with a scope key and a pattern.
fn conditions(map: Option<&ScopeConstraints>) -> Text {
    let pairs = map.into_iter().flatten();
    let lines = pairs.flat_map(|(key, patterns)| patterns.iter().map(move |pattern| format!("{key}: {pattern}")));
    lines.collect::<Vec<_>>().join("\n").into()
}

/// Reads the lines of [`conditions`]. Returns `None` if a line has no key or no pattern.
fn read_conditions(text: &Text) -> Option<ScopeConstraints> {
    let mut map = ScopeConstraints::new();
    for line in lines(text) {
        let (key, pattern) = line.split_once(':')?;
        let (key, pattern) = (key.trim(), pattern.trim());
        if key.is_empty() || pattern.is_empty() {
            return None;
        }
        map.entry(key.to_owned()).or_default().push(pattern.to_owned());
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sent(body: &str) -> (Option<Vec<Value>>, Vec<String>) {
        let mut errors = Vec::new();
        let gates = read(&Fields::parse(body.as_bytes()), &mut errors);
        (gates, errors.iter().map(|(place, key)| format!("{} {}", place.raw(), key.raw())).collect())
    }

    /// Returns the fields that a browser sends for an unchanged form.
    fn unchanged(gates: &Value) -> String {
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        body.append_pair(FORM, "1");
        for gate in GateForm::of(gates).gates {
            body.append_pair(if gate.is_new { NEW } else { SAVED }, &gate.number.to_string());
            let mut field = |field: &str, value: &str| {
                body.append_pair(&format!("gate.{}.{field}", gate.number), &value.replace('\n', "\r\n"));
            };
            for (name, _) in gate.choices().into_iter().filter(|(_, is_chosen)| *is_chosen) {
                field("action", name);
            }
            if let Some(json) = &gate.json {
                field("json", json.raw());
                continue;
            }
            for (name, text) in [
                ("tools", &gate.tools),
                ("operations", &gate.operations),
                ("when", &gate.when),
                ("unless", &gate.unless),
                ("after", &gate.after),
                ("expires_s", &gate.expires_s),
                ("reason", &gate.reason),
            ] {
                field(name, text.raw());
            }
            for (kind, _) in gate.kinds().into_iter().filter(|(_, is_chosen)| *is_chosen) {
                field("approvers", kind);
            }
            if gate.allow_starter {
                field("allow_starter", "on");
            }
        }
        body.finish()
    }

    #[test]
    fn a_form_that_nobody_changed_keeps_every_gate() {
        let gates = json!([
            {
                "tools": ["github_*", "a"], "operations": ["issue.*"], "when": {"paths": ["/a", "/b: c"], "repos": ["x"]},
                "unless": {"labels": ["y"]}, "after": ["untrusted"], "action": "ask", "approvers": ["admin", "operator"],
                "allow_starter": true, "expires_s": 60, "reason": "One.\nTwo <b>.",
            },
            {"action": "deny"},
            // The fields cannot hold these.
            {"action": "ask", "tools": [" padded "]},
            {"action": "ask", "tools": ["two\nlines"]},
            {"action": "ask", "when": {"a:b": ["x"]}},
            {"action": "ask", "reason": ""},
            {"action": "ask", "reason": "a\rb"},
            {"action": "ask", "after": []},
            {"action": "later", "of": "a newer server"},
        ]);
        let as_json: Vec<bool> = GateForm::of(&gates).gates.iter().map(|gate| gate.json.is_some()).collect();
        assert_eq!(as_json, [false, false, true, true, true, true, true, true, true, false]);
        assert_eq!(sent(&unchanged(&gates)), (gates.as_array().cloned(), vec![]));
        assert_eq!(sent(&unchanged(&json!([]))), (Some(vec![]), vec![]));
    }

    #[test]
    fn gates_are_added_changed_and_removed() {
        let body = "gates=1&gate=0&gate.0.action=remove&gate=1&gate.1.action=deny&gate.1.tools=a%0D%0A+b*+%0D%0A&\
            gate.new=2&gate.2.action=ask&gate.2.when=repos%3A+acme%2F*%0D%0Arepos%3Aother%2Fx&gate.2.approvers=operator&\
            gate.2.approvers=root&gate.2.allow_starter=on&gate.2.expires_s=+90+&gate.2.reason=why";
        let expected = vec![
            json!({"action": "deny", "tools": ["a", "b*"]}),
            json!({
                "action": "ask", "when": {"repos": ["acme/*", "other/x"]}, "approvers": ["operator"],
                "allow_starter": true, "expires_s": 90, "reason": "why",
            }),
        ];
        assert_eq!(sent(body), (Some(expected), vec![]));
        assert_eq!(sent("name=x"), (None, vec![]), "a form without gates changes none");
    }

    /// A gate that is lost permits calls that it should stop.
    #[test]
    fn no_gate_is_lost_because_it_cannot_be_read() {
        let (_, errors) = sent(
            "gates=1&gate=0&gate=1&gate.1.action=ask&gate.1.when=repos&gate.1.unless=%3Ax&gate.1.expires_s=soon&gate=2&\
             gate.2.action=keep&gate.2.json=%7B&gate.new=3&gate.3.action=none&gate.3.tools=a",
        );
        let expected = [
            "/gates/0/action gates.no_action",
            "/gates/1/when gates.not_a_condition",
            "/gates/1/unless gates.not_a_condition",
            "/gates/1/expires_s form.not_integer",
            "/gates/2 form.not_json",
            "/gates/3/action gates.no_action",
        ];
        assert_eq!(errors, expected);
        let many: String = (0..=SENT_MAX).map(|number| format!("&gate={number}&gate.{number}.action=deny")).collect();
        assert_eq!(sent(&format!("gates=1{many}")).1, ["/gates gates.too_many"]);
    }

    #[test]
    fn gates_with_errors_are_open() {
        let form = GateForm::of(&json!([{"action": "ask"}, {"action": "deny"}]));
        let open = |place: &str| -> Vec<bool> {
            let form = GateForm { gates: form.gates.clone() }.opened(&[(place.into(), Text::default())]);
            form.gates.iter().map(|gate| gate.is_open).collect()
        };
        assert_eq!(open("/gates/1/tools/0"), [false, true, false]);
        assert_eq!(open("/gates/10"), [false, false, false]);
        assert_eq!(open("/name"), [false, false, false]);
    }
}
