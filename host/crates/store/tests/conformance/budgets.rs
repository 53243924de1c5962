//! Tests of budgets.

use monstrum_store::{BotRow, BudgetRow, BudgetSubject, BudgetWrite, Page, Store, StoreError};
use monstrum_types::{AppUser, BudgetId, WorkspaceId};

use crate::authentic::{Intruder, refused, unverified};
use crate::rows::{self, NOW, default_workspace, other_workspace};

fn budget(workspace: WorkspaceId, subject: BudgetSubject, holder: &str) -> BudgetRow {
    BudgetRow {
        id: BudgetId::new(),
        workspace_id: workspace,
        subject,
        holder: holder.to_owned(),
        monthly_tokens: Some(1_000),
        monthly_credits_millionths: None,
        created_at: NOW,
        updated_at: NOW,
    }
}

async fn write(store: &Store, before: Option<&BudgetRow>, after: Option<&BudgetRow>) -> Result<(), StoreError> {
    let workspace = before.or(after).unwrap().workspace_id;
    store.write_budget(workspace, &BudgetWrite { before, after, bot: None }).await
}

pub(crate) async fn budgets_are_written_read_as_changes_and_deleted(store: &Store) {
    let workspace = default_workspace(store).await;
    let user = AppUser { app_id: "a/b".to_owned(), user_id: "c".to_owned() };
    let of_workspace = budget(workspace, BudgetSubject::Workspace, "");
    let of_user = budget(workspace, BudgetSubject::User, &user.key());
    let before = store.snapshot().await.unwrap().verified;
    write(store, None, Some(&of_workspace)).await.unwrap();
    write(store, None, Some(&of_user)).await.unwrap();
    let (changes, verified) = store.changes_since(&before).await.unwrap().unwrap();
    let changed: Vec<_> = changes.budgets.into_values().flatten().collect();
    assert_eq!(changed, [of_workspace.clone(), of_user.clone()]);
    let found = store.budget(workspace, BudgetSubject::User, &user.key()).await.unwrap().unwrap();
    assert_eq!((found.user(), &found), (Some(user), &of_user));
    let again = BudgetRow { id: BudgetId::new(), ..of_workspace.clone() };
    let conflict = write(store, None, Some(&again)).await;
    assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");

    let raised = BudgetRow { monthly_tokens: None, monthly_credits_millionths: Some(5), ..of_workspace.clone() };
    write(store, Some(&of_workspace), Some(&raised)).await.unwrap();
    let late = write(store, Some(&of_workspace), Some(&again)).await;
    assert!(matches!(late, Err(StoreError::ChangedMeanwhile)), "{late:?}");
    assert_eq!(store.budget(workspace, BudgetSubject::Workspace, "").await.unwrap(), Some(raised.clone()));
    let late = write(store, Some(&of_workspace), None).await;
    assert!(matches!(late, Err(StoreError::ChangedMeanwhile)), "{late:?}");
    write(store, Some(&raised), None).await.unwrap();
    let (changes, _) = store.changes_since(&verified).await.unwrap().unwrap();
    assert_eq!(changes.budgets.get(&raised.id), Some(&None));
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((unverified(&snapshot), snapshot.budgets), (Vec::new(), vec![of_user]));
}

pub(crate) async fn the_budget_of_a_bot_is_written_with_its_row_and_deleted_with_it(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = rows::bot(workspace, "bot");
    store.insert_bot(&bot).await.unwrap();
    let row = BudgetRow {
        monthly_tokens: None,
        monthly_credits_millionths: Some(7),
        ..budget(workspace, BudgetSubject::Bot, &bot.id.to_string())
    };
    let changed = BotRow { monthly_token_budget: Some(5), updated_at: NOW.plus_ms(1), ..bot.clone() };
    // A bot that has changed meanwhile leaves the budget unchanged.
    let stale = BudgetWrite { before: None, after: Some(&row), bot: Some((&changed, NOW.plus_ms(9))) };
    let late = store.write_budget(workspace, &stale).await;
    assert!(matches!(late, Err(StoreError::ChangedMeanwhile)), "{late:?}");
    assert_eq!(store.budget(workspace, BudgetSubject::Bot, &row.holder).await.unwrap(), None);

    let both = BudgetWrite { before: None, after: Some(&row), bot: Some((&changed, NOW)) };
    store.write_budget(workspace, &both).await.unwrap();
    assert_eq!(store.bot(workspace, bot.id).await.unwrap(), Some(changed));
    assert_eq!(store.budget(workspace, BudgetSubject::Bot, &row.holder).await.unwrap().unwrap().bot(), Some(bot.id));
    assert!(store.delete_bot(workspace, bot.id).await.unwrap());
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!((unverified(&snapshot), snapshot.budgets), (Vec::new(), Vec::new()));
}

pub(crate) async fn budgets_belong_to_their_workspace(store: &Store) {
    let (theirs, ours) = (default_workspace(store).await, other_workspace(store).await);
    let row = budget(theirs, BudgetSubject::EachUser, "");
    write(store, None, Some(&row)).await.unwrap();
    assert_eq!(store.budget(ours, BudgetSubject::EachUser, "").await.unwrap(), None);
    assert!(store.budgets(ours, &Page::first(9)).await.unwrap().items.is_empty());
    let stolen = BudgetRow { workspace_id: ours, ..row.clone() };
    let changed = BudgetWrite { before: Some(&row), after: Some(&stolen), bot: None };
    assert!(store.write_budget(ours, &changed).await.is_err());
    let deleted = BudgetWrite { before: Some(&row), after: None, bot: None };
    assert!(store.write_budget(ours, &deleted).await.is_err());
    assert_eq!(store.budgets(theirs, &Page::first(9)).await.unwrap().items, [row]);
    // The other workspace can be deleted together with its budgets.
    write(store, None, Some(&budget(ours, BudgetSubject::Workspace, ""))).await.unwrap();
    assert!(store.delete_workspace(ours).await.unwrap());
    assert_eq!(store.snapshot().await.unwrap().budgets.len(), 1);
}

/// A budget that another program writes limits nothing, and a deleted or older budget stops its workspace.
pub(crate) async fn an_edited_or_restored_budget_is_rejected(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let row = budget(workspace, BudgetSubject::Workspace, "");
    write(store, None, Some(&row)).await.unwrap();
    intruder.run("create table old_budgets as select * from budgets".to_owned()).await;
    for edit in ["monthly_tokens = 2000", "monthly_tokens = null", "subject = 'each_user'", "holder = 'x'"] {
        intruder.run(format!("update budgets set {edit}")).await;
        let snapshot = store.snapshot().await.unwrap();
        assert!(snapshot.budgets.is_empty(), "{edit}");
        assert_eq!(refused(&snapshot), [format!("budgets/{}", row.id)], "{edit}");
        assert_eq!(unverified(&snapshot).len(), 1, "no call runs in the workspace: {edit}");
        intruder.run("delete from budgets".to_owned()).await;
        intruder.run("insert into budgets select * from old_budgets".to_owned()).await;
    }
    let lowered = BudgetRow { monthly_tokens: Some(1), ..row.clone() };
    assert_eq!(unverified(&store.snapshot().await.unwrap()), Vec::<String>::new());
    write(store, Some(&row), Some(&lowered)).await.unwrap();
    intruder.run("delete from budgets".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "a deleted budget");
    intruder.run("insert into budgets select * from old_budgets".to_owned()).await;
    assert_eq!(unverified(&store.snapshot().await.unwrap()).len(), 1, "an older budget");
    intruder.run("drop table old_budgets".to_owned()).await;
}
