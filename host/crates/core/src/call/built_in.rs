//! The built-in tools, which run without a plugin.

pub mod agents;
pub mod bots;
pub mod llm;
pub mod mcp;
pub mod sandbox;
