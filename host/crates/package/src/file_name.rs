//! File names of packages and signatures: `NAME-VERSION.mst` and `NAME-VERSION.mst.sig`.

use monstrum_types::PluginName;
use semver::Version;

/// The file name extension of a package.
pub const SUFFIX: &str = ".mst";
/// The file name extension of a signature, which is appended to the file name of its package.
pub const SIGNATURE_SUFFIX: &str = ".sig";

/// Returns the file name of a package.
#[must_use]
pub fn package_file(name: &PluginName, version: &Version) -> String {
    format!("{name}-{version}{SUFFIX}")
}

/// Returns the file name of a package's signature.
#[must_use]
pub fn signature_file(name: &PluginName, version: &Version) -> String {
    format!("{}{SIGNATURE_SUFFIX}", package_file(name, version))
}

/// Parses the plugin name and version from the file name of a package. Returns `None` if the file name does not
/// contain both, as in `github.mst`.
#[must_use]
pub fn claimed_by_name(file: &str) -> Option<(PluginName, Version)> {
    let stem = file.strip_suffix(SUFFIX)?;
    // A plugin name has no dot and a version starts with digits and dots, so at most one hyphen can separate the name
    // from the version.
    stem.match_indices('-').find_map(|(at, _)| Some((stem[..at].parse().ok()?, stem[at + 1..].parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_and_version_are_read_back_from_a_file_name() {
        for (name, version) in [("github", "1.0.0"), ("my-plugin-2", "1.0.0-rc.1"), ("a", "0.0.1-a-b-1.2.3+x-y")] {
            let (name, version) = (name.parse().unwrap(), version.parse().unwrap());
            assert_eq!(claimed_by_name(&package_file(&name, &version)), Some((name, version)));
        }
        for none in ["github.mst", "github-1.0.mst", "github-1.0.0.zip", "-1.0.0.mst", "GitHub-1.0.0.mst", ""] {
            assert_eq!(claimed_by_name(none), None, "{none}");
        }
    }
}
