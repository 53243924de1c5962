//! Package signatures: Ed25519 signatures of a format tag and the package's name, version and digest.
//!
//! A signature is a JSON file next to the package, `NAME-VERSION.mst.sig`. It contains the public key of the signer.
//! The host decides whether to trust that key for that plugin name.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek::{Signature, Signer, VerifyingKey};
use monstrum_types::{Digest, PluginName, Secret};
use semver::Version;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use zeroize::Zeroizing;

use crate::limits::SIGNATURE_BYTES_MAX;

/// The first line of a signed message. It prevents the use of the signature for another kind of message.
const TAG: &str = "monstrum package signature 1";
/// The format identifier in a signature file.
const FORMAT: &str = "monstrum-signature-1";
/// The prefix of a public key.
const KEY_PREFIX: &str = "ed25519:";
/// The prefix of a signing key, which lets people and secret scanners recognize it.
const SECRET_PREFIX: &str = "monstrum-signing-key:";

/// The reason for rejecting a signature or a key.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The file is not a signature file.
    #[error("the signature file is malformed: {0}; create it with `monstrum plugin pack`")]
    Malformed(String),
    /// The text is not a public key.
    #[error(
        "not a public key: expected `{KEY_PREFIX}` followed by 44 base64 characters, as `monstrum plugin pack` prints it"
    )]
    PublicKey,
    /// The text is not a signing key.
    #[error("not a signing key: expected `{SECRET_PREFIX}` followed by 44 base64 characters")]
    SigningKey,
    /// The operating system failed to provide random bytes.
    #[error("the operating system failed to provide random bytes: {0}")]
    Random(String),
    /// The digest of the package is not the signed digest.
    #[error("the package was changed after it was signed: its digest is {found}, but the signed digest is {signed}")]
    Tampered {
        /// The digest of the package.
        found: Digest,
        /// The digest in the signature.
        signed: Digest,
    },
    /// The signature does not verify with the public key in the file.
    #[error("the signature is invalid: it was made with another key, or for another name, version or package")]
    Forged,
}

/// A key that signs packages.
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// Generates a new key.
    ///
    /// # Errors
    ///
    /// Fails if the operating system provides no random bytes.
    pub fn generate() -> Result<SigningKey, SignatureError> {
        let mut seed = Zeroizing::new([0_u8; 32]);
        getrandom::fill(seed.as_mut_slice()).map_err(|error| SignatureError::Random(error.to_string()))?;
        Ok(SigningKey(ed25519_dalek::SigningKey::from_bytes(&seed)))
    }

    /// Parses a key from the output of [`SigningKey::to_text`].
    ///
    /// # Errors
    ///
    /// Fails if the text is not a signing key.
    pub fn from_text(text: &str) -> Result<SigningKey, SignatureError> {
        let encoded = text.trim().strip_prefix(SECRET_PREFIX).ok_or(SignatureError::SigningKey)?;
        let bytes = Zeroizing::new(BASE64_STANDARD.decode(encoded).map_err(|_| SignatureError::SigningKey)?);
        let seed: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| SignatureError::SigningKey)?;
        Ok(SigningKey(ed25519_dalek::SigningKey::from_bytes(seed)))
    }

    /// Returns the key as text, for its key file.
    #[must_use]
    pub fn to_text(&self) -> Secret {
        Secret::new(format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode(self.0.as_bytes())))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a package for a plugin name and version.
    #[must_use]
    pub fn sign(&self, name: &PluginName, version: &Version, package: &[u8]) -> PackageSignature {
        let digest = digest(package);
        let signature = self.0.sign(&message(name, version, &digest)).to_bytes();
        PackageSignature {
            format: FORMAT.to_owned(),
            name: name.clone(),
            version: version.clone(),
            digest,
            public_key: self.public(),
            signature: BASE64_STANDARD.encode(signature),
        }
    }
}

/// The public half of a signing key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(VerifyingKey);

impl FromStr for PublicKey {
    type Err = SignatureError;

    fn from_str(text: &str) -> Result<Self, SignatureError> {
        let encoded = text.strip_prefix(KEY_PREFIX).ok_or(SignatureError::PublicKey)?;
        let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| SignatureError::PublicKey)?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| SignatureError::PublicKey)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| SignatureError::PublicKey)?;
        // With a weak key, one signature can be valid for many messages.
        if key.is_weak() { Err(SignatureError::PublicKey) } else { Ok(PublicKey(key)) }
    }
}

impl TryFrom<String> for PublicKey {
    type Error = SignatureError;

    fn try_from(text: String) -> Result<Self, SignatureError> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> String {
        key.to_string()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY_PREFIX}{}", BASE64_STANDARD.encode(self.0.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The content of a signature file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageSignature {
    format: String,
    /// The name of the signed plugin.
    pub name: PluginName,
    /// The version of the signed plugin.
    pub version: Version,
    /// The SHA-256 digest of the package.
    pub digest: Digest,
    /// The key that created the signature, according to the file.
    pub public_key: PublicKey,
    /// The signature, base64-encoded.
    signature: String,
}

impl PackageSignature {
    /// Parses a signature file without verifying the signature.
    ///
    /// # Errors
    ///
    /// Fails if the file is too large, is not a signature, or has an unknown format.
    pub fn parse(bytes: &[u8]) -> Result<PackageSignature, SignatureError> {
        if bytes.len() > SIGNATURE_BYTES_MAX {
            return Err(SignatureError::Malformed(format!("it has more than {SIGNATURE_BYTES_MAX} bytes")));
        }
        let signature: PackageSignature =
            serde_json::from_slice(bytes).map_err(|error| SignatureError::Malformed(error.to_string()))?;
        if signature.format != FORMAT {
            return Err(SignatureError::Malformed(format!("its format is not `{FORMAT}`")));
        }
        Ok(signature)
    }

    /// Returns the content of the signature file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts serialize to JSON");
        text + "\n"
    }

    /// Verifies the signature of the name, the version and `package` with the public key in the file.
    ///
    /// # Errors
    ///
    /// Fails if the digest of the package is not the signed digest, or if the signature is invalid.
    pub fn verify(&self, package: &[u8]) -> Result<(), SignatureError> {
        let found = digest(package);
        if found != self.digest {
            return Err(SignatureError::Tampered { found, signed: self.digest.clone() });
        }
        let bytes = BASE64_STANDARD.decode(&self.signature).map_err(|_| SignatureError::Forged)?;
        let signature = Signature::from_slice(&bytes).map_err(|_| SignatureError::Forged)?;
        let message = message(&self.name, &self.version, &self.digest);
        self.public_key.0.verify_strict(&message, &signature).map_err(|_| SignatureError::Forged)
    }
}

/// Computes the SHA-256 digest of a package.
#[must_use]
pub fn digest(package: &[u8]) -> Digest {
    let hash = hex::encode(sha2::Sha256::digest(package));
    format!("sha256:{hash}").parse().expect("64 lower-case hex digits")
}

/// Builds the signed message. The parts of the message cannot contain a line break, so the encoding is unambiguous.
fn message(name: &PluginName, version: &Version, digest: &Digest) -> Vec<u8> {
    format!("{TAG}\n{name}\n{version}\n{digest}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed() -> (SigningKey, PackageSignature) {
        let key = SigningKey::from_text(&format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode([7; 32]))).unwrap();
        let signature = key.sign(&"github".parse().unwrap(), &"1.0.0".parse().unwrap(), b"package");
        (key, signature)
    }

    #[test]
    fn a_signature_is_valid_for_its_name_version_and_bytes_only() {
        let (_, signature) = signed();
        let read = PackageSignature::parse(signature.to_text().as_bytes()).unwrap();
        assert_eq!(read, signature);
        assert_eq!(read.verify(b"package"), Ok(()));
        assert!(matches!(read.verify(b"packagE"), Err(SignatureError::Tampered { .. })));
        let other = PackageSignature { name: "gitlab".parse().unwrap(), ..signature.clone() };
        assert_eq!(other.verify(b"package"), Err(SignatureError::Forged));
        let other = PackageSignature { version: "1.0.1".parse().unwrap(), ..signature.clone() };
        assert_eq!(other.verify(b"package"), Err(SignatureError::Forged));
        let other = PackageSignature { digest: digest(b"another"), ..signature.clone() };
        assert_eq!(other.verify(b"another"), Err(SignatureError::Forged));
        let other = PackageSignature { public_key: SigningKey::generate().unwrap().public(), ..signature };
        assert_eq!(other.verify(b"package"), Err(SignatureError::Forged));
    }

    #[test]
    fn a_signing_key_survives_its_text() {
        let (key, signature) = signed();
        let again = SigningKey::from_text(key.to_text().expose()).unwrap();
        assert_eq!(again.public(), signature.public_key);
        for bad in ["", "monstrum-signing-key:", "monstrum-signing-key:AAAA", &signature.public_key.to_string()] {
            assert_eq!(SigningKey::from_text(bad).err(), Some(SignatureError::SigningKey), "{bad}");
        }
    }

    #[test]
    fn weak_keys_and_misspelled_keys_are_refused() {
        let weak = format!("{KEY_PREFIX}{}", BASE64_STANDARD.encode([[1].as_slice(), &[0; 31]].concat()));
        let (_, signature) = signed();
        let good = signature.public_key.to_string();
        for bad in [&weak, "", "ed25519:", &good.replace("ed25519", "ED25519"), good.trim_end_matches('='), &good[8..]]
        {
            assert_eq!(bad.parse::<PublicKey>(), Err(SignatureError::PublicKey), "{bad}");
        }
        assert_eq!(good.parse::<PublicKey>().unwrap().to_string(), good);
    }

    #[test]
    fn a_malformed_signature_file_is_refused() {
        let (_, signature) = signed();
        let text = signature.to_text();
        for bad in [
            String::new(),
            "[]".to_owned(),
            text.replace(FORMAT, "monstrum-signature-2"),
            text.replacen('{', "{\"more\": 1,", 1),
            text.replace("github", "../github"),
            format!("{text}{}", " ".repeat(SIGNATURE_BYTES_MAX)),
        ] {
            let read = PackageSignature::parse(bad.as_bytes());
            assert!(matches!(read, Err(SignatureError::Malformed(_))), "{bad}");
        }
    }
}
