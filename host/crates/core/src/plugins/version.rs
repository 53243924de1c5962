//! A version of a plugin: the manifest, policy rules, schemas, translations and component, which are checked together.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use monstrum_egress::{Network, Scope};
use monstrum_guardian::{DimensionModes, PatternSet, ToolRules};
use monstrum_manifest::{
    Capability, InputSchema, Locales, MANIFEST_STEPS_MAX, Manifest, MatchMode, OutputSchema, SchemaLimits,
    ScopeDimension, Tool as ToolManifest, ToolDiscovery,
};
use monstrum_runtime::Runtime;
use monstrum_store::StoreError;
use monstrum_types::{Digest, Effort, JsonText, Overrun, PluginName, ToolName, with_causes};
use sha2::Digest as _;

use crate::beside::Beside;
use crate::checks::{pay_for_object, pay_for_text};
use crate::plugins::component::PluginComponent;
use crate::plugins::folder::{FolderError, Icon, MANIFEST, Opened};
use crate::plugins::{Ceilings, RemoteTool, built_in};

/// The prefix of a warning about a limit that was introduced after the version was stored.
const EXCEEDS: &str = "exceeds a limit for new versions:";

/// A version of a plugin that is ready to serve.
pub struct Plugin {
    pub name: PluginName,
    pub manifest: Manifest,
    /// The component, or `None` for a built-in plugin of the platform.
    pub component: Option<PluginComponent>,
    pub tools: Vec<Arc<Tool>>,
    pub locales: Locales,
    /// The icon that the manifest names, if this version was read from its folder.
    pub icon: Option<Icon>,
    pub warnings: Vec<String>,
    /// The tools of other plugins that the manifest allows this plugin to call.
    pub calls: PatternSet,
    pub dimension_modes: DimensionModes,
    /// The files of the folder from which this version was read, if the start index may contain this version.
    pub(super) files: Option<ReadFiles>,
}

/// The files from which a version was read.
pub(super) struct ReadFiles {
    pub(super) manifest_digest: Digest,
    pub(super) opened: Vec<Opened>,
}

impl Plugin {
    /// Returns the SHA-256 of the component.
    pub fn digest(&self) -> Option<&Digest> {
        self.component.as_ref().map(PluginComponent::digest)
    }

    /// Returns the reason why the component could not be loaded at its first use, if it could not.
    pub fn failure(&self) -> Option<&LoadError> {
        self.component.as_ref().and_then(PluginComponent::failure)
    }

    /// Returns the egress scope of a call without a resource. The scope allows the origins of the manifest, over https
    /// and at public addresses only.
    pub fn bare_scope(&self) -> Scope {
        Scope {
            api_base: None,
            egress: self.manifest.executor.egress.clone(),
            inject: Vec::new(),
            audience: Vec::new(),
            follow_redirects: self.manifest.executor.follow_redirects,
            network: Network::default(),
        }
    }

    /// Returns the warnings about limits that this version exceeds. The next version must meet these limits.
    pub fn exceeds(&self) -> impl Iterator<Item = &String> {
        self.warnings.iter().filter(|warning| warning.starts_with(EXCEEDS))
    }

    /// Returns the names of the platform functions.
    pub fn functions(&self) -> Vec<&str> {
        match &self.component {
            Some(component) => component.functions().iter().map(String::as_str).collect(),
            None if self.name.as_str() == built_in::MCP => vec![built_in::MCP_CALL_TOOL, built_in::MCP_LIST_TOOLS],
            None if self.name.as_str() == built_in::BOT => built_in::BOT_FUNCTIONS.to_vec(),
            None => Vec::new(),
        }
    }

    /// Returns whether the tools of this plugin's resources come from outside.
    pub fn has_remote_tools(&self) -> bool {
        self.manifest.resource_type.tool_discovery == ToolDiscovery::Dynamic
    }

    /// Returns whether calls of this plugin may make child calls. A plugin makes child calls if it calls tools or uses
    /// the sandbox, because each use of the sandbox is a call.
    pub fn makes_calls(&self) -> bool {
        let capabilities = &self.manifest.executor.capabilities;
        self.name.as_str() == built_in::BOT
            || [Capability::Tools, Capability::Sandbox].iter().any(|one| capabilities.contains(one))
    }
}

/// A tool with its schemas and rules.
pub struct Tool {
    pub manifest: ToolManifest,
    /// The name under which the plugin knows the tool. Bots use a different name if the tool belongs to a single
    /// resource.
    pub own_name: ToolName,
    pub rules: ToolRules,
    pub input: InputSchema,
    pub output: Option<Arc<OutputSchema>>,
    /// Whether the tool is hidden. Bots can neither see nor call a hidden tool. Only a host function that plugins
    /// import calls it.
    pub is_hidden: bool,
    /// The identity of the tool if it comes from outside: from an MCP server or a remote agent.
    pub remote: Option<RemoteTool>,
    /// The schemas as JSON text. See [`Tool::schema_texts`].
    schema_texts: OnceLock<SchemaTexts>,
}

/// The schemas of a tool as JSON text.
pub struct SchemaTexts {
    pub input: JsonText,
    pub output: Option<JsonText>,
}

impl Tool {
    /// Returns the schemas as JSON text. The first call serializes them, because most tools are listed far more often
    /// than they change.
    pub fn schema_texts(&self, effort: &Effort) -> Result<&SchemaTexts, Overrun> {
        match self.schema_texts.get() {
            Some(texts) => pay_for_text(texts.input.as_str(), effort)?,
            None => pay_for_object(&self.manifest.input_schema, effort)?,
        }
        Ok(self.schema_texts.get_or_init(|| SchemaTexts {
            input: JsonText::from(&self.manifest.input_schema),
            output: self.manifest.output_schema.as_ref().map(JsonText::from),
        }))
    }

    /// Compiles schemas and rules. An error names the field. The parser has checked new schemas against the current
    /// limits. A stored schema may exceed these limits.
    pub fn compile(
        manifest: ToolManifest,
        own_name: ToolName,
        dimensions: &[ScopeDimension],
    ) -> Result<Tool, (&'static str, String)> {
        let limits = SchemaLimits::Stored;
        let input = InputSchema::compile(&manifest.input_schema, limits, &Effort::of(MANIFEST_STEPS_MAX));
        let input = input.map_err(|why| ("input_schema", why))?;
        let output = manifest.output_schema.as_ref().map(|schema| OutputSchema::compile(schema, limits)).transpose();
        let output = output.map_err(|why| ("output_schema", why))?;
        Ok(Tool::of(manifest, own_name, dimensions, input, output))
    }

    /// Creates a tool that comes from outside. Its schemas are compiled at their first use, because they were compiled
    /// when the tool was declared.
    pub(crate) fn remote(manifest: ToolManifest, remote: RemoteTool, dimensions: &[ScopeDimension]) -> Tool {
        Tool { remote: Some(remote), ..Tool::known(manifest, dimensions) }
    }

    /// Creates a tool of a manifest that this build has compiled before. Its schemas are compiled at their first use.
    pub(super) fn known(manifest: ToolManifest, dimensions: &[ScopeDimension]) -> Tool {
        let input = InputSchema::known(&manifest.input_schema);
        let output = manifest.output_schema.as_ref().map(OutputSchema::known);
        let own_name = manifest.name.clone();
        Tool::of(manifest, own_name, dimensions, input, output)
    }

    fn of(
        manifest: ToolManifest,
        own_name: ToolName,
        dimensions: &[ScopeDimension],
        input: InputSchema,
        output: Option<OutputSchema>,
    ) -> Tool {
        let (name, operation) = (manifest.name.clone(), manifest.operation.clone());
        let rules = ToolRules::new(name, operation, dimensions, |path| input.declares(path));
        let (output, schema_texts) = (output.map(Arc::new), OnceLock::new());
        Tool { manifest, own_name, rules, input, output, is_hidden: false, remote: None, schema_texts }
    }

    /// Compiles the schemas that are not compiled yet. An error names the field.
    pub(super) fn prepare(&self) -> Result<(), (&'static str, &str)> {
        self.input.prepare().map_err(|why| ("input_schema", why))?;
        let output = self.output.as_ref().map_or(Ok(()), |output| output.prepare());
        output.map_err(|why| ("output_schema", why))
    }
}

/// The reason why a version cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{}", with_causes(.0))]
    Folder(#[from] FolderError),
    #[error("{0}")]
    Manifest(#[from] monstrum_manifest::ManifestErrors),
    #[error("{MANIFEST}: name: expected `{folder}`, the name of the folder, but found `{name}`")]
    Name { folder: String, name: PluginName },
    #[error("locales: {0}")]
    Locales(String),
    #[error("{MANIFEST}: resource_type.tools[{index}].{field}: {why}")]
    Schema { index: usize, field: &'static str, why: String },
    #[error("{}", with_causes(.0))]
    Component(#[from] monstrum_runtime::LoadError),
    #[error("the stored version of plugin `{plugin}` cannot serve, because it {}", owners.join("; "))]
    Taken { plugin: PluginName, owners: Vec<String> },
    #[error("the stored version of plugin `{plugin}` does not match its digest; install the plugin again")]
    Altered { plugin: PluginName },
    #[error("the plugin could not be read because of an unexpected error; see the server's log")]
    Unexpected,
    #[error("the version could not be stored in the database: {}", with_causes(.0))]
    Store(#[from] StoreError),
}

pub(super) fn sha256(bytes: &[u8]) -> Digest {
    let hash = sha2::Sha256::digest(bytes);
    format!("sha256:{}", hex::encode(hash)).parse().expect("64 lower-case hex digits")
}

/// Parses a manifest and compiles its schemas. Uses threads that serve no requests.
pub(super) async fn parse(text: String) -> Result<Manifest, LoadError> {
    compiling(move || monstrum_manifest::parse(MANIFEST, &text)).await?.map_err(LoadError::from)
}

/// Parses the manifest of a recorded version. An earlier release may have accepted this version under wider limits.
pub(super) async fn parse_stored(text: String) -> Result<Manifest, LoadError> {
    compiling(move || monstrum_manifest::parse_stored(MANIFEST, &text)).await?.map_err(LoadError::from)
}

/// Runs work that is slow for large schemas on threads that serve no requests. The maximum number of concurrent tasks
/// is the number of processors.
async fn compiling<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, LoadError> {
    static MANIFESTS: Beside = Beside::new();
    MANIFESTS.run(work).await.map_err(|_| LoadError::Unexpected)
}

/// Compiles the tools of a manifest.
fn tools(manifest: &Manifest) -> Result<Vec<Arc<Tool>>, LoadError> {
    let dimensions = &manifest.resource_type.scope_dimensions;
    let tools = manifest.resource_type.tools.iter().enumerate();
    tools
        .map(|(index, tool)| {
            let compiled = Tool::compile(tool.clone(), tool.name.clone(), dimensions);
            compiled.map(Arc::new).map_err(|(field, why)| LoadError::Schema { index, field, why })
        })
        .collect()
}

/// Returns the warnings about schemas of `tools` that exceed the current limits. Only stored manifests have such
/// schemas.
fn exceeds(tools: &[Arc<Tool>]) -> impl Iterator<Item = String> + '_ {
    tools.iter().flat_map(|tool| {
        let output = tool.output.as_ref().map_or(&[][..], |output| output.exceeds());
        let schemas = [("input_schema", tool.input.exceeds()), ("output_schema", output)];
        let name = &tool.manifest.name;
        schemas.into_iter().flat_map(move |(field, sentences)| {
            sentences.iter().map(move |why| format!("{EXCEEDS} {field} of tool `{name}`, {why}"))
        })
    })
}

/// Compiles a manifest and its component. `monstrum plugin validate` uses this function too.
pub async fn build(
    runtime: &Runtime,
    ceilings: Ceilings,
    manifest: Manifest,
    locale_files: BTreeMap<String, String>,
    component: Vec<u8>,
) -> Result<Plugin, LoadError> {
    let compiled = compiling(move || {
        let locales = Locales::load(locale_files).map_err(|error| LoadError::Locales(error.to_string()))?;
        let tools = tools(&manifest)?;
        let mut warnings = monstrum_manifest::warnings(&manifest, monstrum_guardian::match_glob);
        warnings.extend(exceeds(&tools));
        warnings.extend(locales.warnings(&manifest));
        let calls = PatternSet::new(MatchMode::Pattern, &manifest.executor.calls);
        Ok::<_, LoadError>((manifest, locales, tools, warnings, calls))
    });
    let (manifest, locales, tools, warnings, calls) = compiled.await??;
    // The trial start uses the memory limit that later calls will have.
    let memory_bytes = ceilings.memory_bytes(&manifest.executor.limits);
    let component = runtime.load(&manifest.name, component, &manifest.executor.capabilities, memory_bytes).await?;
    Ok(Plugin {
        name: manifest.name.clone(),
        calls,
        warnings,
        dimension_modes: DimensionModes::of(&manifest.resource_type.scope_dimensions),
        manifest,
        component: Some(PluginComponent::loaded(component)),
        tools,
        locales,
        icon: None,
        files: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_shown_once() {
        let folder = FolderError::Absent { path: "a/plugin.wasm".into() };
        let told = folder.to_string();
        assert_eq!(with_causes(&LoadError::from(folder)), told);
        let source = std::io::Error::other("the disk is on fire");
        assert_eq!(with_causes(&std::io::Error::other(source)), "the disk is on fire");
    }
}
