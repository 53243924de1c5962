//! The work that one of several hosts does for all of them. A host holds a chore until its lease ends; the clock of the
//! database counts.

use crate::db::{args, retry};
use crate::{Store, StoreError};

// Only the holder, or a host after the end of the holder's lease, changes the row.
const HOLD: &str = "\
    insert into chores (name, holder, fence, held_until) values ($1, $2, 1, $3) on conflict (name) do update set \
    fence = case when chores.holder = excluded.holder then chores.fence else chores.fence + 1 end, \
    holder = excluded.holder, held_until = excluded.held_until \
    where chores.holder = excluded.holder or chores.held_until <= $4 returning fence as value";
// The row stays, so that the fence never decreases.
const RELEASE: &str = "update chores set held_until = 0 where name = $1 and holder = $2";

impl Store {
    /// Makes `holder` the holder of a chore for `lease_ms`, or renews its lease. Returns the fence, which each change of
    /// the holder raises; `None` while another holder has a lease.
    pub async fn hold_chore(&self, name: &str, holder: &str, lease_ms: i64) -> Result<Option<i64>, StoreError> {
        retry!(async {
            let mut session = self.db.write().await?;
            let now = session.now().await?;
            let fence = session.one(HOLD, args![name, holder, now.plus_ms(lease_ms), now]).await?;
            session.commit().await?;
            Ok(fence)
        })
    }

    /// Ends the lease of a holder, so that another host can hold the chore at once.
    pub async fn release_chore(&self, name: &str, holder: &str) -> Result<(), StoreError> {
        self.db.run(RELEASE, args![name, holder]).await.map(drop)
    }
}
