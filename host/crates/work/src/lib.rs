//! What starts by itself: events are delivered to subscriptions, which start tasks, and webhooks make events of requests
//! from outside.

#![forbid(unsafe_code)]
