//! Tests that take minutes. `cargo xtask test --long` runs them.

#![forbid(unsafe_code)]

#[path = "../equal_policy.rs"]
mod equal_policy;
#[path = "../litellm.rs"]
mod litellm;
#[path = "../revocation.rs"]
mod revocation;
#[path = "../run_kills.rs"]
mod run_kills;
#[path = "../task_kills.rs"]
mod task_kills;

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_among_500_000_bindings() -> anyhow::Result<()> {
    revocation::within_a_second(10_000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_200_bots_is_applied_with_equal_decisions() -> anyhow::Result<()> {
    equal_policy::holds(200, 10_000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_of_litellm_is_a_model() -> anyhow::Result<()> {
    litellm::answers().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_50_servers_with_tasks() -> anyhow::Result<()> {
    task_kills::hold(50, task_kills::Database::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_50_servers_with_tasks_and_a_shared_database() -> anyhow::Result<()> {
    let postgres = support::Postgres::start(&[])?;
    task_kills::hold(50, task_kills::Database::Postgres(postgres)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_servers_at_300_moments_of_runs() -> anyhow::Result<()> {
    run_kills::hold(300, run_kills::Database::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_servers_at_300_moments_of_runs_with_a_shared_database() -> anyhow::Result<()> {
    let postgres = support::Postgres::start(&[])?;
    run_kills::hold(300, run_kills::Database::Postgres(postgres)).await
}
