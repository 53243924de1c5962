//! The keys of the turns of runs and of their steps.

use monstrum_store::{NewWake, RunStepKey, RunStepPhase};
use monstrum_types::{RunId, UtcMillis, WakeKey, WakeKind, WorkspaceId};

/// The last part of the key of a call that undoes a step. No item has this name: items are numbers.
const UNDO: &str = "undo";

/// Returns the key of the turns of a run.
///
/// # Panics
///
/// Never: an id has only characters of keys.
#[must_use]
pub fn run_key(run: RunId) -> WakeKey {
    WakeKey::new(WakeKind::Run, run).expect("an id has only characters of keys")
}

/// Returns the key of the turns of a step: all attempts have one key, so that one of them runs at a time. A step with a name
/// that no definition can have, which another program has written, has the turns of its run.
#[must_use]
pub fn step_key(key: &RunStepKey) -> WakeKey {
    let RunStepKey { run_id, phase, step, item, .. } = key;
    let mut id = format!("{run_id}/{step}");
    for part in [item.as_str(), if *phase == RunStepPhase::Undo { UNDO } else { "" }] {
        if !part.is_empty() {
            id.push('/');
            id.push_str(part);
        }
    }
    WakeKey::new(WakeKind::Step, id).unwrap_or_else(|_| run_key(*run_id))
}

/// Reads the key of the turns of a step: the run, the phase, the step and the item. Returns `None` for another key.
#[must_use]
pub fn parse_step_key(key: &WakeKey) -> Option<(RunId, RunStepPhase, String, String)> {
    if key.kind() != WakeKind::Step {
        return None;
    }
    let parts: Vec<&str> = key.id().split('/').collect();
    let (run, step, rest) = match parts.as_slice() {
        [run, step, rest @ ..] if !step.is_empty() => (run.parse().ok()?, (*step).to_owned(), rest),
        _ => return None,
    };
    let is_item = |item: &str| item.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let (phase, item) = match rest {
        [] => (RunStepPhase::Do, ""),
        [last] if *last == UNDO => (RunStepPhase::Undo, ""),
        [item] if is_item(item) => (RunStepPhase::Do, *item),
        [item, last] if is_item(item) && *last == UNDO => (RunStepPhase::Undo, *item),
        _ => return None,
    };
    Some((run, phase, step, item.to_owned()))
}

/// Returns a request for a turn at a time.
#[must_use]
pub fn wake(key: WakeKey, workspace: WorkspaceId, now: UtcMillis) -> NewWake {
    NewWake { key, workspace_id: workspace, due_at: now, claim: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(phase: RunStepPhase, item: &str) -> RunStepKey {
        RunStepKey {
            run_id: RunId::new(),
            phase,
            step: "announce_2".to_owned(),
            item: item.to_owned(),
            run_attempt: 1,
            attempt: 1,
        }
    }

    #[test]
    fn the_key_of_a_step_is_read_as_it_was_written() {
        for phase in [RunStepPhase::Do, RunStepPhase::Undo] {
            for item in ["", "3", "3.0.12"] {
                let step = key(phase, item);
                let read = parse_step_key(&step_key(&step));
                assert_eq!(read, Some((step.run_id, phase, step.step.clone(), item.to_owned())));
                // All attempts of a step take turns together.
                let later = RunStepKey { run_attempt: 2, attempt: 7, ..step.clone() };
                assert_eq!(step_key(&later), step_key(&step));
            }
        }
        assert_ne!(step_key(&key(RunStepPhase::Do, "")), step_key(&key(RunStepPhase::Undo, "")));
    }

    #[test]
    fn a_step_that_no_definition_has_takes_no_turns() {
        let forged = RunStepKey { step: "a b\0".to_owned(), ..key(RunStepPhase::Do, "") };
        assert_eq!(step_key(&forged), run_key(forged.run_id));
    }

    #[test]
    fn other_keys_are_no_steps() {
        let run = RunId::new();
        let others = [
            format!("run/{run}"),
            format!("step/{run}"),
            format!("step/{run}/"),
            format!("step/{run}/a/b"),
            format!("step/{run}/a/3/4"),
            format!("step/{run}/a/3/undo/undo"),
            format!("step/{run}/a/3./undo"),
            "step/x/a".to_owned(),
        ];
        for other in others {
            assert_eq!(parse_step_key(&other.parse().unwrap()), None, "{other}");
        }
        assert_eq!(run_key(run).as_str(), format!("run/{run}"));
    }
}
