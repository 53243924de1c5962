//! Telemetry of the server: log lines on standard error, spans for OpenTelemetry, and the [`recorder`] that serves
//! `/metrics`. Telemetry never contains parameters, results, headers or secrets.

#[cfg(feature = "otel")]
mod otel;
pub mod recorder;
mod trace_parent;

pub use trace_parent::TraceParent;

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{LogFormat, Settings};

/// Directives for libraries that log headers, paths or bodies: most of them at debug level, and rmcp at all levels below
/// errors. The log lines can contain an injected credential or parameters, so no filter can enable them.
const QUIET: [&str; 7] =
    ["h2=info", "hyper=info", "hyper_util=info", "reqwest=info", "rmcp=error", "rustls=info", "sqlx=info"];

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// An error while installing telemetry.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("invalid log filter `{filter}`")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[cfg(not(feature = "otel"))]
    #[error("cannot export spans: this program was built without the feature `otel`")]
    NotBuilt,
    #[cfg(feature = "otel")]
    #[error("cannot export spans to {endpoint}")]
    Export { endpoint: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// The installed telemetry. [`Telemetry::flush`] sends the buffered spans.
#[derive(Default)]
pub struct Telemetry {
    #[cfg(feature = "otel")]
    exporter: Option<otel::Exporter>,
}

/// Installs the log subscriber of the process. A second call changes nothing. Call this function inside the async
/// runtime.
pub fn install(settings: &Settings) -> Result<Telemetry, TelemetryError> {
    let filter = EnvFilter::try_new(with_core(&settings.log))
        .map_err(|source| TelemetryError::Filter { filter: settings.log.clone(), source })?;
    let filter =
        QUIET.iter().fold(filter, |filter, quiet| filter.add_directive(quiet.parse().expect("a constant directive")));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines: BoxedLayer = match settings.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).with_filter(filter).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
    };
    let (telemetry, spans) = export(settings)?;
    let layers: Vec<BoxedLayer> = std::iter::once(lines).chain(spans).collect();
    if tracing_subscriber::registry().with(layers).try_init().is_err() {
        tracing::debug!("a log subscriber is already installed");
    }
    Ok(telemetry)
}

/// Repeats each directive for the target `monstrum_host` with the target `monstrum_core`. In earlier releases, calls,
/// the audit and the policy were part of `monstrum_host`.
fn with_core(filter: &str) -> String {
    const HOST: &str = "monstrum_host";
    let core = |directive: &str| {
        directive.trim().strip_prefix(HOST).map(|rest| format!("monstrum_core{rest},")).unwrap_or_default()
    };
    let mut depth = 0_usize;
    // A directive that contains fields in brackets may contain commas there, so only commas outside brackets separate
    // directives.
    let directives = filter.split(|character: char| {
        match character {
            '[' | '{' => depth += 1,
            ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    });
    let repeated: String = directives.map(core).collect();
    // The repeated directives come first. If two directives have the same target, the last one applies, so the
    // operator's directives must come last.
    format!("{repeated}{filter}")
}

#[cfg(feature = "otel")]
fn export(settings: &Settings) -> Result<(Telemetry, Option<BoxedLayer>), TelemetryError> {
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok((Telemetry::default(), None)) };
    let failed = |source| TelemetryError::Export { endpoint: endpoint.clone(), source };
    let (exporter, layer) = otel::exporter(endpoint).map_err(failed)?;
    Ok((Telemetry { exporter: Some(exporter) }, Some(layer)))
}

#[cfg(not(feature = "otel"))]
fn export(settings: &Settings) -> Result<(Telemetry, Option<BoxedLayer>), TelemetryError> {
    if settings.otlp_endpoint.is_some() { Err(TelemetryError::NotBuilt) } else { Ok((Telemetry::default(), None)) }
}

impl Telemetry {
    /// Sends the buffered spans.
    pub async fn flush(self) {
        #[cfg(feature = "otel")]
        if let Some(exporter) = self.exporter {
            exporter.flush().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_for_the_host_hold_for_core_as_well() {
        assert_eq!(with_core("info"), "info");
        assert_eq!(
            with_core("info, monstrum_host=debug,monstrum_host::call=trace"),
            "monstrum_core=debug,monstrum_core::call=trace,info, monstrum_host=debug,monstrum_host::call=trace"
        );
        assert_eq!(
            with_core("x[s]=warn,monstrum_host[{a=1,b}]=debug"),
            "monstrum_core[{a=1,b}]=debug,x[s]=warn,monstrum_host[{a=1,b}]=debug"
        );
    }
}
