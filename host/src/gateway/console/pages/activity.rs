//! The calls of the workspace, and one call with the calls below it.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::IntoResponse;
use monstrum_types::UtcMillis;
use serde::Deserialize;
use serde_json::Value;

use crate::gateway::console::client::{Failure, segment, with_query};
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::pages::bot::{self, Why};
use crate::gateway::console::pages::tasks;
use crate::gateway::console::text::{Text, pretty};
use crate::gateway::console::visit::Visit;

/// A page of calls.
#[derive(Deserialize)]
pub(in crate::gateway::console) struct Calls {
    pub items: Vec<Call>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// A call as the audit tells it.
#[derive(Clone, Deserialize)]
pub(in crate::gateway::console) struct Call {
    pub request_id: String,
    #[serde(default)]
    pub parent_request_id: Option<String>,
    pub started_at: UtcMillis,
    #[serde(default)]
    pub finished_at: Option<UtcMillis>,
    #[serde(default)]
    pub duration_ms: Option<u64>,
    #[serde(default)]
    pub status: Option<String>,
    #[serde(default)]
    pub code: Option<Text>,
    #[serde(default)]
    pub message: Option<Text>,
    #[serde(default)]
    pub rule: Option<Text>,
    #[serde(default)]
    pub tool: Option<Text>,
    #[serde(default)]
    pub operation: Option<Text>,
    #[serde(default)]
    pub bot_id: Option<String>,
    #[serde(default)]
    pub resource_id: Option<String>,
    #[serde(default)]
    pub plugin: Option<Text>,
    #[serde(default)]
    pub plugin_digest: Option<Text>,
    #[serde(default)]
    pub task_id: Option<Text>,
    #[serde(default)]
    pub params: Value,
    /// The delegations under which a bot made the call for another bot.
    #[serde(default)]
    delegation: Value,
    #[serde(default)]
    pub events: Vec<Event>,
}

#[derive(Clone, Deserialize)]
pub(in crate::gateway::console) struct Event {
    pub at: UtcMillis,
    pub kind: Text,
    #[serde(default)]
    pub status: Option<Text>,
    pub writer: Text,
    pub sequence: u64,
    pub hash: Text,
}

impl Call {
    /// Returns the status; a call without one is running.
    pub(in crate::gateway::console) fn state(&self) -> &str {
        self.status.as_deref().unwrap_or("running")
    }

    /// Returns the class of the status in the style sheet.
    pub(in crate::gateway::console) fn class(&self) -> &'static str {
        page::class_of(self.state())
    }

    pub(in crate::gateway::console) fn is_denied(&self) -> bool {
        page::is_denied(self.state())
    }

    /// Returns whether the call waits for a person.
    fn waits(&self) -> bool {
        self.state() == "approval_required"
    }

    pub(in crate::gateway::console) fn tool_name(&self) -> Text {
        self.tool.clone().unwrap_or_default()
    }

    /// Returns the parameters on one line.
    pub(in crate::gateway::console) fn params_line(&self) -> Text {
        Text::from(self.params.to_string()).start(120)
    }

    fn params_text(&self) -> Text {
        pretty(&self.params)
    }

    /// Returns whether the audit holds the parameters whole. It replaces large ones with their digest.
    fn has_params(&self) -> bool {
        let Some(params) = self.params.as_object() else { return false };
        let digest = params.get("digest").and_then(Value::as_str);
        let is_digest = digest.is_some_and(|digest| digest.starts_with("sha256:"))
            && params.get("bytes").is_some_and(Value::is_u64)
            && params.keys().all(|name| matches!(name.as_str(), "digest" | "bytes" | "first"));
        !is_digest
    }

    /// Returns whether `why` explains the denial of the call. A check knows only the rules of the bot itself: neither
    /// delegations, nor the plugin that made the call, nor the calls below it.
    fn is_explained_by(&self, why: &Why) -> bool {
        let is_same_rule = self.rule.is_some() && self.rule == why.check.rule;
        let is_of_bot_alone = self.rule.is_some() && self.parent_request_id.is_none();
        self.delegation.is_null() && (is_same_rule || is_of_bot_alone)
    }
}

/// The filters of the list.
#[derive(Default, Deserialize)]
pub(in crate::gateway::console) struct Filter {
    #[serde(default)]
    pub bot_id: String,
    #[serde(default)]
    pub tool: String,
    #[serde(default)]
    pub resource_id: String,
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub rule: String,
    #[serde(default)]
    pub since: String,
    #[serde(default)]
    pub until: String,
    #[serde(default)]
    pub cursor: String,
    /// A request id, which leads to the page of the call.
    #[serde(default)]
    pub request: String,
}

impl Filter {
    pub(in crate::gateway::console) fn parameters(&self) -> [(&'static str, &str); 7] {
        [
            ("bot_id", &self.bot_id),
            ("tool", &self.tool),
            ("resource_id", &self.resource_id),
            ("status", &self.status),
            ("rule", &self.rule),
            ("since", &self.since),
            ("until", &self.until),
        ]
    }

    pub(in crate::gateway::console) fn is_set(&self) -> bool {
        self.parameters().iter().any(|(_, value)| !value.is_empty())
    }
}

/// A choice of a filter.
#[derive(Clone, Deserialize)]
pub(in crate::gateway::console) struct Named {
    pub id: String,
    pub name: Text,
}

#[derive(Deserialize)]
struct NamedList {
    items: Vec<Named>,
}

/// The statuses among which the filter chooses.
pub(in crate::gateway::console) const STATUSES: [&str; 5] =
    ["success", "error", "scope_violation", "permission_denied", "approval_required"];

/// The tabs of the section.
pub(in crate::gateway::console) struct Tabs {
    pub current: &'static str,
    pub may_changes: bool,
    pub may_verify: bool,
}

impl Tabs {
    pub(in crate::gateway::console) fn of(visit: &Visit, current: &'static str) -> Tabs {
        Tabs { current, may_changes: visit.may("audit_changes"), may_verify: visit.may("audit_verify") }
    }
}

/// Calls with the filter that selects them, and the names among which the filter chooses.
pub(in crate::gateway::console) struct Selection {
    pub filter: Filter,
    pub calls: Vec<Call>,
    pub bots: Vec<Named>,
    pub resources: Vec<Named>,
    pub statuses: [&'static str; 5],
    /// The path of the page.
    pub page: String,
    pub export: String,
    pub next: Option<String>,
}

impl Selection {
    /// Reads the calls that a filter selects, newest first, for the page with this path below the workspace.
    pub(in crate::gateway::console) async fn read(
        visit: &Visit,
        filter: Filter,
        page: &str,
    ) -> Result<Selection, Failure> {
        let page = visit.to(page);
        let mut parameters = filter.parameters().to_vec();
        let export = with_query(&visit.to("activity/export"), &parameters);
        parameters.extend([("limit", "50"), ("cursor", filter.cursor.as_str())]);
        let path = with_query("/api/audit", &parameters);
        let (calls, bots, resources) = tokio::join!(
            visit.client.get::<Calls>(&path),
            visit.client.get::<NamedList>("/api/bots?limit=200"),
            visit.client.get::<NamedList>("/api/resources?limit=200"),
        );
        let Calls { items: calls, next_cursor } = calls?;
        let next = next_cursor.map(|cursor| {
            let mut parameters = filter.parameters().to_vec();
            parameters.push(("cursor", &cursor));
            with_query(&page, &parameters)
        });
        let names = |list: Result<NamedList, _>| list.map(|list| list.items).unwrap_or_default();
        let (bots, resources) = (names(bots), names(resources));
        Ok(Selection { filter, calls, bots, resources, statuses: STATUSES, page, export, next })
    }

    pub(in crate::gateway::console) fn bot_name(&self, id: &Option<String>) -> Text {
        named(&self.bots, id)
    }

    pub(in crate::gateway::console) fn resource_name(&self, id: &Option<String>) -> Text {
        named(&self.resources, id)
    }
}

#[derive(Template)]
#[template(path = "console/activity.html")]
struct ActivityPage {
    frame: Frame,
    tabs: Tabs,
    selection: Selection,
}

impl ActivityPage {
    fn next(&self) -> &Option<String> {
        &self.selection.next
    }
}

fn named(known: &[Named], id: &Option<String>) -> Text {
    let Some(id) = id else { return Text::default() };
    // An object that was deleted, or is not among the first, is shown by its id.
    known.iter().find(|named| named.id == *id).map_or_else(|| Text::from(id.as_str()), |named| named.name.clone())
}

/// Shows the calls.
pub(in crate::gateway::console) async fn list(visit: Visit, Query(filter): Query<Filter>) -> Page {
    if !filter.request.is_empty() {
        return Ok(page::see_other(&visit.to(&format!("activity/{}", segment(filter.request.trim())))));
    }
    let (frame, selection) = tokio::join!(
        visit.frame("activity", visit.words().text("activity.title")),
        Selection::read(&visit, filter, "activity"),
    );
    let tabs = Tabs::of(&visit, "calls");
    Ok(page::render(&ActivityPage { frame, tabs, selection: selection? }))
}

/// Exports the calls that a filter selects, as the API does.
pub(in crate::gateway::console) async fn export(visit: Visit, Query(filter): Query<Filter>) -> Page {
    let path = with_query("/api/audit/export", &filter.parameters());
    let body = visit.client.stream(&path, &[]).await?.into_body();
    let headers = [
        (http::header::CONTENT_TYPE, "application/jsonl"),
        (http::header::CONTENT_DISPOSITION, "attachment; filename=\"calls.jsonl\""),
        (http::header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
    ];
    Ok((headers, body).into_response())
}

/// A call in the waterfall, with its bar in thousandths of the whole time.
struct Bar {
    call: Call,
    depth: usize,
    start: u64,
    width: u64,
}

impl Bar {
    /// Returns the depth as far as it is shown.
    fn indent(&self) -> usize {
        self.depth.min(8)
    }
}

#[derive(Template)]
#[template(path = "console/request.html")]
struct RequestPage {
    frame: Frame,
    call: Call,
    bot: Option<Named>,
    resource: Option<Named>,
    bars: Vec<Bar>,
    left_out: usize,
    why: Option<Why>,
    /// Whether a check of the bot alone does not explain the denial.
    is_beyond_bot: bool,
    /// Whether the audit holds the parameters whole, so that the call can be checked again.
    has_params: bool,
    /// The path of the page of the task that made the call.
    task_page: Option<String>,
    /// The path of the approval for which the call waits.
    approval: Option<String>,
}

impl RequestPage {
    /// Returns whether the explanation says the message of the call.
    fn is_told_by_why(&self) -> bool {
        self.why.as_ref().is_some_and(|why| why.check.message == self.call.message)
    }
}

/// The maximum number of calls in a waterfall.
const BARS_MAX: usize = 200;

/// Shows one call: its parameters, its result, why it was denied, and the calls below it.
pub(in crate::gateway::console) async fn show(visit: Visit, Path((_, id)): Path<(String, String)>) -> Page {
    let path = format!("/api/audit/{}", segment(&id));
    let tree = with_query("/api/audit", &[("tree", &id), ("limit", "200")]);
    let (call, tree) = tokio::join!(visit.client.get::<Call>(&path), visit.client.get::<Calls>(&tree));
    let call = call?;
    let bot = async {
        let id = call.bot_id.as_deref()?;
        visit.client.get::<Named>(&format!("/api/bots/{}", segment(id))).await.ok()
    };
    let resource = async {
        let id = call.resource_id.as_deref()?;
        visit.client.get::<Named>(&format!("/api/resources/{}", segment(id))).await.ok()
    };
    let title = call.tool_name().to_string();
    let (bot, resource, approval, task_page, frame) = tokio::join!(
        bot,
        resource,
        approval_of(&visit, &call),
        tasks::page_of(&visit, call.task_id.as_ref().map(Text::raw)),
        visit.frame("activity", &title),
    );
    let has_params = call.has_params();
    let (mut why, mut is_beyond_bot) = (None, false);
    if call.is_denied()
        && has_params
        && let (Some(of), Some(tool), Value::Object(params)) = (&bot, &call.tool, &call.params)
    {
        let of = bot::read(&visit, &of.id).await?;
        let answer = bot::ask_why(&visit, &of, tool.raw(), params).await.ok();
        why = answer.map(|why| Why { is_again: true, ..why });
        is_beyond_bot = why.as_ref().is_some_and(|why| !call.is_explained_by(why));
    }
    let why = why.filter(|_| !is_beyond_bot);
    let all = tree.map(|tree| tree.items).unwrap_or_default();
    let bars = bars(&call, all);
    let left_out = bars.len().saturating_sub(BARS_MAX);
    let bars = bars.into_iter().take(BARS_MAX).collect();
    let page =
        RequestPage { frame, call, bot, resource, bars, left_out, why, is_beyond_bot, has_params, task_page, approval };
    Ok(page::render(&page))
}

/// Returns the path of the approval for which a call waits. The audit does not name it, so it is the newest of the bot with
/// the same tool and parameters. If none is found, the path is that of the list.
async fn approval_of(visit: &Visit, call: &Call) -> Option<String> {
    #[derive(Deserialize)]
    struct Approval {
        id: String,
        tool: Text,
        created_at: UtcMillis,
        #[serde(default)]
        params: Value,
    }
    #[derive(Deserialize)]
    struct Approvals {
        items: Vec<Approval>,
    }
    if !call.waits() || !visit.may("approvals_list") {
        return None;
    }
    let bot = call.bot_id.as_deref().unwrap_or_default();
    let path = with_query("/api/approvals", &[("bot_id", bot), ("limit", "200")]);
    let known = visit.client.get::<Approvals>(&path).await.map(|list| list.items).unwrap_or_default();
    let until = call.finished_at.unwrap_or(call.started_at);
    let is_of_call = |approval: &Approval| {
        Some(&approval.tool) == call.tool.as_ref() && approval.params == call.params && approval.created_at <= until
    };
    let approval = known.into_iter().filter(is_of_call).max_by_key(|approval| approval.created_at);
    Some(match approval {
        Some(approval) => visit.to(&format!("approvals/{}", segment(&approval.id))),
        None => visit.to("approvals"),
    })
}

/// Orders the calls below `root` as a tree, and returns the bar of each.
fn bars(root: &Call, calls: Vec<Call>) -> Vec<Bar> {
    let end = |call: &Call| {
        let took = i64::try_from(call.duration_ms.unwrap_or(0)).unwrap_or(i64::MAX);
        call.finished_at.unwrap_or(call.started_at.plus_ms(took))
    };
    let from = root.started_at;
    let until = calls.iter().map(end).chain([end(root)]).max().unwrap_or(from);
    let whole = until.since_ms(from).max(1);
    let place = |at: UtcMillis| u64::try_from((at.since_ms(from).clamp(0, whole)) * 1000 / whole).unwrap_or(0);
    let mut ordered = vec![(root.clone(), 0)];
    let mut rest: Vec<Call> = calls.into_iter().filter(|call| call.request_id != root.request_id).collect();
    rest.sort_by_key(|call| std::cmp::Reverse(call.started_at));
    let mut open = vec![(root.request_id.clone(), 1)];
    while let Some((parent, depth)) = open.pop() {
        // The last child is at the end, so children leave in the order of their start.
        let Some(at) = rest.iter().rposition(|call| call.parent_request_id.as_ref() == Some(&parent)) else { continue };
        let child = rest.remove(at);
        open.push((parent, depth));
        open.push((child.request_id.clone(), depth + 1));
        ordered.push((child, depth));
    }
    let bar = |(call, depth): (Call, usize)| {
        let start = place(call.started_at);
        let width = place(end(&call)).saturating_sub(start).max(4);
        Bar { call, depth, start, width }
    };
    ordered.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str, parent: Option<&str>, at: i64, took: u64) -> Call {
        let started = UtcMillis(at);
        serde_json::from_value(json!({
            "request_id": id, "parent_request_id": parent, "started_at": started.to_string(),
            "finished_at": started.plus_ms(i64::try_from(took).unwrap()).to_string(), "duration_ms": took,
        }))
        .unwrap()
    }

    #[test]
    fn a_waterfall_is_a_tree_in_the_order_of_starts() {
        let root = call("r", None, 0, 1000);
        let calls = vec![
            call("b", Some("r"), 500, 500),
            call("a", Some("r"), 0, 250),
            call("a1", Some("a"), 100, 100),
            root.clone(),
            call("x", Some("lost"), 0, 1),
        ];
        let bars = bars(&root, calls);
        let told: Vec<_> =
            bars.iter().map(|bar| (bar.call.request_id.as_str(), bar.depth, bar.start, bar.width)).collect();
        assert_eq!(told, [("r", 0, 0, 1000), ("a", 1, 0, 250), ("a1", 2, 100, 100), ("b", 1, 500, 500)]);
    }
}
