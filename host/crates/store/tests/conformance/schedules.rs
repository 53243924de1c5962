//! Tests of schedules: a planned time fires once, and the end of a task counts for its schedule.

use monstrum_store::{
    AfterTurn, BotRow, EndedTask, EventRow, FiredSchedule, InsertedSchedule, NewSession, NewWake, Page, ScheduleFiring,
    ScheduleRow, ScheduleRun, ScheduleRunStatus, ScheduleUpdate, ScheduledTask, ScheduledWork, SchedulesMax,
    SealedColumn, SessionRow, Store, StoreError, TaskEnd, TaskFilter, TaskRow, TaskStatus, TasksMax, WakeClaim,
};
use monstrum_types::{
    Clock as _, EventId, Labels, ScheduleId, SessionId, SystemClock, UtcMillis, WakeClaimId, WakeKey, WakeKind,
};

use crate::authentic::{Intruder, problems, refused, unverified};
use crate::rows::{self, NOW, default_workspace, other_workspace};
use crate::tasks;

const MAX: SchedulesMax = SchedulesMax { of_bot: 2, of_workspace: 3 };
const TASKS_MAX: TasksMax = TasksMax { of_workspace: 3, of_tree: None };
/// The end of time for these tests: no wake of a schedule is due before.
const LATER: UtcMillis = UtcMillis(4_102_444_800_000);

pub(crate) async fn bot(store: &Store, name: &str) -> BotRow {
    let row = rows::bot(default_workspace(store).await, name);
    store.insert_bot(&row).await.unwrap();
    row
}

pub(crate) fn schedule(bot: &BotRow, name: &str) -> ScheduleRow {
    ScheduleRow {
        id: ScheduleId::new(),
        workspace_id: bot.workspace_id,
        bot_id: bot.id,
        name: name.to_owned(),
        next_at: Some(NOW),
        last_planned_at: None,
        last_fired_at: None,
        last_task_id: None,
        last_run_id: None,
        last_status: None,
        failures: 0,
        created_at: NOW,
        updated_at: NOW,
        sealed: "sealed".to_owned(),
    }
}

fn wake(schedule: &ScheduleRow) -> NewWake {
    let key = WakeKey::new(WakeKind::Schedule, schedule.id).unwrap();
    NewWake { key, workspace_id: schedule.workspace_id, due_at: UtcMillis(0), claim: None }
}

pub(crate) async fn inserted(store: &Store, schedule: &ScheduleRow) -> InsertedSchedule {
    store.insert_schedule(schedule, Some(&wake(schedule)), MAX).await.unwrap()
}

pub(crate) async fn claim(store: &Store, key: &WakeKey) -> WakeClaim {
    let wakes = [(key.clone(), LATER, WakeClaimId::new())];
    store.claim_wakes("node", &wakes, SystemClock.now()).await.unwrap().remove(0)
}

async fn read(store: &Store, schedule: &ScheduleRow) -> ScheduleRow {
    store.schedule(schedule.workspace_id, schedule.id).await.unwrap().unwrap()
}

fn event(bot: &BotRow, event_type: &str) -> EventRow {
    let id = EventId::new();
    EventRow {
        id,
        workspace_id: bot.workspace_id,
        event_type: event_type.to_owned(),
        source_type: "schedule".to_owned(),
        source_id: "s".to_owned(),
        bot_id: Some(bot.id),
        root_event_id: id,
        depth: 0,
        links: "{}".to_owned(),
        created_at: NOW,
        sealed: "sealed".to_owned(),
    }
}

/// A task that a schedule starts.
pub(crate) struct Task(pub(crate) ScheduledWork);

impl std::ops::Deref for Task {
    type Target = ScheduledTask;

    fn deref(&self) -> &ScheduledTask {
        match &self.0 {
            ScheduledWork::Task(task) => task,
            ScheduledWork::Run(_) => panic!("not a task"),
        }
    }
}

pub(crate) fn task(bot: &BotRow) -> Task {
    let session_id = SessionId::new();
    let row = TaskRow { key_id: None, created_at: NOW, ..tasks::task(bot, session_id) };
    let id = row.id;
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
    let session = NewSession { row: session, created: event(bot, "session.created"), after: None };
    let key = WakeKey::new(WakeKind::Task, id).unwrap();
    let wake = NewWake { key, workspace_id: bot.workspace_id, due_at: UtcMillis(0), claim: None };
    let task = ScheduledTask { row, session, wake, event: event(bot, "schedule.fired") };
    Task(ScheduledWork::Task(Box::new(task)))
}

fn run(planned_at: UtcMillis, status: ScheduleRunStatus, task: Option<&Task>) -> ScheduleRun {
    let task_id = task.map(|task| task.row.id);
    ScheduleRun { planned_at, is_manual: false, status, fired_at: NOW, task_id, run_id: None }
}

/// A turn that starts a task for the planned time of the schedule.
pub(crate) fn firing<'a>(schedule: &'a ScheduleRow, task: &'a Task) -> ScheduleFiring<'a> {
    let runs = vec![run(schedule.next_at.unwrap(), ScheduleRunStatus::Running, Some(task))];
    ScheduleFiring { schedule, next_at: Some(LATER), wake_at: Some(LATER), runs, work: Some(&task.0) }
}

pub(crate) async fn fire(store: &Store, firing: &ScheduleFiring<'_>) -> FiredSchedule {
    let claim = claim(store, &wake(firing.schedule).key).await;
    store.fire_schedule(&claim, firing, TASKS_MAX).await.unwrap()
}

/// Changes a schedule that was last changed at `before`. With `next_at`, the schedule is enabled again.
pub(crate) async fn update(
    store: &Store,
    row: &ScheduleRow,
    before: UtcMillis,
    next_at: Option<UtcMillis>,
) -> Option<ScheduleRow> {
    let next_at = next_at.map(Some);
    let update = ScheduleUpdate { row, before, next_at, is_resumed: next_at.is_some() };
    store.update_schedule(&update, &wake(row)).await.unwrap()
}

async fn end(store: &Store, bot: &BotRow, task: &Task, status: TaskStatus) -> EndedTask {
    let claim = claim(store, &task.wake.key).await;
    end_by(store, &claim, bot, (task, status)).await
}

pub(crate) async fn end_by(
    store: &Store,
    claim: &WakeClaim,
    bot: &BotRow,
    (task, status): (&Task, TaskStatus),
) -> EndedTask {
    let end =
        TaskEnd { task_id: task.row.id, status, code: None, ended_at: SystemClock.now(), sealed: "end".to_owned() };
    store.end_task(claim, &end, &event(bot, "task.completed")).await.unwrap()
}

pub(crate) async fn schedules_are_inserted_changed_listed_and_deleted(store: &Store) {
    let (one, two) = (bot(store, "one").await, bot(store, "two").await);
    let [first, second, third] = [schedule(&one, "a"), schedule(&one, "b"), schedule(&two, "c")];
    assert_eq!(inserted(store, &first).await, InsertedSchedule::Inserted);
    let taken = store.insert_schedule(&schedule(&two, "a"), None, MAX).await;
    assert!(matches!(taken, Err(StoreError::Conflict { .. })), "{taken:?}");
    assert_eq!(inserted(store, &second).await, InsertedSchedule::Inserted);
    assert_eq!(inserted(store, &schedule(&one, "d")).await, InsertedSchedule::BotFull);
    assert_eq!(inserted(store, &third).await, InsertedSchedule::Inserted);
    assert_eq!(inserted(store, &schedule(&two, "e")).await, InsertedSchedule::WorkspaceFull);
    let listed = store.schedules(one.workspace_id, Some(one.id), &Page::first(10)).await.unwrap();
    assert_eq!(listed.items, [second.clone(), first.clone()]);
    let foreign = other_workspace(store).await;
    assert_eq!(store.schedule(foreign, first.id).await.unwrap(), None);
    assert!(!store.delete_schedule(foreign, first.id, NOW).await.unwrap());

    let updated_at = NOW.plus_ms(1);
    let changed = ScheduleRow { name: "z".to_owned(), updated_at, sealed: "other".to_owned(), ..first.clone() };
    assert_eq!(update(store, &changed, NOW, None).await, Some(changed.clone()));
    assert_eq!(update(store, &changed, NOW, None).await, None, "another version");
    assert_eq!(read(store, &first).await, changed);
    assert_eq!(store.count_sealed(SealedColumn::Schedules).await.unwrap(), 3);
    let sealed = store.sealed_records(SealedColumn::Schedules, None, 10).await.unwrap().records;
    let found = sealed.iter().find(|record| record.key == [first.id.to_string()]).unwrap();
    let times = [NOW.0.to_string(), updated_at.0.to_string()];
    let [created, updated] = times;
    assert_eq!(found.bound, [one.workspace_id.to_string(), one.id.to_string(), "z".to_owned(), created, updated]);
    assert!(!store.delete_schedule(one.workspace_id, first.id, NOW).await.unwrap(), "another version");
    assert!(store.delete_schedule(one.workspace_id, first.id, updated_at).await.unwrap());
    store.delete_bot(one.workspace_id, one.id).await.unwrap();
    assert_eq!(store.schedule(one.workspace_id, second.id).await.unwrap(), None);
}

pub(crate) async fn a_planned_time_fires_once(store: &Store) {
    let bot = bot(store, "one").await;
    let schedule = schedule(&bot, "hourly");
    inserted(store, &schedule).await;
    let (first, second) = (task(&bot), task(&bot));
    let fired = fire(store, &firing(&schedule, &first)).await;
    assert_eq!(fired, FiredSchedule::Fired { after: AfterTurn::Due(LATER), has_work: true });
    let read_again = read(store, &schedule).await;
    assert_eq!((read_again.next_at, read_again.last_planned_at), (Some(LATER), Some(NOW)));
    assert_eq!(
        (read_again.last_task_id, read_again.last_status),
        (Some(first.row.id), Some(ScheduleRunStatus::Running))
    );
    assert_eq!(store.running_schedule(schedule.id, 10).await.unwrap().started, 1);
    for (of, expected) in [(schedule.id, vec![first.row.id]), (ScheduleId::new(), Vec::new())] {
        let filter = TaskFilter { schedule: Some(of), ..TaskFilter::default() };
        let listed = store.tasks(bot.workspace_id, filter, &Page::first(10)).await.unwrap().items;
        assert_eq!(listed.iter().map(|task| task.id).collect::<Vec<_>>(), expected);
    }
    // A host that has read the schedule before writes nothing.
    assert_eq!(fire(store, &firing(&schedule, &second)).await, FiredSchedule::Changed);
    // Neither does a time that another program has set back.
    let back = ScheduleRow { next_at: Some(NOW), updated_at: NOW.plus_ms(1), ..read_again };
    store.drop_claims("node").await.unwrap();
    assert!(update(store, &back, NOW, Some(NOW)).await.is_some());
    let again = fire(store, &firing(&back, &second)).await;
    assert!(matches!(again, FiredSchedule::Fired { has_work: false, .. }), "{again:?}");
    assert_eq!(store.task(bot.workspace_id, second.row.id).await.unwrap(), None);
    assert_eq!(read(store, &schedule).await.last_task_id, Some(first.row.id));
}

pub(crate) async fn of_two_hosts_one_fires(store: &Store) {
    let bot = bot(store, "one").await;
    let schedule = schedule(&bot, "hourly");
    inserted(store, &schedule).await;
    let key = wake(&schedule).key;
    let first = claim(store, &key).await;
    store.release_claims(&[(key.clone(), first.id)]).await.unwrap();
    let second = claim(store, &key).await;
    let (early, late) = (task(&bot), task(&bot));
    let lost = store.fire_schedule(&first, &firing(&schedule, &early), TASKS_MAX).await;
    assert!(matches!(lost, Err(StoreError::LostClaim)), "{lost:?}");
    let fired = store.fire_schedule(&second, &firing(&schedule, &late), TASKS_MAX).await.unwrap();
    assert!(matches!(fired, FiredSchedule::Fired { has_work: true, .. }));
    assert_eq!(store.task(bot.workspace_id, early.row.id).await.unwrap(), None);
    assert!(store.task(bot.workspace_id, late.row.id).await.unwrap().is_some());
}

pub(crate) async fn the_end_of_a_task_counts_for_its_schedule(store: &Store) {
    let bot = bot(store, "one").await;
    let schedule = schedule(&bot, "hourly");
    inserted(store, &schedule).await;
    let ends = [(TaskStatus::Failed, 1), (TaskStatus::Cancelled, 1), (TaskStatus::Completed, 0)];
    let failed = (1..=ScheduleRow::FAILURES_MAX).map(|failures| (TaskStatus::Failed, failures));
    for (hour, (status, failures)) in ends.into_iter().chain(failed).enumerate() {
        let row = read(store, &schedule).await;
        let task = task(&bot);
        let planned = run(NOW.plus_ms(i64::try_from(hour).unwrap()), ScheduleRunStatus::Running, Some(&task));
        let fired = fire(store, &ScheduleFiring { runs: vec![planned], ..firing(&row, &task) }).await;
        assert!(matches!(fired, FiredSchedule::Fired { has_work: true, .. }), "{fired:?}");
        let ended = end(store, &bot, &task, status).await;
        assert_eq!(ended.wakes.last().map(|wake| &wake.key), Some(&wake(&schedule).key));
        let row = read(store, &schedule).await;
        assert_eq!((row.failures, row.last_status.unwrap().as_str()), (failures, status.as_str()));
        let paused = store.paused_schedules(bot.workspace_id, 10).await.unwrap();
        assert_eq!(paused.len(), usize::from(row.is_paused()));
        assert_eq!(store.running_schedule(schedule.id, 10).await.unwrap().started, 0);
        // The end has requested a turn of the schedule.
        let due = store.due_wakes(60_000, None, 100, SystemClock.now()).await.unwrap().0;
        assert!(due.iter().any(|due| due.key == wake(&schedule).key), "{due:?}");
    }
    let foreign = other_workspace(store).await;
    assert_eq!(store.paused_schedules(foreign, 10).await.unwrap(), []);
    assert_eq!(store.forget_schedule_runs(NOW).await.unwrap(), 0);
    assert_eq!(store.forget_schedule_runs(NOW.plus_ms(1)).await.unwrap(), 8);
}

pub(crate) async fn a_firing_waits_starts_or_fails(store: &Store) {
    let bot = bot(store, "one").await;
    let schedule = schedule(&bot, "hourly");
    inserted(store, &schedule).await;
    let queued = run(NOW, ScheduleRunStatus::Queued, None);
    let waits = ScheduleFiring {
        schedule: &schedule,
        next_at: schedule.next_at,
        wake_at: Some(LATER),
        runs: vec![queued.clone()],
        work: None,
    };
    fire(store, &waits).await;
    assert_eq!(store.running_schedule(schedule.id, 10).await.unwrap().queued, std::slice::from_ref(&queued));
    let task = task(&bot);
    let full = store
        .fire_schedule(
            &claim(store, &wake(&schedule).key).await,
            &firing(&schedule, &task),
            TasksMax { of_workspace: 0, of_tree: None },
        )
        .await
        .unwrap();
    assert_eq!(full, FiredSchedule::Full);
    assert_eq!(store.running_schedule(schedule.id, 10).await.unwrap().queued, [queued], "nothing was written");
}

pub(crate) async fn a_person_fires_beside_the_planned_times(store: &Store) {
    let bot = bot(store, "one").await;
    let schedule = schedule(&bot, "hourly");
    inserted(store, &schedule).await;
    let task = task(&bot);
    let manual = ScheduleRun { is_manual: true, ..run(NOW.plus_ms(5), ScheduleRunStatus::Running, Some(&task)) };
    let fired = store.fire_schedule_now(&schedule, &manual, &task.0, TASKS_MAX).await.unwrap();
    assert!(matches!(fired, FiredSchedule::Fired { has_work: true, .. }));
    let row = read(store, &schedule).await;
    assert_eq!((row.next_at, row.last_task_id), (schedule.next_at, Some(task.row.id)));
    end(store, &bot, &task, TaskStatus::Failed).await;
    let row = read(store, &schedule).await;
    assert_eq!((row.failures, row.last_status), (0, Some(ScheduleRunStatus::Failed)));
    let old = ScheduleRow { updated_at: NOW.plus_ms(9), ..schedule };
    let changed = store.fire_schedule_now(&old, &manual, &task.0, TASKS_MAX).await.unwrap();
    assert_eq!(changed, FiredSchedule::Changed);
}

/// A turn of the schedule has run between the read and the write of the change.
pub(crate) async fn a_change_keeps_what_firings_have_written(store: &Store) {
    let bot = bot(store, "one").await;
    let read_before = schedule(&bot, "hourly");
    inserted(store, &read_before).await;
    let failed = run(NOW, ScheduleRunStatus::Failed, None);
    let firing = ScheduleFiring {
        schedule: &read_before,
        next_at: Some(LATER),
        wake_at: Some(LATER),
        runs: vec![failed],
        work: None,
    };
    fire(store, &firing).await;
    let renamed = ScheduleRow { name: "z".to_owned(), updated_at: NOW.plus_ms(1), ..read_before };
    let after = update(store, &renamed, NOW, None).await.unwrap();
    assert_eq!((after.name.as_str(), after.next_at, after.failures), ("z", Some(LATER), 1));
    let resumed = ScheduleRow { updated_at: NOW.plus_ms(2), ..renamed };
    let after = update(store, &resumed, NOW.plus_ms(1), Some(NOW.plus_ms(9))).await.unwrap();
    assert_eq!((after.next_at, after.failures), (Some(NOW.plus_ms(9)), 0));
}

/// A schedule that another program writes, edits or restores is not read or makes its workspace unverified.
pub(crate) async fn an_edited_or_restored_schedule_is_rejected(store: &Store, intruder: &mut impl Intruder) {
    let bot = bot(store, "one").await;
    let row = schedule(&bot, "hourly");
    inserted(store, &row).await;
    store.snapshot().await.unwrap();
    assert!(store.is_verified_schedule(&row).unwrap());
    let forged = ScheduleId::new();
    intruder
        .run(format!(
            "insert into schedules (id, workspace_id, bot_id, name, next_at, failures, created_at, updated_at, sealed, mac) \
             select '{forged}', workspace_id, bot_id, 'copy', 0, 0, created_at, updated_at, sealed, mac from schedules"
        ))
        .await;
    assert_eq!(store.schedule(row.workspace_id, forged).await.unwrap(), None);
    assert!(store.stored_schedule(row.workspace_id, forged).await.unwrap().is_some());
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((refused(&snapshot), unverified(&snapshot)), (vec![format!("schedules/{forged}")], Vec::new()));
    assert!(store.delete_schedule(row.workspace_id, forged, NOW).await.unwrap(), "a forged row can be deleted");
    // Firings change these columns.
    intruder.run("update schedules set next_at = 1, failures = 3, last_status = 'failed'".to_owned()).await;
    assert_eq!(problems(store).await, Vec::<String>::new());
    assert!(store.is_verified_schedule(&read(store, &row).await).unwrap());

    intruder.run("create table old_schedules as select * from schedules".to_owned()).await;
    for edit in ["name = 'z'", "created_at = 1", "updated_at = 1", "mac = null"] {
        intruder.run(format!("update schedules set {edit}")).await;
        assert_eq!(store.schedule(row.workspace_id, row.id).await.unwrap(), None, "{edit}");
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!(refused(&snapshot), [format!("schedules/{}", row.id)], "{edit}");
        assert_eq!(unverified(&snapshot).len(), 1, "{edit}");
        restored(store, intruder).await;
    }
    let changed = ScheduleRow { name: "z".to_owned(), updated_at: NOW.plus_ms(1), ..row.clone() };
    assert!(update(store, &changed, NOW, None).await.is_some());
    store.snapshot().await.unwrap();
    for (what, is_deleted) in [("an older version", false), ("a deleted schedule", true)] {
        if is_deleted {
            assert!(store.delete_schedule(row.workspace_id, row.id, NOW.plus_ms(1)).await.unwrap());
            store.snapshot().await.unwrap();
        }
        intruder.run("create table new_schedules as select * from schedules".to_owned()).await;
        restored(store, intruder).await;
        let found = read(store, &row).await;
        assert_eq!(found.name, "hourly", "the MAC of {what} is valid");
        assert!(!store.is_verified_schedule(&found).unwrap(), "{what}");
        assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "{what}");
        intruder.run("delete from schedules".to_owned()).await;
        intruder.run("insert into schedules select * from new_schedules".to_owned()).await;
        intruder.run("drop table new_schedules".to_owned()).await;
        assert_eq!(problems(store).await, Vec::<String>::new(), "{what}");
        store.snapshot().await.unwrap();
    }
    intruder.run("drop table old_schedules".to_owned()).await;
}

/// Puts the kept rows back.
async fn restored(store: &Store, intruder: &mut impl Intruder) {
    intruder.run("delete from schedules".to_owned()).await;
    intruder.run("insert into schedules select * from old_schedules".to_owned()).await;
    store.verify_rows().await.unwrap();
}
