//! What an answer of a model asks for: which of its calls may run, and which are refused before they reach the pipeline.
//!
//! The module must not know tools or permissions. A call that passes here is judged by the pipeline like any other call.

use monstrum_llm::{AssistantMessage, FinishReason, ToolCall};
use serde_json::{Map, Value};

/// The maximum number of calls of one round. Models that work on lists ask for ten to twenty calls at once.
pub const CALLS_MAX: usize = 32;
/// The number of rounds in a row with calls that cannot run after which a task ends. A model that cannot write its
/// arguments three times in a row does not recover.
pub const MALFORMED_ROUNDS_MAX: u32 = 3;

/// A call of a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// The call may run with these parameters.
    Run(Map<String, Value>),
    /// The call does not run. The model reads this message instead of a result.
    Refused(String),
}

/// What an answer asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asks {
    /// The calls, in the order in which the model asked for them.
    pub calls: Vec<Asked>,
    /// Whether a call does not run because the answer was cut or because its arguments are invalid.
    pub is_malformed: bool,
}

impl Asks {
    /// Returns what an answer asks for. No call of an answer that was cut runs, because each of its calls may be cut, and
    /// half an argument can mean the opposite of the whole. For the same reason arguments are never repaired. If
    /// `may_call` is false, the model was asked for an answer without calls.
    #[must_use]
    pub fn of(message: &AssistantMessage, finish: &FinishReason, may_call: bool) -> Asks {
        let mut is_malformed = false;
        let calls = message.calls.iter().enumerate().map(|(position, call)| {
            if !may_call {
                return Asked::Refused("This call did not run: no further calls are possible in this task.".to_owned());
            }
            match checked(call, finish) {
                Err(message) => {
                    is_malformed = true;
                    Asked::Refused(message)
                }
                Ok(_) if position >= CALLS_MAX => Asked::Refused(format!(
                    "This call did not run: an answer can ask for at most {CALLS_MAX} calls. Ask for it again."
                )),
                Ok(params) => Asked::Run(params),
            }
        });
        let calls = calls.collect();
        Asks { calls, is_malformed }
    }
}

/// Returns the parameters of a call, or the reason why it does not run.
fn checked(call: &ToolCall, finish: &FinishReason) -> Result<Map<String, Value>, String> {
    match finish {
        FinishReason::Length => {
            Err("This call did not run: the answer was cut at the limit of output tokens, so all its \
                                     calls may be incomplete. Ask again with shorter arguments or fewer calls."
                .to_owned())
        }
        FinishReason::ContentFilter => {
            Err("This call did not run: the provider filtered the answer, so its calls may be incomplete.".to_owned())
        }
        FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Other(_) => {
            call.arguments.parse().map_err(|error| {
                format!("This call did not run: {error}. Ask for it again with a JSON object as its arguments.")
            })
        }
    }
}

/// Returns the number of malformed rounds in a row, after a further round.
#[must_use]
pub fn malformed_in_a_row(before: u32, is_malformed: bool) -> u32 {
    if is_malformed { before.saturating_add(1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use monstrum_llm::Arguments;

    use super::*;

    fn call(arguments: &str) -> ToolCall {
        ToolCall {
            id: "c".to_owned(),
            name: "echo".to_owned(),
            arguments: Arguments::new(arguments.to_owned()),
            extra: Map::new(),
            function_extra: Map::new(),
        }
    }

    fn asks(arguments: &[&str], finish: &FinishReason) -> Asks {
        let calls = arguments.iter().map(|arguments| call(arguments)).collect();
        Asks::of(&AssistantMessage { calls, ..AssistantMessage::default() }, finish, true)
    }

    #[test]
    fn calls_with_an_object_as_arguments_may_run() {
        let asks = asks(&[r#"{"a":1}"#, "", "null"], &FinishReason::ToolCalls);
        assert!(asks.calls.iter().all(|asked| matches!(asked, Asked::Run(_))), "{asks:?}");
        assert!(!asks.is_malformed);
    }

    #[test]
    fn no_call_of_an_answer_that_was_cut_runs() {
        let asks = asks(&["{}", r#"{"a":"#], &FinishReason::Length);
        assert!(asks.calls.iter().all(|asked| matches!(asked, Asked::Refused(_))), "{asks:?}");
        assert!(asks.is_malformed);
    }

    #[test]
    fn arguments_are_never_repaired_and_stop_no_other_call() {
        let asks = asks(&["{}", r#"{"a":1"#, "[1]", "{}"], &FinishReason::ToolCalls);
        let runs: Vec<bool> = asks.calls.iter().map(|asked| matches!(asked, Asked::Run(_))).collect();
        assert_eq!((runs, asks.is_malformed), (vec![true, false, false, true], true));
    }

    #[test]
    fn calls_over_the_limit_are_refused() {
        let asks = asks(&["{}"; CALLS_MAX + 1], &FinishReason::ToolCalls);
        let runs = asks.calls.iter().filter(|asked| matches!(asked, Asked::Run(_))).count();
        assert_eq!((runs, asks.calls.len(), asks.is_malformed), (CALLS_MAX, CALLS_MAX + 1, false));
        assert!(matches!(&asks.calls[CALLS_MAX], Asked::Refused(message) if message.contains("at most 32")));
    }

    #[test]
    fn an_answer_that_was_asked_for_without_tools_calls_nothing() {
        let message = AssistantMessage { calls: vec![call("{}")], ..AssistantMessage::default() };
        let asks = Asks::of(&message, &FinishReason::ToolCalls, false);
        assert!(matches!(asks.calls.as_slice(), [Asked::Refused(_)]) && !asks.is_malformed);
    }

    #[test]
    fn malformed_rounds_count_only_in_a_row() {
        let (bad, good) = (asks(&["x"], &FinishReason::ToolCalls), asks(&["{}"], &FinishReason::ToolCalls));
        let mut count = 0;
        let mut counts = Vec::new();
        for asks in [&bad, &bad, &good, &bad, &bad, &bad] {
            count = malformed_in_a_row(count, asks.is_malformed);
            counts.push(count);
        }
        assert_eq!(counts, [1, 2, 0, 1, 2, MALFORMED_ROUNDS_MAX]);
    }
}
