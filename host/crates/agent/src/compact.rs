//! Shortens a conversation that would exceed the context of a model.
//!
//! The journal keeps everything; only the request becomes shorter. First the oldest results are left out, then the oldest
//! tasks of the session. The system prompt, the instruction of the task and the last exchange always stay whole, and each
//! call keeps a result.

use monstrum_llm::{Message, Part};

/// The bytes of a token: a low estimate, because a request that is too long fails.
const BYTES_OF_TOKEN: u64 = 3;
/// The share of the context from which a conversation is shortened, and the share to which, in percent. The rest is for the
/// answer, and for errors of the estimate.
const FULL_PERCENT: u64 = 80;
const TARGET_PERCENT: u64 = 60;
/// The start of a result of this host. The results that a client sends are its own, and stay as they are.
const FRAME: &str = "<tool-result ";
/// The size from which leaving a result out makes room.
const RESULT_BYTES_MIN: usize = 256;
/// The beginning of what stands in place of a result.
const OMITTED: &str = "{\"omitted\":true";

/// Shortens `messages` if they and the tools exceed their share of the context. The first message is the system prompt, and
/// the `earlier` messages after it are those of earlier tasks, each with an instruction and an answer.
#[must_use]
pub fn compacted(mut messages: Vec<Message>, earlier: usize, tools_bytes: usize, context_tokens: u64) -> Vec<Message> {
    let context_bytes = context_tokens.saturating_mul(BYTES_OF_TOKEN);
    let share = |percent: u64| usize::try_from(context_bytes / 100 * percent).unwrap_or(usize::MAX);
    let mut bytes = messages.iter().map(size).fold(tools_bytes, usize::saturating_add);
    if bytes <= share(FULL_PERCENT) {
        return messages;
    }
    let last_exchange = messages.iter().rposition(|message| matches!(message, Message::Assistant(_)));
    for message in messages.iter_mut().take(last_exchange.unwrap_or(0)) {
        if bytes <= share(TARGET_PERCENT) {
            break;
        }
        if let Message::Tool { text, .. } = message
            && text.len() >= RESULT_BYTES_MIN
            && text.starts_with(FRAME)
        {
            let omitted = omitted(text);
            bytes = bytes.saturating_sub(text.len().saturating_sub(omitted.len()));
            *text = omitted;
        }
    }
    let mut left_out = 0;
    while left_out + 2 <= earlier && bytes > share(TARGET_PERCENT) {
        let pair = messages.get(1 + left_out..3 + left_out).unwrap_or_default();
        bytes = bytes.saturating_sub(pair.iter().map(size).sum());
        left_out += 2;
    }
    messages.drain(1..=left_out);
    messages
}

/// Returns the approximate size of this number of tokens, in bytes.
#[must_use]
pub fn bytes_of(tokens: u64) -> usize {
    usize::try_from(tokens.saturating_mul(BYTES_OF_TOKEN)).unwrap_or(usize::MAX)
}

/// Returns whether a result was left out of `messages`.
#[must_use]
pub fn has_omitted(messages: &[Message]) -> bool {
    // The second line is that of the host: the data of a result begins with its status.
    let second = |text: &str| text.lines().nth(1).is_some_and(|line| line.starts_with(OMITTED));
    messages.iter().any(|message| matches!(message, Message::Tool { text, .. } if second(text)))
}

/// Returns what stands in place of a result. Its first line names the tool and the step.
fn omitted(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    format!("{first}\n{OMITTED},\"bytes\":{}}}\n</tool-result>", text.len())
}

fn size(message: &Message) -> usize {
    match message {
        Message::System { text } | Message::Tool { text, .. } => text.len(),
        Message::User { parts } => parts.iter().map(size_of_part).sum(),
        Message::Assistant(message) => {
            let calls = message.calls.iter().map(|call| call.name.len() + call.arguments.as_str().len());
            message.text.len() + calls.sum::<usize>()
        }
    }
}

fn size_of_part(part: &Part) -> usize {
    match part {
        Part::Text { text } => text.len(),
        Part::Image { base64, .. } => base64.len(),
    }
}

#[cfg(test)]
mod tests {
    use monstrum_llm::AssistantMessage;

    use super::*;

    fn said(text: &str) -> Message {
        Message::Assistant(AssistantMessage { text: text.to_owned(), ..AssistantMessage::default() })
    }

    fn result(step: usize, bytes: usize) -> Message {
        let text = format!("<tool-result tool=\"list\" step=\"{step}\">\n{}\n</tool-result>", "x".repeat(bytes));
        Message::Tool { call_id: format!("c{step}"), text }
    }

    /// A conversation with two messages of an earlier task, and three rounds with results of 1 000 bytes.
    fn conversation() -> Vec<Message> {
        let mut messages = vec![Message::System { text: "system".to_owned() }];
        messages.extend([Message::user("e".repeat(500)), said(&"a".repeat(500)), Message::user("instruction")]);
        for step in 0..3 {
            messages.extend([said("look"), result(step, 1_000)]);
        }
        messages
    }

    fn is_omitted(message: &Message) -> bool {
        matches!(message, Message::Tool { text, .. } if text.contains("\"omitted\":true"))
    }

    #[test]
    fn a_conversation_that_fits_is_left_alone() {
        let messages = conversation();
        assert_eq!(compacted(messages.clone(), 2, 0, 10_000), messages);
    }

    #[test]
    fn the_oldest_results_are_left_out_first() {
        // The context has 4 500 bytes. The conversation has about 4 200, and has to have 2 700.
        let short = compacted(conversation(), 2, 0, 1_500);
        assert_eq!(short.len(), conversation().len());
        let omitted: Vec<bool> = short.iter().map(is_omitted).collect();
        assert_eq!(omitted, [false, false, false, false, false, true, false, true, false, false]);
        assert!(
            matches!(&short[5], Message::Tool { text, .. } if text.starts_with("<tool-result tool=\"list\" step=\"0\">"))
        );
        assert_eq!(short[9], result(2, 1_000), "the last exchange stays whole");
        assert!(has_omitted(&short) && !has_omitted(&conversation()));
    }

    #[test]
    fn results_of_a_client_stay() {
        let own = Message::Tool { call_id: "c".to_owned(), text: "x".repeat(1_000) };
        let messages = vec![Message::System { text: "s".to_owned() }, said("look"), own, said("look")];
        assert_eq!(compacted(messages.clone(), 0, 0, 100), messages);
    }

    #[test]
    fn then_earlier_tasks_are_left_out() {
        let short = compacted(conversation(), 2, 0, 500);
        assert_eq!((short.len(), &short[0], &short[1]), (8, &conversation()[0], &Message::user("instruction")));
        assert_eq!(short[7], result(2, 1_000));
    }

    #[test]
    fn the_instruction_stays_if_nothing_else_can_be_left_out() {
        let messages = vec![Message::System { text: "s".to_owned() }, Message::user("x".repeat(10_000))];
        assert_eq!(compacted(messages.clone(), 0, 0, 10), messages);
    }
}
