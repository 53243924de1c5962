//! Kills a loaded server at random moments, cuts its power, and checks what a restart finds.
//!
//! A round starts a server whose file changes are recorded, loads it, and kills or stops it at a random moment. Then it
//! restarts the server on the files as they are, and on the files that power cuts at random points of the record leave
//! behind. Every answered call and every request that left the server must be in the audit, every charge must be exact,
//! and the audit must verify.

mod check;
mod journal;
mod load;
mod storage;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::{Random, Server};
pub use check::Fault;
use check::{Known, Promised, check};
use journal::{Change, Record};
use load::{Kind, Loaded, PLUGIN, Scene};
use storage::{Files, Loss, Storage};

/// The number of rounds after which the data folder is as small as at first again. Until then, each round continues with
/// what the last power cut has left.
const ROUNDS_PER_FOLDER: usize = 4;
/// Every so many rounds, the server is stopped instead of killed. Power cuts then also happen during its shutdown.
const ROUNDS_PER_STOP: usize = 4;

/// The test of one installation.
pub struct CrashTest {
    seed: u64,
    load_max: Duration,
    honours_syncs: bool,
    server: Server,
    scene: Scene,
    shim: PathBuf,
    /// The folder of the library and of the journal.
    folder: TempDir,
    first: State,
    state: State,
    rounds: usize,
    totals: CrashTotals,
}

/// A data folder and what it is known to contain.
#[derive(Clone)]
struct State {
    files: Files,
    known: Known,
}

/// What the rounds so far have tested.
#[derive(Clone, Debug, Default)]
pub struct CrashTotals {
    pub kills: usize,
    pub stops: usize,
    pub cuts: usize,
    /// The power cuts that lost changes or that could have lost some.
    pub lossy_cuts: usize,
    /// The answered requests: plain calls, calls with a cost, calls with a request to the upstream, changes.
    pub answered: [usize; 4],
    /// The starts that recorded calls as interrupted.
    pub interrupted: usize,
    /// The audit rows that were checked, over all moments.
    pub rows: usize,
}

impl CrashTotals {
    /// Returns the number of kills, stops and power cuts.
    #[must_use]
    pub fn moments(&self) -> usize {
        self.kills + self.stops + self.cuts
    }
}

impl fmt::Display for CrashTotals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrashTotals { kills, stops, cuts, lossy_cuts, answered: [plain, charged, requests, changes], .. } = self;
        write!(
            formatter,
            "{kills} kills, {stops} stops, {cuts} power cuts ({lossy_cuts} with unsynced writes); answered: {plain} plain \
             calls, {charged} with a cost, {requests} with a request, {changes} changes; {} restarts found interrupted \
             calls; {} audit rows checked",
            self.interrupted, self.rows
        )
    }
}

impl CrashTest {
    /// Prepares an installation. A server is loaded for at most `load_max`. The same seed gives the same sequence of
    /// moments, but not the same load, because requests run concurrently.
    pub async fn prepare(seed: u64, load_max: Duration) -> Result<CrashTest> {
        let folder = tempfile::Builder::new().prefix("monstrum-").tempdir()?;
        let shim = journal::build_shim(folder.path())?;
        let mut server = Server::prepare(&[PLUGIN])?;
        server.launch().await?;
        let scene = Scene::create(&server.api()?).await?;
        let ended = server.stop().await?;
        ensure!(ended.success(), "the server ended with {ended}");
        let first = State { files: read(&server.data_dir())?, known: Known::default() };
        Ok(CrashTest {
            seed,
            load_max,
            honours_syncs: true,
            server,
            scene,
            shim,
            folder,
            state: first.clone(),
            first,
            rounds: 0,
            totals: CrashTotals::default(),
        })
    }

    /// Lets power cuts lose synced writes as well, as if the server had not synced them. A round must then fail.
    #[must_use]
    pub fn on_a_disk_that_ignores_syncs(mut self) -> Self {
        self.honours_syncs = false;
        self
    }

    /// Returns what was tested so far.
    #[must_use]
    pub fn totals(&self) -> &CrashTotals {
        &self.totals
    }

    /// Runs a round with one kill or stop and `cuts` power cuts. Fails with a [`Fault`] if a promise does not hold.
    pub async fn round(&mut self, cuts: usize) -> Result<()> {
        if self.rounds.is_multiple_of(ROUNDS_PER_FOLDER) {
            self.state = self.first.clone();
        }
        self.rounds += 1;
        let mut random = Random::new(self.seed, self.rounds as u64);
        let is_stopped = self.rounds.is_multiple_of(ROUNDS_PER_STOP);
        let journal = self.folder.path().join("journal");
        let loaded = self.load(&journal, is_stopped, &mut random).await?;
        let records = journal::read(&journal)?;
        fs::remove_file(&journal)?;

        let mut files = read(&self.server.data_dir())?;
        if is_stopped {
            check_record(&self.state.files, &records, &files)?;
        }
        let what = if is_stopped { "a stop" } else { "a kill" };
        let mut known = self.moment(&files, &loaded, u64::MAX, what).await?;
        *(if is_stopped { &mut self.totals.stops } else { &mut self.totals.kills }) += 1;

        let mut points: Vec<usize> = (0..cuts).map(|_| point(&records, &mut random)).collect();
        points.sort_unstable();
        let mut storage = Storage::new(&self.state.files, self.honours_syncs);
        let mut applied = 0;
        for point in points {
            for record in &records[applied..point] {
                storage.apply(record)?;
            }
            applied = point;
            let loss = loss(point, &mut random);
            files = storage.after_power_cut(loss, &mut random);
            self.totals.lossy_cuts += usize::from(storage.sectors_at_risk() > 0);
            put(&self.server.data_dir(), &files)?;
            let journal_bytes = point.checked_sub(1).map_or(0, |last| records[last].end);
            let what = format!("a power cut after {point} of {} file changes, loss {loss:?}", records.len());
            known = self.moment(&files, &loaded, journal_bytes, &what).await?;
            self.totals.cuts += 1;
        }
        self.state = State { files: read(&self.server.data_dir())?, known };
        Ok(())
    }

    /// Starts a server on the files of the current state, and loads it until it is killed or stopped.
    async fn load(&mut self, journal: &Path, is_stopped: bool, random: &mut Random) -> Result<Loaded> {
        let data = self.server.data_dir();
        put(&data, &self.state.files)?;
        let text = |path: &Path| path.to_str().map(str::to_owned).context("the temporary folder is not UTF-8");
        let variables =
            [("LD_PRELOAD", text(&self.shim)?), ("CRASH_FOLDER", text(&data)?), ("CRASH_JOURNAL", text(journal)?)];
        for (name, value) in &variables {
            self.server.set_variable(name, Some(value));
        }
        self.server.launch().await.context("the server does not start with the library that records its changes")?;
        for (name, _) in &variables {
            self.server.set_variable(name, None);
        }
        let load = self.scene.begin(&self.server.api()?, &format!("round-{}", self.rounds), journal);
        tokio::time::sleep(self.load_max.mul_f64(0.2 + 0.8 * random.share())).await;
        if is_stopped {
            self.server.stop().await?
        } else {
            self.server.kill().await?
        };
        let loaded = load.ended().await?;
        for asked in loaded.asked.iter().filter(|asked| asked.answer.is_some()) {
            let kinds = [Kind::Plain, Kind::Charged, Kind::Request, Kind::Change];
            if let Some(index) = kinds.iter().position(|kind| *kind == asked.kind) {
                self.totals.answered[index] += 1;
            }
        }
        Ok(loaded)
    }

    /// Restarts the server on its data folder, which contains `files`, and checks it. Keeps the files of a fault.
    async fn moment(&mut self, files: &Files, loaded: &Loaded, journal_bytes: u64, what: &str) -> Result<Known> {
        let number = self.totals.moments() + 1;
        let promised = Promised { before: &self.state.known, loaded, journal_bytes };
        let checked = check(&mut self.server, &self.scene, &format!("restart-{number}"), &promised).await;
        match checked {
            Ok(known) => {
                self.totals.interrupted += usize::from(known.interrupted() > self.state.known.interrupted());
                self.totals.rows += known.rows();
                Ok(known)
            }
            Err(error) => {
                let place = format!("moment {number} of seed {}: {what}", self.seed);
                if !self.honours_syncs {
                    return Err(error.context(place));
                }
                let kept = tempfile::Builder::new().prefix("monstrum-crash-").tempdir()?.keep();
                put(&kept, files)?;
                Err(error.context(format!("{place}; the data folder before the restart is kept in {}", kept.display())))
            }
        }
    }
}

/// Chooses the number of records before a power cut: any number, or the number directly before or after a sync.
fn point(records: &[Record], random: &mut Random) -> usize {
    let any = random.below(records.len() + 1);
    let is_sync = |record: &Record| matches!(record.change, Change::Sync { .. });
    let next_sync = records[any..].iter().position(is_sync).map(|further| any + further);
    match (random.below(3), next_sync) {
        (0, Some(sync)) => sync,
        (1, Some(sync)) => sync + 1,
        _ => any,
    }
}

fn loss(records: usize, random: &mut Random) -> Loss {
    match random.below(4) {
        0 => Loss::All,
        1 => Loss::After(records.saturating_sub(random.below(100))),
        _ => Loss::Some(random.share()),
    }
}

/// Checks that the journal explains the files that a stopped server has left.
fn check_record(base: &Files, records: &[Record], files: &Files) -> Result<()> {
    let mut storage = Storage::new(base, true);
    for record in records {
        storage.apply(record)?;
    }
    let recorded = storage.content();
    ensure!(
        recorded.keys().eq(files.keys()),
        "the record has the files {:?}, but the folder {:?}",
        recorded.keys(),
        files.keys()
    );
    match files.iter().find(|(name, content)| recorded[*name] != **content) {
        Some((name, _)) => bail!("the record does not contain all changes of `{name}`"),
        None => Ok(()),
    }
}

/// Reads the files of a data folder, except the shared memory of SQLite, which need not survive a power cut.
fn read(folder: &Path) -> Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("the name of a file is not UTF-8")?;
        if entry.file_type()?.is_file() && !name.ends_with("-shm") {
            files.insert(name, fs::read(entry.path())?);
        }
    }
    Ok(files)
}

/// Replaces the files of a data folder.
fn put(folder: &Path, files: &Files) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    for (name, content) in files {
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(folder.join(name))?.write_all(content)?;
    }
    Ok(())
}
