//! Tests of the cache of compiled components, and of attempts to tamper with it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;

use super::{Bench, ECHO, Host, MEMORY_BYTES, guest, guest_doing, plugin, request, runtime, success};
use crate::{CallLimits, Component, KnownComponent, LoadError, RuntimeError, RuntimeOptions};

fn entries(cache: &TempDir) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(cache.path().join("components")).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    entries
}

async fn answers(component: &Component) {
    let end = component.execute(request("{}"), CallLimits::default(), Arc::new(Host::default())).await;
    assert_eq!(success(&end), json!({}));
}

#[tokio::test]
async fn a_component_is_compiled_once() {
    let bench = Bench::new();
    bench.load(guest(ECHO)).await;
    let [entry] = &entries(&bench.cache)[..] else { panic!("expected one cache entry") };
    let written = fs::metadata(entry).unwrap();
    assert_eq!(written.permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(entry.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    let again = runtime(&bench.cache, [7; 32]).load(&plugin(), guest(ECHO), &CAPABILITIES, MEMORY_BYTES).await.unwrap();
    assert_eq!(fs::metadata(entry).unwrap().modified().unwrap(), written.modified().unwrap());
    answers(&again).await;
}

const CAPABILITIES: [monstrum_manifest::Capability; 1] = [monstrum_manifest::Capability::Http];

#[tokio::test]
async fn damaged_entries_are_compiled_again() {
    let bench = Bench::new();
    bench.load(guest(ECHO)).await;
    let [entry] = &entries(&bench.cache)[..] else { panic!("expected one cache entry") };
    let whole = fs::read(entry).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&[][..], &whole[..20], &whole[..32], &whole[..whole.len() - 1], &flipped] {
        fs::write(entry, damaged).unwrap();
        answers(&bench.load(guest(ECHO)).await).await;
        assert_eq!(fs::read(entry).unwrap().len(), whole.len());
    }
    fs::remove_file(entry).unwrap();
    fs::create_dir(entry).unwrap();
    answers(&bench.load(guest(ECHO)).await).await;
}

#[tokio::test]
async fn an_entry_cannot_replace_another() {
    let bench = Bench::new();
    bench.load(guest_doing("unreachable")).await;
    let hostile = entries(&bench.cache).remove(0);
    bench.load(guest(ECHO)).await;
    let entry = entries(&bench.cache).into_iter().find(|entry| *entry != hostile).unwrap();
    fs::copy(&hostile, &entry).unwrap();
    answers(&bench.load(guest(ECHO)).await).await;
}

#[tokio::test]
async fn entries_of_another_key_are_not_loaded() {
    let bench = Bench::new();
    bench.load(guest(ECHO)).await;
    let [entry] = &entries(&bench.cache)[..] else { panic!("expected one cache entry") };
    let theirs = fs::read(entry).unwrap();
    let component =
        runtime(&bench.cache, [8; 32]).load(&plugin(), guest(ECHO), &CAPABILITIES, MEMORY_BYTES).await.unwrap();
    answers(&component).await;
    let ours = fs::read(entry).unwrap();
    assert_ne!(theirs[..32], ours[..32]);
}

#[test]
fn the_folder_is_private_and_not_a_symlink() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("components");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    runtime(&place, [7; 32]);
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);

    let link = place.path().join("link");
    symlink(&folder, &link).unwrap();
    let refused = crate::Runtime::new(RuntimeOptions { cache_dir: link, cache_mac_key: [7; 32] }).err().unwrap();
    assert!(matches!(refused, RuntimeError::CacheNotAFolder { .. }), "{refused}");

    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = crate::Runtime::new(RuntimeOptions { cache_dir: file, cache_mac_key: [7; 32] }).err().unwrap();
    assert!(matches!(refused, RuntimeError::CacheFolder { .. } | RuntimeError::CacheNotAFolder { .. }), "{refused}");
}

#[tokio::test]
async fn a_known_component_is_loaded_from_the_cache_without_a_trial() {
    let bench = Bench::new();
    let loaded = bench.load(guest(ECHO)).await;
    let functions = vec!["of_the_earlier_trial".to_owned()];
    let known = |wasm: &[u8]| KnownComponent {
        plugin: plugin(),
        digest: crate::component::digest_of(wasm),
        capabilities: CAPABILITIES.to_vec(),
        functions: functions.clone(),
    };
    let wasm = Arc::new(guest(ECHO));
    let again = bench.runtime.load_cached(&known(&wasm), &wasm).unwrap().unwrap();
    assert_eq!(
        (again.digest(), again.imports(), again.functions()),
        (loaded.digest(), loaded.imports(), &functions[..])
    );
    answers(&again).await;

    let other = Arc::new(guest_doing("(drop (i32.const 5))"));
    let refused = bench.runtime.load_cached(&known(&wasm), &other).unwrap_err();
    assert!(matches!(refused, LoadError::OtherDigest { .. }), "{refused}");
    assert!(bench.runtime.load_cached(&known(&other), &other).unwrap().is_none(), "it is not in the cache");
    let no_capabilities = KnownComponent { capabilities: Vec::new(), ..known(&wasm) };
    let refused = bench.runtime.load_cached(&no_capabilities, &wasm).unwrap_err();
    assert!(matches!(refused, LoadError::CapabilityMissing { .. }), "{refused}");
}
