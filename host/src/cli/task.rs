//! `monstrum task`: starts tasks of bots, follows them, and lists, shows and cancels them.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use monstrum_types::{SessionId, TaskId};
use owo_colors::{OwoColorize as _, Stream};
use serde_json::{Value, json};

use super::client::Client;
use super::failure::Failure;
use super::fields::Text;
use super::names::{self, Noun};
use super::{Options, output, stream};

const RUN_EXAMPLES: &str = "\
Examples:
  monstrum task run triage 'Label the new issues of acme/site' --watch
  monstrum task run triage 'And now the pull requests' --session 01998a3c-… --watch
  monstrum task run triage 'Label the new issues' --steps 20 --wall-s 600 --json
  monstrum task run triage 'Which issues are new?' --allow-tool 'github_list_*' --allow-tool 'github_get_*'
  monstrum task run triage 'Count the new issues' --label untrusted --output-schema @count.json

Without --watch, the command prints the task and does not wait for its end. With --watch, it prints the texts of the model
as they arrive and each call as it ends; the exit code is 0 if the task is completed, and 1 otherwise. Ctrl-C ends the
command, not the task.";

const LIST_EXAMPLES: &str = "\
Examples:
  monstrum task list
  monstrum task list --bot triage --status running
  monstrum task list --session 01998a3c-… --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  monstrum task show 01998a3c-…
  monstrum task show 01998a3c-… --json     the task and its steps";

const CANCEL_EXAMPLES: &str = "\
Examples:
  monstrum task cancel 01998a3c-…

The task ends within a second. A call that was running may have taken effect.";

/// The number of items that `list` shows.
const LISTED_MAX: usize = 50;

/// Let bots work on instructions
#[derive(Subcommand)]
pub(super) enum Task {
    /// Start a task of a bot
    #[command(after_help = RUN_EXAMPLES)]
    Run(Run),
    /// List tasks, newest first
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// The name or the id of the bot
        #[arg(long)]
        bot: Option<String>,
        /// queued, running, completed, failed or cancelled
        #[arg(long)]
        status: Option<String>,
        /// The session of the tasks
        #[arg(long, value_name = "ID")]
        session: Option<SessionId>,
    },
    /// Show a task with its steps
    #[command(after_help = SHOW_EXAMPLES)]
    Show { id: TaskId },
    /// Cancel a task
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel { id: TaskId },
}

#[derive(Args)]
pub(super) struct Run {
    /// The name or the id of the bot
    bot: String,
    /// What the bot is to do
    instruction: String,
    /// Data that the model reads below the instruction, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = json_value)]
    params: Option<Value>,
    /// Continue this session
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// A glob for the names of tools that the task may use; can be repeated [default: all tools of the bot]
    #[arg(long = "allow-tool", alias = "allowed-tools", value_name = "GLOB", value_delimiter = ',')]
    allow_tool: Option<Vec<String>>,
    /// A label of what the instruction comes from, such as untrusted; can be repeated
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// The JSON Schema of the result, or @FILE for a file that contains it
    #[arg(long, value_name = "SCHEMA")]
    output_schema: Option<Text>,
    /// The maximum number of steps [default: 50]
    #[arg(long, value_name = "N")]
    steps: Option<u32>,
    /// The maximum number of tokens
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// The time limit in seconds [default: 3600]
    #[arg(long, value_name = "S")]
    wall_s: Option<u32>,
    /// Print what happens until the task ends
    #[arg(long)]
    watch: bool,
}

impl Task {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let client = Client::new(options)?;
        match self {
            Task::Run(run) => return run.start(&client, options.json).await,
            Task::List { bot, status, session } => {
                let mut query = Vec::new();
                if let Some(bot) = bot {
                    query.push(("bot_id", names::id(&client, Noun::Bot, &bot).await?));
                }
                query.extend(status.map(|status| ("status", status)));
                query.extend(session.map(|id| ("session_id", id.to_string())));
                let (items, _) = client.list(&["api", "tasks"], &query, LISTED_MAX).await?;
                let header = ["ID", "STATUS", "BOT", "STEPS", "CREATED", "INSTRUCTION"];
                let fields = ["id", "status", "bot_id", "steps", "created_at", "instruction"];
                output::list(&items, options.json, "there are no such tasks", header, fields)?;
            }
            Task::Show { id } => show(&client, id, options.json).await?,
            Task::Cancel { id } => {
                let task = client.delete(&["api", "tasks", &id.to_string()]).await?;
                let text = match task["ended_at"].is_null() {
                    true => format!("cancelled task {id}"),
                    false => format!("task {id} has ended: {}", output::cell(&task["status"])),
                };
                output::done(options.json, &task, &text)?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    async fn start(self, client: &Client, is_json: bool) -> Result<ExitCode, Failure> {
        let Run { bot, instruction, params, session, allow_tool, labels, output_schema, steps, tokens, wall_s, watch } =
            self;
        let output_schema = output_schema.map(|schema| parsed_schema(&schema.read()?)).transpose()?;
        let bot = names::id(client, Noun::Bot, &bot).await?;
        let limits = json!({ "steps": steps, "tokens": tokens, "wall_s": wall_s });
        let narrow = allow_tool.map(|tools| json!({ "allowed_tools": tools }));
        let body = json!({
            "instruction": instruction, "params": params, "session_id": session, "narrow": narrow, "limits": limits,
            "labels": labels, "output_schema": output_schema,
        });
        let task = client.post(&["api", "bots", &bot, "tasks"], Some(&body)).await?;
        let id = names::text(&task, "id")?;
        if watch {
            if !is_json {
                output::note(&format!("task {id}"));
            }
            return follow(client, &id, is_json).await;
        }
        match is_json {
            true => output::json(&task)?,
            false => output::line(&id)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn json_value(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text)
}

fn parsed_schema(text: &str) -> Result<Value, Failure> {
    let hint = "use --output-schema with a JSON Schema, or with @FILE";
    serde_json::from_str(text).map_err(|error| Failure::of("the schema is not JSON", &error, hint))
}

/// Prints what happens in a task until it ends. After a lost connection, continues after the last step.
async fn follow(client: &Client, id: &str, is_json: bool) -> Result<ExitCode, Failure> {
    let path = ["api", "tasks", id, "events"];
    let mut watched = Watched::default();
    stream::until_its_end(client, &path, is_json, |event, data| watched.print(event, data)).await
}

/// What a person sees of a task.
#[derive(Default)]
struct Watched {
    /// The round whose text is being printed, and what was printed of it.
    round: Option<i64>,
    heard: String,
    /// Whether the last text has no line end.
    is_open: bool,
}

impl Watched {
    fn print(&mut self, event: &str, data: &Value) -> Result<(), Failure> {
        match event {
            "delta" if data["channel"] == "text" => {
                let text = output::cell(&data["text"]);
                if self.round != data["step"].as_i64() {
                    (self.round, self.heard) = (data["step"].as_i64(), String::new());
                }
                self.heard.push_str(&text);
                self.text(&text)
            }
            "call" => {
                self.end_line()?;
                // The call is printed again with its end. On a terminal, this line shows what the task waits for.
                if std::io::stderr().is_terminal() {
                    output::note(&format!("… {}", output::plain(&output::cell(&data["tool"]))));
                }
                Ok(())
            }
            "approval" => {
                self.end_line()?;
                let at = data["url"].as_str().map(|url| format!(" at {url}")).unwrap_or_default();
                output::note(&output::plain(&format!("waits for the approval {}{at}", output::cell(&data["id"]))));
                Ok(())
            }
            "step" if data["kind"] == "round" => {
                let (text, heard) = (output::cell(&data["text"]), std::mem::take(&mut self.heard));
                let heard = if self.round == data["sequence"].as_i64() { heard } else { String::new() };
                match text.strip_prefix(&heard) {
                    Some(rest) => self.text(rest)?,
                    // The beginning was missed, or the round was asked again.
                    None => {
                        self.end_line()?;
                        self.text(&text)?;
                    }
                }
                self.end_line()
            }
            "step" if data["kind"] == "summary" => {
                self.end_line()?;
                output::note("… summarised earlier steps, to make room");
                Ok(())
            }
            "step" => {
                self.end_line()?;
                output::line(call(data))
            }
            "end" => {
                self.end_line()?;
                let mut text = output::cell(&data["status"]);
                for field in ["code", "message"] {
                    if let Some(value) = data[field].as_str() {
                        text.push_str(&format!(": {value}"));
                    }
                }
                let (steps, used) = (output::cell(&data["steps"]), &data["usage"]);
                let tokens = ["input_tokens", "output_tokens"].map(|field| output::cell(&used[field])).join(" + ");
                output::note(&output::plain(&format!("{text} ({steps} steps, {tokens} tokens)")));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        let mut stdout = std::io::stdout().lock();
        let written = write!(stdout, "{}", output::plain(text)).and_then(|()| stdout.flush());
        written.map_err(|error| Failure::from_error(&error, "check where the output goes"))?;
        self.is_open = !text.ends_with('\n');
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.is_open) {
            output::line("")?;
        }
        Ok(())
    }
}

/// Returns the line of a call that has ended.
fn call(step: &Value) -> String {
    let is_ok = step["status"] == "success";
    let mark = if is_ok { "✓" } else { "✗" };
    let mark = match is_ok {
        true => mark.if_supports_color(Stream::Stdout, |mark| mark.green()).to_string(),
        false => mark.if_supports_color(Stream::Stdout, |mark| mark.red()).to_string(),
    };
    let params = match &step["params"] {
        Value::Null => String::new(),
        params => params.to_string(),
    };
    let shortened: String = params.chars().take(100).collect();
    let mut text = format!("{} {shortened}", output::cell(&step["tool"]));
    if let Some(message) = step["message"].as_str() {
        text.push_str(&format!("  {message}"));
    }
    format!("{mark} {}", output::plain(&text.replace('\n', " ")))
}

async fn show(client: &Client, id: TaskId, is_json: bool) -> Result<(), Failure> {
    const FIELDS: [(&str, &str); 11] = [
        ("id", "id"),
        ("status", "status"),
        ("code", "code"),
        ("message", "message"),
        ("bot", "bot_id"),
        ("session", "session_id"),
        ("started by", "started_by"),
        ("created", "created_at"),
        ("ended", "ended_at"),
        ("instruction", "instruction"),
        ("result", "result"),
    ];
    let id = id.to_string();
    let mut task = client.get(&["api", "tasks", &id], &[]).await?;
    let steps = steps(client, &id).await?;
    if is_json {
        task["items"] = Value::Array(steps);
        return output::json(&task);
    }
    output::given_fields(&task, &FIELDS)?;
    let row = |step: &Value| {
        let status = if step["status"].is_null() { "running".to_owned() } else { output::cell(&step["status"]) };
        let what = if step["kind"] == "call" { &step["params"] } else { &step["text"] };
        let what: String = output::cell(what).chars().take(80).collect();
        vec![output::cell(&step["sequence"]), output::cell(&step["kind"]), output::cell(&step["tool"]), status, what]
    };
    let rows = steps.iter().map(row).collect();
    output::line("")?;
    output::table(&["STEP", "KIND", "TOOL", "STATUS", "WHAT"], rows)
}

/// Reads all steps of a task, page by page.
async fn steps(client: &Client, id: &str) -> Result<Vec<Value>, Failure> {
    let (mut items, mut after) = (Vec::new(), 0);
    loop {
        let query = [("after", after.to_string()), ("limit", "1000".to_owned())];
        let mut page = client.get(&["api", "tasks", id, "steps"], &query).await?;
        if let Value::Array(steps) = page["items"].take() {
            items.extend(steps);
        }
        match page["next_after"].as_i64() {
            Some(next) if next > after => after = next,
            _ => return Ok(items),
        }
    }
}
