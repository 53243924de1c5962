//! The door to the host: in a component the contract's imports, natively what the test has prepared.

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::testing::host::{call_tool, credential_status, send, write_log};

#[cfg(target_arch = "wasm32")]
pub(crate) use component::{call_tool, credential_status, send, write_log};

#[cfg(target_arch = "wasm32")]
mod component {
    use crate::wit::monstrum::plugin::{credentials, http, log, tools, types};

    pub(crate) fn send(request: &http::Request) -> Result<http::Response, types::Failure> {
        http::send(request)
    }

    pub(crate) fn call_tool(tool: &str, params: &str) -> Result<String, tools::ToolFailure> {
        tools::call(tool, params)
    }

    pub(crate) fn credential_status() -> String {
        credentials::status()
    }

    pub(crate) fn write_log(level: log::Level, message: &str, fields: &str) {
        log::write(level, message, fields);
    }
}
