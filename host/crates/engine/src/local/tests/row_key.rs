//! A row key for tests, with which every row is authentic.

use monstrum_store::SealsRows;

pub(crate) struct TestRowKey;

impl SealsRows for TestRowKey {
    fn version(&self) -> u32 {
        1
    }

    fn mac(&self, _: &str, _: &[u8]) -> [u8; 32] {
        [0; 32]
    }

    fn seal(&self, plaintext: &[u8], _: &str, _: i64) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        Ok(hex::encode(plaintext))
    }

    fn unseal(&self, sealed: &str, _: &str, _: i64) -> Option<Vec<u8>> {
        hex::decode(sealed).ok()
    }
}
