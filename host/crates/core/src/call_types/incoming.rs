//! The call that an entry point of the server passes to the pipeline after it has authenticated the caller.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use monstrum_sandbox::Feed;
use monstrum_types::{
    AppUser, BotId, Clock, KeyId, Params, RequestId, ResourceId, ResourceTypeId, UtcMillis, WorkspaceId,
};
use serde_json::{Map, Value};

use crate::call_types::call_labels::CallLabels;
use crate::call_types::call_secrets::SharedRedactors;
use crate::call_types::lineage::Lineage;
use crate::call_types::links::{self, Link};
use crate::call_types::progress::ProgressListener;
use crate::call_types::round::{LLM_COMPLETE, RoundExchange};
use crate::call_types::task_step::{Origin, TaskOfCall};
use crate::language::Language;

/// A call about which the host has not decided yet. There is a constructor for each kind of call. The `with_` functions
/// add optional parts.
#[derive(Clone, Debug)]
pub struct IncomingCall {
    request_id: RequestId,
    workspace: WorkspaceId,
    kind: CallKind,
    tool: String,
    params: Params,
    task_id: Option<String>,
    resource: Option<ResourceId>,
    language: Language,
    context: Value,
    key: Option<CallerKey>,
    token_user: Option<Arc<TokenUser>>,
    lineage: Option<Arc<Lineage>>,
    /// The links of a root call. The links of a child call are those of its lineage.
    links: Arc<[Link]>,
    attachments: Attachments,
    wait_for_approval: Option<Duration>,
    task: Option<TaskOfCall>,
    labels: CallLabels,
}

/// The kind of a call, which determines the code and the caller.
#[derive(Clone, Debug)]
pub enum CallKind {
    /// A tool that a bot calls.
    BotTool { bot: BotId },
    /// A function of the plugin that serves the type. Infrastructure programs call it under a root key.
    PlatformFunction { resource_type: ResourceTypeId, function: String },
    /// A check of a resource's credential that an administrator requests.
    CredentialCheck,
}

/// The API key with which a call was made. The call ends when the key is deleted or rotated.
#[derive(Clone, Copy, Debug)]
pub struct CallerKey {
    pub id: KeyId,
    /// The SHA-256 of the key's text. The id alone is not enough, because a rotated key keeps its id.
    pub hash: [u8; 32],
}

/// The user of the access token with which a call was made. The call ends when the token expires, or when the bot no
/// longer admits the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUser {
    /// The URL that identifies the issuer of the token. It is also the app of the user.
    pub issuer: Arc<str>,
    /// The id of the user at the issuer.
    pub subject: Arc<str>,
    /// The bot for which the token was issued. Its calls may call other bots.
    pub bot: BotId,
    /// The time after which the token is no longer accepted.
    pub expires_at: UtcMillis,
}

impl TokenUser {
    /// Waits until the token is no longer accepted.
    pub async fn expired(&self, clock: &dyn Clock) {
        loop {
            let left = self.expires_at.since_ms(clock.now());
            match u64::try_from(left) {
                Ok(left) if left > 0 => tokio::time::sleep(Duration::from_millis(left)).await,
                _ => return,
            }
        }
    }
}

/// The data of a built-in tool's call that is not JSON. Unlike parameters, this data is not recorded in the audit.
#[derive(Clone, Default)]
pub struct Attachments {
    /// The feed that receives the output of a running command. The output is not redacted, so only calls without
    /// secrets may have a feed.
    pub feed: Option<Feed>,
    /// The content that is written to a file.
    pub content: Option<Bytes>,
    /// The cell that receives the content of a file.
    pub read: Option<Arc<OnceLock<Vec<u8>>>>,
    /// The client that listens to the progress of the call.
    pub progress: Option<ProgressListener>,
    /// The exchange with a model, for the hidden tool `llm_complete`.
    pub round: Option<Arc<RoundExchange>>,
    /// The redactors of the task to which the call belongs. The call and the calls below it add their own, and their
    /// texts pass through all of them: a secret that one call of a task has used may appear in the answer of a later one.
    /// They take the place of the redactors of the call's lineage.
    pub task_secrets: Option<SharedRedactors>,
}

impl std::fmt::Debug for Attachments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Attachments")
    }
}

impl IncomingCall {
    /// Creates a call of a tool by a bot. The name of the tool comes from the caller, and a tool of this name need not
    /// exist.
    pub fn bot_tool(
        request_id: RequestId,
        workspace: WorkspaceId,
        bot: BotId,
        tool: String,
        params: Value,
    ) -> IncomingCall {
        IncomingCall::new(request_id, workspace, CallKind::BotTool { bot }, tool, params)
    }

    /// Creates a call of a plugin's platform function.
    pub fn platform_function(
        request_id: RequestId,
        workspace: WorkspaceId,
        resource_type: ResourceTypeId,
        function: String,
        params: Map<String, Value>,
    ) -> IncomingCall {
        let name = function_name(resource_type.as_str(), &function);
        let kind = CallKind::PlatformFunction { resource_type, function };
        IncomingCall::new(request_id, workspace, kind, name, Value::Object(params))
    }

    /// Creates a check of the credential of `resource`. The manifest declares the tool and the parameters of the check.
    pub fn credential_check(
        request_id: RequestId,
        workspace: WorkspaceId,
        resource: ResourceId,
        tool: String,
        params: Map<String, Value>,
    ) -> IncomingCall {
        let call = IncomingCall::new(request_id, workspace, CallKind::CredentialCheck, tool, Value::Object(params));
        call.with_resource(Some(resource))
    }

    fn new(request_id: RequestId, workspace: WorkspaceId, kind: CallKind, tool: String, params: Value) -> IncomingCall {
        IncomingCall {
            request_id,
            workspace,
            kind,
            tool,
            params: Params::new(params),
            task_id: None,
            resource: None,
            language: Language::default(),
            context: Value::Object(Map::new()),
            key: None,
            token_user: None,
            lineage: None,
            links: Arc::default(),
            attachments: Attachments::default(),
            wait_for_approval: None,
            task: None,
            labels: CallLabels::unknown(),
        }
    }

    /// Sets the task to which the call belongs.
    #[must_use]
    pub fn with_task_id(self, task_id: Option<String>) -> IncomingCall {
        IncomingCall { task_id, ..self }
    }

    /// Sets the resource of the call. A bot with several resources of a type must name one.
    #[must_use]
    pub fn with_resource(self, resource: Option<ResourceId>) -> IncomingCall {
        IncomingCall { resource, ..self }
    }

    /// Sets the caller's preferred language for the answer.
    #[must_use]
    pub fn with_language(self, language: Language) -> IncomingCall {
        IncomingCall { language, ..self }
    }

    /// Sets the context that the plugin receives in addition to the parameters. The context is a JSON object, which
    /// contains for example the conversation of the call.
    #[must_use]
    pub fn with_context(self, context: Value) -> IncomingCall {
        IncomingCall { context, ..self }
    }

    /// Sets the key with which the call was made.
    #[must_use]
    pub fn with_key(self, key: CallerKey) -> IncomingCall {
        IncomingCall { key: Some(key), ..self }
    }

    /// Sets the user of the access token with which the call was made.
    #[must_use]
    pub fn with_token_user(self, token_user: Option<Arc<TokenUser>>) -> IncomingCall {
        IncomingCall { token_user, ..self }
    }

    /// Sets the links under which the bot of this root call acts.
    #[must_use]
    pub fn with_links(self, links: Arc<[Link]>) -> IncomingCall {
        IncomingCall { links, ..self }
    }

    /// Sets the attachments, which are the data of the call that is not JSON.
    #[must_use]
    pub fn with_attachments(self, attachments: Attachments) -> IncomingCall {
        IncomingCall { attachments, ..self }
    }

    /// Sets the time for which the host holds the call if a person must approve it.
    #[must_use]
    pub fn with_wait_for_approval(self, wait: Option<Duration>) -> IncomingCall {
        IncomingCall { wait_for_approval: wait, ..self }
    }

    /// Sets the task that the runner carries out with this call.
    #[must_use]
    pub fn with_task(self, task: TaskOfCall) -> IncomingCall {
        IncomingCall { task: Some(task), ..self }
    }

    /// Sets the labels of what the caller has read. Without this, the call carries every label.
    #[must_use]
    pub fn with_labels(self, labels: CallLabels) -> IncomingCall {
        IncomingCall { labels, ..self }
    }

    /// Returns a copy from which child calls are made. The copy has no parameters and no attachments.
    #[must_use]
    pub fn without_params(&self) -> IncomingCall {
        // A clone shares the parameters and the attachments, so it costs little to replace them.
        let (params, attachments) = (Params::new(Value::Null), Attachments::default());
        IncomingCall { params, attachments, wait_for_approval: None, ..self.clone() }
    }

    /// Creates a child call of a tool by `bot`. The child call has the same task and the same key.
    #[must_use]
    pub fn child(&self, bot: BotId, lineage: Arc<Lineage>, tool: String, params: Value) -> IncomingCall {
        IncomingCall {
            task_id: Some(self.task_or_request_id()),
            language: self.language.clone(),
            context: self.context.clone(),
            key: self.key,
            token_user: self.token_user.clone(),
            lineage: Some(lineage),
            task: self.task.clone().map(|task| TaskOfCall { step: None, ..task }),
            labels: self.labels.of_child(),
            ..IncomingCall::bot_tool(RequestId::new(), self.workspace, bot, tool, params)
        }
    }

    pub fn request_id(&self) -> RequestId {
        self.request_id
    }

    pub fn workspace(&self) -> WorkspaceId {
        self.workspace
    }

    pub fn kind(&self) -> &CallKind {
        &self.kind
    }

    /// Returns the calling bot, or `None` for a call of a platform function or a credential check.
    pub fn bot(&self) -> Option<BotId> {
        match self.kind {
            CallKind::BotTool { bot } => Some(bot),
            CallKind::PlatformFunction { .. } | CallKind::CredentialCheck => None,
        }
    }

    /// Returns the tool name from the caller. A tool of this name need not exist.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Returns the task that the caller named.
    pub fn task_id(&self) -> Option<&str> {
        self.task_id.as_deref()
    }

    /// Returns the task of the call, or its request id if the caller named no task.
    pub fn task_or_request_id(&self) -> String {
        self.task_id.clone().unwrap_or_else(|| self.request_id.to_string())
    }

    pub fn resource(&self) -> Option<ResourceId> {
        self.resource
    }

    pub fn language(&self) -> &Language {
        &self.language
    }

    pub fn context(&self) -> &Value {
        &self.context
    }

    pub fn key(&self) -> Option<&CallerKey> {
        self.key.as_ref()
    }

    /// Returns the user of the access token with which the call was made.
    pub fn token_user(&self) -> Option<&Arc<TokenUser>> {
        self.token_user.as_ref()
    }

    /// Returns the ancestors of the call, or `None` for a root call.
    pub fn lineage(&self) -> Option<&Arc<Lineage>> {
        self.lineage.as_ref()
    }

    /// Returns the links under which the bot acts, outermost first. The list is empty if the bot acts for itself.
    pub fn links(&self) -> &[Link] {
        self.lineage.as_ref().map_or(&self.links, |lineage| &lineage.links)
    }

    /// Returns the links as JSON for the audit, or `None` if the bot acts for itself.
    pub fn delegation(&self) -> Option<String> {
        links::recorded(self.links())
    }

    /// Returns the redactors that the call shares with other calls: those of its task or of its root call.
    pub fn shared_redactors(&self) -> Option<SharedRedactors> {
        let of_lineage = || self.lineage.as_ref().map(|lineage| lineage.secrets.clone());
        self.attachments.task_secrets.clone().or_else(of_lineage)
    }

    pub fn attachments(&self) -> &Attachments {
        &self.attachments
    }

    /// Returns the time for which the host holds the call if a person must approve it.
    pub fn wait_for_approval(&self) -> Option<Duration> {
        self.wait_for_approval
    }

    /// Returns the app and the user on whose behalf the call is made: the user of the access token, or the user of the
    /// conversation that the caller named. Parameters, plugins and models cannot change the user.
    pub fn user(&self) -> Option<(&str, &str)> {
        if let Some(user) = &self.token_user {
            return Some((&user.issuer, &user.subject));
        }
        let chat = self.context.get("chat")?;
        Some((chat.get("app_id")?.as_str()?, chat.get("user_id")?.as_str()?))
    }

    /// Returns the user on whose behalf the call is made.
    pub fn app_user(&self) -> Option<AppUser> {
        self.user().map(|(app, user)| AppUser { app_id: app.to_owned(), user_id: user.to_owned() })
    }

    /// Returns the task that the runner carries out with this call, or with an ancestor of it.
    pub fn task(&self) -> Option<&TaskOfCall> {
        self.task.as_ref()
    }

    /// Returns the task or the run for which the call is made.
    pub fn origin(&self) -> Option<Origin> {
        self.task.as_ref().map(|task| task.lease.origin())
    }

    /// Returns the labels that the call carries, and those of the results that calls below it have read.
    pub fn labels(&self) -> &CallLabels {
        &self.labels
    }

    /// Returns the number of ancestors of the call, which is 0 for a root call.
    pub fn depth(&self) -> u8 {
        self.lineage.as_ref().map_or(0, |lineage| lineage.depth)
    }

    /// Returns whether the call may use the hidden tool of this name: a round with a model has its exchange, and the other
    /// hidden tools belong to the import `sandbox`.
    pub fn may_use_hidden(&self, tool: &str) -> bool {
        if tool == LLM_COMPLETE { self.attachments.round.is_some() } else { self.is_of_sandbox_import() }
    }

    /// Returns whether a plugin has made the call through the import `sandbox`.
    pub fn is_of_sandbox_import(&self) -> bool {
        self.lineage.as_ref().is_some_and(|lineage| lineage.is_of_sandbox_import())
    }
}

/// Returns the name of a platform function in the audit.
pub fn function_name(resource_type: &str, function: &str) -> String {
    format!("platform.{resource_type}.{function}")
}
