//! `monstrum sandbox doctor` and `template`: check whether this machine can run sandboxes, and build their template.
//! Neither command needs a server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::boot::SANDBOX_FOLDER;
use crate::cli::failure::Failure;
use crate::cli::{FolderFlags, Options};

const DOCTOR_EXAMPLES: &str = "\
Examples:
  monstrum sandbox doctor
  monstrum sandbox doctor --data-dir /var/lib/monstrum --json

Run this command on the server's machine, as the server's user. The command changes nothing, so the server may be
running. The exit code is 0 if sandboxes can run on this machine, even with reduced features, and 1 otherwise.";

const BUILD_EXAMPLES: &str = "\
Examples:
  monstrum sandbox template build
  monstrum sandbox template build --data-dir /var/lib/monstrum --mirror https://deb.debian.org/debian --suite bookworm

With --sandbox-template built, a server creates sandboxes from this system instead of the programs of the machine. The
build requires debootstrap, curl and tar, root, a few minutes and 1 GiB. It verifies packages by the signatures of the
distribution, and npm and bun by their hashes. If the build is interrupted, run the command again. To update the system,
stop the server and run the command again.";

/// Report which limits this machine can enforce, and which programs to install
#[derive(Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub(in crate::cli) struct Doctor {}

/// Manage the template of sandboxes
#[derive(Subcommand)]
pub(in crate::cli) enum Template {
    /// Build a system with bash, python3, node, npm, bun, git and curl
    #[command(after_help = BUILD_EXAMPLES)]
    Build(Build),
}

#[derive(Args)]
pub(in crate::cli) struct Build {
    /// The mirror of the distribution's packages [default: as on this machine, else http://deb.debian.org/debian]
    #[arg(long, value_name = "URL")]
    mirror: Option<String>,
    /// The name of the distribution's release [default: as on this machine, else bookworm]
    #[arg(long, value_name = "NAME")]
    suite: Option<String>,
    /// The registry of npm and bun [default: https://registry.npmjs.org]
    #[arg(long, value_name = "URL", env = "NPM_CONFIG_REGISTRY", hide_env_values = true)]
    registry: Option<String>,
    /// The proxy for all downloads
    #[arg(long, value_name = "URL", env = "https_proxy", hide_env_values = true)]
    proxy: Option<String>,
}

impl Doctor {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let (settings, json) = (options.settings(FolderFlags::default())?, options.json);
        blocking(move || linux::examine(&settings, json)).await
    }
}

impl Template {
    pub(super) async fn run(self, options: &Options) -> Result<ExitCode, Failure> {
        let Template::Build(build) = self;
        let (folder, json) = (folder(options)?, options.json);
        blocking(move || linux::build(&folder, build, json)).await
    }
}

fn folder(options: &Options) -> Result<PathBuf, Failure> {
    Ok(options.settings(FolderFlags::default())?.data_dir.join(SANDBOX_FOLDER))
}

async fn blocking(work: impl FnOnce() -> Result<ExitCode, Failure> + Send + 'static) -> Result<ExitCode, Failure> {
    tokio::task::spawn_blocking(work).await.expect("the work does not panic")
}

#[cfg(not(target_os = "linux"))]
mod linux {
    use std::path::Path;
    use std::process::ExitCode;

    use super::Build;
    use crate::cli::failure::Failure;
    use crate::config::Settings;

    fn elsewhere() -> Failure {
        Failure::new("sandboxes require Linux", "run the server on Linux")
    }

    pub(super) fn examine(_: &Settings, _: bool) -> Result<ExitCode, Failure> {
        Err(elsewhere())
    }

    pub(super) fn build(_: &Path, _: Build, _: bool) -> Result<ExitCode, Failure> {
        Err(elsewhere())
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::path::Path;
    use std::process::ExitCode;

    use monstrum_sandbox_embedded::TotalSettings;
    use monstrum_sandbox_embedded::doctor::{self, Status};
    use monstrum_sandbox_embedded::template::{BuildOptions, build_template};
    use serde_json::json;

    use super::Build;
    use crate::boot::SANDBOX_FOLDER;
    use crate::cli::failure::Failure;
    use crate::cli::output;
    use crate::config::{SandboxSettings, Settings};
    use monstrum_core::sandboxes::Options;

    pub(super) fn examine(settings: &Settings, json: bool) -> Result<ExitCode, Failure> {
        let SandboxSettings { options: Options { running_max, limits, .. }, totals, .. } = settings.sandboxes;
        let totals = TotalSettings { memory_mib: totals.memory_mib, processes: totals.processes };
        let report =
            doctor::examine(&settings.data_dir.join(SANDBOX_FOLDER), &doctor::Plan { running_max, limits, totals });
        if json {
            output::json(&json!(report))?;
        } else {
            for check in &report.checks {
                let status = match check.status {
                    Status::Ok => "ok",
                    Status::Degraded => "degraded",
                    Status::Missing => "missing",
                };
                output::line(output::plain(&format!("{status}: {}: {}", check.name, check.detail)))?;
                if !check.remedy.is_empty() {
                    output::line(output::plain(&format!("    {}", check.remedy)))?;
                }
            }
            output::line(if report.ready {
                "sandboxes can run on this machine"
            } else {
                "sandboxes cannot run on this machine"
            })?;
        }
        Ok(if report.ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    pub(super) fn build(folder: &Path, build: Build, json: bool) -> Result<ExitCode, Failure> {
        let Build { mirror, suite, registry, proxy } = build;
        let proxy =
            proxy.iter().flat_map(|url| ["http_proxy", "https_proxy"].map(|name| (name.to_owned(), url.clone())));
        let options = BuildOptions { mirror, suite, registry, proxy: proxy.collect() };
        let mut progress = |line: &str| output::note(&output::plain(line));
        let template = build_template(&folder.join("template"), &options, &mut progress).map_err(|error| {
            Failure::from_error(&error, "run `monstrum sandbox template build --help` to see the requirements")
        })?;
        if json {
            output::json(&json!({ "root": template.root, "system": template.system, "programs": template.programs }))?;
        } else {
            output::line(format!("{} with {} is ready", template.system, template.programs.join(", ")))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
