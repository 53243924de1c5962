//! Limits the number of concurrent calls on this host, and of each plugin, bot and binding. For tools that come from
//! outside, each resource has a lane in place of its plugin's, so that one slow server delays only its own calls. A call that exceeds a limit
//! waits up to 5 s for room. Free room goes to the waiting workspaces in turn and, within a workspace, to its bots in
//! turn (`fair_queue.rs`), so that a bot with many calls delays only its own calls. While several workspaces use a
//! plugin or the host, each workspace can hold only a part of the room ([`Share`]).
//!
//! A call waits for its child calls, so a child call must not wait for room that only its ancestors could release.
//! These rules prevent such a deadlock:
//!
//! - A child call uses the place of its root call among the bot's calls.
//! - A plugin has one lane for each depth. A call that waits in a lane holds room only in lanes of lesser depths, and
//!   the deepest calls wait for no other call. So at least one call can always proceed. The rule also covers a call
//!   that waits for the share of its workspace, because the calls that hold this share have the same depth.
//! - If an ancestor has a place in a binding, the child call shares that place.
//! - A child call does not wait for room on the host. If the host is full, all running calls may be waiting for their
//!   child calls.

use std::sync::Arc;
use std::time::Duration;

use monstrum_types::{BindingId, BotId, PluginName, ResourceId, WorkspaceId};
use tokio::time::Instant;

use crate::fair_queue::{FairQueue, FairQueues, Share, Ticket};

/// The maximum time that a call waits for room.
pub const WAIT_MAX: Duration = Duration::from_secs(5);

/// The maximum number of concurrent calls of a host. The engine's pool has room for these calls and for plugins that
/// are being loaded.
pub const CALLS_MAX: u32 = 1000;

/// The maximum time that a round with a model waits for room. A round takes many seconds, and a task that finds no room
/// for its next round fails.
pub const ROUND_WAIT_MAX: Duration = Duration::from_secs(60);

/// The maximum number of concurrent rounds with models that can be set. Each holds a connection.
pub const ROUNDS_MAX: u32 = 4096;

/// The maximum numbers of concurrent calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub in_all: u32,
    pub per_plugin: u32,
    pub per_bot: u32,
    /// The rounds with models, which take no room of calls: they run for minutes and wait for a server.
    pub rounds: u32,
}

impl Default for Limits {
    /// Returns the default limits. With 64 calls of one plugin, the throughput stays high even if the upstream is slow,
    /// and other plugins still have room.
    fn default() -> Self {
        Limits { in_all: CALLS_MAX, per_plugin: 64, per_bot: 32, rounds: 256 }
    }
}

/// A member of a group in a lane: a bot of the workspace. All calls without a bot count as one member, `None`.
type Member = Option<BotId>;

/// Room for one call. Dropping this value releases the room.
pub struct Place {
    _tickets: Vec<Ticket<WorkspaceId, Member>>,
    /// The place among the calls of the binding, if the binding has a limit.
    _of_binding: Option<Ticket<WorkspaceId, Member>>,
}

impl Place {
    /// Releases all room but the place among the calls of the binding, for a call that only waits.
    #[must_use]
    pub fn of_binding(self) -> Place {
        Place { _tickets: Vec::new(), ..self }
    }
}

/// A place among the concurrent calls of one bot. A call acquires it before the host does significant work for the call.
pub struct BotPlace(Ticket<WorkspaceId, Member>);

/// The lane that had no room at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The lane of the plugin, the bot or the binding.
    Busy,
    /// The lane of the whole host.
    Full,
}

/// The room that a call needs in addition to the place among the calls of its bot.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    pub workspace: WorkspaceId,
    /// The bot that makes the call, or `None` for a call without a bot.
    pub bot: Option<BotId>,
    /// The binding and its limit of concurrent calls, or `None` if the binding has no such limit.
    pub binding: Option<(BindingId, u32)>,
    /// The plugin whose lane the call enters, or `None` for a call that another limit bounds, such as a call of a
    /// sandbox tool.
    pub plugin: Option<&'a PluginName>,
    /// The share of the plugin's room that the workspace may hold.
    pub share_of_plugin: Share,
    /// The resource whose lane the call enters, and its limit of concurrent calls; `None` if the resource has no lane.
    pub resource: Option<(ResourceId, u32)>,
    /// The share of the host's room that the workspace may hold.
    pub share_of_host: Share,
    /// The number of ancestors of the call.
    pub depth: u8,
    /// The bindings in which an ancestor already has a place.
    pub held: &'a [BindingId],
    /// Whether the call is a round with a model, which has a lane of its own in place of that of the host.
    pub is_round: bool,
    /// The end of the wait: [`WAIT_MAX`] after the call first asked for room, or [`ROUND_WAIT_MAX`] for a round.
    pub until: Instant,
}

/// The lanes of all plugins, bots and bindings.
pub struct Lanes {
    room: Limits,
    all: Arc<FairQueue<WorkspaceId, Member>>,
    rounds: Arc<FairQueue<WorkspaceId, Member>>,
    /// Calls without a bot have one lane in each workspace.
    bots: FairQueues<(WorkspaceId, Option<BotId>), WorkspaceId, Member>,
    plugins: FairQueues<(PluginName, u8), WorkspaceId, Member>,
    /// The key contains the limit, because a change of the configuration may change it.
    resources: FairQueues<(ResourceId, u32), WorkspaceId, Member>,
    bindings: FairQueues<(BindingId, u32), WorkspaceId, Member>,
}

impl Lanes {
    /// Creates empty lanes.
    pub fn new(room: Limits) -> Lanes {
        Lanes {
            room,
            all: FairQueue::new(room.in_all),
            rounds: FairQueue::new(room.rounds),
            bots: FairQueues::default(),
            plugins: FairQueues::default(),
            resources: FairQueues::default(),
            bindings: FairQueues::default(),
        }
    }

    /// Waits for room among the calls of the bot. This wait precedes all other waits, so that the calls of a busy bot
    /// wait for one another. A child call uses the place of its root call and must not call this function.
    pub async fn enter_bot(
        &self,
        workspace: WorkspaceId,
        bot: Option<BotId>,
        until: Instant,
    ) -> Result<BotPlace, NoRoom> {
        let lane = self.bots.queue(&(workspace, bot), self.room.per_bot);
        lane.enter(&workspace, bot, Share::Whole, until).await.map(BotPlace).ok_or(NoRoom::Busy)
    }

    /// Waits for room in the lanes of the binding, the plugin, the resource and the host, in this order. A child call does
    /// not wait for room on the host. `of_bot` is `None` for a child call and for a round.
    pub async fn enter(&self, asking: &Asking<'_>, of_bot: Option<BotPlace>) -> Result<Place, NoRoom> {
        let Asking { workspace, bot, binding, plugin, resource, depth, held, until, .. } = *asking;
        let mut tickets = Vec::with_capacity(4);
        tickets.extend(of_bot.map(|place| place.0));
        let mut of_binding = None;
        if let Some(binding) = binding.filter(|(binding, _)| !held.contains(binding)) {
            let lane = self.bindings.queue(&binding, binding.1);
            of_binding = Some(lane.enter(&workspace, bot, Share::Whole, until).await.ok_or(NoRoom::Busy)?);
        }
        if let Some(plugin) = plugin {
            let lane = self.plugins.queue(&(plugin.clone(), depth), self.room.per_plugin);
            tickets.push(lane.enter(&workspace, bot, asking.share_of_plugin, until).await.ok_or(NoRoom::Busy)?);
        }
        // Calls of tools from outside make no child calls, so calls of all depths share one lane.
        if let Some(lane) = resource {
            let lane = self.resources.queue(&lane, lane.1);
            tickets.push(lane.enter(&workspace, bot, Share::Whole, until).await.ok_or(NoRoom::Busy)?);
        }
        let share = asking.share_of_host;
        let on_the_host = match depth {
            // A round makes no child calls, so no other call waits for one that waits here.
            _ if asking.is_round => self.rounds.enter(&workspace, bot, share, until).await,
            0 => self.all.enter(&workspace, bot, share, until).await,
            _ => self.all.enter_now(&workspace, share),
        };
        tickets.push(on_the_host.ok_or(NoRoom::Full)?);
        Ok(Place { _tickets: tickets, _of_binding: of_binding })
    }

    /// Returns the number of running calls.
    pub fn running(&self) -> u32 {
        self.room.in_all.saturating_sub(self.all.free())
    }

    /// Returns the maximum number of concurrent calls.
    pub fn room(&self) -> u32 {
        self.room.in_all
    }

    /// Returns the number of calls that wait for room in any lane.
    pub fn waiting(&self) -> u32 {
        self.all.waiting()
            + self.rounds.waiting()
            + self.bots.waiting()
            + self.plugins.waiting()
            + self.resources.waiting()
            + self.bindings.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Limits = Limits { in_all: 1000, per_plugin: 64, per_bot: 32, rounds: 256 };

    fn plugin() -> PluginName {
        "github".parse().unwrap()
    }

    /// The only calling bot, in a workspace that shares neither a plugin nor the host.
    #[derive(Clone, Copy)]
    struct Caller {
        workspace: WorkspaceId,
        bot: BotId,
    }

    impl Caller {
        fn new() -> Caller {
            Caller { workspace: WorkspaceId::new(), bot: BotId::new() }
        }

        fn asking<'a>(&self, plugin: &'a PluginName) -> Asking<'a> {
            Asking {
                workspace: self.workspace,
                bot: Some(self.bot),
                binding: None,
                plugin: Some(plugin),
                share_of_plugin: Share::Whole,
                resource: None,
                share_of_host: Share::Whole,
                depth: 0,
                held: &[],
                is_round: false,
                until: Instant::now() + WAIT_MAX,
            }
        }

        async fn enter(&self, lanes: &Lanes) -> Result<Place, NoRoom> {
            enter(lanes, &self.asking(&plugin())).await
        }

        /// Like `enter`, for a call with `depth` ancestors.
        async fn enter_below(&self, lanes: &Lanes, depth: u8) -> Result<Place, NoRoom> {
            enter(lanes, &Asking { depth, ..self.asking(&plugin()) }).await
        }

        /// Like `enter_below`, while other workspaces use the plugin too.
        async fn enter_shared(&self, lanes: &Lanes, depth: u8) -> Result<Place, NoRoom> {
            enter(lanes, &Asking { depth, share_of_plugin: Share::Part, ..self.asking(&plugin()) }).await
        }
    }

    async fn enter(lanes: &Lanes, asking: &Asking<'_>) -> Result<Place, NoRoom> {
        let of_bot = match asking.depth {
            0 => Some(lanes.enter_bot(asking.workspace, asking.bot, asking.until).await?),
            _ => None,
        };
        lanes.enter(asking, of_bot).await
    }

    #[tokio::test(start_paused = true)]
    async fn calls_under_others_wait_for_no_ancestor() {
        let lanes = Lanes::new(Limits { in_all: 4, per_plugin: 2, per_bot: 2, ..ROOM });
        let caller = Caller::new();
        let roots = [caller.enter(&lanes).await, caller.enter(&lanes).await];
        assert!(roots.iter().all(Result::is_ok));
        // The parents occupy all room of the bot and the plugin.
        let asked_at = Instant::now();
        let children = [caller.enter_below(&lanes, 1).await, caller.enter_below(&lanes, 1).await];
        assert!(children.iter().all(Result::is_ok));
        // Now the host is full, and the calls that could release room wait for this call.
        assert_eq!(caller.enter_below(&lanes, 2).await.err(), Some(NoRoom::Full));
        assert_eq!(asked_at.elapsed(), Duration::ZERO);
        assert_eq!(lanes.running(), 4);
        drop((roots, children));
        assert_eq!(lanes.running(), 0);
    }

    /// Calls that make child calls of the same plugin occupy every place of the workspace's share.
    #[tokio::test(start_paused = true)]
    async fn calls_under_others_do_not_wait_for_the_share_that_their_ancestors_hold() {
        let lanes = Lanes::new(Limits { per_plugin: 4, ..ROOM });
        let caller = Caller::new();
        let asked_at = Instant::now();
        let mut places = Vec::new();
        for depth in 0..8 {
            for _ in 0..2 {
                let place = caller.enter_shared(&lanes, depth).await;
                places.push(place.unwrap_or_else(|_| panic!("room at depth {depth}")));
            }
        }
        assert_eq!(asked_at.elapsed(), Duration::ZERO);
        assert_eq!(
            caller.enter_shared(&lanes, 7).await.err(),
            Some(NoRoom::Busy),
            "a workspace may hold two of the four places of a depth"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_workspace_with_two_busy_bots_leaves_half_of_a_plugin_to_the_others() {
        let lanes = Lanes::new(ROOM);
        let first = Caller::new();
        let second = Caller { bot: BotId::new(), ..first };
        let mut held = Vec::new();
        for caller in [first, second] {
            for _ in 0..16 {
                held.push(caller.enter_shared(&lanes, 0).await);
            }
        }
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(
            second.enter_shared(&lanes, 0).await.err(),
            Some(NoRoom::Busy),
            "a workspace may hold at most half of the places"
        );
        let other = Caller::new();
        let asked_at = Instant::now();
        for _ in 0..4 {
            held.push(other.enter_shared(&lanes, 0).await);
        }
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(asked_at.elapsed(), Duration::ZERO);
    }

    /// Admins of all workspaces can make calls without a bot, such as checks of credentials.
    #[tokio::test(start_paused = true)]
    async fn calls_without_a_bot_have_a_lane_in_each_workspace() {
        let lanes = Lanes::new(Limits { per_bot: 1, ..ROOM });
        let (one, other) = (WorkspaceId::new(), WorkspaceId::new());
        let until = Instant::now() + WAIT_MAX;
        let _held = lanes.enter_bot(one, None, until).await;
        assert!(lanes.enter_bot(other, None, until).await.is_ok());
        assert_eq!(lanes.enter_bot(one, None, until).await.err(), Some(NoRoom::Busy));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_in_a_binding_is_shared_with_the_calls_below() {
        let lanes = Lanes::new(ROOM);
        let (caller, binding, plugin) = (Caller::new(), BindingId::new(), plugin());
        let asking = Asking { binding: Some((binding, 1)), ..caller.asking(&plugin) };
        let parent = enter(&lanes, &asking).await;
        assert!(parent.is_ok());
        assert!(enter(&lanes, &Asking { depth: 1, held: &[binding], ..asking }).await.is_ok());
        assert_eq!(enter(&lanes, &Asking { depth: 1, ..asking }).await.err(), Some(NoRoom::Busy));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_lane_is_busy_after_five_seconds_and_free_again_after_that() {
        let lanes = Lanes::new(ROOM);
        let caller = Caller::new();
        let mut places = Vec::new();
        for _ in 0..32 {
            places.push(caller.enter(&lanes).await.unwrap_or_else(|_| panic!("room")));
        }
        let asked_at = Instant::now();
        assert_eq!(caller.enter(&lanes).await.err(), Some(NoRoom::Busy));
        assert_eq!(asked_at.elapsed().as_secs(), WAIT_MAX.as_secs());
        assert!(Caller::new().enter(&lanes).await.is_ok());
        places.pop();
        assert!(caller.enter(&lanes).await.is_ok());
        drop(places);
        assert_eq!(lanes.running(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_may_allow_fewer() {
        let lanes = Lanes::new(ROOM);
        let (caller, binding, plugin) = (Caller::new(), BindingId::new(), plugin());
        let asking = || Asking { binding: Some((binding, 1)), ..caller.asking(&plugin) };
        let first = enter(&lanes, &asking()).await;
        assert!(first.is_ok());
        assert_eq!(enter(&lanes, &asking()).await.err(), Some(NoRoom::Busy));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_only_waits_keeps_its_place_in_the_binding() {
        let lanes = Lanes::new(Limits { in_all: 1, per_plugin: 1, per_bot: 1, ..ROOM });
        let (caller, binding, plugin) = (Caller::new(), BindingId::new(), plugin());
        let asking = || Asking { binding: Some((binding, 1)), ..caller.asking(&plugin) };
        let waiting = enter(&lanes, &asking()).await.map(Place::of_binding);
        assert!(waiting.is_ok());
        assert_eq!(lanes.running(), 0);
        assert!(caller.enter(&lanes).await.is_ok(), "the bot, the plugin and the host have room");
        assert_eq!(enter(&lanes, &asking()).await.err(), Some(NoRoom::Busy));
        drop(waiting);
        assert!(enter(&lanes, &asking()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_host_is_told_from_a_busy_plugin() {
        let lanes = Lanes::new(Limits { in_all: 2, ..ROOM });
        let (first, second) = (Caller::new().enter(&lanes).await, Caller::new().enter(&lanes).await);
        assert!(first.is_ok() && second.is_ok());
        assert_eq!(Caller::new().enter(&lanes).await.err(), Some(NoRoom::Full));
        drop(first);
        assert!(Caller::new().enter(&lanes).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_workspace_leaves_half_of_the_host_to_the_others() {
        let lanes = Lanes::new(Limits { in_all: 4, ..ROOM });
        let caller = Caller::new();
        let plugins = ["one", "two", "three"].map(|name| name.parse::<PluginName>().unwrap());
        let asking = |plugin| Asking { share_of_host: Share::Part, ..caller.asking(plugin) };
        let held = [enter(&lanes, &asking(&plugins[0])).await, enter(&lanes, &asking(&plugins[1])).await];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(enter(&lanes, &asking(&plugins[2])).await.err(), Some(NoRoom::Full));
        assert!(Caller::new().enter(&lanes).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_lane_of_a_resource_delays_no_other_resource() {
        let lanes = Lanes::new(ROOM);
        let (caller, plugin) = (Caller::new(), plugin());
        let (slow, other) = (ResourceId::new(), ResourceId::new());
        let asking = |resource| Asking { plugin: None, resource: Some((resource, 2)), ..caller.asking(&plugin) };
        let held = [enter(&lanes, &asking(slow)).await, enter(&lanes, &asking(slow)).await];
        assert!(held.iter().all(Result::is_ok));
        let asked_at = Instant::now();
        assert!(enter(&lanes, &asking(other)).await.is_ok());
        assert_eq!(asked_at.elapsed(), Duration::ZERO);
        assert_eq!(enter(&lanes, &asking(slow)).await.err(), Some(NoRoom::Busy));
        drop(held);
        assert!(enter(&lanes, &asking(slow)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_take_no_room_of_calls_and_wait_for_one_another() {
        let lanes = Lanes::new(Limits { in_all: 1, per_bot: 1, rounds: 1, ..ROOM });
        let (caller, plugin, resource) = (Caller::new(), plugin(), ResourceId::new());
        let _call = enter(&lanes, &caller.asking(&plugin)).await;
        let until = Instant::now() + ROUND_WAIT_MAX;
        let asking =
            Asking { plugin: None, resource: Some((resource, 64)), is_round: true, until, ..caller.asking(&plugin) };
        let round = lanes.enter(&asking, None).await;
        assert!(round.is_ok());
        let asked_at = Instant::now();
        assert_eq!(lanes.enter(&asking, None).await.err(), Some(NoRoom::Full));
        assert_eq!(asked_at.elapsed(), ROUND_WAIT_MAX);
        assert_eq!(lanes.running(), 1, "only the call");
        drop(round);
        assert!(lanes.enter(&Asking { depth: 1, ..asking }, None).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn what_belongs_to_no_plugin_takes_no_plugins_room() {
        let lanes = Lanes::new(Limits { per_plugin: 1, ..ROOM });
        let plugin = plugin();
        let (one, other) = (Caller::new(), Caller::new());
        let first = enter(&lanes, &Asking { plugin: None, ..one.asking(&plugin) }).await;
        let second = enter(&lanes, &Asking { plugin: None, ..other.asking(&plugin) }).await;
        assert!(first.is_ok() && second.is_ok());
    }
}
