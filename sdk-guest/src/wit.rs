//! The bindings that are generated from `wit/0.1.0`, for uses that the rest of this crate does not cover.
//!
//! Plugins rarely need them. The functions are imports of a component and panic under `cargo test`, unlike those of
//! [`http`](crate::http), [`tools`](crate::tools), [`sandbox`](crate::sandbox), [`log`](crate::log) and
//! [`credentials`](crate::credentials), which use the prepared answers of the test.
//!
//! The world has all imports. A Rust component only imports the interfaces that it uses; the manifest must list their
//! capabilities.

#![allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::all,
    rustdoc::all,
    reason = "the code is generated, and its documentation is that of the WIT"
)]

wit_bindgen::generate!({
    path: "../wit/0.1.0",
    world: "plugin-full",
    pub_export_macro: true,
    export_macro_name: "export_guest",
    default_bindings_module: "monstrum_sdk::wit",
    runtime_path: "monstrum_sdk::__private::rt",
});

/// The interface of functions, which only plugins with functions export.
pub mod functions {
    wit_bindgen::generate!({
        inline: "package monstrum:sdk; world with-functions { export monstrum:plugin/functions@0.1.0; }",
        path: "../wit/0.1.0",
        world: "monstrum:sdk/with-functions",
        generate_all,
        pub_export_macro: true,
        export_macro_name: "export_functions",
        default_bindings_module: "monstrum_sdk::wit::functions",
        runtime_path: "monstrum_sdk::__private::rt",
    });
}
