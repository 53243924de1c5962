//! Encryption and decryption of records with the master keys.

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::sealed::FORMAT;
use crate::{AssociatedData, MasterKeys, Sealed, VaultError, random};

/// The maximum size of a plaintext, in bytes. The limit exceeds the size of the largest record, which is a stored API
/// response with a body of up to 10 MiB.
const PLAINTEXT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Seals and unseals records with the master keys.
///
/// Each record is encrypted with AES-256-GCM. HKDF-SHA256 derives the key of a record from the master key and a random
/// 32-byte salt. Two records therefore never share both key and nonce, even if there are many records.
pub struct Vault {
    keys: MasterKeys,
}

impl Vault {
    /// Creates a vault with these keys.
    #[must_use]
    pub fn new(keys: MasterKeys) -> Self {
        Vault { keys }
    }

    /// Returns the version of the newest master key, which seals new records.
    #[must_use]
    pub fn key_version(&self) -> u32 {
        self.keys.newest().0
    }

    /// Returns whether the record was sealed with a master key older than the newest.
    #[must_use]
    pub fn needs_reseal(&self, sealed: &Sealed) -> bool {
        sealed.key_version != self.key_version()
    }

    /// Returns the master keys of this vault.
    #[must_use]
    pub fn keys(&self) -> &MasterKeys {
        &self.keys
    }

    /// Unseals a record and seals its plaintext again with the newest master key and the same associated data.
    pub fn reseal(&self, sealed: &Sealed, aad: impl AsRef<[u8]>) -> Result<Sealed, VaultError> {
        self.seal(&self.unseal(sealed, aad.as_ref())?, aad)
    }

    /// Encrypts `plaintext`. The record can be unsealed only with the same associated data.
    pub fn seal(&self, plaintext: &[u8], aad: impl AsRef<[u8]>) -> Result<Sealed, VaultError> {
        let too_large = VaultError::TooLarge { max: PLAINTEXT_BYTES_MAX };
        if plaintext.len() > PLAINTEXT_BYTES_MAX {
            return Err(too_large);
        }
        let (key_version, master) = self.keys.newest();
        let salt = random()?;
        let nonce = random()?;
        let aad = bound(key_version, aad.as_ref());
        let ciphertext = cipher(master, &salt, key_version)
            .encrypt(&Nonce::from(nonce), Payload { msg: plaintext, aad: aad.as_ref() })
            .map_err(|_| too_large)?;
        Ok(Sealed { key_version, salt, nonce, ciphertext })
    }

    /// Decrypts a record. Fails if the record was altered, or if the associated data or the master key differs from the
    /// one with which the record was sealed.
    pub fn unseal(&self, sealed: &Sealed, aad: impl AsRef<[u8]>) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let version = sealed.key_version;
        let master = self.keys.key(version).ok_or(VaultError::UnknownKey { version })?;
        let aad = bound(version, aad.as_ref());
        cipher(master, &sealed.salt, version)
            .decrypt(&Nonce::from(sealed.nonce), Payload { msg: &sealed.ciphertext, aad: aad.as_ref() })
            .map(Zeroizing::new)
            .map_err(|_| VaultError::Refused { version })
    }

    /// Derives a key for a purpose, such as the component cache, from the newest master key. A rotation of the master
    /// key changes the derived key, so use it only for data that can be recreated.
    #[must_use]
    pub fn derive(&self, label: &str) -> Zeroizing<[u8; 32]> {
        let (_, master) = self.keys.newest();
        expand(master, None, &[b"monstrum derived key 1: ", label.as_bytes()])
    }
}

/// Combines the caller's associated data with the record's unencrypted header: its format and key version.
fn bound(key_version: u32, aad: &[u8]) -> AssociatedData {
    AssociatedData::new("monstrum sealed record").with("format", &FORMAT).with("key", &key_version).with_bytes(aad)
}

fn cipher(master: &[u8; 32], salt: &[u8], key_version: u32) -> Aes256Gcm {
    let key = expand(master, Some(salt), &[b"monstrum record key 1: ", &key_version.to_be_bytes()]);
    Aes256Gcm::new((&*key).into())
}

fn expand(master: &[u8; 32], salt: Option<&[u8]>, info: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut key = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(salt, master)
        .expand_multi_info(info, key.as_mut_slice())
        .expect("HKDF-SHA256 returns up to 8160 bytes");
    key
}
