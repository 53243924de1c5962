//! PostgreSQL: its failures, and what whoever may write to it can do to the audit.

use std::sync::OnceLock;

use monstrum_store::{Store, StoreError, StoreOptions};

use crate::server::Postgres;

/// One server for all cases, since nothing that they write needs to last.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::for_all(&["fsync=off", "full_page_writes=off", "max_connections=500"]).unwrap())
}

/// A database of its own on the server of all.
pub(crate) struct Database {
    url: String,
}

impl Database {
    pub(crate) fn create() -> Self {
        Database { url: server().database().unwrap() }
    }

    pub(crate) async fn open(&self) -> Result<Store, StoreError> {
        Store::open(self.options()).await
    }

    fn options(&self) -> StoreOptions {
        StoreOptions::from_url(&self.url).unwrap()
    }
}
