//! Tests of the recorded commands of sandboxes: their order, their limits, and the end of their sandbox.

use monstrum_store::{Page, SandboxOutputRow, SandboxOutputsMax, SandboxRow, SandboxStatus, SealedColumn, Store};
use monstrum_types::{RequestId, SandboxInstanceId};

use crate::rows::{self, NOW, default_workspace, other_workspace};
use crate::sandboxes::sandbox;

const MAX: SandboxOutputsMax = SandboxOutputsMax { records: 3, bytes: 100 };

async fn planted(store: &Store, chat: &str) -> SandboxRow {
    let workspace = default_workspace(store).await;
    let bot = rows::bot(workspace, chat);
    store.insert_bot(&bot).await.unwrap();
    let row = sandbox(&bot, chat);
    assert!(store.insert_sandbox(&row).await.unwrap());
    row
}

fn output(of: &SandboxRow, sealed: &str) -> SandboxOutputRow {
    SandboxOutputRow {
        request_id: RequestId::new(),
        workspace_id: of.workspace_id,
        sandbox_id: of.id,
        sealed: sealed.to_owned(),
    }
}

async fn put(store: &Store, row: SandboxOutputRow) -> SandboxOutputRow {
    assert!(store.put_sandbox_output(&row, MAX).await.unwrap());
    row
}

async fn all(store: &Store, of: &SandboxRow) -> Vec<SandboxOutputRow> {
    store.sandbox_outputs(of.workspace_id, of.id, &Page::first(100)).await.unwrap().items
}

pub(crate) async fn outputs_are_listed_from_the_newest(store: &Store) {
    let (one, two) = (planted(store, "one").await, planted(store, "two").await);
    let first = put(store, output(&one, "first")).await;
    let second = put(store, output(&one, "second")).await;
    let third = put(store, output(&one, "third")).await;
    let theirs = put(store, output(&two, "theirs")).await;
    assert_eq!(all(store, &one).await, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(all(store, &two).await, [theirs]);
    let page = store.sandbox_outputs(one.workspace_id, one.id, &Page::first(2)).await.unwrap();
    assert_eq!((page.items, page.next_cursor), (vec![third.clone(), second.clone()], Some(second.request_id)));
    let rest = Page { limit: 2, cursor: page.next_cursor };
    let rest = store.sandbox_outputs(one.workspace_id, one.id, &rest).await.unwrap();
    assert_eq!((rest.items, rest.next_cursor), (vec![first], None));
    // The record of a command that has ended replaces the earlier record.
    let ended = put(store, SandboxOutputRow { sealed: "ended".to_owned(), ..third }).await;
    assert_eq!(all(store, &one).await[0], ended);
    let page = store.sealed_records(SealedColumn::SandboxOutputs, None, 100).await.unwrap();
    assert_eq!(page.records.len(), 4);
    let bound = [one.workspace_id.to_string(), one.id.to_string()];
    assert!(page.records.iter().any(|record| record.key == [ended.request_id.to_string()]
        && record.bound == bound
        && record.sealed == "ended"));
}

pub(crate) async fn the_oldest_outputs_make_room(store: &Store) {
    let (one, two) = (planted(store, "one").await, planted(store, "two").await);
    let theirs = put(store, output(&two, &"t".repeat(90))).await;
    let mut kept = Vec::new();
    for number in 0..5 {
        kept.insert(0, put(store, output(&one, &number.to_string())).await);
    }
    assert_eq!(all(store, &one).await, kept[..3], "the newest three are kept");
    let large = put(store, output(&one, &"x".repeat(99))).await;
    assert_eq!(all(store, &one).await, [large.clone(), kept[0].clone()], "100 bytes are kept");
    let larger = put(store, output(&one, &"y".repeat(100))).await;
    assert_eq!(all(store, &one).await, [larger]);
    // A record that was deleted is not kept anew, because newer records need its place.
    put(store, SandboxOutputRow { sealed: "late".to_owned(), ..large.clone() }).await;
    assert!(!all(store, &one).await.iter().any(|row| row.request_id == large.request_id));
    assert_eq!(all(store, &two).await, [theirs], "another sandbox has limits of its own");
}

pub(crate) async fn outputs_of_other_workspaces_are_not_found(store: &Store) {
    let one = planted(store, "one").await;
    let row = put(store, output(&one, "secret")).await;
    let other = other_workspace(store).await;
    assert!(store.sandbox_outputs(other, one.id, &Page::first(9)).await.unwrap().items.is_empty());
    let foreign = SandboxOutputRow { workspace_id: other, request_id: RequestId::new(), ..row.clone() };
    assert!(!store.put_sandbox_output(&foreign, MAX).await.unwrap(), "the sandbox is in another workspace");
    // The record of another sandbox cannot be replaced.
    let two = planted(store, "two").await;
    let stolen = SandboxOutputRow { sandbox_id: two.id, sealed: "stolen".to_owned(), ..row.clone() };
    assert!(!store.put_sandbox_output(&stolen, MAX).await.unwrap());
    assert_eq!(all(store, &one).await, [row]);
}

pub(crate) async fn outputs_are_deleted_with_their_sandbox(store: &Store) {
    let (one, two) = (planted(store, "one").await, planted(store, "two").await);
    put(store, output(&one, "gone")).await;
    let left = put(store, output(&two, "left")).await;
    assert!(store.delete_sandbox(one.workspace_id, one.id).await.unwrap());
    let marked = store.sandbox(one.workspace_id, one.id).await.unwrap().unwrap();
    assert!(store.claim_sandbox(&marked, SandboxStatus::Deleting, "delete", NOW.plus_ms(9)).await.unwrap());
    assert!(store.remove_sandbox(one.id, "delete").await.unwrap());
    assert!(all(store, &one).await.is_empty());
    assert_eq!(store.count_sealed(SealedColumn::SandboxOutputs).await.unwrap(), 1);
    assert_eq!(all(store, &two).await, [left]);
    assert!(!store.put_sandbox_output(&output(&one, "late"), MAX).await.unwrap(), "the sandbox is gone");
    let absent = SandboxOutputRow { sandbox_id: SandboxInstanceId::new(), ..output(&one, "x") };
    assert!(!store.put_sandbox_output(&absent, MAX).await.unwrap());
}
