//! The keys of the audit log: an HMAC key that chains its rows, and an Ed25519 key that signs heads,
//! anchors and manifests.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::{AssociatedData, Sealed, Vault, VaultError, random};

/// Prefixes for the messages of signatures, so that a signature is not valid for any other kind of message.
const HEAD_TAG: &[u8] = b"monstrum audit head 1\n";
const ANCHOR_TAG: &[u8] = b"monstrum audit anchor 1\n";
const MANIFEST_TAG: &[u8] = b"monstrum audit manifest 1\n";

/// The keys of the audit log. The keys are random rather than derived from the master key, so a rotation of the master
/// key only reseals the keys, and existing rows stay valid. Each row contains the version of its keys.
pub struct AuditKeys {
    version: u32,
    chain: Zeroizing<[u8; 32]>,
    // The keyed HMAC state. Cloning this state for each row saves two rounds of SHA-256 per row.
    chain_mac: Hmac<Sha256>,
    head: SigningKey,
}

impl AuditKeys {
    /// Generates new keys.
    pub fn generate(version: u32) -> Result<Self, VaultError> {
        Ok(AuditKeys::assemble(version, Zeroizing::new(random()?), &Zeroizing::new(random()?)))
    }

    /// Seals the keys for storage.
    pub fn to_sealed(&self, vault: &Vault) -> Result<Sealed, VaultError> {
        let mut plaintext = Zeroizing::new(Vec::with_capacity(64));
        plaintext.extend_from_slice(self.chain.as_slice());
        plaintext.extend_from_slice(self.head.as_bytes());
        vault.seal(&plaintext, AuditKeys::place(self.version))
    }

    /// Unseals keys that [`AuditKeys::to_sealed`] sealed with the same version.
    pub fn from_sealed(vault: &Vault, sealed: &Sealed, version: u32) -> Result<Self, VaultError> {
        let plaintext = vault.unseal(sealed, AuditKeys::place(version))?;
        let wrong = VaultError::NotSealed { what: "the audit keys are not 64 bytes long" };
        let (chain, head) =
            plaintext.split_first_chunk::<32>().ok_or(VaultError::NotSealed { what: "it is truncated" })?;
        let head: &[u8; 32] = head.try_into().map_err(|_| wrong)?;
        Ok(AuditKeys::assemble(version, Zeroizing::new(*chain), head))
    }

    fn assemble(version: u32, chain: Zeroizing<[u8; 32]>, head: &[u8; 32]) -> Self {
        let chain_mac = Hmac::new_from_slice(chain.as_slice()).expect("HMAC accepts keys of any length");
        AuditKeys { version, chain, chain_mac, head: SigningKey::from_bytes(head) }
    }

    /// Returns the associated data of the sealed record of this version.
    #[must_use]
    pub fn place(version: u32) -> AssociatedData {
        AssociatedData::new("audit keys").with("version", &version)
    }

    /// Returns the version of the keys.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Computes the hash of a row: the HMAC-SHA-256 of the previous hash and the canonical row, under the audit key.
    #[must_use]
    pub fn mac(&self, previous: &[u8; 32], canonical_row: &[u8]) -> [u8; 32] {
        let mut mac = self.chain_mac.clone();
        mac.update(previous);
        mac.update(canonical_row);
        mac.finalize().into_bytes().into()
    }

    /// Returns whether `hash` is the hash of the row. Compares in constant time.
    #[must_use]
    pub fn verify_mac(&self, previous: &[u8; 32], canonical_row: &[u8], hash: &[u8; 32]) -> bool {
        self.mac(previous, canonical_row).ct_eq(hash).into()
    }

    /// Signs the head of a chain.
    #[must_use]
    pub fn sign_head(&self, head: &[u8]) -> [u8; 64] {
        self.sign(HEAD_TAG, head)
    }

    /// Returns whether `signature` is this key's signature of `head`.
    #[must_use]
    pub fn verify_head(&self, head: &[u8], signature: &[u8; 64]) -> bool {
        self.verify(HEAD_TAG, head, signature)
    }

    /// Signs the anchor of archived rows.
    #[must_use]
    pub fn sign_anchor(&self, anchor: &[u8]) -> [u8; 64] {
        self.sign(ANCHOR_TAG, anchor)
    }

    /// Whether `signature` is this key's signature of `anchor`.
    #[must_use]
    pub fn verify_anchor(&self, anchor: &[u8], signature: &[u8; 64]) -> bool {
        self.verify(ANCHOR_TAG, anchor, signature)
    }

    /// Signs the manifest of archived rows.
    #[must_use]
    pub fn sign_manifest(&self, manifest: &[u8]) -> [u8; 64] {
        self.sign(MANIFEST_TAG, manifest)
    }

    /// Whether `signature` is this key's signature of `manifest`.
    #[must_use]
    pub fn verify_manifest(&self, manifest: &[u8], signature: &[u8; 64]) -> bool {
        self.verify(MANIFEST_TAG, manifest, signature)
    }

    fn sign(&self, tag: &[u8], message: &[u8]) -> [u8; 64] {
        self.head.sign(&[tag, message].concat()).to_bytes()
    }

    fn verify(&self, tag: &[u8], message: &[u8], signature: &[u8; 64]) -> bool {
        let key: VerifyingKey = self.head.verifying_key();
        key.verify_strict(&[tag, message].concat(), &Signature::from_bytes(signature)).is_ok()
    }
}
