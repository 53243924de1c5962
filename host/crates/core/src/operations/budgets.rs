//! Budgets of workspaces, bots and users, and reports of usage.
//!
//! The monthly tokens of a bot are a field of the bot. Its monthly credits, and the budgets of the other subjects, are rows
//! of their own.

use monstrum_api::budgets::{
    Budget, BudgetChange, BudgetHolder, BudgetList, BudgetOf, BudgetSpent, Credits, UsageItem, UsageReport,
};
use monstrum_store::{
    BotRow, BudgetLimits, BudgetRow, BudgetSubject, BudgetWrite, Page, Payer, StoreError, UsageBy, UsageGroup,
};
use monstrum_types::{AppUser, BotId, BudgetId, UtcMillis, WorkspaceId};
use serde::Serialize;
use serde_json::{Map, Value};

use super::change::{Change, changed_at};
use super::list::page_by_name;
use super::user_credentials::check_user;
use super::{Admin, Caller, InputErrors, OperationError, Operator};
use crate::app::App;
use crate::call::ledger::month;
use crate::policy::Snapshot;

/// The maximum number of groups in a report. More would not fit into a response.
const GROUPS_MAX: u32 = 1000;
/// The maximum number of budgets of users in a workspace. Each host keeps them in memory, less than 1 KiB each.
const USERS_MAX: usize = 100_000;
/// The id that stands for each user without a budget of its own.
const EACH_USER: &str = "*";
const HOLDER_EXPECTED: &str = "expected a user `{\"app_id\": …, \"user_id\": …}`, or `*` for each user";

/// The subject of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Workspace,
    Bot(BotId),
    User(AppUser),
    EachUser,
}

impl Target {
    fn of_row(row: &BudgetRow) -> Option<Target> {
        match row.subject {
            BudgetSubject::Workspace => Some(Target::Workspace),
            BudgetSubject::Bot => row.bot().map(Target::Bot),
            BudgetSubject::User => row.user().map(Target::User),
            BudgetSubject::EachUser => Some(Target::EachUser),
        }
    }

    fn subject(&self) -> BudgetSubject {
        match self {
            Target::Workspace => BudgetSubject::Workspace,
            Target::Bot(_) => BudgetSubject::Bot,
            Target::User(_) => BudgetSubject::User,
            Target::EachUser => BudgetSubject::EachUser,
        }
    }

    fn holder(&self) -> String {
        match self {
            Target::Workspace | Target::EachUser => String::new(),
            Target::Bot(id) => id.to_string(),
            Target::User(user) => user.key(),
        }
    }

    /// Returns the text by which lists are sorted.
    fn name(&self) -> String {
        format!("{}/{}", self.subject(), self.holder())
    }

    /// Returns the subject whose usage is compared with the budget.
    fn payer(&self) -> Option<Payer> {
        match self {
            Target::Workspace => Some(Payer::Workspace),
            Target::Bot(id) => Some(Payer::Bot(*id)),
            Target::User(user) => Some(Payer::User(user.clone())),
            Target::EachUser => None,
        }
    }

    fn shown(&self) -> (BudgetOf, Option<BudgetHolder>) {
        match self {
            Target::Workspace => (BudgetOf::Workspace, None),
            Target::Bot(id) => (BudgetOf::Bot, Some(BudgetHolder::Bot(*id))),
            Target::User(user) => (BudgetOf::User, Some(BudgetHolder::User(user.clone()))),
            Target::EachUser => (BudgetOf::User, Some(BudgetHolder::EachUser(EACH_USER.to_owned()))),
        }
    }
}

/// A budget as the audit records it.
#[derive(Serialize)]
struct Recorded {
    subject: BudgetOf,
    id: Option<BudgetHolder>,
    monthly_tokens: Option<i64>,
    monthly_credits: Option<Credits>,
}

fn recorded(target: &Target, limits: BudgetLimits) -> Recorded {
    let (subject, id) = target.shown();
    let monthly_credits = limits.credits_millionths.map(Credits::of_millionths);
    Recorded { subject, id, monthly_tokens: limits.tokens, monthly_credits }
}

/// Lists the budgets of a workspace: of the workspace, of bots, and of users.
pub async fn list(app: &App, caller: &Operator, page: &Page<String>) -> Result<BudgetList, OperationError> {
    let mut found = budgets(&app.policy.load(), caller.workspace);
    found.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let listed = page_by_name(found, page, |(name, ..)| name.as_str(), |(_, target, limits)| (target, limits));
    let mut items = Vec::with_capacity(listed.items.len());
    for (target, limits) in listed.items {
        items.push(view(app, caller.workspace, &target, limits).await?);
    }
    Ok(BudgetList { items, next_cursor: listed.next_cursor })
}

/// Returns the budgets of a workspace, with the names by which they are sorted.
fn budgets(snapshot: &Snapshot, workspace: WorkspaceId) -> Vec<(String, Target, BudgetLimits)> {
    let named = |target: Target, limits| (target.name(), target, limits);
    let of_bot = |id| snapshot.payer_limits(workspace, id, None).bot;
    let of_bots = snapshot.bots(workspace).map(|bot| (Target::Bot(bot.row.id), of_bot(bot.row.id)));
    let of_others = snapshot.budgets().of_workspace(workspace).filter_map(|row| {
        let target = Target::of_row(row).filter(|target| !matches!(target, Target::Bot(_)))?;
        Some((target, row.limits()))
    });
    let all = of_bots.chain(of_others).filter(|(_, limits)| *limits != BudgetLimits::default());
    all.map(|(target, limits)| named(target, limits)).collect()
}

async fn view(
    app: &App,
    workspace: WorkspaceId,
    target: &Target,
    limits: BudgetLimits,
) -> Result<Budget, OperationError> {
    let month = month(app.clock.now());
    let spent = match target.payer() {
        Some(payer) => {
            let spent = app.store.spent(workspace, &payer, &month).await?;
            Some(BudgetSpent {
                month,
                tokens: spent.tokens,
                credits: Credits::of_millionths(spent.credits_millionths),
                tokens_reserved: spent.tokens_reserved,
                credits_reserved: Credits::of_millionths(spent.credits_reserved_millionths),
            })
        }
        None => None,
    };
    let (subject, id) = target.shown();
    Ok(Budget {
        subject,
        id,
        monthly_tokens: limits.tokens,
        monthly_credits: limits.credits_millionths.map(Credits::of_millionths),
        spent,
    })
}

/// Changes the budget of a workspace, a bot or users.
pub async fn set(app: &App, caller: &Admin, change: BudgetChange) -> Result<Budget, OperationError> {
    let target = target(&change)?;
    if target == Target::Workspace {
        caller.root()?;
    }
    let workspace = caller.workspace;
    let bot = match target {
        Target::Bot(id) => Some(app.store.bot(workspace, id).await?.ok_or_else(|| OperationError::not_found("bot"))?),
        _ => None,
    };
    let row = app.store.budget(workspace, target.subject(), &target.holder()).await?;
    let of_row = row.as_ref().map(BudgetRow::limits).unwrap_or_default();
    let before = match &bot {
        Some(bot) => BudgetLimits { tokens: bot.monthly_token_budget, ..of_row },
        None => of_row,
    };
    if let Some(was) = &change.was {
        let known = BudgetLimits {
            tokens: was.monthly_tokens,
            credits_millionths: was.monthly_credits.map(|credits| credits.millionths),
        };
        if known != before {
            return Err(OperationError::conflict("the budget was changed meanwhile; read it again"));
        }
    }
    let after = BudgetLimits {
        tokens: change.monthly_tokens.unwrap_or(before.tokens),
        credits_millionths: credits_of(&change).unwrap_or(before.credits_millionths),
    };
    if after != before {
        check_room(app, workspace, &target, row.is_none())?;
        write(app, caller, &target, Found { bot, row, before }, after).await?;
    }
    view(app, workspace, &target, after).await
}

/// The stored budget of a subject.
struct Found {
    bot: Option<BotRow>,
    row: Option<BudgetRow>,
    before: BudgetLimits,
}

/// Records a change of a budget and makes it.
async fn write(
    app: &App,
    caller: &Caller,
    target: &Target,
    Found { bot, row, before }: Found,
    after: BudgetLimits,
) -> Result<(), OperationError> {
    let bot_before = bot.as_ref().map(|bot| bot.updated_at);
    let changed_bot = bot.filter(|bot| bot.monthly_token_budget != after.tokens).map(|bot| BotRow {
        monthly_token_budget: after.tokens,
        updated_at: changed_at(app, bot.updated_at),
        ..bot
    });
    // The tokens of a bot are in the row of the bot.
    let of_row = match target {
        Target::Bot(_) => BudgetLimits { tokens: None, ..after },
        _ => after,
    };
    let next = next_row(app, caller.workspace, target, row.as_ref(), of_row);
    let object = match target {
        Target::Workspace => caller.workspace.to_string(),
        Target::EachUser => EACH_USER.to_owned(),
        Target::Bot(_) | Target::User(_) => target.holder(),
    };
    let of_bot = match target {
        Target::Bot(id) => Some(*id),
        _ => None,
    };
    let change = Change::new("budget.update", &object)
        .of_bot(of_bot)
        .from(&recorded(target, before))
        .to(&recorded(target, after));
    let write = BudgetWrite { before: row.as_ref(), after: next.as_ref(), bot: changed_bot.as_ref().zip(bot_before) };
    let write = async {
        match app.store.write_budget(caller.workspace, &write).await {
            Ok(()) => Ok(true),
            Err(StoreError::ChangedMeanwhile | StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    };
    change.update(app, caller, write).await
}

/// Returns the row to write, or `None` if the subject needs no row.
fn next_row(
    app: &App,
    workspace: WorkspaceId,
    target: &Target,
    before: Option<&BudgetRow>,
    limits: BudgetLimits,
) -> Option<BudgetRow> {
    if limits == BudgetLimits::default() {
        return None;
    }
    let now = app.clock.now();
    Some(BudgetRow {
        id: before.map_or_else(BudgetId::new, |row| row.id),
        workspace_id: workspace,
        subject: target.subject(),
        holder: target.holder(),
        monthly_tokens: limits.tokens,
        monthly_credits_millionths: limits.credits_millionths,
        created_at: before.map_or(now, |row| row.created_at),
        updated_at: before.map_or(now, |row| changed_at(app, row.updated_at)),
    })
}

/// Returns an error if the workspace has too many budgets of users for another one.
fn check_room(app: &App, workspace: WorkspaceId, target: &Target, is_new: bool) -> Result<(), OperationError> {
    if !is_new || !matches!(target, Target::User(_)) {
        return Ok(());
    }
    let snapshot = app.policy.load();
    let users = snapshot.budgets().of_workspace(workspace).filter(|row| row.subject == BudgetSubject::User);
    if users.count() < USERS_MAX {
        return Ok(());
    }
    Err(OperationError::conflict(format!("the workspace has budgets of {USERS_MAX} users")))
}

/// Returns the limit of credits that a change sets, in millionths.
fn credits_of(change: &BudgetChange) -> Option<Option<i64>> {
    change.monthly_credits.map(|limit| limit.map(|credits| credits.millionths))
}

/// Returns the subject of a change, and checks its limits.
fn target(change: &BudgetChange) -> Result<Target, OperationError> {
    let mut errors = InputErrors::default();
    let limits = [("/monthly_tokens", change.monthly_tokens), ("/monthly_credits", credits_of(change))];
    for (path, limit) in limits {
        if limit.flatten().is_some_and(|limit| limit < 0) {
            errors.add(path, "must be at least 0");
        }
    }
    let target = match (change.subject, change.id.as_ref()) {
        (BudgetOf::Workspace, None) => Some(Target::Workspace),
        (BudgetOf::Workspace, Some(_)) => {
            errors.add("/id", "must be absent for the workspace");
            None
        }
        (BudgetOf::Bot, Some(Value::String(id))) => match id.parse() {
            Ok(id) => Some(Target::Bot(id)),
            Err(error) => {
                errors.add("/id", error.to_string());
                None
            }
        },
        (BudgetOf::Bot, _) => {
            errors.add("/id", "expected the id of a bot");
            None
        }
        (BudgetOf::User, Some(Value::String(id))) if id == EACH_USER => Some(Target::EachUser),
        (BudgetOf::User, Some(Value::Object(members))) => user(&mut errors, members).map(Target::User),
        (BudgetOf::User, _) => {
            errors.add("/id", HOLDER_EXPECTED);
            None
        }
    };
    errors.check()?;
    target.ok_or_else(|| OperationError::invalid_at("/id", HOLDER_EXPECTED))
}

/// Returns the user with these members.
fn user(errors: &mut InputErrors, members: &Map<String, Value>) -> Option<AppUser> {
    match serde_json::from_value::<AppUser>(Value::Object(members.clone())) {
        Ok(user) => {
            check_user(errors, "/id", &user);
            Some(user)
        }
        Err(_) => {
            errors.add("/id", HOLDER_EXPECTED);
            None
        }
    }
}

/// What to report.
#[derive(Debug, Default)]
pub struct UsageInput {
    /// Names of columns, separated by commas. By default, usage is grouped by bot.
    pub by: Option<String>,
    /// The month in UTC, such as `2026-11`. By default, this month.
    pub month: Option<String>,
}

/// Reports the usage of a workspace in one month.
pub async fn usage(app: &App, caller: &Operator, input: &UsageInput) -> Result<UsageReport, OperationError> {
    let (by, month) = checked(input, app.clock.now())?;
    let groups = app.store.usage_groups(caller.workspace, &month, by, GROUPS_MAX).await?;
    Ok(UsageReport { month, items: groups.items.into_iter().map(item).collect(), has_more: groups.has_more })
}

fn checked(input: &UsageInput, now: UtcMillis) -> Result<(UsageBy, String), OperationError> {
    let mut errors = InputErrors::default();
    let by = columns(input.by.as_deref().unwrap_or("bot"));
    if by.is_none() {
        errors.add("by", "expected different names of `bot`, `user`, `task` and `model`, separated by commas");
    }
    let month = input.month.clone().unwrap_or_else(|| month(now));
    if !is_month(&month) {
        errors.add("month", "expected a month such as `2026-11`");
    }
    errors.check()?;
    Ok((by.unwrap_or_default(), month))
}

/// Parses the columns of a report. Returns `None` for an unknown or repeated name.
fn columns(text: &str) -> Option<UsageBy> {
    let mut by = UsageBy::default();
    for name in text.split(',') {
        let column = match name {
            "bot" => &mut by.bot,
            "user" => &mut by.user,
            "task" => &mut by.task,
            "model" => &mut by.model,
            _ => return None,
        };
        if std::mem::replace(column, true) {
            return None;
        }
    }
    Some(by)
}

fn is_month(text: &str) -> bool {
    let Some((year, month)) = text.split_once('-') else { return false };
    let is_number = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(year, 4) && is_number(month, 2) && matches!(month.parse::<u8>(), Ok(1..=12))
}

fn item(group: UsageGroup) -> UsageItem {
    let UsageGroup { bot, user, task, model, usage } = group;
    let unless_empty = |text: String| Some(text).filter(|text| !text.is_empty());
    UsageItem {
        bot_id: bot,
        user,
        task_id: task.map(unless_empty),
        model: model.map(unless_empty),
        tokens: usage.tokens,
        tokens_input: usage.tokens_input,
        tokens_output: usage.tokens_output,
        credits: Credits::of_millionths(usage.credits_millionths),
        rounds: usage.rounds,
        rounds_estimated: usage.rounds_estimated,
        calls: usage.calls,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(body: Value) -> String {
        let change: BudgetChange = serde_json::from_value(body).unwrap();
        match target(&change) {
            Ok(target) => format!("{target:?}"),
            Err(OperationError::Invalid(errors)) => {
                errors.iter().map(|error| format!("{} {}", error.path, error.message)).collect::<Vec<_>>().join("; ")
            }
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn the_id_fits_the_subject() {
        let bot = BotId::new();
        assert_eq!(faults(json!({ "subject": "workspace" })), "Workspace");
        assert_eq!(faults(json!({ "subject": "bot", "id": bot })), format!("Bot({bot})"));
        assert_eq!(faults(json!({ "subject": "user", "id": "*" })), "EachUser");
        let user = json!({ "app_id": "a", "user_id": "b" });
        let expected = "User(AppUser { app_id: \"a\", user_id: \"b\" })";
        assert_eq!(faults(json!({ "subject": "user", "id": user })), expected);
        let absent = "/id must be absent for the workspace";
        assert_eq!(faults(json!({ "subject": "workspace", "id": "x" })), absent);
        for id in [Value::Null, json!("*"), json!(5), user] {
            assert!(faults(json!({ "subject": "bot", "id": id })).starts_with("/id "), "{id}");
        }
        for id in [Value::Null, json!("ann"), json!({ "app_id": "a" }), json!({ "app_id": "a", "user_id": 5 })] {
            assert_eq!(faults(json!({ "subject": "user", "id": id })), format!("/id {HOLDER_EXPECTED}"), "{id}");
        }
        let empty = faults(json!({ "subject": "user", "id": { "app_id": "", "user_id": "b\n" } }));
        assert!(empty.contains("/id/app_id") && empty.contains("/id/user_id"), "{empty}");
    }

    #[test]
    fn limits_are_not_negative() {
        let negative = json!({ "subject": "workspace", "monthly_tokens": -1, "monthly_credits": -5 });
        assert_eq!(faults(negative), "/monthly_tokens must be at least 0; /monthly_credits must be at least 0");
        assert_eq!(faults(json!({ "subject": "workspace", "monthly_tokens": null })), "Workspace");
    }

    #[test]
    fn reports_group_by_known_columns_of_a_month() {
        let by = |text: &str| columns(text).map(|by| [by.bot, by.user, by.task, by.model]);
        assert_eq!(by("bot"), Some([true, false, false, false]));
        assert_eq!(by("model,task,user"), Some([false, true, true, true]));
        for text in ["", "bot,", "bots", "bot,bot", "bot, user"] {
            assert_eq!(by(text), None, "{text}");
        }
        for (text, expected) in [
            ("2026-11", true),
            ("2026-00", false),
            ("2026-13", false),
            ("2026-1", false),
            ("26-11", false),
            ("2026-+1", false),
            ("2026/11", false),
        ] {
            assert_eq!(is_month(text), expected, "{text}");
        }
    }
}
