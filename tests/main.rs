//! The integration tests, in one binary. The tests use the real server through its API and command line. They share no
//! data: every test has its own ports, folders and databases.

#![forbid(unsafe_code)]

mod agents;
mod approvals;
mod architecture;
mod archive;
mod call;
mod canary;
mod cli;
mod code;
mod console;
mod crash;
mod dependencies;
mod equal_policy;
mod events;
mod guides;
mod hostile;
mod http;
mod kit;
mod locked;
mod machines;
mod mcp;
mod models;
mod oauth;
mod openai;
mod packages;
mod postgres;
mod revocation;
mod rollback;
mod rows;
mod run_kills;
mod runs;
mod sandbox;
mod sandboxes;
mod schedules;
mod stable;
mod tamper;
mod task_kills;
mod tasks;
mod telemetry;
mod tenancy;
mod upgrade;
mod vault;
mod webhooks;
mod workflows;
mod world;
