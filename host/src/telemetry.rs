//! Where log lines go: standard error, as text or as JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Settings};

/// Libraries that write headers, paths or bodies into their own debug lines. Whatever filter is asked for, they stay
/// above that, because an injected credential would be in there.
const QUIET: [&str; 6] = ["h2=info", "hyper=info", "hyper_util=info", "reqwest=info", "rustls=info", "sqlx=info"];

/// Installs the subscriber of the process; a second call keeps the first.
pub fn install(settings: &Settings) -> Result<(), String> {
    let filter =
        EnvFilter::try_new(&settings.log).map_err(|error| format!("log filter `{}`: {error}", settings.log))?;
    let filter =
        QUIET.iter().fold(filter, |filter, quiet| filter.add_directive(quiet.parse().expect("a constant directive")));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let installed = match settings.log_format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    if installed.is_err() {
        tracing::debug!("a log subscriber is installed already");
    }
    Ok(())
}
