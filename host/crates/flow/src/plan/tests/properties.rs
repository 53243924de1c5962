//! Random definitions and histories.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::model::{OnError, Step, StepKind};

/// Writes a list of random steps.
struct Writer<'r> {
    next: &'r mut dyn FnMut(u32) -> u32,
    steps: usize,
    may_stop: bool,
}

impl Writer<'_> {
    fn list(&mut self, depth: u32) -> String {
        let count = 1 + (self.next)(3);
        let mut ids: Vec<String> = Vec::new();
        let mut list = String::from("[");
        for _ in 0..count {
            let id = format!("s{}", self.steps);
            self.steps += 1;
            let kind = self.kind(depth);
            let _ = write!(list, "{{ id: {id}, {kind}");
            if (self.next)(3) == 0 {
                let needs: Vec<&str> = ids.iter().filter(|_| (self.next)(2) == 0).map(String::as_str).collect();
                let _ = write!(list, ", needs: [{}]", needs.join(", "));
            }
            match (self.next)(8) {
                0 => list.push_str(", when: 'false'"),
                1 => list.push_str(", when: input.missing"),
                2 => list.push_str(", on_error: continue"),
                _ => {}
            }
            list.push_str(" }, ");
            ids.push(id);
        }
        list.push(']');
        list
    }

    fn kind(&mut self, depth: u32) -> String {
        let blocks = if depth < 3 && self.steps < 25 { 12 } else { 9 };
        match (self.next)(blocks) {
            0 => "tool: t, undo: { tool: u }, retry: { attempts: 3 }".to_owned(),
            1 => "tool: t, on_uncertain: ask, timeout: 20s".to_owned(),
            2 => "tool: t, on_uncertain: retry, undo: { tool: u }".to_owned(),
            3 => "wait: { for: 10s }".to_owned(),
            4 => "wait: { event: custom.x }, timeout: 30s".to_owned(),
            5 => "approve: { text: x, expires: 1m }".to_owned(),
            6 => "emit: x".to_owned(),
            7 if self.may_stop && (self.next)(3) == 0 => {
                ["stop: completed", "stop: failed"][(self.next)(2) as usize].to_owned()
            }
            7 | 8 => "agent: { instruction: x }".to_owned(),
            9 => format!("parallel: {{ x: {}, y: {} }}", self.list(depth + 1), self.list(depth + 1)),
            10 => format!(
                "choose: [{{ when: input.n == 1, steps: {} }}, {{ steps: {} }}]",
                self.list(depth + 1),
                self.list(depth + 1)
            ),
            _ => {
                let rest = ["", "on_item_error: continue, ", "concurrency: 1, "][(self.next)(3) as usize];
                format!("each: [1, 2, 3], {rest}steps: {}", self.list(depth + 1))
            }
        }
    }
}

/// What a run has begun, to compare it with the rules.
fn check_starts(world: &World, commands: &[Command]) {
    let mut begun: BTreeSet<(StepKey, u32, u32)> =
        world.history.rows.iter().map(|row| (row.key.clone(), row.run_attempt, row.attempt)).collect();
    let mut history = world.history.clone();
    let finally = world.definition.finally_ids();
    let stops = ids(&world.definition, |kind| matches!(kind, StepKind::Stop { .. }));
    let has_stopped = |row: &StepRow| {
        let is_now = row.run_attempt == world.history.run.attempt && row.status == StepStatus::Succeeded;
        is_now && stops.contains(row.key.step.as_str())
    };
    for command in commands {
        if let Command::Start { key, attempt, .. }
        | Command::Open { key, attempt, .. }
        | Command::Wait { key, attempt, .. } = command
        {
            let fresh = begun.insert((key.clone(), world.history.run.attempt, *attempt));
            assert!(fresh, "{key} attempt {attempt} begins twice");
            if !key.undo {
                check_needs(&world.definition, &history, key);
                let is_end = finally.contains(key.step.as_str());
                assert!(is_end || !history.rows.iter().any(has_stopped), "{key} begins after a stop");
            }
        }
        history.apply(command, world.now);
    }
    check_concurrency(&world.definition, &history);
}

/// The ids of the steps for which `is` holds.
fn ids(definition: &Definition, is: impl Fn(&StepKind) -> bool) -> BTreeSet<&str> {
    let mut ids = BTreeSet::new();
    definition.walk(&mut |step| {
        if is(&step.kind) {
            ids.insert(step.id.as_str());
        }
    });
    ids
}

/// No list of `each` has more active items than it allows.
fn check_concurrency(definition: &Definition, history: &History) {
    let active: Vec<&StepRow> = history.rows.iter().filter(|row| row.status.is_active()).collect();
    definition.walk(&mut |block| {
        let StepKind::Each(each) = &block.kind else { return };
        let mut inside = BTreeSet::new();
        each.steps.iter().for_each(|step| {
            step.walk(&mut |step| {
                inside.insert(step.id.as_str());
            });
        });
        for open in active.iter().filter(|row| row.key.step == block.id) {
            let start = if open.key.item.is_empty() { String::new() } else { format!("{}.", open.key.item) };
            let here = active.iter().filter(|row| inside.contains(row.key.step.as_str()) && !row.key.undo);
            let items: BTreeSet<&str> =
                here.filter_map(|row| row.key.item.strip_prefix(&start)?.split('.').next()).collect();
            assert!(items.len() <= each.concurrency as usize, "{} has the items {items:?}", open.key);
        }
    });
}

/// Each need of a step has ended well, was skipped, or failed with `on_error: continue`.
fn check_needs(definition: &Definition, history: &History, key: &StepKey) {
    let mut lists: Vec<&[Step]> = vec![&definition.steps, &definition.finally];
    definition.walk(&mut |step| lists.extend(step.inner()));
    let list = lists.into_iter().find(|list| list.iter().any(|step| step.id == key.step)).unwrap();
    let step = list.iter().find(|step| step.id == key.step).unwrap();
    for need in &step.needs {
        let needed = list.iter().find(|step| step.id == *need).unwrap();
        let of_need = StepKey { step: need.clone(), ..key.clone() };
        let row = history.rows.iter().rfind(|row| row.key == of_need).unwrap_or_else(|| panic!("{key} needs {need}"));
        let is_kept = row.run_attempt < history.run.attempt;
        assert!(!is_kept || row.status == StepStatus::Succeeded, "{key} began although {need} was not kept");
        // Neither a `stop` nor a decision is kept, inside a block either.
        needed.walk(&mut |inner| {
            let is_kept = is_kept && matches!(inner.kind, StepKind::Stop { .. } | StepKind::Approve(_));
            let has_run = |other: &StepRow| {
                let is_it = other.key.step == inner.id && other.run_attempt == row.run_attempt;
                is_it && other.status == StepStatus::Succeeded && other.key.item.starts_with(&key.item)
            };
            assert!(!(is_kept && history.rows.iter().any(has_run)), "{key} began, but {} was kept", inner.id);
        });
        let is_met = match row.status {
            StepStatus::Succeeded | StepStatus::Skipped | StepStatus::Undone => true,
            StepStatus::Failed | StepStatus::Cancelled | StepStatus::Uncertain => needed.on_error == OnError::Continue,
            StepStatus::Running | StepStatus::Waiting => false,
        };
        assert!(is_met, "{key} began although {need} is {:?}", row.status);
    }
}

/// How often a run that failed or was cancelled is begun at most.
const RUN_ATTEMPTS: u32 = 3;

/// Runs a random definition to its end, and again if it failed.
fn simulate(choices: &[u32]) -> Result<(), TestCaseError> {
    let mut at = 0;
    let mut next = |most: u32| {
        at += 1;
        choices[at % choices.len()].wrapping_add(u32::try_from(at / choices.len()).unwrap()) % most
    };
    let mut writer = Writer { next: &mut next, steps: 0, may_stop: true };
    let steps = writer.list(0);
    writer.may_stop = false;
    let finally = writer.list(2);
    let text = format!("workflow: w\nbot: b\nsteps: {steps}\nfinally: {finally}\noutput: {{ x: 1 }}\n");
    let mut world = World::of(&text, json!({"n": next(2)}));
    let mut snapshots: Vec<(History, i64, Vec<Command>)> = Vec::new();
    for round in 0.. {
        prop_assert!(round < 3_000, "the run does not end: {text}");
        let commands = plan(&world.definition, &world.history, world.now);
        check_starts(&world, &commands);
        if round % 4 == 0 {
            snapshots.push((world.history.clone(), world.now, commands.clone()));
            // A plan that was done in part begins nothing again.
            let mut partly =
                World { definition: world.definition.clone(), history: world.history.clone(), now: world.now };
            let done = if commands.is_empty() { 0 } else { round / 4 % commands.len() };
            commands[..done].iter().for_each(|command| partly.history.apply(command, partly.now));
            check_starts(&partly, &plan(&partly.definition, &partly.history, partly.now));
        }
        commands.iter().for_each(|command| world.history.apply(command, world.now));
        if let Some(Command::EndRun { .. }) = commands.last() {
            prop_assert!(
                world.history.rows.iter().all(|row| !row.status.is_active()),
                "something goes on after the end"
            );
            let is_completed = matches!(commands.last(), Some(Command::EndRun { status: RunEnd::Completed, .. }));
            if is_completed || world.history.run.attempt == RUN_ATTEMPTS || next(3) > 0 {
                return Ok(());
            }
            world.retry();
            continue;
        }
        answer(&mut world, &commands, &mut next);
    }
    Ok(())
}

/// Lets something happen: an outcome, a decision, or the next time.
fn answer(world: &mut World, commands: &[Command], next: &mut dyn FnMut(u32) -> u32) {
    if next(40) == 0 {
        world.history.run.cancel = Some(Cancellation { undo: next(2) == 0 });
    }
    world.history.run.paused = next(10) == 0 && !world.history.run.paused;
    let attempt = world.history.run.attempt;
    let is_open = |row: &&StepRow| row.run_attempt == attempt && row.status.is_active() && row.block.is_none();
    let open: Vec<StepKey> = world.history.rows.iter().filter(is_open).map(|row| row.key.clone()).collect();
    let asked =
        |row: &&StepRow| row.run_attempt == attempt && row.asked && row.status == StepStatus::Uncertain && !row.repeat;
    let asked = world.history.rows.iter().find(asked).map(|row| row.key.clone());
    if let (Some(key), true) = (asked, next(3) == 0) {
        let row = world.history.rows.iter_mut().rfind(|row| row.key == key).unwrap();
        match next(2) {
            0 => row.repeat = true,
            _ => row.status = StepStatus::Succeeded,
        }
        return;
    }
    if let (false, true) = (open.is_empty(), next(4) > 0) {
        let key = &open[next(u32::try_from(open.len()).unwrap()) as usize];
        world.now += 1;
        let row = world.history.rows.iter_mut().rfind(|row| row.key == *key).unwrap();
        row.effect = [Effect::Read, Effect::Idempotent, Effect::Write][next(3) as usize];
        row.may_have_happened = next(2) == 0;
        let status = match next(6) {
            0 => StepStatus::Failed,
            1 if row.status == StepStatus::Running => StepStatus::Uncertain,
            2 if row.cancelling => StepStatus::Cancelled,
            _ => StepStatus::Succeeded,
        };
        let error = (status == StepStatus::Failed).then(|| StepError::new("upstream", "m"));
        world.history.end(key, status, json!({"x": 1}), error, world.now);
        return;
    }
    if let Some(Command::SetTimer { at }) = commands.last() {
        world.now = world.now.max(*at);
    } else {
        world.now += 1_000;
    }
}

#[test]
fn runs_end_and_begin_nothing_twice_or_too_early() {
    // Each case is one definition with one history. The seed is fixed, so that a failure is found again.
    let config =
        ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::with_cases(10_000) };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    runner.run(&prop::collection::vec(any::<u32>(), 8..60), |choices| simulate(&choices)).unwrap();
}
