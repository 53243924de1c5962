//! Shares of the places for running sandboxes.
//!
//! The host never ends a running command to make room for another bot. Therefore it checks shares when a sandbox takes
//! a place: the fewer places are free, the fewer bots may take a place. A bot or workspace that is the only possible
//! user of sandboxes can take all places.

use std::collections::HashMap;

use monstrum_store::RunningSandboxes;
use monstrum_types::{BotId, WorkspaceId};

use super::options::Options;

/// The divisor for a bot that has reached its share: the bot must leave one half of all places free. The two constants
/// below reserve fewer places, so that the bots of one workspace do not block each other when the workspace itself must
/// leave places free.
const KEPT_FOR_BOTS: u64 = 2;
/// The divisor for a workspace that has reached its share: the workspace must leave one fourth of all places free.
const KEPT_FOR_WORKSPACES: u64 = 4;
/// The divisor for the reserved places: one eighth of all places is reserved for workspaces that have no running
/// sandbox.
const KEPT_FOR_NEWCOMERS: u64 = 8;

/// The places of this host and the shares, counted in sandboxes.
pub(super) struct Shares {
    all: u64,
    workspace: u64,
    bot: u64,
    has_newcomers: bool,
}

/// The number of taken places on the host, in total and for each workspace and each bot.
#[derive(Default)]
pub(super) struct Taken {
    all: u64,
    workspaces: HashMap<WorkspaceId, u64>,
    bots: HashMap<BotId, u64>,
}

/// Whether workspaces or bots other than the requesting workspace and bot may use sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Others {
    pub workspaces: bool,
    pub bots: bool,
}

/// The reason why a claim does not get a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The bot has reached its share. The free places are reserved for other bots.
    Bot,
    /// The workspace has reached its share. The free places are reserved for other workspaces.
    Workspace,
    /// The remaining free places are reserved for workspaces that have no running sandbox.
    Newcomers,
    /// All places are taken.
    All,
}

impl Shares {
    pub(super) fn of(options: &Options) -> Shares {
        let all = u64::from(options.running_max);
        let part = |percent: u32| (all * u64::from(percent) / 100).max(1);
        Shares {
            all,
            workspace: part(options.share_workspace),
            bot: part(options.share_bot),
            has_newcomers: options.share_workspace < 100,
        }
    }

    /// Returns the reason why `bot` does not get a place, or `None` if the bot gets a place.
    pub(super) fn refusal(&self, taken: &Taken, workspace: WorkspaceId, bot: BotId, others: Others) -> Option<NoPlace> {
        let free = self.all.saturating_sub(taken.all);
        // The number of places that must stay free is at least one.
        let leaves = |part: u64| free > (self.all / part).max(1);
        let (of_workspace, of_bot) = (taken.of_workspace(workspace), taken.of_bot(bot));
        if others.bots && of_bot >= self.bot && !leaves(KEPT_FOR_BOTS) {
            Some(NoPlace::Bot)
        } else if others.workspaces && of_workspace >= self.workspace && !leaves(KEPT_FOR_WORKSPACES) {
            Some(NoPlace::Workspace)
        } else if others.workspaces && self.has_newcomers && of_workspace > 0 && !leaves(KEPT_FOR_NEWCOMERS) {
            Some(NoPlace::Newcomers)
        } else {
            (free == 0).then_some(NoPlace::All)
        }
    }

    /// Returns whether all places are taken.
    pub(super) fn is_full(&self, taken: &Taken) -> bool {
        taken.all >= self.all
    }

    /// Returns 2 if both the bot and its workspace exceed their share, 1 if only one of them does, and 0 otherwise.
    pub(super) fn excess(&self, taken: &Taken, workspace: WorkspaceId, bot: BotId) -> u8 {
        u8::from(taken.of_workspace(workspace) > self.workspace) + u8::from(taken.of_bot(bot) > self.bot)
    }

    /// Returns whether the host may stop a sandbox of `of` to free a place for `bot`, which did not get a place because
    /// of `why`. If the bot or its workspace has reached its share, it may replace only its own sandboxes. It may
    /// replace no sandbox if it exceeds its share and all places are taken, because another bot may be waiting for a
    /// place. If the free places are reserved for workspaces that have no running sandbox, the workspace may replace
    /// its own sandboxes, and sandboxes of bots or workspaces that exceed their share. If all places are taken, `bot`
    /// may replace any sandbox.
    pub(super) fn may_displace(
        &self,
        taken: &Taken,
        why: NoPlace,
        (workspace, bot): (WorkspaceId, BotId),
        of: (WorkspaceId, BotId),
    ) -> bool {
        match why {
            NoPlace::Bot => of.1 == bot && !(self.is_full(taken) && taken.of_bot(bot) > self.bot),
            NoPlace::Workspace => {
                of.0 == workspace && !(self.is_full(taken) && taken.of_workspace(workspace) > self.workspace)
            }
            NoPlace::Newcomers => of.0 == workspace || self.excess(taken, of.0, of.1) > 0,
            NoPlace::All => true,
        }
    }
}

impl Taken {
    pub(super) fn of(running: &[RunningSandboxes]) -> Taken {
        let mut taken = Taken::default();
        for RunningSandboxes { workspace, bot, count } in running {
            taken.all += count;
            *taken.workspaces.entry(*workspace).or_default() += count;
            *taken.bots.entry(*bot).or_default() += count;
        }
        taken
    }

    fn of_workspace(&self, workspace: WorkspaceId) -> u64 {
        self.workspaces.get(&workspace).copied().unwrap_or(0)
    }

    fn of_bot(&self, bot: BotId) -> u64 {
        self.bots.get(&bot).copied().unwrap_or(0)
    }
}

impl NoPlace {
    /// Returns the error message for the caller.
    pub(super) fn words(self, options: &Options) -> String {
        let Options { running_max, share_workspace, share_bot, .. } = options;
        match self {
            NoPlace::Bot => format!(
                "this bot has reached its share of the running sandboxes on this host, and the remaining capacity is \
                 reserved for other bots; try again when one of its sandboxes is idle (limits: --sandbox-max \
                 {running_max}, --sandbox-share-bot {share_bot})"
            ),
            NoPlace::Workspace => format!(
                "this workspace has reached its share of the running sandboxes on this host, and the remaining \
                 capacity is reserved for other workspaces; try again when one of its sandboxes is idle (limits: \
                 --sandbox-max {running_max}, --sandbox-share-workspace {share_workspace})"
            ),
            NoPlace::Newcomers => format!(
                "the remaining capacity for running sandboxes on this host is reserved for workspaces that have no \
                 running sandbox; try again when a sandbox is idle (limit: --sandbox-max {running_max})"
            ),
            NoPlace::All => format!(
                "this host has reached its limit of running sandboxes; try again when a sandbox is idle (limit: \
                 --sandbox-max {running_max})"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: Others = Others { workspaces: true, bots: true };

    struct Host {
        shares: Shares,
        running: Vec<RunningSandboxes>,
    }

    impl Host {
        fn new(running_max: u32) -> Host {
            let options = Options { running_max, ..Options::default() };
            Host { shares: Shares::of(&options), running: Vec::new() }
        }

        fn refusal(&self, (workspace, bot): (WorkspaceId, BotId), others: Others) -> Option<NoPlace> {
            self.shares.refusal(&Taken::of(&self.running), workspace, bot, others)
        }

        /// Takes places until the host refuses a place. Returns the number of taken places and the reason.
        fn fill(&mut self, by: (WorkspaceId, BotId), others: Others) -> (u64, NoPlace) {
            let mut count = 0;
            loop {
                if let Some(why) = self.refusal(by, others) {
                    return (count, why);
                }
                count += 1;
                self.running.push(RunningSandboxes { workspace: by.0, bot: by.1, count: 1 });
            }
        }
    }

    #[test]
    fn a_bot_alone_has_all_places() {
        let alone = Others { workspaces: false, bots: false };
        for max in [1, 2, 3, 4, 64, 10_000] {
            let by = (WorkspaceId::new(), BotId::new());
            assert_eq!(Host::new(max).fill(by, alone), (u64::from(max), NoPlace::All));
        }
    }

    #[test]
    fn no_bot_shuts_out_another_of_its_workspace_nor_a_workspace_another() {
        // The expected number of places of one bot, of its workspace with any number of bots, and of all workspaces
        // together.
        for (max, of_bot, of_workspace, of_two) in
            [(1, 1, 1, 1), (2, 1, 1, 1), (3, 2, 2, 2), (4, 2, 3, 3), (8, 4, 6, 7), (64, 32, 48, 56)]
        {
            let mut host = Host::new(max);
            let (one, two) = (WorkspaceId::new(), WorkspaceId::new());
            let (first, why) = host.fill((one, BotId::new()), BOTH);
            assert_eq!(first, of_bot, "{max}");
            assert!(max == 1 || why == NoPlace::Bot, "{max}: {why:?}");
            while host.refusal((one, BotId::new()), BOTH).is_none() {
                host.fill((one, BotId::new()), BOTH);
            }
            assert_eq!(Taken::of(&host.running).of_workspace(one), of_workspace, "{max}");
            let second = host.refusal((two, BotId::new()), BOTH);
            assert_eq!(second.is_none(), max > 1, "{max}: whether another workspace gets a place");
            while max > 1 && host.refusal((two, BotId::new()), BOTH).is_none() {
                host.fill((two, BotId::new()), BOTH);
            }
            assert!(max < 4 || Taken::of(&host.running).all >= of_two, "{max}");
        }
    }

    #[test]
    fn a_bot_below_its_share_gets_it_from_what_another_left() {
        let mut host = Host::new(64);
        let (one, two) = (WorkspaceId::new(), WorkspaceId::new());
        let greedy = BotId::new();
        host.fill((one, greedy), BOTH);
        assert_eq!(host.fill((one, BotId::new()), BOTH), (16, NoPlace::Bot), "a bot gets a quarter of the places");
        assert_eq!(
            host.fill((two, BotId::new()), BOTH).0,
            8,
            "up to the places that are reserved for workspaces without a running sandbox"
        );
        for _ in 0..8 {
            let newcomer = (WorkspaceId::new(), BotId::new());
            assert_eq!(host.refusal(newcomer, BOTH), None);
            host.running.push(RunningSandboxes { workspace: newcomer.0, bot: newcomer.1, count: 1 });
        }
        assert_eq!(host.refusal((WorkspaceId::new(), BotId::new()), BOTH), Some(NoPlace::All));
    }

    #[test]
    fn a_hundred_percent_is_no_share() {
        let options = Options { running_max: 8, share_workspace: 100, share_bot: 100, ..Options::default() };
        let mut host = Host { shares: Shares::of(&options), running: Vec::new() };
        assert_eq!(host.fill((WorkspaceId::new(), BotId::new()), BOTH).0, 8);
    }

    #[test]
    fn what_has_its_share_gives_up_its_own_and_what_has_more_gives_way() {
        let (one, two) = (WorkspaceId::new(), WorkspaceId::new());
        let (greedy, fellow, other) = (BotId::new(), BotId::new(), BotId::new());
        let running = |greedy_count, other_count| {
            Taken::of(&[
                RunningSandboxes { workspace: one, bot: greedy, count: greedy_count },
                RunningSandboxes { workspace: two, bot: other, count: other_count },
            ])
        };
        let shares = Host::new(8).shares;
        let may = |taken: &Taken, why, by, of| shares.may_displace(taken, why, by, of);
        let lent = running(4, 1);
        assert!(may(&lent, NoPlace::Bot, (one, greedy), (one, greedy)), "a bot may replace its own sandbox");
        assert!(!may(&lent, NoPlace::Bot, (one, greedy), (two, other)));
        assert!(!may(&lent, NoPlace::Bot, (one, greedy), (one, fellow)));
        let full = running(6, 2);
        assert!(
            !may(&full, NoPlace::Bot, (one, greedy), (one, greedy)),
            "the bot exceeds its share, and other bots wait"
        );
        assert!(may(&full, NoPlace::Bot, (two, other), (two, other)), "the bot does not exceed its share");
        assert!(may(&full, NoPlace::All, (WorkspaceId::new(), BotId::new()), (two, other)));
        assert!(may(&full, NoPlace::Newcomers, (two, BotId::new()), (one, greedy)));
        assert!(!may(&full, NoPlace::Newcomers, (one, fellow), (two, other)));
        assert_eq!((shares.excess(&full, one, greedy), shares.excess(&full, two, other)), (2, 0));
        assert_eq!(shares.excess(&full, one, fellow), 1, "its workspace exceeds its share");
    }
}
