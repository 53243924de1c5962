//! The HMAC of a message under a secret that two parties share, such as the signature of a webhook.

use hmac::{Hmac, KeyInit, Mac};
use monstrum_types::Secret;
use sha2::Sha256;

/// Computes the HMAC-SHA-256 (RFC 2104) of `message`. The key is the text of the secret.
#[must_use]
pub fn hmac_sha256(secret: &Secret, message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()).expect("HMAC accepts keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 2 of RFC 4231.
    #[test]
    fn the_result_is_that_of_the_standard() {
        let mac = hmac_sha256(&Secret::new("Jefe".to_owned()), b"what do ya want for nothing?");
        assert_eq!(hex::encode(mac), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
