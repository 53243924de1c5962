//! `/api/budgets` and `/api/usage`: the budgets of the workspace, its bots and its users, and what they have spent.

use axum::Json;
use monstrum_api::budgets::{Budget, BudgetChange, BudgetList, UsageReport};
use monstrum_core::operations::budgets::UsageInput;
use monstrum_core::operations::{Admin, Operator, budgets};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::gateway::http::answer::Answer;
use crate::gateway::http::extract::{Input, PageQuery, Params};
use crate::gateway::http::state::Host;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// The columns by which the usage is grouped: different names of `bot`, `user`, `task` and `model`, separated by
    /// commas. By default, `bot`.
    by: Option<String>,
    /// The month in UTC, such as `2026-11`. By default, this month.
    month: Option<String>,
}

/// Lists the budgets of the workspace, its bots and its users, with what they have spent this month
#[utoipa::path(get, path = "/api/budgets", tag = "budgets", params(PageQuery),
    responses((status = 200, body = BudgetList)))]
pub(super) async fn list(app: Host, caller: Operator, Params(query): Params<PageQuery>) -> Answer<BudgetList> {
    Ok(Json(budgets::list(&app, &caller, &query.page()?).await?))
}

/// Changes the budget of the workspace, a bot or users
///
/// The budget of the workspace requires a root key.
#[utoipa::path(put, path = "/api/budgets", tag = "budgets", request_body = BudgetChange,
    responses((status = 200, body = Budget)))]
pub(super) async fn set(app: Host, caller: Admin, Input(change): Input<BudgetChange>) -> Answer<Budget> {
    Ok(Json(budgets::set(&app, &caller, change).await?))
}

/// Reports the usage of the workspace in a month by bot, user, task or model
#[utoipa::path(get, path = "/api/usage", tag = "budgets", params(UsageQuery),
    responses((status = 200, body = UsageReport)))]
pub(super) async fn usage(app: Host, caller: Operator, Params(query): Params<UsageQuery>) -> Answer<UsageReport> {
    let UsageQuery { by, month } = query;
    Ok(Json(budgets::usage(&app, &caller, &UsageInput { by, month }).await?))
}
