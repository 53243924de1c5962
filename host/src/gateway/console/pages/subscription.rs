//! The forms of a new and of an existing subscription.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::gateway::console::client::{Failure, segment};
use crate::gateway::console::fields::of_one_field;
use crate::gateway::console::form::Fields;
use crate::gateway::console::narrow::{Fault, FromFields, NarrowFields};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::subscriptions::{self, Subscription};
use crate::gateway::console::pages::tasks::bots;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The fields of the form, as they were typed.
struct Typed {
    bot_id: String,
    pattern: Text,
    instruction: Text,
    from: FromFields,
    expires_at: Text,
    narrow: NarrowFields,
}

impl Typed {
    /// Returns the fields of an empty form.
    fn blank(bot_id: String) -> Typed {
        Typed {
            bot_id,
            pattern: Text::default(),
            instruction: Text::default(),
            from: FromFields::blank(),
            expires_at: Text::default(),
            narrow: NarrowFields::default(),
        }
    }

    /// Returns the fields of a form that was sent.
    fn of(fields: &Fields) -> Typed {
        Typed {
            bot_id: fields.value("bot_id").to_owned(),
            pattern: fields.value("pattern").trim().into(),
            instruction: fields.value("instruction").replace("\r\n", "\n").into(),
            from: FromFields::of(fields),
            expires_at: fields.value("expires_at").trim().into(),
            narrow: NarrowFields::of(fields),
        }
    }

    /// Returns the fields of a saved subscription.
    fn saved(subscription: &Subscription) -> Typed {
        Typed {
            bot_id: subscription.bot_id.clone(),
            pattern: subscription.pattern.clone(),
            instruction: subscription.instruction.clone(),
            from: FromFields::saved(&subscription.from),
            expires_at: subscription.expires_at.map(|at| at.to_string().into()).unwrap_or_default(),
            narrow: NarrowFields::saved(subscription.narrow.as_ref()),
        }
    }

    /// Returns the subscription as the API reads it, without its bot.
    fn body(&self, faults: &mut Vec<Fault>) -> Map<String, Value> {
        let expires_at = match self.expires_at.raw() {
            "" => Value::Null,
            typed => match typed.parse::<UtcMillis>() {
                Ok(at) => json!(at),
                Err(_) => {
                    faults.push(("/expires_at", "schedule.not_time"));
                    Value::Null
                }
            },
        };
        let members = [
            ("pattern", self.pattern.raw().into()),
            ("instruction", self.instruction.raw().into()),
            ("from", self.from.value()),
            ("expires_at", expires_at),
            ("narrow", self.narrow.value(faults)),
        ];
        members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[derive(Template)]
#[template(path = "console/subscription_form.html")]
struct FormPage {
    frame: Frame,
    bots: Vec<Named>,
    typed: Typed,
    errors: Vec<(Text, Text)>,
    action: String,
    is_new: bool,
    back: String,
    /// Whether the key may choose the events of other bots.
    may_widen: bool,
}

async fn blank(visit: &Visit, typed: Typed) -> Result<FormPage, Failure> {
    if !visit.may("subscriptions_create") {
        return Err(Failure::forbidden());
    }
    let title = visit.words().text("subscriptions.new");
    let (frame, mut bots) = tokio::join!(visit.frame("events", title), bots(visit));
    if !typed.bot_id.is_empty() && !bots.iter().any(|bot| bot.id == typed.bot_id) {
        bots.push(visit.client.get::<Named>(&format!("/api/bots/{}", segment(&typed.bot_id))).await?);
    }
    let (action, back) = (visit.to("subscriptions/new"), visit.to("subscriptions"));
    // The operation that confirms is one of admins, as wider sources are.
    let may_widen = visit.may("subscriptions_confirm");
    Ok(FormPage { frame, bots, typed, errors: Vec::new(), action, is_new: true, back, may_widen })
}

/// Reads a subscription, and returns it with its form.
async fn existing(visit: &Visit, id: &str) -> Result<(Subscription, FormPage), Failure> {
    if !visit.may("subscriptions_update") {
        return Err(Failure::forbidden());
    }
    let subscription = subscriptions::read(visit, id).await?;
    let back = subscription.base(visit);
    let page = FormPage {
        frame: visit.frame("events", &subscription.pattern.to_string()).await,
        bots: Vec::new(),
        typed: Typed::saved(&subscription),
        errors: Vec::new(),
        action: format!("{back}/edit"),
        is_new: false,
        back,
        may_widen: visit.may("subscriptions_confirm"),
    };
    Ok((subscription, page))
}

/// The bot of a new subscription.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Start {
    #[serde(default)]
    bot_id: String,
}

/// Shows the form of a new subscription.
pub(in crate::gateway::console) async fn new(visit: Visit, Query(start): Query<Start>) -> Page {
    Ok(page::render(&blank(&visit, Typed::blank(start.bot_id)).await?))
}

/// Shows the form of a subscription.
pub(in crate::gateway::console) async fn edit(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    Ok(page::render(&existing(&visit, &id).await?.1))
}

/// Creates a subscription.
pub(in crate::gateway::console) async fn create(visit: Visit) -> Page {
    #[derive(Deserialize)]
    struct Created {
        id: String,
    }
    let mut page = blank(&visit, Typed::of(visit.fields())).await?;
    let mut body = page.asked(&visit);
    if page.typed.bot_id.is_empty() {
        page.errors.push(("bot_id".into(), visit.words().text("tasks.choose_bot").into()));
    }
    if !page.errors.is_empty() {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    body.insert("bot_id".to_owned(), page.typed.bot_id.as_str().into());
    match visit.client.send::<Created>(Method::POST, "/api/subscriptions", &body.into(), visit.conditions()).await {
        Ok(Created { id }) => {
            let created = visit.to(&format!("subscriptions/{}", segment(&id)));
            Ok(visit.done(visit.words().text("subscription.created").to_owned(), &created).await)
        }
        Err(failure) => page.refused(failure),
    }
}

/// Saves what differs of a subscription.
pub(in crate::gateway::console) async fn save(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let (subscription, mut page) = existing(&visit, &id).await?;
    let was = Typed::saved(&subscription).body(&mut Vec::new());
    page.typed = Typed { bot_id: subscription.bot_id, ..Typed::of(visit.fields()) };
    let body = page.asked(&visit);
    if !page.errors.is_empty() {
        return Ok(page::render_as(StatusCode::UNPROCESSABLE_ENTITY, &page));
    }
    let change: Map<String, Value> = body.into_iter().filter(|(name, value)| was.get(name) != Some(value)).collect();
    let path = subscriptions::path_of(&id);
    match visit.client.act(Method::PATCH, &path, Some(&change.into()), visit.conditions()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &page.back).await),
        Err(failure) => page.refused(failure),
    }
}

impl FormPage {
    /// Returns what the form asks the API to save, and keeps what is wrong with it.
    fn asked(&mut self, visit: &Visit) -> Map<String, Value> {
        let mut faults = Vec::new();
        let body = self.typed.body(&mut faults);
        let words = visit.words();
        self.errors = faults.into_iter().map(|(place, key)| (place.into(), words.text(key).into())).collect();
        body
    }

    /// Shows the form that the API has refused.
    fn refused(mut self, failure: Failure) -> Page {
        match failure {
            Failure::Refused(refusal) if matches!(refusal.status, 409 | 422) => {
                self.errors = of_one_field(refusal.told(), "/narrow/scope_constraints");
                let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
                Ok(page::render_as(status, &self))
            }
            failure => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_subscription_fills_its_form_and_is_no_change() {
        let subscription: Subscription = serde_json::from_value(json!({
            "id": "s", "bot_id": "b", "pattern": "custom.*", "instruction": "one\ntwo", "from": ["own", "x"],
            "active": true, "made_by": { "kind": "key", "id": "k" }, "expires_at": "2030-01-01T00:00:00.000Z",
            "created_at": "2026-01-01T00:00:00.000Z", "narrow": { "allowed_tools": ["t"] },
        }))
        .unwrap();
        let body = Typed::saved(&subscription).body(&mut Vec::new());
        let expected = json!({
            "pattern": "custom.*", "instruction": "one\ntwo", "from": ["own", "x"],
            "expires_at": "2030-01-01T00:00:00.000Z", "narrow": { "allowed_tools": ["t"] },
        });
        assert_eq!(Value::from(body), expected);
        let fields = [("expires_at", "tomorrow"), ("scopes", "{")];
        let typed = Typed::of(&fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
        let mut faults = Vec::new();
        typed.body(&mut faults);
        assert_eq!(faults, [("/expires_at", "schedule.not_time"), ("scopes", "form.not_json")]);
    }
}
