//! How many calls run at once: 64 a plugin, 32 a bot, and what a binding says. A call that finds no room waits up to
//! 5 s in the order of arrival, then the plugin is busy.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use monstrum_types::{BindingId, BotId, PluginName};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Calls of one plugin: enough to hide a slow upstream, few enough to leave the pool to others (plugin-contract).
pub const PLUGIN_CALLS_MAX: usize = 64;
/// Calls of one bot.
pub const BOT_CALLS_MAX: usize = 32;
/// How long a call waits for room.
pub const WAIT_MAX: Duration = Duration::from_secs(5);

/// Room for one call; dropping it makes room for the next.
pub struct Place {
    _permits: Vec<OwnedSemaphorePermit>,
}

/// No room within [`WAIT_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub struct Busy;

/// The lanes of all plugins, bots and bindings.
#[derive(Default)]
pub struct Lanes {
    bots: Keyed<BotId>,
    plugins: Keyed<PluginName>,
    bindings: Keyed<(BindingId, u32)>,
}

impl Lanes {
    /// Waits for room: first among the bot's own calls, so that a busy bot queues behind itself and not in the plugin's
    /// lane.
    pub async fn enter(
        &self,
        bot: BotId,
        binding: BindingId,
        binding_max: Option<u32>,
        plugin: &PluginName,
    ) -> Result<Place, Busy> {
        let mut lanes = vec![self.bots.lane(bot, BOT_CALLS_MAX)];
        if let Some(max) = binding_max {
            lanes.push(self.bindings.lane((binding, max), usize::try_from(max).unwrap_or(usize::MAX)));
        }
        lanes.push(self.plugins.lane(plugin.clone(), PLUGIN_CALLS_MAX));

        let until = Instant::now() + WAIT_MAX;
        let mut permits = Vec::with_capacity(lanes.len());
        for lane in lanes {
            match tokio::time::timeout_at(until, lane.acquire_owned()).await {
                Ok(permit) => permits.push(permit.expect("a lane is never closed")),
                Err(_) => return Err(Busy),
            }
        }
        Ok(Place { _permits: permits })
    }
}

/// One semaphore a key. Lanes that nobody uses are dropped when there are many.
struct Keyed<K>(Mutex<HashMap<K, Arc<Semaphore>>>);

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Keyed(Mutex::default())
    }
}

impl<K: Eq + Hash> Keyed<K> {
    /// Idle lanes are swept when this many are held.
    const SWEEP_AT: usize = 4096;

    fn lane(&self, key: K, room: usize) -> Arc<Semaphore> {
        let mut lanes = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if lanes.len() >= Self::SWEEP_AT {
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
        }
        Arc::clone(lanes.entry(key).or_insert_with(|| Arc::new(Semaphore::new(room.clamp(1, Semaphore::MAX_PERMITS)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_lane_is_busy_after_five_seconds_and_free_again_after_that() {
        let lanes = Lanes::default();
        let bot = BotId::new();
        let plugin: PluginName = "github".parse().unwrap();
        let mut places = Vec::new();
        for _ in 0..BOT_CALLS_MAX {
            places.push(lanes.enter(bot, BindingId::new(), None, &plugin).await.unwrap_or_else(|_| panic!("room")));
        }
        let asked_at = Instant::now();
        assert!(lanes.enter(bot, BindingId::new(), None, &plugin).await.is_err());
        assert_eq!(asked_at.elapsed().as_secs(), WAIT_MAX.as_secs());
        assert!(lanes.enter(BotId::new(), BindingId::new(), None, &plugin).await.is_ok());
        places.pop();
        assert!(lanes.enter(bot, BindingId::new(), None, &plugin).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_may_allow_fewer() {
        let lanes = Lanes::default();
        let (bot, binding) = (BotId::new(), BindingId::new());
        let plugin: PluginName = "github".parse().unwrap();
        let first = lanes.enter(bot, binding, Some(1), &plugin).await;
        assert!(first.is_ok());
        assert!(lanes.enter(bot, binding, Some(1), &plugin).await.is_err());
    }
}
