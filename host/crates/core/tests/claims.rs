//! A model of the turns that run one call: three hosts, one of which may have the claim, the audit, and an upstream that
//! counts. Hosts crash, stop for any time and lose their connection to the database at any moment. All states are checked.
//!
//! The decision about a call that an earlier turn has begun is that of the code. What else the model assumes of the code:
//! a claim is taken in one statement and only when it is free or has expired; a host's lease is over when its claim
//! expires at the latest; the row `started` is on disk before the first byte leaves; each request checks the lease before
//! its first byte; the end of a call is in the transaction of its audit row, and only for the claim that has it.

use monstrum_core::call_types::resumed::{Recorded, Resumed, is_uncertain, resumed};
use monstrum_manifest::Effect;
use monstrum_types::Code;
use stateright::{Checker as _, HasDiscoveries, Model, Property};

const HOSTS: usize = 3;
/// The maximum numbers of claims and of crashes, so that there are finitely many states.
const CLAIMS_MAX: u8 = 4;
const CRASHES_MAX: u8 = 2;

/// What a host knows, which a crash takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Host {
    Idle,
    /// The host has the claim with this number, and has not read the audit.
    Claimed(u8),
    /// The host is to run the call.
    Decided(u8),
    /// The row `started` of the call is on disk.
    Started(u8),
    /// The upstream has answered.
    Answered(u8),
    /// The upstream has the request, and its answer was lost.
    Unanswered(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Open,
    Succeeded,
    Uncertain,
}

/// The database, the upstream and the hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The host that has the claim, and the number of the claim.
    claim: Option<(usize, u8)>,
    has_expired: bool,
    claims: u8,
    crashes: u8,
    /// Whether the audit has a row `started` of the call.
    has_started: bool,
    step: Step,
    /// How often the upstream has done the work.
    effects: u8,
    /// Whether each host reaches the database.
    reaches: [bool; HOSTS],
    hosts: [Host; HOSTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Claim(usize),
    Decide(usize),
    Start(usize),
    /// The request leaves, and whether its answer arrives.
    Send(usize, bool),
    End(usize),
    Crash(usize),
    /// The connection of a host to the database fails or is there again.
    Switch(usize),
    /// The claim was not renewed in time.
    Expire,
}

/// One call with its tool's effect, run with or without a rule, so that it is seen that each rule is needed.
struct Call {
    effect: Effect,
    checks_lease: bool,
    reads_audit: bool,
}

impl Call {
    fn of(effect: Effect) -> Call {
        Call { effect, checks_lease: true, reads_audit: true }
    }

    fn decide(&self, world: &World, number: u8) -> Option<Host> {
        let recorded = if world.has_started && self.reads_audit { Recorded::Started } else { Recorded::NotStarted };
        match resumed(recorded, self.effect, Some(self.effect)) {
            Resumed::Runs => Some(Host::Decided(number)),
            Resumed::Uncertain => None,
        }
    }

    /// The end of a call whose answer was lost.
    fn cut(&self) -> Step {
        if is_uncertain(self.effect, Some(Code::Timeout), true) { Step::Uncertain } else { Step::Open }
    }
}

impl Model for Call {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            claim: None,
            has_expired: false,
            claims: 0,
            crashes: 0,
            has_started: false,
            step: Step::Open,
            effects: 0,
            reaches: [true; HOSTS],
            hosts: [Host::Idle; HOSTS],
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.claim.is_some() && !world.has_expired {
            actions.push(Action::Expire);
        }
        for host in 0..HOSTS {
            let is_free = world.claim.is_none() || world.has_expired;
            if world.hosts[host] == Host::Idle && is_free && world.step == Step::Open && world.claims < CLAIMS_MAX {
                actions.push(Action::Claim(host));
            }
            match world.hosts[host] {
                Host::Idle => continue,
                Host::Claimed(_) => actions.push(Action::Decide(host)),
                Host::Decided(_) => actions.push(Action::Start(host)),
                Host::Started(_) => actions.extend([Action::Send(host, true), Action::Send(host, false)]),
                Host::Answered(_) | Host::Unanswered(_) => actions.push(Action::End(host)),
            }
            actions.push(Action::Switch(host));
            if world.crashes < CRASHES_MAX {
                actions.push(Action::Crash(host));
            }
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Expire => world.has_expired = true,
            Action::Switch(host) => world.reaches[host] = !world.reaches[host],
            Action::Crash(host) => {
                world.hosts[host] = Host::Idle;
                world.crashes += 1;
            }
            Action::Send(host, is_answered) => {
                let Host::Started(number) = world.hosts[host] else { return None };
                let is_alive = world.claim == Some((host, number)) && !world.has_expired;
                if self.checks_lease && !is_alive {
                    world.hosts[host] = Host::Idle;
                    return Some(world);
                }
                // The upstream knows a request that it has seen by its id, if the tool says so.
                let is_new = self.effect != Effect::Idempotent || world.effects == 0;
                world.effects += u8::from(is_new);
                world.hosts[host] = if is_answered { Host::Answered(number) } else { Host::Unanswered(number) };
            }
            Action::Claim(host) | Action::Decide(host) | Action::Start(host) | Action::End(host)
                if !world.reaches[host] =>
            {
                return None;
            }
            Action::Claim(host) => {
                world.claims += 1;
                (world.claim, world.has_expired) = (Some((host, world.claims)), false);
                world.hosts[host] = Host::Claimed(world.claims);
            }
            Action::Decide(host) => {
                let Host::Claimed(number) = world.hosts[host] else { return None };
                world.hosts[host] = self.decide(&world, number).unwrap_or(Host::Idle);
                if world.hosts[host] == Host::Idle && world.claim == Some((host, number)) && world.step == Step::Open {
                    world.step = Step::Uncertain;
                }
            }
            Action::Start(host) => {
                let Host::Decided(number) = world.hosts[host] else { return None };
                world.has_started = true;
                world.hosts[host] = Host::Started(number);
            }
            Action::End(host) => {
                let (number, step) = match world.hosts[host] {
                    Host::Answered(number) => (number, Step::Succeeded),
                    Host::Unanswered(number) => (number, self.cut()),
                    _ => return None,
                };
                if world.claim == Some((host, number)) && world.step == Step::Open {
                    world.step = step;
                    (world.claim, world.has_expired) = (None, false);
                }
                world.hosts[host] = Host::Idle;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Call>> {
        vec![
            Property::always("a call has at most one effect", |call: &Call, world: &World| {
                call.effect == Effect::Read || world.effects <= 1
            }),
            Property::always("a call that succeeded had its effect", |_: &Call, world: &World| {
                world.step != Step::Succeeded || world.effects > 0
            }),
            Property::always("only a call that may have had its effect is uncertain", |call: &Call, world: &World| {
                world.step != Step::Uncertain || (world.has_started && call.effect == Effect::Write)
            }),
            Property::sometimes("a call succeeds after a crash", |_: &Call, world: &World| {
                world.step == Step::Succeeded && world.crashes > 0 && world.claims > 1
            }),
            Property::sometimes("a host ends its call too late", |_: &Call, world: &World| {
                world.step != Step::Open && world.hosts.iter().any(|host| matches!(host, Host::Answered(_)))
            }),
        ]
    }
}

#[test]
fn three_hosts_that_crash_and_stop_never_repeat_an_effect() {
    for effect in [Effect::Read, Effect::Idempotent, Effect::Write] {
        Call::of(effect).checker().threads(2).spawn_bfs().join().assert_properties();
    }
}

/// Without its rules, the model has second effects, so the properties can fail.
#[test]
fn each_rule_is_needed() {
    let name = "a call has at most one effect";
    for (checks_lease, reads_audit) in [(false, true), (true, false)] {
        let call = Call { effect: Effect::Write, checks_lease, reads_audit };
        let wanted = HasDiscoveries::AnyOf(std::iter::once(name).collect());
        let checker = call.checker().threads(2).finish_when(wanted).spawn_bfs().join();
        assert!(checker.discovery(name).is_some(), "lease: {checks_lease}, audit: {reads_audit}");
    }
}
