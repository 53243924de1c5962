//! What starts by itself: events are delivered to subscriptions, which start tasks, and webhooks make events of requests
//! from outside. Workflows are documents with steps that a bot runs.

#![forbid(unsafe_code)]

mod current;
mod deliveries;
mod dispatch;
pub mod runs;
pub mod workflows;

pub use deliveries::DeliveryTurns;
pub use dispatch::EventTurns;
