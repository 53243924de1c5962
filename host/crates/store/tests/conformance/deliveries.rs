//! Tests of the dispatch of events, and of their deliveries.

use monstrum_store::{
    BotRow, DeliveredTask, DeliveriesMax, DeliveryEnd, DeliveryFilter, DeliveryReason, DeliveryRow, DeliveryStatus,
    Dispatch, Dispatched, EndedDelivery, EventFilter, EventRow, NewSession, NewWake, Page, RetriedDelivery, Scope,
    SessionRow, StartedDelivery, Store, StoreError, TargetKind, TaskEnd, TaskRow, TaskStatus, TasksMax, WakeClaim,
    wake_of,
};
use monstrum_types::{
    BotId, Clock as _, DeliveryId, EventId, Labels, SessionId, SystemClock, UtcMillis, WakeClaimId, WakeKey, WakeKind,
    WorkspaceId,
};

use crate::rows::{self, NOW, default_workspace, other_workspace};
use crate::subscriptions::subscription;
use crate::tasks;

const MAX: DeliveriesMax = DeliveriesMax { pending_of_target: 3, of_target_and_root: 4, events_of_root: 5 };
const TASKS: TasksMax = TasksMax { of_workspace: 9, of_tree: None };
/// The end of time for these tests: every wake is due before.
const LATER: UtcMillis = UtcMillis(4_102_444_800_000);

pub(crate) fn event(workspace_id: WorkspaceId, bot_id: Option<BotId>) -> EventRow {
    let id = EventId::new();
    EventRow {
        id,
        workspace_id,
        event_type: "custom.paid".to_owned(),
        source_type: "platform".to_owned(),
        source_id: "k".to_owned(),
        bot_id,
        root_event_id: id,
        depth: 0,
        links: "{}".to_owned(),
        created_at: NOW,
        sealed: "sealed".to_owned(),
    }
}

pub(crate) fn delivery(event: &EventRow, bot: &BotRow, target: &str) -> DeliveryRow {
    DeliveryRow {
        id: DeliveryId::new(),
        workspace_id: event.workspace_id,
        event_id: event.id,
        target_kind: TargetKind::Subscription,
        target_id: target.to_owned(),
        bot_id: bot.id,
        root_event_id: event.root_event_id,
        status: DeliveryStatus::Pending,
        attempts: 0,
        next_at: None,
        reason: None,
        invalid_paths: None,
        task_id: None,
        run_id: None,
        created_at: NOW,
        pending_since: NOW,
        ended_at: None,
    }
}

pub(crate) async fn bot(store: &Store, name: &str) -> BotRow {
    let row = rows::bot(default_workspace(store).await, name);
    store.insert_bot(&row).await.unwrap();
    row
}

pub(crate) async fn generation(store: &Store, workspace: WorkspaceId) -> i64 {
    store.snapshot().await.unwrap().scope_generations[&Scope::Workspace(workspace)]
}

pub(crate) async fn claim(store: &Store, key: &WakeKey) -> WakeClaim {
    let wakes = [(key.clone(), LATER, WakeClaimId::new())];
    store.claim_wakes("node", &wakes, SystemClock.now()).await.unwrap().remove(0)
}

pub(crate) fn key_of(delivery: &DeliveryRow) -> WakeKey {
    WakeKey::new(WakeKind::Delivery, delivery.id).unwrap()
}

/// Inserts and dispatches an event. Returns the wakes of its deliveries.
pub(crate) async fn dispatched(store: &Store, event: &EventRow, deliveries: &[DeliveryRow]) -> Vec<WakeKey> {
    assert!(store.insert_event(event).await.unwrap());
    let turn = claim(store, &wake_of(event).key).await;
    let generation = generation(store, event.workspace_id).await;
    let done = store.dispatch_event(&turn, &Dispatch { event, generation, deliveries, max: MAX }).await.unwrap();
    let Dispatched::Done { wakes, .. } = done else { panic!("{done:?}") };
    wakes.into_iter().map(|wake| wake.key).collect()
}

async fn sequence(store: &Store, event: &EventRow) -> Option<i64> {
    store.sequenced_event(event.workspace_id, event.id).await.unwrap().unwrap().sequence
}

pub(crate) async fn read(store: &Store, delivery: &DeliveryRow) -> DeliveryRow {
    store.delivery(delivery.workspace_id, delivery.id).await.unwrap().unwrap()
}

fn task(bot: &BotRow) -> DeliveredTask {
    let session_id = SessionId::new();
    let row = TaskRow { key_id: None, created_at: NOW, ..tasks::task(bot, session_id) };
    let session = SessionRow {
        id: session_id,
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        app_id: "task".to_owned(),
        user_id: "s".to_owned(),
        chat_id: session_id.to_string(),
        created_at: NOW,
        used_at: NOW,
        expired_at: None,
        labels: Labels::none(),
    };
    let created = EventRow { bot_id: Some(bot.id), ..event(bot.workspace_id, None) };
    let key = WakeKey::new(WakeKind::Task, row.id).unwrap();
    let wake = NewWake { key, workspace_id: bot.workspace_id, due_at: UtcMillis(0), claim: None };
    DeliveredTask { row, session: NewSession { row: session, created, after: None }, wake }
}

async fn start(store: &Store, delivery: &DeliveryRow, task: &DeliveredTask, running_max: i64) -> StartedDelivery {
    let turn = claim(store, &key_of(delivery)).await;
    let generation = generation(store, delivery.workspace_id).await;
    let started = store.start_delivery(&turn, delivery, task, generation, (running_max, TASKS)).await.unwrap();
    if !matches!(started, StartedDelivery::Started { .. }) {
        store.release_claims(&[(turn.key, turn.id)]).await.unwrap();
    }
    started
}

pub(crate) async fn events_are_numbered_without_gaps_and_delivered_once(store: &Store) {
    let bot = bot(store, "bot").await;
    let workspace = bot.workspace_id;
    let (first, second) = (event(workspace, None), event(workspace, None));
    let deliveries = [delivery(&first, &bot, "one"), delivery(&first, &bot, "two")];
    assert_eq!(dispatched(store, &first, &deliveries).await, [key_of(&deliveries[0]), key_of(&deliveries[1])]);
    assert_eq!(sequence(store, &first).await, Some(1));
    assert_eq!(read(store, &deliveries[0]).await, deliveries[0]);
    // A repeated turn of the event, on this host or another one.
    store.request_turns(&[wake_of(&first)]).await.unwrap();
    let turn = claim(store, &wake_of(&first).key).await;
    let again = [delivery(&first, &bot, "one"), delivery(&first, &bot, "three")];
    let generation = generation(store, workspace).await;
    let dispatch = Dispatch { event: &first, generation, deliveries: &again, max: MAX };
    let repeated = store.dispatch_event(&turn, &dispatch).await.unwrap();
    assert!(matches!(&repeated, Dispatched::Done { wakes, .. } if wakes.is_empty()), "{repeated:?}");
    let lost = store.dispatch_event(&turn, &dispatch).await;
    assert!(matches!(lost, Err(StoreError::LostClaim)), "{lost:?}");
    assert_eq!(dispatched(store, &second, &[]).await, []);
    assert_eq!((sequence(store, &first).await, sequence(store, &second).await), (Some(1), Some(2)));
    let listed = store.deliveries(workspace, &DeliveryFilter::default(), &Page::first(9)).await.unwrap().items;
    assert_eq!(listed.iter().map(|row| row.id).collect::<Vec<_>>(), [deliveries[1].id, deliveries[0].id]);
    // Each workspace counts for itself.
    let other = event(other_workspace(store).await, None);
    dispatched(store, &other, &[]).await;
    assert_eq!(sequence(store, &other).await, Some(1));
    assert_eq!(store.last_event_sequence(workspace).await.unwrap(), 2);
    assert_eq!(store.last_event_sequence(WorkspaceId::new()).await.unwrap(), 0);
}

pub(crate) async fn a_dispatch_by_an_older_policy_writes_nothing(store: &Store) {
    let bot = bot(store, "bot").await;
    let event = event(bot.workspace_id, None);
    assert!(store.insert_event(&event).await.unwrap());
    let deliveries = [delivery(&event, &bot, "one")];
    let before = generation(store, bot.workspace_id).await;
    // A subscription that is not in the caller's policy yet.
    assert!(store.insert_subscription(&subscription(bot.workspace_id, bot.id), 9).await.unwrap());
    let turn = claim(store, &wake_of(&event).key).await;
    let older = Dispatch { event: &event, generation: before, deliveries: &deliveries, max: MAX };
    assert_eq!(store.dispatch_event(&turn, &older).await.unwrap(), Dispatched::Behind);
    assert_eq!(sequence(store, &event).await, None);
    assert_eq!(store.delivery(bot.workspace_id, deliveries[0].id).await.unwrap(), None);
    let current = Dispatch { generation: generation(store, bot.workspace_id).await, ..older };
    let done = store.dispatch_event(&turn, &current).await.unwrap();
    assert!(matches!(&done, Dispatched::Done { wakes, .. } if wakes.len() == 1), "{done:?}");
    assert_eq!(sequence(store, &event).await, Some(1));

    let (turn, task) = (claim(store, &key_of(&deliveries[0])).await, task(&bot));
    let started = store.start_delivery(&turn, &deliveries[0], &task, before, (4, TASKS)).await.unwrap();
    assert_eq!(started, StartedDelivery::Behind);
    let dead = DeliveryEnd::Dead(DeliveryReason::Deleted);
    let ended = store.end_delivery(&turn, &deliveries[0], &dead, before, NOW).await.unwrap();
    assert_eq!(ended, EndedDelivery::Behind);
    assert_eq!(read(store, &deliveries[0]).await, deliveries[0]);
    assert_eq!(store.task(bot.workspace_id, task.row.id).await.unwrap(), None);
}

pub(crate) async fn too_many_deliveries_are_dead(store: &Store) {
    use DeliveryReason::{Loop, Overflow};
    let bot = bot(store, "bot").await;
    let root = event(bot.workspace_id, None);
    let caused = || EventRow { root_event_id: root.id, depth: 1, ..event(bot.workspace_id, None) };
    let mut reasons = Vec::new();
    for number in 0..7 {
        let event = if number == 0 { root.clone() } else { caused() };
        let row = delivery(&event, &bot, "one");
        let wakes = dispatched(store, &event, std::slice::from_ref(&row)).await;
        let row = read(store, &row).await;
        assert_eq!(wakes.is_empty(), row.status == DeliveryStatus::Dead);
        assert_eq!(row.ended_at.is_some(), row.status == DeliveryStatus::Dead);
        reasons.push(row.reason);
    }
    // Three are pending, the fifth is the fifth of its root, and the last events are too many of their root.
    assert_eq!(reasons, [None, None, None, Some(Overflow), Some(Loop), Some(Loop), Some(Loop)]);
    let other = event(bot.workspace_id, None);
    let deliveries = [delivery(&other, &bot, "one"), delivery(&other, &bot, "two")];
    assert_eq!(dispatched(store, &other, &deliveries).await, [key_of(&deliveries[1])], "another target has room");
    assert_eq!(read(store, &deliveries[0]).await.reason, Some(Overflow));
}

pub(crate) async fn of_two_turns_of_a_delivery_one_starts_a_task(store: &Store) {
    let bot = bot(store, "bot").await;
    let event = event(bot.workspace_id, None);
    let row = delivery(&event, &bot, "one");
    dispatched(store, &event, std::slice::from_ref(&row)).await;
    let (first, second) = (task(&bot), task(&bot));
    let started = start(store, &row, &first, 4).await;
    assert!(matches!(started, StartedDelivery::Started { next: None, .. }), "{started:?}");
    let done = read(store, &row).await;
    assert_eq!((done.status, done.task_id, done.attempts), (DeliveryStatus::Done, Some(first.row.id), 1));
    let wake = NewWake { key: key_of(&row), workspace_id: bot.workspace_id, due_at: NOW, claim: None };
    store.request_turns(&[wake]).await.unwrap();
    assert_eq!(start(store, &row, &second, 4).await, StartedDelivery::Gone);
    assert_eq!(store.task(bot.workspace_id, second.row.id).await.unwrap(), None);
    assert!(store.task(bot.workspace_id, first.row.id).await.unwrap().is_some());
}

pub(crate) async fn the_end_of_a_task_wakes_the_oldest_delivery(store: &Store) {
    let bot = bot(store, "bot").await;
    let mut rows = Vec::new();
    for target in ["one", "two", "three"] {
        let event = event(bot.workspace_id, None);
        rows.push(delivery(&event, &bot, target));
        dispatched(store, &event, &rows[rows.len() - 1..]).await;
    }
    let running = task(&bot);
    let started = start(store, &rows[0], &running, 1).await;
    // The next delivery is asked to try, and finds no room.
    let StartedDelivery::Started { next: Some(next), .. } = started else { panic!("{started:?}") };
    assert_eq!(next.key, key_of(&rows[1]));
    for row in &rows[1..] {
        assert_eq!(start(store, row, &task(&bot), 1).await, StartedDelivery::NoRoom);
        let turn = claim(store, &key_of(row)).await;
        let rest = DeliveryEnd::Pending { next_at: None, wake_at: LATER };
        let generation = generation(store, bot.workspace_id).await;
        let ended = store.end_delivery(&turn, row, &rest, generation, NOW).await.unwrap();
        assert!(matches!(ended, EndedDelivery::Ended { next: None, .. }), "{ended:?}");
        assert_eq!((read(store, row).await.attempts, read(store, row).await.status), (1, DeliveryStatus::Pending));
    }
    let waiting = NewWake { due_at: NOW, ..running.wake.clone() };
    let turn = claim(store, &waiting.key).await;
    let (status, sealed) = (TaskStatus::Completed, "sealed".to_owned());
    let end = TaskEnd { task_id: running.row.id, status, code: None, ended_at: NOW, sealed };
    let event = event(bot.workspace_id, Some(bot.id));
    let ended = store.end_task(&turn, &end, &event).await.unwrap();
    let requested: Vec<_> = ended.wakes.into_iter().map(|wake| wake.key).collect();
    assert_eq!(requested, [wake_of(&event).key, key_of(&rows[1])]);
    let (due, _) = store.due_wakes(0, None, 100, SystemClock.now()).await.unwrap();
    let due: Vec<_> = due.into_iter().filter(|due| due.key.kind() == WakeKind::Delivery).map(|due| due.key).collect();
    assert_eq!(due, [key_of(&rows[1])]);
    let started = start(store, &rows[1], &task(&bot), 1).await;
    assert!(matches!(started, StartedDelivery::Started { .. }), "{started:?}");
    let full = TasksMax { of_workspace: 1, of_tree: None };
    let turn = claim(store, &key_of(&rows[2])).await;
    let generation = generation(store, bot.workspace_id).await;
    let started = store.start_delivery(&turn, &rows[2], &task(&bot), generation, (9, full)).await.unwrap();
    assert_eq!(started, StartedDelivery::Full);
}

pub(crate) async fn dead_deliveries_are_retried(store: &Store) {
    let bot = bot(store, "bot").await;
    let workspace = bot.workspace_id;
    let event = event(workspace, None);
    let rows = [delivery(&event, &bot, "one"), delivery(&event, &bot, "two")];
    dispatched(store, &event, &rows).await;
    let retry = async |row: &DeliveryRow| store.retry_delivery(workspace, row.id, NOW.plus_ms(5)).await.unwrap();
    assert_eq!(retry(&rows[0]).await, RetriedDelivery::NotDead);
    let turn = claim(store, &key_of(&rows[0])).await;
    let (generation, dead) = (generation(store, workspace).await, DeliveryEnd::Dead(DeliveryReason::Model));
    let ended = store.end_delivery(&turn, &rows[0], &dead, generation, NOW).await.unwrap();
    // A dead delivery takes no room, so the next one can try.
    assert!(
        matches!(&ended, EndedDelivery::Ended { next: Some(next), .. } if next.key == key_of(&rows[1])),
        "{ended:?}"
    );
    let row = read(store, &rows[0]).await;
    assert_eq!((row.status, row.reason, row.ended_at), (DeliveryStatus::Dead, Some(DeliveryReason::Model), Some(NOW)));
    let only = DeliveryFilter { status: Some(DeliveryStatus::Dead), ..DeliveryFilter::default() };
    let listed = store.deliveries(workspace, &only, &Page::first(9)).await.unwrap().items;
    assert_eq!(listed, std::slice::from_ref(&row));
    assert!(matches!(retry(&row).await, RetriedDelivery::Pending(wake) if wake.key == key_of(&row)));
    let again = read(store, &row).await;
    let expected = DeliveryRow {
        status: DeliveryStatus::Pending,
        reason: None,
        ended_at: None,
        pending_since: NOW.plus_ms(5),
        ..row.clone()
    };
    assert_eq!(again, expected);
    claim(store, &key_of(&row)).await;
    let other = store.retry_delivery(other_workspace(store).await, row.id, NOW).await.unwrap();
    assert_eq!(other, RetriedDelivery::Absent);
}

pub(crate) async fn deliveries_end_with_their_subscription(store: &Store) {
    let bot = bot(store, "bot").await;
    let row = subscription(bot.workspace_id, bot.id);
    assert!(store.insert_subscription(&row, 9).await.unwrap());
    let event = event(bot.workspace_id, None);
    let rows = [delivery(&event, &bot, &row.id.to_string()), delivery(&event, &bot, "other")];
    dispatched(store, &event, &rows).await;
    assert!(store.delete_subscription(bot.workspace_id, row.id, NOW, NOW.plus_ms(1)).await.unwrap());
    let ended = read(store, &rows[0]).await;
    assert_eq!((ended.status, ended.reason), (DeliveryStatus::Dead, Some(DeliveryReason::Deleted)));
    assert_eq!(read(store, &rows[1]).await, rows[1]);
    // The deliveries of an event are forgotten with it.
    assert_eq!(store.forget_events(NOW.plus_ms(1)).await.unwrap(), 1);
    assert_eq!(store.delivery(bot.workspace_id, rows[1].id).await.unwrap(), None);
}

pub(crate) async fn events_have_pages_and_positions(store: &Store) {
    let bot = bot(store, "bot").await;
    let workspace = bot.workspace_id;
    let of_bot = EventRow { created_at: NOW.plus_ms(10), ..event(workspace, Some(bot.id)) };
    let of_webhook = EventRow { source_type: "webhook".to_owned(), ..event(workspace, None) };
    for event in [&of_bot, &of_webhook] {
        assert!(store.insert_event(event).await.unwrap());
    }
    let ids = async |filter: EventFilter, page: Page<EventId>| {
        let listed = store.events_page(workspace, &filter, &page).await.unwrap();
        (listed.items.into_iter().map(|event| event.row.id).collect::<Vec<_>>(), listed.next_cursor)
    };
    let all = EventFilter::default;
    assert_eq!(ids(all(), Page::first(1)).await, (vec![of_webhook.id], Some(of_webhook.id)));
    assert_eq!(ids(all(), Page { limit: 9, cursor: Some(of_webhook.id) }).await.0, [of_bot.id]);
    assert_eq!(ids(EventFilter { bot: Some(bot.id), ..all() }, Page::first(9)).await.0, [of_bot.id]);
    let webhook = Some("webhook".to_owned());
    assert_eq!(ids(EventFilter { source_type: webhook, ..all() }, Page::first(9)).await.0, [of_webhook.id]);
    assert_eq!(ids(EventFilter { since: Some(NOW.plus_ms(10)), ..all() }, Page::first(9)).await.0, [of_bot.id]);
    assert_eq!(ids(EventFilter { until: Some(NOW.plus_ms(10)), ..all() }, Page::first(9)).await.0, [of_webhook.id]);
    assert!(store.events_after(workspace, 0, 9).await.unwrap().is_empty(), "none is dispatched");
    for event in [&of_webhook, &of_bot] {
        let turn = claim(store, &wake_of(event).key).await;
        let generation = generation(store, workspace).await;
        store.dispatch_event(&turn, &Dispatch { event, generation, deliveries: &[], max: MAX }).await.unwrap();
    }
    let after = async |sequence| {
        let events = store.events_after(workspace, sequence, 9).await.unwrap();
        events.into_iter().map(|event| (event.sequence, event.row.id)).collect::<Vec<_>>()
    };
    assert_eq!(after(0).await, [(Some(1), of_webhook.id), (Some(2), of_bot.id)]);
    assert_eq!(after(1).await, [(Some(2), of_bot.id)]);
    assert!(store.events_after(other_workspace(store).await, 0, 9).await.unwrap().is_empty());
}
