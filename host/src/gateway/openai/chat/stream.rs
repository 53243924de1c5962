//! A chat completion as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::Response;
use axum::response::sse::Event;
use futures::stream;
use monstrum_agent::{AnswerEvent, Answering};
use serde_json::{Value, json};

use super::{Head, finish_reason, tool_calls, usage};
use crate::gateway::http::streams::StreamPlace;
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::{Answered, events};

/// The last event of a stream without an error.
const DONE: &str = "[DONE]";

struct Chunks {
    answering: Answering,
    head: Head,
    with_usage: bool,
    queued: VecDeque<String>,
    is_over: bool,
    _place: StreamPlace,
}

/// Answers while the task runs.
pub(super) async fn answer(answered: Answered, head: Head, with_usage: bool) -> Result<Response, OpenAiError> {
    let Answered { attendance, is_new, place, .. } = answered;
    let answering = attendance.follow(is_new).await?;
    let queued = VecDeque::new();
    let mut chunks = Chunks { answering, head, with_usage, queued, is_over: false, _place: place };
    chunks.push(&json!({ "role": "assistant", "content": "" }), None);
    Ok(events(stream::unfold(chunks, |mut chunks| async move {
        chunks.next().await.map(|data| (Ok::<Event, Infallible>(Event::default().data(data)), chunks))
    })))
}

impl Chunks {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.queued.pop_front() {
                return Some(data);
            }
            if self.is_over {
                return None;
            }
            match self.answering.next().await {
                // Text before an answer with a form is no part of it, and only the end tells which text is the answer.
                Ok(Some(AnswerEvent::Text(_))) if self.head.has_form => {}
                Ok(Some(AnswerEvent::Text(text))) => self.push(&json!({ "content": text }), None),
                Ok(Some(AnswerEvent::End(answer))) => match OpenAiError::of_task(&answer) {
                    Some(error) => self.fail(&error),
                    None => {
                        let text = answer.shown_text(self.head.has_form);
                        if self.head.has_form && !text.is_empty() {
                            self.push(&json!({ "content": text }), None);
                        }
                        for (index, mut call) in tool_calls(&answer).into_iter().enumerate() {
                            call["index"] = json!(index);
                            self.push(&json!({ "tool_calls": [call] }), None);
                        }
                        self.push(&json!({}), Some(finish_reason(&answer)));
                        if self.with_usage {
                            let mut last = self.chunk(&json!([]));
                            last["usage"] = usage(answer.task.usage);
                            self.queued.push_back(last.to_string());
                        }
                        self.queued.push_back(DONE.to_owned());
                        self.is_over = true;
                    }
                },
                Ok(None) => self.fail(&OpenAiError::interrupted()),
                Err(error) => self.fail(&error.into()),
            }
        }
    }

    fn push(&mut self, delta: &Value, finish_reason: Option<&str>) {
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason });
        let chunk = self.chunk(&json!([choice]));
        self.queued.push_back(chunk.to_string());
    }

    /// Returns a chunk with these choices. If the last one has the usage, the others have an empty one.
    fn chunk(&self, choices: &Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        });
        if self.with_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn fail(&mut self, error: &OpenAiError) {
        self.queued.push_back(error.body().to_string());
        self.is_over = true;
    }
}
