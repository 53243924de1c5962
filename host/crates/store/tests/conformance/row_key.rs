//! A row key for the conformance tests. The host's own key is in the vault crate, which this crate does not depend
//! on.

use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use monstrum_store::{InstanceKeyRow, SealsRows, Store, StoreError, StoreOptions};
use monstrum_types::UtcMillis;
use sha2::Sha256;

const SECRET: &[u8] = b"a key that is not in the database";

pub(crate) struct TestKey(pub(crate) u32);

impl SealsRows for TestKey {
    fn version(&self) -> u32 {
        self.0
    }

    fn mac(&self, label: &str, bytes: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).unwrap();
        mac.update(&self.0.to_be_bytes());
        mac.update(&(label.len() as u64).to_be_bytes());
        mac.update(label.as_bytes());
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }

    fn seal(
        &self,
        plaintext: &[u8],
        scope: &str,
        generation: i64,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let plaintext = hex::encode(plaintext);
        let seal = self.mac(&format!("seal of {scope} at {generation}"), plaintext.as_bytes());
        Ok(format!("{plaintext}.{}", hex::encode(seal)))
    }

    fn unseal(&self, sealed: &str, scope: &str, generation: i64) -> Option<Vec<u8>> {
        let plaintext = hex::decode(sealed.split_once('.')?.0).ok()?;
        (self.seal(&plaintext, scope, generation).ok()? == sealed).then_some(plaintext)
    }
}

/// Returns the sealed record of the key.
pub(crate) fn record(version: u32) -> InstanceKeyRow {
    let (name, sealed) = ("rows".to_owned(), "sealed".to_owned());
    InstanceKeyRow { name, version: i64::from(version), sealed, created_at: UtcMillis(0) }
}

/// Sets the row key of a store. Initializes an empty database and seals the rows of an older database.
pub(crate) async fn keyed(store: Store) -> Result<Store, StoreError> {
    let store = store.with_row_key(Arc::new(TestKey(1)));
    if !store.initialize(&record(1), UtcMillis(0)).await? && !store.is_sealed().await? {
        store.seal_everything(&store.unsealed().await?, Some(&record(1))).await?;
    }
    Ok(store)
}

/// Opens a database and sets its row key.
pub(crate) async fn open(options: StoreOptions) -> Result<Store, StoreError> {
    keyed(Store::open(options).await?).await
}
