//! Tests of audit events.

use monstrum_store::{
    AnchorRow, AuditKind, AuditRow, CallFilter, ChainedRow, Charge, Page, PayerLimits, Store, StoreError, StoreRow,
};
use monstrum_types::{BotId, RequestId, WorkspaceId};

use crate::rows::{AppendRows as _, NOW, anchor, bot, chain, default_workspace, event, other_workspace, scanned};

use AuditKind::{Finished, Interrupted, Started};

pub(crate) async fn events_round_trip(store: &Store) {
    let workspace = default_workspace(store).await;
    let full = event(workspace, 1, Started, RequestId::new());
    let bare = AuditRow {
        kind: Finished,
        sequence: 2,
        workspace_id: None,
        bot_id: None,
        task_id: None,
        resource_id: None,
        tool: None,
        operation: None,
        plugin: None,
        plugin_digest: None,
        status: None,
        code: None,
        message: None,
        rule: None,
        params: None,
        duration_ms: None,
        parent_request_id: None,
        delegation: None,
        flags: None,
        ..full.clone()
    };
    store.append_rows(&[full.clone(), bare.clone()]).await.unwrap();
    assert_eq!(chain(store, "node-1", 10).await, [Ok(scanned(&full)), Ok(scanned(&bare))]);
    assert_eq!(store.last("node-1").await.unwrap(), Some(bare));
    assert_eq!(store.last("node-2").await.unwrap(), None);
}

pub(crate) async fn a_batch_is_appended_atomically(store: &Store) {
    let workspace = default_workspace(store).await;
    store.append_rows(&[]).await.unwrap();
    let group: Vec<_> = (1..=70).map(|n| event(workspace, n, Finished, RequestId::new())).collect();
    let mut broken = group.clone();
    broken[69].sequence = 69;
    assert!(store.append_rows(&broken).await.is_err());
    assert_eq!(store.count_events().await.unwrap(), 0);
    store.append_rows(&group).await.unwrap();
    assert_eq!(store.count_events().await.unwrap(), 70);
}

pub(crate) async fn a_sequence_is_used_once(store: &Store) {
    let workspace = default_workspace(store).await;
    store.append_rows(&[event(workspace, 1, Finished, RequestId::new())]).await.unwrap();
    let again = store.append_rows(&[event(workspace, 1, Finished, RequestId::new())]).await;
    assert!(matches!(again, Err(StoreError::Conflict { constraint }) if constraint == "audit_rows_pkey"));
    let of_another = AuditRow { writer: "node-2".to_owned(), ..event(workspace, 1, Finished, RequestId::new()) };
    store.append_rows(&[of_another]).await.unwrap();
    assert_eq!(store.writers().await.unwrap(), ["node-1", "node-2"]);
}

pub(crate) async fn batches_of_every_size_are_stored(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut all = Vec::new();
    for size in [1, 7, 8, 9, 63, 64, 65, 137] {
        let first = all.len() as i64 + 1;
        let group: Vec<_> = (first..first + size).map(|n| event(workspace, n, Finished, RequestId::new())).collect();
        store.append_rows(&group).await.unwrap();
        all.extend(group);
    }
    let stored = chain(store, "node-1", 1000).await;
    assert_eq!(stored.into_iter().map(|row| row.unwrap().row).collect::<Vec<_>>(), all);
}

async fn statuses(store: &Store, workspace: WorkspaceId, filter: &CallFilter) -> Vec<String> {
    let calls = store.calls(workspace, filter, &Page::first(50)).await.unwrap();
    calls.items.iter().map(|row| row.call_status().unwrap().to_owned()).collect()
}

pub(crate) async fn a_call_is_one_item_of_the_list(store: &Store) {
    let workspace = default_workspace(store).await;
    let (ended, running, cut, short) = (RequestId::new(), RequestId::new(), RequestId::new(), RequestId::new());
    let rows = [
        event(workspace, 1, Started, ended),
        event(workspace, 2, Started, running),
        event(workspace, 3, Started, cut),
        event(workspace, 4, Finished, ended),
        event(workspace, 5, Interrupted, cut),
        event(workspace, 6, Finished, short),
    ];
    store.append_rows(&rows).await.unwrap();
    let calls = store.calls(workspace, &CallFilter::default(), &Page::first(50)).await.unwrap();
    let mut expected = [rows[3].clone(), rows[1].clone(), rows[4].clone(), rows[5].clone()];
    expected.sort_by_key(|row| std::cmp::Reverse(row.request_id));
    assert_eq!(calls.items, expected);
    assert_eq!(store.events(workspace, ended).await.unwrap(), [rows[0].clone(), rows[3].clone()]);
    assert_eq!(rows[1].finished_at(), None);
    assert_eq!(rows[3].finished_at(), Some(rows[3].at));
}

pub(crate) async fn calls_are_filtered(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = BotId::new();
    let rows = [
        AuditRow { bot_id: Some(bot), ..event(workspace, 1, Finished, RequestId::new()) },
        AuditRow { tool: Some("other".to_owned()), ..event(workspace, 2, Finished, RequestId::new()) },
        AuditRow { status: Some("error".to_owned()), ..event(workspace, 3, Finished, RequestId::new()) },
        AuditRow { status: None, ..event(workspace, 4, Started, RequestId::new()) },
        event(workspace, 5, Interrupted, RequestId::new()),
        AuditRow {
            started_at: NOW.plus_ms(1000),
            operation: Some("sandbox.read".to_owned()),
            ..event(workspace, 6, Finished, RequestId::new())
        },
    ];
    store.append_rows(&rows).await.unwrap();
    let found = async |filter: CallFilter| {
        let calls = store.calls(workspace, &filter, &Page::first(50)).await.unwrap();
        let mut sequences: Vec<_> = calls.items.iter().map(|row| row.sequence).collect();
        sequences.sort_unstable();
        sequences
    };
    let status = |status: &str| CallFilter { status: Some(status.to_owned()), ..CallFilter::default() };
    assert_eq!(found(CallFilter::default()).await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(found(CallFilter { bot_id: Some(bot), ..CallFilter::default() }).await, [1]);
    assert_eq!(found(CallFilter { tool: Some("other".to_owned()), ..CallFilter::default() }).await, [2]);
    assert_eq!(found(CallFilter { operation: Some("sandbox.read".to_owned()), ..CallFilter::default() }).await, [6]);
    assert_eq!(found(status("error")).await, [3]);
    assert_eq!(found(status("running")).await, [4]);
    assert_eq!(found(status("interrupted")).await, [5]);
    assert_eq!(found(status("success")).await, [1, 2, 6]);
    assert_eq!(found(CallFilter { since: Some(NOW.plus_ms(1000)), ..CallFilter::default() }).await, [6]);
    assert_eq!(found(CallFilter { until: Some(NOW.plus_ms(1000)), ..CallFilter::default() }).await, [1, 2, 3, 4, 5]);
    let all_at_once = CallFilter { bot_id: Some(bot), until: Some(NOW), ..status("success") };
    assert!(found(all_at_once).await.is_empty());
}

pub(crate) async fn calls_have_pages(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut requests: Vec<_> = (0..5).map(|_| RequestId::new()).collect();
    let rows: Vec<_> = requests
        .iter()
        .flat_map(|id| [(Started, *id), (Finished, *id)])
        .enumerate()
        .map(|(index, (kind, id))| event(workspace, index as i64 + 1, kind, id))
        .collect();
    store.append_rows(&rows).await.unwrap();
    requests.sort_by_key(|id| std::cmp::Reverse(*id));
    let mut cursor = None;
    let mut seen = Vec::new();
    for expected in [2, 2, 1] {
        let page = store.calls(workspace, &CallFilter::default(), &Page { limit: 2, cursor }).await.unwrap();
        assert_eq!(page.items.len(), expected);
        seen.extend(page.items.iter().map(|row| row.request_id));
        cursor = page.next_cursor;
    }
    assert_eq!((seen, cursor), (requests, None));
}

pub(crate) async fn calls_and_events_of_other_workspaces_are_not_found(store: &Store) {
    let theirs = default_workspace(store).await;
    let ours = other_workspace(store).await;
    let call = event(theirs, 1, Finished, RequestId::new());
    store.append_rows(std::slice::from_ref(&call)).await.unwrap();
    assert!(statuses(store, ours, &CallFilter::default()).await.is_empty());
    assert!(store.events(ours, call.request_id).await.unwrap().is_empty());
    assert_eq!(statuses(store, theirs, &CallFilter::default()).await, ["success"]);
}

pub(crate) async fn starts_without_an_end_are_found(store: &Store) {
    let workspace = default_workspace(store).await;
    let (ended, running, cut) = (RequestId::new(), RequestId::new(), RequestId::new());
    let open = event(workspace, 2, Started, running);
    let of_another = AuditRow { writer: "node-2".to_owned(), ..event(workspace, 1, Started, RequestId::new()) };
    let rows = [
        event(workspace, 1, Started, ended),
        open.clone(),
        event(workspace, 3, Started, cut),
        event(workspace, 4, Finished, ended),
        event(workspace, 5, Interrupted, cut),
        of_another.clone(),
    ];
    store.append_rows(&rows).await.unwrap();
    assert_eq!(store.open_starts("node-1", 0).await.unwrap(), std::slice::from_ref(&open));
    assert_eq!(store.open_starts("node-1", 2).await.unwrap(), [open]);
    assert!(store.open_starts("node-1", 3).await.unwrap().is_empty());
    assert_eq!(store.open_starts("node-2", 0).await.unwrap(), [of_another]);
    assert!(store.open_starts("node-3", 0).await.unwrap().is_empty());
}

pub(crate) async fn chains_are_scanned_in_pages(store: &Store) {
    let workspace = default_workspace(store).await;
    let rows: Vec<_> = (1..=5).map(|n| event(workspace, n, Finished, RequestId::new())).collect();
    store.append_rows(&rows).await.unwrap();
    let seen: Vec<_> = chain(store, "node-1", 2).await.into_iter().map(|row| row.unwrap().row.sequence).collect();
    assert_eq!(seen, [1, 2, 3, 4, 5]);
    assert_eq!(chain(store, "node-2", 2).await, []);
}

pub(crate) async fn several_starts_of_a_call_are_one_item(store: &Store) {
    let workspace = default_workspace(store).await;
    let (running, ended) = (RequestId::new(), RequestId::new());
    let rows = [
        event(workspace, 1, Started, running),
        event(workspace, 2, Started, ended),
        event(workspace, 3, Started, running),
        event(workspace, 4, Started, ended),
        event(workspace, 5, Finished, ended),
        AuditRow { writer: "node-2".to_owned(), ..event(workspace, 1, Started, running) },
    ];
    store.append_rows(&rows).await.unwrap();
    let calls = store.calls(workspace, &CallFilter::default(), &Page::first(50)).await.unwrap();
    let listed: Vec<_> = calls.items.iter().map(|row| (row.writer.as_str(), row.sequence)).collect();
    assert_eq!(listed, [("node-1", 5), ("node-2", 1)]);
}

pub(crate) async fn rows_of_others_are_written_in_the_same_transaction(store: &Store) {
    let workspace = default_workspace(store).await;
    let bot = bot(workspace, "bot");
    store.insert_bot(&bot).await.unwrap();
    let charge = |tokens| Charge {
        workspace_id: workspace,
        bot_id: bot.id,
        user: None,
        task_id: None,
        month: "2026-11".to_owned(),
        tokens,
        credits_millionths: 0,
        limits: PayerLimits::default(),
    };
    let calls = async || store.usage(workspace, bot.id, None).await.unwrap().first().map_or(0, |usage| usage.calls);
    let (first, text) = (event(workspace, 1, Finished, RequestId::new()), "{}");
    let row = ChainedRow { row: &first, body: text };
    let usage = [StoreRow::Usage(charge(5)), StoreRow::Charge(charge(1))];
    assert_eq!(store.append(&[row], &usage).await.unwrap(), [true, true]);
    assert_eq!((calls().await, store.count_events().await.unwrap()), (2, 1));
    // The sequence number is already used, so neither the row nor the usage is written.
    assert!(store.append(&[row], &usage).await.is_err());
    assert_eq!((calls().await, store.count_events().await.unwrap()), (2, 1));
    // A transaction can also contain usage without audit rows.
    assert_eq!(store.append(&[], &usage[..1]).await.unwrap(), [true]);
    assert_eq!(calls().await, 3);
}

pub(crate) async fn names_sort_by_their_bytes(store: &Store) {
    let workspace = default_workspace(store).await;
    for writer in ["b", "a-b", "ab", "B", "a_b", "é", ""] {
        let row = AuditRow { writer: writer.to_owned(), ..event(workspace, 1, Finished, RequestId::new()) };
        store.append_rows(&[row]).await.unwrap();
    }
    assert_eq!(store.writers().await.unwrap(), ["", "B", "a-b", "a_b", "ab", "b", "é"]);
}

pub(crate) async fn archived_rows_are_replaced_with_an_anchor(store: &Store) {
    let workspace = default_workspace(store).await;
    let rows: Vec<_> = (1..=5).map(|n| event(workspace, n, Finished, RequestId::new())).collect();
    let of_another = AuditRow { writer: "node-2".to_owned(), ..event(workspace, 1, Finished, RequestId::new()) };
    store.append_rows(&rows).await.unwrap();
    store.append_rows(std::slice::from_ref(&of_another)).await.unwrap();
    let first = anchor(1, 3);
    store.replace_with_anchor(&first).await.unwrap();
    assert_eq!(chain(store, "node-1", 10).await, [Ok(scanned(&rows[3])), Ok(scanned(&rows[4]))]);
    assert_eq!(chain(store, "node-2", 10).await, [Ok(scanned(&of_another))]);
    assert!(store.events(workspace, rows[0].request_id).await.unwrap().is_empty());
    let second = anchor(4, 5);
    store.replace_with_anchor(&second).await.unwrap();
    assert_eq!(store.anchors().await.unwrap(), [Ok(first), Ok(second)]);
    assert_eq!((store.last("node-1").await.unwrap(), store.count_events().await.unwrap()), (None, 1));
    let next = event(workspace, 6, Finished, RequestId::new());
    store.append_rows(std::slice::from_ref(&next)).await.unwrap();
    assert_eq!(store.last("node-1").await.unwrap(), Some(next));
}

pub(crate) async fn an_anchor_of_another_number_of_rows_deletes_nothing(store: &Store) {
    let workspace = default_workspace(store).await;
    let rows: Vec<_> = (1..=3).map(|n| event(workspace, n, Finished, RequestId::new())).collect();
    store.append_rows(&rows).await.unwrap();
    for rows in [1, 3] {
        let refused = store.replace_with_anchor(&AnchorRow { rows, ..anchor(1, 2) }).await;
        assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "{refused:?}");
    }
    assert_eq!((store.count_events().await.unwrap(), store.anchors().await.unwrap()), (3, Vec::new()));
    store.replace_with_anchor(&anchor(1, 2)).await.unwrap();
    let again = store.replace_with_anchor(&anchor(1, 2)).await;
    assert!(
        matches!(&again, Err(StoreError::Conflict { constraint }) if constraint == "audit_anchors_pkey"),
        "{again:?}"
    );
}
