//! Measures the time until a change of the policy is in force on a host with 500 000 bindings. The cost of a change
//! must not depend on the number of unchanged rows.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use monstrum_store::BindingRow;
use serde_json::json;
use support::{Api, InProcess};

use crate::machine::Machine;
use crate::process::{cpu_time, memory_bytes};
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{PLUGIN, TOOL};

const BOTS: usize = 10_000;
const FEW_BOTS: usize = 10;
/// The number of resources. Every bot is bound to every resource.
const RESOURCES: usize = 50;
const CHANGES: usize = 100;
const FORCE_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const GOAL_P99_US: f64 = 50_000.0;
const GOAL_CPU: f64 = 2.0;
const GOAL_BYTES: f64 = 1_000.0;

/// Measures a change: the time until it is in force, its CPU time, and the memory of the bindings. Returns one row for
/// each measurement.
pub async fn measure(rounds: usize, machine: &Machine) -> Result<Vec<Row>> {
    let few = Filled::make(FEW_BOTS).await?;
    let many = Filled::make(BOTS).await?;
    let (mut times, mut cpu) = (Rounds::default(), Rounds::default());
    for _ in 0..rounds {
        let ((many, many_cpu), (few, few_cpu)) = (many.change().await?, few.change().await?);
        times.add(many, few);
        cpu.add(Sample::of_time_us(many_cpu), Sample::of_time_us(few_cpu));
    }
    let bindings = BOTS * RESOURCES;
    let name = format!("a change in force, {bindings} bindings");
    let floor = format!("with {}", FEW_BOTS * RESOURCES);
    let goal = machine.time_us(GOAL_P99_US);
    let words = format!("p99 <= {:.0} ms", goal / 1e3);
    let change = Row::new((&name, &floor), Measure::Time, &times, &words, |_, side| side.p99_us <= goal);
    let name = "CPU of such a change, client included";
    let cpu = Row::new((name, &floor), Measure::Time, &cpu, "<= 2 x", |ratio, _| ratio <= GOAL_CPU);
    let each = many.memory.saturating_sub(few.memory) as f64 / bindings as f64;
    let goal = format!("<= 1 KB per binding (now {each:.0} B)");
    let memory = Row::of_memory(("memory of these bindings (Pss)", &floor), many.memory, few.memory);
    few.host.stop().await;
    many.host.stop().await;
    Ok(vec![change, cpu, memory.with_goal(&goal, each <= GOAL_BYTES)])
}

/// A host in this process, with one workspace of bots that are bound to all resources.
struct Filled {
    host: InProcess,
    api: Api,
    binding: BindingRow,
    /// The memory that this process needs for the bindings, in bytes.
    memory: u64,
}

impl Filled {
    async fn make(bots: usize) -> Result<Filled> {
        let host = InProcess::start(&[PLUGIN]).await?;
        let before = memory_bytes(std::process::id())?;
        let (api, policy) = (host.api()?, &host.running.app.policy);
        let began = Instant::now();
        let binding = host.fill(PLUGIN, bots, RESOURCES).await?;
        let filled = began.elapsed();
        let (workspace, bot) = (binding.workspace_id, binding.bot_id);
        while policy.load().bot(workspace, bot).is_none_or(|bot| bot.bindings.len() < RESOURCES) {
            ensure!(began.elapsed() < filled + FORCE_MAX, "the bindings are not in force after {FORCE_MAX:?}");
            tokio::time::sleep(POLL).await;
        }
        println!(
            "    {} bindings: filled in {filled:?}, in force {:?} later",
            bots * RESOURCES,
            began.elapsed() - filled
        );
        let memory = memory_bytes(std::process::id())?.saturating_sub(before);
        Ok(Filled { host, api, binding, memory })
    }

    /// Disables and enables a binding repeatedly, and checks that each change is in force. Returns the times of the
    /// changes and the mean CPU time of a change.
    async fn change(&self) -> Result<(Sample, f64)> {
        let BindingRow { bot_id, id, resource_id, .. } = self.binding;
        let path = format!("/api/bots/{bot_id}/resources/{id}");
        let question = json!({ "params": { "repo": "acme/site" }, "resource_id": resource_id });
        let check = format!("/api/bots/{bot_id}/tools/{TOOL}/check");
        let (began, mut times) = (Instant::now(), Vec::with_capacity(CHANGES));
        let cpu = cpu_time(std::process::id())?;
        for number in 0..CHANGES {
            let is_enabled = number % 2 == 1;
            let begun = Instant::now();
            let (status, body) = self.api.patch(&path, &json!({ "enabled": is_enabled })).await?;
            let (checked, decision) = self.api.post(&check, &question).await?;
            times.push(begun.elapsed());
            ensure!(
                status == 200 && checked == 200,
                "the change or its check failed: {status} {body}; {checked} {decision}"
            );
            ensure!((decision["decision"] == "allow") == is_enabled, "the change is not in force: {decision}");
        }
        let cpu = cpu_time(std::process::id())? - cpu;
        Ok((Sample::new(times, began.elapsed()), cpu.as_secs_f64() * 1e6 / CHANGES as f64))
    }
}
