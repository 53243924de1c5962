//! Settings of sandboxes: the provider, the server's options and the host's limits.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use ipnet::Ipv4Net;
use monstrum_sandbox::Limits;
use serde::Deserialize;

use super::{Bounded, ServeFlags, Switch};
use monstrum_core::sandboxes::options::{CPU_MILLIS, DISK_MIB, IDLE_S, MEMORY_MIB, Options, PROCESSES};

pub(super) type IdleS = Bounded<{ *IDLE_S.start() }, { *IDLE_S.end() }>;
pub(super) type SweepS = Bounded<1, 86_400>;
pub(super) type MemoryMib = Bounded<{ *MEMORY_MIB.start() }, { *MEMORY_MIB.end() }>;
pub(super) type DiskMib = Bounded<{ *DISK_MIB.start() }, { *DISK_MIB.end() }>;
pub(super) type Processes = Bounded<{ *PROCESSES.start() }, { *PROCESSES.end() }>;
pub(super) type RunningMax = Bounded<1, 10_000>;
/// The number of kept sandboxes. The server lists even the maximum number quickly.
pub(super) type KeptMax = Bounded<1, 1_000_000>;
/// The disk space of kept sandboxes, in GiB. The maximum is 1 PiB, more than the disk of a host has.
pub(super) type KeptGib = Bounded<1, 1_048_576>;
/// A share, in percent.
pub(super) type Share = Bounded<1, 100>;
/// The memory of all sandboxes. The minimum is enough for one sandbox with the lowest memory limit, including its init
/// process. The maximum is 64 TiB, more memory than a host has.
pub(super) type TotalMemoryMib = Bounded<256, 67_108_864>;
/// The number of processes in all sandboxes. The minimum is enough for one sandbox with the lowest process limit. The
/// maximum is the kernel's limit.
pub(super) type TotalProcesses = Bounded<64, 4_194_304>;

/// A number of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Cpus {
    millis: u32,
}

impl TryFrom<f64> for Cpus {
    type Error = String;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast of a float stops at the bounds"
    )]
    fn try_from(cpus: f64) -> Result<Self, String> {
        let millis = (cpus * 1000.0).round() as u32;
        if cpus.is_finite() && cpus >= 0.0 && CPU_MILLIS.contains(&millis) {
            return Ok(Cpus { millis });
        }
        let (least, most) = (f64::from(*CPU_MILLIS.start()) / 1000.0, CPU_MILLIS.end() / 1000);
        Err(format!("expected a number from {least} to {most}, such as 0.5"))
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().unwrap_or(f64::NAN).try_into()
    }
}

/// The provider of sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxKind {
    /// No provider: the server has no sandboxes.
    Off,
    /// The provider in this process, with sandboxes on this machine.
    #[default]
    Embedded,
}

impl FromStr for SandboxKind {
    type Err = String;

    fn from_str(text: &str) -> Result<SandboxKind, String> {
        match text {
            "off" => Ok(SandboxKind::Off),
            "embedded" => Ok(SandboxKind::Embedded),
            _ => Err("expected off or embedded".to_owned()),
        }
    }
}

/// The template of new sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxTemplate {
    /// The programs of this machine.
    #[default]
    Host,
    /// A system built by `monstrum sandbox template build`.
    Built,
}

impl FromStr for SandboxTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<SandboxTemplate, String> {
        match text {
            "host" => Ok(SandboxTemplate::Host),
            "built" => Ok(SandboxTemplate::Built),
            _ => Err("expected host or built".to_owned()),
        }
    }
}

/// The limits of all sandboxes of a host together. If a limit is absent, its default depends on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SandboxTotals {
    pub memory_mib: Option<u32>,
    pub processes: Option<u32>,
}

/// Every setting of sandboxes, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSettings {
    pub kind: SandboxKind,
    pub options: Options,
    /// The limits of all sandboxes of this host together.
    pub totals: SandboxTotals,
    pub template: SandboxTemplate,
    /// The address range of sandboxes with a network; `None` uses the provider's default.
    pub network: Option<Ipv4Net>,
    /// The DNS resolvers of sandboxes with a network; `None` uses the provider's default.
    pub resolvers: Option<Vec<IpAddr>>,
    /// Whether the outputs of commands are kept.
    pub keep_outputs: bool,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        SandboxSettings {
            kind: SandboxKind::default(),
            options: Options::default(),
            totals: SandboxTotals::default(),
            template: SandboxTemplate::default(),
            network: None,
            resolvers: None,
            keep_outputs: true,
        }
    }
}

impl SandboxSettings {
    /// Resolves each setting: the flag takes precedence over the file, the file over the default.
    pub(super) fn resolve(flags: &ServeFlags, file: &ServeFlags) -> SandboxSettings {
        let default = SandboxSettings::default();
        SandboxSettings {
            kind: flags.sandbox.or(file.sandbox).unwrap_or(default.kind),
            options: options(flags, file),
            totals: SandboxTotals {
                memory_mib: flags.sandbox_total_memory_mib.or(file.sandbox_total_memory_mib).map(Bounded::get),
                processes: flags.sandbox_total_processes.or(file.sandbox_total_processes).map(Bounded::get),
            },
            template: flags.sandbox_template.or(file.sandbox_template).unwrap_or(default.template),
            network: flags.sandbox_network.or(file.sandbox_network),
            resolvers: flags.sandbox_resolvers.clone().or_else(|| file.sandbox_resolvers.clone()),
            keep_outputs: flags.sandbox_keep_outputs.or(file.sandbox_keep_outputs) != Some(Switch::Off),
        }
    }
}

fn options(flags: &ServeFlags, file: &ServeFlags) -> Options {
    let default = Options::default();
    let seconds = |value: u32| Duration::from_secs(value.into());
    let processes = flags.sandbox_processes.or(file.sandbox_processes).map_or(default.limits.processes, Bounded::get);
    let share_workspace = flags.sandbox_share_workspace.or(file.sandbox_share_workspace);
    Options {
        idle: flags.sandbox_idle_s.or(file.sandbox_idle_s).map_or(default.idle, |idle| seconds(idle.get())),
        sweep: flags.sandbox_sweep_s.or(file.sandbox_sweep_s).map_or(default.sweep, |sweep| seconds(sweep.get())),
        limits: Limits {
            cpu_millis: flags.sandbox_cpus.or(file.sandbox_cpus).map_or(default.limits.cpu_millis, |cpus| cpus.millis),
            memory_mib: flags
                .sandbox_memory_mib
                .or(file.sandbox_memory_mib)
                .map_or(default.limits.memory_mib, Bounded::get),
            disk_mib: flags.sandbox_disk_mib.or(file.sandbox_disk_mib).map_or(default.limits.disk_mib, Bounded::get),
            tmp_mib: default.limits.tmp_mib,
            processes,
            processes_per_exec: default.limits.processes_per_exec.min(processes),
        },
        running_max: flags.sandbox_max.or(file.sandbox_max).map_or(default.running_max, Bounded::get),
        share_workspace: share_workspace.map_or(default.share_workspace, Bounded::get),
        share_bot: flags.sandbox_share_bot.or(file.sandbox_share_bot).map_or(default.share_bot, Bounded::get),
        kept_max: flags.sandbox_kept_max.or(file.sandbox_kept_max).map_or(default.kept_max, Bounded::get),
        kept_gib: flags.sandbox_kept_gib.or(file.sandbox_kept_gib).map_or(default.kept_gib, Bounded::get),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FILE, Settings};
    use super::*;

    #[test]
    fn sandboxes_have_settings_with_ranges() {
        let folder = tempfile::tempdir().unwrap();
        let resolve = |text: &str, flags: ServeFlags| {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            Settings::resolve(flags, folder.path())
                .map(|settings| settings.sandboxes)
                .map_err(|error| error.to_string())
        };
        assert_eq!(resolve("", ServeFlags::default()).unwrap(), SandboxSettings::default());
        let file = "sandbox = \"off\"\nsandbox_idle_s = 10\nsandbox_cpus = 1.5\nsandbox_max = 2\nsandbox_share_bot = 40\nsandbox_kept_max = 7\nsandbox_total_memory_mib = 4096\nsandbox_processes = 100\nsandbox_template = \"built\"\n\
                    sandbox_network = \"10.9.0.0/16\"\nsandbox_resolvers = [\"8.8.8.8\"]\nsandbox_keep_outputs = \"off\"";
        let flags = ServeFlags { sandbox: Some(SandboxKind::Embedded), ..ServeFlags::default() };
        let limits = Limits { cpu_millis: 1500, processes: 100, processes_per_exec: 100, ..Limits::default() };
        let expected = SandboxSettings {
            kind: SandboxKind::Embedded,
            options: Options {
                idle: Duration::from_secs(10),
                sweep: Duration::from_secs(300),
                limits,
                running_max: 2,
                share_workspace: 50,
                share_bot: 40,
                kept_max: 7,
                kept_gib: 50,
            },
            totals: SandboxTotals { memory_mib: Some(4096), processes: None },
            template: SandboxTemplate::Built,
            network: Some("10.9.0.0/16".parse().unwrap()),
            resolvers: Some(vec!["8.8.8.8".parse().unwrap()]),
            keep_outputs: false,
        };
        assert_eq!(resolve(file, flags).unwrap(), expected);
        let refused = |text: &str| resolve(text, ServeFlags::default()).unwrap_err();
        assert!(refused("sandbox_idle_s = 4").ends_with("sandbox_idle_s: expected a number from 5 to 86400"));
        assert!(refused("sandbox_memory_mib = 1").ends_with("expected a number from 32 to 1048576"));
        assert!(refused("sandbox_share_workspace = 101").ends_with("expected a number from 1 to 100"));
        assert!(refused("sandbox_share_bot = 0").ends_with("expected a number from 1 to 100"));
        assert!(refused("sandbox_kept_gib = 0").ends_with("expected a number from 1 to 1048576"));
        assert!(refused("sandbox_cpus = nan").ends_with("expected a number from 0.05 to 1024, such as 0.5"));
        assert!(refused("sandbox = \"on\"").contains("unknown variant"));
        assert_eq!("-1".parse::<Cpus>(), Err("expected a number from 0.05 to 1024, such as 0.5".to_owned()));
        assert_eq!(("x".parse::<Cpus>().is_err(), "0.5".parse()), (true, Ok(Cpus { millis: 500 })));
        assert_eq!(("0".parse::<RunningMax>().is_err(), "off".parse()), (true, Ok(SandboxKind::Off)));
        assert_eq!(("built".parse(), "none".parse::<SandboxTemplate>().is_err()), (Ok(SandboxTemplate::Built), true));
    }
}
