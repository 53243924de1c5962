//! Tests of the sealed records in all columns.

use monstrum_store::{
    CredentialRow, IdempotencyKey, InstanceKeyRow, SealedColumn, SealedRow, Store, StoreError, StoredAnswer,
};
use monstrum_types::KeyId;
use serde_json::json;

use crate::rows::{self, NOW, default_workspace};

/// Inserts `count` resources with one credential each, and returns the credentials.
async fn credentials(store: &Store, count: usize) -> Vec<CredentialRow> {
    let workspace = default_workspace(store).await;
    let mut rows = Vec::new();
    for number in 0..count {
        let resource = rows::resource(workspace, &format!("resource {number}"));
        store.insert_resource(&resource).await.unwrap();
        let row = CredentialRow {
            sealed: format!("sealed {number}"),
            given_for: json!({ "audience": ["https://api.github.com", "a\u{0}b"] }),
            ..rows::credential(&resource)
        };
        store.put_credential(&row).await.unwrap();
        rows.push(row);
    }
    rows.sort_by_key(|row| row.id);
    rows
}

async fn walk(store: &Store, column: SealedColumn, limit: u32) -> Vec<SealedRow> {
    let mut all: Vec<SealedRow> = Vec::new();
    loop {
        let behind = all.last().map(|row| row.key.clone());
        let page = store.sealed_records(column, behind.as_deref(), limit).await.unwrap();
        assert_eq!(page.unnamed, Vec::<Vec<String>>::new());
        let page = page.records;
        assert!(page.len() <= limit as usize);
        if page.is_empty() {
            assert_eq!(store.count_sealed(column).await.unwrap(), all.len() as u64);
            assert_eq!(store.count_sealed_out_of_reach(column).await.unwrap(), 0);
            return all;
        }
        all.extend(page);
    }
}

pub(crate) async fn sealed_records_have_pages(store: &Store) {
    for column in SealedColumn::ALL {
        // A new database already contains the row key.
        let expected = usize::from(column == SealedColumn::InstanceKeys);
        assert_eq!(walk(store, column, 1).await.len(), expected, "{column:?}");
    }
    assert!(store.credential_key_versions().await.unwrap().is_empty());
    let rows = credentials(store, 5).await;
    let of_row = |row: &CredentialRow| SealedRow {
        key: vec![row.id.to_string()],
        bound: vec![
            row.workspace_id.to_string(),
            row.resource_id.to_string(),
            row.subject_kind.clone(),
            row.subject_id.clone(),
            row.given_for.to_string(),
        ],
        sealed: row.sealed.clone(),
    };
    let expected: Vec<SealedRow> = rows.iter().map(of_row).collect();
    for limit in [1, 2, 5, 6] {
        assert_eq!(walk(store, SealedColumn::Credentials, limit).await, expected);
    }
    assert_eq!(store.credential_key_versions().await.unwrap(), [1]);

    for (name, version) in [("audit", 1), ("audit", 2), ("audit", 10), ("other", 1)] {
        let sealed = format!("{name} {version}");
        let row = InstanceKeyRow { name: name.to_owned(), version, sealed, created_at: NOW };
        assert!(store.insert_instance_key(&row).await.unwrap());
    }
    let mut walked: Vec<String> =
        walk(store, SealedColumn::InstanceKeys, 1).await.into_iter().map(|row| row.sealed).collect();
    walked.sort();
    assert_eq!(walked, ["audit 1", "audit 10", "audit 2", "other 1", "sealed"]);

    let workspace = default_workspace(store).await;
    let caller = KeyId::new();
    for (key, is_answered) in [("a", true), ("b", false), ("c", true)] {
        let route = "POST /api/bots".to_owned();
        let key = IdempotencyKey { workspace_id: workspace, caller, route, key: key.to_owned() };
        store.claim_request(&key, "hash", NOW).await.unwrap();
        if is_answered {
            let answer = StoredAnswer { status: 201, sealed: format!("answer {}", key.key) };
            assert!(store.answer_request(&key, &answer).await.unwrap());
        }
    }
    let answer = |key: &str| SealedRow {
        key: vec![workspace.to_string(), caller.to_string(), "POST /api/bots".to_owned(), key.to_owned()],
        bound: vec!["hash".to_owned(), "201".to_owned()],
        sealed: format!("answer {key}"),
    };
    assert_eq!(walk(store, SealedColumn::IdempotencyAnswers, 1).await, [answer("a"), answer("c")]);
}

pub(crate) async fn a_sealed_record_is_replaced_only_if_it_is_unchanged(store: &Store) {
    credentials(store, 3).await;
    store
        .insert_instance_key(&InstanceKeyRow {
            name: "audit".into(),
            version: 2,
            sealed: "one".into(),
            created_at: NOW,
        })
        .await
        .unwrap();
    let read = walk(store, SealedColumn::Credentials, 9).await;
    // Another request updates the second credential between the read and the replacement.
    let workspace = default_workspace(store).await;
    let saved = store.credential(workspace, read[1].bound[1].parse().unwrap()).await.unwrap().unwrap();
    store
        .update_credential(&CredentialRow { sealed: "saved anew".to_owned(), ..saved.clone() }, &saved.sealed, NOW)
        .await
        .unwrap();
    let generation = store.generation().await.unwrap();
    let records: Vec<_> = read.iter().map(|row| (row.clone(), format!("new {}", row.sealed))).collect();
    assert_eq!(store.replace_sealed(SealedColumn::Credentials, &records, 2).await.unwrap(), 2);
    assert_eq!(store.generation().await.unwrap(), generation + 1);
    let now = walk(store, SealedColumn::Credentials, 9).await;
    let texts: Vec<&str> = now.iter().map(|row| row.sealed.as_str()).collect();
    assert_eq!(texts, [records[0].1.as_str(), "saved anew", records[2].1.as_str()]);
    assert_eq!(store.credential_key_versions().await.unwrap(), [1, 2]);
    assert_eq!(
        store.replace_sealed(SealedColumn::Credentials, &records, 2).await.unwrap(),
        0,
        "the records have changed"
    );
    assert_eq!(store.generation().await.unwrap(), generation + 1);

    let audit = walk(store, SealedColumn::InstanceKeys, 9).await;
    let records = [(audit[0].clone(), "two".to_owned())];
    assert_eq!(store.replace_sealed(SealedColumn::InstanceKeys, &records, 2).await.unwrap(), 1);
    assert_eq!(store.instance_keys("audit").await.unwrap()[0].sealed, "two");
}

pub(crate) async fn a_batch_of_sealed_records_is_replaced_atomically(store: &Store) {
    credentials(store, 2).await;
    let read = walk(store, SealedColumn::Credentials, 9).await;
    let records = [(read[0].clone(), "new".to_owned()), (read[1].clone(), "no\0text".to_owned())];
    let refused = store.replace_sealed(SealedColumn::Credentials, &records, 2).await;
    assert!(matches!(refused, Err(StoreError::Nul)));
    assert_eq!(walk(store, SealedColumn::Credentials, 9).await, read);
}
