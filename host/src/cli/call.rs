//! `monstrum call`: calls a tool as a bot.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::names::{self, Noun};
use super::params::Params;
use super::{Options, output};

const EXAMPLES: &str = "\
Examples:
  monstrum call triage github_list_issues '{\"repo\": \"acme/site\"}'
  monstrum call triage github_create_issue '{\"repo\": \"acme/site\", \"title\": \"x\"}' --wait-for-approval 300
  monstrum call triage github_list_issues '{\"repo\": \"acme/site\"}' --resource tracker --json

The command prints the result. The exit code is 0 if the call succeeded, and 1 otherwise. `monstrum check` answers whether
a call would be allowed, without making it.";

/// Call a tool as a bot and print the result
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Call {
    /// The name or the id of the bot
    bot: String,
    /// The tool
    tool: String,
    /// The parameters of the call, as a JSON object
    #[arg(default_value = "{}")]
    params: Params,
    /// The name or the id of the resource, if the bot has the tool through several resources
    #[arg(long)]
    resource: Option<String>,
    /// The number of seconds, up to 300, to wait for a person who must approve the call
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=300))]
    wait_for_approval: Option<u32>,
    /// An id under which the audit groups calls
    #[arg(long, value_name = "ID")]
    task_id: Option<String>,
    /// The conversation in which the call happens
    #[arg(long, num_args = 3, value_names = ["APP", "USER", "CHAT"])]
    chat: Option<Vec<String>>,
}

impl Call {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        let bot = names::id(&client, Noun::Bot, &self.bot).await?;
        let mut body = self.params.clone().body(None);
        if let Some(resource) = &self.resource {
            body["resource_id"] = json!(names::id(&client, Noun::Resource, resource).await?);
        }
        if let Some(seconds) = self.wait_for_approval {
            body["wait_for_approval_s"] = json!(seconds);
        }
        if let Some(task) = &self.task_id {
            body["task_id"] = json!(task);
        }
        if let Some([app, user, chat]) = self.chat.as_deref() {
            body["chat"] = json!({ "app_id": app, "user_id": user, "chat_id": chat });
        }
        let answer = client.post(&["api", "bots", &bot, "tools", &self.tool, "call"], Some(&body)).await?;
        let succeeded = answer["status"] == "success";
        if options.json {
            output::json(&answer)?;
        } else if succeeded {
            output::json(&answer["data"])?;
        } else {
            self.refused(&answer);
        }
        Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn refused(&self, answer: &Value) {
        let cell = |field: &str| output::cell(&answer[field]);
        output::error(&format!("{} ({})", cell("message"), cell("status")));
        output::note(&output::plain(&format!("  request {}", cell("request_id"))));
        let approval = &answer["approval"];
        if approval.is_null() {
            output::hint(&format!(
                "`monstrum why {} {} …` explains decisions; `monstrum audit list` lists calls",
                self.bot, self.tool
            ));
        } else {
            let id = output::cell(&approval["id"]);
            output::hint(&format!(
                "a person can approve the call with `monstrum approval approve {id}`; then repeat it"
            ));
        }
    }
}
