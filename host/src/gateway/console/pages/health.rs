//! The health of the server: whether it is ready, its version, and what runs and waits.

use askama::Template;
use http::StatusCode;
use serde::Deserialize;

use crate::gateway::console::client::Failure;
use crate::gateway::console::page::{self, Frame, Page};
use crate::gateway::console::text::Text;
use crate::gateway::console::visit::Visit;

/// The numbers of the page: the words, the metric, and the metric with its limit.
const NUMBERS: [(&str, &str, &str); 4] = [
    ("calls", "monstrum_pool_calls", "monstrum_pool_calls_max"),
    ("waiting_calls", "monstrum_queue_calls", ""),
    ("waiting_rows", "monstrum_queue_audit_rows", ""),
    ("connections", "monstrum_http_connections", "monstrum_http_connections_max"),
];

#[derive(Deserialize)]
struct Description {
    info: Info,
}

#[derive(Deserialize)]
struct Info {
    version: Text,
}

#[derive(Deserialize)]
struct Plugins {
    items: Vec<Plugin>,
}

#[derive(Deserialize)]
struct Plugin {
    name: Text,
    status: String,
    #[serde(default)]
    version: Option<Text>,
}

#[derive(Deserialize)]
struct Attention {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    kind: String,
    text: Text,
}

/// A number, with its limit if it has one.
struct Number {
    name: &'static str,
    value: String,
    limit: Option<String>,
}

#[derive(Template)]
#[template(path = "console/health.html")]
struct HealthPage {
    frame: Frame,
    /// Whether the server is ready. Absent if it did not answer.
    is_ready: Option<bool>,
    version: Option<Text>,
    /// Whether the last poll of the database succeeded.
    database: Option<bool>,
    numbers: Option<Vec<Number>>,
    plugins: Option<Vec<Plugin>>,
    /// What is wrong with the provider of sandboxes. Absent if that is unknown.
    sandboxes: Option<Vec<Text>>,
}

impl HealthPage {
    fn is_loaded(&self, plugin: &Plugin) -> bool {
        plugin.status == "loaded"
    }

    fn loaded(&self) -> usize {
        self.plugins.iter().flatten().filter(|plugin| self.is_loaded(plugin)).count()
    }
}

/// Shows the health of the server. A part that does not answer says so.
pub(in crate::gateway::console) async fn show(visit: Visit) -> Page {
    // The health check needs no key, so this decides who sees the page.
    if !visit.may("workspaces_list") {
        return Err(Failure::forbidden());
    }
    let (frame, ready, description, metrics, plugins, attention) = tokio::join!(
        visit.frame("health", visit.words().text("nav.health")),
        visit.client.text("/readyz"),
        visit.client.get::<Description>("/api/openapi.json"),
        visit.client.text("/metrics"),
        visit.client.get::<Plugins>("/api/plugins?limit=1000"),
        visit.client.get::<Attention>("/api/attention"),
    );
    let metrics = metrics.ok().filter(|(status, _)| *status == StatusCode::OK).map(|(_, text)| text);
    let sandboxes = attention.map(|attention| {
        let items = attention.items.into_iter().filter(|item| item.kind == "sandbox");
        items.map(|item| item.text).collect()
    });
    Ok(page::render(&HealthPage {
        frame,
        is_ready: ready.ok().map(|(status, _)| status == StatusCode::OK),
        version: description.ok().map(|description| description.info.version),
        database: metrics.as_deref().and_then(|text| gauge(text, "monstrum_database_usable")).map(|value| value != "0"),
        numbers: metrics.as_deref().map(numbers),
        plugins: plugins.ok().map(|plugins| plugins.items),
        sandboxes: sandboxes.ok(),
    }))
}

fn numbers(metrics: &str) -> Vec<Number> {
    let numbers = NUMBERS.into_iter().filter_map(|(name, metric, limit)| {
        Some(Number { name, value: gauge(metrics, metric)?, limit: gauge(metrics, limit) })
    });
    numbers.collect()
}

/// Returns the value of a metric without labels in the text format of Prometheus.
fn gauge(metrics: &str, name: &str) -> Option<String> {
    let mut values = metrics.lines().filter_map(|line| line.split_once(' '));
    values.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let metrics = "# TYPE monstrum_pool_calls gauge\nmonstrum_pool_calls_max 64\nmonstrum_pool_calls 2\n\
                       monstrum_other{a=\"b\"} 1\n";
        assert_eq!(gauge(metrics, "monstrum_pool_calls").as_deref(), Some("2"));
        assert_eq!((gauge(metrics, "monstrum_other"), gauge(metrics, "")), (None, None));
        let shown: Vec<_> = numbers(metrics).into_iter().map(|of| (of.name, of.value, of.limit)).collect();
        assert_eq!(shown, [("calls", "2".to_owned(), Some("64".to_owned()))]);
    }
}
