//! A queue that assigns a fixed number of places in turn. The queue uses generic keys. Its users, such as
//! `call/admission.rs`, define the meaning of the keys.
//!
//! Each request belongs to a member of a group. The queue assigns a free place to the next group, and within the group
//! to the next member. Therefore a group with many members, or a member with many requests, delays the other groups or
//! members by at most one turn. A group that shares the queue with other groups may hold only a part of the places
//! ([`Share::Part`]): at most half of the places, and a place of the last eighth only if the group holds no other
//! place. A slow group thus leaves room for a group that arrives later.
//!
//! Invariant: while the lock is free, no waiting group may take a free place.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The maximum number of waiting requests in one queue. The limit bounds memory, because each waiting call holds its
/// parameters of at most 1 MiB. A call takes up to 30 s and a request waits at most 5 s, so a request behind this
/// position would time out in any case.
const WAITING_MAX: u32 = 1024;

/// The part of the places that one group may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All places. A group has this share if no other group uses the queue.
    Whole,
    /// At most half of the places, and a place of the last eighth only if the group holds no other place.
    Part,
}

impl Share {
    /// Returns whether a group that holds `held` of `total` places may take another place while `free` places are free.
    fn allows(self, held: u32, free: u32, total: u32) -> bool {
        match self {
            Share::Whole => free > 0,
            // Half of a single place would be zero. Therefore a group without a place may always take a free place.
            Share::Part => free > 0 && (held == 0 || (held < total / 2 && free > total / 8)),
        }
    }
}

/// The places, and the requests that wait for a place. `G` is the key of a group, and `M` is the key of a member.
pub struct FairQueue<G: Clone + Eq + Hash, M: Eq>(Mutex<State<G, M>>);

struct State<G: Clone + Eq + Hash, M: Eq> {
    places: u32,
    free: u32,
    /// The groups that hold a place or wait for a place.
    groups: HashMap<G, Group<G, M>>,
    /// The waiting groups. The first group has the next turn.
    turns: VecDeque<G>,
    waiting: u32,
}

/// The channels to which the tickets of waiting requests are sent, in order of arrival.
type Requests<G, M> = VecDeque<oneshot::Sender<Ticket<G, M>>>;

struct Group<G: Clone + Eq + Hash, M: Eq> {
    share: Share,
    held: u32,
    waiting: u32,
    /// The waiting members, each with its requests. The first member has the next turn.
    members: VecDeque<(M, Requests<G, M>)>,
}

/// One place in a queue. Dropping the ticket frees the place.
pub struct Ticket<G: Clone + Eq + Hash, M: Eq> {
    queue: Arc<FairQueue<G, M>>,
    /// The group that holds the place, or `None` after the place was freed.
    group: Option<G>,
}

impl<G: Clone + Eq + Hash, M: Eq> Drop for Ticket<G, M> {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            self.queue.0.lock().leave(&group);
            self.queue.serve();
        }
    }
}

impl<G: Clone + Eq + Hash, M: Eq> FairQueue<G, M> {
    /// Creates a queue of `places` free places, at least one.
    pub fn new(places: u32) -> Arc<FairQueue<G, M>> {
        let places = places.max(1);
        let state = State { places, free: places, groups: HashMap::new(), turns: VecDeque::new(), waiting: 0 };
        Arc::new(FairQueue(Mutex::new(state)))
    }

    /// Takes a place without waiting. Returns `None` if the group may not take a place now.
    pub fn enter_now(self: &Arc<Self>, group: &G, share: Share) -> Option<Ticket<G, M>> {
        let is_entered = self.0.lock().enter(group, share);
        is_entered.then(|| self.ticket(group.clone()))
    }

    /// Waits until the deadline `until` for a place, and takes it. Returns `None` at the deadline, or if too many
    /// requests wait.
    pub async fn enter(self: &Arc<Self>, group: &G, member: M, share: Share, until: Instant) -> Option<Ticket<G, M>> {
        let turn = {
            let mut state = self.0.lock();
            if state.enter(group, share) {
                drop(state);
                return Some(self.ticket(group.clone()));
            }
            state.wait(group, member, share)?
        };
        // If the share of this group has grown, its waiting requests may take more places than before.
        self.serve();
        // A ticket that arrives too late is dropped with the channel, which frees its place.
        tokio::time::timeout_at(until, turn).await.ok()?.ok()
    }

    /// Returns the number of free places.
    pub fn free(&self) -> u32 {
        self.0.lock().free
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> u32 {
        self.0.lock().waiting
    }

    /// Assigns the free places to the waiting groups that may take a place.
    fn serve(self: &Arc<Self>) {
        loop {
            // The lock is released before a ticket is sent, because the drop of an unreceived ticket takes the lock.
            let Some((group, request)) = self.0.lock().next() else { return };
            if let Err(mut unwanted) = request.send(self.ticket(group)) {
                // The receiver was dropped. This function frees the place itself, because `Ticket::drop` would call
                // this function recursively, once for each dropped receiver.
                if let Some(group) = unwanted.group.take() {
                    self.0.lock().leave(&group);
                }
            }
        }
    }

    fn ticket(self: &Arc<Self>, group: G) -> Ticket<G, M> {
        Ticket { queue: Arc::clone(self), group: Some(group) }
    }
}

impl<G: Clone + Eq + Hash, M: Eq> State<G, M> {
    /// Takes a place for `group` and returns true. Returns false if the group may not take a place, or if it has
    /// waiting requests, which have precedence.
    fn enter(&mut self, group: &G, share: Share) -> bool {
        let (held, waiting) = match self.groups.get_mut(group) {
            Some(known) => {
                known.share = share;
                (known.held, known.waiting)
            }
            None => (0, 0),
        };
        let is_allowed = waiting == 0 && share.allows(held, self.free, self.places);
        if is_allowed {
            self.take(group, share);
        }
        is_allowed
    }

    fn take(&mut self, group: &G, share: Share) {
        self.free -= 1;
        self.group(group, share).held += 1;
    }

    fn leave(&mut self, group: &G) {
        self.free += 1;
        if let Some(known) = self.groups.get_mut(group) {
            known.held -= 1;
            if known.held == 0 && known.waiting == 0 {
                self.groups.remove(group);
            }
        }
    }

    /// Adds a request to the end of the member's queue. Returns `None` if too many requests wait.
    fn wait(&mut self, group: &G, member: M, share: Share) -> Option<oneshot::Receiver<Ticket<G, M>>> {
        if !self.may_wait(group, share) {
            self.forget_abandoned();
            if !self.may_wait(group, share) {
                return None;
            }
        }
        let (sender, turn) = oneshot::channel();
        let known = self.group(group, share);
        match known.members.iter_mut().find(|(waiting, _)| *waiting == member) {
            Some((_, requests)) => requests.push_back(sender),
            None => known.members.push_back((member, VecDeque::from([sender]))),
        }
        known.waiting += 1;
        if known.waiting == 1 {
            self.turns.push_back(group.clone());
        }
        self.waiting += 1;
        Some(turn)
    }

    /// Returns whether one more request of the group may wait. A single group must not fill the queue.
    fn may_wait(&self, group: &G, share: Share) -> bool {
        let waiting = self.groups.get(group).map_or(0, |known| known.waiting);
        share.allows(waiting, WAITING_MAX - self.waiting, WAITING_MAX)
    }

    /// Takes a place for the oldest request of the next member in the next group that may take a place. If the group or
    /// the member has more requests, it moves to the end of its queue.
    fn next(&mut self) -> Option<(G, oneshot::Sender<Ticket<G, M>>)> {
        let (free, places) = (self.free, self.places);
        if free == 0 {
            return None;
        }
        let groups = &self.groups;
        let is_allowed =
            |group: &G| groups.get(group).is_some_and(|known| known.share.allows(known.held, free, places));
        let group = self.turns.remove(self.turns.iter().position(is_allowed)?)?;
        let known = self.groups.get_mut(&group)?;
        let (member, mut requests) = known.members.pop_front()?;
        let request = requests.pop_front()?;
        if !requests.is_empty() {
            known.members.push_back((member, requests));
        }
        known.waiting -= 1;
        known.held += 1;
        if known.waiting > 0 {
            self.turns.push_back(group.clone());
        }
        self.waiting -= 1;
        self.free -= 1;
        Some((group, request))
    }

    /// Removes the requests whose receivers were dropped while they waited.
    fn forget_abandoned(&mut self) {
        for known in self.groups.values_mut() {
            for (_, requests) in &mut known.members {
                requests.retain(|request| !request.is_closed());
            }
            known.members.retain(|(_, requests)| !requests.is_empty());
            let waiting: usize = known.members.iter().map(|(_, requests)| requests.len()).sum();
            known.waiting = u32::try_from(waiting).unwrap_or(WAITING_MAX);
        }
        self.groups.retain(|_, known| known.held > 0 || known.waiting > 0);
        self.turns.retain(|group| self.groups.get(group).is_some_and(|known| known.waiting > 0));
        self.waiting = self.groups.values().map(|known| known.waiting).sum();
    }

    fn group(&mut self, group: &G, share: Share) -> &mut Group<G, M> {
        let new = || Group { share, held: 0, waiting: 0, members: VecDeque::new() };
        self.groups.entry(group.clone()).or_insert_with(new)
    }
}

/// A map with a queue for each key. It removes unused queues when their number reaches a limit.
pub struct FairQueues<K, G: Clone + Eq + Hash, M: Eq>(Mutex<HashMap<K, Arc<FairQueue<G, M>>>>);

impl<K, G: Clone + Eq + Hash, M: Eq> Default for FairQueues<K, G, M> {
    fn default() -> Self {
        FairQueues(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash, M: Eq> FairQueues<K, G, M> {
    /// The number of queues at which unused queues are removed. A queue uses about 100 bytes, so all queues together
    /// use less than a megabyte.
    const SWEEP_AT: usize = 4096;

    /// Returns the queue of `key`. If the queue does not exist, creates it with `places` places.
    pub fn queue(&self, key: &K, places: u32) -> Arc<FairQueue<G, M>> {
        let mut queues = self.0.lock();
        if let Some(queue) = queues.get(key) {
            return Arc::clone(queue);
        }
        if queues.len() >= Self::SWEEP_AT {
            queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        }
        Arc::clone(queues.entry(key.clone()).or_insert_with(|| FairQueue::new(places)))
    }

    /// Returns the number of requests that wait in all queues.
    pub fn waiting(&self) -> u32 {
        let queues = self.0.lock();
        queues.values().map(|queue| queue.waiting()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    type Queue = Arc<FairQueue<&'static str, u32>>;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    /// Takes all places that the group may take without waiting.
    fn fill(queue: &Queue, group: &'static str, share: Share) -> Vec<Ticket<&'static str, u32>> {
        std::iter::from_fn(|| queue.enter_now(&group, share)).collect()
    }

    #[test]
    fn a_group_among_others_gets_half_and_the_last_eighth_is_for_groups_without_a_place() {
        let queue: Queue = FairQueue::new(64);
        let a = fill(&queue, "a", Share::Part);
        assert_eq!(a.len(), 32);
        let b = fill(&queue, "b", Share::Part);
        assert_eq!((b.len(), queue.free()), (24, 8), "the last eighth stays free");
        let newcomers: Vec<_> =
            ["c", "d", "e"].into_iter().map(|group| fill(&queue, group, Share::Part).len()).collect();
        assert_eq!(newcomers, [1, 1, 1]);
        drop(b);
        assert_eq!(
            fill(&queue, "a", Share::Part).len(),
            0,
            "a group may hold at most half, even if the other groups are idle"
        );
        assert_eq!(fill(&queue, "a", Share::Whole).len(), 32, "the only group gets all places");
    }

    #[test]
    fn a_few_places_are_shared_as_well() {
        for (places, most) in [(1, 1), (2, 1), (3, 1), (4, 2), (8, 4)] {
            let queue: Queue = FairQueue::new(places);
            assert_eq!(fill(&queue, "a", Share::Part).len(), most, "of {places}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn groups_take_turns_and_within_a_group_its_members() {
        let queue: Queue = FairQueue::new(1);
        let held = queue.enter_now(&"x", Share::Part);
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        let asked = [("a", 1), ("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 4), ("c", 5)];
        for (group, member) in asked {
            let (queue, served) = (Arc::clone(&queue), served.clone());
            tokio::spawn(async move {
                let ticket = queue.enter(&group, member, Share::Part, soon()).await;
                assert!(ticket.is_some());
                served.send((group, member)).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop((held, served));
        let mut turns = Vec::new();
        while let Some(turn) = order.recv().await {
            turns.push(turn);
        }
        assert_eq!(turns, [("a", 1), ("b", 4), ("c", 5), ("a", 2), ("b", 4), ("a", 3), ("a", 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_waits_for_its_own_share_does_not_hold_up_the_next() {
        let queue: Queue = FairQueue::new(8);
        let mut a = fill(&queue, "a", Share::Part);
        let _b = [queue.enter_now(&"b", Share::Part), queue.enter_now(&"b", Share::Part)];
        assert_eq!((a.len(), queue.free()), (4, 2));
        let mut more_of_a = Box::pin(queue.enter(&"a", 1, Share::Part, soon()));
        assert!(more_of_a.as_mut().now_or_never().is_none());
        let c = queue.enter(&"c", 1, Share::Part, soon()).now_or_never().flatten();
        assert!(c.is_some());
        a.pop();
        assert!(
            more_of_a.as_mut().now_or_never().flatten().is_some(),
            "the place that the group released is free again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_whose_share_grows_is_served_from_what_was_free() {
        let queue: Queue = FairQueue::new(8);
        let _a = fill(&queue, "a", Share::Part);
        let mut waits = Box::pin(queue.enter(&"a", 1, Share::Part, soon()));
        assert!(waits.as_mut().now_or_never().is_none());
        let mut alone = Box::pin(queue.enter(&"a", 1, Share::Whole, soon()));
        assert!(alone.as_mut().now_or_never().flatten().is_some());
        assert!(waits.as_mut().now_or_never().flatten().is_some());
        assert_eq!((queue.free(), queue.waiting()), (4, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_group_does_not_fill_the_queue_for_the_others() {
        let queue: Queue = FairQueue::new(2);
        let _held = [queue.enter_now(&"a", Share::Part), queue.enter_now(&"b", Share::Part)];
        let mut waiting = Vec::new();
        let mut wait = |group, number: u32| {
            for member in 0..number {
                let mut request = Box::pin(queue.enter(group, member, Share::Part, soon()));
                let is_refused = matches!(request.as_mut().now_or_never(), Some(None));
                waiting.push(request);
                if is_refused {
                    return member;
                }
            }
            number
        };
        assert_eq!(wait(&"a", WAITING_MAX), WAITING_MAX / 2);
        assert_eq!(wait(&"b", 10), 10);
    }

    /// Checks that a request that is dropped, before or after its ticket was sent, does not keep a place.
    #[tokio::test(start_paused = true)]
    async fn a_place_is_never_lost() {
        let queue: Queue = FairQueue::new(1);
        let held = queue.enter(&"a", 1, Share::Part, soon()).await;
        let mut gone = Box::pin(queue.enter(&"b", 1, Share::Part, soon()));
        let mut late = Box::pin(queue.enter(&"c", 1, Share::Part, soon()));
        assert!(gone.as_mut().now_or_never().is_none() && late.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        // The ticket is in the channel of `late`. `late` is dropped before it receives the ticket.
        drop(late);
        assert!(queue.enter(&"a", 1, Share::Part, soon()).await.is_some());
        let state = queue.0.lock();
        assert_eq!((state.free, state.waiting, state.groups.len(), state.turns.len()), (1, 0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded() {
        let queue: Queue = FairQueue::new(1);
        let _held = queue.enter_now(&"a", Share::Whole);
        let mut waiting: Vec<_> =
            (0..WAITING_MAX).map(|member| Box::pin(queue.enter(&"a", member, Share::Whole, soon()))).collect();
        for request in &mut waiting {
            assert!(request.as_mut().now_or_never().is_none());
        }
        assert!(matches!(queue.enter(&"a", 0, Share::Whole, soon()).now_or_never(), Some(None)));
        waiting.pop();
        assert!(queue.enter(&"a", 0, Share::Whole, soon()).now_or_never().is_none());
    }
}
