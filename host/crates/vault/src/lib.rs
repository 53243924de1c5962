//! Sealing of secrets, and the keys that it needs.
//!
//! A secret is stored only as a [`Sealed`] record: encrypted under a key of its own and bound to the row in which it
//! stands, so that neither a leaked database nor a swapped row gives anything away. The master keys live in a file
//! beside the database, never in it. The crate knows no table, no clock and no runtime.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod associated;
mod audit;
mod error;
mod master;
mod row_key;
mod sealed;
mod vault;

pub use associated::AssociatedData;
pub use audit::AuditKeys;
pub use error::VaultError;
pub use master::MasterKeys;
pub use row_key::RowKey;
pub use sealed::Sealed;
pub use vault::Vault;

/// Random bytes from the operating system.
fn random<const N: usize>() -> Result<[u8; N], VaultError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(VaultError::Random)?;
    Ok(bytes)
}
