//! The rules that deny calls, in words of the console's language, and the stages in which a check examines a call. The API
//! names a rule by its code; its sentences are English.

use crate::gateway::console::text::Text;
use crate::gateway::console::why::Check;
use crate::gateway::console::words::Words;

/// A stage of a check, in the order in which the rules run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Tool,
    Grant,
    Scopes,
    Gates,
}

/// A stage of a check as a page shows it.
pub(super) struct Stage {
    pub name: &'static str,
    /// The class of the state in the style sheet.
    pub class: &'static str,
    pub state: &'static str,
}

/// The sentences of a scope that denies a call, and of one that hides a tool because no value can satisfy it.
const SCOPE: &str = "rule.scope";
const SCOPE_HIDES: &str = "rule.scope_hides";

/// The sentences of a gate that denies a call, and of one that asks a person.
const GATES: &str = "rule.gates";
const GATES_ASK: &str = "rule.gates_ask";

/// What a rule examines: its stage, and its sentence with the holder or the scope in it.
struct Rule<'a> {
    step: Step,
    sentence: &'static str,
    subject: Subject<'a>,
}

/// What the sentence of a rule names.
enum Subject<'a> {
    None,
    /// The key of the word for the object that has the rule.
    Holder(&'static str),
    /// The scope, as the plugin names it.
    Scope(&'a str),
}

/// Returns the key of the word for the object that has a rule.
fn holder(word: &str) -> Option<&'static str> {
    Some(match word {
        "role" => "why.holder_role",
        "permissions" => "why.holder_permissions",
        "binding" => "why.holder_binding",
        "delegation" => "why.holder_delegation",
        "bot" => "why.holder_bot",
        _ => return None,
    })
}

/// Reads the code of a rule. Returns `None` for a rule that is not one of a check.
fn read(code: &str) -> Option<Rule<'_>> {
    let of = |step, sentence, subject| Some(Rule { step, sentence, subject });
    match code {
        "unknown_tool" => return of(Step::Tool, "rule.unknown_tool", Subject::None),
        "grant.none" => return of(Step::Grant, "rule.grant_none", Subject::None),
        "scope.unknown_key" => return of(Step::Scopes, "rule.unknown_key", Subject::None),
        _ => {}
    }
    if let Some(dimension) = code.strip_prefix("scope.") {
        return of(Step::Scopes, SCOPE, Subject::Scope(dimension));
    }
    let (word, field) = code.split_once('.')?;
    let holder = Subject::Holder(holder(word)?);
    match field {
        "allowed_operations" => of(Step::Grant, "rule.operations", holder),
        "allowed_tools" => of(Step::Grant, "rule.tools", holder),
        "gates" => of(Step::Gates, GATES, holder),
        _ => None,
    }
}

/// Returns what a rule says about a call, in words. Returns `None` for a rule that is not one of a check.
pub(super) fn sentence(words: &Words, code: &str) -> Option<String> {
    read(code).map(|rule| rule.told(words))
}

/// Returns what a rule that asks a person says about a call, in words. Returns `None` for a rule that is not one of a check.
pub(super) fn asking(words: &Words, code: &str) -> Option<String> {
    let rule = read(code)?;
    let sentence = if rule.sentence == GATES { GATES_ASK } else { rule.sentence };
    Some(Rule { sentence, ..rule }.told(words))
}

/// Returns why a rule hides a tool, in words. Returns `None` for a rule that is not one of a check.
pub(super) fn hiding(words: &Words, code: &str) -> Option<String> {
    let rule = read(code)?;
    let sentence = if rule.sentence == SCOPE { SCOPE_HIDES } else { rule.sentence };
    Some(Rule { sentence, ..rule }.told(words))
}

impl Rule<'_> {
    fn told(&self, words: &Words) -> String {
        match self.subject {
            Subject::None => words.text(self.sentence).to_owned(),
            Subject::Holder(key) => words.filled(self.sentence, &[&words.text(key)]),
            Subject::Scope(dimension) => words.filled(self.sentence, &[&Text::from(dimension)]),
        }
    }
}

/// Returns the stages of a check with the one that refused. Returns nothing for a denial by a rule without a stage.
pub(super) fn stages(words: &'static Words, check: &Check) -> Vec<Stage> {
    let refused = check.rule.as_ref().and_then(|rule| read(rule.raw())).map(|rule| rule.step);
    let is_denied = !check.allows() && !check.asks();
    if is_denied && refused.is_none() {
        return Vec::new();
    }
    let steps = [
        (Step::Tool, "stage.tool"),
        (Step::Grant, "stage.grant"),
        (Step::Scopes, "stage.scopes"),
        (Step::Gates, "stage.gates"),
    ];
    let mut is_reached = true;
    let stage = |(step, name): (Step, &'static str)| {
        let (class, state) = if is_denied && refused == Some(step) {
            is_reached = false;
            ("denied", "stage.refuses")
        } else if !is_reached {
            ("hidden", "stage.not_reached")
        } else if check.asks() && step == Step::Gates {
            ("waiting", "stage.asks")
        } else {
            ("success", "stage.passes")
        };
        Stage { name: words.text(name), class, state: words.text(state) }
    };
    steps.into_iter().map(stage).collect()
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;
    use serde_json::json;

    use super::*;

    fn check(decision: &str, rule: Option<&str>) -> Check {
        serde_json::from_value(json!({"decision": decision, "rule": rule})).unwrap()
    }

    fn classes(decision: &str, rule: Option<&str>) -> Vec<&'static str> {
        stages(Words::of(UiLanguage::English), &check(decision, rule)).iter().map(|stage| stage.class).collect()
    }

    #[test]
    fn the_stage_that_refused_is_shown_between_the_others() {
        const RULES: [(&str, [&str; 4]); 5] = [
            ("unknown_tool", ["denied", "hidden", "hidden", "hidden"]),
            ("grant.none", ["success", "denied", "hidden", "hidden"]),
            ("delegation.allowed_tools", ["success", "denied", "hidden", "hidden"]),
            ("scope.repos", ["success", "success", "denied", "hidden"]),
            ("role.gates", ["success", "success", "success", "denied"]),
        ];
        for (rule, expected) in RULES {
            assert_eq!(classes("deny", Some(rule)), expected, "{rule}");
        }
        assert_eq!(classes("allow", None), ["success"; 4]);
        assert_eq!(classes("ask", None), ["success", "success", "success", "waiting"]);
        for rule in [None, Some("sandbox.conversation"), Some("other.gates")] {
            assert!(classes("deny", rule).is_empty(), "a stage is not guessed: {rule:?}");
        }
    }

    #[test]
    fn each_rule_of_a_check_has_a_sentence_in_both_languages() {
        let [english, chinese] = [UiLanguage::English, UiLanguage::Chinese].map(Words::of);
        let mut codes: Vec<String> =
            ["unknown_tool", "grant.none", "scope.unknown_key", "scope.repos"].map(String::from).to_vec();
        for field in ["allowed_operations", "allowed_tools", "gates"] {
            codes.extend(["bot", "role", "permissions", "binding", "delegation"].map(|word| format!("{word}.{field}")));
        }
        for code in codes {
            let [one, other] = [english, chinese].map(|words| sentence(words, &code).unwrap());
            assert!(one != other && !one.contains(['{', '_']) && !other.contains(['{', '_']), "{code}: {one} {other}");
        }
        assert_eq!(sentence(english, "scope.a\u{202e}b").unwrap(), "The scope a\\u{202e}b does not allow this call.");
        assert_eq!(hiding(english, "scope.repos").unwrap(), "The scope repos allows no call of this tool.");
        assert_eq!(asking(english, "role.gates").unwrap(), "A gate of the role asks a person about this call.");
        assert_eq!(asking(english, "scope.repos"), sentence(english, "scope.repos"));
        assert_eq!(hiding(english, "grant.none"), sentence(english, "grant.none"));
        assert_eq!((sentence(chinese, "rate"), hiding(chinese, "rate")), (None, None));
    }
}
