//! The log lines and results of calls, for the author of a plugin.
//!
//! The feed receives the same events as the server's log. No event contains parameters, results or secrets.

use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The tracing target of events that contain log lines of plugins. `executor` emits these events.
const LINES: &str = "plugin";
/// The tracing target of events about ended calls. `call` emits these events.
const CALLS: &str = "monstrum_core::call";
const ENDED: &str = "call ended";

/// An event of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A log line of the plugin, without secrets.
    Line {
        call: String,
        text: String,
    },
    Ended {
        call: String,
        tool: String,
        status: String,
        code: String,
        duration_ms: String,
    },
}

/// Passes all events of calls to `hear` from now on. A process can have only one feed.
pub(super) fn install(hear: impl Fn(Said) + Send + Sync + 'static) {
    let heard = Targets::new().with_target(LINES, Level::DEBUG).with_target(CALLS, Level::DEBUG);
    let layer = Feed { hear }.with_filter(heard);
    // This fails only if the process already has a subscriber. The command installs just one.
    drop(tracing_subscriber::registry().with(layer).try_init());
}

struct Feed<F> {
    hear: F,
}

/// The fields of an event or a span, as text.
#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    fn take(&mut self, name: &str) -> String {
        let found = self.0.iter_mut().find(|(own, _)| *own == name);
        found.map(|(_, value)| std::mem::take(value)).unwrap_or_default()
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

/// The call of a span.
struct CallNames {
    call: String,
    tool: String,
}

impl<S, F> Layer<S> for Feed<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: Fn(Said) + Send + Sync + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let names = CallNames { call: fields.take("call.id"), tool: fields.take("tool.name") };
        if let Some(span) = context.span(id).filter(|_| !names.call.is_empty()) {
            span.extensions_mut().insert(names);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if event.metadata().target() == LINES {
            let (level, source) = (fields.take("level"), fields.take("source"));
            let parts = [level, source, fields.take("message"), fields.take("fields")];
            let text = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
            return (self.hear)(Said::Line { call: fields.take("call.id"), text });
        }
        if fields.take("message") != ENDED {
            return;
        }
        let Some(span) = context.lookup_current() else { return };
        let extensions = span.extensions();
        let Some(CallNames { call, tool }) = extensions.get() else { return };
        (self.hear)(Said::Ended {
            call: call.clone(),
            tool: tool.clone(),
            status: fields.take("status"),
            code: fields.take("code"),
            duration_ms: fields.take("duration_ms"),
        });
    }
}
