//! `/api/core/ai/sandbox/…`: the files of a conversation's sandbox, in the shape that FastGPT's clients know, and so with
//! its names in camelCase and with unknown fields ignored.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What to do with which path of whose sandbox. Unknown fields are ignored.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileInput {
    pub action: Action,
    pub app_id: String,
    pub chat_id: String,
    /// Where it is given, the sandbox must be this user's.
    pub user_id: Option<String>,
    /// Absolute and beneath /workspace, or relative to it.
    pub path: String,
    /// For `write`: the file's whole content, at most 16 MiB.
    pub content: Option<String>,
}

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    List,
    Read,
    Write,
}

/// What came of it.
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
    /// Absolute, inside the sandbox.
    pub path: String,
    /// `file`, `directory` or `other`, such as a link.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub size: u64,
}

/// What to download from whose sandbox. Unknown fields are ignored.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownloadInput {
    pub app_id: String,
    pub chat_id: String,
    /// Where it is given, the sandbox must be this user's.
    pub user_id: Option<String>,
    /// A file, or a folder, which comes as a ZIP.
    pub path: String,
}
