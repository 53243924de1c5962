//! Opening of a PostgreSQL database, which includes checking its encoding and migrating its schema.

use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, Row as _};

use super::newest;
use crate::StoreError;
use crate::address::PostgresAddress;
use crate::db::{Db, Limits, Postgres, connect};
use crate::error::{of_driver, of_migration, unavailable};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("../../../migrations/postgres");

/// The time limit for migrations, which may rewrite tables. Other hosts that start at the same time wait for them.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(600);

/// Migrates the schema on a connection that is used only for the migration, and then opens the database.
pub(super) async fn open(address: &PostgresAddress, limits: Limits) -> Result<Db, StoreError> {
    let patient = Limits { lock: MIGRATION_TIMEOUT, statement: MIGRATION_TIMEOUT, ..limits };
    let mut connection = connect(&address.options, patient).await?;
    let prepared = async {
        check(&mut connection).await?;
        MIGRATIONS.run(&mut connection).await.map_err(|error| of_migration(error, newest(&MIGRATIONS)))
    };
    match tokio::time::timeout(MIGRATION_TIMEOUT, prepared).await {
        Ok(prepared) => prepared?,
        Err(late) => return Err(unavailable("the schema migration timed out", late)),
    }
    connection.close().await.map_err(of_driver)?;
    Ok(Db::Postgres(Postgres::new(&address.options, limits)))
}

/// Counts the connections with the application name that hosts use.
pub(super) async fn connections_of_servers(address: &PostgresAddress, limits: Limits) -> Result<u64, StoreError> {
    const COUNT: &str = "select count(*) as value from pg_stat_activity \
                         where datname = current_database() and application_name = $1";
    let name = address.options.get_application_name().unwrap_or_default().to_owned();
    let mut connection = connect(&address.options.clone().application_name("monstrum vault"), limits).await?;
    let asked = async { sqlx::query(COUNT).bind(name).fetch_one(&mut connection).await };
    let row = match tokio::time::timeout(limits.statement, asked).await {
        Ok(row) => row.map_err(of_driver)?,
        Err(late) => return Err(unavailable("the database did not answer in time", late)),
    };
    let count: i64 = row.try_get("value").map_err(of_driver)?;
    connection.close().await.map_err(of_driver)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Rejects a database that cannot store arbitrary Unicode text.
async fn check(connection: &mut PgConnection) -> Result<(), StoreError> {
    let row = sqlx::query("select current_setting('server_encoding') as encoding").fetch_one(connection).await;
    let encoding: String = row.and_then(|row| row.try_get("encoding")).map_err(of_driver)?;
    if encoding != "UTF8" {
        return Err(StoreError::Corrupt { what: format!("its encoding is {encoding}, but must be UTF8") });
    }
    Ok(())
}
