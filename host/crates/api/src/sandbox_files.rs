//! `/api/core/ai/sandbox/…`: the files of a conversation's sandbox. For compatibility with FastGPT's clients, the field
//! names are in camelCase and unknown fields are ignored.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An action on a path in the sandbox of a conversation. Unknown fields are ignored.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileInput {
    pub action: Action,
    pub app_id: String,
    pub chat_id: String,
    /// The user to whom the sandbox must belong. If absent, the owner is not checked.
    pub user_id: Option<String>,
    /// A path that is absolute and below `/workspace`, or relative to `/workspace`.
    pub path: String,
    /// The complete content of the file for `write`, at most 16 MiB.
    pub content: Option<String>,
}

/// An action on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    List,
    Read,
    Write,
}

/// The result of an action.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum FileAnswer {
    List { action: Action, files: Vec<File> },
    Read { action: Action, content: String },
    Write { action: Action, success: bool },
}

/// An entry of a folder.
#[derive(Serialize, ToSchema)]
pub struct File {
    pub name: String,
    /// The absolute path in the sandbox.
    pub path: String,
    /// The type of the entry: `file`, `directory`, or `other` (for example, a link).
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub size: u64,
}

/// A download from the sandbox of a conversation. Unknown fields are ignored.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownloadInput {
    pub app_id: String,
    pub chat_id: String,
    /// The user to whom the sandbox must belong. If absent, the owner is not checked.
    pub user_id: Option<String>,
    /// The path of a file or a folder. A folder is downloaded as a ZIP archive.
    pub path: String,
}
