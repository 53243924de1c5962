//! The implementation of rmcp's handler over an [`Offer`].

use std::borrow::Cow;

use futures::StreamExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, CustomRequest, CustomResult, Implementation,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, RequestMetaObject, ServerCapabilities, ServerConfig,
    SubscriptionFilter,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::answer;
use crate::elicitation::{self, Ask};
use crate::listed;
use crate::message::WAIT_FOR_APPROVAL;
use crate::offer::{Offer, OfferedPage, Refusal, ToolCall};

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

/// What a request says about its client.
pub(crate) struct Client {
    /// The revision of the request.
    pub version: Option<ProtocolVersion>,
    pub capabilities: Option<ClientCapabilities>,
    pub meta: RequestMetaObject,
}

impl Client {
    /// Returns whether the client speaks a revision before 2026-07-28.
    pub(crate) fn is_legacy(&self) -> bool {
        let version = self.version.as_ref();
        version.is_none_or(|version| version.as_str() < ProtocolVersion::V_2026_07_28.as_str())
    }
}

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

    /// Lists a page of the tools. A cursor is the name of the last tool of the previous page, so that a change of the
    /// list between two pages neither repeats nor skips other tools.
    pub(crate) async fn page(&self, cursor: Option<String>) -> Result<OfferedPage, ErrorData> {
        self.offer.list(cursor, PAGE_TOOLS_MAX).await.map_err(|error| self.failure(error))
    }

    /// Calls a tool. Dropping the future cancels the call.
    pub(crate) async fn call(
        &self,
        params: CallToolRequestParams,
        client: Client,
    ) -> Result<CallToolResponse, ErrorData> {
        let is_legacy = client.is_legacy();
        let Client { version, capabilities, meta } = client;
        let ask = Ask::of(version.as_ref(), capabilities.as_ref(), self.opens_urls);
        let tool = params.name.into_owned();
        let retry = elicitation::retry(params.request_state, params.input_responses.as_ref());
        if retry.is_some() && is_legacy {
            return Err(ErrorData::invalid_params("`requestState` requires revision 2026-07-28", None));
        }
        let call = ToolCall {
            tool: tool.clone(),
            arguments: params.arguments.unwrap_or_default(),
            task_id: task_id(&meta)?,
            chat: meta.get("monstrum/chat").cloned(),
            wait_for_approval_s: wait_for_approval_s(&meta)?,
            trace_parent: meta.get_traceparent().map(str::to_owned),
            takes_request_state: ask == Ask::ByResult,
            retry,
            progress: self.progress.clone(),
        };
        match self.offer.call(call).await {
            Ok(outcome) => match elicitation::asked(&tool, &outcome, ask) {
                Some(asked) => asked,
                None => Ok(answer::result(&outcome, is_legacy).into()),
            },
            Err(Refusal::Params(message)) => Err(ErrorData::invalid_params(message, None)),
            Err(Refusal::Failed(error)) => Err(self.failure(error)),
        }
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
        let page = self.page(request.and_then(|request| request.cursor)).await?;
        Ok(listed::by_rmcp(&page))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (version, capabilities) = (context.protocol_version(), context.client_capabilities());
        let client = Client { version, capabilities, meta: context.meta };
        tokio::select! {
            response = self.call(request, client) => response,
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the call was cancelled", None)),
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
