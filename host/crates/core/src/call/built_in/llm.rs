//! Rounds with models: the hidden tool `llm_complete` of the built-in type `llm`.
//!
//! A round is reserved on the ledger before it is recorded as started, and settled on every way out. The module tries one
//! model up to four times, and reserves anew after a try that cost something. It must not choose another model, and must
//! not write messages or answers to the audit or the log: they are only in the exchange of the call.

mod answer;
mod charge;
mod failure;
mod learned;
mod one_try;

use std::sync::Arc;
use std::time::Duration;

use monstrum_egress::Egress;
use monstrum_guardian::Permit;
use monstrum_llm::estimate::RequestSize;
use monstrum_llm::{Message, Origin, OutputField, Part, Request, Round, Tool};
use monstrum_types::{CallOutcome, InputError, JsonText};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout_at};

use self::charge::{Charge, NextTry};
use self::failure::Failed;
use self::learned::Learned;
use crate::beside;
use crate::call::ledger::{Ledger, OUTPUT_TOKENS_MIN, Price, ReserveRequest};
use crate::call::permitted::Execution;
use crate::call_types::refusal::{Refusal, invalid_params};
use crate::call_types::round::{RoundExchange, RoundFailure, RoundTool};
use crate::models::{ModelConfig, ModelPrice, models_of};
use crate::plugins::built_in::{FIRST_BYTE_S, IDLE_S};
use crate::policy::Resource;

/// The number of tries of one model.
const TRIES: u32 = 4;
/// The wait before the second try; each further wait is twice as long.
const BACKOFF: Duration = Duration::from_millis(500);
/// The longest wait that a server can ask for. If it asks for more, another model is the better choice.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// A request with more text is written beside the other tasks of its thread.
const INLINE_BYTES_MAX: u64 = 64 * 1024;

/// Runs rounds, and remembers what it has learned about models. The memory is that of this process.
pub struct Rounds {
    egress: Egress,
    learned: Learned,
    backoff: Duration,
}

/// A round that has room in the budgets.
pub struct PreparedRound {
    exchange: Arc<RoundExchange>,
    resource: Arc<Resource>,
    model: ModelConfig,
    origin: Origin,
    size: RequestSize,
    output_tokens: u64,
    /// The reservation of another try.
    retry: ReserveRequest,
    charge: Charge,
}

/// Why a round ends without an answer.
enum Unanswered {
    Failed(Failed),
    /// The budgets have no room for another try.
    NoRoom(Refusal),
}

impl From<Failed> for Unanswered {
    fn from(failed: Failed) -> Unanswered {
        Unanswered::Failed(failed)
    }
}

impl Rounds {
    /// Creates the runner of rounds, whose requests go through `egress`.
    pub fn new(egress: Egress) -> Rounds {
        Rounds { egress, learned: Learned::default(), backoff: BACKOFF }
    }

    /// Checks a round and reserves what it can cost at most.
    pub async fn prepare(
        &self,
        ledger: &Ledger,
        execution: &Execution<'_>,
        permit: &Permit,
    ) -> Result<PreparedRound, Refusal> {
        let Execution { call, target, .. } = *execution;
        let invalid = |path: &str, message: &str| {
            Box::new(invalid_params(&[InputError { path: path.to_owned(), message: message.to_owned() }]))
        };
        let (Some(exchange), Some(resource), Some(bot)) =
            (call.attachments().round.clone(), target.resource.clone(), call.bot())
        else {
            return Err(invalid("", "the call has no round"));
        };
        // What was judged and is recorded is what is sent.
        if permit.params() != exchange.params() {
            return Err(invalid("", "the parameters do not describe the round"));
        }
        let id = permit.params().get("model").and_then(Value::as_str).unwrap_or_default();
        let Some(model) = models_of(&resource).into_iter().find(|model| model.id == id) else {
            return Err(invalid("/model", "the resource has no model of this name"));
        };
        if !model.vision && has_images(&exchange.request().messages) {
            return Err(invalid("/model", "the model does not read images"));
        }
        let origin = Origin { resource: resource.row.id, model: model.id.clone() };
        let tools = tools(&exchange, &model);
        let size = request(&exchange, &model, &origin, &tools).size();
        let input_tokens = self.learned.factor(&origin).estimate(size);
        let asked = permit.params().get("output_tokens").and_then(Value::as_u64).unwrap_or(model.output_tokens);
        // Servers reject a request whose input and output together exceed the context.
        let room = model.context_tokens.saturating_sub(input_tokens).max(OUTPUT_TOKENS_MIN);
        let request = ReserveRequest {
            workspace_id: call.workspace(),
            bot_id: bot,
            user: call.app_user(),
            task_id: call.task_id().map(str::to_owned),
            request_id: call.request_id(),
            model: format!("{}/{}", resource.row.name, model.id),
            input_tokens,
            output_tokens: asked.min(room),
            price: model.price.map(price),
            is_retry: false,
        };
        let retry = ReserveRequest { is_retry: true, ..request.clone() };
        let reservation = ledger.reserve(request).await.map_err(Box::new)?;
        let output_tokens = reservation.output_tokens();
        let charge = Charge::new(reservation, input_tokens, model.context_tokens);
        Ok(PreparedRound { exchange, resource, model, origin, size, output_tokens, retry, charge })
    }

    /// Runs a round until `until`. The call is recorded as started.
    pub async fn run(
        &self,
        ledger: &Ledger,
        execution: &Execution<'_>,
        mut round: PreparedRound,
        until: Instant,
    ) -> CallOutcome {
        execution.secrets.search_until(until);
        let tried = timeout_at(until, self.tries(ledger, execution, &mut round, until)).await;
        let answered = match tried.unwrap_or_else(|_| Err(Failed::late().into())) {
            Ok(answer) => self.answered(execution, &round, answer).await.map_err(Unanswered::from),
            Err(unanswered) => Err(unanswered),
        };
        round.charge.settle().await;
        answered.unwrap_or_else(|unanswered| match unanswered {
            Unanswered::Failed(failed) => {
                round.exchange.fail(failed.kind);
                failed.outcome()
            }
            Unanswered::NoRoom(refusal) => *refusal,
        })
    }

    /// Tries the model until it answers, or another try is useless or not permitted.
    async fn tries(
        &self,
        ledger: &Ledger,
        execution: &Execution<'_>,
        round: &mut PreparedRound,
        until: Instant,
    ) -> Result<Round, Unanswered> {
        let configured = round.model.output_field;
        let mut field = configured.unwrap_or_else(|| self.learned.output_field(&round.origin));
        let mut wait = self.backoff;
        let mut tried = 0;
        loop {
            tried += 1;
            let failed = match self.try_once(execution, round, field, until).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if failed.wants_other_field && field == OutputField::MaxTokens && configured.is_none() {
                field = OutputField::MaxCompletionTokens;
                self.learned.use_output_field(&round.origin, field);
                tried -= 1;
                continue;
            }
            let pause = failed.retry_after.unwrap_or_else(|| with_jitter(wait));
            let is_useful = failed.is_repeatable() && pause <= RETRY_AFTER_MAX && Instant::now() + pause < until;
            if tried == TRIES || !is_useful || round.exchange.has_sent_delta() {
                return Err(failed.into());
            }
            sleep(pause).await;
            round.renew(ledger).await.map_err(Unanswered::NoRoom)?;
            wait *= 2;
        }
    }

    /// Completes a round whose model has answered.
    async fn answered(
        &self,
        execution: &Execution<'_>,
        round: &PreparedRound,
        answer: Round,
    ) -> Result<CallOutcome, Failed> {
        if let Some(usage) = answer.usage {
            self.learned.learn(&round.origin, round.size, usage.input);
        }
        let used = round.charge.used();
        let answer =
            answer::redacted(execution.secrets, round.origin.clone(), answer, used).await.map_err(Failed::withheld)?;
        let data = json!({
            "finish": answer.finish.as_str(),
            "tool_calls": answer.message.calls.len(),
            "usage": {
                "input_tokens": answer.usage.input,
                "cached_input_tokens": answer.usage.cached_input,
                "output_tokens": answer.usage.output,
                "is_estimated": answer.usage_is_estimated,
            },
        });
        round.exchange.succeed(answer);
        Ok(CallOutcome::success(JsonText::from(&data)))
    }
}

impl PreparedRound {
    /// Releases the reservation of a round that does not run.
    pub async fn abandon(self) {
        self.charge.settle().await;
    }

    /// Settles the tries so far if they cost something, and then reserves what another try can cost.
    async fn renew(&mut self, ledger: &Ledger) -> Result<(), Refusal> {
        if self.charge.settle_tries().await == NextTry::NeedsRoom {
            let reservation = ledger.reserve(self.retry.clone()).await.map_err(Box::new)?;
            self.output_tokens = reservation.output_tokens();
            self.charge.renew(reservation);
        }
        Ok(())
    }

    /// Returns a limit of the resource in seconds.
    fn seconds(&self, field: &str, default: u32) -> Duration {
        let configured = self.resource.config.get(field).and_then(Value::as_u64);
        Duration::from_secs(configured.unwrap_or_else(|| default.into()))
    }

    fn first_byte(&self) -> Duration {
        self.seconds("first_byte_s", FIRST_BYTE_S)
    }

    fn idle(&self) -> Duration {
        self.seconds("idle_s", IDLE_S)
    }

    /// Writes the body of the request.
    fn body(&self, field: OutputField) -> Result<Vec<u8>, Failed> {
        let tools = tools(&self.exchange, &self.model);
        let mut request = request(&self.exchange, &self.model, &self.origin, &tools);
        request.output_tokens = self.output_tokens;
        request.output_field = field;
        let is_large = self.size.text_bytes > INLINE_BYTES_MAX || self.size.images > 0;
        let written = beside::in_place(is_large, || request.body());
        written.map_err(|error| Failed::new(RoundFailure::Rejected, error.to_string()))
    }
}

fn has_images(messages: &[Message]) -> bool {
    let is_image = |part: &Part| matches!(part, Part::Image { .. });
    messages.iter().any(|message| matches!(message, Message::User { parts } if parts.iter().any(is_image)))
}

fn tools<'a>(exchange: &'a RoundExchange, model: &ModelConfig) -> Vec<Tool<'a>> {
    let asked = exchange.request().tools.iter().filter(|_| model.tools);
    let tool =
        |tool: &'a RoundTool| Tool { name: &tool.name, description: &tool.description, parameters: &tool.parameters };
    asked.map(tool).collect()
}

fn request<'a>(
    exchange: &'a RoundExchange,
    model: &'a ModelConfig,
    origin: &'a Origin,
    tools: &'a [Tool<'a>],
) -> Request<'a> {
    let asked = exchange.request();
    let options = &asked.options;
    Request {
        tools,
        tool_schema: model.tool_schema,
        tool_choice: options.tool_choice,
        // Servers that do not know the field reject it, so it is sent only to forbid.
        parallel_tool_calls: (!model.parallel_tools || options.parallel_tool_calls == Some(false)).then_some(false),
        temperature: options.temperature,
        top_p: options.top_p,
        stop: &options.stop,
        seed: options.seed,
        response_format: options.response_format.as_ref(),
        reasoning_effort: options.reasoning_effort.as_deref(),
        ..Request::new(origin, &asked.messages, model.output_tokens, &model.extra)
    }
}

/// Returns the price in millionths of a credit. Cached input costs as much as other input if it has no price.
fn price(price: ModelPrice) -> Price {
    Price {
        input: millionths(price.input),
        cached_input: millionths(price.cached_input.unwrap_or(price.input)),
        output: millionths(price.output),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is whole and not negative, and the conversion saturates"
)]
fn millionths(credits: f64) -> u64 {
    (credits.max(0.0) * 1e6).ceil() as u64
}

/// Returns a time between the half and the whole of `wait`, so that the clients of a server do not return together.
fn with_jitter(wait: Duration) -> Duration {
    let mut random = [0; 1];
    // Without random numbers, the wait is the half.
    let share = getrandom::fill(&mut random).map_or(0, |()| u32::from(random[0]));
    wait / 2 + wait / 2 * share / u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_rounded_up_to_a_millionth() {
        let of = |input, cached_input, output| price(ModelPrice { input, cached_input, output });
        assert_eq!(of(0.15, None, 2.5), Price { input: 150_000, cached_input: 150_000, output: 2_500_000 });
        assert_eq!(of(1.0, Some(0.1), 0.000_000_1), Price { input: 1_000_000, cached_input: 100_000, output: 1 });
        assert_eq!(of(f64::INFINITY, Some(-1.0), f64::NAN), Price { input: u64::MAX, cached_input: 0, output: 0 });
    }

    #[test]
    fn waits_are_between_the_half_and_the_whole() {
        for _ in 0..1000 {
            let wait = with_jitter(BACKOFF);
            assert!((BACKOFF / 2..=BACKOFF).contains(&wait), "{wait:?}");
        }
    }
}
