//! Keys that authenticate files of the data folder.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::Vault;

/// A key that authenticates a file. It is derived from the newest master key, so a rotation of the master key
/// invalidates the file. Use it only for files that can be recreated.
#[derive(Clone)]
pub struct FileKey(Hmac<Sha256>);

impl FileKey {
    /// Derives the key for a purpose, such as the start index.
    #[must_use]
    pub fn derive(vault: &Vault, label: &str) -> FileKey {
        let key = vault.derive(label);
        FileKey(Hmac::new_from_slice(key.as_slice()).expect("HMAC accepts keys of any length"))
    }

    /// Computes the HMAC-SHA-256 of `bytes`.
    #[must_use]
    pub fn mac(&self, bytes: &[u8]) -> [u8; 32] {
        self.0.clone().chain_update(bytes).finalize().into_bytes().into()
    }

    /// Returns whether `mac` is the MAC of `bytes`. The comparison takes the same time for every wrong MAC.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], mac: &[u8]) -> bool {
        self.0.clone().chain_update(bytes).verify_slice(mac).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MasterKeys;

    fn vault(digits: &str) -> Vault {
        Vault::new(MasterKeys::from_text(&format!("1 {}", digits.repeat(32))).unwrap())
    }

    #[test]
    fn a_mac_belongs_to_its_bytes_purpose_and_master_key() {
        let key = FileKey::derive(&vault("ab"), "index");
        let mac = key.mac(b"text");
        assert!(FileKey::derive(&vault("ab"), "index").verifies(b"text", &mac));
        assert!(!key.verifies(b"Text", &mac) && !key.verifies(b"text", &mac[..31]) && !key.verifies(b"text", b""));
        assert!(!FileKey::derive(&vault("ab"), "other").verifies(b"text", &mac));
        assert!(!FileKey::derive(&vault("ac"), "index").verifies(b"text", &mac));
    }
}
