//! The operator's limits for a single call.

use monstrum_manifest::Limits;

/// The maximum resources of one call. Plugin and binding can only lower these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    pub fuel: u64,
    pub memory_mib: u32,
    pub timeout_s: u32,
}

impl Default for Ceilings {
    /// The limits of a call for which neither plugin nor binding sets one. Authors of plugins rely on them.
    fn default() -> Self {
        Ceilings { fuel: 1_000_000_000, memory_mib: 64, timeout_s: 30 }
    }
}

impl Ceilings {
    /// Returns the memory limit of a plugin's calls before a binding lowers it.
    pub fn memory_bytes(self, asked: &Limits) -> u64 {
        let default = Ceilings::default().memory_mib;
        u64::from(asked.memory_mib.unwrap_or(default).min(self.memory_mib)) << 20
    }
}
