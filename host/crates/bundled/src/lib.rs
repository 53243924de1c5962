//! The plugins that are part of the program. The build script compiles their components; this crate embeds them with
//! their manifests. It knows neither the host nor the meaning of a manifest.

#![forbid(unsafe_code)]

/// A plugin with its files.
#[derive(Clone, Copy, Debug)]
pub struct Bundled {
    pub name: &'static str,
    /// The text of `monstrum.yaml`.
    pub manifest: &'static str,
    pub component: &'static [u8],
    /// The name of the component in the folder of the plugin, as the manifest names it.
    pub component_file: &'static str,
    /// The other files, with their paths in the folder of the plugin.
    pub files: &'static [(&'static str, &'static str)],
}

/// Embeds a file of a plugin of `plugins-wasm`.
#[cfg(feature = "demo")]
macro_rules! file {
    ($path:literal) => {
        include_str!(concat!("../../../../plugins-wasm/", $path))
    };
}

/// The plugin `notebook`, for the demo of the console. It is absent from a program without the feature `demo`.
#[cfg(feature = "demo")]
pub const NOTEBOOK: Option<Bundled> = Some(Bundled {
    name: "notebook",
    manifest: file!("notebook/monstrum.yaml"),
    component: include_bytes!(concat!(env!("OUT_DIR"), "/notebook.wasm")),
    component_file: "plugin.wasm",
    files: &[
        ("locales/en-US.json", file!("notebook/locales/en-US.json")),
        ("locales/zh-CN.json", file!("notebook/locales/zh-CN.json")),
    ],
});

/// The plugin `notebook`, for the demo of the console. It is absent from a program without the feature `demo`.
#[cfg(not(feature = "demo"))]
pub const NOTEBOOK: Option<Bundled> = None;

#[cfg(all(test, feature = "demo"))]
mod tests {
    use super::*;

    #[test]
    fn the_component_is_embedded() {
        let notebook = NOTEBOOK.unwrap();
        // The header of a component: the magic number, and the version of the binary format.
        assert_eq!(notebook.component[..8], *b"\0asm\x0d\0\x01\0");
        assert!(notebook.manifest.contains(&format!("component: {}", notebook.component_file)));
        assert!(notebook.manifest.starts_with(&format!("name: {}\n", notebook.name)));
    }
}
