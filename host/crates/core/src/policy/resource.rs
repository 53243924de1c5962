//! A resource as calls use it: its configuration, its egress scope, its tools and its credential.

use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use monstrum_egress::Scope;
use monstrum_guardian::DimensionModes;
use monstrum_manifest::{
    ConfiguredTool, ScopeDimension, configured_tool_names, configured_tools, full_tool_name, is_own_tool,
};
use monstrum_store::{ResourceRow, ResourceToolRow};
use monstrum_types::{Effort, Labels, Overrun, PluginName, ResourceId, ToolName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ServedTools, is_same};
use crate::credentials::{HeldCredential, ResourceCredential, ServedResource};
use crate::plugins::{Plugin, RemoteTool, Tool, built_in, remote};

/// The base cost, in steps, of compiling the tools of a resource. It exceeds the limit for work on a serving thread.
const TOOLS_STEPS: u64 = 1 << 16;
/// The number of steps for each byte of the configuration, which defines the tools.
const TOOLS_STEPS_PER_BYTE: u64 = 512;

/// The number of steps for each byte of a definition that comes from outside. It is parsed, and not compiled yet.
const REMOTE_STEPS_PER_BYTE: u64 = 16;

/// A resource whose type a plugin serves.
pub struct Resource {
    pub row: ResourceRow,
    pub plugin: Arc<Plugin>,
    /// The plugin to which credentials of this type belong if their record names no plugin.
    pub legacy_plugin: Option<PluginName>,
    /// The configuration, with the manifest's defaults filled in.
    pub config: Map<String, Value>,
    /// The configuration as JSON text, in the form that plugins receive.
    pub config_text: String,
    /// The egress scope of calls on this resource.
    pub scope: Scope,
    /// The scope dimensions that the configuration defines, with their modes; `None` if the manifest defines them.
    pub(super) own_dimensions: Option<(Vec<ScopeDimension>, DimensionModes)>,
    /// The approved tools that come from outside.
    pub(super) served_tools: ServedTools,
    /// The compiled tools. See [`Resource::tools`].
    pub(super) tools: OnceLock<Vec<Arc<Tool>>>,
    pub credential: Option<Arc<HeldCredential>>,
    /// Whether the resource has a row. The resource that a bot's switch grants has no row.
    pub(super) is_stored: bool,
    pub(super) credential_source: OnceLock<Arc<ResourceCredential>>,
}

impl Resource {
    /// Returns whether the resource was assembled from this row, plugin and credential. If so, the new snapshot reuses
    /// the resource, and the host need not compile its tools and decrypt its credential again.
    pub(super) fn is_made_of(
        &self,
        row: &ResourceRow,
        plugin: &Arc<Plugin>,
        credential: Option<&Arc<HeldCredential>>,
        served_tools: &ServedTools,
    ) -> bool {
        let is_same_credential = is_same(self.credential.as_ref(), credential);
        let is_same_row = self.row == *row && Arc::ptr_eq(&self.plugin, plugin);
        is_same_credential && is_same_row && self.served_tools == *served_tools
    }

    /// Returns whether this tool is declared with the approved definition.
    pub fn serves(&self, tool: &RemoteTool) -> bool {
        let digest = format!("sha256:{}", hex::encode(tool.digest));
        let is_it = |row: &&Arc<ResourceToolRow>| row.original_name == *tool.original_name;
        self.served_tools.iter().find(is_it).is_some_and(|row| row.is_served() && row.digest.as_str() == digest)
    }

    /// Returns the labels of the resource. Labels that cannot be read count as every label.
    pub fn labels(&self) -> Labels {
        let Some(stored) = &self.row.labels else { return Labels::none() };
        Labels::deserialize(stored).unwrap_or(Labels::ALL)
    }

    /// Returns the scope dimensions of the resource.
    pub fn dimensions(&self) -> &[ScopeDimension] {
        let of_type = &self.plugin.manifest.resource_type.scope_dimensions;
        self.own_dimensions.as_ref().map_or(of_type, |(own, _)| own)
    }

    /// Returns the modes of the scope dimensions.
    pub(crate) fn dimension_modes(&self) -> &DimensionModes {
        self.own_dimensions.as_ref().map_or(&self.plugin.dimension_modes, |(_, modes)| modes)
    }

    /// Returns the id of the resource in the API, or `None` if the resource has no row.
    pub fn stored_id(&self) -> Option<ResourceId> {
        self.is_stored.then_some(self.row.id)
    }

    /// Returns the tools that belong to this resource, in addition to those of its type: the tools that its configuration
    /// defines, and the approved tools that come from outside. The first access compiles the schemas of the configured
    /// tools. If such a schema does not compile, the list is empty.
    pub fn tools(&self, effort: &Effort) -> Result<&[Arc<Tool>], Overrun> {
        if self.tools.get().is_none() {
            let outside: usize = self.served_tools.iter().map(|tool| tool.definition.len()).sum();
            let steps = TOOLS_STEPS_PER_BYTE * self.config_text.len() as u64;
            effort.spend(TOOLS_STEPS + steps + REMOTE_STEPS_PER_BYTE * outside as u64)?;
        }
        Ok(self.tools.get_or_init(|| {
            self.compile_tools().unwrap_or_else(|why| {
                tracing::error!(resource.id = %self.row.id, why, "the configured tools of the resource are invalid");
                Vec::new()
            })
        }))
    }

    /// Returns the names of the tools that belong to this resource. In contrast to [`Resource::tools`], nothing is
    /// compiled.
    pub fn tool_names(&self) -> Vec<String> {
        let name = &self.row.name;
        if !self.served_tools.is_empty() {
            return self.served_tools.iter().map(|row| full_tool_name(name, &row.slug)).collect();
        }
        configured_tool_names(&self.plugin.manifest.resource_type, name, &self.config)
    }

    /// Returns the tool of this name if it belongs to the resource.
    pub fn tool(&self, name: &ToolName, effort: &Effort) -> Result<Option<&Arc<Tool>>, Overrun> {
        // The lookup of a name that cannot belong to this resource must not compile the tools.
        if !is_own_tool(&self.row.name, name) {
            return Ok(None);
        }
        Ok(self.tools(effort)?.iter().find(|tool| tool.manifest.name == *name))
    }

    fn compile_tools(&self) -> Result<Vec<Arc<Tool>>, String> {
        if !self.served_tools.is_empty() {
            let (plugin, name) = (&self.plugin.name, &self.row.name);
            let served =
                self.served_tools.iter().filter_map(|row| remote::served(row, plugin, name, self.dimensions()));
            return Ok(served.map(Arc::new).collect());
        }
        let resource_type = &self.plugin.manifest.resource_type;
        let configured = configured_tools(resource_type, &self.row.name, &self.config);
        let configured = configured.map_err(|faults| format!("{faults:?}"))?;
        configured
            .into_iter()
            .map(|ConfiguredTool { tool, own_name }| {
                let compiled = Tool::compile(tool, own_name, &resource_type.scope_dimensions);
                compiled.map(Arc::new).map_err(|(field, why)| format!("{field}: {why}"))
            })
            .collect()
    }

    /// Returns the source from which egress reads the credential. The first call decrypts the credential.
    pub fn credential_source(&self) -> &Arc<ResourceCredential> {
        self.credential_source.get_or_init(|| Arc::new(self.source_of(self.credential.as_deref())))
    }

    /// Returns the source for a stored credential of this resource.
    pub(super) fn source_of(&self, held: Option<&HeldCredential>) -> ResourceCredential {
        let served = ServedResource {
            row: &self.row,
            manifest: &self.plugin.manifest,
            config: &self.config,
            network: &self.scope.network,
            legacy_plugin: self.legacy_plugin.as_ref(),
        };
        ResourceCredential::of(served, held)
    }

    /// Returns whether each call uses the credential of its user in place of the credential of the resource.
    pub fn has_user_credentials(&self) -> bool {
        self.plugin.name.as_str() == built_in::MCP
            && self.config.get(built_in::MCP_CREDENTIAL).and_then(Value::as_str) == Some(built_in::MCP_CREDENTIAL_USER)
    }
}

/// The network access that an operator allows for a resource in addition to public addresses over https.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkRules {
    /// The allowed address ranges (CIDR) that are not public.
    pub allow_addresses: Vec<IpNet>,
    /// Whether requests over `http://` are allowed. Requests to loopback addresses need this permission too.
    pub allow_http: bool,
}
