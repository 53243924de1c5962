//! The commands of docs/backup.md, run exactly as written.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use support::{Postgres, Server};
use tokio::process::Command;

use super::Secrets;
use crate::postgres::server_on;
use crate::world::World;

const GUIDE: &str = include_str!("../../docs/backup.md");

/// Returns the commands in the section with this heading: the lines with an indentation of four.
pub(crate) fn commands(heading: &str) -> Result<String> {
    let section = GUIDE.split("\n## ").find(|section| section.starts_with(heading));
    let section = section.with_context(|| format!("the guide has no section `{heading}`"))?;
    Ok(section.lines().filter_map(|line| line.strip_prefix("    ")).collect::<Vec<_>>().join("\n"))
}

/// Runs commands in the home of a server. Its data folder is `data`, next to the plugins folder.
pub(crate) async fn shell(home: &Path, commands: &str) -> Result<()> {
    let script = format!("set -eu\numask 077\n{commands}");
    let output = Command::new("bash").args(["--norc", "-c", &script]).current_dir(home).output().await?;
    ensure!(output.status.success(), "{commands}\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Removes the data folder, restores the backup with the guide's commands, and checks that every secret opens.
async fn restore(secrets: &mut Secrets) -> Result<()> {
    std::fs::remove_dir_all(secrets.world.server.data_dir())?;
    shell(secrets.world.server.home(), &commands("Restore\n")?).await?;
    secrets.open_all().await
}

#[tokio::test]
async fn a_copy_of_a_stopped_server_comes_back_whole() -> Result<()> {
    let mut secrets = Secrets::make(3).await?;
    secrets.world.server.stop().await?;
    shell(secrets.world.server.home(), &commands("Back up a stopped server")?).await?;
    restore(&mut secrets).await
}

#[tokio::test]
async fn a_copy_of_a_running_server_comes_back_whole() -> Result<()> {
    let mut secrets = Secrets::make(3).await?;
    let (home, bot) = (secrets.world.server.home().to_owned(), secrets.world.bot.clone());
    // Calls continue during the backup, and their audit in the backup must be complete.
    let api = secrets.world.api.clone();
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let calls = tokio::spawn(async move {
        while !*stopped.borrow_and_update() {
            api.call(&bot, "nothing", &json!({})).await?;
        }
        anyhow::Ok(())
    });
    let copied = shell(&home, &commands("Back up a running server")?).await;
    stop.send_replace(true);
    calls.await??;
    copied?;
    secrets.world.server.stop().await?;
    restore(&mut secrets).await
}

#[tokio::test]
async fn a_dump_of_postgresql_comes_back_whole() -> Result<()> {
    let postgres = Postgres::start(&["fsync=off"])?;
    let url = postgres.database()?;
    let mut secrets = Secrets::in_world(World::on(server_on(&url)?).await?, 3).await?;
    let small_files = commands("Back up a running server")?;
    let (small_files, _) = small_files.split_once("sqlite3").context("the guide does not copy the database last")?;
    let programs = format!("PATH=\"{}:$PATH\"\nMONSTRUM_DATABASE_URL=\"{url}\"\n", postgres.programs().display());
    let home = secrets.world.server.home().to_owned();
    shell(&home, &format!("{programs}{small_files}{}", commands("Back up with PostgreSQL")?)).await?;
    secrets.world.server.stop().await?;
    let (_, database) = url.split_once("///").context("the address names no database")?;
    let database = database.split('?').next().unwrap_or_default();
    postgres.sql("postgres", &format!("drop database {database}"))?;
    postgres.sql("postgres", &format!("create database {database}"))?;
    shell(&home, &format!("{programs}{}", commands("Restore with PostgreSQL")?)).await?;
    restore(&mut secrets).await
}

/// The guide states what a backup without the keys is worth.
#[tokio::test]
async fn a_backup_without_the_master_key_gives_no_secret_and_makes_no_new_one() -> Result<()> {
    let mut secrets = Secrets::in_world(World::on(Server::prepare(&["github"])?).await?, 1).await?;
    secrets.world.server.stop().await?;
    let key = secrets.world.server.data_dir().join("master.key");
    std::fs::remove_file(&key)?;
    let output = secrets.world.server.command(&["serve", "--listen", "127.0.0.1:0"]).await?;
    ensure!(output.status.code() == Some(1), "it started");
    ensure!(String::from_utf8_lossy(&output.stderr).contains("master.key is missing"));
    ensure!(!key.exists());
    Ok(())
}
