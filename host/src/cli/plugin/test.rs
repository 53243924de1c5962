//! `monstrum plugin test`: runs the test cases of a plugin with its real component in the real host. The cases replace
//! only the network behind egress.

mod case;
mod compare;
mod upstream;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use monstrum_egress::{EgressOptions, Redactor};
use monstrum_manifest::{AuthKind, AuthMethod, FieldKind, Manifest};
use monstrum_types::Secret;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::failure::Failure;
use super::super::output;
use super::feed::{self, Said};
use super::source::Source;
use super::workbench::{Home, Workbench};
use case::{Case, Expected, Found};
use compare::{Closeness, differences};
use upstream::{EveryName, Upstream};

/// The log lines of calls, by the id of the call.
type Log = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

/// The result of a case, from which secrets have been removed.
struct Report {
    file: String,
    description: String,
    duration_ms: u128,
    faults: Vec<String>,
    log: Vec<String>,
}

/// Runs every case of the plugin in `dir`.
pub(super) async fn run(dir: &Path, json: bool) -> Result<ExitCode, Failure> {
    let source = Source::open(dir)?;
    let cases = case::read_all(dir, &source.manifest)?;
    let component = source.component();
    if !component.is_file() {
        return Err(not_built(&source));
    }
    if let Some(newer) = source.newer_build() {
        let (newer, component) = (newer.display(), component.display());
        output::warning(&format!(
            "{newer} is newer than the tested component; to test it, run: cp {newer} {component}"
        ));
    }
    let home = Home::temporary()?;
    source.lay_out(&component, &home.plugins_dir())?;
    let log = Log::default();
    let heard = Arc::clone(&log);
    feed::install(move |said| {
        if let Said::Line { call, text } = said {
            heard.lock().entry(call).or_default().push(text);
        }
    });
    let upstream = Arc::new(Upstream::default());
    let egress =
        EgressOptions { resolver: Arc::new(EveryName), transport: Some(upstream.clone()), ..EgressOptions::default() };
    let bench = Workbench::start(&home, egress).await?;
    let rig = Rig { bench: &bench, upstream: &upstream, manifest: &source.manifest, log: &log };
    let reports = rig.run_all(cases).await;
    bench.stop().await;
    tell(&source.manifest, &reports?, json)
}

fn not_built(source: &Source) -> Failure {
    let component = source.component();
    let hint = match source.newer_build() {
        Some(built) => format!("cp {} {}", built.display(), component.display()),
        None => {
            "build it (cargo build --release --target wasm32-wasip2), then copy the .wasm file to this path".to_owned()
        }
    };
    Failure::new(format!("the component {} does not exist", component.display()), hint)
}

/// The server, upstream and plugin that all cases use.
struct Rig<'a> {
    bench: &'a Workbench,
    upstream: &'a Upstream,
    manifest: &'a Manifest,
    log: &'a Log,
}

impl Rig<'_> {
    async fn run_all(&self, cases: Vec<Found>) -> Result<Vec<Report>, Failure> {
        let entry = self.bench.client().get(&["api", "plugins", self.manifest.name.as_str()], &[]).await?;
        if entry["status"] != "loaded" {
            let hint = "run `monstrum plugin validate DIR` to see each error with its line";
            return Err(Failure::new("the plugin does not load", hint).because(&output::cell(&entry["error"])));
        }
        let mut reports = Vec::with_capacity(cases.len());
        for (index, Found { file, case }) in cases.into_iter().enumerate() {
            reports.push(self.run(index, file, case).await);
        }
        Ok(reports)
    }

    async fn run(&self, index: usize, file: String, case: Case) -> Report {
        let began = Instant::now();
        let redactor = Redactor::new(self.secrets(&case));
        self.upstream.play(case.http.clone());
        let answer = self.call(&format!("case {index}"), &case).await;
        let mut faults = self.upstream.finish();
        let mut log = Vec::new();
        match answer {
            Ok(answer) => {
                faults.splice(..0, case.result.faults(&answer));
                let mut lines = self.log.lock();
                log = lines.remove(answer["request_id"].as_str().unwrap_or_default()).unwrap_or_default();
            }
            Err(failure) => faults.insert(0, failure.sentence()),
        }
        let redacted = |texts: Vec<String>| texts.into_iter().map(|text| redactor.redact_text(text)).collect();
        Report {
            file,
            description: case.description,
            duration_ms: began.elapsed().as_millis(),
            faults: redacted(faults),
            log: redacted(log),
        }
    }

    /// Creates the resource, credential and binding of the case as an operator would, then calls the tool as a bot
    /// would.
    async fn call(&self, name: &str, case: &Case) -> Result<Value, Failure> {
        let (bench, resource) = (self.bench, &case.resource);
        let body = json!({
            "resource_type": self.manifest.resource_type.id,
            "name": name,
            "config": resource.config,
            "network": resource.network,
        });
        let id = bench.made(&["api", "resources"], &body).await.map_err(|error| error.about("resource"))?;
        if !resource.credential.is_empty() {
            let credential = json!({ "auth_method": self.auth_method(case), "fields": resource.credential });
            let saved = bench.client().put(&["api", "resources", &id, "credential"], &credential).await;
            saved.map_err(|error| error.about("resource.credential"))?;
        }
        let bot = bench.bot(name, &id, case.grant.binding()).await.map_err(|error| error.about("grant"))?;
        let call = json!({ "params": case.params });
        bench.client().post(&["api", "bots", &bot, "tools", &case.tool, "call"], Some(&call)).await
    }

    /// Returns the authentication method of the case. The default is the first method in the manifest whose fields a
    /// person fills in.
    fn auth_method(&self, case: &Case) -> Value {
        let by_hand = |method: &&AuthMethod| {
            matches!(method.method, AuthKind::ApiKey | AuthKind::Token | AuthKind::SshKey | AuthKind::Basic)
        };
        let methods = &self.manifest.resource_type.auth_methods;
        match &case.resource.auth_method {
            Some(method) => json!(method),
            None => json!(methods.iter().find(by_hand).or(methods.first()).map(|method| method.method)),
        }
    }

    /// Returns the secret values of the case. A field that the manifest does not declare counts as secret.
    fn secrets(&self, case: &Case) -> Vec<Secret> {
        let resource_type = &self.manifest.resource_type;
        let wanted = self.auth_method(case);
        let method = resource_type.auth_methods.iter().find(|method| json!(method.method) == wanted);
        let fields = method.map(|method| method.credential_fields(resource_type)).unwrap_or_default();
        let is_plain =
            |name: &String| fields.iter().any(|field| field.field == *name && field.kind != FieldKind::Secret);
        let secrets = case.resource.credential.iter().filter(|(name, _)| !is_plain(name));
        secrets.map(|(_, value)| Secret::new(value.clone())).collect()
    }
}

impl case::Grant {
    fn binding(&self) -> Value {
        let operations = self.allowed_operations.clone();
        // If both lists are absent, the case does not test permissions, so every operation is allowed.
        let operations = operations.or_else(|| self.allowed_tools.is_none().then(|| vec!["*".to_owned()]));
        let mut permissions = json!({});
        if let Some(operations) = operations {
            permissions["allowed_operations"] = json!(operations);
        }
        if let Some(tools) = &self.allowed_tools {
            permissions["allowed_tools"] = json!(tools);
        }
        let mut binding = json!({ "permissions": permissions, "scope_constraints": self.scope_constraints });
        if !self.limits.is_empty() {
            binding["limits"] = json!(self.limits);
        }
        binding
    }
}

impl Expected {
    /// Returns the differences between `answer` and the expected answer.
    fn faults(&self, answer: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let words = [
            ("status", Some(self.status.as_str())),
            ("code", self.code.map(|code| code.as_str())),
            ("message", self.message.as_deref()),
        ];
        for (name, expected) in words {
            let Some(expected) = expected else { continue };
            faults.extend(differences(name, &json!(expected), &answer[name], Closeness::Same));
        }
        // The message in the answer explains the unexpected status.
        if answer["status"] != self.status.as_str() && answer["message"].is_string() {
            faults.push(format!("message: {} ({})", output::cell(&answer["message"]), output::cell(&answer["code"])));
        }
        if let Some(data) = &self.data {
            faults.extend(differences("data", data, &answer["data"], Closeness::Same));
        }
        faults
    }
}

fn tell(manifest: &Manifest, reports: &[Report], json: bool) -> Result<ExitCode, Failure> {
    let failed = reports.iter().filter(|report| !report.faults.is_empty()).count();
    let code = if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if json {
        let cases: Vec<Value> = reports.iter().map(Report::json).collect();
        output::json(&json!({ "plugin": manifest.name, "passed": failed == 0, "cases": cases }))?;
        return Ok(code);
    }
    for report in reports {
        report.show()?;
    }
    let count = if reports.len() == 1 { "1 case".to_owned() } else { format!("{} cases", reports.len()) };
    if failed == 0 {
        output::line(format!("{count} passed"))?;
        return Ok(code);
    }
    let hint = "correct the plugin or the case; --json prints the report as JSON";
    Err(Failure::new(format!("{failed} of {count} failed"), hint))
}

impl Report {
    fn json(&self) -> Value {
        json!({
            "file": self.file,
            "description": self.description,
            "passed": self.faults.is_empty(),
            "duration_ms": self.duration_ms,
            "faults": self.faults,
            "log": self.log,
        })
    }

    /// Prints one line for a passed case. For a failed case, also prints the errors and the plugin's log lines.
    fn show(&self) -> Result<(), Failure> {
        let word = if self.faults.is_empty() { "ok  " } else { "FAIL" };
        let mut text = format!("{word} {} ({} ms)", self.file, self.duration_ms);
        if !self.description.is_empty() {
            text = format!("{text}: {}", self.description);
        }
        if !self.faults.is_empty() {
            text.extend(self.faults.iter().map(|fault| format!("\n       {fault}")));
            text.extend(self.log.iter().map(|line| format!("\n       log: {line}")));
        }
        output::line(output::plain(&text))
    }
}
