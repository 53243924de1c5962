//! Tests that components are rejected with error messages that name the plugin.

use std::time::Duration;

use monstrum_manifest::Capability;

use super::{Bench, ECHO, MEMORY_BYTES, TYPES, guest, plugin};
use crate::{LoadError, Runtime};

async fn refusal(wasm: Vec<u8>) -> LoadError {
    Bench::new().try_load(wasm).await.unwrap_err()
}

#[tokio::test]
async fn a_component_reports_its_digest_and_imports() {
    let wasm = guest(ECHO);
    let component = Bench::new().load(wasm).await;
    assert_eq!(component.digest().as_str().len(), "sha256:".len() + 64);
    assert_eq!(
        component.imports(),
        [
            "monstrum:plugin/types@0.1.0",
            "monstrum:plugin/log@0.1.0",
            "monstrum:plugin/http@0.1.0",
            "monstrum:plugin/credentials@0.1.0",
            "wasi:cli/exit@0.2.0",
        ]
    );
}

#[tokio::test]
async fn http_needs_its_capability_even_if_the_component_is_cached() {
    let bench = Bench::new();
    bench.load(guest(ECHO)).await;
    for capabilities in [&[][..], &[Capability::Sandbox, Capability::Tools, Capability::Events]] {
        let refused = bench.runtime.load(&plugin(), guest(ECHO), capabilities, MEMORY_BYTES).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the component of plugin `probe` imports `monstrum:plugin/http@0.1.0`, but its manifest does not list \
             `http` under executor.capabilities"
        );
    }
}

#[tokio::test]
async fn core_modules_and_other_files_are_refused_before_compiling() {
    assert!(matches!(refusal(wat::parse_str("(module)").unwrap()).await, LoadError::NotAComponent { .. }));
    assert!(matches!(refusal(b"#!/bin/sh".to_vec()).await, LoadError::NotAComponent { .. }));
    assert!(matches!(refusal(vec![0; 33 << 20]).await, LoadError::TooLarge { .. }));
}

#[tokio::test]
async fn a_broken_component_does_not_compile() {
    let wasm = guest(&format!("{ECHO} (func $wrong (result i32) (i32.const 7))"));
    // In the body of the last function, i32.const 7 becomes i64.const 7.
    let place = wasm.windows(4).rposition(|bytes| bytes == [0x00, 0x41, 0x07, 0x0b]).unwrap();
    let mut broken = wasm;
    broken[place + 1] = 0x42;
    let refused = refusal(broken).await;
    assert!(matches!(refused, LoadError::Compile { .. }), "{refused}");
    assert!(refused.to_string().starts_with("failed to compile component `sha256:"));
}

#[tokio::test]
async fn an_export_of_another_type_is_refused() {
    for wrong in ["", r#"(param "request" string)"#] {
        let wat = format!(
            r#"(component
                (core module $m (memory (export "memory") 1) (func (export "f") {})
                    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable))
                (core instance $m (instantiate $m))
                (func $f {wrong} (canon lift (core func $m "f") (memory (core memory $m "memory")) (realloc (core func $m "cabi_realloc"))))
                (instance $e (export "execute" (func $f)))
                (export "monstrum:plugin/executor@0.1.0" (instance $e)))"#,
            if wrong.is_empty() { "" } else { "(param i32 i32)" }
        );
        let refused = refusal(wat::parse_str(wat).unwrap()).await;
        assert_eq!(refused.to_string(), WRONG_EXECUTOR);
    }
}

const WRONG_EXECUTOR: &str =
    "the component of plugin `probe` and this host define different types for `monstrum:plugin/executor@0.1.0`";

#[tokio::test]
async fn an_executor_without_execute_is_refused() {
    let wat = r#"(component (instance $e) (export "monstrum:plugin/executor@0.1.0" (instance $e)))"#;
    let refused = refusal(wat::parse_str(wat).unwrap()).await;
    assert_eq!(refused.to_string(), WRONG_EXECUTOR);
}

#[tokio::test]
async fn an_import_of_another_type_is_refused() {
    let wat = r#"(component
        (import "monstrum:plugin/credentials@0.1.0" (instance (export "secret" (func (result string)))))
        (instance $e) (export "monstrum:plugin/executor@0.1.0" (instance $e)))"#;
    let refused = refusal(wat::parse_str(wat).unwrap()).await;
    assert_eq!(
        refused.to_string(),
        "the component of plugin `probe` and this host define different types for `monstrum:plugin/credentials@0.1.0`"
    );
}

#[tokio::test]
async fn an_import_may_have_types_only() {
    let wat = format!(
        r#"(component {TYPES}
            (core module $m (memory (export "memory") 1) (func (export "f") (param i32) (result i32) (i32.const 0))
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024)))
            (core instance $m (instantiate $m))
            (func $f (param "request" $request) (result $result)
                (canon lift (core func $m "f") (memory (core memory $m "memory")) (realloc (core func $m "cabi_realloc"))))
            (instance $e (export "execute" (func $f)))
            (export "monstrum:plugin/executor@0.1.0" (instance $e)))"#
    );
    Bench::new().load(wat::parse_str(wat).unwrap()).await;
}

#[tokio::test]
async fn a_start_that_fails_or_never_ends_is_refused_at_load() {
    let starting = |body: &str| guest(&format!("(func $start {body}) (start $start) {ECHO}"));
    let reason = |refused: LoadError| match refused {
        LoadError::Trial { reason, .. } => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        reason(refusal(starting("unreachable")).await),
        "the plugin crashed: wasm trap: wasm `unreachable` instruction executed"
    );
    let endless = reason(refusal(starting("(loop (br 0))")).await);
    assert!(
        endless.starts_with("the plugin used up its computing budget") || endless == "the start took longer than 2 s",
        "{endless}"
    );
    // A start function may make host calls, which fail.
    Bench::new().load(starting("(call $get)")).await;
    let too_big = reason(refusal(guest(&format!("(memory $big 600) (memory $bigger 600) {ECHO}"))).await);
    assert!(too_big.starts_with("the plugin ran out of memory"), "{too_big}");
}

#[tokio::test]
async fn a_compilation_that_times_out_does_not_block_others() {
    let bench = Bench::new();
    let hasty = Runtime { compile_timeout: Duration::ZERO, ..bench.runtime.clone() };
    let refused = hasty.load(&plugin(), guest(ECHO), &[Capability::Http], MEMORY_BYTES).await.unwrap_err();
    assert_eq!(refused.to_string(), "compiling the component of plugin `probe` took longer than 0 s");
    // The same component loads with a longer time limit. Afterwards, the component loads from the cache even with the
    // time limit of zero.
    bench.load(guest(ECHO)).await;
    hasty.load(&plugin(), guest(ECHO), &[Capability::Http], MEMORY_BYTES).await.unwrap();
}

#[tokio::test]
async fn a_trial_has_the_memory_limit_of_calls() {
    let (bench, plugin) = (Bench::new(), plugin());
    let load = |pages: u64| {
        let wasm = guest(&format!("(memory $more 100) {ECHO}"));
        bench.runtime.load(&plugin, wasm, &[Capability::Http], pages << 16)
    };
    // The guest has 100 pages in addition to the 2 initial pages that every guest has.
    load(102).await.unwrap();
    let refused = load(101).await.unwrap_err();
    assert!(matches!(&refused, LoadError::Trial { reason, .. } if reason.starts_with("the plugin ran out of memory")));
}
