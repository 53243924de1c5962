//! `cargo xtask test`: runs all tests. The machine needs only rustup and a C compiler.

use std::process::Command;

use anyhow::Result;

use crate::plugins::{self, Kind, file_name, lay_out};
use crate::repository::Repository;
use crate::setup::{self, WASIP1, WASIP2};
use crate::snapshots::Snapshots;
use crate::steps::{Steps, run};

/// The plugin that the tests build twice: with cargo and with cargo-component.
const BUILT_BOTH_WAYS: &str = "github";

/// The test of the console with every kind of key, language, theme and width.
const LOOKS_TEST: &str = "console::browser::every_page_in_every_look";

/// Installs prerequisites, builds everything and runs the tests.
pub(crate) fn run_all(repository: &Repository, with_long: bool) -> Result<()> {
    let mut steps = Steps::new(if with_long { 17 } else { 14 });
    steps.step("set-up: WebAssembly targets", || setup::wasm_targets(repository, &[WASIP2, WASIP1]))?;
    // Python is needed for the test that compares the host's fnmatch with Python's.
    steps.step("set-up: Debian packages", || {
        setup::debian("python3", "python3")?;
        // The tests run the commands in docs/backup.md and docs/start.md, which use sqlite3, jq and curl.
        setup::debian("sqlite3", "sqlite3")?;
        setup::debian("jq", "jq")?;
        setup::debian("curl", "curl")?;
        setup::postgresql()?;
        setup::sandboxes()
    })?;
    steps.step("set-up: OAuth server for the tests", || setup::oauth_server(repository))?;
    steps.step("set-up: MCP clients for the tests", || setup::mcp_clients(repository))?;
    steps.step("set-up: OpenAI clients for the tests", || setup::openai_clients(repository))?;
    steps.step("set-up: MCP conformance suite", || setup::mcp_conformance(repository))?;
    steps.step("set-up: Chromium", || setup::console_browser(repository))?;
    steps.step("set-up: cargo-component", || setup::cargo_component(repository))?;
    steps.step("plugins and test guests", || plugins::build(repository, &[Kind::Reference, Kind::Guest]).map(drop))?;
    steps.step("native tests of the plugins", || {
        run(repository.cargo_of_plugins().args(["test", "--locked", "--workspace"]))
    })?;
    // One build creates both programs and tests, so that cargo builds shared dependencies once.
    steps.step("workspace (takes a few minutes the first time)", || {
        run(repository.cargo().args(["build", "--locked", "--workspace", "--bins", "--tests"]))
    })?;
    steps.step("a plugin built by cargo-component", || cargo_component_check(repository))?;
    let snapshots = Snapshots::begin(repository)?;
    steps.step("tests of the workspace", || {
        run(repository.cargo().env(Snapshots::VARIABLE, &snapshots.seen).args(["test", "--locked", "--workspace"]))
    })?;
    steps.step("search for snapshots that no test uses", || snapshots.all_are_seen(repository))?;
    if with_long {
        steps.step("set-up: the proxy of litellm", || setup::litellm_proxy(repository))?;
        steps.step("long tests", || {
            run(repository.cargo().args(["test", "--locked", "--package", "monstrum-tests", "--test", "long"]))
        })?;
        steps.step("every page of the console in every look (takes half an hour)", || {
            let mut cargo = repository.cargo();
            cargo.args(["test", "--locked", "--workspace", "--test", "it", "--", "--ignored", "--exact", LOOKS_TEST]);
            run(&mut cargo)
        })?;
    }
    Ok(())
}

/// Checks that a plugin built by cargo-component loads, because authors may use cargo-component.
fn cargo_component_check(repository: &Repository) -> Result<()> {
    let mut cargo = repository.cargo_of_plugins();
    // The check uses a target folder other than cargo's, because cargo-component and cargo build the same package in
    // different ways.
    let target = repository.target("cargo-component");
    cargo.env("CARGO_TARGET_DIR", &target);
    run(cargo.args(["component", "build", "--locked", "--release", "--package", BUILT_BOTH_WAYS]))?;
    let component = target.join(WASIP1).join("release").join(file_name(BUILT_BOTH_WAYS));
    let folder = target.join("plugins").join(BUILT_BOTH_WAYS);
    lay_out(repository, BUILT_BOTH_WAYS, &component, &folder)?;
    run(Command::new(repository.binary("debug", "monstrum")).args(["plugin", "validate"]).arg(&folder))
}
