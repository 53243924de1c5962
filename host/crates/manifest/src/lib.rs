//! The plugin manifest: its types, its parser, and the small languages that it contains (origins, injection rules, JSON
//! Schemas, field definitions, translations).
//!
//! This crate is pure: it performs no file or network I/O and does not read the clock. [`parse()`] validates the whole
//! manifest, so that the rest of the host can rely on it.

#![forbid(unsafe_code)]

mod auth;
mod configured;
mod depth;
mod document;
mod error;
mod fields;
mod json_schema;
mod locale;
mod model;
mod names;
mod nesting;
mod origin;
mod parse;
mod remote;
mod repair;
mod schema;
mod validate;
mod warnings;
mod yaml;

pub use auth::{fill, placeholders};
pub use configured::{
    CheckedConfig, ConfiguredTool, check_config, config_values, configured_tool_names, configured_tools, is_own_tool,
};
pub use depth::json_depth;
pub use document::{MANIFEST_DEPTH_MAX, error_at, read_document};
pub use error::{ManifestError, ManifestErrors};
pub use fields::{check_fields, check_secret_fields};
pub use json_schema::{json_schema, json_schema_text};
pub use locale::{LocaleError, Locales, accepted_languages};
pub use model::*;
pub use names::{ClaimedNames, claimed_names};
pub use origin::{InvalidOrigin, OriginPattern};
pub use parse::{MANIFEST_BYTES_MAX, parse, parse_stored};
pub use remote::{DIMENSIONS_FIELD, RESOURCE_NAME_MAX, config_dimensions, full_tool_name};
pub use schema::{CHECK_STEPS_MAX, InputSchema, MANIFEST_STEPS_MAX, OutputSchema, SchemaLimits};
pub use validate::contract::new_reserved_prefix;
pub use warnings::warnings;
