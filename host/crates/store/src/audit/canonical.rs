//! The canonical text of a row, which its hash covers: RFC 8785 JSON of the fields of the row, without the hash. The
//! text of version 2 also contains the previous hash, and is stored in the database.

use std::fmt::{Display, Write as _};

use super::AuditRow;

/// The largest integer that a double can represent exactly. Larger integers are written as strings, because RFC 8785
/// treats numbers as doubles.
const EXACT_MAX: u64 = (1 << 53) - 1;

/// The version of a row's canonical text, which is the field `v` of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    First = 1,
    Second = 2,
}

impl AuditRow {
    /// Returns the canonical text of version 1. NULL columns are omitted, so no other value can look like NULL.
    #[must_use]
    pub fn canonical_of_version_1(&self) -> Vec<u8> {
        let mut text = String::with_capacity(640 + self.params.as_ref().map_or(0, String::len));
        self.write(Version::First, &mut text);
        text.into_bytes()
    }

    /// Appends the canonical text of version 2 to `text`. Unknown values are omitted.
    pub fn write_canonical(&self, text: &mut String) {
        self.write(Version::Second, text);
    }

    fn write(&self, version: Version, text: &mut String) {
        let mut json = Object::new(text);
        // RFC 8785 requires sorted keys.
        if version == Version::Second {
            json.text("app_id", self.app_id.as_deref());
        }
        json.int("at", Some(self.at.0));
        json.unescaped("bot_id", self.bot_id.as_ref());
        json.text("code", self.code.as_deref());
        json.text("delegation", self.delegation.as_deref());
        json.int("duration_ms", self.duration_ms);
        json.text("flags", self.flags.as_deref());
        json.int("key_version", Some(self.key_version));
        json.text("kind", Some(self.kind.as_str()));
        json.text("message", self.message.as_deref());
        json.text("operation", self.operation.as_deref());
        json.text("params", self.params.as_deref());
        json.unescaped("parent_request_id", self.parent_request_id.as_ref());
        json.text("plugin", self.plugin.as_deref());
        json.text("plugin_digest", self.plugin_digest.as_deref());
        if version == Version::Second {
            json.hash("previous_hash", &self.previous_hash);
        }
        json.unescaped("request_id", Some(&self.request_id));
        json.unescaped("resource_id", self.resource_id.as_ref());
        json.text("rule", self.rule.as_deref());
        json.int("sequence", Some(self.sequence));
        json.int("started_at", Some(self.started_at.0));
        json.text("status", self.status.as_deref());
        json.text("task_id", self.task_id.as_deref());
        json.text("tool", self.tool.as_deref());
        if version == Version::Second {
            json.text("user_id", self.user_id.as_deref());
        }
        json.int("v", Some(version as i64));
        json.unescaped("workspace_id", self.workspace_id.as_ref());
        json.text("writer", Some(&self.writer));
        json.end();
    }
}

/// A builder that appends a JSON object to a text.
struct Object<'a> {
    text: &'a mut String,
    is_empty: bool,
}

impl<'a> Object<'a> {
    fn new(text: &'a mut String) -> Self {
        text.push('{');
        Object { text, is_empty: true }
    }

    fn key(&mut self, key: &str) {
        if !std::mem::take(&mut self.is_empty) {
            self.text.push(',');
        }
        self.text.push('"');
        self.text.push_str(key);
        self.text.push_str("\":");
    }

    fn int(&mut self, key: &str, value: Option<i64>) {
        let Some(value) = value else { return };
        self.key(key);
        let quote = if value.unsigned_abs() > EXACT_MAX { "\"" } else { "" };
        self.display(format_args!("{quote}{value}{quote}"));
    }

    /// Writes a value whose text needs no escaping.
    fn unescaped(&mut self, key: &str, value: Option<&impl Display>) {
        let Some(value) = value else { return };
        self.key(key);
        self.display(format_args!("\"{value}\""));
    }

    fn hash(&mut self, key: &str, hash: &[u8; 32]) {
        let mut digits = [0; 64];
        hex::encode_to_slice(hash, &mut digits).expect("a hash has 64 digits");
        self.unescaped(key, std::str::from_utf8(&digits).ok().as_ref());
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.key(key);
        self.text.push('"');
        let mut plain = 0;
        for (index, byte) in value.bytes().enumerate() {
            if byte >= 0x20 && byte != b'"' && byte != b'\\' {
                continue;
            }
            self.text.push_str(&value[plain..index]);
            plain = index + 1;
            match byte {
                b'"' => self.text.push_str("\\\""),
                b'\\' => self.text.push_str("\\\\"),
                0x08 => self.text.push_str("\\b"),
                b'\t' => self.text.push_str("\\t"),
                b'\n' => self.text.push_str("\\n"),
                0x0c => self.text.push_str("\\f"),
                b'\r' => self.text.push_str("\\r"),
                control => self.display(format_args!("\\u{control:04x}")),
            }
        }
        self.text.push_str(&value[plain..]);
        self.text.push('"');
    }

    fn display(&mut self, text: std::fmt::Arguments<'_>) {
        self.text.write_fmt(text).expect("writing to a String does not fail");
    }

    fn end(self) {
        self.text.push('}');
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use monstrum_types::{RequestId, UtcMillis};
    use serde_json::{Value, json};

    use super::super::AuditKind;
    use super::*;

    fn row() -> AuditRow {
        let id: RequestId = "01939d2c-7f6a-7000-8000-000000000001".parse().unwrap();
        AuditRow {
            writer: "node-1".to_owned(),
            sequence: 7,
            kind: AuditKind::Finished,
            request_id: id,
            workspace_id: Some("01939d2c-7f6a-7000-8000-000000000002".parse().unwrap()),
            bot_id: Some("01939d2c-7f6a-7000-8000-000000000003".parse().unwrap()),
            app_id: Some("app".to_owned()),
            user_id: Some("7".to_owned()),
            task_id: Some("task".to_owned()),
            resource_id: Some("01939d2c-7f6a-7000-8000-000000000004".parse().unwrap()),
            tool: Some("github_list_issues".to_owned()),
            operation: Some("issue.read".to_owned()),
            plugin: Some("github".to_owned()),
            plugin_digest: Some("sha256:00".to_owned()),
            status: Some("error".to_owned()),
            code: Some("plugin".to_owned()),
            message: Some(
                "GitHub API error: 404 - \"Not Found\"\\\n\r\t\u{8}\u{c}\u{1f}\0\u{7f}é😀\u{2028}".to_owned(),
            ),
            rule: Some("binding".to_owned()),
            params: Some(r#"{"repo":"acme/web"}"#.to_owned()),
            duration_ms: Some(12),
            started_at: UtcMillis(1_795_000_000_000),
            at: UtcMillis(1_795_000_000_012),
            parent_request_id: Some(id),
            delegation: Some("[]".to_owned()),
            flags: Some("output_mismatch".to_owned()),
            key_version: 1,
            previous_hash: [1; 32],
            hash: [2; 32],
        }
    }

    fn first(row: &AuditRow) -> String {
        String::from_utf8(row.canonical_of_version_1()).unwrap()
    }

    fn second(row: &AuditRow) -> String {
        let mut text = String::new();
        row.write_canonical(&mut text);
        text
    }

    #[test]
    fn the_form_is_a_sorted_object() {
        let row = row();
        let columns = super::super::first::columns!().split(", ").count();
        // Both texts lack the hash and have `v`. The first text also lacks the previous hash, and has no user.
        for (text, version, expected) in [(first(&row), 1, columns - 2 + 1), (second(&row), 2, columns + 2 - 1 + 1)] {
            let parsed: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(parsed["message"], json!(row.message));
            assert_eq!(parsed["v"], json!(version));
            let sorted: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
            assert_eq!(sorted.len(), expected, "every field but the hashes, and v");
            assert_eq!(serde_json::to_string(&sorted).unwrap(), text);
        }
    }

    #[test]
    fn unknown_values_are_left_out() {
        let bare = AuditRow {
            workspace_id: None,
            bot_id: None,
            app_id: None,
            user_id: None,
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
            ..row()
        };
        assert_eq!(
            first(&bare),
            r#"{"at":1795000000012,"key_version":1,"kind":"finished","request_id":"01939d2c-7f6a-7000-8000-000000000001","sequence":7,"started_at":1795000000000,"v":1,"writer":"node-1"}"#
        );
        let previous = "01".repeat(32);
        assert_eq!(
            second(&bare),
            format!(
                r#"{{"at":1795000000012,"key_version":1,"kind":"finished","previous_hash":"{previous}","request_id":"01939d2c-7f6a-7000-8000-000000000001","sequence":7,"started_at":1795000000000,"v":2,"writer":"node-1"}}"#
            )
        );
    }

    #[test]
    fn integers_that_exceed_a_double_are_text() {
        for (value, form) in [
            (9_007_199_254_740_991, "9007199254740991"),
            (9_007_199_254_740_992, "\"9007199254740992\""),
            (-9_007_199_254_740_991, "-9007199254740991"),
            (i64::MIN, "\"-9223372036854775808\""),
        ] {
            let text = second(&AuditRow { duration_ms: Some(value), ..row() });
            assert!(text.contains(&format!("\"duration_ms\":{form},")), "{text}");
        }
    }

    #[test]
    fn nul_is_replaced() {
        let row = AuditRow { tool: Some("a\0b".to_owned()), ..row() }.without_nul();
        assert_eq!(row.tool.as_deref(), Some("a\u{fffd}b"));
        assert!(!row.message.unwrap().contains('\0'));
    }
}
