//! Tests that take minutes. `cargo xtask test --long` runs them.

#![forbid(unsafe_code)]

#[path = "../equal_policy.rs"]
mod equal_policy;
#[path = "../revocation.rs"]
mod revocation;

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_among_500_000_bindings() -> anyhow::Result<()> {
    revocation::within_a_second(10_000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_200_bots_is_applied_with_equal_decisions() -> anyhow::Result<()> {
    equal_policy::holds(200, 10_000).await
}
