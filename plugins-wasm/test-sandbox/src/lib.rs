//! Uses the sandbox of its conversation: runs commands, lists directories, reads and writes files. The result of a call
//! also reports failures.

#![forbid(unsafe_code)]

use monstrum_sdk::sandbox::{self, EntryKind, ExecResult};
use monstrum_sdk::{Error, Executor, Failure, Operations, Request, Value, json, operations};

struct Sandbox;

impl Executor for Sandbox {
    const OPERATIONS: Operations = operations! {
        "sandbox.exec" => exec,
        "sandbox.read" => read,
        "sandbox.write" => write,
    };
}

monstrum_sdk::export!(Sandbox);

/// The maximum number of bytes of a file that the result contains.
const SHOWN_BYTES_MAX: usize = 64;

fn exec(request: &Request) -> Result<Value, Error> {
    let command: String = request.param("command")?;
    let timeout: Option<u32> = request.optional_param("timeout")?;
    let mut last = Value::Null;
    for _ in 0..request.optional_param::<u32>("times")?.unwrap_or(1) {
        let ran = match timeout {
            Some(timeout) => sandbox::exec_within(&command, timeout),
            None => sandbox::exec(&command),
        };
        last = told(ran.map(|ExecResult { stdout, stderr, exit_code, termination, truncated }| {
            json!({
                "stdout": stdout, "stderr": stderr, "exit_code": exit_code, "termination": termination,
                "truncated": truncated,
            })
        }));
    }
    Ok(last)
}

fn read(request: &Request) -> Result<Value, Error> {
    let path: String = request.param("path")?;
    if request.tool_name == "test_sandbox_list" {
        return Ok(told(sandbox::list_files(&path).map(|entries| {
            let entries = entries.into_iter().map(|entry| {
                let kind = match entry.kind {
                    EntryKind::File => "file",
                    EntryKind::Directory => "directory",
                    EntryKind::Other => "other",
                };
                json!({ "name": entry.name, "path": entry.path, "kind": kind, "size": entry.size })
            });
            entries.collect()
        })));
    }
    Ok(told(sandbox::read_file(&path).map(|content| {
        let begin = String::from_utf8_lossy(&content[..content.len().min(SHOWN_BYTES_MAX)]).into_owned();
        json!({ "bytes": content.len(), "begin": begin })
    })))
}

fn write(request: &Request) -> Result<Value, Error> {
    let path: String = request.param("path")?;
    let text: String = request.optional_param("text")?.unwrap_or_default();
    let content = match request.optional_param::<usize>("bytes")? {
        Some(bytes) => vec![b'x'; bytes],
        None => text.into_bytes(),
    };
    Ok(told(sandbox::write_file(&path, &content).map(|()| json!("written"))))
}

fn told(ended: Result<Value, Failure>) -> Value {
    ended.unwrap_or_else(
        |Failure { code, message, sent, .. }| json!({ "code": code.as_str(), "message": message, "sent": sent }),
    )
}
