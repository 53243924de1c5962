//! The index of a registry: a static `index.json` file that any web server can host. The server is not trusted: the
//! parser validates every entry, and packages are verified by digest and signature.

use std::collections::BTreeMap;

use monstrum_types::{Digest, PluginName};
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::file_name::{package_file, signature_file};
use crate::limits::{
    DESCRIPTION_BYTES_MAX, INDEX_BYTES_MAX, INDEX_ENTRIES_MAX, METADATA_BYTES_MAX, PACKAGE_BYTES_MAX, TAGS_MAX,
};

const FORMAT: &str = "monstrum-registry-1";

/// The index of the packages in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    format: String,
    packages: Vec<IndexEntry>,
}

/// One package in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexEntry {
    /// The plugin's name.
    pub name: PluginName,
    /// The plugin's version.
    pub version: Version,
    /// The description from the manifest.
    pub description: String,
    /// The author from the manifest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// The license from the manifest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub license: String,
    /// The tags from the manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The file name of the package, always `NAME-VERSION.mst`. The file is in the same folder as the index.
    pub file: String,
    /// The package's size in bytes.
    pub size: u64,
    /// The SHA-256 digest of the package.
    pub sha256: Digest,
    /// The file name of the signature, always `NAME-VERSION.mst.sig`. The file is in the same folder as the index.
    pub signature: String,
}

/// A plugin in a registry, with all its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The plugin's name.
    pub name: PluginName,
    /// The description of the newest release, or of the newest pre-release if there are no releases.
    pub description: String,
    /// The author, from the same version as the description.
    pub author: String,
    /// The license, from the same version as the description.
    pub license: String,
    /// The tags, from the same version as the description.
    pub tags: Vec<String>,
    /// The newest release, which is installed by default; `None` if all versions are pre-releases.
    pub newest: Option<Version>,
    /// All versions, newest first.
    pub versions: Vec<Version>,
}

/// The reason for rejecting an index.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The index exceeds a limit.
    #[error("the index exceeds the limit of {INDEX_BYTES_MAX} bytes or {INDEX_ENTRIES_MAX} packages")]
    TooLarge,
    /// The bytes are not a valid index.
    #[error("the index is malformed: {0}; create it with `monstrum registry index DIR`")]
    Malformed(String),
    /// An entry is invalid.
    #[error("the index entry `{name}` {version} is invalid: {why}")]
    Entry {
        /// The plugin's name.
        name: PluginName,
        /// The plugin's version.
        version: Version,
        /// The reason.
        why: &'static str,
    },
}

/// The reason that no package was found.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The registry has no plugin of this name.
    #[error("the registry has no plugin `{0}`")]
    Name(PluginName),
    /// The plugin does not have this version.
    #[error("the registry has no version {version} of plugin `{name}`")]
    Version {
        /// The plugin's name.
        name: PluginName,
        /// The requested version.
        version: Version,
    },
    /// The plugin has only pre-releases.
    #[error("the registry has only pre-releases of plugin `{name}`; specify one, such as `{name}@{newest}`")]
    PreReleases {
        /// The plugin's name.
        name: PluginName,
        /// The newest pre-release.
        newest: Version,
    },
}

impl Index {
    /// Creates an index of packages, sorted by name and version.
    ///
    /// # Errors
    ///
    /// Fails if the index would exceed a limit, or has an invalid or duplicate entry.
    pub fn new(mut packages: Vec<IndexEntry>) -> Result<Index, IndexError> {
        packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        if packages.len() > INDEX_ENTRIES_MAX {
            return Err(IndexError::TooLarge);
        }
        for entry in &packages {
            if let Some(why) = invalid(entry) {
                return Err(IndexError::Entry { name: entry.name.clone(), version: entry.version.clone(), why });
            }
        }
        if let Some([_, twice]) = packages
            .windows(2)
            .find(|pair| pair[0].name == pair[1].name && pair[0].version.cmp_precedence(&pair[1].version).is_eq())
        {
            let why = "the index contains this version more than once";
            return Err(IndexError::Entry { name: twice.name.clone(), version: twice.version.clone(), why });
        }
        Ok(Index { format: FORMAT.to_owned(), packages })
    }

    /// Parses and validates an index.
    ///
    /// # Errors
    ///
    /// Fails if the index is malformed, exceeds a limit, or has an invalid or duplicate entry.
    pub fn parse(bytes: &[u8]) -> Result<Index, IndexError> {
        if bytes.len() > INDEX_BYTES_MAX {
            return Err(IndexError::TooLarge);
        }
        let index: Index = serde_json::from_slice(bytes).map_err(|error| IndexError::Malformed(error.to_string()))?;
        if index.format != FORMAT {
            return Err(IndexError::Malformed(format!("its format is not `{FORMAT}`")));
        }
        Index::new(index.packages)
    }

    /// Returns the content of `index.json`.
    #[must_use]
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("texts and numbers serialize to JSON");
        text + "\n"
    }

    /// Returns all packages.
    #[must_use]
    pub fn packages(&self) -> &[IndexEntry] {
        &self.packages
    }

    /// Finds the package with the given version. If `version` is `None`, finds the newest release.
    ///
    /// # Errors
    ///
    /// Fails if the registry has no matching package.
    pub fn resolve(&self, name: &PluginName, version: Option<&Version>) -> Result<&IndexEntry, ResolveError> {
        let of_name: Vec<&IndexEntry> = self.packages.iter().filter(|entry| entry.name == *name).collect();
        let last = of_name.last().ok_or_else(|| ResolveError::Name(name.clone()))?;
        let found = match version {
            Some(version) => of_name.iter().find(|entry| entry.version == *version),
            None => of_name.iter().rfind(|entry| entry.version.pre.is_empty()),
        };
        found.copied().ok_or_else(|| match version {
            Some(version) => ResolveError::Version { name: name.clone(), version: version.clone() },
            None => ResolveError::PreReleases { name: name.clone(), newest: last.version.clone() },
        })
    }

    /// Returns the plugins whose name, description or tags contain `text`, ignoring case.
    #[must_use]
    pub fn search(&self, text: &str) -> Vec<Listing> {
        let text = text.to_lowercase();
        let mut by_name: BTreeMap<&PluginName, Vec<&IndexEntry>> = BTreeMap::new();
        for entry in &self.packages {
            by_name.entry(&entry.name).or_default().push(entry);
        }
        let listings = by_name.into_iter().filter_map(|(name, entries)| {
            let newest = entries.iter().rfind(|entry| entry.version.pre.is_empty());
            let described = newest.or(entries.last())?;
            let is_found = name.as_str().contains(&text)
                || described.description.to_lowercase().contains(&text)
                || described.tags.iter().any(|tag| tag.to_lowercase().contains(&text));
            is_found.then(|| Listing {
                name: name.clone(),
                description: described.description.clone(),
                author: described.author.clone(),
                license: described.license.clone(),
                tags: described.tags.clone(),
                newest: newest.map(|entry| entry.version.clone()),
                versions: entries.iter().rev().map(|entry| entry.version.clone()).collect(),
            })
        });
        listings.collect()
    }
}

/// Returns the reason why the entry is invalid, or `None` if it is valid. The file names are derived from the name and
/// the version, so an entry cannot refer to a file outside the folder of the index.
fn invalid(entry: &IndexEntry) -> Option<&'static str> {
    if entry.file != package_file(&entry.name, &entry.version) {
        return Some("`file` is not `NAME-VERSION.mst`");
    }
    if entry.signature != signature_file(&entry.name, &entry.version) {
        return Some("`signature` is not `NAME-VERSION.mst.sig`");
    }
    if entry.size > PACKAGE_BYTES_MAX as u64 {
        return Some("the package is too large");
    }
    if entry.description.len() > DESCRIPTION_BYTES_MAX {
        return Some("the description is too long");
    }
    let metadata = [&entry.author, &entry.license].into_iter().chain(&entry.tags);
    if entry.tags.len() > TAGS_MAX || metadata.into_iter().any(|text| text.len() > METADATA_BYTES_MAX) {
        return Some("the author, the license or a tag is too long, or there are too many tags");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, version: &str) -> IndexEntry {
        let (name, version): (PluginName, Version) = (name.parse().unwrap(), version.parse().unwrap());
        IndexEntry {
            file: package_file(&name, &version),
            signature: signature_file(&name, &version),
            description: format!("Speaks to {name}"),
            author: String::new(),
            license: String::new(),
            tags: vec!["Issues".to_owned(), format!("of-{name}")],
            size: 1,
            sha256: crate::digest(b""),
            name,
            version,
        }
    }

    fn index(entries: &[(&str, &str)]) -> Index {
        Index::new(entries.iter().map(|(name, version)| entry(name, version)).collect()).unwrap()
    }

    #[test]
    fn a_search_finds_names_descriptions_and_tags() {
        let index = index(&[("a", "1.0.0"), ("b", "1.0.0")]);
        let found = |text: &str| -> Vec<String> {
            index.search(text).into_iter().map(|listing| listing.name.to_string()).collect()
        };
        assert_eq!(found("ISSUES"), ["a", "b"]);
        assert_eq!(found("of-b"), ["b"]);
        assert_eq!(found("speaks to a"), ["a"]);
        assert!(found("nothing").is_empty());
    }

    #[test]
    fn metadata_is_optional_and_limited() {
        let mut bare = serde_json::to_value(index(&[("a", "1.0.0")])).unwrap();
        for field in ["author", "license", "tags"] {
            bare["packages"][0].as_object_mut().unwrap().remove(field);
        }
        assert!(Index::parse(bare.to_string().as_bytes()).unwrap().packages()[0].tags.is_empty());
        let long = IndexEntry { author: "a".repeat(METADATA_BYTES_MAX + 1), ..entry("a", "1.0.0") };
        let many = IndexEntry { tags: vec![String::new(); TAGS_MAX + 1], ..entry("a", "1.0.0") };
        for entry in [long, many] {
            assert!(Index::new(vec![entry]).unwrap_err().to_string().contains("too long"));
        }
    }

    #[test]
    fn the_newest_release_is_taken_unless_one_is_named() {
        let index = index(&[("a", "1.9.0"), ("a", "2.0.0-rc.1"), ("a", "1.10.0"), ("b", "0.1.0-alpha")]);
        let resolve = |name: &str, version: Option<&str>| {
            let version = version.map(|version| version.parse().unwrap());
            let found = index.resolve(&name.parse().unwrap(), version.as_ref());
            found.map(|entry| entry.version.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(resolve("a", None).unwrap(), "1.10.0");
        assert_eq!(resolve("a", Some("1.9.0")).unwrap(), "1.9.0");
        assert_eq!(resolve("a", Some("2.0.0-rc.1")).unwrap(), "2.0.0-rc.1");
        assert!(resolve("a", Some("3.0.0")).unwrap_err().contains("no version 3.0.0"));
        assert!(resolve("b", None).unwrap_err().contains("specify one, such as `b@0.1.0-alpha`"));
        assert!(resolve("c", None).unwrap_err().contains("no plugin `c`"));
    }

    #[test]
    fn plugins_are_found_by_name_and_description() {
        let index = index(&[("github", "1.0.0"), ("github", "1.1.0"), ("jira", "2.0.0-rc.1")]);
        let found = index.search("SPEAKS to");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].newest, Some("1.1.0".parse().unwrap()));
        assert_eq!(found[0].versions, ["1.1.0".parse().unwrap(), "1.0.0".parse().unwrap()]);
        assert_eq!(found[1].newest, None);
        assert_eq!(index.search("git").len(), 1);
        assert!(index.search("nothing").is_empty());
    }

    #[test]
    fn an_invalid_entry_invalidates_the_index() {
        let text = index(&[("a", "1.0.0")]).to_text();
        assert_eq!(Index::parse(text.as_bytes()).unwrap(), index(&[("a", "1.0.0")]));
        for (from, to) in [
            ("\"a-1.0.0.mst\"", "\"../a-1.0.0.mst\""),
            ("\"a-1.0.0.mst\"", "\"https://evil.example/a-1.0.0.mst\""),
            ("\"a-1.0.0.mst.sig\"", "\"/etc/passwd\""),
            ("\"a-1.0.0.mst.sig\"", "\"b-1.0.0.mst.sig\""),
            ("\"size\": 1", "\"size\": 99999999999"),
            ("\"size\": 1", "\"size\": -1"),
            ("\"a\"", "\"A\""),
            (FORMAT, "monstrum-registry-2"),
            ("Speaks", &"x".repeat(2000)),
            ("{", "{\"more\": 1, "),
        ] {
            assert!(text.contains(from));
            assert!(Index::parse(text.replacen(from, to, 1).as_bytes()).is_err(), "{from} -> {to}");
        }
        let twice = Index::new(vec![entry("a", "1.0.0+x"), entry("a", "1.0.0+y")]);
        assert!(twice.unwrap_err().to_string().contains("more than once"));
    }
}
