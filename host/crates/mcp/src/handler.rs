//! The implementation of rmcp's handler over an [`Offer`].

use std::borrow::Cow;
use std::sync::Arc;

use futures::StreamExt as _;
use monstrum_manifest::Effect;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, Implementation, ListToolsResult,
    MetaObject, PaginatedRequestParams, ProtocolVersion, RequestMetaObject, ServerCapabilities, ServerConfig,
    SubscriptionFilter, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::answer;
use crate::elicitation::{self, Ask};
use crate::message::WAIT_FOR_APPROVAL;
use crate::offer::{Offer, OfferedTool, Refusal, ToolCall};
use crate::schema::without_headers;

/// The revisions that this server speaks, from the oldest.
pub(crate) const REVISIONS: [ProtocolVersion; 4] = [
    ProtocolVersion::V_2025_03_26,
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_11_25,
    ProtocolVersion::V_2026_07_28,
];
static SUPPORTED: [ProtocolVersion; 4] = REVISIONS;

/// The maximum number of tools on a page of `tools/list`. Their schemas are usually some hundred KiB.
const PAGE_TOOLS_MAX: usize = 200;
/// How long a client may use a list without asking again.
const LIST_TTL_MS: u64 = 5_000;

/// The handler of one request.
pub(crate) struct Handler<O: Offer> {
    offer: O,
    /// Receives the error of an operation that could not run.
    failed: mpsc::UnboundedSender<O::Error>,
    /// Whether the client said in `initialize` that it can open a URL for its user.
    opens_urls: bool,
    /// Receives messages about the progress of a call, if the client has asked for them.
    progress: Option<mpsc::Sender<String>>,
}

impl<O: Offer> Clone for Handler<O> {
    fn clone(&self) -> Self {
        let (offer, failed, progress) = (self.offer.clone(), self.failed.clone(), self.progress.clone());
        Handler { offer, failed, opens_urls: self.opens_urls, progress }
    }
}

impl<O: Offer> Handler<O> {
    pub(crate) fn new(
        offer: O,
        failed: mpsc::UnboundedSender<O::Error>,
        opens_urls: bool,
        progress: Option<mpsc::Sender<String>>,
    ) -> Self {
        Handler { offer, failed, opens_urls, progress }
    }

    /// Hands the error to the gateway, and returns it for a client whose response has already begun.
    fn failure(&self, error: O::Error) -> ErrorData {
        let told = ErrorData::internal_error(error.to_string(), None);
        // The receiver is gone only if the client has disconnected.
        drop(self.failed.send(error));
        told
    }
}

impl<O: Offer> ServerHandler for Handler<O> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        let implementation = Implementation::new("monstrum", env!("CARGO_PKG_VERSION")).with_title(self.offer.title());
        ServerConfig::new(capabilities).with_server_info(implementation)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(&SUPPORTED)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = self.offer.list().await.map_err(|error| self.failure(error))?;
        // A cursor is the name of the last tool of the previous page, so that a change of the list between two pages
        // neither repeats nor skips other tools.
        let after = request.and_then(|request| request.cursor);
        let mut rest = tools.into_iter().filter(|tool| after.as_ref().is_none_or(|after| tool.name > *after));
        let page: Vec<OfferedTool> = rest.by_ref().take(PAGE_TOOLS_MAX).collect();
        let next_cursor = rest.next().and_then(|_| page.last()).map(|last| last.name.clone());
        let mut list = ListToolsResult::with_all_items(page.iter().map(listed).collect())
            .with_ttl_ms(LIST_TTL_MS)
            .with_cache_scope(CacheScope::Private);
        list.next_cursor = next_cursor;
        Ok(list)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let version = context.protocol_version();
        let is_legacy =
            version.as_ref().is_none_or(|version| version.as_str() < ProtocolVersion::V_2026_07_28.as_str());
        let ask = Ask::of(version.as_ref(), context.client_capabilities().as_ref(), self.opens_urls);
        let tool = request.name.into_owned();
        let retry = elicitation::retry(request.request_state, request.input_responses.as_ref());
        if retry.is_some() && is_legacy {
            return Err(ErrorData::invalid_params("`requestState` requires revision 2026-07-28", None));
        }
        let call = ToolCall {
            tool: tool.clone(),
            arguments: request.arguments.unwrap_or_default(),
            task_id: task_id(&context.meta)?,
            chat: context.meta.get("monstrum/chat").cloned(),
            wait_for_approval_s: wait_for_approval_s(&context.meta)?,
            trace_parent: context.meta.get_traceparent().map(str::to_owned),
            takes_request_state: ask == Ask::ByResult,
            retry,
            progress: self.progress.clone(),
        };
        let outcome = tokio::select! {
            outcome = self.offer.call(call) => outcome,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("the call was cancelled", None)),
        };
        match outcome {
            Ok(outcome) => match elicitation::asked(&tool, &outcome, ask) {
                Some(asked) => asked,
                None => Ok(answer::result(&outcome, is_legacy).into()),
            },
            Err(Refusal::Params(message)) => Err(ErrorData::invalid_params(message, None)),
            Err(Refusal::Failed(error)) => Err(self.failure(error)),
        }
    }

    fn accepted_subscription_filter(&self, _: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(SubscriptionFilter::builder().tools_list_changed().build())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.offer.changes();
        let is_wanted = context.accepted().tools_list_changed == Some(true);
        loop {
            let change = tokio::select! {
                change = changes.next() => change,
                () = context.cancelled() => return Ok(()),
            };
            // An error means that the client has disconnected.
            if change.is_none() || (is_wanted && context.sink().notify_tool_list_changed().await.is_err()) {
                return Ok(());
            }
        }
    }

    /// Answers requests that match no known method. A known method ends here if its parameters have a wrong shape.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let known = ["initialize", "server/discover", "tools/list", "tools/call", "subscriptions/listen", "ping"];
        if known.contains(&request.method.as_str()) {
            let message = format!("the parameters of `{}` do not have the required form", request.method);
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(ErrorData::new(rmcp::model::ErrorCode::METHOD_NOT_FOUND, request.method, None))
    }
}

fn task_id(meta: &RequestMetaObject) -> Result<Option<String>, ErrorData> {
    match meta.get("monstrum/task_id") {
        None => Ok(None),
        Some(Value::String(id)) => Ok(Some(id.clone())),
        Some(_) => Err(ErrorData::invalid_params("`monstrum/task_id` in `_meta` must be a string", None)),
    }
}

fn wait_for_approval_s(meta: &RequestMetaObject) -> Result<Option<u32>, ErrorData> {
    let Some(value) = meta.get(WAIT_FOR_APPROVAL) else { return Ok(None) };
    match value.as_u64().and_then(|seconds| u32::try_from(seconds).ok()) {
        Some(seconds) => Ok(Some(seconds)),
        None => {
            let message = format!("`{WAIT_FOR_APPROVAL}` in `_meta` must be a whole number of seconds");
            Err(ErrorData::invalid_params(message, None))
        }
    }
}

fn listed(tool: &OfferedTool) -> Tool {
    let mut input = object(&tool.input_schema);
    without_headers(&mut input);
    let description = Some(Cow::Owned(tool.description.clone()));
    let mut listed = Tool::new_with_raw(tool.name.clone(), description, Arc::new(input));
    listed.output_schema = tool.output_schema.as_ref().map(|schema| Arc::new(object(schema)));
    listed.annotations = Some(match tool.effect {
        Effect::Read => ToolAnnotations::new().read_only(true),
        Effect::Idempotent => ToolAnnotations::new().idempotent(true),
        Effect::Write => ToolAnnotations::new().destructive(true),
    });
    let mut meta = MetaObject::new();
    meta.insert("monstrum/operation".to_owned(), Value::String(tool.operation.clone()));
    meta.insert("monstrum/asks".to_owned(), Value::Bool(tool.asks));
    listed.with_meta(meta)
}

fn object(schema: &monstrum_types::JsonText) -> Map<String, Value> {
    match schema.value() {
        Value::Object(object) => object,
        // The manifest's parser accepts only objects as schemas.
        _ => Map::new(),
    }
}
