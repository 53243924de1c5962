//! The request of a call, which handlers receive.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::wit::monstrum::plugin::types;

/// An authorized tool call, whose parameters are valid for the tool's `input_schema`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Request {
    /// The id of the call, which can be used as an idempotency key upstream.
    pub request_id: String,
    /// The id of the calling bot.
    pub bot_id: String,
    /// The id of the task, which groups calls.
    pub task_id: String,
    /// The operation of the tool, such as `issue.read`.
    pub operation: String,
    /// The name of the tool. Several tools may share an operation.
    pub tool_name: String,
    /// The parameters of the call.
    pub params: Map<String, Value>,
    /// The scope constraints that applied to the call.
    pub scope: Scope,
    /// The id of the resource, if the call has one.
    pub resource_id: Option<String>,
    /// The configuration of the resource, including the defaults of the manifest. The configuration contains no
    /// secrets.
    pub resource_config: Map<String, Value>,
    /// The limits of the delegation, if another bot acts through this bot. In a chain of delegations, these are the
    /// limits of the nearest link; the constraints of all links are in `scope`.
    pub delegate: Option<Delegate>,
    /// The language tag of the caller (BCP 47).
    pub locale: String,
    /// The wall-clock time in milliseconds that remains at the start of the call.
    pub deadline_ms: u32,
    /// A map that is reserved for extensions. Ignore unknown keys.
    pub context: Map<String, Value>,
}

impl Request {
    /// Returns a required parameter. `null` counts as absent.
    ///
    /// ```
    /// use monstrum_sdk::{Request, json};
    ///
    /// let mut request = Request::default();
    /// request.params.insert("number".to_owned(), json!(7));
    /// assert_eq!(request.param::<u64>("number"), Ok(7));
    /// assert_eq!(
    ///     request.param::<String>("number").unwrap_err().to_string(),
    ///     "parameter 'number': invalid type: integer `7`, expected a string",
    /// );
    /// assert_eq!(request.param::<String>("repo").unwrap_err().to_string(), "parameter 'repo': is required");
    /// ```
    ///
    /// # Errors
    /// Returns [`Error::Param`] if the parameter is missing or has the wrong type.
    pub fn param<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        self.optional_param(name)?.ok_or_else(|| param_error(name, "is required"))
    }

    /// Returns an optional parameter. `null` counts as absent.
    ///
    /// ```
    /// use monstrum_sdk::{Request, json};
    ///
    /// let mut request = Request::default();
    /// request.params.insert("labels".to_owned(), json!(["bug"]));
    /// assert_eq!(request.optional_param("labels"), Ok(Some(vec!["bug".to_owned()])));
    /// assert_eq!(request.optional_param::<String>("since"), Ok(None));
    /// ```
    ///
    /// # Errors
    /// Returns [`Error::Param`] if the parameter has the wrong type.
    pub fn optional_param<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        match self.params.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value).map(Some).map_err(|error| param_error(name, &error.to_string())),
        }
    }
}

fn param_error(name: &str, message: &str) -> Error {
    Error::Param { name: name.to_owned(), message: message.to_owned() }
}

/// The sets of constraints that applied to the call: the sets of the role, of the binding, and of each link of a
/// delegation. The host has already checked the scope dimensions of the manifest. Implement further checks in
/// [`validate_scope`](crate::Executor::validate_scope).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope(Vec<BTreeMap<String, Vec<String>>>);

impl Scope {
    /// Creates a scope from sets of constraints. Each set is a map from scope keys to patterns.
    #[must_use]
    pub fn new(sets: Vec<BTreeMap<String, Vec<String>>>) -> Self {
        Scope(sets)
    }

    /// Returns the sets of constraints.
    #[must_use]
    pub fn sets(&self) -> &[BTreeMap<String, Vec<String>>] {
        &self.0
    }

    /// Returns whether every set that contains `key` has a pattern for which `matches` returns true. An empty list of
    /// patterns permits nothing. If no set contains the key, everything is permitted.
    ///
    /// ```
    /// use monstrum_sdk::{Scope, glob};
    ///
    /// let scope = Scope::new(vec![[("hosts".to_owned(), vec!["*.example.com".to_owned()])].into()]);
    /// assert!(scope.permits("hosts", |pattern| glob::matches(pattern, "a.example.com")));
    /// assert!(!scope.permits("hosts", |pattern| glob::matches(pattern, "example.org")));
    /// ```
    pub fn permits(&self, key: &str, matches: impl Fn(&str) -> bool) -> bool {
        self.0.iter().filter_map(|set| set.get(key)).all(|patterns| patterns.iter().any(|pattern| matches(pattern)))
    }
}

/// The limits that a delegation sets when another bot acts through this bot. A list that is `None` sets no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delegate {
    /// Globs that match the names of allowed tools.
    pub allowed_tools: Option<Vec<String>>,
    /// The allowed patterns for each scope key.
    pub scope_constraints: Option<BTreeMap<String, Vec<String>>>,
}

impl TryFrom<types::ExecuteRequest> for Request {
    type Error = Error;

    fn try_from(request: types::ExecuteRequest) -> Result<Self, Error> {
        let delegate = match request.delegate {
            None => None,
            Some(delegate) => Some(Delegate {
                allowed_tools: delegate.allowed_tools,
                scope_constraints: optional_json("delegate", delegate.scope_constraints.as_deref())?,
            }),
        };
        Ok(Request {
            params: from_json("params", &request.params)?,
            scope: Scope(optional_json("scope", request.scope.as_deref())?.unwrap_or_default()),
            resource_config: from_json("resource-config", &request.resource_config)?,
            context: from_json("context", &request.context)?,
            delegate,
            request_id: request.request_id,
            bot_id: request.bot_id,
            task_id: request.task_id,
            operation: request.operation,
            tool_name: request.tool_name,
            resource_id: request.resource_id,
            locale: request.locale,
            deadline_ms: request.deadline_ms,
        })
    }
}

/// Parses a part of the request. An invalid part is an error, because an unreadable scope must not be treated as an
/// absent scope.
fn from_json<T: DeserializeOwned>(part: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::Message(format!("invalid {part} in the request: {error}")))
}

fn optional_json<T: DeserializeOwned>(part: &str, text: Option<&str>) -> Result<Option<T>, Error> {
    text.map(|text| from_json(part, text)).transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn from_host() -> types::ExecuteRequest {
        types::ExecuteRequest {
            request_id: "q".to_owned(),
            bot_id: "b".to_owned(),
            task_id: "t".to_owned(),
            operation: "issue.read".to_owned(),
            tool_name: "github_list_issues".to_owned(),
            params: r#"{"repo":"acme/site","since":null}"#.to_owned(),
            scope: Some(r#"[{"repos":["acme/*"]},{"repos":[]}]"#.to_owned()),
            resource_id: Some("r".to_owned()),
            resource_config: r#"{"api_base":"https://api.github.com"}"#.to_owned(),
            delegate: Some(types::DelegateConstraints {
                allowed_tools: Some(vec!["github_*".to_owned()]),
                scope_constraints: Some(r#"{"repos":["acme/site"]}"#.to_owned()),
            }),
            locale: "zh-CN".to_owned(),
            deadline_ms: 30_000,
            context: "{}".to_owned(),
        }
    }

    #[test]
    fn all_fields_are_converted() {
        let request = Request::try_from(from_host()).unwrap();
        let sets: Vec<BTreeMap<_, _>> =
            vec![[("repos".to_owned(), vec!["acme/*".to_owned()])].into(), [("repos".to_owned(), vec![])].into()];
        let expected = Request {
            request_id: "q".to_owned(),
            bot_id: "b".to_owned(),
            task_id: "t".to_owned(),
            operation: "issue.read".to_owned(),
            tool_name: "github_list_issues".to_owned(),
            params: [("repo".to_owned(), json!("acme/site")), ("since".to_owned(), Value::Null)].into_iter().collect(),
            scope: Scope(sets),
            resource_id: Some("r".to_owned()),
            resource_config: [("api_base".to_owned(), json!("https://api.github.com"))].into_iter().collect(),
            delegate: Some(Delegate {
                allowed_tools: Some(vec!["github_*".to_owned()]),
                scope_constraints: Some([("repos".to_owned(), vec!["acme/site".to_owned()])].into()),
            }),
            locale: "zh-CN".to_owned(),
            deadline_ms: 30_000,
            context: Map::new(),
        };
        assert_eq!(request, expected);
        assert_eq!(request.optional_param::<String>("since"), Ok(None));
        assert_eq!(request.param::<String>("since").unwrap_err().to_string(), "parameter 'since': is required");
    }

    #[test]
    fn an_invalid_scope_fails_the_call() {
        for scope in ["{", "{}", r#"[{"repos":"acme/*"}]"#] {
            let error = Request::try_from(types::ExecuteRequest { scope: Some(scope.to_owned()), ..from_host() });
            let text = error.unwrap_err().to_string();
            assert!(text.starts_with("invalid scope in the request: "), "{scope}: {text}");
        }
        let params = Request::try_from(types::ExecuteRequest { params: "[]".to_owned(), ..from_host() });
        assert!(params.unwrap_err().to_string().starts_with("invalid params in the request: "));
    }

    #[test]
    fn an_empty_list_permits_nothing_and_an_absent_key_everything() {
        let request = Request::try_from(from_host()).unwrap();
        assert!(!request.scope.permits("repos", |_| true));
        assert!(request.scope.permits("projects", |_| false));
    }
}
