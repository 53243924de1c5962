//! `monstrum budget`: sets how much the workspace, a bot or users may spend in a month, and shows what they have spent.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use monstrum_api::budgets::Credits;
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::names::{self, Noun};
use super::{Options, objects, output};

const SET_EXAMPLES: &str = "\
Examples:
  monstrum budget set triage 1000000
  monstrum budget set triage --credits 12.5
  monstrum budget set --whole-workspace --tokens 50000000
  monstrum budget set --user slack U0123 --tokens 200000
  monstrum budget set --each-user --tokens 100000 --credits none

A call that may exceed a budget is refused. Months are those of UTC. The budget of the whole workspace needs a root key.";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum budget show triage
  monstrum budget show --whole-workspace
  monstrum budget show --user slack U0123";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum budget delete triage
  monstrum budget delete --each-user";

/// The number of millionths in a credit.
const MILLIONTHS: i64 = 1_000_000;

/// Set, show, list and delete the monthly budgets of the workspace, its bots and its users
#[derive(Subcommand)]
pub(super) enum Budget {
    /// Set or change a budget
    #[command(after_help = SET_EXAMPLES, visible_aliases = ["create", "edit"])]
    Set(Set),
    /// List the budgets, with what is spent of them this month
    #[command(after_help = "Examples:\n  monstrum budget list")]
    List,
    /// Show a budget, and the cost of a bot by month
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        #[command(flatten)]
        holder: Holder,
    },
    /// Remove a budget; there is no limit then
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        #[command(flatten)]
        holder: Holder,
    },
}

/// The subject of a budget.
#[derive(Args)]
#[command(group(ArgGroup::new("holder").required(true).args(["bot", "whole_workspace", "user", "each_user"])))]
pub(super) struct Holder {
    /// The name or the id of the bot
    bot: Option<String>,
    /// The budget of all calls in the workspace
    #[arg(long)]
    whole_workspace: bool,
    /// The budget of the calls on behalf of a user
    #[arg(long, num_args = 2, value_names = ["APP_ID", "USER_ID"])]
    user: Option<Vec<String>>,
    /// The budget of each user without a budget of its own
    #[arg(long)]
    each_user: bool,
}

#[derive(Args)]
#[command(group(ArgGroup::new("limits").required(true).multiple(true).args(["of_bot", "tokens", "credits"])))]
pub(super) struct Set {
    #[command(flatten)]
    holder: Holder,
    /// The number of tokens that the bot may spend in a month
    #[arg(value_name = "TOKENS", conflicts_with = "tokens", requires = "bot")]
    of_bot: Option<u64>,
    /// The number of tokens in a month; `none` removes the limit
    #[arg(long, value_name = "NUMBER", value_parser = tokens)]
    tokens: Option<Limit>,
    /// The number of credits in a month, such as 12.5; `none` removes the limit
    #[arg(long, value_name = "NUMBER", value_parser = credits_limit)]
    credits: Option<Limit>,
}

/// A limit, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    Of(i64),
}

impl Limit {
    fn value(self) -> Value {
        match self {
            Limit::None => Value::Null,
            Limit::Of(number) => json!(number),
        }
    }
}

fn tokens(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    let number = text.parse::<i64>().ok().filter(|number| *number >= 0);
    number.map(Limit::Of).ok_or_else(|| "expected a whole number of tokens, or `none`".to_owned())
}

fn credits_limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    let expected = "expected a number of credits with at most 6 decimals, such as 12.5, or `none`";
    millionths(text).map(Limit::Of).ok_or_else(|| expected.to_owned())
}

/// Parses a decimal number of credits exactly, as millionths.
fn millionths(text: &str) -> Option<i64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 6 {
        return None;
    }
    let decimals: i64 = format!("{decimals:0<6}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(MILLIONTHS)?.checked_add(decimals)
}

/// Formats a number of credits without an exponent. Null stays empty.
pub(super) fn credits(number: &Value) -> String {
    let credits = serde_json::from_value::<Credits>(number.clone());
    credits.map(|credits| of_millionths(&json!(credits.millionths))).unwrap_or_default()
}

/// Formats millionths of a credit as credits. Null stays empty.
fn of_millionths(millionths: &Value) -> String {
    let Some(number) = millionths.as_i64() else { return String::new() };
    let text = format!("{}.{:06}", number / MILLIONTHS, number % MILLIONTHS);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Holder {
    /// Returns the fields of the API that name the subject, and its name in messages.
    async fn named(&self, client: &Client) -> Result<(Value, String), Failure> {
        if let Some(bot) = &self.bot {
            let bot = names::find(client, Noun::Bot, bot).await?;
            let name = format!("bot {}", output::cell(&bot["name"]));
            return Ok((json!({ "subject": "bot", "id": bot["id"] }), name));
        }
        if let Some([app_id, user_id]) = self.user.as_deref() {
            let id = json!({ "app_id": app_id, "user_id": user_id });
            return Ok((json!({ "subject": "user", "id": id }), format!("user {user_id} of {app_id}")));
        }
        if self.each_user {
            return Ok((json!({ "subject": "user", "id": "*" }), "each user".to_owned()));
        }
        Ok((json!({ "subject": "workspace" }), "the workspace".to_owned()))
    }
}

impl Budget {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Budget::Set(set) => set.run(&client, options.json).await?,
            Budget::Delete { holder } => {
                let limits = json!({ "monthly_tokens": null, "monthly_credits": null });
                change(&client, &holder, limits, options.json).await?;
            }
            Budget::List => list(&client, options.json).await?,
            Budget::Show { holder } => show(&client, &holder, options.json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Set {
    async fn run(self, client: &Client, json: bool) -> Result<(), Failure> {
        let Set { holder, of_bot, tokens, credits } = self;
        // An operator key may set and lower the tokens of a bot, but not change other budgets.
        if let (Some(bot), Some(tokens), None) = (&holder.bot, of_bot, credits) {
            let id = names::id(client, Noun::Bot, bot).await?;
            let changed = client.patch(&["api", "bots", &id], &json!({ "monthly_token_budget": tokens })).await?;
            return objects::tell_changed(&changed, "the budget of bot", &output::cell(&changed["name"]), json);
        }
        let mut limits = json!({});
        if let Some(tokens) = of_bot.map(|tokens| json!(tokens)).or(tokens.map(Limit::value)) {
            limits["monthly_tokens"] = tokens;
        }
        if let Some(credits) = credits {
            limits["monthly_credits"] = match credits {
                Limit::None => Value::Null,
                Limit::Of(millionths) => json!(Credits::of_millionths(millionths)),
            };
        }
        change(client, &holder, limits, json).await
    }
}

async fn change(client: &Client, holder: &Holder, limits: Value, json: bool) -> Result<(), Failure> {
    let (mut body, name) = holder.named(client).await?;
    if let (Value::Object(body), Value::Object(limits)) = (&mut body, limits) {
        body.extend(limits);
    }
    let changed = client.put(&["api", "budgets"], &body).await?;
    objects::tell_changed(&changed, "the budget of", &name, json)
}

async fn list(client: &Client, json: bool) -> Result<(), Failure> {
    let mut items = client.items(&["api", "budgets"], &[]).await?;
    let bots = client.items(&["api", "bots"], &[]).await?;
    for item in &mut items {
        let name = name(item, &bots);
        item["name"] = Value::String(name);
    }
    if json {
        return output::json(&json!({ "items": items, "next_cursor": null }));
    }
    for item in &mut items {
        item["tokens_spent"] = item["spent"]["tokens"].clone();
        item["credits"] = Value::String(credits(&item["monthly_credits"]));
        item["credits_spent"] = Value::String(credits(&item["spent"]["credits"]));
    }
    let empty = "there is no budget; `monstrum budget set` sets one";
    let header = ["SUBJECT", "TOKENS", "TOKENS SPENT", "CREDITS", "CREDITS SPENT"];
    output::list(&items, json, empty, header, ["name", "monthly_tokens", "tokens_spent", "credits", "credits_spent"])
}

/// Returns the name of the subject of a budget.
fn name(budget: &Value, bots: &[Value]) -> String {
    let id = &budget["id"];
    match budget["subject"].as_str() {
        Some("workspace") => "workspace".to_owned(),
        Some("bot") => {
            let found = bots.iter().find(|bot| bot["id"] == *id).map_or(id, |bot| &bot["name"]);
            format!("bot {}", output::cell(found))
        }
        _ if id.is_string() => "each user".to_owned(),
        _ => format!("user {} of {}", output::cell(&id["user_id"]), output::cell(&id["app_id"])),
    }
}

async fn show(client: &Client, holder: &Holder, json: bool) -> Result<(), Failure> {
    let (subject, name) = holder.named(client).await?;
    let budgets = client.items(&["api", "budgets"], &[]).await?;
    let is_meant = |budget: &&Value| budget["subject"] == subject["subject"] && budget["id"] == subject["id"];
    let budget = budgets.iter().find(is_meant).cloned().unwrap_or_default();
    if holder.bot.is_some() {
        return show_bot(client, &subject["id"], &name, &budget, json).await;
    }
    if budget.is_null() {
        return Err(Failure::new(format!("there is no budget of {name}"), "`monstrum budget list` lists the budgets"));
    }
    if json {
        return output::json(&budget);
    }
    let spent = &budget["spent"];
    let mut fields = Vec::new();
    for (name, value) in [
        ("monthly tokens", output::cell(&budget["monthly_tokens"])),
        ("monthly credits", credits(&budget["monthly_credits"])),
        ("month", output::cell(&spent["month"])),
        ("tokens spent", output::cell(&spent["tokens"])),
        ("credits spent", credits(&spent["credits"])),
    ] {
        if !value.is_empty() {
            fields.push((name, value));
        }
    }
    output::fields(&fields)
}

async fn show_bot(client: &Client, id: &Value, name: &str, budget: &Value, json: bool) -> Result<(), Failure> {
    let months = usage(client, &output::cell(id)).await?;
    let (tokens, credit_limit) = (&budget["monthly_tokens"], &budget["monthly_credits"]);
    if json {
        return output::json(&json!({
            "bot_id": id, "monthly_token_budget": tokens, "monthly_credits": credit_limit, "items": months,
        }));
    }
    let limit = if tokens.is_null() { "none".to_owned() } else { output::cell(tokens) };
    let name = name.strip_prefix("bot ").unwrap_or(name).to_owned();
    let mut fields = vec![("bot", name), ("monthly token budget", limit)];
    if !credit_limit.is_null() {
        fields.push(("monthly credit budget", credits(credit_limit)));
    }
    output::fields(&fields)?;
    output::line("")?;
    let mut months = months.as_array().cloned().unwrap_or_default();
    for month in &mut months {
        month["credits"] = Value::String(of_millionths(&month["credits_millionths"]));
    }
    let header = ["MONTH", "TOKENS", "CREDITS", "ROUNDS", "CALLS"];
    let fields = ["month", "tokens", "credits", "rounds", "calls"];
    output::list(&months, false, "no call has cost anything yet", header, fields)
}

/// Returns the cost of the bot's calls by month, newest month first.
async fn usage(client: &Client, bot: &str) -> Result<Value, Failure> {
    let mut answer = client.get(&["api", "bots", bot, "usage"], &[]).await?;
    Ok(answer["items"].take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_read_and_written_exactly() {
        for (text, expected) in [
            ("0", Some(0)),
            ("12.5", Some(12_500_000)),
            ("0.000001", Some(1)),
            ("9223372036854.775807", Some(i64::MAX)),
            ("9223372036854.775808", None),
            ("99999999999999999999", None),
            ("0.0000001", None),
            ("-1", None),
            ("1e6", None),
            (".5", None),
            ("5.", None),
            ("", None),
        ] {
            assert_eq!(millionths(text), expected, "{text}");
        }
        for (number, expected) in [(0, "0"), (12_500_000, "12.5"), (1, "0.000001"), (1_000_000, "1")] {
            assert_eq!(of_millionths(&json!(number)), expected);
        }
        assert_eq!(credits(&Value::Null), "");
        assert_eq!(credits(&json!(9e-6)), "0.000009");
        assert_eq!(credits(&json!(12)), "12");
    }

    #[test]
    fn a_limit_can_be_none() {
        assert_eq!(tokens("none"), Ok(Limit::None));
        assert_eq!(tokens("5"), Ok(Limit::Of(5)));
        assert!(tokens("-5").is_err() && tokens("1.5").is_err());
        assert_eq!(credits_limit("none"), Ok(Limit::None));
    }
}
