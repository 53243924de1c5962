//! Summarizes the permissions that a plugin's manifest requests, for the operator who approves the plugin.

use monstrum_guardian::match_glob;
use monstrum_manifest::{
    AuthKind, AuthMethod, Capability, Effect, FieldKind, InjectRule, Manifest, OriginPattern, ScopeDimension,
    check_fields,
};
use monstrum_types::{ResourceTypeId, ToolName};
use serde::Serialize;
use serde_json::{Map, Value};

use super::super::failure::Failure;
use super::super::output;
use monstrum_core::plugins::Ceilings;
use monstrum_core::plugins::{Plugin, Tool};

/// A summary of the permissions that a plugin requests. Values that depend on the configuration of a resource are
/// computed from the manifest's default configuration.
#[derive(Serialize)]
pub(super) struct Permissions {
    resource_type: ResourceTypeId,
    capabilities: Vec<Capability>,
    /// Globs of the tools of other plugins that the plugin may call.
    calls: Vec<String>,
    /// The platform functions, which only a root key may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    functions: Vec<String>,
    egress: Egress,
    credentials: Vec<Credential>,
    tools: Vec<ToolPermission>,
    /// The tools whose parameters no dimension can constrain.
    unconstrained_tools: Vec<ToolName>,
    limits: Limits,
}

#[derive(Serialize)]
struct Egress {
    /// The default of `api_base`. If `configurable` is true, an operator can set another URL.
    api_base: Option<String>,
    /// Whether the resource's configuration can set `api_base`.
    configurable: bool,
    origins: Vec<OriginPattern>,
    follow_redirects: u8,
}

/// The rules that add a credential to requests, and the origins that may receive the credential.
#[derive(Serialize)]
struct Credential {
    method: AuthKind,
    secret_fields: Vec<String>,
    inject: Vec<InjectRule>,
    /// The origins that may receive the credential. Null means the origin of the `api_base` that the operator sets.
    audience: Option<Vec<OriginPattern>>,
}

#[derive(Serialize)]
struct ToolPermission {
    name: ToolName,
    operation: String,
    effect: Effect,
    /// The dimensions that check the tool's parameters.
    dimensions: Vec<String>,
    /// The dimensions that deny the tool when a binding constrains them.
    denied_by: Vec<String>,
}

#[derive(Serialize)]
struct Limits {
    fuel: u64,
    memory_mib: u32,
    timeout_s: u32,
}

impl Permissions {
    pub(super) fn of(plugin: &Plugin) -> Permissions {
        let manifest = &plugin.manifest;
        let (resource_type, executor) = (&manifest.resource_type, &manifest.executor);
        let config = defaults(manifest);
        let tools: Vec<ToolPermission> =
            plugin.tools.iter().map(|tool| ToolPermission::of(tool, &resource_type.scope_dimensions)).collect();
        let free = tools.iter().filter(|tool| tool.dimensions.is_empty()).map(|tool| tool.name.clone());
        let (asked, default) = (executor.limits, Ceilings::default());
        Permissions {
            resource_type: resource_type.id.clone(),
            capabilities: executor.capabilities.clone(),
            calls: executor.calls.clone(),
            functions: plugin.component.as_ref().map(|component| component.functions().to_vec()).unwrap_or_default(),
            egress: Egress {
                api_base: config.get("api_base").and_then(Value::as_str).map(str::to_owned),
                configurable: resource_type.config_schema.iter().any(|field| field.field == "api_base"),
                origins: executor.egress.clone(),
                follow_redirects: executor.follow_redirects,
            },
            credentials: resource_type
                .auth_methods
                .iter()
                .map(|method| credential(manifest, method, &config))
                .collect(),
            unconstrained_tools: free.collect(),
            tools,
            limits: Limits {
                fuel: asked.fuel.unwrap_or(default.fuel),
                memory_mib: asked.memory_mib.unwrap_or(default.memory_mib),
                timeout_s: asked.timeout_s.unwrap_or(default.timeout_s),
            },
        }
    }

    /// Prints the summary as text.
    pub(super) fn show(&self) -> Result<(), Failure> {
        let credentials: Vec<String> = self.credentials.iter().map(Credential::sentence).collect();
        let Limits { fuel, memory_mib, timeout_s } = self.limits;
        let mut fields = vec![
            ("may use", words(self.capabilities.iter().map(word))),
            ("may call", words(self.calls.iter().cloned())),
            ("functions", words(self.functions.iter().cloned())),
            ("may reach", self.egress.sentence()),
            ("credentials", if credentials.is_empty() { "none".to_owned() } else { credentials.join("\n") }),
            ("limits", format!("{fuel} fuel, {memory_mib} MiB, {timeout_s} s per call")),
        ];
        fields.retain(|(name, value)| !matches!(*name, "may call" | "functions") || value != NOTHING);
        output::line("")?;
        output::fields(&fields)?;
        if !self.tools.is_empty() {
            output::line("")?;
            output::table(
                &["TOOL", "OPERATION", "EFFECT", "CONSTRAINED BY"],
                self.tools.iter().map(ToolPermission::row).collect(),
            )?;
        }
        if !self.unconstrained_tools.is_empty() {
            output::line("")?;
            let names = words(self.unconstrained_tools.iter().map(ToString::to_string));
            output::line(output::plain(&format!("no scope constrains the parameters of: {names}")))?;
        }
        Ok(())
    }
}

const NOTHING: &str = "nothing";

fn words(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    if all.is_empty() { NOTHING.to_owned() } else { all.join(", ") }
}

/// Formats a value as in the manifest.
fn word(value: &impl Serialize) -> String {
    output::cell(&serde_json::to_value(value).expect("an enumerated value of the manifest is serializable"))
}

/// Returns the default configuration of a resource.
fn defaults(manifest: &Manifest) -> Map<String, Value> {
    let optional: Vec<_> =
        manifest.resource_type.config_schema.iter().filter(|field| field.default.is_some()).cloned().collect();
    check_fields(&optional, Map::new()).unwrap_or_default()
}

fn credential(manifest: &Manifest, method: &AuthMethod, config: &Map<String, Value>) -> Credential {
    let fields = method.credential_fields(&manifest.resource_type).iter();
    let is_api_base_open = !config.contains_key("api_base")
        && manifest.resource_type.config_schema.iter().any(|field| field.field == "api_base");
    Credential {
        method: method.method,
        secret_fields: fields
            .filter(|field| field.kind == FieldKind::Secret)
            .map(|field| field.field.clone())
            .collect(),
        inject: method.inject_rules(),
        audience: match (&method.audience, is_api_base_open) {
            (None, true) => None,
            _ => Some(method.audience(&manifest.resource_type, config, &manifest.executor)),
        },
    }
}

impl Egress {
    fn sentence(&self) -> String {
        let base = match (&self.api_base, self.configurable) {
            (Some(base), true) => Some(format!("{base} (api_base, unless the operator sets another URL)")),
            (None, true) => Some("the api_base that the operator sets".to_owned()),
            (_, false) => None,
        };
        let redirects =
            (self.follow_redirects > 0).then(|| format!("and follows up to {} redirects there", self.follow_redirects));
        words(base.into_iter().chain(self.origins.iter().map(ToString::to_string)).chain(redirects))
    }
}

impl Credential {
    fn sentence(&self) -> String {
        let rules = words(self.inject.iter().map(|rule| match rule {
            InjectRule::Header(rule) => format!("header {}: {}", rule.header, rule.value),
            InjectRule::Query(rule) => format!("query {}={}", rule.query, rule.value),
            InjectRule::Basic(rule) => format!("basic {}:{}", rule.basic.username, rule.basic.password),
            InjectRule::Body(rule) => format!("body {}: {}", rule.body, rule.value),
            InjectRule::Path(rule) => format!("path {} = {}", rule.path, rule.value),
        }));
        let audience = match &self.audience {
            Some(origins) => words(origins.iter().map(ToString::to_string)),
            None => "the origin of api_base".to_owned(),
        };
        format!("{}: {rules}, to {audience}", word(&self.method))
    }
}

impl ToolPermission {
    fn of(tool: &Tool, dimensions: &[ScopeDimension]) -> ToolPermission {
        let operation = &tool.manifest.operation;
        let concerned = dimensions.iter().filter(|dimension| {
            dimension.operation_filter.as_deref().is_none_or(|filter| match_glob(operation, filter))
        });
        let (checked, denying): (Vec<&ScopeDimension>, Vec<&ScopeDimension>) =
            concerned.partition(|dimension| dimension.param_paths.iter().any(|path| tool.input.declares(path)));
        let keys = |dimensions: Vec<&ScopeDimension>| dimensions.into_iter().map(|one| one.key.clone()).collect();
        ToolPermission {
            name: tool.manifest.name.clone(),
            operation: operation.clone(),
            effect: tool.manifest.effect,
            dimensions: keys(checked),
            denied_by: keys(denying),
        }
    }

    fn row(&self) -> Vec<String> {
        let effect = self.effect.to_string();
        vec![self.name.to_string(), self.operation.clone(), effect, words(self.dimensions.iter().cloned())]
    }
}
