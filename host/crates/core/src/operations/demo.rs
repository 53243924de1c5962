//! The demo: the bundled plugin `notebook`, a resource for an upstream of this server, and a bot that may use one
//! notebook. Each step is an operation of its own and can be repeated. The interface runs the upstream.
//!
//! A record in the data folder names the objects of the demo. Objects that a person has made are never touched, even if
//! they have the same names: the demo then takes other names.

mod record;

use std::collections::BTreeMap;
use std::sync::Arc;

use monstrum_api::bindings::{NewBinding, Permissions};
use monstrum_api::bots::NewBot;
use monstrum_api::demo::{
    Demo, DemoBot, DemoCall, DemoResource, DemoStep, DemoStepState, DemoStepStatus, DemoUnavailable,
};
use monstrum_api::resources::{Network, NewResource, ResourceChange};
use monstrum_bundled::{Bundled, NOTEBOOK};
use monstrum_store::{BindingRow, BotRow, Page, ResourceRow};
use monstrum_types::{BotId, Digest, RequestId, ResourceId, Secret, with_causes};
use serde_json::{Map, Value, json};

use super::change::Change;
use super::credentials::{NewCredential, credential_of};
use super::plugins::view;
use super::{
    Caller, Expected, OperationError, Operator, Replacing, Root, bindings, bots, credentials, packages, resources,
};
use crate::app::App;
use crate::plugins::bundled::{BundledError, digest};
use crate::plugins::{Entry, InstallError, LoadError};
use record::Record;

/// The notebook that the bot may use, and a notebook that it may not use.
const TEAM: &str = "team";
const BOARD: &str = "board";
/// The resource type and the scope dimension of the plugin.
const RESOURCE_TYPE: &str = "notebook";
const NOTEBOOKS: &str = "notebooks";
/// The only address that the resource may connect to, apart from public addresses.
const LOOPBACK: &str = "127.0.0.1/32";
/// The names of the bot and of the resource, if no object of the workspace has them.
const BOT_NAME: &str = "demo";
const RESOURCE_NAME: &str = "demo-notebook";
/// The maximum number of names that are tried for an object.
const NAMES_MAX: u32 = 10;

/// The upstream of the demo while it runs.
pub struct Upstream {
    pub url: String,
    /// The token that the upstream requires. It changes at each start.
    pub token: Secret,
}

/// The demo as it is in the workspace of the caller.
struct Found {
    record: Record,
    /// Whether the record was on disk.
    is_recorded: bool,
    /// Whether the plugin serves in a version that the demo can use.
    has_plugin: bool,
    resource: Option<ResourceRow>,
    has_credential: bool,
    bot: Option<BotRow>,
    binding: Option<BindingRow>,
}

/// Shows the demo.
pub async fn show(app: &App, caller: &Root, upstream: Option<&Upstream>) -> Result<Demo, OperationError> {
    match read(app, caller).await? {
        Ok(found) => shown(app, caller, Some(found), None, upstream).await,
        Err(unavailable) => shown(app, caller, None, Some(unavailable), upstream).await,
    }
}

/// Makes a step. A step that is done is not made again. The caller of this function must not make two steps at the same
/// time.
pub async fn make(
    app: &Arc<App>,
    caller: &Root,
    step: DemoStep,
    upstream: Option<&Upstream>,
) -> Result<Demo, OperationError> {
    let mut found = read(app, caller).await?.map_err(refusal)?;
    // The steps are on the heap, because the sum of their operations does not fit the stack of a worker thread.
    match step {
        DemoStep::Plugin => Box::pin(set_up(app, caller, &mut found, running(upstream)?)).await?,
        DemoStep::Bot => Box::pin(create_bot(app, caller, &mut found)).await?,
        DemoStep::Credential => Box::pin(seal(app, caller, &found, running(upstream)?)).await?,
        DemoStep::Access => Box::pin(bind(app, caller, &found)).await?,
    }
    show(app, caller, upstream).await
}

/// Removes the demo. If an object cannot be removed, it stays in the record, and the removal can be repeated.
pub async fn remove(app: &Arc<App>, caller: &Root) -> Result<(), OperationError> {
    let found = match read(app, caller).await? {
        Ok(found) if found.is_recorded => found,
        Ok(_) => return Ok(()),
        Err(unavailable) => return Err(refusal(unavailable)),
    };
    let mut record = found.record;
    if let Some(bot) = found.bot {
        Box::pin(bots::delete(app, &anew(caller)?, bot.id, Expected::Any)).await?;
        record.bot = None;
        record.write(app).await?;
    }
    if let Some(resource) = found.resource {
        let deleted = Box::pin(resources::delete(app, &anew(caller)?, resource.id, Expected::Any)).await;
        deleted.map_err(|error| still_used(error, &resource.name))?;
        record.resource = None;
        record.write(app).await?;
    }
    let installed = NOTEBOOK.and_then(|notebook| app.plugins.entry(notebook.name));
    if let Some((entry, digest)) = installed.zip(record.plugin.as_ref())
        && is_version(&entry, digest)
    {
        Box::pin(packages::uninstall(app, &anew(caller)?, entry.name)).await?;
    }
    Record::delete(app).await
}

fn still_used(error: OperationError, name: &str) -> OperationError {
    match error {
        OperationError::Conflict(_) => OperationError::conflict(format!(
            "the resource `{name}` of the demo is bound to another bot; delete this binding first"
        )),
        other => other,
    }
}

/// Reads the demo. Returns the reason as an error if the workspace cannot have it.
async fn read(app: &App, caller: &Root) -> Result<Result<Found, DemoUnavailable>, OperationError> {
    let Some(notebook) = NOTEBOOK else { return Ok(Err(DemoUnavailable::NotBuilt)) };
    if app.store.is_shared() {
        return Ok(Err(DemoUnavailable::SharedDatabase));
    }
    let workspace = caller.workspace;
    let stored = Record::read(app).await?;
    let is_recorded = stored.is_some();
    let record = match stored {
        None => Record::new(workspace),
        Some(record) if record.workspace == workspace => record,
        Some(record) if app.store.workspace(record.workspace).await?.is_some() => {
            return Ok(Err(DemoUnavailable::OtherWorkspace));
        }
        // The bot and the resource were deleted with their workspace.
        Some(record) => Record { plugin: record.plugin, ..Record::new(workspace) },
    };
    let mut found = Found {
        has_plugin: serves(app, &notebook, &record),
        record,
        is_recorded,
        resource: None,
        has_credential: false,
        bot: None,
        binding: None,
    };
    if let Some(id) = found.record.resource {
        found.resource = app.store.resource(workspace, id).await?;
    }
    if let Some(id) = found.record.bot {
        found.bot = app.store.bot(workspace, id).await?;
    }
    if let Some(resource) = &found.resource {
        let credential = credential_of(app, resource).await?;
        found.has_credential = credential.is_some_and(|credential| credential.status == "ready");
    }
    if let (Some(bot), Some(resource)) = (&found.bot, &found.resource) {
        let listed = app.store.bindings(workspace, bot.id, &Page::first(monstrum_store::PAGE_ITEMS_MAX)).await?;
        found.binding = listed.items.into_iter().find(|binding| binding.resource_id == resource.id);
    }
    Ok(Ok(found))
}

/// Returns whether the plugin serves, in the bundled version or in the version that the demo has installed.
fn serves(app: &App, notebook: &Bundled, record: &Record) -> bool {
    let serving = app.plugins.entry(notebook.name).and_then(|entry| entry.serving);
    let serving = serving.as_ref().and_then(|plugin| plugin.digest());
    serving.is_some_and(|serving| *serving == digest(notebook) || record.plugin.as_ref() == Some(serving))
}

/// Returns whether the installed plugin has a version with this component.
fn is_version(entry: &Entry, digest: &Digest) -> bool {
    let pending = entry.pending.as_ref().map(|pending| pending.digest());
    let serving = entry.serving.as_ref().and_then(|plugin| plugin.digest());
    pending == Some(digest) || serving == Some(digest)
}

fn refusal(unavailable: DemoUnavailable) -> OperationError {
    OperationError::conflict(match unavailable {
        DemoUnavailable::NotBuilt => "this program was built without the demo",
        DemoUnavailable::SharedDatabase => {
            "the demo needs a database that no other host uses, because other hosts cannot reach its upstream"
        }
        DemoUnavailable::OtherWorkspace => "the demo is in another workspace; remove it there first",
    })
}

fn running(upstream: Option<&Upstream>) -> Result<&Upstream, OperationError> {
    upstream
        .ok_or_else(|| OperationError::conflict("the upstream of the demo does not run; make the step `plugin` first"))
}

/// Returns the caller with a right and a new request id, because the audit distinguishes changes by id.
fn anew<R: TryFrom<Caller, Error = OperationError>>(caller: &Root) -> Result<R, OperationError> {
    R::try_from(Caller { request: RequestId::new(), ..Caller::clone(caller) })
}

/// Installs the plugin if it does not serve. Then creates the resource, or changes it if the upstream has another URL.
async fn set_up(app: &App, caller: &Root, found: &mut Found, upstream: &Upstream) -> Result<(), OperationError> {
    if !found.has_plugin {
        Box::pin(install(app, caller, found)).await?;
    }
    let config = Map::from_iter([("api_base".to_owned(), json!(upstream.url))]);
    let network = || Network { allow_addresses: vec![LOOPBACK.to_owned()], allow_http: true };
    let Some(resource) = &found.resource else {
        let id = ResourceId::new();
        found.record.resource = Some(id);
        found.record.write(app).await?;
        let mut created = Ok(());
        for name in names(RESOURCE_NAME) {
            let resource_type = RESOURCE_TYPE.parse().map_err(OperationError::internal)?;
            let (config, labels) = (config.clone(), Vec::new());
            let new = NewResource { resource_type, name, config, network: network(), labels };
            created = Box::pin(resources::create_as(app, &anew(caller)?, id, new)).await.map(drop);
            if !is_taken(&created) {
                break;
            }
        }
        return created;
    };
    if resource.config.get("api_base") != Some(&json!(upstream.url)) {
        let change =
            ResourceChange { name: None, config: Some(Some(config)), network: Some(Some(network())), labels: None };
        Box::pin(resources::update(app, &anew(caller)?, resource.id, Expected::Any, change)).await?;
    }
    // The upstream has a new token since its last start.
    if app.store.credential(caller.workspace, resource.id).await?.is_some() {
        Box::pin(seal(app, caller, found, upstream)).await?;
    }
    Ok(())
}

async fn install(app: &App, caller: &Root, found: &mut Found) -> Result<(), OperationError> {
    let notebook = NOTEBOOK.ok_or_else(|| refusal(DemoUnavailable::NotBuilt))?;
    let digest = digest(&notebook);
    let before = app.plugins.entry(notebook.name);
    if before.as_ref().is_some_and(|entry| is_version(entry, &digest)) {
        return Err(waits(notebook.name));
    }
    if app.plugins.has(notebook.name) {
        return Err(OperationError::conflict(BundledError::Taken(notebook.name).to_string()));
    }
    found.record.plugin = Some(digest.clone());
    found.record.write(app).await?;
    let change = Change::new("plugin.install", notebook.name).from(&before.map(view));
    let change = change.to(&json!({ "bundled": notebook.name, "digest": digest }));
    let work = async { app.plugins.install_bundled(&notebook).await.map_err(of_install) };
    let caller: Root = anew(caller)?;
    let entry = change.apply(app, &caller, work).await?;
    if entry.serving.is_none() { Err(waits(notebook.name)) } else { Ok(()) }
}

fn waits(name: &str) -> OperationError {
    OperationError::conflict(format!(
        "the plugin `{name}` is installed but does not serve; look at the page of the plugin, and approve its version"
    ))
}

fn of_install(error: BundledError) -> OperationError {
    match error {
        BundledError::Taken(_) => OperationError::conflict(error.to_string()),
        BundledError::Install(InstallError::Load(LoadError::Store(error))) => error.into(),
        BundledError::Install(InstallError::Older { .. }) => OperationError::conflict(error.to_string()),
        // An operator can fix the cause, such as a plugins folder that cannot be written. The message has no secret.
        BundledError::Install(InstallError::Stage(_)) => OperationError::conflict(with_causes(&error)),
        BundledError::Install(_) | BundledError::Manifest(_) => OperationError::internal(error),
    }
}

async fn create_bot(app: &App, caller: &Root, found: &mut Found) -> Result<(), OperationError> {
    if found.bot.is_some() {
        return Ok(());
    }
    let id = BotId::new();
    found.record.bot = Some(id);
    found.record.write(app).await?;
    let mut created = Ok(());
    for name in names(BOT_NAME) {
        let new = NewBot {
            name,
            description: format!("The bot of the demo, which may use the notebook `{TEAM}`."),
            system_prompt: String::new(),
            model: None,
            use_agent_sandbox: false,
            monthly_token_budget: None,
            gates: Vec::new(),
            mcp_subjects: Vec::new(),
            model_fallbacks: Vec::new(),
            task_limits: None,
            session_idle_s: None,
            client_tools: false,
        };
        created = bots::create_as(app, &anew(caller)?, id, new).await.map(drop);
        if !is_taken(&created) {
            break;
        }
    }
    created
}

/// Returns the names to try for an object, because another object of the workspace may have the first ones.
fn names(first: &str) -> impl Iterator<Item = String> {
    let further = (2..=NAMES_MAX).map(move |number| format!("{first}-{number}"));
    std::iter::once(first.to_owned()).chain(further)
}

fn is_taken(created: &Result<(), OperationError>) -> bool {
    matches!(created, Err(OperationError::Conflict(_)))
}

/// Saves the token of the upstream as the credential of the resource.
async fn seal(app: &App, caller: &Root, found: &Found, upstream: &Upstream) -> Result<(), OperationError> {
    let Some(resource) = &found.resource else { return Err(missing("plugin")) };
    let fields = BTreeMap::from([("access_token".to_owned(), upstream.token.clone())]);
    let caller: Operator = anew(caller)?;
    let given = NewCredential::new("token", fields);
    credentials::save(app, &caller, resource.id, Replacing::default(), given).await.map(drop)
}

async fn bind(app: &App, caller: &Root, found: &Found) -> Result<(), OperationError> {
    let Some(resource) = &found.resource else { return Err(missing("plugin")) };
    let Some(bot) = &found.bot else { return Err(missing("bot")) };
    if found.binding.is_some() {
        return Ok(());
    }
    let operations = ["page.read", "page.write"].map(str::to_owned).to_vec();
    let new = NewBinding {
        resource_id: resource.id,
        role_id: None,
        permissions: Some(Permissions { allowed_operations: Some(operations), allowed_tools: None }),
        scope_constraints: BTreeMap::from([(NOTEBOOKS.to_owned(), vec![TEAM.to_owned()])]),
        delegate: None,
        gates: Vec::new(),
        allow_calls: Vec::new(),
        allow_subscribe: false,
        limits: None,
        calls_per_minute: None,
        enabled: true,
        expires_at: None,
    };
    bindings::create(app, &anew(caller)?, bot.id, new).await.map(drop)
}

fn missing(step: &str) -> OperationError {
    OperationError::conflict(format!("make the step `{step}` first"))
}

async fn shown(
    app: &App,
    caller: &Root,
    found: Option<Found>,
    unavailable: Option<DemoUnavailable>,
    upstream: Option<&Upstream>,
) -> Result<Demo, OperationError> {
    let first = Page::first(1);
    let has_bots = !app.store.bots(caller.workspace, &first).await?.items.is_empty();
    let has_resources = !app.store.resources(caller.workspace, &Page::first(1)).await?.items.is_empty();
    let steps = found.as_ref().map_or([DemoStepStatus::Todo; 4], |found| found.steps(upstream));
    let names = [DemoStep::Plugin, DemoStep::Bot, DemoStep::Credential, DemoStep::Access];
    let steps = names.into_iter().zip(steps).map(|(step, status)| DemoStepState { step, status });
    let is_installed = found.as_ref().is_some_and(|found| found.is_recorded);
    let (resource, bot, binding) = match found {
        Some(found) => (found.resource, found.bot, found.binding),
        None => (None, None, None),
    };
    Ok(Demo {
        is_empty: !has_bots && !has_resources,
        is_installed,
        steps: steps.collect(),
        upstream: upstream.filter(|_| unavailable.is_none()).map(|upstream| upstream.url.clone()),
        unavailable,
        resource: resource.map(|row| DemoResource { id: row.id, name: row.name }),
        bot: bot.map(|row| DemoBot { id: row.id, name: row.name }),
        binding_id: binding.map(|row| row.id),
        inside: call(TEAM, "welcome"),
        outside: call(BOARD, "minutes"),
    })
}

impl Found {
    /// Returns the states of the four steps.
    fn steps(&self, upstream: Option<&Upstream>) -> [DemoStepStatus; 4] {
        let done = |is_done: bool| if is_done { DemoStepStatus::Done } else { DemoStepStatus::Todo };
        let reaches = |resource: &ResourceRow| {
            upstream.is_some_and(|upstream| resource.config.get("api_base") == Some(&json!(upstream.url)))
        };
        let plugin = match &self.resource {
            Some(resource) if self.has_plugin && reaches(resource) => DemoStepStatus::Done,
            Some(_) if self.has_plugin => DemoStepStatus::Stopped,
            Some(_) | None => DemoStepStatus::Todo,
        };
        [plugin, done(self.bot.is_some()), done(self.has_credential), done(self.binding.is_some())]
    }
}

fn call(notebook: &str, page: &str) -> DemoCall {
    let params = [("notebook", notebook), ("page", page)];
    let params = params.map(|(name, value)| (name.to_owned(), Value::from(value)));
    DemoCall { tool: "notebook_read".to_owned(), params: Map::from_iter(params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_to_try_are_limited() {
        let names: Vec<String> = names("demo").collect();
        assert_eq!(names.len(), 10);
        assert_eq!((names[0].as_str(), names[1].as_str(), names[9].as_str()), ("demo", "demo-2", "demo-10"));
    }

    #[test]
    fn the_calls_differ_in_their_notebook() {
        let [inside, outside] = [call(TEAM, "welcome"), call(BOARD, "minutes")];
        assert_eq!((&inside.params["notebook"], &outside.params["notebook"]), (&json!("team"), &json!("board")));
        assert_eq!(inside.tool, outside.tool);
    }
}
