//! The operator's limits for a single call.

use monstrum_manifest::Limits;

/// The resource limits of one call. A plugin or a binding can only lower these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    pub fuel: u64,
    pub memory_mib: u32,
    pub timeout_s: u32,
}

impl Default for Ceilings {
    /// Returns the default limits, which apply if neither the plugin nor the binding sets a limit. Authors of plugins
    /// rely on these values.
    fn default() -> Self {
        Ceilings { fuel: 1_000_000_000, memory_mib: 64, timeout_s: 30 }
    }
}

impl Ceilings {
    /// Returns the memory limit of a plugin's calls, in bytes. A binding may lower this limit.
    pub fn memory_bytes(self, asked: &Limits) -> u64 {
        let default = Ceilings::default().memory_mib;
        u64::from(asked.memory_mib.unwrap_or(default).min(self.memory_mib)) << 20
    }
}
