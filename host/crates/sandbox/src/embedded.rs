//! The provider that needs nothing but Linux.

pub mod network;
mod programs;
