//! How many calls run at once: on this host, of one plugin, of one bot, of one binding. A call that finds no room waits
//! up to 5 s. Room that becomes free goes to the waiting bots in turn, so that a bot with many calls delays its own and
//! nobody else's.
//!
//! A call under another one holds up the call that made it, so it must not wait for room that only its ancestors could
//! give up. It runs in its root's place among the bot's calls. Plugins have a lane for each depth: who waits in one holds
//! room of lesser depths only, and the deepest calls wait for nobody below, so that there is always one that goes on. In
//! a binding that an ancestor has a place in it shares that place. And it does not wait for the host as a whole: where
//! every place is taken, the calls that hold them may all be waiting for one like it.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use monstrum_types::{BindingId, BotId, PluginName};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::config::CallsAtOnce;

/// How long a call waits for room (plugin-contract).
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// Calls that wait in one lane. Each holds its parameters, 1 MiB at most, so this bounds memory; with calls of 30 s,
/// whoever stands further behind would not get room within [`WAIT_MAX`] anyway.
const WAITING_MAX: usize = 1024;

/// Room for one call; dropping it makes room for the next.
pub struct Place {
    _tickets: Vec<Ticket>,
}

/// No room within [`WAIT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// Among the calls of the plugin, the bot or the binding.
    Busy,
    /// On the whole host.
    Full,
}

/// Who asks for room.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// None for infrastructure, which takes its turn like a bot.
    pub bot: Option<BotId>,
    /// The binding, where it allows so many calls at once.
    pub binding: Option<(BindingId, u32)>,
    /// None where it has room of its own, as the machines of sandboxes have.
    pub plugin: Option<&'a PluginName>,
    /// How many calls it stands under.
    pub depth: u8,
    /// Bindings with a number of calls of their own in which an ancestor has its place.
    pub held: &'a [BindingId],
}

/// The lanes of all plugins, bots and bindings.
pub struct Lanes {
    room: CallsAtOnce,
    all: Arc<Lane>,
    bots: Keyed<Option<BotId>>,
    plugins: Keyed<(PluginName, u8)>,
    bindings: Keyed<(BindingId, u32)>,
}

impl Lanes {
    /// Lanes in which nothing runs.
    pub fn new(room: CallsAtOnce) -> Lanes {
        Lanes {
            room,
            all: Lane::new(room.in_all),
            bots: Keyed::default(),
            plugins: Keyed::default(),
            bindings: Keyed::default(),
        }
    }

    /// Waits for room: first among the bot's own calls, so that a busy bot queues behind itself, last on the whole host.
    pub async fn enter(&self, asking: &Asking<'_>) -> Result<Place, NoRoom> {
        let Asking { bot, binding, plugin, depth, held } = *asking;
        let until = Instant::now() + WAIT_MAX;
        let mut tickets = Vec::with_capacity(4);
        if depth == 0 {
            tickets.push(self.bots.lane(&bot, self.room.per_bot).enter(bot, until).await.ok_or(NoRoom::Busy)?);
        }
        if let Some(binding) = binding.filter(|(binding, _)| !held.contains(binding)) {
            tickets.push(self.bindings.lane(&binding, binding.1).enter(bot, until).await.ok_or(NoRoom::Busy)?);
        }
        if let Some(plugin) = plugin {
            let of_plugin = self.plugins.lane(&(plugin.clone(), depth), self.room.per_plugin);
            tickets.push(of_plugin.enter(bot, until).await.ok_or(NoRoom::Busy)?);
        }
        let on_the_host =
            if depth == 0 { self.all.clone().enter(bot, until).await } else { self.all.clone().enter_now() };
        tickets.push(on_the_host.ok_or(NoRoom::Full)?);
        Ok(Place { _tickets: tickets })
    }

    /// Calls that run.
    pub fn running(&self) -> u32 {
        self.room.in_all.saturating_sub(self.all.lock().free)
    }

    /// Calls that may run at once.
    pub fn room(&self) -> u32 {
        self.room.in_all
    }

    /// Calls that wait for room in any lane.
    pub fn waiting(&self) -> usize {
        self.all.lock().calls_waiting + self.bots.waiting() + self.plugins.waiting() + self.bindings.waiting()
    }
}

/// One lane a key. Lanes that nobody uses are dropped when there are many.
struct Keyed<K>(Mutex<HashMap<K, Arc<Lane>>>);

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Keyed(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Keyed<K> {
    /// Idle lanes are swept when this many are held.
    const SWEEP_AT: usize = 4096;

    fn lane(&self, key: &K, room: u32) -> Arc<Lane> {
        let mut lanes = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(lane) = lanes.get(key) {
            return Arc::clone(lane);
        }
        if lanes.len() >= Self::SWEEP_AT {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        Arc::clone(lanes.entry(key.clone()).or_insert_with(|| Lane::new(room)))
    }

    fn waiting(&self) -> usize {
        let lanes = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lanes.values().map(|lane| lane.lock().calls_waiting).sum()
    }
}

/// Room for some calls, and the bots that wait for it.
struct Lane(Mutex<Turns>);

struct Turns {
    free: u32,
    /// The bots that wait, whose turn is next first, each with its calls in the order of their arrival.
    waiting: VecDeque<(Option<BotId>, VecDeque<oneshot::Sender<Ticket>>)>,
    calls_waiting: usize,
}

/// Room in one lane.
struct Ticket(Option<Arc<Lane>>);

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(lane) = self.0.take() {
            lane.leave();
        }
    }
}

impl Lane {
    fn new(room: u32) -> Arc<Lane> {
        Arc::new(Lane(Mutex::new(Turns { free: room.max(1), waiting: VecDeque::new(), calls_waiting: 0 })))
    }

    /// `None`: no room at present.
    fn enter_now(self: Arc<Self>) -> Option<Ticket> {
        {
            let mut turns = self.lock();
            turns.free = turns.free.checked_sub(1)?;
        }
        Some(Ticket(Some(self)))
    }

    /// `None`: no room until then.
    async fn enter(self: Arc<Self>, bot: Option<BotId>, until: Instant) -> Option<Ticket> {
        let turn = {
            let mut turns = self.lock();
            if turns.free > 0 {
                turns.free -= 1;
                drop(turns);
                return Some(Ticket(Some(self)));
            }
            turns.wait(bot)?
        };
        // A ticket that comes too late is dropped with the channel, and goes to the next.
        tokio::time::timeout_at(until, turn).await.ok()?.ok()
    }

    /// Gives the room to whoever is next.
    fn leave(self: Arc<Self>) {
        loop {
            let next = {
                let mut turns = self.lock();
                let next = turns.next();
                if next.is_none() {
                    turns.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(Ticket(Some(Arc::clone(&self)))) {
                Ok(()) => return,
                // It has given up waiting. Its ticket must not give the room away once more.
                Err(mut unwanted) => drop(unwanted.0.take()),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Turns {
    /// A place at the end of the bot's own queue; `None` where too many wait.
    fn wait(&mut self, bot: Option<BotId>) -> Option<oneshot::Receiver<Ticket>> {
        if self.calls_waiting >= WAITING_MAX {
            self.forget_those_who_left();
            if self.calls_waiting >= WAITING_MAX {
                return None;
            }
        }
        let (sender, turn) = oneshot::channel();
        match self.waiting.iter_mut().find(|(waiting, _)| *waiting == bot) {
            Some((_, calls)) => calls.push_back(sender),
            None => self.waiting.push_back((bot, VecDeque::from([sender]))),
        }
        self.calls_waiting += 1;
        Some(turn)
    }

    /// The oldest call of the bot whose turn it is; that bot is last from now on.
    fn next(&mut self) -> Option<oneshot::Sender<Ticket>> {
        let (bot, mut calls) = self.waiting.pop_front()?;
        let call = calls.pop_front();
        if !calls.is_empty() {
            self.waiting.push_back((bot, calls));
        }
        self.calls_waiting -= usize::from(call.is_some());
        call
    }

    fn forget_those_who_left(&mut self) {
        for (_, calls) in &mut self.waiting {
            calls.retain(|call| !call.is_closed());
        }
        self.waiting.retain(|(_, calls)| !calls.is_empty());
        self.calls_waiting = self.waiting.iter().map(|(_, calls)| calls.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn plugin() -> PluginName {
        "github".parse().unwrap()
    }

    async fn enter(lanes: &Lanes, bot: BotId, binding_max: Option<u32>) -> Result<Place, NoRoom> {
        let binding = BindingId::new();
        let binding = binding_max.map(|max| (binding, max));
        lanes.enter(&Asking { bot: Some(bot), binding, plugin: Some(&plugin()), depth: 0, held: &[] }).await
    }

    /// The same for a call that stands under `depth` others.
    async fn enter_below(lanes: &Lanes, bot: BotId, depth: u8) -> Result<Place, NoRoom> {
        lanes.enter(&Asking { bot: Some(bot), binding: None, plugin: Some(&plugin()), depth, held: &[] }).await
    }

    #[tokio::test(start_paused = true)]
    async fn calls_under_others_wait_for_no_ancestor() {
        let lanes = Lanes::new(CallsAtOnce { in_all: 4, per_plugin: 2, per_bot: 2 });
        let bot = BotId::new();
        let roots = [enter(&lanes, bot, None).await, enter(&lanes, bot, None).await];
        assert!(roots.iter().all(Result::is_ok));
        // Bot and plugin are full of the parents.
        let asked_at = Instant::now();
        let children = [enter_below(&lanes, bot, 1).await, enter_below(&lanes, bot, 1).await];
        assert!(children.iter().all(Result::is_ok));
        // Now the host is full, and whoever could leave waits for this one.
        assert_eq!(enter_below(&lanes, bot, 2).await.err(), Some(NoRoom::Full));
        assert_eq!(asked_at.elapsed(), Duration::ZERO);
        assert_eq!(lanes.running(), 4);
        drop((roots, children));
        assert_eq!(lanes.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_in_a_binding_is_shared_with_the_calls_below() {
        let lanes = Lanes::new(CallsAtOnce::default());
        let (bot, binding, plugin) = (BotId::new(), BindingId::new(), plugin());
        let asking = Asking { bot: Some(bot), binding: Some((binding, 1)), plugin: Some(&plugin), depth: 0, held: &[] };
        let parent = lanes.enter(&asking).await;
        assert!(parent.is_ok());
        assert!(lanes.enter(&Asking { depth: 1, held: &[binding], ..asking }).await.is_ok());
        assert_eq!(lanes.enter(&Asking { depth: 1, ..asking }).await.err(), Some(NoRoom::Busy));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_lane_is_busy_after_five_seconds_and_free_again_after_that() {
        let lanes = Lanes::new(CallsAtOnce::default());
        let bot = BotId::new();
        let mut places = Vec::new();
        for _ in 0..32 {
            places.push(enter(&lanes, bot, None).await.unwrap_or_else(|_| panic!("room")));
        }
        let asked_at = Instant::now();
        assert_eq!(enter(&lanes, bot, None).await.err(), Some(NoRoom::Busy));
        assert_eq!(asked_at.elapsed().as_secs(), WAIT_MAX.as_secs());
        assert!(enter(&lanes, BotId::new(), None).await.is_ok());
        places.pop();
        assert!(enter(&lanes, bot, None).await.is_ok());
        drop(places);
        assert_eq!(lanes.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_may_allow_fewer() {
        let lanes = Lanes::new(CallsAtOnce::default());
        let (bot, binding, plugin) = (BotId::new(), BindingId::new(), plugin());
        let asking = Asking { bot: Some(bot), binding: Some((binding, 1)), plugin: Some(&plugin), depth: 0, held: &[] };
        let first = lanes.enter(&asking).await;
        assert!(first.is_ok());
        assert_eq!(lanes.enter(&asking).await.err(), Some(NoRoom::Busy));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_host_is_told_from_a_busy_plugin() {
        let lanes = Lanes::new(CallsAtOnce { in_all: 2, ..CallsAtOnce::default() });
        let (first, second) = (enter(&lanes, BotId::new(), None).await, enter(&lanes, BotId::new(), None).await);
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(enter(&lanes, BotId::new(), None).await.err(), Some(NoRoom::Full));
        drop(first);
        assert!(enter(&lanes, BotId::new(), None).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_belongs_to_no_plugin_takes_no_plugins_room() {
        let lanes = Lanes::new(CallsAtOnce { per_plugin: 1, ..CallsAtOnce::default() });
        let asking = |bot| Asking { bot: Some(bot), binding: None, plugin: None, depth: 0, held: &[] };
        let first = lanes.enter(&asking(BotId::new())).await;
        let second = lanes.enter(&asking(BotId::new())).await;
        assert!(first.is_ok() && second.is_ok());
    }

    /// Two bots with many calls each and one with a single call, which came last: it is the third to be served.
    #[tokio::test(start_paused = true)]
    async fn bots_take_turns() {
        let lanes = Arc::new(Lanes::new(CallsAtOnce { per_plugin: 1, ..CallsAtOnce::default() }));
        let place = enter(&lanes, BotId::new(), None).await;
        let (greedy, busy, modest) = (BotId::new(), BotId::new(), BotId::new());
        let asked = [greedy, greedy, greedy, busy, busy, greedy, modest];
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        for bot in asked {
            let (lanes, served) = (Arc::clone(&lanes), served.clone());
            tokio::spawn(async move {
                let place = enter(&lanes, bot, None).await;
                assert!(place.is_ok());
                served.send(bot).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop(place);
        drop(served);
        let mut turns = Vec::new();
        while let Some(bot) = order.recv().await {
            turns.push(bot);
        }
        assert_eq!(turns, [greedy, busy, modest, greedy, busy, greedy, greedy]);
    }

    /// Whoever leaves the queue, or is served too late to notice, keeps no room.
    #[tokio::test(start_paused = true)]
    async fn room_is_never_lost() {
        let lane = Lane::new(1);
        let until = Instant::now() + WAIT_MAX;
        let held = Arc::clone(&lane).enter(Some(BotId::new()), until).await;
        let mut gone = Box::pin(Arc::clone(&lane).enter(Some(BotId::new()), until));
        let mut late = Box::pin(Arc::clone(&lane).enter(Some(BotId::new()), until));
        assert!(gone.as_mut().now_or_never().is_none() && late.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        // The ticket is in the channel of `late`, which is dropped without looking.
        drop(late);
        assert!(lane.clone().enter(Some(BotId::new()), until).await.is_some());
        let turns = lane.lock();
        assert_eq!((turns.free, turns.calls_waiting), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded() {
        let lane = Lane::new(1);
        let until = Instant::now() + WAIT_MAX;
        let _held = Arc::clone(&lane).enter(Some(BotId::new()), until).await;
        let mut waiting: Vec<_> =
            (0..WAITING_MAX).map(|_| Box::pin(Arc::clone(&lane).enter(Some(BotId::new()), until))).collect();
        for call in &mut waiting {
            assert!(call.as_mut().now_or_never().is_none());
        }
        assert!(matches!(Arc::clone(&lane).enter(Some(BotId::new()), until).now_or_never(), Some(None)));
        waiting.pop();
        assert!(Arc::clone(&lane).enter(Some(BotId::new()), until).now_or_never().is_none());
    }
}
