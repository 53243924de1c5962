//! The order in which the transactions of tasks and schedules lock rows.

use monstrum_store::{Page, ScheduleRow, TaskStatus};
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::{Database, run};
use crate::rows::NOW;
use crate::schedules;

/// Records each update and deletion of a row, which locks the row.
const TRIGGERS: &str = "
create table seen (number bigint generated always as identity, name text);
create function see() returns trigger language plpgsql as $$ begin
insert into seen (name) values (tg_table_name); if tg_op = 'DELETE' then return old; end if; return new; end; $$;
create function see_wake() returns trigger language plpgsql as $$ begin
insert into seen (name) values ('wake of ' || split_part(old.key, '/', 1));
if tg_op = 'DELETE' then return old; end if; return new; end; $$;
create trigger see before update or delete on wakes for each row execute function see_wake();
create trigger see before update or delete on policy_seals for each row execute function see();
create trigger see before update or delete on sessions for each row execute function see();
create trigger see before update or delete on tasks for each row execute function see();
create trigger see before update or delete on schedules for each row execute function see();
create trigger see before update or delete on schedule_runs for each row execute function see();
";

const ORDER: [&str; 7] =
    ["policy_seals", "wake of schedule", "wake of task", "sessions", "tasks", "schedules", "schedule_runs"];

/// Returns the first lock of each kind of row since the last call.
async fn locked(intruder: &mut PgConnection) -> Vec<String> {
    let rows = sqlx::query("select name from seen group by name order by min(number)").fetch_all(&mut *intruder).await;
    let names = rows.unwrap().iter().map(|row| row.get("name")).collect();
    run(intruder, "delete from seen").await;
    names
}

#[tokio::test]
async fn transactions_of_tasks_lock_rows_in_one_order() {
    let database = Database::create();
    let store = database.open().await.unwrap();
    let mut intruder = database.intruder().await;
    let bot = schedules::bot(&store, "one").await;
    let schedule = schedules::schedule(&bot, "hourly");
    schedules::inserted(&store, &schedule).await;
    run(&mut intruder, TRIGGERS).await;
    let mut check = async |what: &str, expected: &[&str]| {
        let found = locked(&mut intruder).await;
        assert_eq!(found, expected, "{what}");
        let places: Vec<_> = found.iter().map(|name| ORDER.iter().position(|known| known == name)).collect();
        assert!(places.is_sorted(), "{what}: {found:?}");
    };
    let task = schedules::task(&bot);
    schedules::fire(&store, &schedules::firing(&schedule, &task)).await;
    check("a firing", &["wake of schedule", "schedules"]).await;
    let claim = schedules::claim(&store, &task.wake.key).await;
    check("a claim", &["wake of task"]).await;
    schedules::end_by(&store, &claim, &bot, (&task, TaskStatus::Failed)).await;
    check("the end of a task", &ORDER[1..]).await;
    let found = store.schedules(bot.workspace_id, None, &Page::first(1)).await.unwrap().items.remove(0);
    let renamed = ScheduleRow { name: "z".to_owned(), updated_at: NOW.plus_ms(1), ..found };
    assert!(schedules::update(&store, &renamed, NOW, None).await.is_some());
    check("a change", &["policy_seals", "wake of schedule", "schedules"]).await;
}
