//! The bindings generated from `wit/0.1.0`, for uses that the other modules of this crate do not cover.
//!
//! Plugins rarely need these bindings. The functions of these bindings are imports of a component and panic under
//! `cargo test`.
//! The functions of [`http`](crate::http), [`tools`](crate::tools), [`sandbox`](crate::sandbox),
//! [`events`](crate::events), [`log`](crate::log) and [`credentials`](crate::credentials) use the prepared answers of the
//! test instead.
//!
//! The world includes all imports, but a Rust component imports only the interfaces that it uses. The manifest must
//! list the capabilities of these interfaces.

#![allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::all,
    rustdoc::all,
    reason = "the code is generated; the WIT files contain its documentation"
)]

wit_bindgen::generate!({
    path: "../wit/0.1.0",
    world: "plugin-full",
    pub_export_macro: true,
    export_macro_name: "export_guest",
    default_bindings_module: "monstrum_sdk::wit",
    runtime_path: "monstrum_sdk::__private::rt",
});

/// The interface `functions`, which only plugins with functions export.
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
