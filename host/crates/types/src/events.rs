//! Subscriptions as plugins see them.

/// A subscription that a plugin has made for the bot that calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginSubscription {
    /// The id.
    pub id: String,
    /// A glob over the types of events.
    pub pattern: String,
    /// What the bot is to do.
    pub instruction: String,
    /// Whether events match the subscription now.
    pub active: bool,
    /// The time of the creation (RFC 3339).
    pub created_at: String,
}
