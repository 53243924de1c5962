//! Encryption of secrets and management of the encryption keys.
//!
//! A secret is stored only as a [`Sealed`] record, which is encrypted with a key that no other record uses and is bound
//! to its row. Neither a leaked database nor a swapped row reveals the secret. The master keys are in a file outside
//! the database. This crate does not depend on tables, a clock or an async runtime.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod associated;
mod audit;
mod error;
mod file_key;
mod master;
mod row_key;
mod sealed;
mod signature;
mod vault;

pub use associated::AssociatedData;
pub use audit::AuditKeys;
pub use error::VaultError;
pub use file_key::FileKey;
pub use master::MasterKeys;
pub use row_key::RowKey;
pub use sealed::Sealed;
pub use signature::hmac_sha256;
pub use vault::Vault;

/// Returns random bytes from the operating system.
fn random<const N: usize>() -> Result<[u8; N], VaultError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(VaultError::Random)?;
    Ok(bytes)
}
