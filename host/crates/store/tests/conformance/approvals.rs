//! Tests of approvals and their grants: each step succeeds only once, and rows that another program restores permit
//! nothing.

use monstrum_store::{
    ApprovalDecision, ApprovalFilter, ApprovalKind, ApprovalRow, ApprovalStatus, AskedApproval, BotRow, Page,
    PendingMax, Scope, Store, UsedApproval,
};
use monstrum_types::{ApprovalId, Digest, KeyId, RequestId, ResourceId, UtcMillis, WorkspaceId};
use serde_json::json;

use crate::authentic::Intruder;
use crate::deliveries;
use crate::rows::{self, NOW, default_workspace, other_workspace};

const MAX: PendingMax = PendingMax { of_bot: 100, of_workspace: 1_000 };
const LATER: UtcMillis = UtcMillis(NOW.0 + 5);
const EXPIRED: UtcMillis = UtcMillis(NOW.0 + 60_000);

fn digest(number: u32) -> Digest {
    format!("sha256:{number:064x}").parse().unwrap()
}

pub(crate) fn approval(bot: &BotRow, number: u32) -> ApprovalRow {
    ApprovalRow {
        id: ApprovalId::new(),
        workspace_id: bot.workspace_id,
        kind: ApprovalKind::Call,
        digest: digest(number),
        definition: digest(0),
        status: ApprovalStatus::Pending,
        bot_id: bot.id,
        app_id: Some("app".to_owned()),
        user_id: None,
        tool: Some("tool".to_owned()),
        resource_id: Some(ResourceId::new()),
        operation: Some("op.write".to_owned()),
        effect: Some("write".to_owned()),
        links: json!([]),
        labels: json!([]),
        gates: json!([{ "holder": "bot", "reason": null }]),
        approvers: json!(["admin"]),
        allow_starter: false,
        asked_key: Some(KeyId::new()),
        asked_task: None,
        request_id: None,
        created_at: NOW,
        expires_at: EXPIRED,
        decided_by: None,
        decided_at: None,
        note: None,
        ended_at: None,
        changed_at: NOW,
        run_id: None,
        run_step: None,
        item: None,
        targets: None,
        starters: None,
    }
}

async fn bot(store: &Store, workspace: WorkspaceId, name: &str) -> BotRow {
    let bot = rows::bot(workspace, name);
    store.insert_bot(&bot).await.unwrap();
    bot
}

pub(crate) async fn asked(store: &Store, row: &ApprovalRow) -> ApprovalRow {
    match store.ask_approval(row, "sealed", None, MAX).await.unwrap() {
        AskedApproval::New(row) => row,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn decided(store: &Store, row: &ApprovalRow, decision: ApprovalDecision) -> Option<ApprovalRow> {
    let decided = store.decide_approval(row, decision, KeyId::new(), Some("note"), LATER).await.unwrap();
    decided.map(|(row, _)| row)
}

async fn approved(store: &Store, row: &ApprovalRow) -> ApprovalRow {
    decided(store, row, ApprovalDecision::Approve).await.expect("the approval is pending")
}

async fn generation(store: &Store, workspace: WorkspaceId) -> i64 {
    store.snapshot().await.unwrap().scope_generations[&Scope::Workspace(workspace)]
}

async fn used(store: &Store, row: &ApprovalRow, generation: i64, now: UtcMillis) -> UsedApproval {
    let call = (row.id, &row.digest);
    store.use_approval(row.workspace_id, call, RequestId::new(), generation, now).await.unwrap()
}

async fn status(store: &Store, row: &ApprovalRow) -> ApprovalStatus {
    store.approval(row.workspace_id, row.id).await.unwrap().unwrap().status
}

async fn grants(store: &Store) -> Vec<ApprovalId> {
    store.snapshot().await.unwrap().grants.into_iter().map(|grant| grant.id).collect()
}

pub(crate) async fn an_approval_is_asked_for_decided_and_used_once(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let policy = store.generation().await.unwrap();
    let row = asked(store, &approval(&bot, 1)).await;
    assert_eq!(store.approval(workspace, row.id).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.approval_params(workspace, row.id).await.unwrap().as_deref(), Some("sealed"));
    assert_eq!(
        store.ask_approval(&approval(&bot, 1), "x", None, MAX).await.unwrap(),
        AskedApproval::Known(row.clone())
    );
    assert_eq!(store.approval_of_call(workspace, &row.digest, NOW).await.unwrap().as_ref(), Some(&row));
    assert_eq!(store.approval_of_call(workspace, &row.digest, EXPIRED).await.unwrap(), None);
    assert_eq!(store.generation().await.unwrap(), policy, "a request changes no permissions");

    let before = generation(store, workspace).await;
    assert_eq!(used(store, &row, before, LATER).await, UsedApproval::Lost, "the approval is pending");
    let granted = approved(store, &row).await;
    assert_eq!((granted.status, granted.note.as_deref()), (ApprovalStatus::Approved, Some("note")));
    assert!(granted.changed_at > row.changed_at);
    assert_eq!(decided(store, &row, ApprovalDecision::Deny).await, None, "the approval is decided");
    assert_eq!(grants(store).await, [row.id]);
    assert_eq!(store.generation().await.unwrap(), policy + 1, "an approval changes the permissions");

    assert_eq!(used(store, &row, before, LATER).await, UsedApproval::Behind);
    let now = generation(store, workspace).await;
    let other = ApprovalRow { digest: digest(2), ..row.clone() };
    assert_eq!(used(store, &other, now, LATER).await, UsedApproval::Lost, "the approval is of another call");
    assert_eq!(used(store, &row, now, EXPIRED).await, UsedApproval::Lost, "the approval has expired");
    assert_eq!(used(store, &row, now, LATER).await, UsedApproval::Used);
    assert_eq!(used(store, &row, now, LATER).await, UsedApproval::Behind);
    assert_eq!(used(store, &row, now + 1, LATER).await, UsedApproval::Lost);
    assert!(grants(store).await.is_empty());
    let row = store.approval(workspace, row.id).await.unwrap().unwrap();
    assert!(row.status == ApprovalStatus::Used && row.request_id.is_some() && row.ended_at == Some(LATER));

    asked(store, &approval(&bot, 1)).await;
    assert_eq!(store.purge_approval_params(LATER.plus_ms(1)).await.unwrap(), 1);
    assert_eq!(store.approval_params(workspace, row.id).await.unwrap(), None);
    assert_eq!(store.small_approval_params(workspace, row.id).await.unwrap(), None);
    assert_eq!(store.purge_approvals(LATER).await.unwrap(), 0);
    assert_eq!(store.purge_approvals(LATER.plus_ms(1)).await.unwrap(), 1);
    assert_eq!(store.approval(workspace, row.id).await.unwrap(), None);
}

/// The event is written with an approval that is new, and only with that.
pub(crate) async fn a_new_approval_is_reported(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let (first, second) = (deliveries::event(workspace, None), deliveries::event(workspace, None));
    let new = store.ask_approval(&approval(&bot, 1), "x", Some(&first), MAX).await.unwrap();
    assert!(matches!(new, AskedApproval::New(_)), "{new:?}");
    let known = store.ask_approval(&approval(&bot, 1), "x", Some(&second), MAX).await.unwrap();
    assert!(matches!(known, AskedApproval::Known(_)), "{known:?}");
    assert!(store.event(workspace, first.id).await.unwrap().is_some());
    assert_eq!(store.event(workspace, second.id).await.unwrap(), None);
}

pub(crate) async fn large_parameters_are_not_read_for_a_list(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let foreign = other_workspace(store).await;
    for (number, bytes, is_read) in [(1, 8192, true), (2, 8193, false)] {
        let (row, sealed) = (approval(&bot, number), "x".repeat(bytes));
        assert!(matches!(store.ask_approval(&row, &sealed, None, MAX).await.unwrap(), AskedApproval::New(_)));
        let expected = if is_read { sealed.as_str() } else { "" };
        let small = store.small_approval_params(workspace, row.id).await.unwrap();
        assert_eq!(small.as_deref(), Some(expected), "{bytes} bytes");
        assert_eq!(store.approval_params(workspace, row.id).await.unwrap(), Some(sealed));
        assert_eq!(store.small_approval_params(foreign, row.id).await.unwrap(), None);
    }
}

pub(crate) async fn of_concurrent_uses_of_an_approval_one_succeeds(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let asks: Vec<ApprovalRow> = (0..8).map(|_| approval(&bot, 1)).collect();
    let asks = futures::future::join_all(asks.iter().map(|row| store.ask_approval(row, "sealed", None, MAX))).await;
    let new = asks.iter().filter(|asked| matches!(asked, Ok(AskedApproval::New(_)))).count();
    assert_eq!(new, 1, "{asks:?}");
    let row = store.approval_of_call(workspace, &digest(1), NOW).await.unwrap().unwrap();
    approved(store, &row).await;
    let generation = generation(store, workspace).await;
    let uses = futures::future::join_all((0..8).map(|_| used(store, &row, generation, LATER))).await;
    assert_eq!(uses.iter().filter(|used| **used == UsedApproval::Used).count(), 1, "{uses:?}");
    assert!(!uses.contains(&UsedApproval::Lost), "{uses:?}");
}

pub(crate) async fn denied_void_and_expired_approvals_permit_nothing(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let denied = asked(store, &approval(&bot, 1)).await;
    let denied = decided(store, &denied, ApprovalDecision::Deny).await.unwrap();
    assert_eq!(
        store.ask_approval(&approval(&bot, 1), "x", None, MAX).await.unwrap(),
        AskedApproval::Known(denied.clone())
    );
    let late = ApprovalRow { created_at: EXPIRED, ..approval(&bot, 1) };
    assert!(
        matches!(store.ask_approval(&late, "x", None, MAX).await.unwrap(), AskedApproval::New(_)),
        "no longer denied"
    );

    let void = asked(store, &approval(&bot, 2)).await;
    decided(store, &void, ApprovalDecision::Void).await.unwrap();
    asked(store, &approval(&bot, 2)).await;

    let expiring = asked(store, &approval(&bot, 3)).await;
    let expiring = approved(store, &expiring).await;
    assert_eq!(store.expire_approval(&expiring, LATER).await.unwrap(), None, "the approval has not expired");
    let asks = ApprovalRow { created_at: EXPIRED, ..approval(&bot, 3) };
    assert_eq!(store.ask_approval(&asks, "x", None, MAX).await.unwrap(), AskedApproval::Due(expiring.clone()));
    let due = store.due_approvals(EXPIRED, 10).await.unwrap();
    assert!(due.contains(&expiring), "{due:?}");
    assert_eq!(store.expired_grants(EXPIRED, 10).await.unwrap().len(), 1);
    assert_eq!(store.expire_approval(&expiring, EXPIRED).await.unwrap(), Some(Vec::new()));
    assert_eq!(store.expire_approval(&expiring, EXPIRED).await.unwrap(), None);
    assert!(grants(store).await.is_empty());
    assert_eq!(status(store, &expiring).await, ApprovalStatus::Expired);
    let late = store.decide_approval(&late, ApprovalDecision::Approve, KeyId::new(), None, EXPIRED.plus_ms(60_000));
    assert_eq!(late.await.unwrap(), None);
}

pub(crate) async fn pending_approvals_are_limited(store: &Store) {
    let workspace = default_workspace(store).await;
    let (one, two) = (bot(store, workspace, "one").await, bot(store, workspace, "two").await);
    let max = PendingMax { of_bot: 2, of_workspace: 3 };
    let ask =
        async |bot: &BotRow, number: u32| store.ask_approval(&approval(bot, number), "x", None, max).await.unwrap();
    assert!(matches!(ask(&one, 1).await, AskedApproval::New(_)));
    assert!(matches!(ask(&one, 2).await, AskedApproval::New(_)));
    assert_eq!(ask(&one, 3).await, AskedApproval::Full);
    assert!(matches!(ask(&one, 2).await, AskedApproval::Known(_)));
    assert!(matches!(ask(&two, 4).await, AskedApproval::New(_)));
    assert_eq!(ask(&two, 5).await, AskedApproval::Full);
    let first = store.approval_of_call(workspace, &digest(1), NOW).await.unwrap().unwrap();
    decided(store, &first, ApprovalDecision::Deny).await.unwrap();
    assert!(matches!(ask(&two, 5).await, AskedApproval::New(_)));
    let late = ApprovalRow { created_at: EXPIRED, ..approval(&one, 6) };
    assert!(matches!(store.ask_approval(&late, "x", None, max).await.unwrap(), AskedApproval::New(_)), "expired ones");
}

pub(crate) async fn approvals_are_listed_by_id_and_by_change(store: &Store) {
    let (ours, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let (bot_of_ours, of_theirs) = (bot(store, ours, "b").await, bot(store, theirs, "b").await);
    let first = asked(store, &approval(&bot_of_ours, 1)).await;
    let second = asked(store, &approval(&bot_of_ours, 2)).await;
    asked(store, &approval(&of_theirs, 3)).await;
    assert!(second.changed_at > first.changed_at, "each change has a later time");
    let all = ApprovalFilter::default();
    let page = Page::first(1);
    let listed = store.approvals(ours, all, &page).await.unwrap();
    assert_eq!((listed.items, listed.next_cursor), (vec![first.clone()], Some(first.id)));
    let first = decided(store, &first, ApprovalDecision::Deny).await.unwrap();
    let changed = store.approvals_changed(ours, all, UtcMillis(0), 10).await.unwrap();
    assert_eq!(changed, [second.clone(), first.clone()]);
    let changed = store.approvals_changed(ours, all, second.changed_at, 10).await.unwrap();
    assert_eq!(changed, std::slice::from_ref(&first));
    assert_eq!(store.last_approval_change(ours).await.unwrap(), first.changed_at);
    let denied = ApprovalFilter { status: Some(ApprovalStatus::Denied), ..all };
    assert_eq!(store.approvals(ours, denied, &Page::first(9)).await.unwrap().items, [first]);
    let of_other = ApprovalFilter { bot: Some(of_theirs.id), kind: Some(ApprovalKind::Call), ..all };
    assert_eq!(store.approvals(ours, of_other, &Page::first(9)).await.unwrap().items, []);
    assert_eq!(store.approval(theirs, second.id).await.unwrap(), None);
    assert_eq!(store.approval_params(theirs, second.id).await.unwrap(), None);
}

pub(crate) async fn grants_are_read_as_changes_and_deleted_with_their_bot(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let row = asked(store, &approval(&bot, 1)).await;
    let before = store.snapshot().await.unwrap().verified;
    approved(store, &row).await;
    let (changes, after) = store.changes_since(&before).await.unwrap().expect("the changes match the seals");
    let granted: Vec<_> = changes.grants.keys().copied().collect();
    assert_eq!(granted, [row.id]);
    assert_eq!(changes.grants[&row.id].as_ref().map(|grant| &grant.digest), Some(&row.digest));
    assert_eq!(used(store, &row, generation(store, workspace).await, LATER).await, UsedApproval::Used);
    let (changes, after) = store.changes_since(&after).await.unwrap().expect("the changes match the seals");
    assert_eq!(changes.grants.into_iter().collect::<Vec<_>>(), [(row.id, None)]);

    let again = asked(store, &approval(&bot, 1)).await;
    approved(store, &again).await;
    assert!(store.delete_bot(workspace, bot.id).await.unwrap());
    assert_eq!(store.approval(workspace, again.id).await.unwrap(), None);
    let snapshot = store.snapshot().await.unwrap();
    assert!(snapshot.grants.is_empty() && snapshot.unverified.is_empty());
    assert!(store.changes_since(&after).await.unwrap().is_some());
}

/// A used approval that another program sets back permits nothing, in any combination of its rows.
pub(crate) async fn a_restored_approval_permits_nothing(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let row = asked(store, &approval(&bot, 1)).await;
    approved(store, &row).await;
    for table in ["approvals", "approval_grants"] {
        intruder.run(format!("create table kept_{table} as select * from {table}")).await;
    }
    let now = generation(store, workspace).await;
    assert_eq!(used(store, &row, now, LATER).await, UsedApproval::Used);
    let now = now + 1;

    intruder.run(format!("update approvals set status = 'approved' where id = '{}'", row.id)).await;
    assert_eq!(store.approval(workspace, row.id).await.unwrap(), None, "the MAC covers the status");
    assert_eq!(used(store, &row, now, LATER).await, UsedApproval::Lost);

    intruder.run("delete from approvals".to_owned()).await;
    intruder.run("insert into approvals select * from kept_approvals".to_owned()).await;
    assert_eq!(status(store, &row).await, ApprovalStatus::Approved, "an older row has a valid MAC");
    assert_eq!(used(store, &row, now, LATER).await, UsedApproval::Lost, "the row has no grant");
    assert!(grants(store).await.is_empty());

    intruder.run("insert into approval_grants select * from kept_approval_grants".to_owned()).await;
    let snapshot = store.snapshot().await.unwrap();
    assert!(snapshot.grants.is_empty(), "the scope is unverified");
    assert_eq!(snapshot.unverified.len(), 1);
    let call = (row.id, &row.digest);
    let refused = store.use_approval(workspace, call, RequestId::new(), now, LATER).await;
    assert!(matches!(refused, Err(monstrum_store::StoreError::Unverified { .. })), "{refused:?}");
    for table in ["approvals", "approval_grants"] {
        intruder.run(format!("drop table kept_{table}")).await;
    }
}

/// A grant that another program writes is not read.
pub(crate) async fn a_forged_grant_is_ignored(store: &Store, intruder: &mut impl Intruder) {
    let workspace = default_workspace(store).await;
    let bot = bot(store, workspace, "b").await;
    let (granted, wanted) = (asked(store, &approval(&bot, 1)).await, asked(store, &approval(&bot, 2)).await);
    approved(store, &granted).await;
    intruder
        .run(format!(
            "insert into approval_grants (id, workspace_id, digest, expires_at, mac) \
             select '{}', workspace_id, '{}', expires_at, mac from approval_grants",
            wanted.id, wanted.digest
        ))
        .await;
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.grants.iter().map(|grant| grant.id).collect::<Vec<_>>(), [granted.id]);
    assert_eq!(snapshot.refused.len(), 1);
    let now = snapshot.scope_generations[&Scope::Workspace(workspace)];
    assert_eq!(used(store, &wanted, now, LATER).await, UsedApproval::Lost);
    assert_eq!(status(store, &wanted).await, ApprovalStatus::Pending);
}
