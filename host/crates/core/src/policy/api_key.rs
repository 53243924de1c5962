//! API keys. A key is `mk_` followed by 256 random bits. The database contains only the SHA-256 of a key. A slow hash
//! is not necessary, because an attacker cannot guess 256 random bits.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use monstrum_store::KeyRow;
use monstrum_types::{BotId, KeyId, KeyKind, ResourceId, Secret, UtcMillis, WorkspaceId};
use sha2::{Digest, Sha256};

/// The number of leading characters of a key that are stored in clear text: `mk_` and 30 of the 256 bits. These
/// characters identify the key in lists.
const PREFIX_CHARS: usize = 8;

/// A new key. The caller must show its text only once.
pub struct NewKey {
    pub text: Secret,
    pub hash: [u8; 32],
    pub prefix: String,
}

impl NewKey {
    /// Returns the row of the key. The bot is for bot keys, and the resource for agent keys.
    pub fn row(
        &self,
        name: String,
        kind: KeyKind,
        workspace_id: Option<WorkspaceId>,
        (bot_id, resource_id): (Option<BotId>, Option<ResourceId>),
        created_at: UtcMillis,
    ) -> KeyRow {
        let (id, prefix, hash) = (KeyId::new(), self.prefix.clone(), hex::encode(self.hash));
        KeyRow { id, workspace_id, name, kind, bot_id, resource_id, prefix, hash, created_at, last_used_at: None }
    }
}

/// Generates a key.
pub fn generate() -> Result<NewKey, getrandom::Error> {
    let mut bits = zeroize::Zeroizing::new([0_u8; 32]);
    getrandom::fill(bits.as_mut_slice())?;
    let text = Secret::new(format!("mk_{}", BASE64_URL_SAFE_NO_PAD.encode(*bits)));
    Ok(NewKey { hash: hash(text.expose()), prefix: text.expose()[..PREFIX_CHARS].to_owned(), text })
}

/// Returns the SHA-256 under which a key is stored and looked up.
pub fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_256_bits_and_is_found_by_its_hash() {
        let key = generate().unwrap();
        let bits = key.text.expose().strip_prefix("mk_").unwrap();
        assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(bits).unwrap().len(), 32);
        assert_eq!(hash(key.text.expose()), key.hash);
        assert!(key.text.expose().starts_with(&key.prefix) && key.prefix.len() == 8);
        assert_ne!(generate().unwrap().hash, key.hash);
    }
}
