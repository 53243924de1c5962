//! Counts the queries that a server makes for its console while no page is open. PostgreSQL logs every statement of two
//! servers at rest: one with the console, whose pages were opened before, and one without it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::header::{COOKIE, SET_COOKIE};
use reqwest::{Client, Response};
use support::{Postgres, Server};

use crate::report::{Measure, Row};

const DATABASE_URL: &str = "MONSTRUM_DATABASE_URL";
const SETTINGS: [&str; 3] = ["log_statement=all", "log_line_prefix=[%d] ", "log_parameter_max_length=0"];
/// The time for which the live page is open.
const OPEN: Duration = Duration::from_secs(3);
/// The time after the pages were open until the statements are counted. The server stores the last use of a key at most
/// once a minute.
const SETTLE: Duration = Duration::from_secs(75);
const WINDOW: Duration = Duration::from_secs(20);
/// The maximum difference between the counts of a statement that both servers repeat, because the servers do not begin
/// at the same time.
const DIFFERENCE_MAX: u64 = 2;

/// The counts of statements by their texts.
type Statements = BTreeMap<String, u64>;

/// Two servers at rest.
pub struct Quiet {
    // The fields are dropped in this order: the servers end before the database.
    with_console: At,
    without_console: At,
    postgres: Postgres,
    closed: Instant,
}

/// A server, and the name of its database.
struct At {
    server: Server,
    database: String,
}

impl Quiet {
    /// Starts the servers, and opens and closes pages of the console.
    pub async fn start() -> Result<Quiet> {
        let postgres = Postgres::start(&SETTINGS)?;
        let with_console = At::start(&postgres, "on").await?;
        let without_console = At::start(&postgres, "off").await?;
        with_console.open_pages().await?;
        // The other server has uses of the key to store too.
        let (status, answer) = without_console.server.api()?.get("/api/audit?limit=50").await?;
        ensure!(status == 200, "the calls cannot be listed: {status} {answer}");
        Ok(Quiet { with_console, without_console, postgres, closed: Instant::now() })
    }

    /// Counts the queries for some time, and returns the row.
    pub async fn measure(mut self) -> Result<Row> {
        tokio::time::sleep(SETTLE.saturating_sub(self.closed.elapsed())).await;
        let begin = self.postgres.log().len();
        tokio::time::sleep(WINDOW).await;
        let log = self.postgres.log();
        let window = log.get(begin..).context("the log of PostgreSQL is not readable")?;
        let with = statements(window, &self.with_console.database);
        let without = statements(window, &self.without_console.database);
        let known = statements(&log, &self.without_console.database);
        ensure!(!with.is_empty() && !without.is_empty(), "PostgreSQL logged no statements: {window}");
        let of_console = only_with(&with, &without, &known);
        for (text, count) in &of_console {
            println!("    a query of the console: {count} x {text}");
        }
        self.with_console.server.stop().await?;
        self.without_console.server.stop().await?;
        let (sum, sum_without) = (with.values().sum::<u64>(), without.values().sum::<u64>());
        let name = format!("console: queries in {} s, no page open", WINDOW.as_secs());
        let row = Row::of_numbers((&name, "with --console off"), Measure::Count, sum as f64, sum_without as f64);
        let queries: u64 = of_console.values().sum();
        Ok(row.with_goal(&format!("0 of the console (now {queries})"), queries == 0))
    }
}

impl At {
    async fn start(postgres: &Postgres, console: &str) -> Result<At> {
        let url = postgres.database()?;
        let database = url.split(['/', '?']).nth(3).context("the URL names no database")?.to_owned();
        let mut server = Server::prepare(&[])?.variable(DATABASE_URL, &url).argument("--console").argument(console);
        server.launch().await?;
        Ok(At { server, database })
    }

    /// Opens the first page and the live page of the console for some time.
    async fn open_pages(&self) -> Result<()> {
        let (api, url) = (self.server.api()?, self.server.url().context("the server is not running")?);
        let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).tls_certs_only([]);
        let client = client.build()?;
        let login = client.post(format!("{url}/console/login")).header("sec-fetch-site", "same-origin");
        let answer = login.form(&[("key", api.key())]).send().await?;
        let cookie = answer.headers().get(SET_COOKIE).context("the log-in failed")?.to_str()?;
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        let (_, me) = api.get("/api/me").await?;
        let base = format!("{url}/console/w/{}", me["workspace_id"].as_str().context("the key has no workspace")?);
        let page = async |path: &str| -> Result<Response> {
            let answer = client.get(format!("{base}/{path}")).header(COOKIE, &cookie).send().await?;
            ensure!(answer.status() == 200, "the page {path} was answered with {}", answer.status());
            Ok(answer)
        };
        for path in ["overview", "activity/live"] {
            page(path).await?.bytes().await?;
        }
        let events = page("activity/live/events").await?;
        tokio::time::sleep(OPEN).await;
        drop(events);
        Ok(())
    }
}

/// Returns the statements that only the server with the console makes, or that it makes more often. `known` are all
/// statements of the other server since its start: a statement may be rare.
fn only_with(with: &Statements, without: &Statements, known: &Statements) -> Statements {
    let more = |(text, count): (&String, &u64)| {
        let more = match (without.get(text), known.contains_key(text)) {
            (None, false) => *count,
            (other, _) => count.saturating_sub(other.copied().unwrap_or_default() + DIFFERENCE_MAX),
        };
        (more > 0).then(|| (text.clone(), more))
    };
    with.iter().filter_map(more).collect()
}

/// Returns the statements that a log of PostgreSQL has for a database. The further lines of a statement begin with a tab.
fn statements(log: &str, database: &str) -> Statements {
    let mut texts: Vec<String> = Vec::new();
    let mut is_statement = false;
    for line in log.lines() {
        match line.strip_prefix('\t') {
            Some(more) => {
                if let Some(text) = texts.last_mut().filter(|_| is_statement) {
                    text.push(' ');
                    text.push_str(more.trim());
                }
            }
            None => {
                let text = statement(line, database);
                is_statement = text.is_some();
                texts.extend(text);
            }
        }
    }
    let mut counts = Statements::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    counts
}

/// Returns the first line of a statement.
fn statement(line: &str, database: &str) -> Option<String> {
    let logged = line.strip_prefix('[')?.strip_prefix(database)?.strip_prefix("] LOG:  ")?;
    let prepared = || Some(logged.strip_prefix("execute ")?.split_once(": ")?.1);
    let text = logged.strip_prefix("statement: ").or_else(prepared)?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_of_a_database_are_counted() {
        let log = "[a] LOG:  execute sqlx_s_1: select 1\n[a] LOG:  execute sqlx_s_2: select x\n\t  from y\n\
            [b] LOG:  execute sqlx_s_1: select 2\n[a] LOG:  statement: BEGIN\n[a] LOG:  execute sqlx_s_1: select 1\n\
            [a] DETAIL:  parameters: $1 = 'x'\n\ty\n[aa] LOG:  statement: COMMIT\n";
        let expected = [("BEGIN", 1), ("select 1", 2), ("select x from y", 1)];
        let expected = Statements::from(expected.map(|(text, count)| (text.to_owned(), count)));
        assert_eq!(statements(log, "a"), expected);
        assert!(statements("\tselect 1\n", "a").is_empty());
    }

    #[test]
    fn queries_of_the_console_are_told_from_others() {
        let of = |counts: &[(&str, u64)]| -> Statements {
            counts.iter().map(|(text, count)| ((*text).to_owned(), *count)).collect()
        };
        let (with, without) = (of(&[("poll", 41), ("feed", 66), ("rare", 1), ("session", 1)]), of(&[("poll", 40)]));
        let known = of(&[("poll", 400), ("feed", 1), ("rare", 1)]);
        assert_eq!(only_with(&with, &without, &known), of(&[("feed", 64), ("session", 1)]));
    }
}
