//! `monstrum plugin dev`: runs a server with the last saved version of the author's plugin.
//!
//! After every save, cargo builds the plugin and the server reloads it. If a version cannot be built or loaded, the
//! previous version continues to serve. The log lines of a call are printed when the call ends.

mod build;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use monstrum_egress::EgressOptions;
use monstrum_manifest::AuthKind;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::output;
use super::feed::{self, Said};
use super::source::Source;
use super::workbench::{Home, Workbench};
use watch::Watch;

use monstrum_core::plugins::folder::MANIFEST;

const EXAMPLES: &str = "\
Examples:
  monstrum plugin dev .
  monstrum plugin dev . --keep ../weather-dev     keep resources and credentials for the next run
  monstrum plugin dev . --cargo-component         build with `cargo component build`

Starts a separate server on a free port of 127.0.0.1, builds the plugin after every save, and prints each call with its
log lines. Ctrl-C stops the server.";

/// The name of the resource and of the bot that are created for the author.
const NAME: &str = "dev";

/// Build and load a plugin after every save, in a separate server
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(in super::super) struct Dev {
    /// The plugin's folder, with Cargo.toml and monstrum.yaml
    dir: PathBuf,
    /// Keep the server's folders here instead of deleting them at the end
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Build with `cargo component build` instead of `cargo build`
    #[arg(long)]
    cargo_component: bool,
}

impl Dev {
    pub(super) async fn run(self) -> Result<ExitCode, Failure> {
        if !self.dir.join(MANIFEST).is_file() {
            let message = format!("{} contains no {MANIFEST}", self.dir.display());
            return Err(Failure::new(message, "create a plugin with `monstrum plugin new NAME`"));
        }
        let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
        let home = match &self.keep {
            Some(path) => Home::kept(path),
            None => Home::temporary()?,
        };
        feed::install(print_calls());
        let bench = Workbench::start(&home, EgressOptions::default()).await?;
        output::line(format!("listening on {}", bench.url()))?;
        output::line(output::plain(&format!("the root key is in {}", home.key_file().display())))?;
        let session = Session { dev: &self, home: &home, bench: &bench };
        let ended = tokio::select! {
            ended = session.follow() => ended,
            _ = &mut interrupted => Ok(()),
        };
        bench.stop().await;
        ended.map(|()| ExitCode::SUCCESS)
    }
}

/// One run of the command.
struct Session<'a> {
    dev: &'a Dev,
    home: &'a Home,
    bench: &'a Workbench,
}

impl Session<'_> {
    /// Builds the plugin now and after every save.
    async fn follow(&self) -> Result<(), Failure> {
        let mut watch = Watch::new(&self.dev.dir);
        let mut is_set_up = false;
        loop {
            match self.turn().await {
                Ok(entry) => {
                    tell_entry(&entry)?;
                    if !is_set_up && entry["digest"].is_string() {
                        self.set_up(&entry).await?;
                        is_set_up = true;
                    }
                }
                // The author can correct the error in the next save, so the command continues.
                Err(failure) => drop(failure.report(false)),
            }
            watch.changed().await;
        }
    }

    /// Builds the plugin, puts it into the plugins folder and loads it. Returns the server's entry of the plugin.
    async fn turn(&self) -> Result<Value, Failure> {
        let source = Source::open(&self.dev.dir)?;
        let component = build::run(&self.dev.dir, self.dev.cargo_component).await?;
        source.lay_out(&component, &self.home.plugins_dir())?;
        let name = source.manifest.name.as_str();
        let client = self.bench.client();
        let entry = client.post(&["api", "plugins", name, "reload"], None).await?;
        if entry["status"] != "needs_approval" {
            return Ok(entry);
        }
        // The author has just written the plugin's requests and owns this server, so the command approves the version.
        for growth in entry["pending"]["grows"].as_array().into_iter().flatten() {
            output::note(&format!("approved: {}", output::plain(&output::cell(growth))));
        }
        let approval = json!({ "digest": entry["pending"]["digest"] });
        client.post(&["api", "plugins", name, "approve"], Some(&approval)).await
    }

    /// Creates a resource, and a bot that may use all tools of the resource. Prints how to call a tool.
    async fn set_up(&self, entry: &Value) -> Result<(), Failure> {
        let url = self.bench.url();
        let source = Source::open(&self.dev.dir)?;
        let resource_type = &source.manifest.resource_type;
        let Some(tool) = resource_type.tools.first() else { return Ok(()) };
        let existing = self.existing("resources").await?;
        let resource = match existing {
            Some(resource) => resource,
            None => {
                let body = json!({ "resource_type": entry["resource_type"], "name": NAME });
                match self.bench.made(&["api", "resources"], &body).await {
                    Ok(resource) => resource,
                    Err(failure) => {
                        output::warning(&format!("no resource was created: {}", failure.sentence()));
                        output::hint(&format!(
                            "send POST {url}/api/resources with the required config, then bind the resource to a bot"
                        ));
                        return Ok(());
                    }
                }
            }
        };
        let bot = match self.existing("bots").await? {
            Some(bot) => bot,
            None => {
                let binding = json!({ "permissions": { "allowed_operations": ["*"] } });
                self.bench.bot(NAME, &resource, binding).await?
            }
        };
        let key = format!("-H \"Authorization: Bearer $(cat {})\"", self.home.key_file().display());
        if let Some(method) = resource_type.auth_methods.iter().find(|method| method.method != AuthKind::None) {
            let fields: serde_json::Map<String, Value> = method
                .credential_fields(resource_type)
                .iter()
                .map(|field| (field.field.clone(), Value::from("…")))
                .collect();
            let body = json!({ "auth_method": method.method, "fields": fields });
            let line = format!("curl -X PUT {key} {url}/api/resources/{resource}/credential -d '{body}'");
            output::line(output::plain(&format!("to set its credential:\n  {line}")))?;
        }
        let line = format!("curl {key} {url}/api/bots/{bot}/tools/{}/call -d '{{\"params\": {{…}}}}'", tool.name);
        output::line(output::plain(&format!("to call a tool:\n  {line}")))
    }

    /// Returns the id of the object that an earlier run created in kept folders.
    async fn existing(&self, collection: &str) -> Result<Option<String>, Failure> {
        let items = self.bench.client().items(&["api", collection], &[]).await?;
        let found = items.iter().find(|item| item["name"] == NAME);
        Ok(found.and_then(|item| item["id"].as_str()).map(str::to_owned))
    }
}

fn tell_entry(entry: &Value) -> Result<(), Failure> {
    let [name, version, error] = ["name", "version", "error"].map(|field| output::cell(&entry[field]));
    if entry["status"] == "failed" {
        output::error(&format!("{name} was not loaded: {error}"));
        return Ok(());
    }
    for warning in entry["warnings"].as_array().into_iter().flatten() {
        output::warning(&output::cell(warning));
    }
    output::line(output::plain(&format!("{name} {version} is loaded, {}", output::cell(&entry["digest"]))))
}

/// Prints each call when it ends, with its log lines.
fn print_calls() -> impl Fn(Said) + Send + Sync + 'static {
    let waiting: Mutex<BTreeMap<String, Vec<String>>> = Mutex::default();
    move |said| {
        let mut waiting = waiting.lock();
        match said {
            Said::Line { call, text } => waiting.entry(call).or_default().push(text),
            Said::Ended { call, tool, status, code, duration_ms } => {
                let code = if code.is_empty() { code } else { format!(" ({code})") };
                let mut text = format!("call {tool}: {status}{code}, {duration_ms} ms");
                for line in waiting.remove(&call).unwrap_or_default() {
                    text.push_str("\n  ");
                    text.push_str(&line.replace('\n', "\n    "));
                }
                // If the output is closed, the server continues until Ctrl-C.
                drop(output::line(output::plain(&text)));
            }
        }
    }
}
