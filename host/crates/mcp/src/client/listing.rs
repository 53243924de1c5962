//! The list of a server's tools.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::agreement::Agreement;
use super::connection::Connection;
use super::wire::Wire;
use super::{ClientError, QUOTED_BYTES_MAX, ServerIdentity, shortened};

/// The maximum length of a page cursor, in bytes.
const CURSOR_BYTES_MAX: usize = 4096;
/// The maximum number of pages without tools. The limit of tools bounds the other pages, which may have one tool each.
const EMPTY_PAGES_MAX: usize = 64;
/// The members of a tool's declaration that the host keeps. The others have no effect on calls.
const MEMBERS: [&str; 6] = ["name", "title", "description", "inputSchema", "outputSchema", "annotations"];

/// The limits of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListLimits {
    pub tools_max: usize,
    /// The maximum size of all pages, in bytes.
    pub bytes_max: usize,
}

/// The tools that a server declares.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredList {
    pub tools: Vec<ListedTool>,
    pub server: ServerIdentity,
    /// The time for which the server says that the list is current.
    pub ttl: Option<Duration>,
}

/// The declaration of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedTool {
    pub name: String,
    /// The declaration as the server spells it, with the members `name`, `title`, `description`, `inputSchema`,
    /// `outputSchema` and `annotations` only.
    pub definition: Map<String, Value>,
}

impl Connection {
    /// Lists all tools of the server.
    ///
    /// # Errors
    /// Fails if the server gives no usable answer, if the list exceeds a limit, or if a tool has no name or the name of
    /// another tool.
    pub async fn list_tools(&self, wire: &dyn Wire, limits: ListLimits) -> Result<DeclaredList, ClientError> {
        let mut tools: Vec<ListedTool> = Vec::new();
        let (mut names, mut cursors) = (HashSet::new(), HashSet::new());
        let (mut bytes_left, mut ttl, mut cursor) = (limits.bytes_max, None, None::<String>);
        let mut empty_pages = 0;
        loop {
            let params = cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let request = |agreement: &Agreement, id: u64| agreement.request(id, "tools/list", params.clone());
            let answer = self.ask(wire, bytes_left, &request).await;
            let mut answer = answer.map_err(|error| too_large(error, limits))?;
            bytes_left = bytes_left.saturating_sub(answer.bytes);
            let Some(Value::Array(page)) = answer.result.shift_remove("tools") else {
                return Err(ClientError::Invalid("a page of the tool list has no list `tools`".to_owned()));
            };
            if tools.len() + page.len() > limits.tools_max {
                let message = format!("the MCP server has more than {} tools", limits.tools_max);
                return Err(ClientError::TooMuch(message));
            }
            empty_pages += usize::from(page.is_empty());
            if empty_pages > EMPTY_PAGES_MAX {
                let message =
                    format!("the tool list of the MCP server has more than {EMPTY_PAGES_MAX} pages without tools");
                return Err(ClientError::TooMuch(message));
            }
            for declared in page {
                let tool = listed(declared, tools.len())?;
                if !names.insert(tool.name.clone()) {
                    let name = shortened(&tool.name, QUOTED_BYTES_MAX);
                    return Err(ClientError::Invalid(format!("the tool `{name}` is declared twice")));
                }
                tools.push(tool);
            }
            let of_page = answer.result.get("ttlMs").and_then(Value::as_u64).map(Duration::from_millis);
            ttl = [ttl, of_page].into_iter().flatten().min();
            cursor = next_cursor(&answer.result)?;
            let Some(next) = &cursor else {
                return Ok(DeclaredList { tools, server: self.identity().unwrap_or_default(), ttl });
            };
            if !cursors.insert(next.clone()) {
                return Err(ClientError::Invalid("the pages of the tool list repeat".to_owned()));
            }
        }
    }
}

/// Names the limit of the whole list instead of the rest of it.
fn too_large(error: ClientError, limits: ListLimits) -> ClientError {
    match error {
        ClientError::TooMuch(_) => {
            let message = format!("the tool list of the MCP server is larger than {} KiB", limits.bytes_max >> 10);
            ClientError::TooMuch(message)
        }
        other => other,
    }
}

fn listed(declared: Value, index: usize) -> Result<ListedTool, ClientError> {
    let Value::Object(mut members) = declared else {
        return Err(ClientError::Invalid(format!("tool {index} of the list is not an object")));
    };
    let Some(Value::String(name)) = members.get("name") else {
        return Err(ClientError::Invalid(format!("tool {index} of the list has no name")));
    };
    let name = name.clone();
    members.retain(|member, value| MEMBERS.contains(&member.as_str()) && !value.is_null());
    Ok(ListedTool { name, definition: members })
}

fn next_cursor(result: &Map<String, Value>) -> Result<Option<String>, ClientError> {
    match result.get("nextCursor") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(cursor)) if cursor.is_empty() => Ok(None),
        Some(Value::String(cursor)) if cursor.len() <= CURSOR_BYTES_MAX => Ok(Some(cursor.clone())),
        Some(_) => Err(ClientError::Invalid("the cursor of the next page is not a short text".to_owned())),
    }
}
