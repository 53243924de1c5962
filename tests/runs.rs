//! Runs of workflows, on a real server with the plugins of the tests.

mod access;
mod agents;
mod approvals;
mod blocks;
mod children;
mod concurrency;
mod control;
mod failures;
mod flows;
mod forged;
mod gates;
mod hosts;
mod labels;
mod limits;
mod order;
mod revocation;
mod steps;
mod stream;
mod times;
mod triggers;
mod uncertain;
mod undo;
mod versions;
mod waits;
