//! The settings about the number of concurrent calls.

use std::num::NonZeroU32;

use monstrum_core::call::admission::Limits;

use super::{Bounded, ServeFlags};

/// Resolves the limits.
pub(super) fn at_once(flags: &ServeFlags, file: &ServeFlags) -> Limits {
    let default = Limits::default();
    let number = |flag: Option<NonZeroU32>, file: Option<NonZeroU32>, default: u32| {
        flag.or(file).map_or(default, NonZeroU32::get)
    };
    Limits {
        in_all: flags.max_calls.or(file.max_calls).map_or(default.in_all, Bounded::get),
        per_plugin: number(flags.max_calls_per_plugin, file.max_calls_per_plugin, default.per_plugin),
        per_bot: number(flags.max_calls_per_bot, file.max_calls_per_bot, default.per_bot),
        rounds: flags.max_llm_calls.or(file.max_llm_calls).map_or(default.rounds, Bounded::get),
    }
}
