//! Rounds that fail: what is tried again, and what the caller may try next.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use monstrum_core::call_types::round::{RoundExchange, RoundFailure};
use monstrum_core::call_types::task_step::{Origin, TaskLease, TaskOfCall, TaskPosition};
use monstrum_types::{CallOutcome, Code, Status, TaskId};
use serde_json::{Value, json};
use support::LlmReply;

use super::{KEY, Models, exchange, heard, texts};

/// Runs a round for which `replies` are prepared. Returns its outcome, its failure and the number of requests.
async fn failed(models: &Models, replies: Vec<LlmReply>) -> Result<(CallOutcome, Option<RoundFailure>, usize)> {
    let before = models.llm.requests().len();
    models.llm.prepare(replies);
    let exchange = exchange();
    let answer = models.run(&exchange).await?;
    assert!(exchange.answer().is_none());
    Ok((answer.outcome, exchange.failure(), models.llm.requests().len() - before))
}

fn error(status: u16, error: &Value) -> LlmReply {
    LlmReply::json(status, &json!({ "error": error }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_is_asked_again_after_the_delay_that_it_names() -> Result<()> {
    let models = Models::start().await?;
    let full = error(429, &json!({"message": "slow down"})).header("retry-after", "0");
    models.llm.prepare([full.clone(), full.clone(), full.clone(), LlmReply::says(&["Now."])]);
    let exchange = exchange();
    let answer = models.run(&exchange).await?;
    assert_eq!(answer.outcome.status, Status::Success, "{:?}", answer.outcome);
    assert_eq!(models.llm.requests().len(), 4);
    assert_eq!(models.used().await?, [9, 3, 1, 0], "tries that were refused cost nothing");

    let long = error(429, &json!({"message": "slow down"})).header("retry-after", "61");
    let (outcome, failure, requests) = failed(&models, vec![long]).await?;
    assert_eq!((failure, requests), (Some(RoundFailure::Unavailable), 1));
    assert_eq!(outcome.retry_after.map(|wait| wait.as_secs()), Some(61));
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_server_is_asked_four_times() -> Result<()> {
    let models = Models::start().await?;
    let broken = || error(500, &json!({"message": "it broke"}));
    let (outcome, failure, requests) = failed(&models, vec![broken(), broken(), broken(), broken()]).await?;
    assert_eq!((outcome.code, failure, requests), (Some(Code::Upstream), Some(RoundFailure::Unavailable), 4));
    assert_eq!(outcome.message.as_deref(), Some("the model's server answered with status 500: it broke"));
    assert_eq!(models.used().await?[..2], [0, 0]);
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_try_cannot_change_is_not_tried_again() -> Result<()> {
    let models = Models::start().await?;
    for (reply, failure, may_try_next) in [
        (error(400, &json!({"message": "no"})), RoundFailure::Rejected, false),
        (error(401, &json!({"message": format!("wrong key {KEY}")})), RoundFailure::Unauthenticated, false),
        (error(403, &json!({"message": "no"})), RoundFailure::Unauthenticated, false),
        (error(404, &json!({"message": "no"})), RoundFailure::Rejected, false),
        (error(400, &json!({"message": "no", "code": "content_filter"})), RoundFailure::ContentFilter, false),
        (error(400, &json!({"message": "no", "code": "context_length_exceeded"})), RoundFailure::ContextLength, true),
        (LlmReply::chunks(&[json!({"error": {"message": "no", "code": 400}})]), RoundFailure::Rejected, false),
    ] {
        let shown = format!("{reply:?}");
        let (outcome, found, requests) = failed(&models, vec![reply]).await?;
        assert_eq!((found, requests), (Some(failure), 1), "{shown}");
        assert_eq!(failure.may_try_next_model(), may_try_next, "{shown}");
        let message = outcome.message.context("a message")?;
        assert!(!message.contains(KEY), "{message}");
    }
    models.host.stop().await;
    Ok(())
}

/// The outcome shows 300 bytes of an error, and the reader keeps 2 000. The key lies across these places.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_an_error_is_redacted_where_the_error_is_cut() -> Result<()> {
    let models = Models::start().await?;
    for at in [300 - KEY.len() + 1, 290, 299, 2_000 - KEY.len() + 1, 1_999] {
        let message = format!("{}{KEY} and more {}", &"- ".repeat(at)[..at], "- ".repeat(2_000));
        let inside = LlmReply::chunks(&[json!({"error": {"message": message, "code": 400}})]);
        for reply in [inside, error(400, &json!({"message": message}))] {
            let (outcome, ..) = failed(&models, vec![reply]).await?;
            let message = outcome.message.context("a message")?;
            assert!(!message.contains(&KEY[..5]), "the key at byte {at} is shown: {message}");
        }
    }
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_answer_is_tried_again_if_nobody_has_heard_of_it() -> Result<()> {
    let models = Models::start().await?;
    let begin = [LlmReply::piece("Half of")];
    let inside = LlmReply::chunks(&[LlmReply::piece("Half of"), json!({"error": {"message": "it broke"}})]);
    for broken in [LlmReply::chunks(&begin).breaking(), LlmReply::chunks(&begin), inside.clone()] {
        let shown = format!("{broken:?}");
        models.llm.prepare([broken, LlmReply::says(&["The whole."])]);
        let exchange = exchange();
        let answer = models.run(&exchange).await?;
        assert_eq!(answer.outcome.status, Status::Success, "{shown}: {:?}", answer.outcome);
        assert_eq!(exchange.answer().context("an answer")?.message.text, "The whole.");
    }
    let [input, output, rounds, estimated] = models.used().await?;
    // Each broken try is charged by its estimate: 7 bytes are 3 tokens.
    assert_eq!((output, rounds, estimated), (3 * (3 + 3), 3, 3));
    assert!(input > 3 * 9, "{input}");

    for broken in [LlmReply::chunks(&begin).breaking(), inside] {
        let shown = format!("{broken:?}");
        let before = models.llm.requests().len();
        models.llm.prepare([broken]);
        let (exchange, mut deltas) = heard();
        let answer = models.run(&exchange).await?;
        assert_eq!(answer.outcome.code, Some(Code::Upstream), "{shown}");
        assert_eq!(models.llm.requests().len() - before, 1, "a listener has heard the beginning: {shown}");
        assert!(exchange.has_sent_delta() && exchange.failure().is_some(), "{shown}");
        assert!("Half of".starts_with(&texts(&mut deltas).0), "{shown}");
    }
    models.host.stop().await;
    Ok(())
}

/// A try that was charged leaves less room in the budget, and another try needs room for all that it can cost.
#[tokio::test(flavor = "multi_thread")]
async fn another_try_without_room_in_the_budget_is_not_sent() -> Result<()> {
    let models = Models::start().await?;
    let bot = format!("/api/bots/{}", models.bot);
    ensure!(models.api.patch(&bot, &json!({ "monthly_token_budget": 800 })).await?.0 == 200);
    // 1800 bytes are 600 tokens.
    let broken = LlmReply::chunks(&[LlmReply::piece(&"x".repeat(1800))]);
    let (outcome, failure, requests) = failed(&models, vec![broken]).await?;
    assert_eq!((outcome.code, outcome.rule.as_deref()), (Some(Code::Budget), Some("budget")), "{outcome:?}");
    assert_eq!((failure, requests), (None, 1));
    assert_eq!(models.used().await?[1..], [600, 1, 1]);
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_given_up() -> Result<()> {
    let models = Models::with(&json!({}), &json!({ "idle_s": 1, "first_byte_s": 1, "total_s": 2 })).await?;
    let silent = |chunks: &[Value]| LlmReply::chunks(chunks).silent();
    let (exchange, _deltas) = heard();
    models.llm.prepare([silent(&[LlmReply::piece("I am about to say something.")])]);
    let answer = models.run(&exchange).await?;
    let message = "the model's server sent nothing for 1 seconds";
    assert_eq!((answer.outcome.code, answer.outcome.message.as_deref()), (Some(Code::Timeout), Some(message)));
    assert_eq!(exchange.failure(), Some(RoundFailure::Timeout));
    // The first try is given up after a second, and the time limit of the round ends the second.
    let (outcome, failure, requests) = failed(&models, vec![silent(&[]), silent(&[])]).await?;
    assert_eq!((outcome.code, failure), (Some(Code::Timeout), Some(RoundFailure::Timeout)));
    assert!(requests <= 2, "{requests}");
    models.llm.is_idle().await;
    assert_eq!(models.used().await?[3], 2, "both rounds are charged by their estimates");
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_over_eight_mebibytes_is_refused() -> Result<()> {
    let models = Models::start().await?;
    let long = LlmReply::piece(&"x".repeat(1 << 20));
    let (outcome, failure, requests) = failed(&models, vec![LlmReply::stream(&[(); 9].map(|()| long.clone()))]).await?;
    let found = (outcome.code, failure, requests);
    assert_eq!(found, (Some(Code::ResultTooLarge), Some(RoundFailure::Rejected), 1));
    models.host.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_without_a_credential_sends_none() -> Result<()> {
    let models = Models::start().await?;
    let credential = format!("/api/resources/{}/credential", models.resource);
    assert_eq!(models.api.delete(&credential).await?.0, 204);
    models.llm.prepare([error(401, &json!({"message": "no key"}))]);
    let exchange = exchange();
    models.run(&exchange).await?;
    assert_eq!(exchange.failure(), Some(RoundFailure::Unauthenticated));
    assert_eq!(models.llm.requests()[0].header("authorization"), None);
    models.host.stop().await;
    Ok(())
}

/// The parameters that are judged and recorded must describe the request that is sent.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_of_another_round_are_refused() -> Result<()> {
    let models = Models::start().await?;
    let (one, mut other) = (exchange(), super::request());
    other.messages.push(monstrum_llm::Message::user("and more"));
    let other = Arc::new(RoundExchange::new(other, ("small", 1000), None));
    let attachments = models.call(&other)?.attachments().clone();
    let call = models.call(&one)?.with_attachments(attachments);
    let answer = models.host.running.app.calls.run(call).await?;
    let message = "Invalid parameters: the parameters do not describe the round";
    assert_eq!(answer.outcome.message.as_deref(), Some(message));
    assert!(models.llm.requests().is_empty());
    models.host.stop().await;
    Ok(())
}

/// A lease that ends when the first request arrives.
struct EndsAtRequest(Box<dyn Fn() -> bool + Send + Sync>);

impl TaskLease for EndsAtRequest {
    fn is_in_force(&self) -> bool {
        !(self.0)()
    }

    fn origin(&self) -> Origin {
        Origin::Task(TaskPosition::first(TaskId::new()))
    }

    fn give_place(&self) {}
}

/// Another host has taken the task over while this one waited for another try.
#[tokio::test(flavor = "multi_thread")]
async fn a_round_whose_task_has_lost_its_lease_is_not_sent_again() -> Result<()> {
    let models = Models::start().await?;
    let broken = error(500, &json!({"message": "it broke"})).header("retry-after", "0");
    models.llm.prepare([broken, LlmReply::says(&["Too late."])]);
    let exchange = exchange();
    let lease = Arc::new(EndsAtRequest(Box::new(models.llm.was_asked())));
    let call = models.call(&exchange)?.with_task(TaskOfCall { step: None, lease });
    let answer = models.host.running.app.calls.run(call).await.context("the audit could not be written")?;
    assert_eq!(answer.outcome.status, Status::Error, "{:?}", answer.outcome);
    assert_eq!(models.llm.requests().len(), 1, "{:?}", answer.outcome);
    assert!(exchange.answer().is_none() && exchange.failure().is_some());
    assert_eq!(models.used().await?[..2], [0, 0]);
    models.host.stop().await;
    Ok(())
}
