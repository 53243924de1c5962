//! Compares pages of the console with the requests to the API that they make. The floor sends the same requests in the
//! same order, and as many at the same time.
//!
//! The requests are listed here. Before a page is measured, the metrics of the host must show that the page and its list
//! make the same requests with the same answers.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use futures::future::try_join_all;
use monstrum_host::telemetry::recorder;
use monstrum_types::{Clock, SystemClock};
use serde_json::{Value, json};

use super::workspace::{Ask, Workspace};
use crate::machine::Machine;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::TOOL;

const FLOOR: &str = "the API requests behind it";
/// The number of times that a side is measured in a round.
const TIMES: usize = 30;
const DAY_MS: i64 = 24 * 3_600 * 1_000;
const ADDED_MAX_US: f64 = 3_000.0;
const RATIO_MAX: f64 = 1.5;
const FILTERED_MAX_US: f64 = 60_000.0;

/// Requests one after another.
type Chain = Vec<Ask>;
/// Chains that run at the same time.
type Step = Vec<Chain>;

/// A page, and the requests behind it.
struct Page {
    name: &'static str,
    /// The path below the workspace.
    path: String,
    steps: Vec<Step>,
    /// The maximum time of the page on the reference machine, if it has one of its own.
    max_us: Option<f64>,
}

/// Measures the pages and returns one row for each.
pub async fn measure(workspace: &Workspace, rounds: usize, machine: &Machine) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for page in pages(workspace).await? {
        let path = format!("/console/w/{}/{}", workspace.id, page.path);
        check(workspace, &path, &page)
            .await
            .with_context(|| format!("the page {} differs from its list", page.name))?;
        let rounds = rounds_of(workspace, &path, &page, rounds).await?;
        rows.push(row(&page, &rounds, machine));
    }
    Ok(rows)
}

fn row(page: &Page, rounds: &Rounds, machine: &Machine) -> Row {
    let (added, added_max) = (rounds.added_us(), machine.time_us(ADDED_MAX_US));
    let mut goal = format!("p50 <= {:.1} ms added (now {:.1}) and <= {RATIO_MAX} x", added_max / 1e3, added / 1e3);
    let max = page.max_us.map(|max| machine.time_us(max));
    if let Some(max) = max {
        goal = format!("p50 <= {:.0} ms; {goal}", max / 1e3);
    }
    let name = format!("console: {}", page.name);
    let row = Row::reported((&name, FLOOR), Measure::Time, rounds);
    let is_fast = max.is_none_or(|max| rounds.subject().median_us <= max);
    let is_met = is_fast && added <= added_max && row.ratio <= RATIO_MAX;
    row.with_goal(&goal, is_met)
}

/// Measures a page and its requests in rounds. Each round begins with the other side.
async fn rounds_of(workspace: &Workspace, path: &str, page: &Page, rounds: usize) -> Result<Rounds> {
    let mut all = Rounds::default();
    for round in 0..=rounds {
        let subject = repeated(async || workspace.page(path).await);
        let floor = repeated(async || requests(workspace, &page.steps).await);
        let (subject, floor) = if round % 2 == 0 {
            let floor = floor.await?;
            (subject.await?, floor)
        } else {
            (subject.await?, floor.await?)
        };
        // The first round fills the caches.
        if round > 0 {
            all.add(subject, floor);
        }
    }
    Ok(all)
}

async fn repeated(mut work: impl AsyncFnMut() -> Result<()>) -> Result<Sample> {
    let (began, mut times) = (Instant::now(), Vec::with_capacity(TIMES));
    for _ in 0..TIMES {
        let started = Instant::now();
        work().await?;
        times.push(started.elapsed());
    }
    Ok(Sample::new(times, began.elapsed()))
}

/// Sends the requests behind a page.
async fn requests(workspace: &Workspace, steps: &[Step]) -> Result<()> {
    for step in steps {
        let chains = step.iter().map(|chain| async move {
            for ask in chain {
                workspace.ask(ask).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(chains).await?;
    }
    Ok(())
}

/// Fails unless the page and its list make the same requests.
async fn check(workspace: &Workspace, path: &str, page: &Page) -> Result<()> {
    let before = answers();
    workspace.page(path).await?;
    let between = answers();
    requests(workspace, &page.steps).await?;
    let (of_page, of_list) = (added(&before, &between), added(&between, &answers()));
    ensure!(of_page == of_list, "the page made {of_page:?}, the list {of_list:?}");
    Ok(())
}

/// Returns the number of answers so far, by the route, the method and the status of the API.
fn answers() -> BTreeMap<String, u64> {
    parsed(&recorder::render())
}

fn parsed(metrics: &str) -> BTreeMap<String, u64> {
    const COUNT: &str = "monstrum_http_request_seconds_count{";
    let counts = metrics.lines().filter_map(|line| line.strip_prefix(COUNT)?.rsplit_once("} "));
    let of_api = counts.filter(|(labels, _)| !labels.contains("route=\"/console"));
    of_api.filter_map(|(labels, count)| Some((labels.to_owned(), count.parse().ok()?))).collect()
}

/// Returns what has been added to `before`.
fn added(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let added = |(labels, count): (&String, &u64)| {
        let more = count - before.get(labels).copied().unwrap_or_default();
        (more > 0).then(|| (labels.clone(), more))
    };
    after.iter().filter_map(added).collect()
}

fn get(path: impl Into<String>) -> Ask {
    Ask { method: Method::GET, path: path.into(), body: None }
}

/// Returns steps of requests, of which those of one step are sent at the same time.
fn steps<const N: usize>(steps: [Vec<Ask>; N]) -> Vec<Step> {
    steps.into_iter().map(|step| step.into_iter().map(|ask| vec![ask]).collect()).collect()
}

/// Returns the request of every page: it asks for the key of the session.
fn me() -> Vec<Ask> {
    vec![get("/api/me")]
}

/// Returns the requests behind the bars of a page.
fn frame() -> Vec<Ask> {
    vec![get("/api/approvals?status=pending&limit=100"), get("/api/workspaces?limit=200")]
}

fn with_frame(asks: impl IntoIterator<Item = Ask>) -> Vec<Ask> {
    frame().into_iter().chain(asks).collect()
}

/// Returns the pages to measure.
async fn pages(workspace: &Workspace) -> Result<Vec<Page>> {
    let bot = workspace.bot;
    let since = SystemClock.now().plus_ms(-DAY_MS).to_string().replace(':', "%3A");
    let page = |name, path: String, steps| Page { name, path, steps, max_us: None };
    let by_bot = get(format!("/api/stats?by=bot_id%2Cstatus&since={since}"));
    let used = get("/api/usage?by=bot");
    let counts = || get(format!("/api/stats?by=status&since={since}&bot_id={bot}"));
    let filter = format!("bot_id={bot}&status=scope_violation");
    let filtered = activity("Activity, filtered by bot and status", &filter);
    let rare = activity("Activity, filtered by rule", "rule=role.allowed_operations");
    Ok(vec![
        page("overview", "overview".to_owned(), overview(&since)),
        page("list of bots", "bots".to_owned(), steps([me(), with_frame([get("/api/bots?limit=50"), by_bot, used])])),
        page(
            "Can do of a bot",
            format!("bots/{bot}"),
            all_at_once([get(format!("/api/bots/{bot}")), counts(), get(format!("/api/bots/{bot}/access"))]),
        ),
        page(
            "Did of a bot",
            format!("bots/{bot}/did"),
            all_at_once([get(format!("/api/bots/{bot}")), counts(), get(format!("/api/audit?bot_id={bot}&limit=50"))]),
        ),
        page("Denied of a bot", format!("bots/{bot}/denied"), denied(workspace, &since)),
        activity("Activity", ""),
        Page { max_us: Some(FILTERED_MAX_US), ..filtered },
        Page { max_us: Some(FILTERED_MAX_US), ..rare },
        page("a denied call", format!("activity/{}", workspace.denied), request(workspace).await?),
        page("list of resources", "resources".to_owned(), steps([me(), with_frame([get("/api/resources?limit=50")])])),
    ])
}

/// Returns the requests behind the first page.
fn overview(since: &str) -> Vec<Step> {
    let newest = |filter: &str| get(format!("/api/audit?{filter}"));
    let asks = with_frame([
        get("/api/attention"),
        get(format!("/api/stats?by=status&bucket=3600&since={since}")),
        newest("status=scope_violation&limit=5"),
        newest("status=permission_denied&limit=5"),
        newest("limit=10"),
        get("/api/demo"),
    ]);
    steps([me(), asks])
}

/// Returns the requests of a page about a bot: those of its content at the same time, and then those of its bars.
fn all_at_once(asks: impl IntoIterator<Item = Ask>) -> Vec<Step> {
    steps([me(), asks.into_iter().collect(), frame()])
}

/// Returns the page of calls with a filter.
fn activity(name: &'static str, filter: &str) -> Page {
    let separator = if filter.is_empty() { "" } else { "&" };
    let calls = get(format!("/api/audit?{filter}{separator}limit=50"));
    let asks = with_frame([calls, get("/api/bots?limit=200"), get("/api/resources?limit=200")]);
    let path = format!("activity{}{filter}", if filter.is_empty() { "" } else { "?" });
    Page { name, path, steps: steps([me(), asks]), max_us: None }
}

/// Returns the requests behind the denied calls of a bot.
fn denied(workspace: &Workspace, since: &str) -> Vec<Step> {
    let bot = workspace.bot;
    let reasons = ["scope_violation", "permission_denied"]
        .map(|status| get(format!("/api/stats?by=rule%2Cmessage&since={since}&bot_id={bot}&status={status}")));
    let latest = ["scope_violation", "permission_denied"]
        .map(|status| vec![get(format!("/api/audit?bot_id={bot}&status={status}&limit=25"))]);
    let counts = get(format!("/api/stats?by=status&since={since}&bot_id={bot}"));
    let mut chains = vec![vec![get(format!("/api/bots/{bot}"))], vec![counts], reasons.to_vec()];
    chains.extend(latest);
    let mut all = steps([me()]);
    all.push(chains);
    all.extend(steps([frame()]));
    all
}

/// Returns the requests behind the page of the denied call.
async fn request(workspace: &Workspace) -> Result<Vec<Step>> {
    let (id, bot, resource) = (workspace.denied, workspace.bot, workspace.resource);
    let call = workspace.host.api()?.audit(&id.to_string()).await?;
    let params: &Value = &call["params"];
    ensure!(params.is_object(), "the call has no parameters: {call}");
    let check = Ask {
        method: Method::POST,
        path: format!("/api/bots/{bot}/tools/{TOOL}/check"),
        body: Some(json!({ "params": params })),
    };
    let asks = with_frame([get(format!("/api/bots/{bot}")), get(format!("/api/resources/{resource}"))]);
    let mut all =
        steps([me(), vec![get(format!("/api/audit/{id}")), get(format!("/api/audit?tree={id}&limit=200"))], asks]);
    all.push(vec![vec![get(format!("/api/bots/{bot}")), check]]);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_api_are_counted() {
        let metrics = "monstrum_http_request_seconds_count{route=\"/api/me\",method=\"GET\",status=\"200\"} 3\n\
            monstrum_http_request_seconds_count{route=\"/console/w/{ws}/bots\",method=\"GET\",status=\"200\"} 9\n\
            monstrum_http_request_seconds_sum{route=\"/api/me\",method=\"GET\",status=\"200\"} 0.5\n";
        let before = parsed(metrics);
        assert_eq!(before.len(), 1, "{before:?}");
        let after = parsed(&metrics.replace("} 3", "} 5"));
        assert_eq!(added(&before, &after).into_values().collect::<Vec<_>>(), [2]);
        assert!(added(&after, &after).is_empty());
    }
}
