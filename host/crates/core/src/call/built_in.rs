//! The built-in tools, which run without a plugin.

pub mod bots;
pub mod sandbox;
