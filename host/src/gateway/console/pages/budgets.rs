//! The budgets of the workspace, its bots and its users, with what they have spent this month.

use askama::Template;
use axum::extract::Query;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gateway::console::client::{Conditions, Failure, with_query};
use crate::gateway::console::form::Fields;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Named;
use crate::gateway::console::pages::bots::ListQuery;
use crate::gateway::console::pages::tasks::{bots, decimal};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The subjects of budgets, as the form names them.
const SUBJECTS: [&str; 4] = ["workspace", "bot", "user", "each_user"];
/// The id of the budget of each user without a budget of its own.
const EACH_USER: &str = "*";

/// A budget as the API tells it.
#[derive(Deserialize)]
struct Budget {
    subject: String,
    #[serde(default)]
    id: Option<Holder>,
    #[serde(default)]
    monthly_tokens: Option<u64>,
    #[serde(default)]
    monthly_credits: Option<f64>,
    #[serde(default)]
    spent: Option<Spent>,
}

/// The holder of a budget: a bot, `*`, or a user.
#[derive(Deserialize)]
#[serde(untagged)]
enum Holder {
    Id(String),
    User(User),
}

/// A user of an app.
#[derive(Clone, Deserialize)]
pub(super) struct User {
    pub app_id: Text,
    pub user_id: Text,
}

#[derive(Deserialize)]
struct Spent {
    tokens: u64,
    credits: f64,
}

impl Budget {
    /// Returns the subject as the form names it.
    fn subject(&self) -> &'static str {
        match (self.subject.as_str(), &self.id) {
            ("bot", _) => "bot",
            ("user", Some(Holder::Id(_))) => "each_user",
            ("user", _) => "user",
            _ => "workspace",
        }
    }

    fn bot(&self) -> Option<&String> {
        match &self.id {
            Some(Holder::Id(id)) if self.subject == "bot" => Some(id),
            _ => None,
        }
    }

    fn user(&self) -> Option<&User> {
        match &self.id {
            Some(Holder::User(user)) => Some(user),
            _ => None,
        }
    }

    /// Returns the used part of the tokens in percent.
    fn percent_of_tokens(&self, spent: &Spent) -> String {
        self.monthly_tokens.map(|limit| percent(spent.tokens, limit)).unwrap_or_default()
    }

    /// Returns the used part of the credits in percent.
    fn percent_of_credits(&self, spent: &Spent) -> String {
        let limit = self.monthly_credits.unwrap_or_default();
        let used = if limit > 0.0 { (spent.credits / limit * 100.0).clamp(0.0, 100.0) } else { 100.0 };
        format!("{used:.0}")
    }

    /// Returns the path of the form that changes the budget, with its limits.
    fn change(&self, frame: &Frame) -> String {
        let (tokens, credits) = (shown(self.monthly_tokens), shown(self.monthly_credits));
        let user = self.user();
        let parameters = [
            ("subject", self.subject()),
            ("bot_id", self.bot().map(String::as_str).unwrap_or_default()),
            ("app_id", user.map(|user| user.app_id.raw()).unwrap_or_default()),
            ("user_id", user.map(|user| user.user_id.raw()).unwrap_or_default()),
            ("monthly_tokens", &tokens),
            ("monthly_credits", &credits),
        ];
        with_query(&frame.to("budgets/change"), &parameters)
    }
}

fn shown(limit: Option<impl ToString>) -> String {
    limit.map(|limit| limit.to_string()).unwrap_or_default()
}

/// Returns the used part of a limit in percent, at most 100.
pub(super) fn percent(used: u64, limit: u64) -> String {
    let percent = used.saturating_mul(100).checked_div(limit).unwrap_or(100);
    percent.min(100).to_string()
}

#[derive(Template)]
#[template(path = "console/budgets.html")]
struct ListPage {
    frame: Frame,
    tab: &'static str,
    budgets: Vec<Budget>,
    bots: Vec<Named>,
    next: Option<String>,
    may_set: bool,
    is_root: bool,
}

impl ListPage {
    fn bot_name(&self, id: &str) -> Text {
        super::tasks::name_of(&self.bots, id)
    }

    /// Returns whether the key may change a budget. The API decides by the same rule when the form is sent.
    fn may_change(&self, budget: &Budget) -> bool {
        self.may_set && (self.is_root || budget.subject() != "workspace")
    }
}

/// Shows the budgets.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Page {
    #[derive(Deserialize)]
    struct List {
        items: Vec<Budget>,
        next_cursor: Option<String>,
    }
    let path = with_query("/api/budgets", &[("limit", "50"), ("cursor", &query.cursor)]);
    let (frame, list, bots) = tokio::join!(
        visit.frame("budgets", visit.words().text("budgets.title")),
        visit.client.get::<List>(&path),
        bots(&visit),
    );
    let List { items, next_cursor } = list?;
    let next = next_cursor.map(|cursor| with_query(&visit.to("budgets"), &[("cursor", &cursor)]));
    let (may_set, is_root) = (visit.may("budgets_set"), visit.me.kind == "root");
    Ok(page::render(&ListPage { frame, tab: "budgets", budgets: items, bots, next, may_set, is_root }))
}

/// The budget in a form.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Typed {
    #[serde(default)]
    subject: String,
    #[serde(default)]
    bot_id: String,
    #[serde(default)]
    app_id: String,
    #[serde(default)]
    user_id: String,
    #[serde(default)]
    monthly_tokens: String,
    #[serde(default)]
    monthly_credits: String,
}

impl Typed {
    fn of(fields: &Fields) -> Typed {
        let value = |name: &str| fields.value(name).trim().to_owned();
        Typed {
            subject: value("subject"),
            bot_id: value("bot_id"),
            app_id: fields.value("app_id").to_owned(),
            user_id: fields.value("user_id").to_owned(),
            monthly_tokens: value("monthly_tokens"),
            monthly_credits: value("monthly_credits"),
        }
    }

    /// Returns the subject and its id as the API names them.
    fn holder(&self) -> (&'static str, Value) {
        match self.subject.as_str() {
            "bot" => ("bot", json!(self.bot_id)),
            "user" => ("user", json!({ "app_id": self.app_id, "user_id": self.user_id })),
            "each_user" => ("user", json!(EACH_USER)),
            _ => ("workspace", Value::Null),
        }
    }

    /// Returns the change of the budget. A limit that is as the page showed it stays as it is. The error names the fields
    /// that are not numbers, each with the key of the words that say so.
    fn change(&self, fields: &Fields) -> Result<Value, Vec<(&'static str, &'static str)>> {
        let mut faults = Vec::new();
        let (subject, id) = self.holder();
        let mut change = json!({ "subject": subject });
        if !id.is_null() {
            change["id"] = id;
        }
        if self.monthly_tokens != fields.value("was_tokens") {
            match self.monthly_tokens.parse::<u64>() {
                Ok(tokens) => change["monthly_tokens"] = tokens.into(),
                Err(_) if self.monthly_tokens.is_empty() => change["monthly_tokens"] = Value::Null,
                Err(_) => faults.push(("monthly_tokens", "form.not_integer")),
            }
        }
        if self.monthly_credits != fields.value("was_credits") {
            match decimal(&self.monthly_credits) {
                Some(credits) => change["monthly_credits"] = credits.into(),
                None if self.monthly_credits.is_empty() => change["monthly_credits"] = Value::Null,
                None => faults.push(("monthly_credits", "form.not_number")),
            }
        }
        if faults.is_empty() { Ok(change) } else { Err(faults) }
    }
}

#[derive(Template)]
#[template(path = "console/budget_change.html")]
struct ChangePage {
    frame: Frame,
    subjects: Vec<&'static str>,
    bots: Vec<Named>,
    typed: Typed,
    was_tokens: Text,
    was_credits: Text,
    errors: Vec<(Text, Text)>,
    action: String,
    back: String,
}

/// Shows the form of a budget.
pub(in crate::gateway::console) async fn edit(visit: Visit, Query(typed): Query<Typed>) -> Page {
    let was = (Text::from(typed.monthly_tokens.as_str()), Text::from(typed.monthly_credits.as_str()));
    show_form(&visit, typed, was, Vec::new(), StatusCode::OK).await
}

async fn show_form(
    visit: &Visit,
    typed: Typed,
    (was_tokens, was_credits): (Text, Text),
    errors: Vec<(Text, Text)>,
    status: StatusCode,
) -> Page {
    if !visit.may("budgets_set") {
        return Err(Failure::forbidden());
    }
    let (frame, bots) = tokio::join!(visit.frame("budgets", visit.words().text("budgets.change")), bots(visit));
    // The budget of the workspace requires a root key.
    let is_root = visit.me.kind == "root";
    let subjects = SUBJECTS.into_iter().filter(|subject| is_root || *subject != "workspace").collect();
    let (action, back) = (visit.to("budgets/change"), visit.to("budgets"));
    let page = ChangePage { frame, subjects, bots, typed, was_tokens, was_credits, errors, action, back };
    Ok(page::render_as(status, &page))
}

/// Saves a budget.
pub(in crate::gateway::console) async fn save(visit: Visit) -> Page {
    let fields = visit.fields();
    let typed = Typed::of(fields);
    let was = (Text::from(fields.value("was_tokens")), Text::from(fields.value("was_credits")));
    let change = match typed.change(fields) {
        Ok(change) => change,
        Err(faults) => {
            let told = |(place, key): (&str, &'static str)| (Text::from(place), Text::from(visit.words().text(key)));
            let errors = faults.into_iter().map(told).collect();
            return show_form(&visit, typed, was, errors, StatusCode::UNPROCESSABLE_ENTITY).await;
        }
    };
    match visit.client.act(Method::PUT, "/api/budgets", Some(&change), Conditions::default()).await {
        Ok(()) => Ok(visit.done(visit.words().text("frame.saved").to_owned(), &visit.to("budgets")).await),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 404 | 409 | 422) => {
            let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::CONFLICT);
            show_form(&visit, typed, was, refusal.told(), status).await
        }
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(pairs: &[(&str, &str)]) -> Result<Value, Vec<(&'static str, &'static str)>> {
        let fields: Fields = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Typed::of(&fields).change(&fields)
    }

    #[test]
    fn only_the_limits_that_were_changed_are_sent() {
        let kept = [("subject", "each_user"), ("monthly_tokens", "5"), ("was_tokens", "5")];
        assert_eq!(change(&kept).unwrap(), json!({ "subject": "user", "id": "*" }));
        let removed = [("subject", "bot"), ("bot_id", "b"), ("was_tokens", "5"), ("monthly_credits", "0.5")];
        let expected = json!({ "subject": "bot", "id": "b", "monthly_tokens": null, "monthly_credits": 0.5 });
        assert_eq!(change(&removed).unwrap(), expected);
        let user = [("subject", "user"), ("app_id", "a"), ("user_id", "u"), ("monthly_tokens", " 7 ")];
        let expected = json!({ "subject": "user", "id": { "app_id": "a", "user_id": "u" }, "monthly_tokens": 7 });
        assert_eq!(change(&user).unwrap(), expected);
        assert_eq!(change(&[("subject", "workspace")]).unwrap(), json!({ "subject": "workspace" }));
    }

    #[test]
    fn limits_that_are_no_numbers_are_named() {
        let faults = change(&[("subject", "bot"), ("monthly_tokens", "-1"), ("monthly_credits", "inf")]).unwrap_err();
        assert_eq!(faults, [("monthly_tokens", "form.not_integer"), ("monthly_credits", "form.not_number")]);
    }

    #[test]
    fn the_used_part_is_at_most_the_whole() {
        for (used, limit, expected) in
            [(0, 10, "0"), (5, 10, "50"), (11, 10, "100"), (0, 0, "100"), (u64::MAX, 1, "100")]
        {
            assert_eq!(percent(used, limit), expected, "{used} of {limit}");
        }
    }

    #[test]
    fn holders_are_read_as_the_api_tells_them() {
        let budget = |value: Value| serde_json::from_value::<Budget>(value).unwrap();
        let user = budget(json!({ "subject": "user", "id": { "app_id": "a", "user_id": "u" }, "monthly_credits": 2 }));
        assert_eq!((user.subject(), user.bot(), user.user().map(|user| user.user_id.raw())), ("user", None, Some("u")));
        let spent = Spent { tokens: 0, credits: 0.5 };
        assert_eq!(user.percent_of_credits(&spent), "25");
        assert_eq!(budget(json!({ "subject": "user", "id": "*" })).subject(), "each_user");
        assert_eq!(budget(json!({ "subject": "workspace", "id": null })).subject(), "workspace");
        let bot = budget(json!({ "subject": "bot", "id": "b", "monthly_tokens": 4 }));
        assert_eq!((bot.subject(), bot.bot().map(String::as_str)), ("bot", Some("b")));
        assert_eq!(bot.percent_of_tokens(&Spent { tokens: 3, credits: 0.0 }), "75");
    }
}
