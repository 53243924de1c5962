//! Whose events a subscription takes.

use std::fmt;
use std::str::FromStr;

use monstrum_types::BotId;

/// A group of events, by the bot that they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// The events of the bot of the subscription.
    Own,
    /// The events that belong to no bot.
    Platform,
    /// All events.
    Any,
    /// The events of one bot.
    Bot(BotId),
}

/// A text that names no group of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `own`, `platform`, `any` or the id of a bot")]
pub struct UnknownSource;

impl EventSource {
    /// The groups of a subscription that names none.
    pub const DEFAULT: [EventSource; 2] = [EventSource::Own, EventSource::Platform];

    /// Returns whether only an admin may subscribe the bot `own` to this group: with the events of another bot, that bot
    /// could steer this one.
    #[must_use]
    pub fn is_wide(self, own: BotId) -> bool {
        match self {
            EventSource::Own | EventSource::Platform => false,
            EventSource::Any => true,
            EventSource::Bot(id) => id != own,
        }
    }

    /// Returns whether an event that belongs to the bot `of` is in this group, for a subscription of the bot `own`.
    #[must_use]
    pub fn has(self, own: BotId, of: Option<BotId>) -> bool {
        match self {
            EventSource::Own => of == Some(own),
            EventSource::Platform => of.is_none(),
            EventSource::Any => true,
            EventSource::Bot(id) => of == Some(id),
        }
    }
}

impl FromStr for EventSource {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        match text {
            "own" => Ok(EventSource::Own),
            "platform" => Ok(EventSource::Platform),
            "any" => Ok(EventSource::Any),
            id => id.parse().map(EventSource::Bot).map_err(|_| UnknownSource),
        }
    }
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventSource::Own => f.write_str("own"),
            EventSource::Platform => f.write_str("platform"),
            EventSource::Any => f.write_str("any"),
            EventSource::Bot(id) => id.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_events_that_it_names() {
        let (own, other) = (BotId::new(), BotId::new());
        for (source, of_own, of_other, of_platform, is_wide) in [
            (EventSource::Own, true, false, false, false),
            (EventSource::Platform, false, false, true, false),
            (EventSource::Any, true, true, true, true),
            (EventSource::Bot(other), false, true, false, true),
            (EventSource::Bot(own), true, false, false, false),
        ] {
            let has = |of| source.has(own, of);
            assert_eq!((has(Some(own)), has(Some(other)), has(None)), (of_own, of_other, of_platform), "{source}");
            assert_eq!(source.is_wide(own), is_wide, "{source}");
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        for unknown in ["", "Own", "all", "own ", "0198"] {
            assert_eq!(unknown.parse::<EventSource>(), Err(UnknownSource), "{unknown}");
        }
    }
}
