//! The contract as generated from `wit/0.1.0`: for what the rest of this crate does not offer.
//!
//! A plugin seldom needs it. Its functions are the host's own, so they exist in a component only; under `cargo test`
//! they panic, where those of [`http`](crate::http), [`tools`](crate::tools), [`sandbox`](crate::sandbox), [`log`](crate::log)
//! and [`credentials`](crate::credentials) answer from what the test has prepared.
//!
//! The world is the one with every import; a component of Rust imports of it what it uses, and its manifest lists the
//! capabilities for that.

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

/// The interface of functions, which only the plugins that have some export.
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
