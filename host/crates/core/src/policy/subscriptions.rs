//! The subscriptions in force: which events start tasks of which bots.

use std::sync::Arc;

use monstrum_api::tasks::Narrow;
use monstrum_guardian::match_glob;
use monstrum_store::{Changed, EventRow, SubscriptionRow};
use monstrum_types::{KeyId, SubscriptionId, UtcMillis, WorkspaceId};
use serde::Deserialize as _;

use super::Snapshot;
use super::of_workspaces::OfWorkspaces;
use crate::events::{EventSource, Template};

/// A subscription, whose row was verified and read.
#[derive(Clone, Debug, PartialEq)]
pub struct Subscription {
    pub row: SubscriptionRow,
    pub sources: Vec<EventSource>,
    pub template: Template,
    pub narrow: Option<Narrow>,
    /// The keys that made or changed the subscription.
    pub starters: Vec<KeyId>,
}

impl Subscription {
    /// Reads a row. Returns `None` if a part of it is not in the form in which it is saved; such a subscription matches
    /// nothing.
    pub fn of_row(row: SubscriptionRow) -> Option<Subscription> {
        let words = Vec::<String>::deserialize(&row.sources).ok()?;
        let sources = words.iter().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let narrow = row.narrow.as_ref().map(Narrow::deserialize).transpose().ok()?;
        let starters = Vec::<KeyId>::deserialize(&row.starters).ok()?;
        let template = Template::parse(&row.instruction).ok()?;
        Some(Subscription { sources, template, narrow, starters, row })
    }

    /// Returns whether an event starts a task of the subscription at `now`. The event must be of the same workspace.
    pub fn matches(&self, event: &EventRow, now: UtcMillis) -> bool {
        let SubscriptionRow { workspace_id, bot_id, pattern, .. } = &self.row;
        *workspace_id == event.workspace_id
            && self.row.is_in_force(now)
            && self.sources.iter().any(|source| source.has(*bot_id, event.bot_id))
            && match_glob(&event.event_type, pattern)
    }
}

/// The subscriptions of a snapshot.
#[derive(Clone, Default)]
pub struct Subscriptions(OfWorkspaces<SubscriptionId, Subscription>);

impl Subscriptions {
    /// Returns the subscriptions of a workspace, in the order of their creation.
    pub fn of_workspace(&self, workspace: WorkspaceId) -> impl Iterator<Item = &Arc<Subscription>> {
        self.0.of_workspace(workspace)
    }

    /// Returns the subscription with this id in the workspace.
    pub fn get(&self, workspace: WorkspaceId, id: SubscriptionId) -> Option<&Arc<Subscription>> {
        self.0.get(workspace, id)
    }

    /// Applies changes of subscriptions.
    pub(super) fn change(&mut self, rows: Changed<SubscriptionId, SubscriptionRow>) {
        for (id, row) in rows {
            let subscription = row.and_then(|row| {
                let subscription = Subscription::of_row(row);
                if subscription.is_none() {
                    tracing::error!(subscription.id = %id, "a subscription matches nothing, because its row is unreadable");
                }
                subscription
            });
            self.0.set(id, subscription.map(|subscription| (subscription.row.workspace_id, subscription)));
        }
    }
}

impl Snapshot {
    /// Returns the subscriptions of all workspaces.
    pub fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }
}

#[cfg(test)]
mod tests {
    use monstrum_store::SubscriptionMaker;
    use monstrum_types::{BotId, EventId};
    use serde_json::{Value, json};

    use super::*;

    fn row(workspace_id: WorkspaceId, bot_id: BotId) -> SubscriptionRow {
        SubscriptionRow {
            id: SubscriptionId::new(),
            workspace_id,
            bot_id,
            pattern: "custom.order.*".to_owned(),
            instruction: "{data}".to_owned(),
            sources: json!(["own", "platform"]),
            narrow: None,
            active: true,
            made_by_kind: SubscriptionMaker::Key,
            made_by_id: "k".to_owned(),
            starters: json!([]),
            expires_at: None,
            created_at: UtcMillis(1),
            updated_at: UtcMillis(1),
        }
    }

    fn event(workspace_id: WorkspaceId, bot_id: Option<BotId>, event_type: &str) -> EventRow {
        let id = EventId::new();
        EventRow {
            id,
            workspace_id,
            event_type: event_type.to_owned(),
            source_type: "platform".to_owned(),
            source_id: "k".to_owned(),
            bot_id,
            root_event_id: id,
            depth: 0,
            links: "{}".to_owned(),
            created_at: UtcMillis(1),
            sealed: String::new(),
        }
    }

    #[test]
    fn an_event_matches_by_type_bot_and_workspace() {
        let (workspace, bot, now) = (WorkspaceId::new(), BotId::new(), UtcMillis(10));
        let matches = |row: SubscriptionRow, event: &EventRow| Subscription::of_row(row).unwrap().matches(event, now);
        let paid = |bot_id| event(workspace, bot_id, "custom.order.paid");
        let own = || row(workspace, bot);
        assert!(matches(own(), &paid(Some(bot))) && matches(own(), &paid(None)));
        assert!(!matches(own(), &paid(Some(BotId::new()))), "an event of another bot");
        assert!(!matches(own(), &event(workspace, None, "custom.order")), "another type");
        assert!(!matches(own(), &event(WorkspaceId::new(), None, "custom.order.paid")), "another workspace");
        assert!(!matches(SubscriptionRow { active: false, ..own() }, &paid(None)));
        assert!(!matches(SubscriptionRow { expires_at: Some(now), ..own() }, &paid(None)));
        assert!(matches(SubscriptionRow { expires_at: Some(now.plus_ms(1)), ..own() }, &paid(None)));
        let any = SubscriptionRow { sources: json!(["any"]), ..own() };
        assert!(matches(any, &paid(Some(BotId::new()))));
    }

    #[test]
    fn unreadable_rows_match_nothing() {
        let own = || row(WorkspaceId::new(), BotId::new());
        let sources = |sources: Value| SubscriptionRow { sources, ..own() };
        for unreadable in [
            sources(json!(["all"])),
            sources(json!("any")),
            SubscriptionRow { narrow: Some(json!({ "unknown": 1 })), ..own() },
            SubscriptionRow { starters: json!([1]), ..own() },
            SubscriptionRow { instruction: "{unknown}".to_owned(), ..own() },
        ] {
            assert_eq!(Subscription::of_row(unreadable.clone()), None, "{unreadable:?}");
        }
    }

    #[test]
    fn changes_replace_and_remove() {
        let (workspace, bot) = (WorkspaceId::new(), BotId::new());
        let (one, two) = (row(workspace, bot), row(workspace, bot));
        let mut snapshot = Snapshot::default();
        snapshot.subscriptions.change([(one.id, Some(one.clone())), (two.id, Some(two.clone()))].into());
        assert_eq!(snapshot.subscriptions().of_workspace(workspace).count(), 2);
        let changed = SubscriptionRow { pattern: "*".to_owned(), ..one.clone() };
        snapshot.subscriptions.change([(one.id, Some(changed)), (two.id, None)].into());
        assert_eq!(snapshot.subscriptions().get(workspace, one.id).unwrap().row.pattern, "*");
        assert!(snapshot.subscriptions().get(workspace, two.id).is_none());
        assert!(snapshot.subscriptions().get(WorkspaceId::new(), one.id).is_none());
        let unreadable = SubscriptionRow { instruction: "{".to_owned(), ..one.clone() };
        snapshot.subscriptions.change([(one.id, Some(unreadable))].into());
        assert_eq!(snapshot.subscriptions().of_workspace(workspace).count(), 0);
    }
}
