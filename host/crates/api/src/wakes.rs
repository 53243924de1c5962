//! Wakes: the turns that objects wait for.

use monstrum_types::UtcMillis;
use serde::Serialize;
use utoipa::ToSchema;

use crate::list::lists;

/// A wake: an object has a turn at a time, or a turn that runs.
#[derive(Serialize, ToSchema)]
pub struct Wake {
    /// The kind and the id of the object, such as `task/0198f0c2-…`.
    pub key: String,
    /// The time of the next turn. It is in the past while the turn runs, and while it waits for room.
    pub due_at: UtcMillis,
    /// The host that runs the turn; null while no turn runs.
    pub claimed_by: Option<String>,
    /// The time until which no other host runs the turn. The host prolongs it while the turn runs.
    pub claimed_until: Option<UtcMillis>,
    /// The number of consecutive turns that have failed.
    pub failures: i64,
    /// The error of the last turn, if it failed.
    pub last_error: Option<String>,
}

lists! { Wake => WakeList "A page of wakes." }
