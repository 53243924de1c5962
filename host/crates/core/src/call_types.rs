//! The types that the stages of a call hand to each other and to the audit: plain data, without policy or plugins.

pub mod call_secrets;
pub mod incoming;
pub mod lineage;
pub mod refusal;
pub mod runs_calls;
