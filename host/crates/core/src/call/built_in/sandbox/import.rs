//! The import `sandbox` of a plugin. Each use is a child call of a built-in tool, which the audit records in a row for
//! this child call. The bot's current permissions apply to each use. The plugin needs the capability `sandbox`, and the
//! switch `use_agent_sandbox` of the bot must be on.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use monstrum_sandbox::{FILE_BYTES_MAX, PATH_BYTES_MAX};
use monstrum_types::{
    CallOutcome, Code, Failure, FailureCode, SandboxEntry, SandboxEntryKind, SandboxOutput, Status, ToolFailure,
};
use serde_json::{Value, json};

use crate::call::built_in::sandbox::digest;
use crate::call::child_calls::ChildCalls;
use crate::call_types::incoming::Attachments;
use crate::plugins::built_in::{COMMAND_BYTES_MAX, LIST_FILES, READ_FILE, SHELL, WRITE_FILE};

/// The sandbox of one running call.
pub struct SandboxImport {
    child_calls: ChildCalls,
}

impl SandboxImport {
    /// Creates the import for a call that makes `child_calls`.
    pub fn of(child_calls: &ChildCalls) -> SandboxImport {
        SandboxImport { child_calls: child_calls.of_sandbox_import() }
    }

    /// Runs a command. The answer contains all captured output and is not shortened for models.
    pub async fn exec(&self, command: String, timeout_s: Option<u32>) -> Result<SandboxOutput, Failure> {
        if command.len() > COMMAND_BYTES_MAX {
            let message = format!("the command exceeds the limit of {COMMAND_BYTES_MAX} bytes");
            return Err(Failure::unsent(FailureCode::Invalid, message));
        }
        let mut params = json!({ "command": command });
        if let Some(timeout) = timeout_s {
            params["timeout"] = json!(timeout);
        }
        let data = self.made(SHELL, params, Attachments::default()).await?;
        let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
        Ok(SandboxOutput {
            stdout: text("stdout"),
            stderr: text("stderr"),
            exit_code: data["exitCode"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(-1),
            termination: text("termination"),
            is_truncated: data["truncated"].as_bool().unwrap_or_default(),
        })
    }

    /// Lists a folder.
    pub async fn list(&self, path: String) -> Result<Vec<SandboxEntry>, Failure> {
        check_path(&path)?;
        let mut data = self.made(LIST_FILES, json!({ "path": path }), Attachments::default()).await?;
        let Value::Array(entries) = data["entries"].take() else { return Ok(Vec::new()) };
        Ok(entries.iter().map(entry).collect())
    }

    /// Reads a file. The returned content is not redacted.
    pub async fn read(&self, path: String) -> Result<Vec<u8>, Failure> {
        check_path(&path)?;
        let place = Arc::new(OnceLock::new());
        let attachments = Attachments { read: Some(Arc::clone(&place)), ..Attachments::default() };
        self.made(READ_FILE, json!({ "path": path }), attachments).await?;
        let content = Arc::into_inner(place).and_then(OnceLock::into_inner);
        content.ok_or_else(|| Failure::unsent(FailureCode::Internal, "the file was read, but its content is missing"))
    }

    /// Writes a file.
    pub async fn write(&self, path: String, content: Vec<u8>) -> Result<(), Failure> {
        check_path(&path)?;
        if content.len() > FILE_BYTES_MAX {
            let message = format!("the content exceeds the limit of {FILE_BYTES_MAX} bytes");
            return Err(Failure::unsent(FailureCode::TooLarge, message));
        }
        let params = json!({ "path": path, "bytes": content.len(), "digest": digest(&content) });
        let attachments = Attachments { content: Some(Bytes::from(content)), ..Attachments::default() };
        self.made(WRITE_FILE, params, attachments).await.map(drop)
    }

    async fn made(&self, tool: &str, params: Value, attachments: Attachments) -> Result<Value, Failure> {
        self.child_calls.count().map_err(|failure| of_call(failure.status, failure.code, failure.message))?;
        let made = self.child_calls.make_with(tool.to_owned(), params, attachments).await;
        let CallOutcome { status, code, message, data, .. } =
            made.map_err(|ToolFailure { status, code, message }| of_call(status, code, message))?;
        match code {
            None => Ok(data.map(|data| data.value()).unwrap_or_default()),
            Some(code) => Err(of_call(status, code, message.unwrap_or_default())),
        }
    }
}

/// Rejects an invalid path before a child call is made and recorded.
fn check_path(path: &str) -> Result<(), Failure> {
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        let message = format!("the path must be 1 to {PATH_BYTES_MAX} bytes long");
        return Err(Failure::unsent(FailureCode::Invalid, message));
    }
    Ok(())
}

fn entry(entry: &Value) -> SandboxEntry {
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let kind = match entry["kind"].as_str() {
        Some("file") => SandboxEntryKind::File,
        Some("directory") => SandboxEntryKind::Directory,
        _ => SandboxEntryKind::Other,
    };
    SandboxEntry { name: text("name"), path: text("path"), kind, size: entry["size"].as_u64().unwrap_or_default() }
}

/// Converts the outcome of a failed child call into the failure of a host function.
fn of_call(status: Status, code: Code, message: String) -> Failure {
    let failure = match (status, code) {
        (Status::PermissionDenied | Status::ScopeViolation | Status::ApprovalRequired, _) => FailureCode::Denied,
        (_, Code::InvalidParams) => FailureCode::Invalid,
        (_, Code::ResultTooLarge) => FailureCode::TooLarge,
        (_, Code::Limit | Code::Budget) => FailureCode::Limit,
        (_, Code::Unavailable | Code::Busy) => FailureCode::Unavailable,
        // The command may have run and may have had effects.
        (_, Code::Timeout) => return Failure::sent(FailureCode::Timeout, message),
        (_, Code::Interrupted | Code::Cancelled) => return Failure::sent(FailureCode::Unavailable, message),
        _ => FailureCode::Internal,
    };
    Failure::unsent(failure, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_call_is_a_failure_that_the_contract_knows() {
        let code = |status, code| {
            let failure = of_call(status, code, String::new());
            (failure.code.as_str(), failure.sent)
        };
        assert_eq!(code(Status::PermissionDenied, Code::Denied), ("denied", false));
        assert_eq!(code(Status::ScopeViolation, Code::Scope), ("denied", false));
        assert_eq!(code(Status::ApprovalRequired, Code::Approval), ("denied", false));
        assert_eq!(code(Status::Error, Code::InvalidParams), ("invalid", false));
        assert_eq!(code(Status::Error, Code::ResultTooLarge), ("too_large", false));
        assert_eq!(code(Status::Error, Code::Limit), ("limit", false));
        assert_eq!(code(Status::Error, Code::Busy), ("unavailable", false));
        assert_eq!(code(Status::Error, Code::Timeout), ("timeout", true));
        assert_eq!(code(Status::Error, Code::Interrupted), ("unavailable", true));
        assert_eq!(code(Status::Error, Code::Trap), ("internal", false));
    }

    #[test]
    fn what_is_no_path_goes_no_further() {
        assert!(check_path("a/b").is_ok());
        for bad in ["", &"x".repeat(PATH_BYTES_MAX + 1)] {
            assert_eq!(check_path(bad).unwrap_err().code, FailureCode::Invalid);
        }
    }
}
