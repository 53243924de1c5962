//! The check of the audit: every row against the chain of its host, and the chains against their signed heads.

use std::time::Duration;

use askama::Template;
use serde::Deserialize;

use crate::gateway::console::client::{Failure, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::activity::Tabs;
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The time limit of a check. A check reads every row.
const CHECK_MAX: Duration = Duration::from_secs(600);
/// The maximum number of problems that the page shows.
const PROBLEMS_MAX: usize = 200;

#[derive(Deserialize)]
struct Report {
    valid: bool,
    rows: u64,
    #[serde(default)]
    archived_rows: Option<u64>,
    #[serde(default)]
    since_head: Option<Head>,
    problems: Vec<Problem>,
}

#[derive(Deserialize)]
struct Head {
    writer: Text,
    sequence: i64,
}

#[derive(Deserialize)]
struct Problem {
    writer: Text,
    sequence: i64,
    what: Text,
}

impl Report {
    fn shown(&self) -> &[Problem] {
        self.problems.get(..PROBLEMS_MAX).unwrap_or(&self.problems)
    }

    fn left_out(&self) -> usize {
        self.problems.len().saturating_sub(PROBLEMS_MAX)
    }
}

#[derive(Template)]
#[template(path = "console/verify.html")]
struct VerifyPage {
    frame: Frame,
    tabs: Tabs,
    action: String,
    report: Option<Report>,
    error: Text,
}

async fn form(visit: &Visit, report: Option<Report>) -> VerifyPage {
    let frame = visit.frame("activity", visit.words().text("activity.title")).await;
    let action = visit.to("activity/verify");
    VerifyPage { frame, tabs: Tabs::of(visit, "verify"), action, report, error: Text::default() }
}

/// Shows the form that starts a check.
pub(in crate::gateway::console) async fn show(visit: Visit) -> Page {
    if !visit.may("audit_verify") {
        return Err(Failure::forbidden());
    }
    Ok(page::render(&form(&visit, None).await))
}

/// Checks the audit and shows the result.
pub(in crate::gateway::console) async fn check(visit: Visit) -> Page {
    let since = if visit.fields().has("latest") { "latest" } else { "" };
    let path = with_query("/api/audit/verify", &[("since_head", since)]);
    match visit.client.get_slowly::<Report>(&path, CHECK_MAX).await {
        Ok(report) => Ok(page::render(&form(&visit, Some(report)).await)),
        Err(Failure::Refused(refusal)) if matches!(refusal.status, 409 | 422) => {
            let mut page = form(&visit, None).await;
            page.error = refusal.detail.into();
            Ok(page::render_as(http::StatusCode::CONFLICT, &page))
        }
        Err(failure) => Err(failure),
    }
}
