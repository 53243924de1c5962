//! Settings of connections: the limit of all connections, and the limit of connections from one address.

use std::num::NonZeroU32;

use super::ServeFlags;

/// The limits of open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// The limit of all connections; `None` derives it from the process's limit of open files.
    pub in_all: Option<NonZeroU32>,
    /// The limit of connections from one address; 0 disables the limit, and `None` means half of the limit of all
    /// connections.
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
