//! Settings of connections: the limits of all connections and of those from one address.

use std::num::NonZeroU32;

use super::ServeFlags;

/// How many connections may be open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// All connections; `None` derives the limit from the number of files that may be open.
    pub in_all: Option<NonZeroU32>,
    /// Connections from one address; 0 sets no limit, `None` is half of all.
    pub per_address: Option<u32>,
}

impl Connections {
    pub(super) fn resolve(flags: &ServeFlags, file: &ServeFlags) -> Connections {
        Connections {
            in_all: flags.max_connections.or(file.max_connections),
            per_address: flags.max_connections_per_address.or(file.max_connections_per_address),
        }
    }
}
