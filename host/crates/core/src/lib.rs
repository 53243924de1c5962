//! The core of Monstrum, which loads plugins and runs governed tool calls. It contains no HTTP server and no command
//! line. ARCHITECTURE.md shows the path of a call through these modules.

#![forbid(unsafe_code)]

pub mod access_tokens;
pub mod app;
pub mod approvals;
pub mod audit;
pub mod beside;
pub mod call;
pub mod call_types;
pub mod checks;
pub mod console_sessions;
pub mod credentials;
pub mod emitter;
pub mod events;
pub mod fair_queue;
pub mod language;
pub mod mcp;
pub mod meters;
pub mod models;
pub mod oauth;
pub mod operations;
pub mod pins;
pub mod plugins;
pub mod policy;
pub mod remote_agents;
pub mod sandboxes;
pub mod webhooks;
