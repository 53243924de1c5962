//! Signatures of packages: ed25519 over a format tag, the name, the version and the digest of the package.
//!
//! A signature stands in a file beside the package, `NAME-VERSION.mst.sig`, as JSON. It says by which key it claims to
//! be; whether that key counts for that name is the host's to decide.

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

/// What a signed message begins with, so that a signature of this kind never counts for anything else.
const TAG: &str = "monstrum package signature 1";
/// The only format of the file so far.
const FORMAT: &str = "monstrum-signature-1";
/// What a public key begins with.
const KEY_PREFIX: &str = "ed25519:";
/// What the text of a signing key begins with, so that it is known for what it is wherever it turns up.
const SECRET_PREFIX: &str = "monstrum-signing-key:";

/// Why a signature does not count.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The file is none.
    #[error("the signature cannot be read: {0}; `monstrum plugin pack` writes it beside the package")]
    Malformed(String),
    /// A key is none.
    #[error("a public key is `{KEY_PREFIX}` and 44 characters of base64, as `monstrum plugin pack` prints it")]
    PublicKey,
    /// The text of a signing key is none.
    #[error("a signing key is `{SECRET_PREFIX}` and 44 characters of base64")]
    SigningKey,
    /// The system gives no random numbers.
    #[error("no random numbers from the operating system: {0}")]
    Random(String),
    /// The package is not the one that was signed.
    #[error("the package was changed after it was signed: its digest is {found}, {signed} was signed")]
    Tampered {
        /// The digest of the package.
        found: Digest,
        /// The digest in the signature.
        signed: Digest,
    },
    /// The signature is not one of the key that it names.
    #[error("the signature is not by the key that it names, or is for another name, version or package")]
    Forged,
}

/// A key with which packages are signed.
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// A new key.
    ///
    /// # Errors
    ///
    /// If the system gives no random numbers.
    pub fn generate() -> Result<SigningKey, SignatureError> {
        let mut seed = Zeroizing::new([0_u8; 32]);
        getrandom::fill(seed.as_mut_slice()).map_err(|error| SignatureError::Random(error.to_string()))?;
        Ok(SigningKey(ed25519_dalek::SigningKey::from_bytes(&seed)))
    }

    /// The key of a text that [`SigningKey::to_text`] has made.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub fn from_text(text: &str) -> Result<SigningKey, SignatureError> {
        let encoded = text.trim().strip_prefix(SECRET_PREFIX).ok_or(SignatureError::SigningKey)?;
        let bytes = Zeroizing::new(BASE64_STANDARD.decode(encoded).map_err(|_| SignatureError::SigningKey)?);
        let seed: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| SignatureError::SigningKey)?;
        Ok(SigningKey(ed25519_dalek::SigningKey::from_bytes(seed)))
    }

    /// The key as text, for its file.
    #[must_use]
    pub fn to_text(&self) -> Secret {
        Secret::new(format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode(self.0.as_bytes())))
    }

    /// What others know it by.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a package as this version of this plugin.
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
        // Under a weak key one signature can be made to fit many messages.
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

/// What stands in the file beside a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageSignature {
    format: String,
    /// The plugin that was signed.
    pub name: PluginName,
    /// Its version.
    pub version: Version,
    /// The SHA-256 of the package.
    pub digest: Digest,
    /// The key that it claims to be by.
    pub public_key: PublicKey,
    /// Base64.
    signature: String,
}

impl PackageSignature {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// If it is not a signature of a format that is known. Nothing is verified yet.
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

    /// The text of the file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts are JSON");
        text + "\n"
    }

    /// Checks that the key it names has signed this name, this version and these bytes.
    ///
    /// # Errors
    ///
    /// If the package is another one, or the signature does not hold.
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

/// The SHA-256 of a package.
#[must_use]
pub fn digest(package: &[u8]) -> Digest {
    let hash = hex::encode(sha2::Sha256::digest(package));
    format!("sha256:{hash}").parse().expect("64 lower-case hex digits")
}

/// None of the parts can hold a line's end, so no two triples have one message.
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
    fn a_signature_holds_for_its_name_version_and_bytes_only() {
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
    fn keys_that_sign_everything_and_keys_in_another_spelling_are_none() {
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
    fn a_file_that_is_no_signature_is_refused() {
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
