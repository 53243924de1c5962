//! Tests of the audit as people read it: filters, trees of calls, numbers of calls, and the ends of calls.

use monstrum_store::{AuditKind, AuditRow, CallFilter, CallProperty, ChainEnd, Page, StatsQuery, Store};
use monstrum_types::{RequestId, ResourceId, UtcMillis, WorkspaceId};

use crate::rows::{AppendRows as _, NOW, default_workspace, event, other_workspace};

use AuditKind::{Finished, Interrupted, Started};

/// The writer and position of each row in a list.
fn sequences(rows: &[AuditRow]) -> Vec<i64> {
    rows.iter().map(|row| row.sequence).collect()
}

pub(crate) async fn calls_are_filtered_by_resource_and_rule(store: &Store) {
    let workspace = default_workspace(store).await;
    let (resource, other) = (ResourceId::new(), ResourceId::new());
    let denied = |sequence, rule: &str| AuditRow {
        status: Some("error".to_owned()),
        resource_id: Some(resource),
        rule: Some(rule.to_owned()),
        ..event(workspace, sequence, Finished, RequestId::new())
    };
    let ids: Vec<_> = (0..7).map(|_| RequestId::new()).collect();
    let rows = [
        AuditRow { resource_id: Some(resource), rule: None, ..event(workspace, 1, Finished, ids[0]) },
        denied(2, "scope.repos"),
        denied(3, "scope"),
        denied(4, "a \"quoted\"\nrule%"),
        // Texts of callers do not look like members of the row.
        AuditRow {
            resource_id: None,
            rule: None,
            status: Some("error".to_owned()),
            params: Some(format!(r#"{{"resource_id":"{resource}","rule":"scope"}}"#)),
            task_id: Some(format!(r#"","resource_id":"{resource}","rule":"scope"#)),
            ..event(workspace, 5, Finished, ids[4])
        },
        AuditRow { resource_id: Some(other), ..event(workspace, 6, Finished, ids[5]) },
        AuditRow { resource_id: Some(resource), ..event(workspace, 7, Started, ids[6]) },
    ];
    store.append_rows(&rows).await.unwrap();
    let found = async |filter: CallFilter| {
        let calls = store.calls(workspace, &filter, &Page::first(50)).await.unwrap();
        let mut found = sequences(&calls.items);
        found.sort_unstable();
        found
    };
    let rule = |rule: &str| CallFilter { rule: Some(rule.to_owned()), ..CallFilter::default() };
    let of = |resource| CallFilter { resource_id: Some(resource), ..CallFilter::default() };
    assert_eq!(found(of(resource)).await, [1, 2, 3, 4, 7]);
    assert_eq!(found(of(other)).await, [6]);
    assert_eq!(found(of(ResourceId::new())).await, Vec::<i64>::new());
    assert_eq!(found(rule("scope.repos")).await, [2]);
    assert_eq!(found(rule("scope")).await, [3]);
    assert_eq!(found(rule("SCOPE")).await, Vec::<i64>::new());
    assert_eq!(found(rule("a \"quoted\"\nrule%")).await, [4]);
    assert_eq!(found(rule("%")).await, Vec::<i64>::new());
    assert_eq!(found(CallFilter { resource_id: Some(other), ..rule("scope") }).await, Vec::<i64>::new());
    let both = CallFilter { bot_id: rows[1].bot_id, tool: rows[1].tool.clone(), ..of(resource) };
    assert_eq!(found(both).await, [2]);
    let stranger = other_workspace(store).await;
    let theirs = store.calls(stranger, &of(resource), &Page::first(50)).await.unwrap();
    assert!(theirs.items.is_empty());
}

/// Returns the rows of a tree: a call, two calls below it, and one call below the first of these.
fn family(workspace: WorkspaceId, ids: &[RequestId]) -> Vec<AuditRow> {
    let row =
        |sequence, kind, id, parent| AuditRow { parent_request_id: parent, ..event(workspace, sequence, kind, id) };
    vec![
        row(1, Started, ids[0], None),
        row(2, Started, ids[1], Some(ids[0])),
        row(3, Finished, ids[2], Some(ids[1])),
        row(4, Finished, ids[1], Some(ids[0])),
        row(5, Interrupted, ids[3], Some(ids[0])),
        row(6, Finished, ids[0], None),
        row(7, Finished, ids[4], None),
    ]
}

pub(crate) async fn a_tree_has_a_call_and_the_calls_below_it(store: &Store) {
    let workspace = default_workspace(store).await;
    let mut ids: Vec<_> = (0..5).map(|_| RequestId::new()).collect();
    ids.sort_unstable();
    store.append_rows(&family(workspace, &ids)).await.unwrap();
    let tree = async |root: RequestId, limit| {
        let tree = store.call_tree(workspace, root, limit).await.unwrap();
        (sequences(&tree.rows), tree.omitted)
    };
    assert_eq!(tree(ids[0], 200).await, (vec![6, 4, 3, 5], 0));
    assert_eq!(tree(ids[0], 4).await, (vec![6, 4, 3, 5], 0));
    assert_eq!(tree(ids[1], 200).await, (vec![4, 3], 0));
    assert_eq!(tree(ids[4], 200).await, (vec![7], 0));
    assert_eq!(tree(RequestId::new(), 200).await, (vec![], 0));
    // The calls near the root come first, and the rest is counted.
    let (rows, omitted) = tree(ids[0], 2).await;
    assert_eq!((rows[0], rows.len(), omitted), (6, 2, 2));
    let stranger = other_workspace(store).await;
    assert!(store.call_tree(stranger, ids[0], 200).await.unwrap().rows.is_empty());
}

pub(crate) async fn changes_and_calls_of_others_are_in_no_tree(store: &Store) {
    let (ours, theirs) = (default_workspace(store).await, other_workspace(store).await);
    let [root, change, foreign] = [RequestId::new(), RequestId::new(), RequestId::new()];
    let rows = [
        AuditRow { parent_request_id: None, ..event(ours, 1, Finished, root) },
        AuditRow { flags: Some("change".to_owned()), ..event(ours, 2, Finished, change) },
        AuditRow { parent_request_id: Some(root), ..event(theirs, 3, Finished, foreign) },
        // A tree ends even if rows were edited so that two calls are below each other.
        AuditRow { parent_request_id: Some(root), ..event(ours, 4, Finished, root) },
    ];
    store.append_rows(&rows).await.unwrap();
    let tree = store.call_tree(ours, root, 200).await.unwrap();
    assert_eq!(tree.rows.len(), 1);
    assert!(store.call_tree(ours, change, 200).await.unwrap().rows.is_empty());
    assert!(store.call_tree(theirs, root, 200).await.unwrap().rows.is_empty());
}

pub(crate) async fn calls_are_counted(store: &Store) {
    let (workspace, stranger) = (default_workspace(store).await, other_workspace(store).await);
    let call = |sequence, tool: &str, status: &str, minutes: i64| AuditRow {
        tool: Some(tool.to_owned()),
        status: Some(status.to_owned()),
        rule: (status != "success").then(|| "role".to_owned()),
        started_at: NOW.plus_ms(minutes * 60_000),
        ..event(workspace, sequence, Finished, RequestId::new())
    };
    let twice = RequestId::new();
    let rows = [
        call(1, "a", "success", 0),
        call(2, "a", "success", 1),
        call(3, "a", "error", 61),
        AuditRow { message: None, rule: None, ..call(4, "b \"é\"", "success", 2) },
        AuditRow { request_id: twice, kind: Started, ..call(5, "c", "success", 3) },
        AuditRow { request_id: twice, ..call(6, "c", "success", 3) },
        AuditRow { kind: Started, ..call(7, "d", "success", 3) },
        AuditRow { flags: Some("change".to_owned()), ..call(8, "e", "success", 3) },
        AuditRow { workspace_id: Some(stranger), ..call(9, "a", "success", 0) },
    ];
    store.append_rows(&rows).await.unwrap();
    let counted = async |filter: &CallFilter, by, bucket_ms| {
        let query = StatsQuery { filter, by, since: UtcMillis(0), until: NOW.plus_ms(1 << 40), bucket_ms };
        let counts = store.call_counts(workspace, &query).await.unwrap();
        assert_eq!((counts.has_more_groups, counts.truncated_before), (false, None));
        let told = counts.groups.into_iter().map(|group| {
            let at = group.bucket_at.map(|at| format!(" at {}", at.since_ms(NOW) / 60_000)).unwrap_or_default();
            let [first, second] = [group.first, group.second].map(|value| value.unwrap_or("-".to_owned()));
            format!("{first} {second}{at}: {} last {}", group.calls, group.last_at.since_ms(NOW) / 60_000)
        });
        let mut told: Vec<_> = told.collect();
        told.sort_unstable();
        told
    };
    let all = CallFilter::default();
    assert_eq!(
        counted(&all, (CallProperty::Tool, None), None).await,
        ["a -: 3 last 61", "b \"é\" -: 1 last 2", "c -: 1 last 3", "d -: 1 last 3"]
    );
    assert_eq!(
        counted(&all, (CallProperty::Status, Some(CallProperty::Tool)), None).await,
        [
            "error a: 1 last 61",
            "running d: 1 last 3",
            "success a: 2 last 1",
            "success b \"é\": 1 last 2",
            "success c: 1 last 3"
        ]
    );
    let of_a = CallFilter { tool: Some("a".to_owned()), ..CallFilter::default() };
    let message = "a \"message\"\n";
    assert_eq!(
        counted(&of_a, (CallProperty::Rule, Some(CallProperty::Message)), None).await,
        [format!("- {message}: 2 last 1"), format!("role {message}: 1 last 61")]
    );
    // NOW is not a multiple of an hour, so the test computes the buckets.
    let hour = 3_600_000;
    let bucket = |minutes: i64| {
        let at = NOW.plus_ms(minutes * 60_000);
        UtcMillis(at.0 - at.0 % hour).since_ms(NOW) / 60_000
    };
    let mut expected: Vec<_> = if bucket(1) == bucket(0) {
        vec![format!("a - at {}: 2 last 1", bucket(0)), format!("a - at {}: 1 last 61", bucket(61))]
    } else {
        panic!("NOW is within a minute of the end of an hour")
    };
    expected.sort_unstable();
    assert_eq!(counted(&of_a, (CallProperty::Tool, None), Some(hour)).await, expected);
    for (filter, calls) in [
        (CallFilter { bot_id: rows[0].bot_id, ..CallFilter::default() }, 1),
        (CallFilter { resource_id: rows[2].resource_id, ..CallFilter::default() }, 1),
        (CallFilter { status: Some("error".to_owned()), ..CallFilter::default() }, 1),
        (CallFilter { rule: Some("role".to_owned()), ..CallFilter::default() }, 1),
        (CallFilter { resource_id: Some(ResourceId::new()), ..CallFilter::default() }, 0),
    ] {
        for by in [CallProperty::BotId, CallProperty::ResourceId, CallProperty::Rule] {
            assert_eq!(counted(&filter, (by, None), None).await.len(), calls, "{filter:?} by {by:?}");
        }
    }
    let bots = counted(&of_a, (CallProperty::BotId, None), None).await;
    assert!(bots.iter().any(|bot| bot.starts_with(&rows[0].bot_id.unwrap().to_string())), "{bots:?}");
}

pub(crate) async fn ends_of_calls_are_followed(store: &Store) {
    let workspace = default_workspace(store).await;
    assert_eq!(store.chain_ends().await.unwrap(), []);
    let call = RequestId::new();
    let rows = [
        event(workspace, 1, Started, call),
        event(workspace, 2, Finished, call),
        AuditRow { flags: Some("change".to_owned()), ..event(workspace, 3, Finished, RequestId::new()) },
        event(workspace, 4, Interrupted, RequestId::new()),
    ];
    store.append_rows(&rows).await.unwrap();
    for (writer, sequence) in [("node-3", 7), ("node-2", 1)] {
        let row = AuditRow { writer: writer.to_owned(), ..event(workspace, sequence, Finished, RequestId::new()) };
        store.append_rows(&[row]).await.unwrap();
    }
    let end = |writer: &str, sequence| ChainEnd { writer: writer.to_owned(), sequence };
    assert_eq!(store.chain_ends().await.unwrap(), [end("node-1", 4), end("node-2", 1), end("node-3", 7)]);
    let followed = async |after, limit| {
        let rows = store.followed("node-1", after, limit).await.unwrap();
        rows.into_iter().map(|row| (row.sequence, row.ended.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(followed(0, 10).await, [(1, false), (2, true), (3, false), (4, true)]);
    assert_eq!(followed(1, 2).await, [(2, true), (3, false)]);
    assert_eq!(followed(4, 2).await, []);
    let rows = store.followed("node-1", 1, 1).await.unwrap();
    assert_eq!(rows[0].ended.as_ref().map(|row| row.request_id), Some(call));
}
