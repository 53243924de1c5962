//! The host functions that components import. This module only converts types and counts calls. The call's
//! [`HostCalls`] implementation does the work.

use futures::future::BoxFuture;
use monstrum_types::{
    Code, Failure, FailureCode, HttpRequest, HttpResponse, JsonText, PluginSubscription, SandboxEntry,
    SandboxEntryKind, SandboxOutput, ToolFailure,
};

use crate::bindings::{WitFailure, credentials, events, http, log, sandbox, tools, types};
use crate::log::{LogLevel, LogSource};
use crate::store::State;

/// The maximum number of host calls of one call. `log.write` and `credentials.status` do not count. A plugin that
/// fetches all pages of a list makes far fewer host calls.
pub const HOST_CALLS_MAX: u32 = 1000;

/// The maximum number of HTTP requests of one call. The limit protects upstream servers.
pub const HTTP_CALLS_MAX: u32 = 50;

/// The host functions for one call. The implementation holds the call's permit and applies the policies, which this
/// crate does not know.
pub trait HostCalls: Send + Sync {
    /// Sends a request. The implementation must check the request.
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>>;

    /// Calls a tool of another plugin. The implementation must check the name and the parameters. By default, no tools
    /// are available.
    fn tool_call(&self, _tool: String, _params: String) -> BoxFuture<'_, Result<JsonText, ToolFailure>> {
        let failure = ToolFailure::error(Code::Unavailable, "no tools are available to this call");
        Box::pin(std::future::ready(Err(failure)))
    }

    /// Runs a command in the sandbox of the conversation. The implementation must check the arguments of all sandbox
    /// functions. By default, no sandbox is available.
    fn sandbox_exec(&self, _command: String, _timeout_s: Option<u32>) -> BoxFuture<'_, Result<SandboxOutput, Failure>> {
        no_sandbox()
    }

    /// Lists a directory of the sandbox.
    fn sandbox_list(&self, _path: String) -> BoxFuture<'_, Result<Vec<SandboxEntry>, Failure>> {
        no_sandbox()
    }

    /// Reads a file of the sandbox.
    fn sandbox_read(&self, _path: String) -> BoxFuture<'_, Result<Vec<u8>, Failure>> {
        no_sandbox()
    }

    /// Writes a file of the sandbox.
    fn sandbox_write(&self, _path: String, _content: Vec<u8>) -> BoxFuture<'_, Result<(), Failure>> {
        no_sandbox()
    }

    /// Stores an event, whose data is JSON text, and returns its id. The implementation must check the arguments of all
    /// functions for events. By default, no events are available.
    fn event_emit(&self, _name: String, _data: String) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(std::future::ready(Err(no_events())))
    }

    /// Subscribes the bot of the call, and returns the id of the subscription.
    fn event_subscribe(&self, _pattern: String, _instruction: String) -> BoxFuture<'_, Result<String, Failure>> {
        Box::pin(std::future::ready(Err(no_events())))
    }

    /// Removes a subscription that the plugin has made. Returns whether there was one.
    fn event_unsubscribe(&self, _id: String) -> BoxFuture<'_, Result<bool, Failure>> {
        Box::pin(std::future::ready(Err(no_events())))
    }

    /// Returns the subscriptions that the plugin has made.
    fn event_subscriptions(&self) -> Result<Vec<PluginSubscription>, Failure> {
        Err(no_events())
    }

    /// Returns the state of the credential: ready, expired, needs-authorization or none.
    fn credential_status(&self) -> String;
}

fn no_sandbox<T: Send + 'static>() -> BoxFuture<'static, Result<T, Failure>> {
    let failure = Failure::unsent(FailureCode::Unavailable, "no sandbox is available to this call");
    Box::pin(std::future::ready(Err(failure)))
}

fn no_events() -> Failure {
    Failure::unsent(FailureCode::Unavailable, "no events are available to this call")
}

/// The number of host calls that one call has made.
#[derive(Default)]
pub(crate) struct Counters {
    host_calls: u32,
    http_calls: u32,
}

impl Counters {
    pub(crate) fn count_http(&mut self) -> Result<(), Failure> {
        self.count_host_call()?;
        if self.http_calls >= HTTP_CALLS_MAX {
            return Err(limit(format!("the call reached the limit of {HTTP_CALLS_MAX} HTTP requests")));
        }
        self.http_calls += 1;
        Ok(())
    }

    pub(crate) fn count_tool_call(&mut self) -> Result<(), ToolFailure> {
        self.count_host_call().map_err(|failure| ToolFailure::error(Code::Limit, failure.message))
    }

    pub(crate) fn count_sandbox_call(&mut self) -> Result<(), Failure> {
        self.count_host_call()
    }

    pub(crate) fn count_event_call(&mut self) -> Result<(), Failure> {
        self.count_host_call()
    }

    fn count_host_call(&mut self) -> Result<(), Failure> {
        if self.host_calls >= HOST_CALLS_MAX {
            return Err(limit(format!("the call reached the limit of {HOST_CALLS_MAX} host calls")));
        }
        self.host_calls += 1;
        Ok(())
    }
}

fn limit(message: String) -> Failure {
    Failure::unsent(FailureCode::Limit, message)
}

impl types::Host for State {}

impl http::Host for State {
    async fn send(&mut self, request: http::Request) -> wasmtime::Result<Result<http::Response, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_http() {
            return Ok(Err(failure.into()));
        }
        let answer = self.outgoing.host.http_send(request.into()).await;
        Ok(answer.map(Into::into).map_err(Into::into))
    }
}

impl tools::Host for State {
    async fn call(
        &mut self,
        tool_name: String,
        params: String,
    ) -> wasmtime::Result<Result<String, tools::ToolFailure>> {
        let answer = match self.outgoing.counters.count_tool_call() {
            Ok(()) => self.outgoing.host.tool_call(tool_name, params).await,
            Err(failure) => Err(failure),
        };
        Ok(answer.map(|data| data.as_str().to_owned()).map_err(Into::into))
    }
}

impl sandbox::Host for State {
    async fn exec(
        &mut self,
        command: String,
        timeout_s: Option<u32>,
    ) -> wasmtime::Result<Result<sandbox::ExecResult, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_sandbox_call() {
            return Ok(Err(failure.into()));
        }
        let answer = self.outgoing.host.sandbox_exec(command, timeout_s).await;
        Ok(answer.map(Into::into).map_err(Into::into))
    }

    async fn list_files(&mut self, path: String) -> wasmtime::Result<Result<Vec<sandbox::Entry>, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_sandbox_call() {
            return Ok(Err(failure.into()));
        }
        let answer = self.outgoing.host.sandbox_list(path).await;
        Ok(answer.map(|entries| entries.into_iter().map(Into::into).collect()).map_err(Into::into))
    }

    async fn read_file(&mut self, path: String) -> wasmtime::Result<Result<Vec<u8>, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_sandbox_call() {
            return Ok(Err(failure.into()));
        }
        Ok(self.outgoing.host.sandbox_read(path).await.map_err(Into::into))
    }

    async fn write_file(&mut self, path: String, content: Vec<u8>) -> wasmtime::Result<Result<(), WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_sandbox_call() {
            return Ok(Err(failure.into()));
        }
        Ok(self.outgoing.host.sandbox_write(path, content).await.map_err(Into::into))
    }
}

impl events::Host for State {
    async fn emit(&mut self, name: String, data: String) -> wasmtime::Result<Result<String, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_event_call() {
            return Ok(Err(failure.into()));
        }
        Ok(self.outgoing.host.event_emit(name, data).await.map_err(Into::into))
    }

    async fn subscribe(
        &mut self,
        pattern: String,
        instruction: String,
    ) -> wasmtime::Result<Result<String, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_event_call() {
            return Ok(Err(failure.into()));
        }
        Ok(self.outgoing.host.event_subscribe(pattern, instruction).await.map_err(Into::into))
    }

    async fn unsubscribe(&mut self, id: String) -> wasmtime::Result<Result<bool, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_event_call() {
            return Ok(Err(failure.into()));
        }
        Ok(self.outgoing.host.event_unsubscribe(id).await.map_err(Into::into))
    }

    async fn subscriptions(&mut self) -> wasmtime::Result<Result<Vec<events::Subscription>, WitFailure>> {
        if let Err(failure) = self.outgoing.counters.count_event_call() {
            return Ok(Err(failure.into()));
        }
        let listed = self.outgoing.host.event_subscriptions();
        Ok(listed.map(|listed| listed.into_iter().map(Into::into).collect()).map_err(Into::into))
    }
}

impl credentials::Host for State {
    async fn status(&mut self) -> wasmtime::Result<String> {
        Ok(self.outgoing.host.credential_status())
    }
}

impl log::Host for State {
    async fn write(&mut self, level: log::Level, message: String, fields: String) -> wasmtime::Result<()> {
        self.log.with(|log| log.write(LogSource::Plugin, level.into(), &message, &fields));
        Ok(())
    }
}

impl From<http::Request> for HttpRequest {
    fn from(request: http::Request) -> Self {
        // `options` is reserved for later versions of the interface. Unknown options are ignored. This host does not
        // support any options.
        let http::Request { method, url, query, headers, body, timeout_ms, authenticate, options: _ } = request;
        HttpRequest { method, url, query, headers, body, timeout_ms, authenticate }
    }
}

impl From<HttpResponse> for http::Response {
    fn from(HttpResponse { status, headers, body }: HttpResponse) -> Self {
        http::Response { status, headers, body }
    }
}

impl From<Failure> for WitFailure {
    fn from(Failure { code, message, sent, retry_after_ms }: Failure) -> Self {
        WitFailure { code: code.as_str().to_owned(), message, sent, retry_after_ms }
    }
}

impl From<ToolFailure> for tools::ToolFailure {
    fn from(ToolFailure { message, status, code }: ToolFailure) -> Self {
        tools::ToolFailure { message, status: status.as_str().to_owned(), code: code.as_str().to_owned() }
    }
}

impl From<SandboxOutput> for sandbox::ExecResult {
    fn from(output: SandboxOutput) -> Self {
        let SandboxOutput { stdout, stderr, exit_code, termination, is_truncated: truncated } = output;
        sandbox::ExecResult { stdout, stderr, exit_code, termination, truncated }
    }
}

impl From<PluginSubscription> for events::Subscription {
    fn from(subscription: PluginSubscription) -> Self {
        let PluginSubscription { id, pattern, instruction, active, created_at } = subscription;
        events::Subscription { id, pattern, instruction, active, created_at }
    }
}

impl From<SandboxEntry> for sandbox::Entry {
    fn from(SandboxEntry { name, path, kind, size }: SandboxEntry) -> Self {
        let kind = match kind {
            SandboxEntryKind::File => sandbox::EntryKind::File,
            SandboxEntryKind::Directory => sandbox::EntryKind::Directory,
            SandboxEntryKind::Other => sandbox::EntryKind::Other,
        };
        sandbox::Entry { name, path, kind, size }
    }
}

impl From<log::Level> for LogLevel {
    fn from(level: log::Level) -> Self {
        match level {
            log::Level::Debug => LogLevel::Debug,
            log::Level::Info => LogLevel::Info,
            log::Level::Warn => LogLevel::Warn,
            log::Level::Error => LogLevel::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_51st_request_is_over_the_limit() {
        let mut counters = Counters::default();
        for _ in 0..HTTP_CALLS_MAX {
            assert_eq!(counters.count_http(), Ok(()));
        }
        let failure = counters.count_http().unwrap_err();
        assert_eq!(failure.code, FailureCode::Limit);
        assert_eq!(failure.message, "the call reached the limit of 50 HTTP requests");
        assert!(!failure.sent);
    }

    #[test]
    fn refused_requests_count_as_host_calls() {
        let mut counters = Counters::default();
        for _ in 0..HOST_CALLS_MAX {
            let _ = counters.count_http();
        }
        let failure = counters.count_http().unwrap_err();
        assert_eq!(failure.message, "the call reached the limit of 1000 host calls");
    }
}
