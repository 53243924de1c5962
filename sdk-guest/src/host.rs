//! The host functions. A component imports the host functions from the WIT world; a native build uses the host
//! functions of [`testing`](crate::testing).

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::testing::host::{
    call_tool, credential_status, emit, sandbox_exec, sandbox_list, sandbox_read, sandbox_write, send, subscribe,
    subscriptions, unsubscribe, write_log,
};

#[cfg(target_arch = "wasm32")]
pub(crate) use component::{
    call_tool, credential_status, emit, sandbox_exec, sandbox_list, sandbox_read, sandbox_write, send, subscribe,
    subscriptions, unsubscribe, write_log,
};

#[cfg(target_arch = "wasm32")]
mod component {
    use crate::wit::monstrum::plugin::{credentials, events, http, log, sandbox, tools, types};

    pub(crate) fn send(request: &http::Request) -> Result<http::Response, types::Failure> {
        http::send(request)
    }

    pub(crate) fn call_tool(tool: &str, params: &str) -> Result<String, tools::ToolFailure> {
        tools::call(tool, params)
    }

    pub(crate) fn sandbox_exec(command: &str, timeout_s: Option<u32>) -> Result<sandbox::ExecResult, types::Failure> {
        sandbox::exec(command, timeout_s)
    }

    pub(crate) fn sandbox_list(path: &str) -> Result<Vec<sandbox::Entry>, types::Failure> {
        sandbox::list_files(path)
    }

    pub(crate) fn sandbox_read(path: &str) -> Result<Vec<u8>, types::Failure> {
        sandbox::read_file(path)
    }

    pub(crate) fn sandbox_write(path: &str, content: &[u8]) -> Result<(), types::Failure> {
        sandbox::write_file(path, content)
    }

    pub(crate) fn emit(name: &str, data: &str) -> Result<String, types::Failure> {
        events::emit(name, data)
    }

    pub(crate) fn subscribe(pattern: &str, instruction: &str) -> Result<String, types::Failure> {
        events::subscribe(pattern, instruction)
    }

    pub(crate) fn unsubscribe(id: &str) -> Result<bool, types::Failure> {
        events::unsubscribe(id)
    }

    pub(crate) fn subscriptions() -> Result<Vec<events::Subscription>, types::Failure> {
        events::subscriptions()
    }

    pub(crate) fn credential_status() -> String {
        credentials::status()
    }

    pub(crate) fn write_log(level: log::Level, message: &str, fields: &str) {
        log::write(level, message, fields);
    }
}
