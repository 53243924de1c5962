//! `monstrum sandbox`: manages the sandboxes of a server, and checks whether this machine can run sandboxes.

mod download;
mod machine;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::SandboxInstanceId;
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::{Options, output};

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum sandbox list
  monstrum sandbox list --status running --app shop
  monstrum sandbox list --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum sandbox show 01998a3d-…
  monstrum sandbox show 01998a3d-… --json";

const EXEC_EXAMPLES: &str = "\
Examples:
  monstrum sandbox exec 01998a3d-… 'ls -la'
  monstrum sandbox exec 01998a3d-… 'make test' --timeout 300

The command runs as the bot of the sandbox, in its conversation, and only if sandboxes are enabled for the bot. The exit
code is the exit code of the command, or 1 if no command was run.";

const FILES_EXAMPLES: &str = "\
Examples:
  monstrum sandbox files 01998a3d-…
  monstrum sandbox files 01998a3d-… src --json";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum sandbox delete 01998a3d-…

The server deletes all files of the sandbox in the background.";

/// Manage the sandboxes of conversations
#[derive(Subcommand)]
pub(super) enum Sandbox {
    List(List),
    /// Show a sandbox
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        id: SandboxInstanceId,
    },
    Exec(Exec),
    /// List a folder of a sandbox
    #[command(after_help = FILES_EXAMPLES)]
    Files {
        id: SandboxInstanceId,
        /// The path of the folder, below /workspace
        #[arg(default_value = "/workspace")]
        path: String,
    },
    Download(download::Download),
    /// Delete a sandbox
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        id: SandboxInstanceId,
    },
    Doctor(machine::Doctor),
    #[command(subcommand)]
    Template(machine::Template),
}

/// List sandboxes
#[derive(Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(super) struct List {
    /// Only sandboxes with this status: creating, running, stopping, stopped, deleting, error or lost
    #[arg(long)]
    status: Option<String>,
    /// Only sandboxes of this app
    #[arg(long, value_name = "ID")]
    app: Option<String>,
    /// Only the sandboxes of this conversation
    #[arg(long, value_name = "ID")]
    chat: Option<String>,
}

/// Run a command in a sandbox
#[derive(Args)]
#[command(after_help = EXEC_EXAMPLES)]
pub(super) struct Exec {
    id: SandboxInstanceId,
    /// The command for bash
    command: String,
    /// The time limit of the command in seconds, 1 to 300
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
}

impl Sandbox {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = || Client::new(options);
        match self {
            Sandbox::Doctor(doctor) => return doctor.run(options).await,
            Sandbox::Template(template) => return template.run(options).await,
            Sandbox::List(list) => list.run(&client()?, options).await?,
            Sandbox::Show { id } => show(&client()?.get(&["api", "sandboxes", &id.to_string()], &[]).await?, options)?,
            Sandbox::Exec(exec) => return exec.run(&client()?, options).await,
            Sandbox::Files { id, path } => files(&client()?, options, id, &path).await?,
            Sandbox::Download(download) => download.run(&client()?, options).await?,
            Sandbox::Delete { id } => {
                client()?.delete(&["api", "sandboxes", &id.to_string()]).await?;
                let result = json!({ "id": id, "deleting": true });
                output::done(options.json, &result, &format!("{id} is being deleted"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl List {
    async fn run(self, client: &Client, options: &Options) -> Result<(), Failure> {
        let given = [("status", self.status), ("app_id", self.app), ("chat_id", self.chat)];
        let query: Vec<(&str, String)> = given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let items = client.items(&["api", "sandboxes"], &query).await?;
        let empty = "no sandboxes; the server creates a sandbox when a bot first uses it";
        let fields = ["id", "status", "app_id", "user_id", "chat_id", "last_active_at"];
        output::list(&items, options.json, empty, ["ID", "STATUS", "APP", "USER", "CHAT", "LAST ACTIVE"], fields)
    }
}

impl Exec {
    async fn run(self, client: &Client, options: &Options) -> Result<ExitCode, Failure> {
        let mut body = json!({ "command": self.command });
        if let Some(timeout) = self.timeout {
            body["timeout"] = json!(timeout);
        }
        let answer = client.post(&["api", "sandboxes", &self.id.to_string(), "exec"], Some(&body)).await?;
        let data = &answer["data"];
        if options.json {
            output::json(&answer)?;
        } else {
            // The terminal must not execute control characters in the output of a sandbox.
            let text = |name: &str| output::plain(data[name].as_str().unwrap_or_default());
            let (stdout, stderr) = (text("stdout"), text("stderr"));
            if !stdout.is_empty() {
                output::line(stdout.strip_suffix('\n').unwrap_or(&stdout))?;
            }
            if !stderr.is_empty() {
                output::note(stderr.strip_suffix('\n').unwrap_or(&stderr));
            }
            if let Some(message) = answer["message"].as_str() {
                output::error(message);
            }
        }
        let code = data["exitCode"].as_u64().and_then(|code| u8::try_from(code).ok());
        Ok(match (answer["status"].as_str(), code) {
            (Some("success"), Some(code)) => ExitCode::from(code),
            _ => ExitCode::FAILURE,
        })
    }
}

fn show(sandbox: &Value, options: &Options) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 11] = [
        ("id", "id"),
        ("status", "status"),
        ("bot", "bot_id"),
        ("app", "app_id"),
        ("user", "user_id"),
        ("chat", "chat_id"),
        ("provider", "provider"),
        ("last active", "last_active_at"),
        ("created", "created_at"),
        ("limits", "limit"),
        ("error", "error"),
    ];
    if options.json {
        return output::json(sandbox);
    }
    output::given_fields(sandbox, &FIELDS)
}

async fn files(client: &Client, options: &Options, id: SandboxInstanceId, path: &str) -> Result<(), Failure> {
    let sandbox = client.get(&["api", "sandboxes", &id.to_string()], &[]).await?;
    let body = json!({
        "action": "list", "appId": sandbox["app_id"], "chatId": sandbox["chat_id"], "path": path,
    });
    let answer = client.post(&["api", "core", "ai", "sandbox", "file"], Some(&body)).await?;
    if options.json {
        return output::json(&answer);
    }
    let files = answer["files"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = files.iter().map(|file| ["type", "size", "path"].map(|field| output::cell(&file[field])).to_vec());
    output::table(&["TYPE", "SIZE", "PATH"], rows.collect())
}
