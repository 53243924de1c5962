//! Requests to `/hooks/{id}`.

use anyhow::{Context, Result};
use futures::future::try_join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Hook, Sent, event, refused};
use crate::http::send;
use crate::world::{World, text};

const BODY: &str = r#"{"action":"opened","number":7}"#;

#[tokio::test]
async fn a_signed_request_makes_an_event() -> Result<()> {
    let world = World::with(&[]).await?;
    let fields = json!({ "event": "github.issue", "bot_id": world.bot, "headers": ["X-GitHub-Event", "X-Absent"] });
    let hook = Hook::create(&world.api, "issues", &fields).await?;
    let sent = hook.signed(BODY).with("x-github-event", "issues").with("X-Other", "other").with("Cookie", "c=1");
    let (status, headers, answer) = sent.to(&world.api, &hook.path()).await?;
    assert_eq!((status, headers["content-type"].to_str()?), (202, "application/json"), "{answer}");
    assert_eq!(answer.as_object().map(serde_json::Map::len), Some(1));
    let (row, data) = event(&world, text(&answer["event_id"])).await?;
    assert_eq!(data, json!({ "body": { "action": "opened", "number": 7 }, "headers": { "x-github-event": "issues" } }));
    assert_eq!((row.event_type.as_str(), row.source_type.as_str()), ("custom.github.issue", "webhook"));
    assert_eq!((row.source_id, row.bot_id.map(|id| id.to_string())), (hook.id.clone(), Some(world.bot.clone())));
    assert_eq!((row.root_event_id, row.depth), (row.id, 0));
    let of_platform = Hook::create(&world.api, "of-platform", &json!({})).await?;
    let (row, data) = event(&world, &of_platform.event(&world.api, of_platform.signed("[1]")).await?).await?;
    assert_eq!((row.bot_id, data), (None, json!({ "body": [1], "headers": {} })));
    Ok(())
}

/// The answers to all requests that are not authentic are equal.
#[tokio::test]
async fn a_stranger_gets_one_answer() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let hook = Hook::create(api, "hook", &json!({})).await?;
    let other = Hook::create(api, "other", &json!({})).await?;
    let token = Hook::create(api, "token", &json!({ "verify": { "kind": "token" } })).await?;
    let deleted = Hook::create(api, "deleted", &json!({})).await?;
    assert_eq!(api.delete(&format!("/api/webhooks/{}", deleted.id)).await?.0, 204);
    let unsigned = |body: &str| Sent { headers: Vec::new(), body: body.as_bytes().to_vec() };
    let forged = || unsigned(BODY).with("X-Hub-Signature-256", &format!("sha256={}", "0".repeat(64)));
    let mut changed = hook.signed(BODY);
    changed.body.push(b' ');
    let named = |id: &str| format!("/hooks/{id}");
    for (path, sent, what) in [
        (hook.path(), unsigned(BODY), "no signature"),
        (hook.path(), forged(), "a forged signature"),
        (hook.path(), changed, "another body"),
        (hook.path(), other.signed(BODY), "the signature of another webhook"),
        (hook.path(), hook.with_token(BODY), "the secret as a token"),
        (hook.path(), hook.signed(BODY).with("X-Hub-Signature-256", "sha256=00"), "two signatures"),
        (hook.path(), unsigned("no JSON"), "no JSON"),
        (token.path(), token.signed(BODY), "a signature instead of the token"),
        (token.path(), unsigned(BODY).with("Authorization", &format!("Bearer {}", api.key())), "an API key"),
        (deleted.path(), deleted.signed(BODY), "a deleted webhook"),
        (named("01939d2c-7f6a-7000-8000-000000000001"), hook.signed(BODY), "an unknown webhook"),
        (named(&hook.id.to_uppercase()), hook.signed(BODY), "another spelling of the id"),
        (named("x"), hook.signed(BODY), "a malformed id"),
        (named("%00"), hook.signed(BODY), "a zero"),
        (named("%ff"), hook.signed(BODY), "an id that is not text"),
        (named("..%2fapi"), hook.signed(BODY), "a path"),
    ] {
        let (status, headers, answer) = sent.to(api, &path).await?;
        assert_eq!((status, answer), refused(), "{what}");
        assert_eq!(headers["www-authenticate"].to_str()?, "Bearer", "{what}");
    }
    // Nothing above has used up the limit of the webhook or made an event.
    hook.event(api, hook.signed(BODY)).await?;
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let request = api.with_key("").request(method.clone(), &hook.path());
        assert_eq!(send(request).await?.0, 405, "{method}");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_makes_events_without_a_signature() -> Result<()> {
    let world = World::with(&[]).await?;
    let hook = Hook::create(&world.api, "token", &json!({ "verify": { "kind": "token" } })).await?;
    let (row, data) = event(&world, &hook.event(&world.api, hook.with_token(BODY)).await?).await?;
    assert_eq!(row.event_type, "custom.x.made");
    assert_eq!(data["body"]["number"], 7);
    Ok(())
}

#[tokio::test]
async fn a_signature_can_have_another_header_and_prefix() -> Result<()> {
    let world = World::with(&[]).await?;
    let verify = json!({ "verify": { "kind": "hmac_sha256", "header": "X-Signature", "prefix": "" } });
    let hook = Hook::create(&world.api, "own", &verify).await?;
    let mut sent = hook.signed(BODY);
    let digits = sent.headers[0].1.trim_start_matches("sha256=").to_uppercase();
    assert_eq!(hook.send(&world.api, hook.signed(BODY)).await?, refused());
    sent.headers = vec![("x-signature".to_owned(), digits)];
    hook.event(&world.api, sent).await?;
    Ok(())
}

#[tokio::test]
async fn a_repeated_request_makes_no_second_event() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let hook = Hook::create(api, "hook", &json!({ "dedupe_header": "X-Delivery" })).await?;
    let of = |delivery: &str, body: &str| hook.signed(body).with("x-delivery", delivery);
    let first = hook.event(api, of("a", BODY)).await?;
    assert_eq!(hook.send(api, of("a", BODY)).await?, (200, json!({ "event_id": first })));
    assert_eq!(hook.send(api, of("a", "{}")).await?, (200, json!({ "event_id": first })), "another body");
    assert_ne!(hook.event(api, of("b", BODY)).await?, first, "another delivery");
    let (one, other) = (hook.event(api, hook.signed(BODY)).await?, hook.event(api, hook.signed(BODY)).await?);
    assert_ne!(one, other, "requests without the header");
    // A stranger does not learn which deliveries have arrived.
    let forged = Sent { headers: Vec::new(), body: BODY.into() }.with("x-delivery", "a");
    assert_eq!(hook.send(api, forged).await?, refused());

    // Of requests at once, one makes an event.
    let at_once = try_join_all((0..10).map(|_| hook.send(api, of("c", BODY)))).await?;
    assert_eq!(at_once.iter().filter(|(status, _)| *status == 202).count(), 1, "{at_once:?}");
    assert!(at_once.iter().all(|(_, answer)| *answer == at_once[0].1), "{at_once:?}");

    // The signature as the header makes one event of each body, in whichever way its digits are written.
    let by_body = Hook::create(api, "by-body", &json!({ "dedupe_header": "x-hub-signature-256" })).await?;
    let first = by_body.event(api, by_body.signed(BODY)).await?;
    let mut again = by_body.signed(BODY);
    again.headers[0].1 = format!("sha256={}", again.headers[0].1["sha256=".len()..].to_uppercase());
    assert_eq!(by_body.send(api, again).await?, (200, json!({ "event_id": first })));
    assert_ne!(by_body.event(api, by_body.signed("{}")).await?, first);
    Ok(())
}

#[tokio::test]
async fn bodies_are_json_of_limited_size_and_depth() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let hook = Hook::create(api, "hook", &json!({ "headers": ["X-Long"] })).await?;
    let of_bytes = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let sent = hook.signed(&of_bytes(60 << 10)).with("x-long", &"y".repeat(1000));
    let (_, data) = event(&world, &hook.event(api, sent).await?).await?;
    assert_eq!(text(&data["headers"]["x-long"]), "y".repeat(256), "a long value is cut");
    let (status, answer) = hook.send(api, hook.signed(&of_bytes((60 << 10) + 1))).await?;
    assert_eq!((status, text(&answer["detail"])), (413, "the body exceeds the limit of 61440 bytes"));
    // The size says nothing about the webhook: it is checked before the signature, for each path.
    let large = || Sent { headers: Vec::new(), body: of_bytes(61 << 10).into_bytes() };
    assert_eq!(hook.send(api, large()).await?.0, 413);
    assert_eq!(large().to(api, "/hooks/01939d2c-7f6a-7000-8000-000000000001").await?.0, 413);
    for body in ["", "{", "a=b&c=d", "{} {}", &format!("{}{}", "[".repeat(65), "]".repeat(65))] {
        let (status, answer) = hook.send(api, hook.signed(body)).await?;
        assert_eq!((status, text(&answer["type"])), (422, "urn:monstrum:error:invalid"), "{body}: {answer}");
    }
    hook.event(api, hook.signed(&format!("{}{}", "[".repeat(64), "]".repeat(64)))).await?;
    // The data of this event would be four times as long as its body.
    let (status, answer) = hook.send(api, hook.signed(&format!("[1e15{}]", ",1e15".repeat(12_000)))).await?;
    assert_eq!((status, text(&answer["type"])), (413, "urn:monstrum:error:too_large"), "{answer}");
    Ok(())
}

/// Secrets do not become part of an event: the secret of the webhook, and the credentials that the bot uses.
#[tokio::test]
async fn secrets_are_redacted() -> Result<()> {
    let world = World::with(&["test-echo"]).await?;
    world.grant_all("test-echo").await?;
    let fields = json!({ "bot_id": world.bot, "headers": ["X-Note"] });
    let hook = Hook::create(&world.api, "hook", &fields).await?;
    let body = json!({ "own": hook.secret, "token": world.github.token() }).to_string();
    let sent = hook.signed(&body).with("x-note", &hook.secret);
    let (_, data) = event(&world, &hook.event(&world.api, sent).await?).await?;
    let expected = json!({
        "body": { "own": "[redacted]", "token": "[redacted]" }, "headers": { "x-note": "[redacted]" },
    });
    assert_eq!(data, expected);
    Ok(())
}

#[tokio::test]
async fn a_rotated_secret_ends_the_old_one_at_once() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let hook = Hook::create(api, "hook", &json!({})).await?;
    hook.event(api, hook.signed(BODY)).await?;
    let (_, rotated) = api.post(&format!("/api/webhooks/{}/rotate", hook.id), &Value::Null).await?;
    assert_eq!(hook.send(api, hook.signed(BODY)).await?, refused());
    let hook = Hook { secret: text(&rotated["secret"]).to_owned(), ..hook };
    hook.event(api, hook.signed(BODY)).await?;
    // A change of another field keeps the secret.
    assert_eq!(api.patch(&format!("/api/webhooks/{}", hook.id), &json!({ "event": "y" })).await?.0, 200);
    let (row, _) = event(&world, &hook.event(api, hook.signed(BODY)).await?).await?;
    assert_eq!(row.event_type, "custom.y");
    Ok(())
}

#[tokio::test]
async fn a_webhook_takes_120_requests_and_then_two_a_second() -> Result<()> {
    let world = World::with(&[]).await?;
    let api = &world.api;
    let hook = Hook::create(api, "hook", &json!({ "dedupe_header": "X-Delivery" })).await?;
    let began = std::time::Instant::now();
    let mut accepted = 0_u64;
    let limited = loop {
        // Repeated requests count, too.
        let sent = (0..20).map(|_| async {
            let sent = hook.signed(BODY).with("x-delivery", "a");
            sent.to(api, &hook.path()).await
        });
        let mut limited = None;
        for (status, headers, answer) in try_join_all(sent).await? {
            match status {
                200 | 202 => accepted += 1,
                _ => limited = Some((status, headers, answer)),
            }
        }
        if let Some(limited) = limited {
            break limited;
        }
    };
    let while_sending = began.elapsed().as_millis().div_ceil(500);
    assert!((120..=121 + u64::try_from(while_sending)?).contains(&accepted), "{accepted}");
    let (status, headers, answer) = limited;
    assert_eq!((status, headers["retry-after"].to_str()?), (429, "1"), "{answer}");
    assert_eq!(text(&answer["type"]), "urn:monstrum:error:rate_limited");
    let other = Hook::create(api, "other", &json!({})).await?;
    other.event(api, other.signed(BODY)).await?;
    // A stranger gets the same answer as before.
    let unsigned = Sent { headers: Vec::new(), body: BODY.into() };
    assert_eq!(hook.send(api, unsigned).await?, refused());
    Ok(())
}

#[tokio::test]
async fn events_of_a_deleted_webhook_are_kept() -> Result<()> {
    let world = World::with(&[]).await?;
    let hook = Hook::create(&world.api, "hook", &json!({ "dedupe_header": "X-Delivery" })).await?;
    let id = hook.event(&world.api, hook.signed(BODY).with("x-delivery", "a")).await?;
    assert_eq!(world.api.delete(&format!("/api/webhooks/{}", hook.id)).await?.0, 204);
    let (row, _) = event(&world, &id).await.context("the event")?;
    assert_eq!(row.source_id, hook.id);
    Ok(())
}
