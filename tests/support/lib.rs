//! Code that the tests, the demo and the benches share: a simulated GitHub, the real server as a process, and a client
//! of its API. Every server has its own ports, folders and database, so that tests never share data.

#![forbid(unsafe_code)]

mod agent;
mod api;
mod authorization_server;
mod conformance;
mod crash;
mod disk;
mod forwarder;
mod github;
mod in_process;
mod issuer;
mod listening;
mod llm;
mod machines;
mod mcp;
mod mcp_server;
mod oauth;
mod openai;
mod postgres;
mod proxy;
mod random;
mod runs;
mod sandboxes;
mod server;
mod sqlite;

pub use agent::{Agent, hello};
pub use api::{Api, Bound};
pub use authorization_server::AuthorizationServer;
pub use conformance::{CheckStatus, ConformanceCheck, ConformanceRun, ConformanceSuite, Side};
pub use crash::{CrashTest, CrashTotals, Fault};
pub use disk::Disk;
pub use forwarder::Forwarder;
pub use github::{Canned, FakeGithub, Recorded, TOKEN};
pub use in_process::InProcess;
pub use issuer::{TokenIssuer, now_s};
pub use llm::{FakeLlm, LlmReply};
pub use machines::Machines;
pub use mcp::{EverythingServer, McpPeer, Sdk, SdkServer, agent_example};
pub use mcp_server::{FakeMcp, Generation, McpReply};
pub use oauth::OauthServer;
pub use openai::{LitellmProxy, OpenAiClients};
pub use postgres::Postgres;
pub use proxy::{Proxy, Way};
pub use random::Random;
pub use runs::{RUN_MAX, is_over, status_of};
pub use sandboxes::{Asked, SandboxDouble};
pub use server::{Build, Server, install_tls, program};
pub use sqlite::sqlite;
