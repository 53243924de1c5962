//! Validation of configurations and credentials before they are saved.

use std::collections::BTreeMap;

use monstrum_types::{Effort, InputError, Params, Secret};
use serde_json::{Map, Value};
use url::Url;

use crate::error::cut;
use crate::model::{Field, FieldKind};
use crate::schema::{CHECK_STEPS_MAX, InputSchema, SchemaLimits};

/// Maximum length of a field's value in bytes: large enough for a certificate chain, and small enough to store in a
/// database row.
const VALUE_BYTES_MAX: usize = 65_536;
/// Minimum length of a secret in bytes. Redacting a shorter secret would also remove ordinary words.
const SECRET_BYTES_MIN: usize = 8;

/// Validates a configuration against its schema and fills in the defaults. Null values are treated as absent.
///
/// # Errors
/// Returns all validation errors, each with a pointer to its field.
pub fn check_fields(fields: &[Field], mut values: Map<String, Value>) -> Result<Map<String, Value>, Vec<InputError>> {
    values.retain(|_, value| !value.is_null());
    let mut errors: Vec<InputError> =
        values.keys().filter(|key| !declared(fields, key)).map(|key| input_error(key, "unknown field")).collect();
    for field in fields {
        match values.get(&field.field) {
            Some(value) => match check_value(field, value) {
                Ok(()) => errors.extend(schema_errors(field, value)),
                Err(message) => errors.push(input_error(&field.field, &message)),
            },
            None => match &field.default {
                Some(default) => {
                    values.insert(field.field.clone(), default.clone());
                }
                None if field.required => errors.push(input_error(&field.field, "required field is missing")),
                None => {}
            },
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(errors) }
}

/// Validates a credential against its schema. Messages never contain a value.
///
/// # Errors
/// Returns all validation errors, each with a pointer to its field.
pub fn check_secret_fields(fields: &[Field], values: &BTreeMap<String, Secret>) -> Result<(), Vec<InputError>> {
    let mut errors: Vec<InputError> =
        values.keys().filter(|key| !declared(fields, key)).map(|key| input_error(key, "unknown field")).collect();
    for field in fields {
        match values.get(&field.field).map(Secret::expose) {
            None | Some("") if field.required && field.default.is_none() => {
                errors.push(input_error(&field.field, "required field is missing"));
            }
            None | Some("") => {}
            Some(value) => {
                if let Err(message) = check_secret(field, value) {
                    errors.push(input_error(&field.field, message));
                }
            }
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

fn declared(fields: &[Field], name: &str) -> bool {
    fields.iter().any(|field| field.field == name)
}

fn input_error(field: &str, message: &str) -> InputError {
    InputError { path: format!("/{}", escape(&cut(field, 64))), message: message.to_owned() }
}

/// Escapes a key for use in a JSON pointer (RFC 6901).
pub(crate) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Checks that `value` has the field's type. The message names the expected type.
pub(crate) fn check_value(field: &Field, value: &Value) -> Result<(), String> {
    if field.kind == FieldKind::Integer {
        return if value.is_i64() || value.is_u64() { Ok(()) } else { Err("expected an integer".to_owned()) };
    }
    if field.kind == FieldKind::Json {
        let is_long = value.to_string().len() > VALUE_BYTES_MAX;
        return if is_long { Err(format!("must not be longer than {VALUE_BYTES_MAX} bytes")) } else { Ok(()) };
    }
    let Some(text) = value.as_str() else { return Err("expected a string".to_owned()) };
    if text.len() > VALUE_BYTES_MAX {
        return Err(format!("must not be longer than {VALUE_BYTES_MAX} bytes"));
    }
    match field.kind {
        FieldKind::Url if field.field == "api_base" => Ok(check_base(text)?),
        FieldKind::Url => Ok(check_url(text)?),
        FieldKind::Enum => check_enum(field, text),
        FieldKind::String | FieldKind::Secret | FieldKind::Integer | FieldKind::Json => Ok(()),
    }
}

/// Returns the errors of a value that does not match the schema of its field, with pointers into the value.
fn schema_errors(field: &Field, value: &Value) -> Vec<InputError> {
    let Some(schema) = &field.schema else { return Vec::new() };
    // Only schemas of objects can be compiled, so the value is checked as the member of an object.
    let object = Map::from_iter([
        ("type".to_owned(), Value::from("object")),
        ("properties".to_owned(), Value::from(Map::from_iter([(field.field.clone(), Value::from(schema.clone()))]))),
    ]);
    let params = Params::new(Value::from(Map::from_iter([(field.field.clone(), value.clone())])));
    let effort = Effort::of(CHECK_STEPS_MAX);
    let checked =
        InputSchema::compile(&object, SchemaLimits::Stored, &effort).map(|schema| schema.check(&params, &effort));
    match checked {
        Ok(Ok(checked)) => checked.err().unwrap_or_default(),
        Ok(Err(overrun)) => vec![input_error(&field.field, &format!("cannot be checked: {overrun}"))],
        Err(why) => vec![input_error(&field.field, &why)],
    }
}

fn check_enum(field: &Field, text: &str) -> Result<(), String> {
    let allowed = field.enum_values.as_deref().unwrap_or_default();
    if allowed.iter().any(|value| value == text) {
        return Ok(());
    }
    let listed: Vec<String> = allowed.iter().map(|value| format!("`{value}`")).collect();
    Err(cut(&format!("expected one of {}", listed.join(", ")), 200))
}

fn check_secret(field: &Field, value: &str) -> Result<(), &'static str> {
    if value.contains(['\r', '\n', '\0']) {
        return Err("must not contain a line break or a NUL");
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err("must not be longer than 65536 bytes");
    }
    match field.kind {
        FieldKind::Secret if value.len() < SECRET_BYTES_MIN => Err("a secret must have at least 8 bytes"),
        FieldKind::Secret | FieldKind::String => Ok(()),
        FieldKind::Integer => value.parse::<i64>().map(|_| ()).map_err(|_| "expected an integer"),
        FieldKind::Url => check_url(value),
        FieldKind::Enum => {
            let allowed = field.enum_values.as_deref().unwrap_or_default();
            if allowed.iter().any(|one| one == value) { Ok(()) } else { Err("expected one of the listed values") }
        }
        FieldKind::Json => Err("a credential cannot have a field of type `json`"),
    }
}

/// Checks an http or https URL. The URL must have a host, and must not have a user name or password.
pub(crate) fn check_url(text: &str) -> Result<(), &'static str> {
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err("a URL must not contain spaces, control characters or backslashes");
    }
    let url = Url::parse(text).map_err(|_| "expected a URL such as https://api.example.com")?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("expected an http or https URL");
    }
    // `https://@host` has an empty user name, which is missing from the parsed URL.
    let authority = text.split_once("://").map_or("", |(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(rest));
    if authority.is_empty() {
        return Err("expected a URL such as https://api.example.com");
    }
    if authority.contains('@') {
        return Err("a URL must not contain a user name or password");
    }
    Ok(())
}

/// Checks the `api_base`. Paths are appended to it as text, so the `api_base` must not have a query or a fragment.
fn check_base(text: &str) -> Result<(), &'static str> {
    check_url(text)?;
    if text.contains(['?', '#']) {
        return Err("api_base must not have a query or a fragment");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields() -> Vec<Field> {
        serde_json::from_value(json!([
            {"field": "api_base", "type": "url", "required": false, "default": "https://api.example.com"},
            {"field": "region", "type": "enum", "enum_values": ["us", "eu"]},
            {"field": "page", "type": "integer", "required": false},
            {"field": "note", "required": false},
        ]))
        .unwrap()
    }

    fn check(values: &Value) -> String {
        match check_fields(&fields(), values.as_object().unwrap().clone()) {
            Ok(values) => Value::Object(values).to_string(),
            Err(errors) => {
                let lines: Vec<String> =
                    errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
                lines.join("; ")
            }
        }
    }

    #[test]
    fn a_configuration_is_checked_and_completed() {
        assert_eq!(check(&json!({"region": "us"})), r#"{"region":"us","api_base":"https://api.example.com"}"#);
        assert_eq!(
            check(&json!({"region": "eu", "api_base": null, "note": null})),
            r#"{"region":"eu","api_base":"https://api.example.com"}"#
        );
    }

    #[test]
    fn all_errors_of_a_configuration_are_reported() {
        assert_eq!(check(&json!({})), "/region: required field is missing");
        assert_eq!(
            check(&json!({"region": "mars", "page": "5", "note": 1, "a/b": 1})),
            "/a~1b: unknown field; /region: expected one of `us`, `eu`; /page: expected an integer; /note: expected a string"
        );
        for bad in [
            "ftp://x.example",
            "x.example",
            "https://",
            "https:///x.example",
            "https://u@x.example",
            "https://u:p@x.example",
            "https://@x.example",
            "https://x.example/?q",
            "https://x.example/#f",
            "https://x .example",
            "https://x.example\n",
            "https:\\\\x.example",
            "javascript:alert(1)",
            "mailto:a@x.example",
        ] {
            assert!(check(&json!({"region": "us", "api_base": bad})).starts_with("/api_base: "), "{bad}");
        }
    }

    fn check_credential(values: &[(&str, &str)]) -> String {
        let fields: Vec<Field> = serde_json::from_value(json!([
            {"field": "token", "type": "secret"},
            {"field": "email", "required": false},
        ]))
        .unwrap();
        let values = values.iter().map(|(key, value)| ((*key).to_owned(), Secret::new((*value).to_owned()))).collect();
        match check_secret_fields(&fields, &values) {
            Ok(()) => "ok".to_owned(),
            Err(errors) => {
                let lines: Vec<String> =
                    errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
                lines.join("; ")
            }
        }
    }

    #[test]
    fn errors_of_a_credential_do_not_show_its_values() {
        assert_eq!(check_credential(&[("token", "12345678")]), "ok");
        assert_eq!(check_credential(&[("token", "1234567")]), "/token: a secret must have at least 8 bytes");
        assert_eq!(check_credential(&[("token", "")]), "/token: required field is missing");
        assert_eq!(check_credential(&[]), "/token: required field is missing");
        for bad in ["canary-value\r", "canary\nvalue", "canary\0value"] {
            assert_eq!(check_credential(&[("token", bad)]), "/token: must not contain a line break or a NUL");
            assert_eq!(
                check_credential(&[("token", "12345678"), ("email", bad)]),
                "/email: must not contain a line break or a NUL"
            );
        }
        assert_eq!(check_credential(&[("token", "12345678"), ("more", "x")]), "/more: unknown field");
    }
}
