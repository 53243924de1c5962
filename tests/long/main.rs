//! Tests that take minutes. `cargo xtask test --long` runs them.

#![forbid(unsafe_code)]

#[path = "../revocation.rs"]
mod revocation;

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_among_500_000_bindings() -> anyhow::Result<()> {
    revocation::within_a_second(10_000).await
}
