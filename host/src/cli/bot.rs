//! `monstrum bot`: manages bots.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::client::Client;
use super::failure::Failure;
use super::fields::{Body, Extra, NamedChanges, Text};
use super::names::{self, Noun};
use super::{Options, binding, objects, output};

const CREATE_EXAMPLES: &str = "\
Examples:
  monstrum bot create triage --description 'Sorts new issues'
  monstrum bot create helper --system-prompt @prompt.txt --monthly-token-budget 1000000
  monstrum bot create writer --model models/large --model-fallback models/small
  monstrum bot create desk --mcp-subject 'team-a-*'
  monstrum bot create careful --set 'gates=[{\"tools\": [\"github_*\"], \"action\": \"ask\"}]'

The bot can use no tool before `monstrum binding create` gives it a resource.";

const EDIT_EXAMPLES: &str = "\
Examples:
  monstrum bot edit triage --name sorter
  monstrum bot edit triage --monthly-token-budget 500000
  monstrum bot edit triage --clear monthly_token_budget
  monstrum bot edit triage --agent-sandbox true

Flags that can be repeated replace the whole list.";

const DELETE_EXAMPLES: &str = "\
Examples:
  monstrum bot delete triage

Its bindings and its API keys are deleted with it. The audit keeps its calls.";

/// Create, list, show, edit and delete bots
#[derive(Subcommand)]
pub(super) enum Bot {
    /// Create a bot
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The name
        name: String,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        extra: Extra,
    },
    /// List bots
    #[command(after_help = "Examples:\n  monstrum bot list\n  monstrum bot list --json")]
    List,
    /// Show a bot and its bindings
    #[command(after_help = "Examples:\n  monstrum bot show triage")]
    Show {
        /// The name or the id of the bot
        bot: String,
    },
    /// Change a bot
    #[command(after_help = EDIT_EXAMPLES)]
    Edit {
        /// The name or the id of the bot
        bot: String,
        #[command(flatten)]
        fields: Fields,
        #[command(flatten)]
        changes: NamedChanges,
    },
    /// Delete a bot
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// The name or the id of the bot
        bot: String,
    },
}

#[derive(Args)]
pub(super) struct Fields {
    /// What the bot is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// The system prompt, or @FILE for a file that contains it
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<Text>,
    /// The model, as RESOURCE/MODEL of a resource of type llm
    #[arg(long)]
    model: Option<String>,
    /// A model that is tried after --model, as RESOURCE/MODEL; can be repeated
    #[arg(long, value_name = "MODEL")]
    model_fallback: Vec<String>,
    /// Whether the bot may use a sandbox in each conversation
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    agent_sandbox: Option<bool>,
    /// The number of tokens that the bot's calls may cost in a month
    #[arg(long, value_name = "TOKENS")]
    monthly_token_budget: Option<u64>,
    /// A pattern of the subjects of access tokens that may use the bot over MCP; can be repeated
    #[arg(long, value_name = "PATTERN")]
    mcp_subject: Vec<String>,
}

impl Fields {
    fn into_body(self) -> Result<Body, Failure> {
        let mut body = Body::default();
        body.set("description", self.description);
        body.set("system_prompt", self.system_prompt.map(Text::read).transpose()?);
        body.set("model", self.model);
        body.set("use_agent_sandbox", self.agent_sandbox);
        body.set("monthly_token_budget", self.monthly_token_budget);
        body.set_list("mcp_subjects", self.mcp_subject);
        body.set_list("model_fallbacks", self.model_fallback);
        Ok(body)
    }
}

impl Bot {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Bot::Create { name, fields, extra } => {
                objects::create(&client, Noun::Bot, name, (fields.into_body()?, extra), options.json).await?;
            }
            Bot::List => {
                let items = client.items(&["api", "bots"], &[]).await?;
                let fields = ["name", "id", "description", "monthly_token_budget", "created_at"];
                let header = ["NAME", "ID", "DESCRIPTION", "BUDGET", "CREATED"];
                output::list(&items, options.json, "no bots; `monstrum bot create` creates one", header, fields)?;
            }
            Bot::Show { bot } => show(&client, &bot, options.json).await?,
            Bot::Edit { bot, fields, changes } => {
                objects::edit(&client, Noun::Bot, &bot, (fields.into_body()?, changes), options.json).await?;
            }
            Bot::Delete { bot } => objects::delete(&client, Noun::Bot, &bot, options.json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn show(client: &Client, bot: &str, json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 12] = [
        ("name", "name"),
        ("id", "id"),
        ("description", "description"),
        ("model", "model"),
        ("model fallbacks", "model_fallbacks"),
        ("sandbox", "use_agent_sandbox"),
        ("monthly token budget", "monthly_token_budget"),
        ("MCP subjects", "mcp_subjects"),
        ("gates", "gates"),
        ("system prompt", "system_prompt"),
        ("created", "created_at"),
        ("updated", "updated_at"),
    ];
    let bot = names::find(client, Noun::Bot, bot).await?;
    if json {
        return output::json(&bot);
    }
    objects::fields(&bot, &FIELDS)?;
    let bindings = binding::of_bot(client, &names::text(&bot, "id")?).await?;
    output::line("")?;
    binding::list(client, &bindings, false).await
}
