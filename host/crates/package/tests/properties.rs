//! Property tests: parsing arbitrary bytes either fails or returns an archive within the limits whose paths stay in
//! the plugin's folder.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::BTreeMap;
use std::path::{Component, Path};

use monstrum_package::{Archive, FILES_MAX, Index, PackageSignature, UNPACKED_BYTES_MAX, pack};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// Checks the invariants that hold for every accepted archive.
fn check(archive: &Archive) {
    let files = archive.files();
    assert!(files.len() <= FILES_MAX);
    assert!(files.values().map(Vec::len).sum::<usize>() <= UNPACKED_BYTES_MAX);
    assert!(files.contains_key("monstrum.yaml"));
    let mut folded: Vec<String> = files.keys().map(|path| path.to_lowercase()).collect();
    folded.sort();
    folded.dedup();
    assert_eq!(folded.len(), files.len(), "paths are unique, ignoring case");
    for path in files.keys() {
        assert!(Path::new(path).components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
        assert!(!path.contains(['\\', '\0', ':']) && !path.ends_with('/'), "{path:?}");
        assert!(!files.keys().any(|other| other.starts_with(&format!("{path}/"))), "{path:?} is a file and a folder");
    }
}

fn sample() -> BTreeMap<String, Vec<u8>> {
    let file = |path: &str, content: &[u8]| (path.to_owned(), content.to_vec());
    BTreeMap::from([
        file("monstrum.yaml", b"name: sample\nversion: 1.0.0\n"),
        file("plugin.wasm", &[7; 5000]),
        file("locales/en-US.json", b"{}"),
        file("README.md", b""),
    ])
}

fn path() -> impl Strategy<Value = String> {
    "[a-z]{1,6}(/[a-z]{1,6}){0,3}"
}

proptest! {
    #[test]
    fn packing_is_reproducible_and_reversible(others in btree_map(path(), vec(any::<u8>(), 0..2000), 0..20)) {
        let mut files = sample();
        for (path, content) in others {
            let clashes = files.keys().any(|other| {
                other.starts_with(&format!("{path}/")) || path.starts_with(&format!("{other}/"))
            });
            if !clashes {
                files.insert(path, content);
            }
        }
        let package = pack(&files).unwrap();
        prop_assert_eq!(&package, &pack(&files).unwrap());
        let archive = Archive::read(&package).unwrap();
        check(&archive);
        prop_assert_eq!(archive.files(), &files);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..4000)) {
        prop_assert!(Archive::read(&bytes).is_err());
        prop_assert!(PackageSignature::parse(&bytes).is_err());
        prop_assert!(Index::parse(&bytes).is_err());
    }

    #[test]
    fn a_mutated_archive_is_refused_or_within_its_limits(edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut package = pack(&sample()).unwrap();
        for (at, byte) in edits {
            let at = at.index(package.len());
            package[at] = byte;
        }
        if let Ok(archive) = Archive::read(&package) {
            check(&archive);
        }
    }

    #[test]
    fn mutated_records_are_refused_or_within_their_limits(
        edits in vec((any::<prop::sample::Index>(), prop_oneof![Just(0_u8), Just(0xff), Just(b'/'), Just(b'.'), any::<u8>()]), 1..6),
    ) {
        // Edit only the central directory and the end record, where every byte is significant.
        let mut package = pack(&sample()).unwrap();
        let directory = package.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
        for (at, byte) in edits {
            let at = directory + at.index(package.len() - directory);
            package[at] = byte;
        }
        if let Ok(archive) = Archive::read(&package) {
            check(&archive);
        }
    }

    #[test]
    fn a_cut_or_joined_archive_is_refused(cut in any::<prop::sample::Index>(), joined in vec(any::<u8>(), 1..50)) {
        let package = pack(&sample()).unwrap();
        prop_assert!(Archive::read(&package[..cut.index(package.len())]).is_err());
        prop_assert!(Archive::read(&[package.as_slice(), &joined].concat()).is_err());
        prop_assert!(Archive::read(&[joined.as_slice(), &package].concat()).is_err());
        prop_assert!(Archive::read(&package.repeat(2)).is_err());
    }
}

#[test]
fn a_package_may_have_one_top_level_folder() {
    let inside = sample();
    let around = |folder: &str| -> BTreeMap<String, Vec<u8>> {
        inside.iter().map(|(path, content)| (format!("{folder}/{path}"), content.clone())).collect()
    };
    let archive = Archive::read(&pack(&around("sample")).unwrap()).unwrap();
    assert_eq!((archive.folder(), archive.files()), (Some("sample"), &inside));
    let mut beside = around("sample");
    beside.insert("other/file".to_owned(), Vec::new());
    assert!(pack(&beside).unwrap_err().to_string().contains("has no monstrum.yaml"));
}
