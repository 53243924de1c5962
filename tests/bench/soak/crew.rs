//! The connections of the soak test and their calls: good calls of several tools, rejected calls, hostile calls, and
//! callers that disconnect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use support::Api;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cpu;
use crate::hostile::{self, End, Kind, Verdict};
use crate::load::Connection;
use crate::scene::{self, Bot, Grant, PLUGIN};
use crate::upstream::{HELD, OK, SLOW};

/// The number of connections at full load.
const CONNECTIONS: usize = 64;
const HOSTILE: usize = 13;
const SLEEPERS: usize = 1;
const DESERTERS: usize = 4;
const GOOD: usize = CONNECTIONS - HOSTILE - SLEEPERS - DESERTERS;
const GOOD_BOTS: usize = 4;
const HOSTILE_BOTS: usize = 2;
/// The minimum time that a caller waits before it disconnects. The time increases with each call, up to ten times the
/// minimum.
const PATIENCE: Duration = Duration::from_millis(5);
/// How far a connection may fall behind its pace before it drops the missed calls.
const LAG_MAX: Duration = Duration::from_secs(1);
/// The largest payload of a result of 1 MiB. The remaining bytes are quotes and the name of the member.
const LARGE_BYTES: usize = (1 << 20) - 64;

/// The results of one kind of call.
#[derive(Clone, Default)]
pub struct Tally {
    pub name: &'static str,
    pub is_good: bool,
    pub as_expected: u64,
    pub busy: u64,
    pub wrong: u64,
    /// An example of an answer with an unexpected outcome.
    pub example: Option<String>,
    /// The times of the expected answers.
    pub times: Vec<Duration>,
}

impl Tally {
    pub fn calls(&self) -> u64 {
        self.as_expected + self.busy + self.wrong
    }

    /// Returns the number of answered calls, which are all in the audit. A call whose caller disconnected early may
    /// never have reached the server.
    pub fn answered(&self) -> u64 {
        self.times.len() as u64 + self.busy + self.wrong
    }

    fn add(&mut self, other: Tally) {
        self.as_expected += other.as_expected;
        self.busy += other.busy;
        self.wrong += other.wrong;
        self.example = self.example.take().or(other.example);
        self.times.extend(other.times);
    }
}

/// All connections.
pub struct Crew {
    tasks: JoinSet<Result<Vec<Tally>>>,
    counts: Arc<Counts>,
}

/// The number of calls made so far, by the part of the connection.
#[derive(Default)]
pub struct Counts([AtomicU64; PARTS.len()]);

/// The maximum number of calls per second of each connection, by the part of the connection.
#[derive(Clone, Copy)]
pub struct Pace([f64; PARTS.len()]);

/// The parts, each with its number of connections.
const PARTS: [(Part, usize); 4] =
    [(Part::Good, GOOD), (Part::Hostile, HOSTILE), (Part::Sleeper, SLEEPERS), (Part::Deserter, DESERTERS)];

/// The good and hostile bots.
pub struct Bots {
    good: Vec<Bot>,
    bad: Vec<Bot>,
}

/// The role of a connection.
#[derive(Clone, Copy)]
enum Part {
    /// Good calls of a good bot, and rejected calls of the same bot.
    Good,
    Hostile,
    /// Calls that sleep until their time-out.
    Sleeper,
    /// A caller that disconnects before the answer arrives.
    Deserter,
}

impl Counts {
    /// Returns the number of calls of all connections.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

impl Pace {
    /// Lets each connection send its next call as soon as the previous call is answered.
    pub const UNLIMITED: Pace = Pace([f64::INFINITY; PARTS.len()]);

    /// Limits all connections together to `calls_a_second`.
    pub fn evenly(calls_a_second: f64) -> Pace {
        Pace([calls_a_second / CONNECTIONS as f64; PARTS.len()])
    }

    /// Limits the connections to `share` of the calls that they made in `elapsed`. Connections that sleep in each call
    /// are not limited.
    pub fn share_of(counts: &Counts, elapsed: Duration, share: f64) -> Pace {
        let mut pace = Pace::UNLIMITED;
        for ((part, connections), (count, rate)) in PARTS.into_iter().zip(counts.0.iter().zip(&mut pace.0)) {
            if !matches!(part, Part::Sleeper) {
                let calls = count.load(Ordering::Relaxed).max(1);
                *rate = share * calls as f64 / elapsed.as_secs_f64() / connections as f64;
            }
        }
        pace
    }
}

impl Bots {
    /// Creates the bots and their resources at `upstream`.
    pub async fn create(api: &Api, upstream: &str) -> Result<Bots> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let operations = &["echo.read", "echo.write", "fetch.run"];
        let echo = || Grant { plugin: PLUGIN, operations, scope: json!({ "kinds": ["bug", "task-*"] }) };
        for number in 0..GOOD_BOTS {
            let grants = [echo(), Grant::all(cpu::PLUGIN)];
            good.push(scene::bot(api, &format!("good-{number}"), upstream, &grants).await?);
        }
        for number in 0..HOSTILE_BOTS {
            bad.push(hostile::bot(api, &format!("hostile-{number}"), upstream).await?);
        }
        Ok(Bots { good, bad })
    }
}

impl Crew {
    /// Opens the connections. They make calls until `duration` has passed, at most at the given pace.
    pub fn start(address: &str, bots: &Bots, duration: Duration, pace: Pace) -> Result<Crew> {
        let parts = PARTS.into_iter().enumerate();
        let parts = parts.flat_map(|(index, (part, count))| std::iter::repeat_n((index, part), count));
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        for (number, (index, part)) in parts.enumerate() {
            let bots = if matches!(part, Part::Good) { &bots.good } else { &bots.bad };
            let member = Member {
                address: address.to_owned(),
                first: number,
                pace: Duration::from_secs_f64(1.0 / pace.0[index]),
                until: Instant::now() + duration,
                index,
                counts: Arc::clone(&counts),
            };
            let calls = part.calls(&bots[number % bots.len()])?;
            tasks.spawn(member.work(part, calls));
        }
        Ok(Crew { tasks, counts })
    }

    /// Returns the counters of the calls made so far.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Waits for all connections and returns the results by kind of call.
    pub async fn ended(mut self) -> Result<Vec<Tally>> {
        let mut tallies: Vec<Tally> = Vec::new();
        while let Some(ended) = self.tasks.join_next().await {
            for tally in ended.context("the task of a connection failed")?? {
                match tallies.iter_mut().find(|known| known.name == tally.name) {
                    Some(known) => known.add(tally),
                    None => tallies.push(tally),
                }
            }
        }
        tallies.sort_by_key(|tally| (!tally.is_good, tally.name));
        Ok(tallies)
    }
}

impl Part {
    /// Returns the calls that a connection makes in turn.
    fn calls(self, bot: &Bot) -> Result<Vec<(Vec<u8>, Kind)>> {
        let kinds = match self {
            Part::Good => good_kinds(),
            Part::Hostile => hostile::kinds(),
            Part::Sleeper => vec![hostile::sleeper()],
            Part::Deserter => {
                let params = json!({ "path": HELD });
                vec![Kind::new("caller that disconnects", "test_echo_flooder_fetch", params, End::Success)]
            }
        };
        kinds.into_iter().map(|kind| Ok((scene::call(bot, kind.tool, &kind.params)?, kind))).collect()
    }
}

/// Returns the good kinds. The most common kinds occur several times.
fn good_kinds() -> Vec<Kind> {
    let success = |name, tool, params| Kind::new(name, tool, params, End::Success);
    let echo = success("echo", "test_echo_run", json!({ "repo": "bench/repo", "any": [1, 2, 3] }));
    let write = success("echo, another operation", "test_echo_write", json!({ "repo": "bench/repo", "kind": "bug" }));
    let fetch = success("request to the upstream", "test_echo_fetch", json!({ "path": OK }));
    let slow = success("request to a slow upstream", "test_echo_fetch", json!({ "path": SLOW }));
    let json = success("computing", "test_cpu_json", json!({ "rounds": 20 }));
    let large = success("result of 1 MiB", "test_cpu_fill", json!({ "bytes": LARGE_BYTES }));
    let refused = |name, tool, params, code| Kind::new(name, tool, params, End::Code(code));
    let denied = refused("refused: operation", "test_echo_flood", json!({}), "denied");
    let scope = refused("refused: scope", "test_echo_write", json!({ "kind": "secret" }), "scope");
    let invalid = refused("refused: parameters", "test_echo_run", json!({ "repo": 7 }), "invalid_params");
    let mut kinds = vec![slow, large, denied, scope, invalid];
    kinds.extend(std::iter::repeat_n([echo, write, fetch, json], 4).flatten());
    kinds
}

/// One connection.
struct Member {
    address: String,
    /// The index of the first call. The index differs between connections, so that the connections do not all send the
    /// same call at once.
    first: usize,
    /// The minimum time between the starts of two calls.
    pace: Duration,
    until: Instant,
    /// The index of the part in [`PARTS`].
    index: usize,
    counts: Arc<Counts>,
}

impl Member {
    async fn work(self, part: Part, calls: Vec<(Vec<u8>, Kind)>) -> Result<Vec<Tally>> {
        let is_good = matches!(part, Part::Good);
        let tally = |(_, kind): &(Vec<u8>, Kind)| Tally { name: kind.name, is_good, ..Tally::default() };
        let mut tallies: Vec<Tally> = calls.iter().map(tally).collect();
        let mut connection = Connection::open(&self.address).await?;
        let mut next = Instant::now();
        for turn in self.first.. {
            next = (Instant::now() - LAG_MAX).max(next + self.pace);
            tokio::time::sleep_until(next).await;
            if Instant::now() >= self.until {
                break;
            }
            let at = turn % calls.len();
            let (request, kind) = &calls[at];
            if matches!(part, Part::Deserter) {
                let patience = PATIENCE * u32::try_from(turn % 10 + 1)?;
                self.desert(request, patience, &mut tallies[at]).await?;
            } else if !ask(&mut connection, request, kind, &mut tallies[at]).await {
                connection = Connection::open(&self.address).await?;
            }
            self.counts.0[self.index].fetch_add(1, Ordering::Relaxed);
        }
        Ok(tallies)
    }

    /// Sends a call and disconnects.
    async fn desert(&self, request: &[u8], patience: Duration, tally: &mut Tally) -> Result<()> {
        let mut connection = Connection::open(&self.address).await?;
        connection.send(request).await?;
        match tokio::time::timeout(patience, connection.answer()).await {
            Err(_) => tally.as_expected += 1,
            Ok(answered) => {
                tally.wrong += 1;
                tally.example.get_or_insert_with(|| described(answered.map(|answer| answer.to_string())));
            }
        }
        Ok(())
    }
}

/// Sends a call and judges the answer. Returns false if the connection cannot be reused.
async fn ask(connection: &mut Connection, request: &[u8], kind: &Kind, tally: &mut Tally) -> bool {
    let sent = Instant::now();
    let answer = connection.ask(request).await;
    let took = sent.elapsed();
    match answer.as_ref().map_or(Verdict::Wrong, |answer| kind.judge(answer)) {
        Verdict::AsExpected => {
            tally.as_expected += 1;
            tally.times.push(took);
        }
        Verdict::Busy => tally.busy += 1,
        Verdict::Wrong => tally.wrong += 1,
    }
    let is_usable = answer.is_ok();
    if tally.wrong > 0 && tally.example.is_none() {
        tally.example = Some(described(answer.map(|answer| answer.to_string())));
    }
    is_usable
}

fn described(answer: Result<String>) -> String {
    answer.unwrap_or_else(|error| format!("the server sent no answer: {error:#}"))
}
