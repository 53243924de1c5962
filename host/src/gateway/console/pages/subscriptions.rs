//! The subscriptions of bots to events: the list, one subscription, switching it off, confirming and deleting it.

use askama::Template;
use axum::extract::{Path, Query};
use http::Method;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::json;

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::narrow::{Narrow, SOURCES};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::deletion::ConfirmPage;
use crate::gateway::console::pages::events::{Tab, tabs};
use crate::gateway::console::pages::tasks::{bots, name_of};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// A subscription as the API tells it.
#[derive(Deserialize)]
pub(super) struct Subscription {
    pub id: String,
    pub bot_id: String,
    pub pattern: Text,
    pub instruction: Text,
    pub from: Vec<Text>,
    #[serde(default)]
    pub narrow: Option<Narrow>,
    pub active: bool,
    made_by: MadeBy,
    #[serde(default)]
    pub expires_at: Option<UtcMillis>,
    created_at: UtcMillis,
}

/// Who made an object: a key or a plugin.
#[derive(Deserialize)]
pub(super) struct MadeBy {
    pub kind: String,
    pub id: Text,
}

impl Subscription {
    /// Returns the path of the page of the subscription.
    pub(super) fn base(&self, visit: &Visit) -> String {
        visit.to(&format!("subscriptions/{}", segment(&self.id)))
    }

    /// Returns whether events match, as a word of the group `subscription_state`.
    fn state(&self, now: &UtcMillis) -> &'static str {
        match (self.active, self.expires_at) {
            (true, Some(end)) if end <= *now => "expired",
            (true, _) => "on",
            (false, _) => "off",
        }
    }

    /// Returns the class of the state in the style sheet.
    fn class(&self, now: &UtcMillis) -> &'static str {
        match self.state(now) {
            "on" => "success",
            "expired" => "denied",
            _ => "stopped",
        }
    }

    /// Returns whether a plugin has made the subscription and no admin has confirmed it.
    fn is_unconfirmed(&self) -> bool {
        self.made_by.kind == "plugin" && self.expires_at.is_some()
    }
}

/// Returns whose events match, in words.
pub(super) fn sources(frame: &Frame, from: &[Text]) -> String {
    let shown = from.iter().map(|source| {
        let known = SOURCES.contains(&source.raw());
        if known { frame.word("from", source.raw()).to_owned() } else { frame.t1("from.bot", source) }
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Returns the path of a subscription in the API.
pub(super) fn path_of(id: &str) -> String {
    format!("/api/subscriptions/{}", segment(id))
}

/// Reads a subscription.
pub(super) async fn read(visit: &Visit, id: &str) -> Result<Subscription, Failure> {
    visit.client.get::<Subscription>(&path_of(id)).await
}

/// What the list shows.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/subscriptions.html")]
struct ListPage {
    frame: Frame,
    tabs: Vec<Tab>,
    subscriptions: Vec<Subscription>,
    bots: Vec<Named>,
    filter: Filter,
    list: String,
    next: Option<String>,
    /// The path of the form of a new subscription, for keys that may create one.
    new: Option<String>,
}

impl ListPage {
    fn bot_name(&self, id: &str) -> Text {
        name_of(&self.bots, id)
    }

    fn sources(&self, subscription: &Subscription) -> String {
        sources(&self.frame, &subscription.from)
    }
}

/// Shows the subscriptions of the workspace, or of a bot.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Subscription>,
        next_cursor: Option<String>,
    }
    let parameters = [("bot_id", filter.bot_id.as_str()), ("limit", "50"), ("cursor", &filter.cursor)];
    let path = with_query("/api/subscriptions", &parameters);
    let (frame, read, bots) = tokio::join!(
        visit.frame("events", visit.words().text("subscriptions.title")),
        visit.client.get::<List>(&path),
        bots(&visit),
    );
    let List { items, next_cursor } = read?;
    let list = visit.to("subscriptions");
    let next = next_cursor.map(|cursor| with_query(&list, &[("bot_id", &filter.bot_id), ("cursor", &cursor)]));
    let new = with_query(&visit.to("subscriptions/new"), &[("bot_id", &filter.bot_id)]);
    let new = visit.may("subscriptions_create").then_some(new);
    let tabs = tabs(&visit, "subscriptions");
    Ok(page::render(&ListPage { frame, tabs, subscriptions: items, bots, filter, list, next, new }))
}

#[derive(Template)]
#[template(path = "console/subscription.html")]
struct SubscriptionPage {
    frame: Frame,
    subscription: Subscription,
    base: String,
    bot: Option<Named>,
    sources: String,
    may_change: bool,
    may_confirm: bool,
    may_delete: bool,
}

/// Shows a subscription.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let subscription = read(&visit, &id).await?;
    let base = subscription.base(&visit);
    let (title, bot) = (subscription.pattern.to_string(), format!("/api/bots/{}", segment(&subscription.bot_id)));
    let (frame, bot) = tokio::join!(visit.frame("events", &title), visit.client.get::<Named>(&bot));
    let page = SubscriptionPage {
        sources: sources(&frame, &subscription.from),
        may_change: visit.may("subscriptions_update"),
        may_confirm: visit.may("subscriptions_confirm") && subscription.is_unconfirmed(),
        may_delete: visit.may("subscriptions_delete"),
        bot: bot.ok(),
        frame,
        subscription,
        base,
    };
    Ok(page::render(&page))
}

/// Switches a subscription on or off.
pub(in crate::gateway::console) async fn switch(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let is_on = visit.fields().value("active") == "true";
    let change = json!({ "active": is_on });
    visit.client.act(Method::PATCH, &path_of(&id), Some(&change), visit.conditions()).await?;
    let key = if is_on { "subscription.is_on" } else { "subscription.is_off" };
    let back = visit.to(&format!("subscriptions/{}", segment(&id)));
    Ok(visit.done(visit.words().text(key).to_owned(), &back).await)
}

/// Lets a subscription that a plugin has made go on without an end.
pub(in crate::gateway::console) async fn confirm(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let back = visit.to(&format!("subscriptions/{}", segment(&id)));
    let path = format!("{}/confirm", path_of(&id));
    match visit.client.act(Method::POST, &path, Some(&json!({})), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("subscription.confirmed").to_owned(), &back).await),
        Err(Failure::Refused(refusal)) if refusal.status == 409 => Ok(visit.refused(refusal.detail, &back).await),
        Err(failure) => Err(failure),
    }
}

/// Asks before a subscription is deleted.
pub(in crate::gateway::console) async fn confirm_deletion(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    if !visit.may("subscriptions_delete") {
        return Err(Failure::forbidden());
    }
    let subscription = read(&visit, &id).await?;
    let (words, back) = (visit.words(), subscription.base(&visit));
    let frame = visit.frame("events", words.text("subscription.delete")).await;
    let text = words.filled("subscription.delete_text", &[&subscription.pattern]);
    // Nothing depends on a subscription, so that its pattern need not be typed.
    let (name, action, version) = (Text::default(), format!("{back}/delete"), String::new());
    Ok(page::render(&ConfirmPage { frame, name, text, action, version, back }))
}

/// Deletes a subscription.
pub(in crate::gateway::console) async fn delete(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    visit.client.act(Method::DELETE, &path_of(&id), None, visit.conditions()).await?;
    Ok(visit.done(visit.words().text("subscription.deleted").to_owned(), &visit.to("subscriptions")).await)
}

#[cfg(test)]
mod tests {
    use monstrum_core::language::UiLanguage;

    use super::*;
    use crate::gateway::console::words::Words;

    #[test]
    fn the_state_of_a_subscription_has_a_word() {
        let now: UtcMillis = "2026-01-02T03:04:05.000Z".parse().unwrap();
        for (active, expires_at, state) in [
            (true, None, "on"),
            (true, Some(now.plus_ms(1)), "on"),
            (true, Some(now), "expired"),
            (false, None, "off"),
            (false, Some(now), "off"),
        ] {
            let subscription: Subscription = serde_json::from_value(json!({
                "id": "s", "bot_id": "b", "pattern": "*", "instruction": "i", "from": ["own"], "active": active,
                "made_by": { "kind": "plugin", "id": "p" }, "expires_at": expires_at, "created_at": now,
            }))
            .unwrap();
            assert_eq!(subscription.state(&now), state, "{active} {expires_at:?}");
            assert_eq!(subscription.is_unconfirmed(), expires_at.is_some());
            for language in [UiLanguage::English, UiLanguage::Chinese] {
                assert!(Words::of(language).known(&format!("subscription_state.{state}")).is_some(), "{state}");
            }
        }
    }
}
