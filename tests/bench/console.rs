//! Measures the console: its pages beside the requests to the API behind them, the first page and the live page in a
//! browser, and the queries of a server whose console is not open.

mod browser;
mod pages;
mod quiet;
mod workspace;

use anyhow::Result;

use crate::machine::Machine;
use crate::report::Row;
use quiet::Quiet;
use workspace::Workspace;

/// Measures the console and returns the rows. `has_browser` tells whether Chromium and its packages are installed.
pub async fn measure(rounds: usize, seconds: u64, machine: &Machine, has_browser: bool) -> Result<Vec<Row>> {
    // These servers settle while the pages are measured.
    let quiet = Quiet::start().await?;
    let workspace = Workspace::fill().await?;
    let mut rows = pages::measure(&workspace, rounds, machine).await?;
    if has_browser {
        rows.extend(browser::measure(&workspace, seconds).await?);
    }
    workspace.host.stop().await;
    rows.push(quiet.measure().await?);
    Ok(rows)
}
