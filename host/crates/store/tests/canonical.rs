//! Tests of the canonical form of an audit row for hashing. Every row can be parsed back from its form, so different
//! rows have different forms. The form conforms to RFC 8785.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use monstrum_store::{AuditKind, AuditRow};
use monstrum_types::{RequestId, UtcMillis};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::Value;

/// Strings that resemble parts of the canonical form, written by hand or found by earlier test runs.
const TEXTS: &str = include_str!("corpus/texts.jsonl");

fn known_texts() -> Vec<String> {
    TEXTS.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![2 => any::<String>(), 1 => "[\"\\\\{},:a\u{0}-\u{1f}]{0,12}", 1 => select(known_texts())]
}

fn id(number: u128) -> RequestId {
    let hex = format!("{number:032x}");
    let version_7 = format!("{}-{}-7{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..]);
    version_7.parse().unwrap()
}

const NO_TEXTS: [Option<String>; 14] = [const { None }; 14];

/// Creates a row from these strings, numbers and ids.
fn row(
    writer: String,
    texts: [Option<String>; 14],
    numbers: [i64; 5],
    ids: [Option<u128>; 5],
    kind: AuditKind,
) -> AuditRow {
    let [
        task_id,
        tool,
        operation,
        plugin,
        plugin_digest,
        status,
        code,
        message,
        rule,
        params,
        delegation,
        flags,
        app_id,
        user_id,
    ] = texts;
    let [sequence, duration_ms, started_at, at, key_version] = numbers;
    let text = |at: usize| ids[at].map(|number| id(number).to_string());
    AuditRow {
        writer,
        sequence,
        kind,
        request_id: id(ids[0].unwrap_or_default()),
        workspace_id: text(1).map(|id| id.parse().unwrap()),
        bot_id: text(2).map(|id| id.parse().unwrap()),
        resource_id: text(3).map(|id| id.parse().unwrap()),
        parent_request_id: ids[4].map(id),
        duration_ms: Some(duration_ms).filter(|ms| *ms != -1),
        started_at: UtcMillis(started_at),
        at: UtcMillis(at),
        key_version,
        previous_hash: [0; 32],
        hash: [0; 32],
        task_id,
        tool,
        operation,
        plugin,
        plugin_digest,
        status,
        code,
        message,
        rule,
        params,
        delegation,
        flags,
        app_id,
        user_id,
    }
}

fn rows() -> impl Strategy<Value = AuditRow> {
    let numbers =
        prop_oneof![any::<i64>(), -9_i64..9, select(vec![i64::MIN, i64::MAX, 1 << 53, (1 << 53) - 1, -(1 << 53)])];
    let kinds = select(vec![AuditKind::Started, AuditKind::Finished, AuditKind::Interrupted]);
    (
        texts(),
        prop::collection::vec(prop::option::of(texts()), 14),
        prop::collection::vec(numbers, 5),
        prop::collection::vec(prop::option::of(any::<u128>()), 5),
        kinds,
    )
        .prop_map(|(writer, texts, numbers, ids, kind)| {
            row(writer, texts.try_into().unwrap(), numbers.try_into().unwrap(), ids.try_into().unwrap(), kind)
        })
}

/// Returns the canonical texts of a row in both versions.
fn forms(row: &AuditRow) -> [Vec<u8>; 2] {
    let mut second = "before".to_owned();
    row.write_canonical(&mut second);
    [row.canonical_of_version_1(), second.strip_prefix("before").unwrap().as_bytes().to_vec()]
}

/// Parses a row, except its hashes, from its canonical text. Fails if any part of the text remains unused.
fn parse(form: &[u8], version: usize) -> AuditRow {
    let mut columns: BTreeMap<String, Value> = serde_json::from_slice(form).unwrap();
    assert_eq!(columns.remove("v"), Some(Value::from(version)));
    let previous_hash = columns.remove("previous_hash");
    assert_eq!(previous_hash, (version == 2).then(|| Value::from("00".repeat(32))));
    let mut text = |name: &str| columns.remove(name).map(|value| value.as_str().unwrap().to_owned());
    let texts = [
        "task_id",
        "tool",
        "operation",
        "plugin",
        "plugin_digest",
        "status",
        "code",
        "message",
        "rule",
        "params",
        "delegation",
        "flags",
        "app_id",
        "user_id",
    ]
    .map(&mut text);
    let writer = text("writer").unwrap();
    let ids = ["request_id", "workspace_id", "bot_id", "resource_id", "parent_request_id"].map(&mut text);
    let kind = match text("kind").unwrap().as_str() {
        "started" => AuditKind::Started,
        "finished" => AuditKind::Finished,
        "interrupted" => AuditKind::Interrupted,
        other => panic!("unknown kind {other}"),
    };
    let mut number = |name: &str| match columns.remove(name)? {
        Value::String(text) => Some(text.parse::<i64>().unwrap()),
        number => Some(number.as_i64().unwrap()),
    };
    let duration_ms = number("duration_ms");
    let numbers = ["sequence", "started_at", "at", "key_version"].map(|name| number(name).unwrap());
    assert!(columns.is_empty(), "{columns:?}");
    let [sequence, started_at, at, key_version] = numbers;
    let mut parsed = row(writer, texts, [sequence, 0, started_at, at, key_version], [None; 5], kind);
    parsed.duration_ms = duration_ms;
    let [request_id, workspace_id, bot_id, resource_id, parent_request_id] = ids;
    parsed.request_id = request_id.unwrap().parse().unwrap();
    parsed.workspace_id = workspace_id.map(|id| id.parse().unwrap());
    parsed.bot_id = bot_id.map(|id| id.parse().unwrap());
    parsed.resource_id = resource_id.map(|id| id.parse().unwrap());
    parsed.parent_request_id = parent_request_id.map(|id| id.parse().unwrap());
    parsed
}

fn check(row: &AuditRow) {
    for (form, version) in forms(row).into_iter().zip(1..) {
        let mut written = row.clone();
        if version == 1 {
            (written.app_id, written.user_id) = (None, None);
        }
        assert_eq!(parse(&form, version), written, "{}", String::from_utf8_lossy(&form));
        // serde_json also writes sorted keys, no spaces and the shortest escapes.
        let sorted: BTreeMap<String, Value> = serde_json::from_slice(&form).unwrap();
        assert_eq!(serde_json::to_vec(&sorted).unwrap(), form);
    }
}

#[test]
fn every_text_of_the_corpus_round_trips_in_every_column() {
    for text in known_texts() {
        check(&row(text.clone(), NO_TEXTS, [0; 5], [None; 5], AuditKind::Started));
        for column in 0..NO_TEXTS.len() {
            let mut texts = NO_TEXTS;
            texts[column] = Some(text.clone());
            check(&row("node".to_owned(), texts, [-1; 5], [None; 5], AuditKind::Finished));
        }
    }
}

fn equal_forms(one: &AuditRow, other: &AuditRow) -> [bool; 2] {
    let (one, other) = (forms(one), forms(other));
    [0, 1].map(|version| one[version] == other[version])
}

proptest! {
    #[test]
    fn a_row_can_be_parsed_from_its_form(row in rows()) {
        check(&row);
    }

    #[test]
    fn equal_forms_mean_equal_rows(one in rows(), other in rows(), share in any::<u16>()) {
        // Make the rows mostly equal, so that they differ in only a few columns.
        let mut mixed = one.clone();
        let swaps: [(&mut Option<String>, &Option<String>); 6] = [
            (&mut mixed.tool, &other.tool),
            (&mut mixed.operation, &other.operation),
            (&mut mixed.code, &other.code),
            (&mut mixed.message, &other.message),
            (&mut mixed.rule, &other.rule),
            (&mut mixed.params, &other.params),
        ];
        for (bit, (to, from)) in swaps.into_iter().enumerate() {
            if share >> bit & 1 == 1 {
                *to = from.clone();
            }
        }
        prop_assert_eq!(equal_forms(&one, &mixed), [one == mixed; 2]);
        // Rows with two different strings swapped must have different forms.
        std::mem::swap(&mut mixed.tool, &mut mixed.operation);
        prop_assert_eq!(equal_forms(&one, &mixed), [one == mixed; 2]);
    }
}
