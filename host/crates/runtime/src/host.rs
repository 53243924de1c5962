//! What a component finds behind its imports: translation and counting only. What a host call does is decided by the
//! [`HostCalls`] of the call.

use futures::future::BoxFuture;
use monstrum_types::{Code, Failure, FailureCode, HttpRequest, HttpResponse, JsonText, ToolFailure};

use crate::bindings::{WitFailure, credentials, http, log, tools, types};
use crate::log::{LogLevel, LogSource};
use crate::store::State;

/// Host calls of one call; `log.write` and `credentials.status` do not count. A plugin that pages through everything an
/// upstream has stays far below.
pub const HOST_CALLS_MAX: u32 = 1000;

/// HTTP requests of one call, which an upstream has to bear.
pub const HTTP_CALLS_MAX: u32 = 50;

/// What the host does for one call. The permit of the call belongs into its implementation: this crate knows no policy.
pub trait HostCalls: Send + Sync {
    /// Sends a request that nobody has checked yet.
    fn http_send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, Failure>>;

    /// Calls a tool of another plugin. Neither name nor parameters have been looked at. A host that says nothing else has
    /// none.
    fn tool_call(&self, _tool: String, _params: String) -> BoxFuture<'_, Result<JsonText, ToolFailure>> {
        let failure = ToolFailure::error(Code::Unavailable, "no tools can be called here");
        Box::pin(std::future::ready(Err(failure)))
    }

    /// ready, expired, needs-authorization or none.
    fn credential_status(&self) -> String;
}

/// The host calls that one call has left.
#[derive(Default)]
pub(crate) struct Counters {
    host_calls: u32,
    http_calls: u32,
}

impl Counters {
    pub(crate) fn count_http(&mut self) -> Result<(), Failure> {
        self.count_host_call()?;
        if self.http_calls >= HTTP_CALLS_MAX {
            return Err(limit(format!("the call has made {HTTP_CALLS_MAX} HTTP requests, which is the limit")));
        }
        self.http_calls += 1;
        Ok(())
    }

    pub(crate) fn count_tool_call(&mut self) -> Result<(), ToolFailure> {
        self.count_host_call().map_err(|failure| ToolFailure::error(Code::Limit, failure.message))
    }

    fn count_host_call(&mut self) -> Result<(), Failure> {
        if self.host_calls >= HOST_CALLS_MAX {
            return Err(limit(format!("the call has made {HOST_CALLS_MAX} host calls, which is the limit")));
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
        // `options` is for what comes later and is ignored where unknown, which for this host is everywhere.
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
        assert_eq!(failure.message, "the call has made 50 HTTP requests, which is the limit");
        assert!(!failure.sent);
    }

    #[test]
    fn refused_requests_are_host_calls_too() {
        let mut counters = Counters::default();
        for _ in 0..HOST_CALLS_MAX {
            let _ = counters.count_http();
        }
        let failure = counters.count_http().unwrap_err();
        assert_eq!(failure.message, "the call has made 1000 host calls, which is the limit");
    }
}
