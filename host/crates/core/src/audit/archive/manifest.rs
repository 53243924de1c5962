//! The manifest of an archived segment. It lists the files, their digests and the rows that they contain, and is signed
//! with the key that signs the heads of the audit. It does not contain the time of archiving, so a command that is
//! repeated after an interruption writes the same manifest.

use std::path::Path;

use monstrum_types::UtcMillis;
use monstrum_vault::AuditKeys;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::audit::verify::KeyRing;

/// The suffix of the names of manifests.
pub(super) const SUFFIX: &str = ".manifest.json";
/// The maximum size of a manifest. A manifest has about 600 bytes, plus 300 bytes for each file.
const BYTES_MAX: u64 = 1 << 20;

/// The rows of one chain that were archived together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub(super) v: u8,
    pub writer: String,
    pub first_sequence: i64,
    pub last_sequence: i64,
    /// The hash of the row before the first row.
    pub previous_hash: String,
    pub last_hash: String,
    pub rows: u64,
    /// The times of the first and the last row.
    pub first_at: UtcMillis,
    pub last_at: UtcMillis,
    pub files: Vec<ArchivedFile>,
    pub key_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) signature: String,
}

/// A file of rows, with one JSON object per line, compressed with zstd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchivedFile {
    /// The name of the file, which is in the same folder as the manifest.
    pub name: String,
    pub first_sequence: i64,
    pub last_sequence: i64,
    /// The size of the compressed file in bytes.
    pub bytes: u64,
    pub sha256: String,
}

impl Manifest {
    /// Returns the manifest with its signature.
    pub(super) fn signed(self, keys: &AuditKeys) -> Manifest {
        let manifest = Manifest { key_version: keys.version(), ..self };
        Manifest { signature: hex::encode(keys.sign_manifest(&manifest.signed_bytes())), ..manifest }
    }

    /// Returns the signed bytes: the manifest without its signature.
    fn signed_bytes(&self) -> Vec<u8> {
        let unsigned = Manifest { signature: String::new(), ..self.clone() };
        serde_json::to_vec(&unsigned).expect("plain strings and numbers")
    }

    /// Returns the content of the manifest file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("plain strings and numbers");
        bytes.push(b'\n');
        bytes
    }

    /// Returns the SHA-256 digest of the manifest file. The anchor contains this digest.
    pub(super) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
    }

    /// Returns the name of the manifest file.
    pub(super) fn file_name(&self) -> String {
        format!("{}{SUFFIX}", stem(&self.writer, self.first_sequence, self.last_sequence))
    }

    /// Reads a manifest and checks that this host signed it. The error says why the file is not a valid manifest.
    pub(super) fn read(path: &Path, keys: &KeyRing) -> Result<Manifest, String> {
        let size = std::fs::metadata(path).map_err(|error| format!("the file cannot be read: {error}"))?.len();
        if size > BYTES_MAX {
            return Err("the file is too large for a manifest".to_owned());
        }
        let bytes = std::fs::read(path).map_err(|error| format!("the file cannot be read: {error}"))?;
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|_| "the file is not a manifest".to_owned())?;
        let mut signature = [0; 64];
        let is_signed = manifest.v == 1
            && manifest.to_bytes() == bytes
            && hex::decode_to_slice(&manifest.signature, &mut signature).is_ok()
            && keys
                .get(&manifest.key_version)
                .is_some_and(|keys| keys.verify_manifest(&manifest.signed_bytes(), &signature));
        if is_signed {
            Ok(manifest)
        } else {
            Err("the file is not a manifest that this host signed, or it was changed afterwards".to_owned())
        }
    }
}

/// Returns the common prefix of the file names of a segment.
pub(super) fn stem(writer: &str, first: i64, last: i64) -> String {
    format!("{writer}-{first:012}-{last:012}")
}
