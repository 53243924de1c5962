//! Access to the SQLite database of a server, as a person with its files has it.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// Runs statements on a SQLite database and prints the rows of the last statement as JSON.
const PROGRAM: &str = "\
import json, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    rows = database.execute(statement).fetchall()
print(json.dumps(rows))
database.close()";

/// Runs statements on the database of a data folder, and returns the rows of the last statement.
pub async fn sqlite(data_dir: &Path, statements: &[&str]) -> Result<Value> {
    let mut python = Command::new("python3");
    let output = python.args(["-c", PROGRAM]).arg(data_dir.join("monstrum.db")).args(statements).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}
