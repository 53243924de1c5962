//! The places of the tasks that run at once on a host.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use monstrum_types::{BotId, WorkspaceId};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum number of tasks that run at once on a host. A task that waits for a model needs little, so the limit is far
/// above the number of rounds that providers allow at once.
const TASKS_MAX: usize = 256;
/// The maximum number of tasks of one workspace that run at once on a host, so that one workspace leaves room for others.
const TASKS_OF_WORKSPACE_MAX: usize = 128;
/// The maximum number of tasks of one bot that run at once on a host, so that one bot leaves room for others.
const TASKS_OF_BOT_MAX: usize = 16;

/// The places of a host, of each workspace and of each bot.
pub(crate) struct Places {
    of_host: Arc<Semaphore>,
    of_workspaces: Group<WorkspaceId>,
    of_bots: Group<BotId>,
}

/// The place of a task, which the task gives up while it waits for another task. Otherwise, tasks that wait for tasks of
/// the same bot could hold all places that these need.
pub(crate) struct PlaceOfTask(Mutex<Option<Place>>);

impl PlaceOfTask {
    /// Holds a place. `place` is `None` for a task that has only to end.
    pub(crate) fn new(place: Option<Place>) -> PlaceOfTask {
        PlaceOfTask(Mutex::new(place))
    }

    /// Gives the place to other tasks.
    pub(crate) fn give_up(&self) {
        drop(self.0.lock().take());
    }

    /// Waits for a place, unless the task has one.
    pub(crate) async fn take(&self, places: &Places, (workspace, bot): (WorkspaceId, BotId)) {
        let is_held = self.0.lock().is_some();
        if !is_held {
            let place = places.enter(workspace, bot).await;
            *self.0.lock() = Some(place);
        }
    }
}

/// The place of a task that runs. It is free when the value is dropped.
pub(crate) struct Place {
    _permits: [OwnedSemaphorePermit; 3],
}

impl Places {
    pub(crate) fn new() -> Places {
        Places {
            of_host: Arc::new(Semaphore::new(TASKS_MAX)),
            of_workspaces: Group::new(TASKS_OF_WORKSPACE_MAX),
            of_bots: Group::new(TASKS_OF_BOT_MAX),
        }
    }

    /// Waits for a place. A task that waits for its bot takes none of the places of its workspace, and a task that waits
    /// for its workspace takes none of those of the host.
    pub(crate) async fn enter(&self, workspace: WorkspaceId, bot: BotId) -> Place {
        let of_bot = permit(self.of_bots.of(bot)).await;
        let of_workspace = permit(self.of_workspaces.of(workspace)).await;
        let of_host = permit(Arc::clone(&self.of_host)).await;
        Place { _permits: [of_bot, of_workspace, of_host] }
    }
}

async fn permit(places: Arc<Semaphore>) -> OwnedSemaphorePermit {
    places.acquire_owned().await.expect("the semaphore is never closed")
}

/// The places of each workspace or of each bot that has tasks.
struct Group<K> {
    places: usize,
    of: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K: Eq + Hash> Group<K> {
    fn new(places: usize) -> Group<K> {
        Group { places, of: Mutex::default() }
    }

    fn of(&self, key: K) -> Arc<Semaphore> {
        let mut of = self.of.lock();
        if let Some(places) = of.get(&key).and_then(Weak::upgrade) {
            return places;
        }
        of.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.places));
        of.insert(key, Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Enters if no wait is necessary.
    fn entered(places: &Places, workspace: WorkspaceId, bot: BotId) -> Option<Place> {
        places.enter(workspace, bot).now_or_never()
    }

    #[tokio::test]
    async fn a_task_that_waits_leaves_its_place_to_others() {
        let places = Places::new();
        let of = (WorkspaceId::new(), BotId::new());
        let enter = || entered(&places, of.0, of.1);
        let task = PlaceOfTask::new(enter());
        let mut held: Vec<Place> = (1..TASKS_OF_BOT_MAX).filter_map(|_| enter()).collect();
        assert!(enter().is_none());
        task.take(&places, of).await;
        assert!(enter().is_none(), "the task keeps its place");
        task.give_up();
        held.extend(enter());
        assert_eq!(held.len(), TASKS_OF_BOT_MAX);
        assert!(task.take(&places, of).now_or_never().is_none(), "the task waits for its turn");
        held.pop();
        task.take(&places, of).await;
        assert!(enter().is_none());
    }

    #[test]
    fn one_bot_and_one_workspace_leave_room_for_others() {
        let places = Places::new();
        let (workspace, bot) = (WorkspaceId::new(), BotId::new());
        let mut held: Vec<Place> = (0..TASKS_OF_BOT_MAX).filter_map(|_| entered(&places, workspace, bot)).collect();
        assert_eq!(held.len(), TASKS_OF_BOT_MAX);
        assert!(entered(&places, workspace, bot).is_none(), "the bot has no place");
        held.extend(
            (TASKS_OF_BOT_MAX..TASKS_OF_WORKSPACE_MAX).filter_map(|_| entered(&places, workspace, BotId::new())),
        );
        assert_eq!(held.len(), TASKS_OF_WORKSPACE_MAX);
        assert!(entered(&places, workspace, BotId::new()).is_none(), "the workspace has no place");
        let other = WorkspaceId::new();
        held.extend((0..TASKS_OF_WORKSPACE_MAX).filter_map(|_| entered(&places, other, BotId::new())));
        assert_eq!(held.len(), TASKS_MAX);
        assert!(entered(&places, WorkspaceId::new(), BotId::new()).is_none(), "the host has no place");
        held.remove(0);
        assert!(entered(&places, workspace, bot).is_some(), "a place of each is free");
        drop(held);
        drop(entered(&places, WorkspaceId::new(), BotId::new()));
        assert!(places.of_bots.of.lock().len() <= 1 && places.of_workspaces.of.lock().len() <= 1);
    }
}
