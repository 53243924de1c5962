//! The contracts of loaded plugins in the caller's language. Clients generate forms and selection lists from these
//! contracts.

use std::sync::Arc;

use monstrum_api::resource_types::{
    AuthMethod, ContractTool, Dimension, Field, Origin, ResourceType, ResourceTypeList,
};
use monstrum_manifest::Field as FieldModel;
use monstrum_store::Page;
use monstrum_types::ResourceTypeId;

use super::list;
use super::{OperationError, Operator};
use crate::app::App;
use crate::language::Language;
use crate::plugins::Plugin;

/// Lists resource types.
pub async fn list(
    app: &App,
    _: &Operator,
    language: &Language,
    page: &Page<String>,
) -> Result<ResourceTypeList, OperationError> {
    let snapshot = app.policy.load();
    let (types, view) = (snapshot.resource_types(), |plugin: &Arc<Plugin>| contract(plugin, language));
    Ok(list::page_by_name(types, page, |plugin| plugin.manifest.resource_type.id.as_str(), view))
}

/// Shows a resource type.
pub async fn show(
    app: &App,
    _: &Operator,
    language: &Language,
    id: ResourceTypeId,
) -> Result<ResourceType, OperationError> {
    let snapshot = app.policy.load();
    let plugin = snapshot.resource_type(&id).ok_or_else(|| OperationError::not_found("resource type"))?;
    Ok(contract(plugin, language))
}

fn contract(plugin: &Plugin, language: &Language) -> ResourceType {
    let resource_type = &plugin.manifest.resource_type;
    let tag = language.best(&plugin.locales);
    let text = |key: &str, own: &str| plugin.locales.text(tag, key, own).to_owned();
    let own_description = match resource_type.description.as_str() {
        "" => &plugin.manifest.description,
        own => own,
    };
    let tools = resource_type.tools.iter().map(|tool| ContractTool {
        name: tool.name.clone(),
        description: text(&format!("tools.{}.description", tool.name), &tool.description),
        operation: tool.operation.clone(),
        input_schema: tool.input_schema.clone(),
        output_schema: tool.output_schema.clone(),
        effect: tool.effect,
        result: tool.result,
        cost: tool.cost,
    });
    let dimensions = resource_type.scope_dimensions.iter().map(|dimension| Dimension {
        key: dimension.key.clone(),
        param_paths: dimension.param_paths.clone(),
        match_mode: dimension.match_mode,
        operation_filter: dimension.operation_filter.clone(),
        error_template: text(&format!("scope_dimensions.{}.error_template", dimension.key), &dimension.error_template),
    });
    let methods = resource_type.auth_methods.iter().enumerate().map(|(index, method)| AuthMethod {
        method: method.method,
        label: text(&format!("auth_methods.{index}.label"), &method.label),
        description: text(&format!("auth_methods.{index}.description"), &method.description),
        credential_schema: fields(method.credential_fields(resource_type)),
        oauth_config: method.oauth_config.clone(),
        inject: method.inject_rules(),
        audience: method.audience.clone(),
    });
    ResourceType {
        id: resource_type.id.clone(),
        name: resource_type.name.clone(),
        mode: resource_type.mode,
        description: text("description", own_description),
        icon: resource_type.icon.clone(),
        auth_flow: resource_type.auth_flow,
        tool_discovery: resource_type.tool_discovery,
        tools: tools.collect(),
        scope_dimensions: dimensions.collect(),
        auth_methods: methods.collect(),
        config_schema: fields(&resource_type.config_schema),
        credential_schema: fields(&resource_type.credential_schema),
        credential_check: resource_type.credential_check.clone(),
        plugin: Origin {
            name: plugin.name.clone(),
            version: plugin.manifest.version.to_string(),
            digest: plugin.digest().cloned(),
            description: text("description", &plugin.manifest.description),
            author: plugin.manifest.author.clone(),
            license: plugin.manifest.license.clone(),
            tags: plugin.manifest.tags.clone(),
            homepage: plugin.manifest.homepage.clone(),
            repository: plugin.manifest.repository.clone(),
        },
    }
}

fn fields(model: &[FieldModel]) -> Vec<Field> {
    let field = |field: &FieldModel| Field {
        field: field.field.clone(),
        kind: field.kind,
        required: field.required,
        default: field.default.clone(),
        enum_values: field.enum_values.clone(),
        schema: field.schema.clone(),
        description: field.description.clone(),
    };
    model.iter().map(field).collect()
}
