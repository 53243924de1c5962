//! Variants of a plugin, with another name, another version, or a component that was never compiled.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use support::Server;

const MANIFEST: &str = "monstrum.yaml";
const COMPONENT: &str = "plugin.wasm";

/// Installs the plugin `name`, a copy of `model` with renamed tools, a renamed type and a unique component.
pub fn install(server: &Server, model: &str, name: &str) -> Result<()> {
    server.install_as(model, name)?;
    let folder = server.plugins_dir().join(name);
    edit(&folder, |text| text.replace(model, name).replace(&tool_prefix(model), &tool_prefix(name)))?;
    mark(&folder, name.as_bytes())
}

/// Turns the plugin in `folder`, a copy of `model`, into its version `1.0.{patch}`.
pub fn release(server: &Server, model: &str, patch: usize) -> Result<()> {
    server.install(model)?;
    let folder = server.plugins_dir().join(model);
    edit(&folder, |text| text.replacen("version: 1.0.0", &format!("version: 1.0.{patch}"), 1))?;
    mark(&folder, &patch.to_be_bytes())
}

/// Returns the name that the tool `tool` of `model` has in the copy `name`.
pub fn tool(model: &str, name: &str, tool: &str) -> String {
    tool.replacen(&tool_prefix(model), &tool_prefix(name), 1)
}

/// Returns the prefix of the names of a plugin's tools.
fn tool_prefix(plugin: &str) -> String {
    plugin.replace('-', "_")
}

fn edit(folder: &Path, change: impl FnOnce(&str) -> String) -> Result<()> {
    let path = folder.join(MANIFEST);
    let before = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    fs::write(&path, change(&before)).with_context(|| format!("cannot write {}", path.display()))
}

/// Changes the digest of the component by appending a custom section, which is never read.
fn mark(folder: &Path, content: &[u8]) -> Result<()> {
    let path = folder.join(COMPONENT);
    let mut component = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    component.extend(custom_section("mark", content)?);
    fs::write(&path, component).with_context(|| format!("cannot write {}", path.display()))
}

fn custom_section(name: &str, content: &[u8]) -> Result<Vec<u8>> {
    const CUSTOM: u8 = 0;
    let size = 1 + name.len() + content.len();
    // Lengths below this limit are one byte in LEB128.
    ensure!(size < 128, "the mark is too long");
    let mut section = vec![CUSTOM, u8::try_from(size)?, u8::try_from(name.len())?];
    section.extend(name.as_bytes());
    section.extend(content);
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_says_how_long_it_is() {
        assert_eq!(custom_section("mark", &[7, 8]).unwrap(), [0, 7, 4, b'm', b'a', b'r', b'k', 7, 8]);
        assert!(custom_section("mark", &[0; 128]).is_err());
    }
}
