//! The format of a sealed record.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::VaultError;

pub(crate) const FORMAT: u8 = 1;
pub(crate) const SALT_BYTES: usize = 32;
pub(crate) const NONCE_BYTES: usize = 12;
pub(crate) const TAG_BYTES: usize = 16;
const HEADER_BYTES: usize = 1 + 4 + SALT_BYTES + NONCE_BYTES;

/// An encrypted record, which consists of its format, the master key version, a salt, a nonce and the ciphertext. The
/// text form is base64url.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sealed {
    pub(crate) key_version: u32,
    pub(crate) salt: [u8; SALT_BYTES],
    pub(crate) nonce: [u8; NONCE_BYTES],
    pub(crate) ciphertext: Vec<u8>,
}

impl Sealed {
    /// Returns the version of the master key that sealed the record.
    #[must_use]
    pub fn key_version(&self) -> u32 {
        self.key_version
    }

    /// Encodes the record as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.ciphertext.len());
        bytes.push(FORMAT);
        bytes.extend_from_slice(&self.key_version.to_be_bytes());
        bytes.extend_from_slice(&self.salt);
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(&self.ciphertext);
        bytes
    }

    /// Decodes a record from bytes. Does not decrypt it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VaultError> {
        let not = |what| VaultError::NotSealed { what };
        let (format, rest) = bytes.split_first().ok_or(not("it is empty"))?;
        if *format != FORMAT {
            return Err(not("this version of Monstrum does not support its format"));
        }
        let cut = || not("it is truncated");
        let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let (salt, rest) = rest.split_first_chunk::<SALT_BYTES>().ok_or_else(cut)?;
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE_BYTES>().ok_or_else(cut)?;
        if ciphertext.len() < TAG_BYTES {
            return Err(cut());
        }
        Ok(Sealed {
            key_version: u32::from_be_bytes(*version),
            salt: *salt,
            nonce: *nonce,
            ciphertext: ciphertext.to_vec(),
        })
    }
}

impl fmt::Display for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.to_bytes()))
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed(key version {}, {} bytes)", self.key_version, self.ciphertext.len())
    }
}

impl FromStr for Sealed {
    type Err = VaultError;

    fn from_str(text: &str) -> Result<Self, VaultError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| VaultError::NotSealed { what: "it is not base64url" })?;
        Sealed::from_bytes(&bytes)
    }
}

impl TryFrom<String> for Sealed {
    type Error = VaultError;

    fn try_from(text: String) -> Result<Self, VaultError> {
        text.parse()
    }
}

impl From<Sealed> for String {
    fn from(sealed: Sealed) -> String {
        sealed.to_string()
    }
}
