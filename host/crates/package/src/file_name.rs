//! What packages and their signatures are called: `NAME-VERSION.mst` and `NAME-VERSION.mst.sig`.

use monstrum_types::PluginName;
use semver::Version;

/// What the name of a package ends with.
pub const SUFFIX: &str = ".mst";
/// What the name of its signature ends with, after that of the package.
pub const SIGNATURE_SUFFIX: &str = ".sig";

/// The file name of a package.
#[must_use]
pub fn package_file(name: &PluginName, version: &Version) -> String {
    format!("{name}-{version}{SUFFIX}")
}

/// The file name of its signature.
#[must_use]
pub fn signature_file(name: &PluginName, version: &Version) -> String {
    format!("{}{SIGNATURE_SUFFIX}", package_file(name, version))
}

/// The plugin and version that a file name claims to hold. `None` for a name that claims none, such as `github.mst`.
#[must_use]
pub fn claimed_by_name(file: &str) -> Option<(PluginName, Version)> {
    let stem = file.strip_suffix(SUFFIX)?;
    // A plugin's name holds no dot and a version begins with digits and dots, so at most one hyphen parts the two.
    stem.match_indices('-').find_map(|(at, _)| Some((stem[..at].parse().ok()?, stem[at + 1..].parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_claims_what_it_was_made_from() {
        for (name, version) in [("github", "1.0.0"), ("my-plugin-2", "1.0.0-rc.1"), ("a", "0.0.1-a-b-1.2.3+x-y")] {
            let (name, version) = (name.parse().unwrap(), version.parse().unwrap());
            assert_eq!(claimed_by_name(&package_file(&name, &version)), Some((name, version)));
        }
        for none in ["github.mst", "github-1.0.mst", "github-1.0.0.zip", "-1.0.0.mst", "GitHub-1.0.0.mst", ""] {
            assert_eq!(claimed_by_name(none), None, "{none}");
        }
    }
}
