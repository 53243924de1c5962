//! The wakes of the next minute, in memory, and the order in which due ones start.

use std::collections::{BTreeSet, HashMap, VecDeque};

use monstrum_types::{UtcMillis, WakeKey, WakeKind, WorkspaceId};

use crate::limits::{SCHEDULED_MAX, TASK_TURNS_MAX, TURNS_MAX, TURNS_NOT_STEPS, WORKSPACE_TURNS_MAX};

/// A wake in memory. The row decides whether a turn runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    pub(crate) key: WakeKey,
    pub(crate) workspace_id: WorkspaceId,
    pub(crate) due_at: UtcMillis,
}

/// The kinds of turns that have limits of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Class {
    Step,
    Task,
    Other,
}

impl Class {
    const ALL: [Class; 3] = [Class::Other, Class::Step, Class::Task];

    fn of(kind: WakeKind) -> Class {
        match kind {
            WakeKind::Step => Class::Step,
            WakeKind::Task => Class::Task,
            WakeKind::Event | WakeKind::Delivery | WakeKind::Schedule | WakeKind::Run => Class::Other,
        }
    }
}

/// The wakes in memory.
#[derive(Default)]
pub(crate) struct Schedule {
    /// The wakes that are not due, by time.
    later: BTreeSet<(UtcMillis, WakeKey)>,
    /// The wakes that are due and wait for room.
    ready: [Ready; Class::ALL.len()],
    known: HashMap<WakeKey, Known>,
    /// Whether a wake was left out because there was no room for it.
    left_out: bool,
}

struct Known {
    workspace_id: WorkspaceId,
    due_at: UtcMillis,
    is_ready: bool,
}

/// The wakes of one class that wait for room. The workspaces take turns.
#[derive(Default)]
struct Ready {
    queues: HashMap<WorkspaceId, VecDeque<WakeKey>>,
    order: VecDeque<WorkspaceId>,
}

/// The turns that run.
#[derive(Default)]
pub(crate) struct Room {
    steps: usize,
    others: usize,
    tasks: usize,
    /// The turns of each workspace, without those of tasks.
    workspaces: HashMap<WorkspaceId, usize>,
}

impl Schedule {
    /// Adds a wake, or brings it forward. Without room, the wake that is due last is left out.
    pub(crate) fn add(&mut self, wake: Scheduled) {
        let Scheduled { key, workspace_id, due_at } = wake;
        if let Some(known) = self.known.get_mut(&key) {
            if due_at < known.due_at {
                if !known.is_ready {
                    self.later.remove(&(known.due_at, key.clone()));
                    self.later.insert((due_at, key));
                }
                known.due_at = due_at;
            }
            return;
        }
        if self.known.len() >= SCHEDULED_MAX {
            self.left_out = true;
            if self.later.last().is_none_or(|(last, _)| *last <= due_at) {
                return;
            }
            if let Some((_, last)) = self.later.pop_last() {
                self.known.remove(&last);
            }
        }
        self.later.insert((due_at, key.clone()));
        self.known.insert(key, Known { workspace_id, due_at, is_ready: false });
    }

    /// Removes all wakes.
    pub(crate) fn clear(&mut self) {
        *self = Schedule::default();
    }

    /// Returns whether wakes were left out that the schedule now has room for. The caller searches for them.
    pub(crate) fn take_left_out(&mut self) -> bool {
        let has_room = self.known.len() < SCHEDULED_MAX / 2;
        has_room && std::mem::take(&mut self.left_out)
    }

    /// Returns the time of the next wake that is not due yet.
    pub(crate) fn next_due(&self) -> Option<UtcMillis> {
        self.later.first().map(|(due_at, _)| *due_at)
    }

    /// Removes up to `max` wakes that are due and that have room, and takes the room. Of each class, the workspaces take
    /// turns; the wakes of one workspace have the order of their times.
    pub(crate) fn take(&mut self, now: UtcMillis, room: &mut Room, max: usize) -> Vec<Scheduled> {
        while let Some((due_at, _)) = self.later.first()
            && *due_at <= now
            && let Some((_, key)) = self.later.pop_first()
        {
            if let Some(known) = self.known.get_mut(&key) {
                known.is_ready = true;
                self.ready[Class::of(key.kind()) as usize].push(known.workspace_id, key);
            }
        }
        let mut taken = Vec::new();
        for class in Class::ALL {
            while taken.len() < max
                && room.has_room(class)
                && let Some(key) = self.ready[class as usize].next(|workspace| room.is_at_half(class, workspace))
            {
                if let Some(Known { workspace_id, due_at, .. }) = self.known.remove(&key) {
                    room.enter(key.kind(), workspace_id);
                    taken.push(Scheduled { key, workspace_id, due_at });
                }
            }
        }
        taken
    }
}

impl Ready {
    fn push(&mut self, workspace: WorkspaceId, key: WakeKey) {
        let queue = self.queues.entry(workspace).or_default();
        if queue.is_empty() {
            self.order.push_back(workspace);
        }
        queue.push_back(key);
    }

    /// Removes the next wake. A workspace that has half of the room is passed over while another one waits.
    fn next(&mut self, is_at_half: impl Fn(WorkspaceId) -> bool) -> Option<WakeKey> {
        let is_alone = self.order.len() == 1;
        for _ in 0..self.order.len() {
            let workspace = self.order.pop_front()?;
            if is_at_half(workspace) && !is_alone {
                self.order.push_back(workspace);
                continue;
            }
            let queue = self.queues.get_mut(&workspace)?;
            let key = queue.pop_front();
            if queue.is_empty() {
                self.queues.remove(&workspace);
            } else {
                self.order.push_back(workspace);
            }
            return key;
        }
        None
    }
}

impl Room {
    fn has_room(&self, class: Class) -> bool {
        match class {
            Class::Task => self.tasks < TASK_TURNS_MAX,
            Class::Step => self.steps < TURNS_MAX - TURNS_NOT_STEPS && self.steps + self.others < TURNS_MAX,
            Class::Other => self.steps + self.others < TURNS_MAX,
        }
    }

    fn is_at_half(&self, class: Class, workspace: WorkspaceId) -> bool {
        class != Class::Task && self.workspaces.get(&workspace).is_some_and(|turns| *turns >= WORKSPACE_TURNS_MAX)
    }

    fn running(&mut self, class: Class) -> &mut usize {
        match class {
            Class::Step => &mut self.steps,
            Class::Task => &mut self.tasks,
            Class::Other => &mut self.others,
        }
    }

    /// Counts a turn that begins.
    pub(crate) fn enter(&mut self, kind: WakeKind, workspace: WorkspaceId) {
        let class = Class::of(kind);
        *self.running(class) += 1;
        if class != Class::Task {
            *self.workspaces.entry(workspace).or_default() += 1;
        }
    }

    /// Counts a turn that has ended.
    pub(crate) fn leave(&mut self, kind: WakeKind, workspace: WorkspaceId) {
        let class = Class::of(kind);
        let running = self.running(class);
        *running = running.saturating_sub(1);
        if class != Class::Task
            && let Some(turns) = self.workspaces.get_mut(&workspace)
        {
            *turns = turns.saturating_sub(1);
            if *turns == 0 {
                self.workspaces.remove(&workspace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake(kind: WakeKind, id: usize, workspace_id: WorkspaceId, due_at: i64) -> Scheduled {
        Scheduled { key: WakeKey::new(kind, id.to_string()).unwrap(), workspace_id, due_at: UtcMillis(due_at) }
    }

    fn ids(taken: &[Scheduled]) -> Vec<&str> {
        taken.iter().map(|wake| wake.key.id()).collect()
    }

    #[test]
    fn wakes_start_at_their_time_in_order() {
        let (mut schedule, mut room, workspace) = (Schedule::default(), Room::default(), WorkspaceId::new());
        for (id, due_at) in [(1, 30), (2, 10), (3, 20), (1, 5), (2, 40)] {
            schedule.add(wake(WakeKind::Run, id, workspace, due_at));
        }
        assert_eq!(schedule.next_due(), Some(UtcMillis(5)), "a wake is brought forward");
        assert_eq!(ids(&schedule.take(UtcMillis(10), &mut room, 9)), ["1", "2"]);
        assert_eq!(schedule.next_due(), Some(UtcMillis(20)));
        assert_eq!(ids(&schedule.take(UtcMillis(99), &mut room, 9)), ["3"]);
        assert_eq!((schedule.next_due(), schedule.take(UtcMillis(99), &mut room, 9)), (None, Vec::new()));
    }

    #[test]
    fn steps_leave_room_for_other_turns_and_tasks_take_none() {
        let (mut schedule, mut room, workspace) = (Schedule::default(), Room::default(), WorkspaceId::new());
        for id in 0..300 {
            schedule.add(wake(WakeKind::Step, id, workspace, 0));
            schedule.add(wake(WakeKind::Task, id, workspace, 0));
        }
        let taken = schedule.take(UtcMillis(0), &mut room, 1000);
        let count = |kind| taken.iter().filter(|wake| wake.key.kind() == kind).count();
        assert_eq!((count(WakeKind::Step), count(WakeKind::Task)), (TURNS_MAX - TURNS_NOT_STEPS, 300));
        for id in 0..300 {
            schedule.add(wake(WakeKind::Schedule, id, workspace, 0));
        }
        assert_eq!(schedule.take(UtcMillis(0), &mut room, 1000).len(), TURNS_NOT_STEPS);
        room.leave(WakeKind::Schedule, workspace);
        let next = schedule.take(UtcMillis(0), &mut room, 1000);
        assert_eq!(next.iter().map(|wake| wake.key.kind()).collect::<Vec<_>>(), [WakeKind::Schedule]);
    }

    #[test]
    fn no_workspace_has_more_than_half_while_another_waits() {
        let (mut schedule, mut room) = (Schedule::default(), Room::default());
        let (large, small) = (WorkspaceId::new(), WorkspaceId::new());
        for id in 0..1000 {
            schedule.add(wake(WakeKind::Run, id, large, 0));
        }
        for id in 1000..1200 {
            schedule.add(wake(WakeKind::Run, id, small, 1));
        }
        let taken = schedule.take(UtcMillis(1), &mut room, 1000);
        let of = |workspace| taken.iter().filter(|wake| wake.workspace_id == workspace).count();
        assert_eq!((of(large), of(small)), (TURNS_MAX / 2, TURNS_MAX / 2));
        // The small workspace still has wakes, so the room that it leaves is its own.
        for _ in 0..72 {
            room.leave(WakeKind::Run, small);
        }
        let taken = schedule.take(UtcMillis(1), &mut room, 1000);
        assert!(taken.len() == 72 && taken.iter().all(|wake| wake.workspace_id == small));
        // Now the large one is alone and takes all the room.
        for _ in 0..100 {
            room.leave(WakeKind::Run, small);
        }
        assert_eq!(schedule.take(UtcMillis(1), &mut room, 1000).len(), 100);
    }

    #[test]
    fn wakes_without_room_in_memory_are_searched_for_later() {
        let (mut schedule, mut room, workspace) = (Schedule::default(), Room::default(), WorkspaceId::new());
        for id in 0..=SCHEDULED_MAX {
            schedule.add(wake(WakeKind::Run, id, workspace, 0));
        }
        assert!(!schedule.take_left_out(), "there is no room yet");
        while schedule.known.len() >= SCHEDULED_MAX / 2 {
            for wake in schedule.take(UtcMillis(0), &mut room, 1000) {
                room.leave(wake.key.kind(), wake.workspace_id);
            }
        }
        assert!(schedule.take_left_out());
        assert!(!schedule.take_left_out());
    }
}
