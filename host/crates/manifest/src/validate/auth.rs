//! Validation of authentication methods. The injection rules may use only declared fields and must not set headers that
//! the host sets.

use std::collections::HashSet;

use crate::auth::{is_well_formed, placeholders};
use crate::error::FieldPath;
use crate::fields::check_url;
use crate::model::{AuthKind, AuthMethod, Field, InjectRule, ResourceType};

use super::{ContentErrors, ENTRIES_MAX, FieldUse, fields};

/// Headers that only the host or the connection may set (RFC 9110, section 7.6.1, and HTTP framing).
const HOST_HEADERS: [&str; 12] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "accept-encoding",
    "forwarded",
    "http2-settings",
];
const HOST_HEADER_PREFIXES: [&str; 2] = ["proxy-", "x-forwarded-"];

pub(super) fn check(errors: &mut ContentErrors, resource_type: &ResourceType, at: &FieldPath) {
    let methods = &resource_type.auth_methods;
    errors.cap(at.clone(), methods, ENTRIES_MAX);
    errors.unique(
        methods.iter().enumerate().map(|(index, method)| (at.index(index).key("method"), method.method.as_str())),
    );
    for (index, method) in methods.iter().enumerate() {
        let at = at.index(index);
        fields(errors, &method.credential_schema, &at.key("credential_schema"), FieldUse::Credential);
        if let Some(audience) = &method.audience {
            errors.cap(at.key("audience"), audience, ENTRIES_MAX);
        }
        oauth(errors, method, &at.key("oauth_config"));
        inject(errors, method, method.credential_fields(resource_type), &at.key("inject"));
    }
}

fn oauth(errors: &mut ContentErrors, method: &AuthMethod, at: &FieldPath) {
    let Some(config) = &method.oauth_config else { return };
    if !method.method.is_oauth() {
        errors.add(at.clone(), format!("the method `{}` does not use OAuth", method.method));
    }
    errors.cap(at.key("scopes"), &config.scopes, ENTRIES_MAX);
    for (name, url) in [
        ("authorization_url", &config.authorization_url),
        ("token_url", &config.token_url),
        ("device_authorization_url", &config.device_authorization_url),
    ] {
        if let Some(Err(why)) = url.as_deref().map(check_url) {
            errors.add(at.key(name), why);
        }
    }
}

fn inject(errors: &mut ContentErrors, method: &AuthMethod, credential: &[Field], at: &FieldPath) {
    let rules = method.inject_rules();
    errors.cap(at.clone(), &rules, ENTRIES_MAX);
    let mut targets = HashSet::new();
    for (index, rule) in rules.iter().enumerate() {
        // Default rules are not in the file, so their errors are reported for the method.
        let at = if method.inject.is_some() { at.index(index) } else { at.clone() };
        rule_target(errors, rule, &at);
        if !targets.insert(target(rule)) {
            errors.add(at.clone(), "an earlier rule sets the same part of the request");
        }
        for text in rule.templates() {
            template(errors, method, credential, text, &at);
        }
    }
}

/// Returns the part of the request that a rule writes to.
fn target(rule: &InjectRule) -> (&'static str, String) {
    match rule {
        InjectRule::Header(_) | InjectRule::Basic(_) => {
            ("header", rule.header_name().unwrap_or_default().to_ascii_lowercase())
        }
        InjectRule::Query(rule) => ("query", rule.query.clone()),
        InjectRule::Body(rule) => ("body", rule.body.clone()),
        InjectRule::Path(rule) => ("path", rule.path.clone()),
    }
}

/// Returns whether only the host or the connection may set the header `name`.
pub(crate) fn is_host_header(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    HOST_HEADERS.contains(&lower.as_str()) || HOST_HEADER_PREFIXES.iter().any(|prefix| lower.starts_with(prefix))
}

fn rule_target(errors: &mut ContentErrors, rule: &InjectRule, at: &FieldPath) {
    match rule {
        InjectRule::Header(rule) => {
            if !is_token(&rule.header) {
                errors.add(at.key("header"), "expected the name of a header, such as Authorization");
            } else if is_host_header(&rule.header) {
                errors.add(at.key("header"), format!("only the host may set the header `{}`", rule.header));
            }
        }
        InjectRule::Query(rule) => errors.short_text(at.key("query"), &rule.query),
        InjectRule::Basic(_) => {}
        InjectRule::Body(rule) => {
            if !is_leaf_pointer(&rule.body) {
                errors.add(at.key("body"), "expected a JSON pointer such as `/auth/key`");
            }
        }
        InjectRule::Path(rule) => {
            let names = placeholders(&rule.path);
            if names.len() != 1 || rule.path != format!("{{{}}}", names[0]) {
                errors.add(at.key("path"), "expected exactly one placeholder, such as `{token}`");
            }
        }
    }
}

fn template(errors: &mut ContentErrors, method: &AuthMethod, credential: &[Field], text: &str, at: &FieldPath) {
    if text.chars().any(char::is_control) {
        errors.add(at.clone(), "a value must not contain control characters");
    }
    if !is_well_formed(text) {
        errors.add(at.clone(), "braces must enclose the name of a credential field, as in `{access_token}`");
    }
    for name in placeholders(text) {
        // With OAuth, the host provides this field, so the credential schema does not need to declare the field.
        let by_oauth = method.method.is_oauth() && name == "access_token";
        if by_oauth || credential.iter().any(|field| field.field == name) {
            continue;
        }
        errors.add(at.clone(), unknown_field(method, credential, name));
    }
}

fn unknown_field(method: &AuthMethod, credential: &[Field], name: &str) -> String {
    if method.method == AuthKind::None {
        return format!("`{{{name}}}` is not a field: the method `none` has no credential");
    }
    let known: Vec<String> = credential.iter().map(|field| format!("`{}`", field.field)).collect();
    let known = if known.is_empty() { "the credential has no fields".to_owned() } else { known.join(", ") };
    if method.inject.is_some() {
        return format!("`{{{name}}}` is not a field: expected one of the credential's fields ({known})");
    }
    format!(
        "the default `inject` rules use `{{{name}}}`, which is not a field of the credential; add the field to the \
         credential, or add `inject` rules that use its fields ({known})"
    )
}

/// Returns whether `name` is a token (RFC 9110).
fn is_token(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Returns whether `text` is a JSON pointer (RFC 6901) to a member of an object. The step `-`, which means the end of a
/// list, is not allowed.
fn is_leaf_pointer(text: &str) -> bool {
    let escapes_are_whole =
        |step: &str| step.split('~').skip(1).all(|after| after.starts_with('0') || after.starts_with('1'));
    text.len() <= 256
        && text.strip_prefix('/').is_some_and(|steps| {
            steps.split('/').all(|step| !step.is_empty() && step != "-" && escapes_are_whole(step))
        })
}
