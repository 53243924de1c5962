//! `monstrum approval`: lists approvals, shows them, and decides about them. A decision is made only after the command
//! has shown the call or the step, and names the digest of exactly this.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::{ApprovalId, BotId};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::{Options, output};

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum approval list
  monstrum approval list --status denied --bot-id 01998a3c-…
  monstrum approval list --kind step
  monstrum approval list --status all --json

Without --status, the command lists pending approvals.";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum approval show 01998a3c-…
  monstrum approval show 01998a3c-… --json";

const APPROVE_EXAMPLES: &str = "\
Examples:
  monstrum approval approve 01998a3c-…
  monstrum approval approve 01998a3c-… --note 'as agreed in the ticket'
  monstrum approval approve 01998a3c-… --yes     does not ask for confirmation

An approval permits one call with exactly these parameters. The caller repeats the call, unless the call waits for the
approval. The approval of a step of a workflow lets the run go on, and permits exactly the calls that the command shows.";

const DENY_EXAMPLES: &str = "\
Examples:
  monstrum approval deny 01998a3c-…
  monstrum approval deny 01998a3c-… --note 'not before the release' --yes

The caller reads the note. Until the approval expires, the same call is denied without asking again. A step of a workflow
that is denied fails.";

/// Decide about calls and steps of workflows that wait for a person
#[derive(Subcommand)]
pub(super) enum Approval {
    /// List approvals
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// pending, approved, denied, used, expired, void, or all
        #[arg(long, default_value = "pending")]
        status: String,
        /// call or step
        #[arg(long)]
        kind: Option<String>,
        /// The bot that makes the calls, or as which the workflows run
        #[arg(long, value_name = "ID")]
        bot_id: Option<BotId>,
    },
    /// Show an approval with the parameters of its calls
    #[command(after_help = SHOW_EXAMPLES)]
    Show { id: ApprovalId },
    /// Show a call or a step and approve it
    #[command(after_help = APPROVE_EXAMPLES)]
    Approve(Decide),
    /// Show a call or a step and deny it
    #[command(after_help = DENY_EXAMPLES)]
    Deny(Decide),
}

#[derive(Args)]
pub(super) struct Decide {
    id: ApprovalId,
    /// A note of at most 1 KiB, which is stored with the decision
    #[arg(long)]
    note: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl Approval {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Approval::List { status, kind, bot_id } => {
                let mut query = Vec::new();
                if status != "all" {
                    query.push(("status", status));
                }
                query.extend(kind.map(|kind| ("kind", kind)));
                query.extend(bot_id.map(|id| ("bot_id", id.to_string())));
                list(&client.items(&["api", "approvals"], &query).await?, options.json)?;
            }
            Approval::Show { id } => {
                let approval = read(&client, id).await?;
                if options.json { output::json(&approval)? } else { show(&approval)? }
            }
            Approval::Approve(decide) => decide.run(&client, "approve", options.json).await?,
            Approval::Deny(decide) => decide.run(&client, "deny", options.json).await?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Decide {
    async fn run(self, client: &Client, decision: &str, json: bool) -> Result<(), Failure> {
        let Decide { id, note, yes } = self;
        let approval = read(client, id).await?;
        if !json {
            show(&approval)?;
        }
        if !yes {
            let what = if approval["kind"] == "step" { "step" } else { "call" };
            output::confirm(&format!("{decision} this {what}?"), &format!("check the {what}"), "nothing was decided")?;
        }
        let body = json!({ "decision": decision, "digest": approval["digest"], "note": note });
        let decided = client.post(&["api", "approvals", &id.to_string()], Some(&body)).await?;
        if json {
            return output::json(&decided);
        }
        output::note(&format!("{} approval {id}", if decision == "approve" { "granted" } else { "denied" }));
        Ok(())
    }
}

async fn read(client: &Client, id: ApprovalId) -> Result<Value, Failure> {
    client.get(&["api", "approvals", &id.to_string()], &[]).await
}

fn list(items: &[Value], json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&json!({ "items": items, "next_cursor": null }));
    }
    let row = |item: &Value| {
        let tool = if item["tool"].is_null() { named(item) } else { output::cell(&item["tool"]) };
        let [id, status, bot, created, expires] =
            ["id", "status", "bot_id", "created_at", "expires_at"].map(|field| output::cell(&item[field]));
        vec![id, status, bot, tool, created, expires]
    };
    output::table(&["ID", "STATUS", "BOT", "TOOL OR STEP", "CREATED", "EXPIRES"], items.iter().map(row).collect())
}

/// Returns the name of a step of a workflow, with its item.
fn named(approval: &Value) -> String {
    let step = output::cell(&approval["step"]);
    if approval["item"].is_null() { step } else { format!("{step}[{}]", output::cell(&approval["item"])) }
}

fn show(approval: &Value) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 12] = [
        ("id", "id"),
        ("status", "status"),
        ("bot", "bot_id"),
        ("tool", "tool"),
        ("operation", "operation"),
        ("effect", "effect"),
        ("resource", "resource_id"),
        ("run", "run_id"),
        ("approvers", "approvers"),
        ("expires", "expires_at"),
        ("note", "note"),
        ("digest", "digest"),
    ];
    let known = FIELDS.iter().filter(|(_, field)| !approval[*field].is_null());
    let mut fields: Vec<(&str, String)> = known.map(|(name, field)| (*name, output::cell(&approval[*field]))).collect();
    if let Some(user) = approval["user"].as_object() {
        fields.push(("user", ["app_id", "user_id"].map(|part| output::cell(&user[part])).join(" / ")));
    }
    for gate in approval["gates"].as_array().into_iter().flatten() {
        fields.push(("gate", format!("{}: {}", output::cell(&gate["holder"]), output::cell(&gate["reason"]))));
    }
    for link in approval["links"].as_array().into_iter().flatten() {
        fields.push(("on behalf of", output::cell(&link["from"])));
    }
    if approval["kind"] == "step" {
        fields.push(("step", named(approval)));
        let text = if approval["text"].is_null() { "(deleted)".to_owned() } else { output::cell(&approval["text"]) };
        fields.push(("question", text));
        for target in approval["for"].as_array().into_iter().flatten() {
            let [step, tool, operation, effect, resource] =
                ["step", "tool", "operation", "effect", "resource_id"].map(|field| output::cell(&target[field]));
            fields.push(("approves", format!("{step}: {tool} ({operation}, {effect}) on {resource}")));
            fields.push(("parameters", params(target)));
        }
    } else {
        fields.push(("parameters", params(approval)));
    }
    output::fields(&fields)
}

fn params(of: &Value) -> String {
    match &of["params"] {
        Value::Null => "(deleted)".to_owned(),
        params => output::json_text(params),
    }
}
