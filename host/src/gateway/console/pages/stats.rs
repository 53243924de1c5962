//! Numbers of calls, counted by the API.

use std::collections::HashMap;

use monstrum_types::UtcMillis;
use serde::Deserialize;

use crate::gateway::console::chart::Chart;
use crate::gateway::console::client::{Failure, with_query};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// The statuses of calls that were denied.
const DENIED: [&str; 2] = ["scope_violation", "permission_denied"];

#[derive(Deserialize)]
struct Stats {
    items: Vec<Item>,
}

/// A number of calls. `key` has the values by which the API groups.
#[derive(Deserialize)]
struct Item {
    key: HashMap<String, Option<String>>,
    /// The start of the bucket, for numbers in time.
    #[serde(default)]
    at: Option<UtcMillis>,
    calls: u64,
    last_at: UtcMillis,
}

impl Item {
    fn value(&self, name: &str) -> &str {
        self.key.get(name).and_then(Option::as_deref).unwrap_or_default()
    }
}

/// The calls of a day.
#[derive(Clone, Copy, Default)]
pub(in crate::gateway::console) struct Counts {
    pub calls: u64,
    pub denied: u64,
    pub last_at: Option<UtcMillis>,
}

impl Counts {
    /// Adds a number of calls with this status.
    fn add(&mut self, status: &str, item: &Item) {
        self.calls += item.calls;
        if DENIED.contains(&status) {
            self.denied += item.calls;
        }
        self.last_at = self.last_at.max(Some(item.last_at));
    }
}

/// Denied calls with the same reason.
pub(in crate::gateway::console) struct Denial {
    pub status: &'static str,
    pub rule: Text,
    pub message: Text,
    pub calls: u64,
    pub last_at: UtcMillis,
}

async fn read(visit: &Visit, by: &str, filters: &[(&str, &str)]) -> Result<Vec<Item>, Failure> {
    let since = visit.console.app.clock.now().plus_ms(-DAY_MS).to_string();
    let mut parameters = vec![("by", by), ("since", since.as_str())];
    parameters.extend(filters);
    visit.client.get::<Stats>(&with_query("/api/stats", &parameters)).await.map(|stats| stats.items)
}

/// Returns the calls of 24 hours by the id of the bot.
pub(in crate::gateway::console) async fn by_bot(visit: &Visit) -> Result<HashMap<String, Counts>, Failure> {
    let mut counts: HashMap<String, Counts> = HashMap::new();
    for item in read(visit, "bot_id,status", &[]).await? {
        counts.entry(item.value("bot_id").to_owned()).or_default().add(item.value("status"), &item);
    }
    Ok(counts)
}

/// Returns the calls of the last 24 hours, by the hour and their status.
pub(in crate::gateway::console) async fn by_hour(visit: &Visit) -> Result<Chart, Failure> {
    let now = visit.console.app.clock.now();
    let since = Chart::start(now).to_string();
    let path = with_query("/api/stats", &[("by", "status"), ("bucket", "3600"), ("since", &since)]);
    let items = visit.client.get::<Stats>(&path).await?.items;
    Ok(Chart::new(now, items.iter().filter_map(|item| Some((item.at?, item.value("status"), item.calls)))))
}

/// Returns the calls of one bot in 24 hours.
pub(in crate::gateway::console) async fn of_bot(visit: &Visit, bot: &str) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    for item in read(visit, "status", &[("bot_id", bot)]).await? {
        counts.add(item.value("status"), &item);
    }
    Ok(counts)
}

/// Returns the denied calls of a bot in 24 hours by their reason, the most frequent first.
pub(in crate::gateway::console) async fn denials(visit: &Visit, bot: &str) -> Result<Vec<Denial>, Failure> {
    let mut denials = Vec::new();
    for status in DENIED {
        for item in read(visit, "rule,message", &[("bot_id", bot), ("status", status)]).await? {
            let (rule, message) = (item.value("rule").into(), item.value("message").into());
            denials.push(Denial { status, rule, message, calls: item.calls, last_at: item.last_at });
        }
    }
    denials.sort_by_key(|denial| std::cmp::Reverse((denial.calls, denial.last_at)));
    Ok(denials)
}
