//! The row key, which authenticates database rows and encrypts the seals of their scopes.

use std::collections::BTreeMap;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{AssociatedData, MasterKeys, Sealed, Vault, VaultError, random};

/// The HKDF label of the key that encrypts seals.
const SEALS_LABEL: &[u8] = b"monstrum row key 1: seals";

/// A row key. The key is random rather than derived from the master key, so a rotation of the master key reseals only
/// the record of the row key and changes no rows. Each MAC and each seal contains the version of its row key.
pub struct RowKey {
    version: u32,
    secret: Zeroizing<[u8; 32]>,
    // The keyed HMAC state. Cloning this state for each row saves two rounds of SHA-256 per row.
    mac: Hmac<Sha256>,
    seals: Vault,
}

impl RowKey {
    /// Generates a new key.
    pub fn generate(version: u32) -> Result<Self, VaultError> {
        Ok(RowKey::assemble(version, Zeroizing::new(random()?)))
    }

    /// Seals the key for storage.
    pub fn to_sealed(&self, vault: &Vault) -> Result<Sealed, VaultError> {
        vault.seal(self.secret.as_slice(), RowKey::place(self.version))
    }

    /// Unseals a key that [`RowKey::to_sealed`] sealed with the same version.
    pub fn from_sealed(vault: &Vault, sealed: &Sealed, version: u32) -> Result<Self, VaultError> {
        let plaintext = vault.unseal(sealed, RowKey::place(version))?;
        let wrong = VaultError::NotSealed { what: "the row key is not 32 bytes long" };
        let secret: &[u8; 32] = plaintext.as_slice().try_into().map_err(|_| wrong)?;
        Ok(RowKey::assemble(version, Zeroizing::new(*secret)))
    }

    fn assemble(version: u32, secret: Zeroizing<[u8; 32]>) -> Self {
        let mac = Hmac::new_from_slice(secret.as_slice()).expect("HMAC accepts keys of any length");
        let mut seals = Zeroizing::new([0; 32]);
        Hkdf::<Sha256>::new(None, secret.as_slice())
            .expand(SEALS_LABEL, seals.as_mut_slice())
            .expect("HKDF-SHA256 returns up to 8160 bytes");
        RowKey { version, secret, mac, seals: Vault::new(MasterKeys::of(BTreeMap::from([(version, seals)]), version)) }
    }

    /// Returns the associated data of the sealed record of this version.
    #[must_use]
    pub fn place(version: u32) -> AssociatedData {
        AssociatedData::new("row key").with("version", &version)
    }

    /// Returns the version of the key.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Computes the HMAC-SHA-256 of the length of the label, the label and `bytes`.
    #[must_use]
    pub fn mac(&self, label: &str, bytes: &[u8]) -> [u8; 32] {
        let mut mac = self.mac.clone();
        mac.update(&(label.len() as u64).to_be_bytes());
        mac.update(label.as_bytes());
        mac.update(bytes);
        mac.finalize().into_bytes().into()
    }

    /// Encrypts the seal of a scope and binds it to the scope and its generation.
    pub fn seal(&self, plaintext: &[u8], scope: &str, generation: i64) -> Result<Sealed, VaultError> {
        self.seals.seal(plaintext, RowKey::place_of_seal(scope, generation))
    }

    /// Decrypts a seal that [`RowKey::seal`] encrypted for the same scope and generation.
    pub fn unseal(&self, sealed: &Sealed, scope: &str, generation: i64) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        self.seals.unseal(sealed, RowKey::place_of_seal(scope, generation))
    }

    fn place_of_seal(scope: &str, generation: i64) -> AssociatedData {
        AssociatedData::new("policy seal").with("scope", scope).with("generation", &generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_opens_only_for_its_scope_and_generation() {
        let (key, other) = (RowKey::generate(1).unwrap(), RowKey::generate(1).unwrap());
        let sealed = key.seal(b"forty bytes", "instance", 7).unwrap();
        assert_eq!(key.unseal(&sealed, "instance", 7).unwrap().as_slice(), b"forty bytes");
        assert!(key.unseal(&sealed, "instance", 8).is_err());
        assert!(key.unseal(&sealed, "another", 7).is_err());
        assert!(other.unseal(&sealed, "instance", 7).is_err());
    }

    #[test]
    fn a_row_key_opens_only_for_its_version() {
        let vault = Vault::new(MasterKeys::from_text(&format!("1 {}", "ab".repeat(32))).unwrap());
        let key = RowKey::generate(3).unwrap();
        let sealed = key.to_sealed(&vault).unwrap();
        assert_eq!(RowKey::from_sealed(&vault, &sealed, 3).unwrap().mac("a", b"b"), key.mac("a", b"b"));
        assert!(RowKey::from_sealed(&vault, &sealed, 2).is_err());
        assert_ne!(key.mac("a", b"b"), key.mac("ab", b""), "the length of the label is under the MAC");
    }
}
