//! Authentication methods: the fields of a credential, its injection rules and its audience.

use serde_json::{Map, Value};
use url::Url;

use crate::model::{
    AuthKind, AuthMethod, BasicPair, BasicRule, Executor, Field, HeaderRule, InjectRule, Mode, ResourceType,
};
use crate::origin::OriginPattern;

impl AuthMethod {
    /// Returns the injection rules of the manifest, or the method's default rules if the manifest has none.
    #[must_use]
    pub fn inject_rules(&self) -> Vec<InjectRule> {
        if let Some(rules) = &self.inject {
            return rules.clone();
        }
        let header = |name: &str, value: &str| {
            vec![InjectRule::Header(HeaderRule { header: name.to_owned(), value: value.to_owned() })]
        };
        match self.method {
            AuthKind::Token | AuthKind::Oauth2AuthCode | AuthKind::Oauth2ClientCreds | AuthKind::Oauth2DeviceCode => {
                header("Authorization", "Bearer {access_token}")
            }
            AuthKind::ApiKey => header("X-API-Key", "{api_key}"),
            AuthKind::Basic => vec![InjectRule::Basic(BasicRule {
                basic: BasicPair { username: "{username}".to_owned(), password: "{password}".to_owned() },
            })],
            AuthKind::SshKey | AuthKind::None => Vec::new(),
        }
    }

    /// Returns the injection rules for a resource with this configuration. In a built-in type, the field `key_header` names
    /// the header of an API key. Only the header for which the manifest has a rule carries more than the key.
    #[must_use]
    pub fn inject_rules_for(&self, resource_type: &ResourceType, config: &Map<String, Value>) -> Vec<InjectRule> {
        let is_own = resource_type.mode == Mode::System && self.method == AuthKind::ApiKey;
        let has_rule = |header: &str| {
            let declared = self.inject.iter().flatten().filter_map(InjectRule::header_name);
            declared.into_iter().any(|own| own.eq_ignore_ascii_case(header))
        };
        match config.get("key_header").and_then(Value::as_str).filter(|header| is_own && !has_rule(header)) {
            Some(header) => {
                vec![InjectRule::Header(HeaderRule { header: header.to_owned(), value: "{api_key}".to_owned() })]
            }
            None => self.inject_rules(),
        }
    }

    /// Returns this method's credential fields, or the credential fields of the resource type if the method has none.
    #[must_use]
    pub fn credential_fields<'a>(&'a self, resource_type: &'a ResourceType) -> &'a [Field] {
        if self.credential_schema.is_empty() { &resource_type.credential_schema } else { &self.credential_schema }
    }

    /// Returns the origins that may receive the credential: the audience of the manifest, otherwise the origin of the
    /// configured base URL (in a built-in type, the URL itself), otherwise the executor's egress. If the base URL is not valid, the list is empty.
    #[must_use]
    pub fn audience(
        &self,
        resource_type: &ResourceType,
        config: &Map<String, Value>,
        executor: &Executor,
    ) -> Vec<OriginPattern> {
        if let Some(audience) = &self.audience {
            return audience.clone();
        }
        match resource_type.base_url(config) {
            None | Some(Value::Null) => executor.egress.clone(),
            Some(base) => {
                let url = base.as_str().and_then(|text| Url::parse(text).ok());
                // The endpoint of an MCP server is a single URL. Other paths of the server may belong to others.
                let is_endpoint = resource_type.mode == Mode::System && config.contains_key("url");
                let pattern = if is_endpoint { OriginPattern::of_endpoint } else { OriginPattern::of_url };
                url.as_ref().and_then(pattern).into_iter().collect()
            }
        }
    }
}

impl ResourceType {
    /// Returns the base URL in a configuration, to whose origin credentials are sent: `api_base` or, in a built-in type
    /// that has this field, `url`.
    #[must_use]
    pub fn base_url<'c>(&self, config: &'c Map<String, Value>) -> Option<&'c Value> {
        let of_system = config.get("url").filter(|_| self.mode == Mode::System);
        of_system.or_else(|| config.get("api_base"))
    }
}

impl InjectRule {
    /// Returns the templates of this rule, which contain `{field}` placeholders.
    #[must_use]
    pub fn templates(&self) -> Vec<&str> {
        match self {
            InjectRule::Header(rule) => vec![&rule.value],
            InjectRule::Query(rule) => vec![&rule.value],
            InjectRule::Basic(rule) => vec![&rule.basic.username, &rule.basic.password],
            InjectRule::Body(rule) => vec![&rule.value],
            InjectRule::Path(rule) => vec![&rule.value],
        }
    }

    /// Returns the header that this rule sets. A plugin may not set this header.
    #[must_use]
    pub fn header_name(&self) -> Option<&str> {
        match self {
            InjectRule::Header(rule) => Some(&rule.header),
            InjectRule::Basic(_) => Some("Authorization"),
            InjectRule::Query(_) | InjectRule::Body(_) | InjectRule::Path(_) => None,
        }
    }
}

impl AuthKind {
    /// Returns whether the platform obtains the credential through OAuth.
    #[must_use]
    pub fn is_oauth(self) -> bool {
        matches!(self, AuthKind::Oauth2AuthCode | AuthKind::Oauth2ClientCreds | AuthKind::Oauth2DeviceCode)
    }
}

/// A piece of a template.
enum Piece<'a> {
    Text(&'a str),
    Placeholder(&'a str),
}

/// Splits `text` at its placeholders. A brace outside a `{field}` placeholder is kept as text; the validation of
/// manifests rejects such templates.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let name = rest[open + 1..].find('}').map(|length| &rest[open + 1..open + 1 + length]);
        match name {
            Some(name) if is_field_name(name) => {
                found.push(Piece::Text(&rest[..open]));
                found.push(Piece::Placeholder(name));
                rest = &rest[open + name.len() + 2..];
            }
            _ => {
                found.push(Piece::Text(&rest[..=open]));
                rest = &rest[open + 1..];
            }
        }
    }
    found.push(Piece::Text(rest));
    found
}

/// Returns whether `name` is a valid field name: 1 to 64 letters, digits, `_` or `-`.
pub(crate) fn is_field_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Returns whether all braces of `text` are part of placeholders.
pub(crate) fn is_well_formed(text: &str) -> bool {
    pieces(text).iter().all(|piece| {
        matches!(piece, Piece::Placeholder(_)) || matches!(piece, Piece::Text(text) if !text.contains(['{', '}']))
    })
}

/// Returns the names in `{…}`, in order and with repetitions.
#[must_use]
pub fn placeholders(text: &str) -> Vec<&str> {
    pieces(text)
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Placeholder(name) => Some(name),
            Piece::Text(_) => None,
        })
        .collect()
}

/// Replaces each `{field}` in `text` with the value of the field. Returns `None` if a value is missing. Placeholders
/// inside values are not replaced. The result contains secrets: wrap it immediately.
#[must_use]
pub fn fill(text: &str, mut value: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let mut filled = String::with_capacity(text.len());
    for piece in pieces(text) {
        match piece {
            Piece::Text(text) => filled.push_str(text),
            Piece::Placeholder(name) => filled.push_str(&value(name)?),
        }
    }
    Some(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn method(value: Value) -> AuthMethod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn each_method_has_its_default_rules() {
        let rules: Vec<String> = [
            "oauth2_auth_code",
            "oauth2_client_creds",
            "oauth2_device_code",
            "api_key",
            "token",
            "ssh_key",
            "basic",
            "none",
        ]
        .iter()
        .map(|kind| {
            let method = method(json!({"method": kind}));
            assert_eq!(method.method.as_str(), *kind);
            format!("{kind}: {}", serde_json::to_string(&method.inject_rules()).unwrap())
        })
        .collect();
        insta::assert_snapshot!(rules.join("\n"), @r###"
        oauth2_auth_code: [{"header":"Authorization","value":"Bearer {access_token}"}]
        oauth2_client_creds: [{"header":"Authorization","value":"Bearer {access_token}"}]
        oauth2_device_code: [{"header":"Authorization","value":"Bearer {access_token}"}]
        api_key: [{"header":"X-API-Key","value":"{api_key}"}]
        token: [{"header":"Authorization","value":"Bearer {access_token}"}]
        ssh_key: []
        basic: [{"basic":{"username":"{username}","password":"{password}"}}]
        none: []
        "###);
    }

    #[test]
    fn rules_of_the_manifest_replace_the_defaults() {
        assert!(method(json!({"method": "token", "inject": []})).inject_rules().is_empty());
    }

    #[test]
    fn the_audience_defaults_to_api_base_or_egress() {
        let executor = Executor { egress: vec!["https://up.example".parse().unwrap()], ..Executor::default() };
        let audience = |method: &AuthMethod, config: Value| -> Vec<String> {
            let config = config.as_object().unwrap().clone();
            method.audience(&resource_type("plugin"), &config, &executor).iter().map(ToString::to_string).collect()
        };
        let undeclared = method(json!({"method": "token"}));
        assert_eq!(audience(&undeclared, json!({})), ["https://up.example"]);
        assert_eq!(audience(&undeclared, json!({"api_base": null})), ["https://up.example"]);
        assert_eq!(audience(&undeclared, json!({"api_base": "https://ghe.example/api/v3"})), ["https://ghe.example"]);
        assert!(audience(&undeclared, json!({"api_base": "not a url"})).is_empty());
        assert!(audience(&undeclared, json!({"api_base": 5})).is_empty());
        let declared = method(json!({"method": "token", "audience": ["https://*.example.com"]}));
        assert_eq!(audience(&declared, json!({"api_base": "https://ghe.example"})), ["https://*.example.com"]);
        let empty = method(json!({"method": "token", "audience": []}));
        assert!(audience(&empty, json!({"api_base": "https://ghe.example"})).is_empty());
    }

    fn resource_type(mode: &str) -> ResourceType {
        serde_json::from_value(json!({"id": "a", "name": "A", "mode": mode})).unwrap()
    }

    #[test]
    fn a_built_in_type_sends_credentials_to_its_url_and_keys_in_its_header() {
        let Value::Object(config) = json!({"url": "https://mcp.example/x", "key_header": "X-Key"}) else {
            unreachable!()
        };
        let key = method(json!({"method": "api_key"}));
        let (own, plugin) = (resource_type("system"), resource_type("plugin"));
        let executor = Executor::default();
        let audience: Vec<String> = key.audience(&own, &config, &executor).iter().map(ToString::to_string).collect();
        assert_eq!(audience, ["https://mcp.example/x"]);
        assert!(key.audience(&plugin, &config, &executor).is_empty(), "a plugin sends credentials to `api_base` only");
        let header = |of: &ResourceType| {
            let rules = key.inject_rules_for(of, &config);
            rules[0].header_name().map(str::to_owned)
        };
        assert_eq!((header(&own).as_deref(), header(&plugin).as_deref()), (Some("X-Key"), Some("X-API-Key")));
        let token = method(json!({"method": "token"}));
        assert_eq!(token.inject_rules_for(&own, &config), token.inject_rules());
        let Value::Object(base) = json!({"api_base": "https://llm.example/v1"}) else { unreachable!() };
        let audience: Vec<String> = key.audience(&own, &base, &executor).iter().map(ToString::to_string).collect();
        assert_eq!(audience, ["https://llm.example"]);
    }

    #[test]
    fn a_declared_header_carries_more_than_the_key_and_any_other_header_the_bare_key() {
        let rule = json!([{"header": "Authorization", "value": "Bearer {api_key}"}]);
        let key = method(json!({"method": "api_key", "inject": rule}));
        let value = |header: &str| {
            let config = Map::from_iter([("key_header".to_owned(), json!(header))]);
            serde_json::to_value(key.inject_rules_for(&resource_type("system"), &config)).unwrap()
        };
        assert_eq!(value("authorization"), rule);
        assert_eq!(value("api-key"), json!([{"header": "api-key", "value": "{api_key}"}]));
        let of_plugin = Map::from_iter([("key_header".to_owned(), json!("api-key"))]);
        assert_eq!(key.inject_rules_for(&resource_type("plugin"), &of_plugin), key.inject_rules());
    }

    #[test]
    fn placeholders_inside_values_are_not_replaced() {
        assert_eq!(placeholders("Bearer {a} and {b-2}{a}"), ["a", "b-2", "a"]);
        assert!(placeholders("{} {a b} } {").is_empty());
        let value = |name: &str| (name == "a").then(|| "{b}".to_owned());
        assert_eq!(fill("x {a}!", value), Some("x {b}!".to_owned()));
        assert_eq!(fill("x {b}", value), None);
        assert_eq!(fill("é{a}é", value), Some("é{b}é".to_owned()));
        assert!(is_well_formed("Bearer {a}") && is_well_formed("") && is_well_formed("plain"));
        assert!(!is_well_formed("{a") && !is_well_formed("a}") && !is_well_formed("{}") && !is_well_formed("{{a}}"));
    }
}
