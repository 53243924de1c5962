//! The tools that the platform serves itself.

pub mod bots;
pub mod sandbox;
