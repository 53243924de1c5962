//! Shortens a conversation that would exceed the context of a model.
//!
//! The journal keeps everything; only the request becomes shorter. First the oldest results are left out, then the oldest
//! tasks of the session and the oldest rounds become a summary. The system prompt, the instruction of the task and the last
//! exchange always stay whole, and each call keeps its result.

use monstrum_llm::{Message, Part};

/// The bytes of a token: a low estimate, because a request that is too long fails.
const BYTES_OF_TOKEN: u64 = 3;
/// The share of the context from which a conversation is shortened, and the share to which, in percent. The rest is for the
/// answer, and for errors of the estimate.
const FULL_PERCENT: u64 = 80;
const TARGET_PERCENT: u64 = 60;
/// The start of a result of this host. The results that a client sends are its own, and stay as they are.
const FRAME: &str = "<tool-result ";
/// The share of the room, as a divisor, that a summary can take, and its maximum size: about three pages.
const SUMMARY_SHARE: usize = 6;
const SUMMARY_BYTES_MAX: usize = 12_000;
/// The size from which leaving a result out makes room.
const RESULT_BYTES_MIN: usize = 256;
/// The beginning of what stands in place of a result.
const OMITTED: &str = "{\"omitted\":true";

/// What the model is asked, in parts. A part that does not fit is shortened or summarised; the others stay whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    pub system: Message,
    /// The messages of earlier tasks of the session.
    pub earlier: Vec<Message>,
    /// The instruction of the task, or the conversation that a client sent. Stays whole, but for results of this host.
    pub instruction: Vec<Message>,
    /// The message with the summary of what was left out.
    pub summary: Option<Message>,
    /// The rounds, oldest first.
    pub rounds: Vec<Round>,
    /// What the model reads last, after the results of the last round.
    pub last: Option<Message>,
}

/// A round with the results of its calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The position of the round in its task.
    pub sequence: i64,
    pub messages: Vec<Message>,
}

/// The sizes between which a conversation is shortened, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The size from which a conversation is shortened.
    full: usize,
    /// The size to which it is shortened.
    target: usize,
}

impl Room {
    /// Returns the room of a model. `refused` is the size of a request that was too long for the model. The estimate of its
    /// tokens was then too low, so the room is smaller by as much.
    #[must_use]
    pub fn new(context_tokens: u64, refused: Option<usize>) -> Room {
        let bytes = context_tokens.saturating_mul(BYTES_OF_TOKEN);
        let share = |percent: u64| usize::try_from(bytes / 100 * percent).unwrap_or(usize::MAX);
        let (full, target) = (share(FULL_PERCENT), share(TARGET_PERCENT));
        let Some(refused) = refused else { return Room { full, target } };
        Room { full: full.min(refused.saturating_sub(1)), target: target.min(refused / 4 * 3) }
    }

    /// Returns the maximum size of a summary, which must leave room for the rounds that follow it.
    #[must_use]
    pub fn summary_bytes(self) -> usize {
        (self.target / SUMMARY_SHARE).min(SUMMARY_BYTES_MAX)
    }

    /// Returns the maximum size of the text that a model summarises.
    #[must_use]
    pub fn record_bytes(self) -> usize {
        self.target
    }
}

impl Conversation {
    /// Returns the messages of a request.
    #[must_use]
    pub fn into_messages(self) -> Vec<Message> {
        let rounds = self.rounds.into_iter().flat_map(|round| round.messages);
        let before = [self.system].into_iter().chain(self.earlier).chain(self.instruction).chain(self.summary);
        before.chain(rounds).chain(self.last).collect()
    }

    /// Returns the approximate size of the conversation, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let rounds = self.rounds.iter().flat_map(|round| &round.messages);
        let before = [&self.system].into_iter().chain(&self.earlier).chain(&self.instruction).chain(&self.summary);
        before.chain(rounds).chain(&self.last).map(size).fold(0, usize::saturating_add)
    }

    /// Shortens the conversation if it and the tools exceed the room: leaves the oldest results out, except those of the last
    /// round. Returns the position of the last round that is to be summarised, if this is not enough; position 0 means the
    /// earlier tasks alone.
    #[must_use]
    pub fn shorten(&mut self, tools_bytes: usize, room: Room) -> Option<i64> {
        let mut bytes = self.bytes().saturating_add(tools_bytes);
        if bytes <= room.full {
            return None;
        }
        for message in self.old_messages() {
            if bytes <= room.target {
                return None;
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
        self.to_summarise(bytes, room)
    }

    /// Returns the messages before the last exchange.
    fn old_messages(&mut self) -> impl Iterator<Item = &mut Message> {
        // Without a round, the last exchange is in what a client sent.
        let in_instruction = match self.rounds.len() {
            0 => self.instruction.iter().rposition(|message| matches!(message, Message::Assistant(_))).unwrap_or(0),
            _ => self.instruction.len(),
        };
        let old_rounds = self.rounds.len().saturating_sub(1);
        let of_rounds = self.rounds.iter_mut().take(old_rounds).flat_map(|round| &mut round.messages);
        self.instruction.iter_mut().take(in_instruction).chain(of_rounds)
    }

    /// Returns the position of the last round that must become a summary, so that `bytes` become those of the target.
    fn to_summarise(&self, bytes: usize, room: Room) -> Option<i64> {
        let bytes_of = |messages: &[Message]| messages.iter().map(size).sum::<usize>();
        // An existing summary becomes a part of the new one.
        let mut left = bytes.saturating_add(room.summary_bytes()).saturating_sub(self.summary.iter().map(size).sum());
        let mut through = (!self.earlier.is_empty()).then_some(0);
        left = left.saturating_sub(bytes_of(&self.earlier));
        let old_rounds = self.rounds.len().saturating_sub(1);
        for round in self.rounds.iter().take(old_rounds) {
            if through.is_some() && left <= room.target {
                break;
            }
            left = left.saturating_sub(bytes_of(&round.messages));
            through = Some(round.sequence);
        }
        through.filter(|_| bytes > room.target)
    }

    /// Takes out the messages up to this round, with the summary of those before them.
    #[must_use]
    pub fn take_through(&mut self, through: i64) -> Vec<Message> {
        let kept = self.rounds.iter().position(|round| round.sequence > through).unwrap_or(self.rounds.len());
        let rounds: Vec<Round> = self.rounds.drain(..kept).collect();
        let rounds = rounds.into_iter().flat_map(|round| round.messages);
        std::mem::take(&mut self.earlier).into_iter().chain(self.summary.take()).chain(rounds).collect()
    }
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

    fn result(step: i64, bytes: usize) -> Message {
        let text = format!("<tool-result tool=\"list\" step=\"{step}\">\n{}\n</tool-result>", "x".repeat(bytes));
        Message::Tool { call_id: format!("c{step}"), text }
    }

    /// A conversation with two messages of an earlier task, and three rounds with results of 1 000 bytes.
    fn conversation() -> Conversation {
        Conversation {
            system: Message::System { text: "system".to_owned() },
            earlier: vec![Message::user("e".repeat(500)), said(&"a".repeat(500))],
            instruction: vec![Message::user("instruction")],
            summary: None,
            rounds: (1..4)
                .map(|sequence| Round { sequence, messages: vec![said("look"), result(sequence, 1_000)] })
                .collect(),
            last: None,
        }
    }

    fn is_omitted(message: &Message) -> bool {
        matches!(message, Message::Tool { text, .. } if text.contains("\"omitted\":true"))
    }

    #[test]
    fn a_conversation_that_fits_is_left_alone() {
        let mut short = conversation();
        assert_eq!(short.shorten(0, Room::new(10_000, None)), None);
        assert_eq!(short, conversation());
    }

    #[test]
    fn the_oldest_results_are_left_out_first() {
        // The context has 4 500 bytes. The conversation has about 4 200, and has to have 2 700.
        let mut short = conversation();
        assert_eq!(short.shorten(0, Room::new(1_500, None)), None);
        let omitted: Vec<bool> = short.rounds.iter().map(|round| is_omitted(&round.messages[1])).collect();
        assert_eq!(omitted, [true, true, false], "the last exchange stays whole");
        let first = &short.rounds[0].messages[1];
        assert!(
            matches!(first, Message::Tool { text, .. } if text.starts_with("<tool-result tool=\"list\" step=\"1\">"))
        );
        assert!(has_omitted(&short.into_messages()) && !has_omitted(&conversation().into_messages()));
    }

    #[test]
    fn results_of_a_client_stay() {
        let own = Message::Tool { call_id: "c".to_owned(), text: "x".repeat(1_000) };
        let instruction = vec![Message::user("go"), said("look"), own, said("look")];
        let mut short = Conversation { earlier: Vec::new(), instruction, rounds: Vec::new(), ..conversation() };
        let before = short.clone();
        assert_eq!(short.shorten(0, Room::new(100, None)), None, "nothing can be summarised");
        assert_eq!(short, before);
    }

    #[test]
    fn then_earlier_tasks_and_the_oldest_rounds_are_summarised() {
        // Without the two old results, the conversation has about 2 400 bytes, of which 1 000 are of the earlier task.
        let mut short = conversation();
        assert_eq!(short.shorten(0, Room::new(1_000, None)), Some(0));
        let mut shorter = conversation();
        assert_eq!(shorter.shorten(0, Room::new(500, None)), Some(2), "the last round stays");
        let taken = shorter.take_through(2);
        assert_eq!((taken.len(), shorter.rounds.len(), shorter.earlier.len()), (6, 1, 0));
        shorter.summary = Some(Message::user("summary"));
        assert_eq!(shorter.rounds[0].messages[1], result(3, 1_000));
        assert_eq!(shorter.shorten(0, Room::new(100, None)), None, "the last exchange and the instruction stay");
        let messages = shorter.into_messages();
        assert_eq!(messages[1..3], [Message::user("instruction"), Message::user("summary")]);
    }

    #[test]
    fn the_room_of_a_model_that_refused_a_request_is_smaller() {
        let usual = Room::new(1_000, None);
        assert_eq!(usual, Room { full: 2_400, target: 1_800 });
        assert_eq!(Room::new(1_000, Some(2_000)), Room { full: 1_999, target: 1_500 });
        assert_eq!(Room::new(1_000, Some(9_000)), usual);
    }
}
