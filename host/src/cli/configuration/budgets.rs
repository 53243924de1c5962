//! The budgets of the files: of the workspace, of users, and of the credits of bots. The tokens of a bot are a field of the bot.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::client::Client;
use super::super::failure::Failure;
use super::super::names::{self, Noun};
use super::super::output;
use super::document::{At, Lines};

/// The id of the budget of each user without a budget of its own.
const EACH_USER: &str = "*";

/// A budget in a file. A limit that is left out is no limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Budget {
    subject: Subject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    app_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    monthly_tokens: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    monthly_credits: Option<f64>,
}

/// Whose budget it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Subject {
    Workspace,
    Bot,
    User,
    EachUser,
}

/// The budgets of the files that differ from those of the server.
pub(super) struct Budgets(Vec<Planned>);

struct Planned {
    budget: Budget,
    /// The place of the budget in the files.
    place: String,
    /// The limits on the server when the changes were planned.
    was: Value,
}

/// Returns the budgets of a workspace.
pub(super) async fn exported(client: &Client) -> Result<Vec<Budget>, Failure> {
    let items = client.items(&["api", "budgets"], &[]).await?;
    let bots = client.items(&["api", "bots"], &[]).await?;
    Ok(items.iter().filter_map(|item| shown(item, &bots)).collect())
}

/// Returns a budget of the server as a file has it. A bot without a limit of credits has none.
fn shown(item: &Value, bots: &[Value]) -> Option<Budget> {
    let text = |field: &str| item["id"][field].as_str().map(str::to_owned);
    let (monthly_tokens, monthly_credits) = (item["monthly_tokens"].as_i64(), item["monthly_credits"].as_f64());
    let budget =
        Budget { subject: Subject::Workspace, bot: None, app_id: None, user_id: None, monthly_tokens, monthly_credits };
    match item["subject"].as_str()? {
        "bot" => {
            monthly_credits?;
            let bot = bots.iter().find(|bot| bot["id"] == item["id"])?;
            let bot = Some(output::cell(&bot["name"]));
            Some(Budget { subject: Subject::Bot, bot, monthly_tokens: None, ..budget })
        }
        "user" if item["id"] == EACH_USER => Some(Budget { subject: Subject::EachUser, ..budget }),
        "user" => {
            let (app_id, user_id) = (text("app_id"), text("user_id"));
            Some(Budget { subject: Subject::User, app_id, user_id, ..budget })
        }
        "workspace" => Some(budget),
        _ => None,
    }
}

/// Returns credits in millionths, in which two amounts are compared.
#[expect(clippy::cast_possible_truncation, reason = "it saturates, and the server checks the amount")]
fn millionths(credits: Option<f64>) -> Option<i128> {
    credits.map(|credits| (credits * 1e6).round() as i128)
}

impl Budget {
    /// Returns whether both are of the same subject.
    fn is_of(&self, other: &Budget) -> bool {
        (self.subject, &self.bot, &self.app_id, &self.user_id)
            == (other.subject, &other.bot, &other.app_id, &other.user_id)
    }

    fn has_limits_of(&self, other: &Budget) -> bool {
        self.monthly_tokens == other.monthly_tokens
            && millionths(self.monthly_credits) == millionths(other.monthly_credits)
    }

    /// Returns the subject in words.
    fn name(&self) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        match self.subject {
            Subject::Workspace => "the workspace".to_owned(),
            Subject::Bot => format!("bot {}", text(&self.bot)),
            Subject::User => format!("user {} of {}", text(&self.user_id), text(&self.app_id)),
            Subject::EachUser => "each user without a budget".to_owned(),
        }
    }

    /// Checks that the budget has the fields of its subject, and no others.
    fn check(&self, at: &At<'_>) -> Result<(), Failure> {
        let is_user = self.subject == Subject::User;
        let is_bot = self.subject == Subject::Bot;
        let message = if self.bot.is_some() != is_bot {
            "a budget of a bot has the field `bot`, and no other budget has it"
        } else if self.app_id.is_some() != is_user || self.user_id.is_some() != is_user {
            "a budget of a user has the fields `app_id` and `user_id`, and no other budget has them"
        } else if is_bot && self.monthly_tokens.is_some() {
            "the tokens of a bot are its field `monthly_token_budget`"
        } else {
            return Ok(());
        };
        Err(Failure::new(
            format!("{}: {message}", at.whole()),
            "`monstrum apply --help` describes the form of the file",
        ))
    }
}

impl Budgets {
    /// Keeps the budgets of the files that differ from those of the server. Budgets that the files do not contain stay.
    pub(super) async fn plan(lines: &Lines, client: &Client) -> Result<Budgets, Failure> {
        let mut given: Vec<(String, &Budget)> = Vec::new();
        for (at, budget) in lines.budgets() {
            budget.check(&at)?;
            if let Some((first, _)) = given.iter().find(|(_, other)| other.is_of(budget)) {
                let message = format!("{}: {first} has the same subject", at.whole());
                return Err(Failure::new(message, "a subject has one budget"));
            }
            given.push((at.whole(), budget));
        }
        if given.is_empty() {
            return Ok(Budgets(Vec::new()));
        }
        let present = exported(client).await?;
        let planned = |(place, budget): (String, &Budget)| {
            let none = Budget { monthly_tokens: None, monthly_credits: None, ..budget.clone() };
            let found = present.iter().find(|other| other.is_of(budget)).unwrap_or(&none);
            let was = json!({ "monthly_tokens": found.monthly_tokens, "monthly_credits": found.monthly_credits });
            (!budget.has_limits_of(found)).then(|| Planned { budget: budget.clone(), place, was })
        };
        Ok(Budgets(given.into_iter().filter_map(planned).collect()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the subjects in words.
    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|planned| planned.budget.name()).collect()
    }

    /// Sets the budgets. A budget that another command has changed since the plan stays, and the command fails.
    pub(super) async fn set(&self, client: &Client) -> Result<(), Failure> {
        for Planned { budget, place, was } in &self.0 {
            let set = body(client, budget, was.clone()).await;
            let set = match set {
                Ok(body) => client.put(&["api", "budgets"], &body).await.map(drop),
                Err(failure) => Err(failure),
            };
            set.map_err(|failure| failure.about(&format!("{place}: the budget of {}", output::plain(&budget.name()))))?;
        }
        Ok(())
    }
}

/// Returns the request that sets a budget.
async fn body(client: &Client, budget: &Budget, mut was: Value) -> Result<Value, Failure> {
    let mut body = json!({ "monthly_credits": budget.monthly_credits });
    match budget.subject {
        Subject::Bot => {
            let name = budget.bot.as_deref().unwrap_or_default();
            let bot = names::find_by_name(client, Noun::Bot, name).await?;
            (body["subject"], body["id"]) = (json!("bot"), bot["id"].clone());
            // The import before this may have changed the tokens of the bot.
            was["monthly_tokens"] = bot["monthly_token_budget"].clone();
        }
        Subject::User => {
            (body["subject"], body["id"]) =
                (json!("user"), json!({ "app_id": budget.app_id, "user_id": budget.user_id }));
        }
        Subject::EachUser => (body["subject"], body["id"]) = (json!("user"), json!(EACH_USER)),
        Subject::Workspace => body["subject"] = json!("workspace"),
    }
    if budget.subject != Subject::Bot {
        body["monthly_tokens"] = json!(budget.monthly_tokens);
    }
    body["was"] = was;
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(value: Value) -> Budget {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn budgets_of_the_server_become_those_of_a_file() {
        let bots = [json!({ "id": "1", "name": "helper" })];
        for (item, expected) in [
            (
                json!({ "subject": "workspace", "id": null, "monthly_tokens": 5, "monthly_credits": null }),
                Some(json!({ "subject": "workspace", "monthly_tokens": 5 })),
            ),
            (
                json!({ "subject": "bot", "id": "1", "monthly_tokens": 5, "monthly_credits": 2.5 }),
                Some(json!({ "subject": "bot", "bot": "helper", "monthly_credits": 2.5 })),
            ),
            (json!({ "subject": "bot", "id": "1", "monthly_tokens": 5, "monthly_credits": null }), None),
            (
                json!({ "subject": "user", "id": { "app_id": "a", "user_id": "u" }, "monthly_tokens": 1 }),
                Some(json!({ "subject": "user", "app_id": "a", "user_id": "u", "monthly_tokens": 1 })),
            ),
            (
                json!({ "subject": "user", "id": "*", "monthly_credits": 3 }),
                Some(json!({ "subject": "each_user", "monthly_credits": 3.0 })),
            ),
        ] {
            assert_eq!(shown(&item, &bots).map(|budget| json!(budget)), expected, "{item}");
        }
    }

    #[test]
    fn amounts_are_compared_in_millionths() {
        let of = |credits: Value| budget(json!({ "subject": "workspace", "monthly_credits": credits }));
        assert!(of(json!(0.3)).has_limits_of(&of(json!(0.1 + 0.2))));
        assert!(of(json!(2)).has_limits_of(&of(json!(2.0))));
        assert!(!of(json!(2)).has_limits_of(&of(json!(null))));
    }

    #[test]
    fn a_budget_has_the_fields_of_its_subject() {
        for (text, is_valid) in [
            ("{ subject: workspace, monthly_tokens: 1 }", true),
            ("{ subject: bot, bot: a, monthly_credits: 1 }", true),
            ("{ subject: bot, bot: a, monthly_tokens: 1 }", false),
            ("{ subject: bot }", false),
            ("{ subject: user, app_id: a }", false),
            ("{ subject: each_user, user_id: a }", false),
            ("{ subject: workspace, bot: a }", false),
        ] {
            let mut lines = Lines::default();
            assert!(lines.read("a.yaml".to_owned(), format!("budgets:\n  - {text}\n")).is_ok(), "{text}");
            let checked: Result<(), Failure> = lines.budgets().try_for_each(|(at, budget)| budget.check(&at));
            assert_eq!(checked.is_ok(), is_valid, "{text}");
        }
    }
}
