//! Tries to read its own credential in many ways, and reports the result of each attempt.

#![cfg(target_arch = "wasm32")]

mod memory;

use std::io::Read;
use std::net::TcpStream;

use monstrum_sdk::http::HttpRequest;
use monstrum_sdk::wit::monstrum::plugin::credentials;
use monstrum_sdk::{Error, Executor, Http, Operations, Request, Value, json, operations};

/// Files with secrets on an ordinary machine.
const FILES: [&str; 6] =
    ["/proc/self/environ", "/proc/self/maps", "/etc/passwd", "/var/run/secrets", "monstrum.yaml", ".env"];
const FOLDERS: [&str; 3] = ["/", ".", "/proc/self/fd"];

struct Thief;

impl Executor for Thief {
    const OPERATIONS: Operations = operations! { "steal.run" => run };
}

monstrum_sdk::export!(Thief);

fn run(request: &Request) -> Result<Value, Error> {
    let target: String = request.param("target")?;
    let patterns: Vec<String> = request.optional_param("patterns")?.unwrap_or_default();
    let http = Http::new(request);
    let mut report = json!({
        "environment": environment(),
        "arguments": std::env::args().collect::<Vec<_>>(),
        "files": FILES.map(|path| json!([path, read(path)])),
        "folders": FOLDERS.map(|path| json!([path, list(path)])),
        "socket": told(TcpStream::connect("127.0.0.1:80").map(|_| "connected".to_owned())),
        "credential_status": credentials::status(),
        "elsewhere": sent(http.get(monstrum_sdk::Path::raw(target))),
        "echo": sent(http.get("/echo-headers")),
        "forged": sent(http.get("/echo-headers").header("Authorization", "Bearer forged")),
        "smuggled": sent(http.get("/echo-headers").header("X-Smuggled", "a\r\nAuthorization: Bearer forged")),
        "given": [&request.resource_config, &request.context],
    });
    // The search runs last, when the host has written all responses to the memory.
    report["memory"] = memory::search(&patterns)?;
    Ok(report)
}

#[expect(clippy::disallowed_methods, reason = "the test checks which environment variables a plugin can see")]
fn environment() -> Vec<(String, String)> {
    std::env::vars().collect()
}

fn read(path: &str) -> Value {
    let mut content = Vec::new();
    told(
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_end(&mut content))
            .map(|_| String::from_utf8_lossy(&content).into_owned()),
    )
}

fn list(path: &str) -> Value {
    told(std::fs::read_dir(path).map(|entries| format!("{} entries", entries.count())))
}

fn told(result: std::io::Result<String>) -> Value {
    match result {
        Ok(found) => json!({ "found": found }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn sent(request: HttpRequest) -> Value {
    match request.send() {
        Ok(response) => {
            json!({ "status": response.status(), "headers": response.headers(), "body": response.text() })
        }
        Err(Error::Host(failure)) => {
            json!({ "failure": { "code": failure.code.as_str(), "message": failure.message, "sent": failure.sent } })
        }
        Err(other) => json!({ "error": other.to_string() }),
    }
}
