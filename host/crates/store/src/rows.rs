//! Rows that permit something, and the seals of their scopes.

use crate::db::args;
use crate::{Store, StoreError};

impl Store {
    /// The sum of the generations of all seals. It grows with each change of a row that permits something, and never
    /// falls: the generation of a deleted workspace is added to that of the instance.
    pub async fn sealed_generations(&self) -> Result<i64, StoreError> {
        let sql = "select cast(coalesce(sum(generation), 0) as bigint) as value from policy_seals";
        Ok(self.db.one(sql, args![]).await?.unwrap_or(0))
    }
}
