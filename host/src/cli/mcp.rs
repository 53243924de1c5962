//! `monstrum mcp`: lists the tools that the server or the agent behind a resource declares, and decides about them. A
//! decision is made only after the command has shown the definitions, and names their digests. `monstrum mcp oauth` finds
//! the authorization server of an MCP server.

mod oauth;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::names::{self, Noun};
use super::{Options, output};

const TOOLS_EXAMPLES: &str = "\
Examples:
  monstrum mcp tools tracker
  monstrum mcp tools tracker --status pending
  monstrum mcp tools tracker --json               with the definitions

RESOURCE is the name or the id of a resource of type `mcp` or `agent`.";

const DISCOVER_EXAMPLES: &str = "\
Examples:
  monstrum mcp discover tracker

New and changed tools wait for `monstrum mcp approve`.";

const APPROVE_EXAMPLES: &str = "\
Examples:
  monstrum mcp approve tracker                    all tools that wait: pending and changed ones
  monstrum mcp approve tracker get-issue --effect read
  monstrum mcp approve tracker get-issue --yes    does not ask for confirmation

Bots can use a tool as long as it is declared with the approved definition.";

const REJECT_EXAMPLES: &str = "\
Examples:
  monstrum mcp reject tracker delete-issue
  monstrum mcp reject tracker delete-issue --yes  does not ask for confirmation

A rejection also takes back an earlier approval.";

/// Decide about tools of MCP servers and remote agents
#[derive(Subcommand)]
pub(super) enum Mcp {
    /// List the tools that the server or the agent behind a resource declares
    #[command(after_help = TOOLS_EXAMPLES)]
    Tools {
        /// The name or the id of the resource
        resource: String,
        /// approved, pending, changed, rejected, invalid or gone [default: all]
        #[arg(long)]
        status: Option<String>,
    },
    /// Read the tools of the MCP server behind a resource now
    #[command(after_help = DISCOVER_EXAMPLES)]
    Discover {
        /// The name or the id of the resource
        resource: String,
    },
    /// Show definitions and approve them
    #[command(after_help = APPROVE_EXAMPLES)]
    Approve {
        #[command(flatten)]
        decide: Decide,
        /// The effect of a call of these tools
        #[arg(long, value_enum, default_value_t = CallEffect::Write)]
        effect: CallEffect,
    },
    /// Show definitions and reject them
    #[command(after_help = REJECT_EXAMPLES)]
    Reject(Decide),
    #[command(subcommand)]
    Oauth(oauth::Oauth),
}

#[derive(Args)]
pub(super) struct Decide {
    /// The name or the id of the resource
    resource: String,
    /// The original names of the tools
    tools: Vec<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// The effect of a call on the upstream.
#[derive(Clone, Copy, ValueEnum)]
pub(super) enum CallEffect {
    Read,
    Idempotent,
    Write,
}

impl CallEffect {
    fn as_str(self) -> &'static str {
        match self {
            CallEffect::Read => "read",
            CallEffect::Idempotent => "idempotent",
            CallEffect::Write => "write",
        }
    }
}

impl Mcp {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Mcp::Tools { resource, status } => {
                let id = names::id(&client, Noun::Resource, &resource).await?;
                let mut items = tools(&client, &id).await?;
                items.retain(|item| status.as_ref().is_none_or(|status| item["status"] == **status));
                list(&items, options.json)?;
            }
            Mcp::Discover { resource } => discover(&client, &resource, options.json).await?,
            Mcp::Approve { decide, effect } => decide.run(&client, "approve", Some(effect), options.json).await?,
            Mcp::Reject(decide) => decide.run(&client, "reject", None, options.json).await?,
            Mcp::Oauth(oauth) => oauth.run(&client, options.json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Decide {
    async fn run(self, client: &Client, verdict: &str, effect: Option<CallEffect>, json: bool) -> Result<(), Failure> {
        let Decide { resource, tools: names, yes } = self;
        let id = names::id(client, Noun::Resource, &resource).await?;
        let chosen = chosen(tools(client, &id).await?, &names, verdict)?;
        if !json {
            for tool in &chosen {
                show(tool)?;
            }
        }
        if !yes {
            let question = format!("{verdict} {}?", count(chosen.len()));
            output::confirm(&question, "check the definitions", "nothing was decided")?;
        }
        let decision = |tool: &Value| {
            let mut decision = json!({ "original_name": tool["original_name"], "digest": tool["digest"] });
            if let Some(effect) = effect {
                decision["effect"] = json!(effect.as_str());
            }
            decision
        };
        let body = json!({ "tools": chosen.iter().map(decision).collect::<Vec<_>>() });
        let answer = client.post(&["api", "resources", &id, "tools", verdict], Some(&body)).await?;
        if json {
            return output::json(&answer);
        }
        let done = if verdict == "approve" { "approved" } else { "rejected" };
        output::note(&format!("{done} {} of {resource}", count(chosen.len())));
        Ok(())
    }
}

async fn tools(client: &Client, resource: &str) -> Result<Vec<Value>, Failure> {
    let answer = client.get(&["api", "resources", resource, "tools"], &[]).await?;
    Ok(answer["items"].as_array().cloned().unwrap_or_default())
}

async fn discover(client: &Client, resource: &str, json: bool) -> Result<(), Failure> {
    let id = names::id(client, Noun::Resource, resource).await?;
    let answer = client.post(&["api", "resources", &id, "tools", "discover"], None).await?;
    let discovery = &answer["discovery"];
    if discovery["status"] != "ok" {
        let why = output::plain(discovery["error"].as_str().unwrap_or("the server could not be asked"));
        let hint = "check the URL, the network rules and the credential of the resource";
        return Err(Failure::new(format!("the discovery failed: {why}"), hint));
    }
    if json {
        return output::json(&answer);
    }
    let tools = tools(client, &id).await?;
    let with = |status: &str| tools.iter().filter(|tool| tool["status"] == *status).count();
    let (waiting, approved) = (with("pending") + with("changed"), with("approved"));
    output::note(&format!("{resource}: {} approved, {} to decide about", count(approved), count(waiting)));
    Ok(())
}

/// Returns the tools with these names. Without names, an approval means all tools that wait.
fn chosen(items: Vec<Value>, names: &[String], verdict: &str) -> Result<Vec<Value>, Failure> {
    let hint = "`monstrum mcp tools RESOURCE` lists the tools";
    if names.is_empty() {
        if verdict != "approve" {
            return Err(Failure::new("the command needs the name of at least one tool", hint));
        }
        let waits = |item: &Value| item["status"] == "pending" || item["status"] == "changed";
        let waiting: Vec<Value> = items.into_iter().filter(waits).collect();
        return if waiting.is_empty() { Err(Failure::new("no tool waits for approval", hint)) } else { Ok(waiting) };
    }
    let named = |name: &String| {
        let found = items.iter().find(|item| item["original_name"] == **name);
        found.cloned().ok_or_else(|| Failure::new(format!("the resource has no tool `{}`", output::plain(name)), hint))
    };
    names.iter().map(named).collect()
}

fn count(tools: usize) -> String {
    if tools == 1 { "1 tool".to_owned() } else { format!("{tools} tools") }
}

fn list(items: &[Value], json: bool) -> Result<(), Failure> {
    const FIELDS: [&str; 5] = ["name", "original_name", "status", "effect", "reason"];
    output::list(items, json, "no tools", ["NAME", "ORIGINAL NAME", "STATUS", "EFFECT", "REASON"], FIELDS)
}

fn show(tool: &Value) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 7] = [
        ("name", "name"),
        ("original name", "original_name"),
        ("status", "status"),
        ("reason", "reason"),
        ("effect", "effect"),
        ("declared effect", "hint"),
        ("digest", "digest"),
    ];
    let known = FIELDS.iter().filter(|(_, field)| !tool[*field].is_null());
    let mut fields: Vec<(&str, String)> = known.map(|(name, field)| (*name, output::cell(&tool[*field]))).collect();
    fields.push(("definition", output::json_text(&tool["definition"])));
    if tool["status"] == "changed" {
        fields.push(("approved", output::json_text(&tool["approved"]["definition"])));
    }
    output::fields(&fields)?;
    output::line("")
}
