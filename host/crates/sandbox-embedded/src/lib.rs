//! The default sandbox provider: built from features of the Linux kernel, without a daemon.
//!
//! ```text
//! host ── launcher ── keeper ── init ── commands
//!              one        one for each sandbox, with namespaces, mounts and control groups
//! ```
//!
//! The host sends requests directly to the init of each sandbox. The launcher forks a keeper for each sandbox. The
//! keeper starts the init, and cleans up when the init has ended. The persistent state of a sandbox is one file below
//! `boxes` in the provider's folder.
#![cfg(target_os = "linux")]

mod cgroups;
mod control;
pub mod doctor;
mod embedded;
mod exec;
mod files;
mod hardening;
mod hidden;
mod ids;
mod images;
mod init;
mod launcher;
mod mounts;
pub mod network;
mod programs;
mod running;
mod sys;
pub mod template;
mod totals;
mod wire;
mod worker;

pub use embedded::{Embedded, EmbeddedOptions};
pub use images::{KeptAside, KeptImages, TemplateKind, kept_images};
pub use launcher::run_if_launcher;
pub use totals::TotalSettings;
