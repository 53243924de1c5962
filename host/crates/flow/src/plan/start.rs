//! Begins attempts: evaluates what a step needs, and says what to do.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Planner;
use super::frame::Frame;
use super::types::{ApprovalTarget, Awaited, Block, Command, InstructionPart, StepError, StepKey, StepStatus, Work};
use crate::expr::{Piece, Template, time_ms};
use crate::model::{AgentUse, Approve, Branch, EACH_ITEMS_MAX, Step, StepKind, ToolUse, Wait};

impl<'d> Planner<'d> {
    /// Begins an attempt. A step whose expressions fail, fails. If the attempt was to repeat an uncertain one, the step stays
    /// uncertain.
    pub(super) fn attempt(&mut self, step: &'d Step, frame: &Frame, attempt: u32, same_request: bool) {
        let key = frame.key(&step.id);
        let before = self.current(step, frame).map(|row| row.status);
        let is_unknown = same_request && before == Some(StepStatus::Uncertain);
        let not_begun = if is_unknown { StepStatus::Uncertain } else { StepStatus::Failed };
        if let Some(error) = self.excess(1) {
            return self.finish(&key, attempt, not_begun, Value::Null, Some(error));
        }
        match self.command(step, frame, &key, attempt, same_request) {
            Ok(command) => {
                self.has_stopped |= matches!(step.kind, StepKind::Stop { .. });
                self.changed |= matches!(command, Command::Open { .. } | Command::Finish { .. });
                self.push(command);
            }
            Err(error) => self.finish(&key, attempt, not_begun, Value::Null, Some(error)),
        }
    }

    fn command(
        &self,
        step: &'d Step,
        frame: &Frame,
        key: &StepKey,
        attempt: u32,
        same_request: bool,
    ) -> Result<Command, StepError> {
        let start = |work: Work| {
            let approved_by = self.approvals.get(step.id.as_str()).cloned().unwrap_or_default();
            Command::Start { key: key.clone(), attempt, work, same_request, approved_by }
        };
        let done = |data: Value| {
            let (status, data) = (StepStatus::Succeeded, Arc::new(data));
            Command::Finish { key: key.clone(), attempt, status, data, error: None }
        };
        let open = |block: Block| Command::Open { key: key.clone(), attempt, block };
        Ok(match &step.kind {
            StepKind::Tool(tool) => start(self.tool(tool, frame)?),
            StepKind::Agent(agent) => start(self.agent(agent, frame)?),
            StepKind::Workflow { workflow, input } => {
                start(Work::Workflow { workflow: workflow.clone(), input: self.value(input, frame)? })
            }
            StepKind::Emit { name, data } => start(Work::Emit { name: name.clone(), data: self.value(data, frame)? }),
            StepKind::Choose(branches) => match self.chosen(branches, frame)? {
                Some(index) => open(Block::Choose(index)),
                None => done(json!({"branch": null})),
            },
            StepKind::Parallel(_) => open(Block::Parallel),
            StepKind::Each(each) => match self.items(&each.list, frame)? {
                items if items.is_empty() => done(json!([])),
                items => open(Block::Each(Arc::new(items))),
            },
            StepKind::Wait(wait) => self.wait(wait, frame, key, attempt)?,
            StepKind::Approve(approve) => Command::Wait {
                key: key.clone(),
                attempt,
                wait: self.question(approve, frame)?,
                until: Some(self.now.saturating_add(approve.expires_ms)),
            },
            StepKind::Stop { completed, message, output } => {
                let message = message.as_ref().map(|message| self.text(message, frame)).transpose()?;
                let output = output.as_ref().map(|output| self.value(output, frame)).transpose()?;
                let status = if *completed { "completed" } else { "failed" };
                done(json!({"status": status, "message": message, "output": output}))
            }
        })
    }

    /// Begins the call that undoes a step.
    pub(super) fn undo(&mut self, undo: &'d ToolUse, key: &StepKey, frame: &Frame) {
        match self.tool(undo, frame) {
            Ok(work) => {
                let (key, approved_by) = (key.clone(), Vec::new());
                self.push(Command::Start { key, attempt: 1, work, same_request: false, approved_by });
            }
            Err(error) => self.fail(key, 1, error),
        }
    }

    fn tool(&self, tool: &'d ToolUse, frame: &Frame) -> Result<Work, StepError> {
        let (params, resource) = self.call(tool, frame)?;
        Ok(Work::Tool { tool: tool.tool.clone(), resource, params })
    }

    fn call(&self, tool: &'d ToolUse, frame: &Frame) -> Result<(Value, Option<String>), StepError> {
        let resource = tool.resource.as_ref().map(|resource| self.text(resource, frame)).transpose()?;
        Ok((self.value(&tool.params, frame)?, resource))
    }

    fn agent(&self, agent: &'d AgentUse, frame: &Frame) -> Result<Work, StepError> {
        let part = |piece: &Piece| {
            Ok(match piece {
                Piece::Literal(text) => InstructionPart::Text(text.clone()),
                Piece::Expression(expression) => InstructionPart::Value(match self.expression(expression, frame)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                }),
            })
        };
        Ok(Work::Agent {
            instruction: agent.instruction.iter().map(part).collect::<Result<_, StepError>>()?,
            params: self.value(&agent.params, frame)?,
            output_schema: agent.output_schema.clone(),
            limits: agent.limits.clone(),
            narrow: agent.narrow.clone(),
        })
    }

    fn chosen(&self, branches: &'d [Branch], frame: &Frame) -> Result<Option<usize>, StepError> {
        for (index, branch) in branches.iter().enumerate() {
            if branch.when.as_ref().map_or(Ok(true), |when| self.holds(when, frame))? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    fn items(&self, list: &Template, frame: &Frame) -> Result<Vec<Value>, StepError> {
        let items = match self.value(list, frame)? {
            Value::Array(items) => items,
            _ => return Err(StepError::new("expression", "the value of `each` is not a list")),
        };
        if items.len() > EACH_ITEMS_MAX {
            let message = format!("the list of `each` has more than {EACH_ITEMS_MAX} items");
            return Err(StepError::new("limit", message));
        }
        Ok(items)
    }

    fn wait(&self, wait: &'d Wait, frame: &Frame, key: &StepKey, attempt: u32) -> Result<Command, StepError> {
        let (wait, until) = match wait {
            Wait::For(duration) => (Awaited::Time, Some(self.now.saturating_add(*duration))),
            Wait::Until(time) => {
                let text = self.text(time, frame)?;
                let time = time_ms(&text).ok_or_else(|| {
                    StepError::new("expression", "the value of `until` is not a time such as 2026-01-31T12:00:00Z")
                })?;
                (Awaited::Time, Some(time))
            }
            Wait::Event { event_type, matches, since_run } => {
                let field = |(name, value): &(String, Template)| Ok((name.clone(), self.value(value, frame)?));
                let matches = matches.iter().map(field).collect::<Result<_, StepError>>()?;
                let since = if *since_run { self.run.started_at } else { self.now };
                (Awaited::Event { event_type: event_type.clone(), matches, since }, None)
            }
        };
        Ok(Command::Wait { key: key.clone(), attempt, wait, until })
    }

    fn question(&self, approve: &'d Approve, frame: &Frame) -> Result<Awaited, StepError> {
        let mut targets = Vec::new();
        for id in &approve.targets {
            let Some(StepKind::Tool(tool)) = self.steps.get(id.as_str()).map(|step| &step.kind) else { continue };
            let (params, resource) = self.call(tool, frame)?;
            targets.push(ApprovalTarget { step: id.clone(), tool: tool.tool.clone(), resource, params });
        }
        Ok(Awaited::Approval {
            text: self.text(&approve.text, frame)?,
            targets,
            by: approve.by.clone(),
            allow_starter: approve.allow_starter,
        })
    }

    /// Returns how a `stop` step that has run ends the run: whether completed, the message and the output.
    pub(super) fn stopped_by(&self) -> Option<(StepKey, Map<String, Value>)> {
        let rows = self.journal.iter().filter(|row| row.run_attempt == self.run.attempt && !row.key.undo);
        rows.filter(|row| row.status == StepStatus::Succeeded).find_map(|row| {
            let step = self.steps.get(row.key.step.as_str())?;
            match (&step.kind, &*row.data) {
                (StepKind::Stop { .. }, Value::Object(members)) => Some((row.key.clone(), members.clone())),
                _ => None,
            }
        })
    }
}
