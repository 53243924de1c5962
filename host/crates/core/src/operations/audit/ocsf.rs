//! Rows of the audit as events of the Open Cybersecurity Schema Framework (OCSF) 1.9.0, which SIEMs read. See
//! <https://schema.ocsf.io/1.9.0>.
//!
//! A call is an event of the class API Activity (6003) with the profiles `ai_operation` and `security_control`. A change
//! is an event of the class Entity Management (3004). Columns for which OCSF has no attribute are in `unmapped`. The
//! rows are redacted when they are written, so this module removes nothing.

use monstrum_store::AuditRow;
use serde_json::{Value, json};

use super::json_or_text;

const VERSION: &str = "1.9.0";
const API_ACTIVITY: Class =
    Class { uid: 6003, name: "API Activity", category: 6, category_name: "Application Activity" };
const ENTITY_MANAGEMENT: Class =
    Class { uid: 3004, name: "Entity Management", category: 3, category_name: "Identity & Access Management" };

struct Class {
    uid: u32,
    name: &'static str,
    category: u32,
    category_name: &'static str,
}

/// A number of an enumeration of OCSF with its caption.
type Label = (u32, &'static str);

const CREATE: Label = (1, "Create");
const UPDATE: Label = (3, "Update");
const DELETE: Label = (4, "Delete");
const OTHER: Label = (99, "Other");

const UNKNOWN: Label = (0, "Unknown");
const SUCCESS: Label = (1, "Success");
const FAILURE: Label = (2, "Failure");

const ALLOWED: Label = (1, "Allowed");
const DENIED: Label = (2, "Denied");
const BLOCKED: Label = (2, "Blocked");

const INFORMATIONAL: Label = (1, "Informational");
const LOW: Label = (2, "Low");
const MEDIUM: Label = (3, "Medium");

/// Returns the event of a call or of a change.
pub(super) fn event(row: AuditRow) -> Value {
    let mut event = if row.is_of_change() { change(row) } else { call(row) };
    remove_nulls(&mut event);
    event
}

fn call(row: AuditRow) -> Value {
    let Verdict { decision, disposition, .. } = Verdict::of(&row);
    let name = row.tool.clone().or_else(|| row.operation.clone()).unwrap_or_else(|| "unknown".to_owned());
    let params = json_or_text(row.params.clone());
    // A key reads the files of a conversation. The parameters of a bot cannot look like that, because its calls have a tool.
    let key = Some(&params["key_id"]).filter(|key| row.tool.is_none() && key.is_string());
    let bot = row.bot_id.filter(|_| key.is_none());
    let target = row.resource_id.map(|resource| json!(resource)).or_else(|| key.map(|_| params["object"].clone()));
    let source = key.cloned().or_else(|| bot.map(|bot| json!(bot)));
    // The audit does not know whether an operation of a plugin reads or writes.
    let mut event = common(&row, &API_ACTIVITY, OTHER, "Tool Call", &name);
    let own = json!({
        "actor": key.map_or_else(|| actor_of_call(&row), |key| actor_with_key(key, &params["key_kind"])),
        "ai_agent": bot.map(|bot| json!({ "uid": bot, "instance_uid": row.task_id })),
        "api": {
            "operation": name,
            "service": row.plugin.as_ref().map(|plugin| json!({ "name": plugin })),
            "request": { "uid": row.request_id, "data": &params },
            "response": response(&row),
        },
        // The audit has no network addresses.
        "src_endpoint": source.map_or_else(|| json!({ "name": "unknown" }), |source| json!({ "uid": source })),
        "resources": target.map(|target| json!([{ "uid": target, "role_id": 1, "role": "Target" }])),
        "action_id": decision.0,
        "action": decision.1,
        "disposition_id": disposition.0,
        "disposition": disposition.1,
        "policy": row.rule.as_ref().map(|rule| json!({ "name": rule })),
    });
    extend(&mut event, own);
    event["metadata"]["profiles"] = json!(["ai_operation", "security_control"]);
    event["metadata"]["correlation_uid"] = json!(row.task_id);
    event["unmapped"] = unmapped(row);
    event
}

fn response(row: &AuditRow) -> Value {
    if row.code.is_none() && row.message.is_none() {
        return Value::Null;
    }
    json!({ "error": row.code, "error_message": row.message })
}

fn actor_of_call(row: &AuditRow) -> Value {
    if let Some(user) = &row.user_id {
        return json!({ "app_uid": row.app_id, "user": { "uid": user, "type_id": 1, "type": "User" } });
    }
    match row.bot_id {
        Some(bot) => json!({ "user": { "uid": bot, "type_id": 4, "type": "Service" } }),
        None => json!({ "app_name": "unknown" }),
    }
}

fn change(row: AuditRow) -> Value {
    let mut params = json_or_text(row.params.clone());
    let mut member = |name: &str| params.get_mut(name).map(Value::take).unwrap_or_default();
    let (key, kind, object) = (member("key_id"), member("key_kind"), member("object"));
    let (before, after) = (member("before"), member("after"));
    let operation = row.operation.clone().unwrap_or_else(|| "unknown".to_owned());
    let (noun, verb) = operation.split_once('.').unwrap_or((&operation, "unknown"));
    let activity = activity(verb, !before.is_null());
    let name = if activity == OTHER { verb } else { activity.1 };
    let subject = object.as_str().map_or_else(|| operation.clone(), |object| format!("{operation} {object}"));
    let mut event = common(&row, &ENTITY_MANAGEMENT, activity, name, &subject);
    // The parameters of a large change were replaced with their digest, so the object is unknown.
    let name = if object.is_null() { json!("unknown") } else { Value::Null };
    let entity = json!({ "uid": object, "name": name, "type_id": OTHER.0, "type": noun });
    let state = |state: Value| {
        let mut entity = entity.clone();
        entity["data"] = state;
        entity
    };
    let updated = if after.is_null() { Value::Null } else { state(after) };
    extend(
        &mut event,
        json!({ "actor": actor_of_change(&key, &kind), "entity": state(before), "updated_entity": updated }),
    );
    event["metadata"]["event_code"] = json!(operation);
    event["unmapped"] = unmapped(row);
    event["unmapped"]["key_kind"] = kind;
    // What remains is the digest of a large change.
    if params.get("digest").is_some() {
        event["unmapped"]["params"] = params;
    }
    event
}

/// Changes without a key are made by commands on the data folder.
fn actor_of_change(key: &Value, kind: &Value) -> Value {
    if key.is_null() { json!({ "app_name": "monstrum" }) } else { actor_with_key(key, kind) }
}

fn actor_with_key(key: &Value, kind: &Value) -> Value {
    let (type_id, caption) = match kind.as_str() {
        Some("root" | "admin") => (2, "Admin"),
        Some(kind) => (OTHER.0, kind),
        None => UNKNOWN,
    };
    json!({ "user": { "uid": key, "credential_uid": key, "type_id": type_id, "type": caption } })
}

fn activity(verb: &str, existed: bool) -> Label {
    match verb {
        "create" | "install" => CREATE,
        "save" if !existed => CREATE,
        "update" | "save" | "rotate" | "refresh" | "reload" => UPDATE,
        "delete" | "uninstall" => DELETE,
        _ => OTHER,
    }
}

/// How a row ended, in the terms of OCSF.
struct Verdict {
    status: Label,
    severity: Label,
    decision: Label,
    disposition: Label,
}

impl Verdict {
    fn of(row: &AuditRow) -> Verdict {
        let (allowed, denied) = ((ALLOWED, ALLOWED), (DENIED, BLOCKED));
        let (status, severity, (decision, disposition)) = match row.call_status() {
            Some("success") => (SUCCESS, INFORMATIONAL, allowed),
            None | Some("running") => (UNKNOWN, INFORMATIONAL, (UNKNOWN, UNKNOWN)),
            Some("interrupted") => (FAILURE, LOW, (UNKNOWN, UNKNOWN)),
            Some("approval_required") => (FAILURE, INFORMATIONAL, denied),
            Some("error") if row.rule.is_none() => (FAILURE, LOW, allowed),
            Some("error") => (FAILURE, LOW, denied),
            Some(_) => (FAILURE, MEDIUM, denied),
        };
        Verdict { status, severity, decision, disposition }
    }
}

/// Returns the attributes that both classes have.
fn common(row: &AuditRow, class: &Class, activity: Label, activity_name: &str, subject: &str) -> Value {
    let Verdict { status, severity, .. } = Verdict::of(row);
    let ended = row.call_status().unwrap_or("unknown");
    json!({
        "class_uid": class.uid,
        "class_name": class.name,
        "category_uid": class.category,
        "category_name": class.category_name,
        "activity_id": activity.0,
        "activity_name": activity_name,
        "type_uid": class.uid * 100 + activity.0,
        "type_name": format!("{}: {}", class.name, activity.1),
        "severity_id": severity.0,
        "severity": severity.1,
        "status_id": status.0,
        "status": status.1,
        "status_code": row.code.as_deref().unwrap_or(ended),
        "status_detail": row.message,
        "time": row.started_at.0,
        "timezone_offset": 0,
        "message": format!("{subject}: {ended}"),
        "metadata": {
            "version": VERSION,
            "product": { "name": "Monstrum", "vendor_name": "Monstrum", "version": env!("CARGO_PKG_VERSION") },
            "log_name": "audit",
            "uid": row.request_id,
            "tenant_uid": row.workspace_id,
        },
    })
}

/// Returns the place of the row in its chain, and the columns for which OCSF has no attribute.
fn unmapped(row: AuditRow) -> Value {
    json!({
        "writer": row.writer,
        "sequence": row.sequence,
        "previous_hash": hex::encode(row.previous_hash),
        "hash": hex::encode(row.hash),
        "key_version": row.key_version,
        "status": row.call_status(),
        "finished_at": row.finished_at(),
        "duration_ms": row.duration_ms,
        "bot_id": row.bot_id,
        "resource_id": row.resource_id,
        "task_id": row.task_id,
        "operation": row.operation,
        "plugin_digest": row.plugin_digest,
        "rule": row.rule,
        "parent_request_id": row.parent_request_id,
        "delegation": json_or_text(row.delegation),
        "flags": row.flags,
    })
}

fn extend(event: &mut Value, own: Value) {
    if let (Value::Object(event), Value::Object(own)) = (event, own) {
        event.extend(own);
    }
}

/// Removes members that are null from the objects of OCSF, because OCSF omits attributes without a value. The state of an
/// entity, the parameters of a call and the delegation are not changed.
fn remove_nulls(value: &mut Value) {
    const FOREIGN: [&str; 3] = ["data", "delegation", "params"];
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            let own = members.iter_mut().filter(|(name, _)| !FOREIGN.contains(&name.as_str()));
            own.for_each(|(_, member)| remove_nulls(member));
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use monstrum_store::{AuditKind, CHANGE_FLAG};
    use monstrum_types::{BotId, RequestId, UtcMillis, WorkspaceId};

    use super::*;

    fn row(kind: AuditKind, status: Option<&str>, rule: Option<&str>) -> AuditRow {
        let text = |text: &str| Some(text.to_owned());
        AuditRow {
            writer: "node".to_owned(),
            sequence: 7,
            kind,
            request_id: RequestId::new(),
            workspace_id: Some(WorkspaceId::new()),
            bot_id: None,
            app_id: None,
            user_id: None,
            task_id: text("task"),
            resource_id: None,
            tool: text("tool"),
            operation: None,
            plugin: None,
            plugin_digest: None,
            status: status.map(str::to_owned),
            code: None,
            message: None,
            rule: rule.map(str::to_owned),
            params: text(r#"{"a":null}"#),
            duration_ms: None,
            started_at: UtcMillis(5),
            at: UtcMillis(6),
            parent_request_id: None,
            delegation: text(r#"[{"delegate":null}]"#),
            flags: None,
            key_version: 1,
            previous_hash: [0; 32],
            hash: [1; 32],
        }
    }

    #[test]
    fn the_result_tells_a_denied_call_from_a_failed_one() {
        let told = |kind, status, rule| {
            let event = event(row(kind, status, rule));
            ["status", "severity", "action", "status_code"].map(|name| event[name].as_str().unwrap().to_owned())
        };
        let finished = |status, rule| told(AuditKind::Finished, Some(status), rule);
        assert_eq!(finished("success", None), ["Success", "Informational", "Allowed", "success"]);
        assert_eq!(finished("error", None), ["Failure", "Low", "Allowed", "error"]);
        assert_eq!(finished("error", Some("input")), ["Failure", "Low", "Denied", "error"]);
        assert_eq!(finished("approval_required", None), ["Failure", "Informational", "Denied", "approval_required"]);
        // A status of a later version is a failure.
        assert_eq!(finished("quarantined", None), ["Failure", "Medium", "Denied", "quarantined"]);
        assert_eq!(told(AuditKind::Started, None, None), ["Unknown", "Informational", "Unknown", "running"]);
        assert_eq!(told(AuditKind::Interrupted, None, None), ["Failure", "Low", "Unknown", "interrupted"]);
    }

    #[test]
    fn attributes_without_a_value_are_omitted_but_foreign_json_is_kept() {
        let event = event(AuditRow {
            app_id: Some("app".to_owned()),
            user_id: Some("ann".to_owned()),
            ..row(AuditKind::Finished, Some("success"), None)
        });
        assert_eq!(event["api"]["request"]["data"], json!({ "a": null }));
        assert_eq!(event["unmapped"]["delegation"], json!([{ "delegate": null }]));
        assert_eq!(event["actor"], json!({ "app_uid": "app", "user": { "uid": "ann", "type_id": 1, "type": "User" } }));
        assert_eq!(event["src_endpoint"], json!({ "name": "unknown" }));
        for absent in ["ai_agent", "resources", "policy", "status_detail"] {
            assert_eq!(event.get(absent), None, "{absent}");
        }
        assert_eq!((&event["time"], &event["unmapped"]["finished_at"]), (&json!(5), &json!(UtcMillis(6))));
    }

    #[test]
    fn the_actor_of_a_read_of_files_is_its_key() {
        let params = r#"{"key_id":"k","key_kind":"operator","object":"s","path":"/workspace"}"#;
        let read = |tool: Option<&str>| {
            event(AuditRow {
                bot_id: Some(BotId::new()),
                tool: tool.map(str::to_owned),
                operation: Some("sandbox.read".to_owned()),
                params: Some(params.to_owned()),
                ..row(AuditKind::Finished, Some("success"), None)
            })
        };
        let by_key = read(None);
        let user = json!({ "uid": "k", "credential_uid": "k", "type_id": 99, "type": "operator" });
        assert_eq!((&by_key["actor"]["user"], &by_key["src_endpoint"]), (&user, &json!({ "uid": "k" })));
        assert_eq!((by_key.get("ai_agent"), &by_key["resources"][0]["uid"]), (None, &json!("s")));
        // A bot that sends such parameters stays the actor.
        let by_bot = read(Some("tool"));
        assert_eq!(by_bot["actor"]["user"]["uid"], by_bot["unmapped"]["bot_id"]);
        assert_eq!((by_bot["ai_agent"]["uid"].is_string(), by_bot.get("resources")), (true, None));
    }

    #[test]
    fn a_change_whose_parameters_were_replaced_has_an_entity() {
        let change = |params: &str, operation: &str| {
            event(AuditRow {
                tool: None,
                operation: Some(operation.to_owned()),
                params: Some(params.to_owned()),
                flags: Some(CHANGE_FLAG.to_owned()),
                ..row(AuditKind::Finished, Some("success"), None)
            })
        };
        let large = change(r#"{"digest":"sha256:0","bytes":9,"first":"x"}"#, "import.apply");
        assert_eq!(large["entity"], json!({ "name": "unknown", "type_id": 99, "type": "import" }));
        assert_eq!(large["unmapped"]["params"]["digest"], "sha256:0");
        assert_eq!((&large["type_uid"], &large["activity_name"]), (&json!(300_499), &json!("apply")));
        let offline = r#"{"key_id":null,"key_kind":null,"object":"k","before":null,"after":{"id":"k"}}"#;
        let offline = change(offline, "credential.save");
        assert_eq!(offline["actor"], json!({ "app_name": "monstrum" }));
        assert_eq!((&offline["activity_id"], &offline["updated_entity"]["data"]), (&json!(1), &json!({ "id": "k" })));
        assert_eq!(offline["unmapped"].get("params"), None);
    }
}
