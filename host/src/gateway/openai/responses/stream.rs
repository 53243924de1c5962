//! A response as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::Response;
use axum::response::sse::Event;
use futures::stream;
use monstrum_agent::client_tools::ClientCall;
use monstrum_agent::{Answer, AnswerEvent, Answering};
use monstrum_api::tasks::Task;
use serde_json::{Value, json};

use super::object::{About, Progress, function_call, message, message_id, part};
use crate::gateway::http::streams::StreamPlace;
use crate::gateway::openai::errors::OpenAiError;
use crate::gateway::openai::{Answered, events};

struct Events {
    answering: Answering,
    about: About,
    task: Task,
    /// The text so far; `None` before its first piece.
    text: Option<String>,
    sequence: u64,
    queued: VecDeque<(&'static str, String)>,
    is_over: bool,
    _place: StreamPlace,
}

/// Answers while the task runs.
pub(super) async fn answer(answered: Answered, about: About) -> Result<Response, OpenAiError> {
    let Answered { task, attendance, is_new, place } = answered;
    let answering = attendance.follow(is_new).await?;
    let (queued, is_over) = (VecDeque::new(), false);
    let mut sent = Events { answering, about, task, text: None, sequence: 0, queued, is_over, _place: place };
    let response = sent.about.shown(&sent.task, &Progress::Runs);
    sent.push("response.created", json!({ "response": response }));
    sent.push("response.in_progress", json!({ "response": response }));
    Ok(events(stream::unfold(sent, |mut sent| async move {
        let (name, data) = sent.next().await?;
        Some((Ok::<Event, Infallible>(Event::default().event(name).data(data)), sent))
    })))
}

impl Events {
    async fn next(&mut self) -> Option<(&'static str, String)> {
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            match self.answering.next().await {
                // Text before an answer with a form is no part of it, and only the end tells which text is the answer.
                Ok(Some(AnswerEvent::Text(_))) if self.about.has_form => {}
                Ok(Some(AnswerEvent::Text(text))) => self.add(&text),
                Ok(Some(AnswerEvent::End(answer))) => match OpenAiError::of_task(&answer) {
                    Some(error) => self.fail(&error),
                    None => self.end(&answer),
                },
                Ok(None) => self.fail(&OpenAiError::interrupted()),
                Err(error) => self.fail(&error.into()),
            }
        }
    }

    fn push(&mut self, name: &'static str, mut event: Value) {
        event["type"] = json!(name);
        event["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        self.queued.push_back((name, event.to_string()));
    }

    /// Returns the place of the only text of the response.
    fn place(&self) -> Value {
        json!({ "item_id": message_id(&self.task), "output_index": 0, "content_index": 0 })
    }

    /// Begins the message, unless it has begun.
    fn begin(&mut self) {
        if self.text.is_some() {
            return;
        }
        self.text = Some(String::new());
        let item = message(&self.task, None, "in_progress");
        self.push("response.output_item.added", json!({ "output_index": 0, "item": item }));
        let mut event = self.place();
        event["part"] = part("");
        self.push("response.content_part.added", event);
    }

    fn add(&mut self, text: &str) {
        self.begin();
        if let Some(whole) = &mut self.text {
            whole.push_str(text);
        }
        let mut event = self.place();
        (event["delta"], event["logprobs"]) = (json!(text), json!([]));
        self.push("response.output_text.delta", event);
    }

    fn end(&mut self, answer: &Answer) {
        let text = answer.shown_text(self.about.has_form);
        if self.about.has_form && !text.is_empty() {
            self.add(text);
        }
        if answer.client_calls.is_empty() {
            self.begin();
        }
        let status = if answer.is_cut { "incomplete" } else { "completed" };
        let first_call = u64::from(self.text.is_some());
        self.end_message(status);
        for (index, call) in (first_call..).zip(&answer.client_calls) {
            self.call(index, call);
        }
        let response = self.about.shown(&answer.task, &Progress::Ended(answer));
        let name = if answer.is_cut { "response.incomplete" } else { "response.completed" };
        self.push(name, json!({ "response": response }));
        self.is_over = true;
    }

    /// Adds a call that the client is to run.
    fn call(&mut self, index: u64, call: &ClientCall) {
        let item = function_call(call, None);
        self.push("response.output_item.added", json!({ "output_index": index, "item": item }));
        let place = json!({ "item_id": item["id"], "output_index": index });
        let mut event = place.clone();
        event["delta"] = json!(call.arguments);
        self.push("response.function_call_arguments.delta", event);
        let mut event = place;
        (event["arguments"], event["name"]) = (json!(call.arguments), json!(call.name));
        self.push("response.function_call_arguments.done", event);
        let item = function_call(call, Some(&call.arguments));
        self.push("response.output_item.done", json!({ "output_index": index, "item": item }));
    }

    /// Ends the message, if it has begun.
    fn end_message(&mut self, status: &str) {
        let Some(text) = self.text.take() else { return };
        let mut event = self.place();
        (event["text"], event["logprobs"]) = (json!(text), json!([]));
        self.push("response.output_text.done", event);
        let mut event = self.place();
        event["part"] = part(&text);
        self.push("response.content_part.done", event);
        let item = message(&self.task, Some(&text), status);
        self.push("response.output_item.done", json!({ "output_index": 0, "item": item }));
    }

    fn fail(&mut self, error: &OpenAiError) {
        let response = self.about.shown(&self.task, &Progress::Failed(error));
        self.push("response.failed", json!({ "response": response }));
        self.is_over = true;
    }
}
