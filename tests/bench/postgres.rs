//! Compares calls over HTTP of one and of two hosts on a PostgreSQL database with pgbench, which inserts one row of the
//! audit per transaction from as many clients. All run on this machine.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use support::{Build, Postgres, Server};
use tokio::process::Command;

use crate::load;
use crate::report::{Measure, Row};
use crate::sample::{Rounds, Sample};
use crate::scene::{self, PLUGIN};

const VARIABLE: &str = "MONSTRUM_DATABASE_URL";
/// The number of connections to the hosts, and the number of clients of pgbench.
const CONNECTIONS: usize = 64;
/// The number of bots. One bot may have 32 concurrent calls.
const BOTS: usize = 10;
/// The seconds that pgbench may take to open its connections. They count to its time limit.
const CONNECT_S: u64 = 2;
const GOAL_ONE: f64 = 0.6;
const GOAL_TWO: f64 = 0.8;

/// Measures calls on PostgreSQL and returns the rows.
pub async fn measure(rounds: usize, seconds: u64) -> Result<Vec<Row>> {
    let hosts = Hosts::start(&Build::current()?).await?;
    let duration = Duration::from_secs(seconds);
    // The first calls load the components and write the row that pgbench inserts.
    hosts.load(2, Duration::from_secs(1)).await?;
    let floor = Floor::create(&hosts)?;
    let (mut one, mut two) = (Rounds::default(), Rounds::default());
    for round in 0..rounds {
        let mut samples = [None; 3];
        for place in 0..samples.len() {
            let side = (round + place) % samples.len();
            samples[side] = Some(match side {
                0 => floor.run(&hosts, seconds).await?,
                hosts_loaded => hosts.load(hosts_loaded, duration).await?,
            });
        }
        let [Some(floor), Some(by_one), Some(by_two)] = samples else { unreachable!("each side has had its turn") };
        one.add(by_one, floor);
        two.add(by_two, floor);
    }
    let row = |count: &str, rounds: &Rounds, goal: f64| {
        let name = format!("call over HTTP, {CONNECTIONS} connections, {count} on one PostgreSQL");
        let names = (name.as_str(), "pgbench inserting the same row, 64 clients");
        Row::new(names, Measure::Rate, rounds, &format!(">= {goal}"), |ratio, _| ratio >= goal)
    };
    Ok(vec![row("one host", &one, GOAL_ONE), row("two hosts", &two, GOAL_TWO)])
}

/// A PostgreSQL server and two hosts that share a database on it.
pub struct Hosts {
    // The fields are dropped in this order: the hosts end before the database.
    servers: [Server; 2],
    postgres: Postgres,
    url: String,
    requests: Vec<Vec<u8>>,
}

impl Hosts {
    /// Starts PostgreSQL with its default settings, and two hosts of `build`.
    pub async fn start(build: &Build) -> Result<Hosts> {
        let postgres = Postgres::start(&[])?;
        let url = postgres.database()?;
        let server = || anyhow::Ok(Server::prepare_from(build.clone(), &[PLUGIN])?.variable(VARIABLE, &url));
        let (mut first, mut second) = (server()?, server()?);
        first.launch().await?;
        // Hosts of one database have the same master key.
        fs::create_dir(second.data_dir()).context("cannot create the data folder of the second host")?;
        fs::copy(first.data_dir().join("master.key"), second.data_dir().join("master.key"))
            .context("cannot copy the master key")?;
        second.launch().await?;
        let bots = scene::bots(&first.api()?, BOTS).await?;
        let requests = scene::requests(&bots, CONNECTIONS)?;
        let hosts = Hosts { servers: [first, second], postgres, url, requests };
        hosts.applied_by_all().await?;
        Ok(hosts)
    }

    /// Waits until the second host has applied the changes made at the first.
    async fn applied_by_all(&self) -> Result<()> {
        const APPLIED_MAX: Duration = Duration::from_secs(10);
        const POLL: Duration = Duration::from_millis(50);
        let address = scene::address(&self.servers[1])?;
        // The last bot was created last.
        let request = &self.requests[BOTS - 1];
        let applied = async {
            loop {
                // The host answers 401 until it knows the key.
                let mut connection = load::Connection::open(&address).await?;
                if connection.ask(request).await?.is_success() {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(POLL).await;
            }
        };
        tokio::time::timeout(APPLIED_MAX, applied).await.context("the second host does not apply changes")?
    }

    /// Loads the first `count` hosts with [`CONNECTIONS`] connections in total.
    pub async fn load(&self, count: usize, duration: Duration) -> Result<Sample> {
        let addresses = self.servers[..count].iter().map(scene::address).collect::<Result<Vec<_>>>()?;
        load::run_on(&addresses, &self.requests, duration).await
    }

    fn database(&self) -> Result<&str> {
        self.url.split(['/', '?']).nth(3).context("the URL names no database")
    }
}

/// A table without keys and indexes, and the script with which pgbench inserts a row of the audit into it.
struct Floor {
    folder: tempfile::TempDir,
}

impl Floor {
    fn create(hosts: &Hosts) -> Result<Floor> {
        let sql = |sql: &str| hosts.postgres.sql(hosts.database()?, sql);
        sql("create table floor_rows as table audit_rows with no data")?;
        // pgbench replaces names after colons, so the values have semicolons instead.
        let values = sql("select string_agg(quote_nullable(replace(value, ':', ';')), ', ') from \
             (select * from audit_rows where kind = 'finished' order by sequence desc limit 1) newest, \
             json_each_text(row_to_json(newest))")?;
        ensure!(!values.is_empty(), "no call has written a row");
        let floor = Floor { folder: tempfile::tempdir().context("cannot create a temporary folder")? };
        fs::write(floor.script(), format!("insert into floor_rows values ({values});\n"))
            .context("cannot write the script of pgbench")?;
        Ok(floor)
    }

    fn script(&self) -> std::path::PathBuf {
        self.folder.path().join("insert.sql")
    }

    /// Runs pgbench, and returns the times of its transactions.
    async fn run(&self, hosts: &Hosts, seconds: u64) -> Result<Sample> {
        let mut pgbench = Command::new(hosts.postgres.programs().join("pgbench"));
        pgbench.args(["--no-vacuum", "--protocol=prepared", "--log", "--jobs=2"]);
        pgbench.arg(format!("--client={CONNECTIONS}")).arg(format!("--time={}", seconds + CONNECT_S));
        pgbench.arg("--file").arg(self.script()).arg(&hosts.url).current_dir(self.folder.path());
        pgbench.stdin(Stdio::null()).kill_on_drop(true);
        let output = pgbench.output().await.context("cannot run pgbench")?;
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        if !output.status.success() {
            bail!("pgbench failed with {}: {printed}", output.status);
        }
        sample(&self.transactions()?).with_context(|| format!("pgbench has completed no transaction: {printed}"))
    }

    /// Reads and removes the logs of pgbench.
    fn transactions(&self) -> Result<Vec<Transaction>> {
        let mut transactions = Vec::new();
        for entry in fs::read_dir(self.folder.path()).context("cannot read the folder of pgbench")? {
            let path = entry?.path();
            if path != self.script() {
                transactions.extend(read_log(&path)?);
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
        Ok(transactions)
    }
}

/// A transaction of pgbench.
struct Transaction {
    took: Duration,
    /// The time of its end since the epoch.
    ended: Duration,
}

/// Reads a log of pgbench. The third column is the duration in microseconds; the fifth and the sixth column are the time
/// of the end in seconds and microseconds.
fn read_log(path: &Path) -> Result<Vec<Transaction>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let transaction = |line: &str| {
        let columns: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [_, _, took_us, _, ended_s, ended_us] = columns[..] else { return None };
        let ended = Duration::from_secs(ended_s) + Duration::from_micros(ended_us);
        Some(Transaction { took: Duration::from_micros(took_us), ended })
    };
    let readable = |line| transaction(line).with_context(|| format!("a line of pgbench's log is not readable: {line}"));
    text.lines().map(readable).collect()
}

/// Returns the figures of transactions, from the start of the first to the end of the last. The time in which pgbench
/// opens its connections does not count. Returns `None` if there are no transactions.
fn sample(transactions: &[Transaction]) -> Option<Sample> {
    let first = transactions.iter().map(|transaction| transaction.ended.saturating_sub(transaction.took)).min()?;
    let last = transactions.iter().map(|transaction| transaction.ended).max()?;
    Some(Sample::new(transactions.iter().map(|transaction| transaction.took).collect(), last - first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_pgbench_is_that_of_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgbench_log.1");
        fs::write(&path, "0 1 250000 0 1763990000 500000\n3 1 500000 0 1763990001 250000\n").unwrap();
        let figures = sample(&read_log(&path).unwrap()).unwrap();
        assert_eq!((figures.median_us, figures.per_second), (500_000.0, 2.0));
        assert!(sample(&[]).is_none());
        for unreadable in ["0 1\n", "0 1 x 0 1763990000 123456\n"] {
            fs::write(&path, unreadable).unwrap();
            assert!(read_log(&path).is_err(), "{unreadable}");
        }
    }
}
