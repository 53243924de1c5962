//! Rules for resources whose tools come from outside (`tool_discovery: dynamic`): the names of resources and tools, and
//! scope dimensions in the configuration.

use monstrum_types::InputError;
use serde_json::{Map, Value};
use url::Url;

use crate::configured::{SEPARATOR, input_error, is_prefix, segment};
use crate::error::FieldPath;
use crate::model::ScopeDimension;
use crate::origin::OriginPattern;
use crate::schema::SchemaLimits;
use crate::validate::{ContentErrors, auth, contract};

/// The field of a configuration that contains scope dimensions.
pub const DIMENSIONS_FIELD: &str = "dimensions";
/// Maximum length of the name of such a resource. The rest of a tool name needs room for a readable part.
pub const RESOURCE_NAME_MAX: usize = 40;

/// Returns the error of the name of a resource whose tools come from outside.
#[must_use]
pub(crate) fn name_error(name: &str) -> Option<String> {
    if !is_prefix(name) {
        return Some(
            "the name of a resource of this type must start with a letter, contain only a-z, 0-9 and `_`, not end with \
             `_` and not contain `__`, because the name becomes part of the tool names"
                .to_owned(),
        );
    }
    if name.len() > RESOURCE_NAME_MAX {
        return Some(format!("the name of a resource of this type must have at most {RESOURCE_NAME_MAX} characters"));
    }
    contract::reserved_prefix(&format!("{name}{SEPARATOR}"), SchemaLimits::Current).map(|prefix| {
        format!("tool names that start with `{prefix}` are reserved for the platform; choose another name")
    })
}

/// Returns the full name of the tool `slug` of a resource.
#[must_use]
pub fn full_tool_name(resource: &str, slug: &str) -> String {
    format!("{resource}{SEPARATOR}{slug}")
}

/// The headers of the protocol itself, which must not contain a credential.
const PROTOCOL_HEADERS: [&str; 4] = ["accept", "content-type", "cookie", "last-event-id"];
const PROTOCOL_HEADER_PREFIX: &str = "mcp-";

/// Returns the errors of a configuration that its fields alone do not show: the header of an API key, and the URL of the
/// server.
pub(crate) fn endpoint_errors(config: &Map<String, Value>) -> Vec<InputError> {
    let text = |field: &str| config.get(field).and_then(Value::as_str);
    let mut errors = Vec::new();
    if let Some(header) = text("key_header") {
        let lower = header.to_ascii_lowercase();
        if auth::is_host_header(header)
            || PROTOCOL_HEADERS.contains(&lower.as_str())
            || lower.starts_with(PROTOCOL_HEADER_PREFIX)
        {
            let message = format!("the header `{header}` cannot contain a key, because the host sets it");
            errors.push(InputError { path: "/key_header".to_owned(), message });
        }
    }
    if let Some(url) = text("url").and_then(|url| Url::parse(url).ok())
        && OriginPattern::of_endpoint(&url).is_none()
    {
        let message = "the host must not end with a dot, and the path must not contain `..`".to_owned();
        errors.push(InputError { path: "/url".to_owned(), message });
    }
    errors
}

/// Explains that servers which are started as commands are not supported.
pub(crate) fn explained(error: InputError) -> InputError {
    if error.path != "/command" {
        return error;
    }
    let message = "MCP servers that are started as a command (stdio) are not supported, because the command would run \
                   on the host; put the server behind Streamable HTTP and set `url`";
    InputError { message: message.to_owned(), ..error }
}

/// Reads the scope dimensions in the configuration of a resource.
///
/// # Errors
/// Returns all validation errors, with pointers into the configuration.
pub fn config_dimensions(config: &Map<String, Value>) -> Result<Vec<ScopeDimension>, Vec<InputError>> {
    let at = FieldPath::default().key(DIMENSIONS_FIELD);
    let Some(written) = config.get(DIMENSIONS_FIELD).filter(|written| !written.is_null()) else {
        return Ok(Vec::new());
    };
    let read: Vec<ScopeDimension> = serde_path_to_error::deserialize(written.clone()).map_err(|error| {
        let mut at = at.clone();
        at.0.extend(error.path().iter().filter_map(segment));
        vec![input_error(&at, &error.inner().to_string())]
    })?;
    let mut found = ContentErrors::default();
    contract::dimensions(&mut found, &read, &at);
    let errors: Vec<InputError> = found.into_iter().map(|(at, message)| input_error(&at, &message)).collect();
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}
