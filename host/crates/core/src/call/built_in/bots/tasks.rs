//! Tasks of another bot: the tools of the type `bot` that start a task and ask about it, and the platform functions that
//! do the same for infrastructure code.
//!
//! The task is the other bot's. It acts under the links of the call and under the link of the resource.

use std::sync::Arc;

use monstrum_api::tools::Chat;
use monstrum_guardian::Permit;
use monstrum_runtime::RESULT_BYTES_MAX;
use monstrum_types::{BotId, CallOutcome, Code, InputError, JsonText, Labels, Status, TaskId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::call::child_calls::ChildCalls;
use crate::call::permitted::Execution;
use crate::call_types::links::Link;
use crate::call_types::refusal::{Refusal, invalid_params};
use crate::call_types::starts_tasks::{AskedTask, StartedTask, Starter, StartsTasks, TaskAnswer, TaskReport};
use crate::call_types::task_step::Origin;
use crate::plugins::built_in::{BOT_FUNCTIONS, EXECUTE_TASK, QUERY, TASK_STATUS};

#[derive(Deserialize)]
struct Instruction {
    instruction: String,
    params: Option<Value>,
}

#[derive(Deserialize)]
struct Question {
    question: String,
}

#[derive(Deserialize)]
struct Asked {
    task_id: String,
}

/// The parameters of a platform function.
#[derive(Deserialize)]
struct Of<T> {
    bot_id: BotId,
    #[serde(flatten)]
    rest: T,
}

/// Runs a tool about tasks.
pub(super) async fn run(
    tasks: Arc<dyn StartsTasks>,
    execution: &Execution<'_>,
    permit: &Permit,
    child_calls: &ChildCalls,
) -> CallOutcome {
    let call = execution.call;
    let ran = async {
        let (bot, links) = (child_calls.bot(), child_calls.links());
        let carried = || call.labels().carried().clone();
        match permit.tool() {
            EXECUTE_TASK => {
                let Instruction { instruction, params } = read(permit.params())?;
                execute(tasks, started(execution, (bot, links), carried(), (instruction, params))?).await
            }
            QUERY => {
                let Question { question } = read(permit.params())?;
                query(tasks, execution, started(execution, (bot, links), carried(), (question, None))?).await
            }
            TASK_STATUS => {
                let Asked { task_id } = read(permit.params())?;
                let starter = Some(Starter::new(links, call.app_user()));
                report(tasks, execution, (bot, &task_id), starter).await
            }
            _ => Err(unavailable("this server cannot run the tool")),
        }
    };
    ran.await.unwrap_or_else(|refusal| *refusal)
}

/// Runs a platform function.
pub(super) async fn run_function(
    tasks: Arc<dyn StartsTasks>,
    execution: &Execution<'_>,
    permit: &Permit,
    function: &str,
) -> CallOutcome {
    let [execute_task, ask, status] = BOT_FUNCTIONS;
    let params = permit.params();
    let ran = async {
        if execution.target.resource.is_some() {
            return Err(invalid("/resource_id", "the functions of this type take `bot_id`, and no resource"));
        }
        if function == execute_task {
            let Of { bot_id, rest: Instruction { instruction, params } } =
                read_only(params, &["instruction", "params"])?;
            known(execution, bot_id)?;
            execute(tasks, started(execution, (bot_id, &[]), Labels::none(), (instruction, params))?).await
        } else if function == ask {
            let Of { bot_id, rest: Question { question } } = read_only(params, &["question"])?;
            known(execution, bot_id)?;
            query(tasks, execution, started(execution, (bot_id, &[]), Labels::none(), (question, None))?).await
        } else if function == status {
            let Of { bot_id, rest: Asked { task_id } } = read_only(params, &["task_id"])?;
            known(execution, bot_id)?;
            report(tasks, execution, (bot_id, &task_id), None).await
        } else {
            Err(unavailable("this server cannot run the function"))
        }
    };
    ran.await.unwrap_or_else(|refusal| *refusal)
}

/// Reads the parameters of a tool, which match its schema.
fn read<T: DeserializeOwned>(params: &Map<String, Value>) -> Result<T, Refusal> {
    serde_json::from_value(Value::Object(params.clone())).map_err(|error| invalid("", error.to_string()))
}

/// Reads the parameters of a function, which has no schema: the bot and these.
fn read_only<T: DeserializeOwned>(params: &Map<String, Value>, names: &[&str]) -> Result<Of<T>, Refusal> {
    match params.keys().find(|name| *name != "bot_id" && !names.contains(&name.as_str())) {
        Some(name) => Err(invalid(format!("/{name}"), "undeclared parameter")),
        None => read(params),
    }
}

fn known(execution: &Execution<'_>, bot: BotId) -> Result<(), Refusal> {
    let found = execution.pipeline.policy.load().bot(execution.call.workspace(), bot).is_some();
    if found { Ok(()) } else { Err(invalid("/bot_id", "no such bot in this workspace")) }
}

/// Returns the task that the call starts. A user with an access token starts no task, because the task would not end with
/// the token.
fn started(
    execution: &Execution<'_>,
    (bot, links): (BotId, &[Link]),
    labels: Labels,
    (instruction, params): (String, Option<Value>),
) -> Result<StartedTask, Refusal> {
    let call = execution.call;
    if call.token_user().is_some() {
        let message = "tasks of other bots are started with an API key, not with an access token";
        let outcome = CallOutcome::failure(Status::PermissionDenied, Code::Denied, message);
        return Err(Box::new(outcome.by_rule("access_token")));
    }
    // The conversation was checked when the call arrived.
    let chat = call.context().get("chat").map(Chat::deserialize).transpose();
    Ok(StartedTask {
        request: call.request_id(),
        workspace: call.workspace(),
        bot,
        key: call.key().copied(),
        links: links.to_vec(),
        parent: call.origin().and_then(Origin::task),
        run: call.origin().and_then(Origin::run),
        chat: chat.map_err(|error| unavailable(&format!("the conversation of the call cannot be read: {error}")))?,
        labels,
        instruction,
        params,
    })
}

async fn execute(tasks: Arc<dyn StartsTasks>, task: StartedTask) -> Result<CallOutcome, Refusal> {
    let id = tasks.execute(task).await?;
    Ok(CallOutcome::success(JsonText::from(&json!({ "task_id": id }))))
}

/// Waits for the answer. The task of the call gives its place to the other task.
async fn query(
    tasks: Arc<dyn StartsTasks>,
    execution: &Execution<'_>,
    task: StartedTask,
) -> Result<CallOutcome, Refusal> {
    if let Some(of_call) = execution.call.task() {
        of_call.lease.give_place();
    }
    let TaskAnswer { answer, labels } = tasks.query(task).await?;
    execution.call.labels().has_read(&labels);
    Ok(sized(&json!({ "answer": answer? })))
}

async fn report(
    tasks: Arc<dyn StartsTasks>,
    execution: &Execution<'_>,
    (bot, task): (BotId, &str),
    starter: Option<Starter>,
) -> Result<CallOutcome, Refusal> {
    // One answer for all tasks that are not the caller's, so that it does not tell which of them exist.
    let not_found = || invalid("/task_id", "the other bot has no such task from you");
    let id: TaskId = task.parse().map_err(|_| not_found())?;
    let asked = AskedTask { workspace: execution.call.workspace(), bot, id, starter };
    let TaskReport { status, result, message, labels } = tasks.report(asked).await?.ok_or_else(not_found)?;
    execution.call.labels().has_read(&labels);
    let mut shown = json!({ "status": status });
    for (name, text) in [("result", result), ("message", message)] {
        if let Some(text) = text {
            shown[name] = Value::from(text);
        }
    }
    Ok(sized(&shown))
}

fn sized(data: &Value) -> CallOutcome {
    let text = JsonText::from(data);
    if text.as_str().len() > RESULT_BYTES_MAX {
        return CallOutcome::error(Code::ResultTooLarge, "the answer of the other bot exceeds the limit of 1 MiB");
    }
    CallOutcome::success(text)
}

fn invalid(path: impl Into<String>, message: impl Into<String>) -> Refusal {
    Box::new(invalid_params(&[InputError { path: path.into(), message: message.into() }]))
}

fn unavailable(message: &str) -> Refusal {
    Box::new(CallOutcome::error(Code::Unavailable, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_takes_the_bot_and_its_own_parameters() {
        let bot = BotId::new();
        let read = |value: Value| {
            let read = read_only::<Instruction>(value.as_object().unwrap(), &["instruction", "params"]);
            read.map(|read| (read.bot_id, read.rest.instruction)).map_err(|refusal| refusal.message.unwrap_or_default())
        };
        assert_eq!(read(json!({ "bot_id": bot, "instruction": "x" })), Ok((bot, "x".to_owned())));
        for (params, told) in [
            (json!({ "bot_id": bot }), "missing field `instruction`"),
            (json!({ "instruction": "x" }), "missing field `bot_id`"),
            (json!({ "bot_id": "b", "instruction": "x" }), "Invalid parameters"),
            (json!({ "bot_id": bot, "instruction": 1 }), "invalid type"),
            (json!({ "bot_id": bot, "instruction": "x", "question": "y" }), "/question: undeclared parameter"),
        ] {
            let refused = read(params.clone()).unwrap_err();
            assert!(refused.contains(told), "{params}: {refused}");
        }
    }
}
