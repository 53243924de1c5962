//! Settings of sandboxes: the provider, the server's options and the host's limits.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use ipnet::Ipv4Net;
use monstrum_sandbox::Limits;
use serde::Deserialize;

use super::ServeFlags;
use monstrum_core::sandboxes::options::{CPU_MILLIS, DISK_MIB, IDLE_S, MEMORY_MIB, Options, PROCESSES};

const SWEEP_S: RangeInclusive<u32> = 1..=86_400;
const RUNNING_MAX: RangeInclusive<u32> = 1..=10_000;
/// The range for the number of kept sandboxes. The server lists even the maximum number quickly.
const KEPT_MAX: RangeInclusive<u32> = 1..=1_000_000;
/// The range for the disk space of kept sandboxes, in GiB. The maximum is 1 PiB, more than the disk of a host has.
const KEPT_GIB: RangeInclusive<u32> = 1..=1_048_576;
/// The range of a share, in percent.
const SHARE: RangeInclusive<u32> = 1..=100;
/// The range for the memory of all sandboxes. The minimum is enough for one sandbox with the lowest memory limit,
/// including its init process. The maximum is 64 TiB, more memory than a host has.
const TOTAL_MEMORY_MIB: RangeInclusive<u32> = 256..=67_108_864;
/// The range for the number of processes in all sandboxes. The minimum is enough for one sandbox with the lowest
/// process limit. The maximum is the kernel's limit.
const TOTAL_PROCESSES: RangeInclusive<u32> = 64..=4_194_304;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
}

impl SandboxSettings {
    /// Resolves each setting: the flag takes precedence over the file, the file over the default.
    pub(super) fn resolve(flags: &ServeFlags, file: &ServeFlags) -> SandboxSettings {
        let default = SandboxSettings::default();
        SandboxSettings {
            kind: flags.sandbox.or(file.sandbox).unwrap_or(default.kind),
            options: options(flags, file),
            totals: SandboxTotals {
                memory_mib: flags.sandbox_total_memory_mib.or(file.sandbox_total_memory_mib),
                processes: flags.sandbox_total_processes.or(file.sandbox_total_processes),
            },
            template: flags.sandbox_template.or(file.sandbox_template).unwrap_or(default.template),
            network: flags.sandbox_network.or(file.sandbox_network),
            resolvers: flags.sandbox_resolvers.clone().or_else(|| file.sandbox_resolvers.clone()),
        }
    }

    /// Returns the first setting of a file that is out of range, with the expected range.
    pub(super) fn fault(file: &ServeFlags) -> Option<(&'static str, String)> {
        let numbers = [
            ("sandbox_idle_s", file.sandbox_idle_s, IDLE_S),
            ("sandbox_sweep_s", file.sandbox_sweep_s, SWEEP_S),
            ("sandbox_memory_mib", file.sandbox_memory_mib, MEMORY_MIB),
            ("sandbox_disk_mib", file.sandbox_disk_mib, DISK_MIB),
            ("sandbox_processes", file.sandbox_processes, PROCESSES),
            ("sandbox_max", file.sandbox_max, RUNNING_MAX),
            ("sandbox_share_workspace", file.sandbox_share_workspace, SHARE),
            ("sandbox_share_bot", file.sandbox_share_bot, SHARE),
            ("sandbox_kept_max", file.sandbox_kept_max, KEPT_MAX),
            ("sandbox_kept_gib", file.sandbox_kept_gib, KEPT_GIB),
            ("sandbox_total_memory_mib", file.sandbox_total_memory_mib, TOTAL_MEMORY_MIB),
            ("sandbox_total_processes", file.sandbox_total_processes, TOTAL_PROCESSES),
        ];
        let is_outside = |value: Option<u32>, range: &RangeInclusive<u32>| value.is_some_and(|it| !range.contains(&it));
        let number = numbers.into_iter().find(|(_, value, range)| is_outside(*value, range));
        let number = number.map(|(setting, _, range)| (setting, expected(&range)));
        number.or_else(|| match file.sandbox_cpus {
            Some(cpus) if !is_cpus(cpus) => Some(("sandbox_cpus", expected_cpus())),
            _ => None,
        })
    }
}

fn options(flags: &ServeFlags, file: &ServeFlags) -> Options {
    let default = Options::default();
    let seconds = |value: Option<u32>, other| value.map_or(other, |value| Duration::from_secs(value.into()));
    let processes = flags.sandbox_processes.or(file.sandbox_processes).unwrap_or(default.limits.processes);
    let share_workspace = flags.sandbox_share_workspace.or(file.sandbox_share_workspace);
    Options {
        idle: seconds(flags.sandbox_idle_s.or(file.sandbox_idle_s), default.idle),
        sweep: seconds(flags.sandbox_sweep_s.or(file.sandbox_sweep_s), default.sweep),
        limits: Limits {
            cpu_millis: flags.sandbox_cpus.or(file.sandbox_cpus).map_or(default.limits.cpu_millis, millis),
            memory_mib: flags.sandbox_memory_mib.or(file.sandbox_memory_mib).unwrap_or(default.limits.memory_mib),
            disk_mib: flags.sandbox_disk_mib.or(file.sandbox_disk_mib).unwrap_or(default.limits.disk_mib),
            tmp_mib: default.limits.tmp_mib,
            processes,
            processes_per_exec: default.limits.processes_per_exec.min(processes),
        },
        running_max: flags.sandbox_max.or(file.sandbox_max).unwrap_or(default.running_max),
        share_workspace: share_workspace.unwrap_or(default.share_workspace),
        share_bot: flags.sandbox_share_bot.or(file.sandbox_share_bot).unwrap_or(default.share_bot),
        kept_max: flags.sandbox_kept_max.or(file.sandbox_kept_max).unwrap_or(default.kept_max),
        kept_gib: flags.sandbox_kept_gib.or(file.sandbox_kept_gib).unwrap_or(default.kept_gib),
    }
}

pub(super) fn idle_s(text: &str) -> Result<u32, String> {
    number(text, &IDLE_S)
}

pub(super) fn sweep_s(text: &str) -> Result<u32, String> {
    number(text, &SWEEP_S)
}

pub(super) fn memory_mib(text: &str) -> Result<u32, String> {
    number(text, &MEMORY_MIB)
}

pub(super) fn disk_mib(text: &str) -> Result<u32, String> {
    number(text, &DISK_MIB)
}

pub(super) fn processes(text: &str) -> Result<u32, String> {
    number(text, &PROCESSES)
}

pub(super) fn running_max(text: &str) -> Result<u32, String> {
    number(text, &RUNNING_MAX)
}

pub(super) fn share(text: &str) -> Result<u32, String> {
    number(text, &SHARE)
}

pub(super) fn kept_max(text: &str) -> Result<u32, String> {
    number(text, &KEPT_MAX)
}

pub(super) fn kept_gib(text: &str) -> Result<u32, String> {
    number(text, &KEPT_GIB)
}

pub(super) fn total_memory_mib(text: &str) -> Result<u32, String> {
    number(text, &TOTAL_MEMORY_MIB)
}

pub(super) fn total_processes(text: &str) -> Result<u32, String> {
    number(text, &TOTAL_PROCESSES)
}

pub(super) fn cpus(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|cpus| is_cpus(*cpus)).ok_or_else(expected_cpus)
}

fn number(text: &str, range: &RangeInclusive<u32>) -> Result<u32, String> {
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| expected(range))
}

fn expected(range: &RangeInclusive<u32>) -> String {
    format!("expected a number from {} to {}", range.start(), range.end())
}

fn is_cpus(cpus: f64) -> bool {
    cpus.is_finite() && cpus >= 0.0 && CPU_MILLIS.contains(&millis(cpus))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float stops at the bounds")]
fn millis(cpus: f64) -> u32 {
    (cpus * 1000.0).round() as u32
}

fn expected_cpus() -> String {
    let (least, most) = (f64::from(*CPU_MILLIS.start()) / 1000.0, CPU_MILLIS.end() / 1000);
    format!("expected a number from {least} to {most}, such as 0.5")
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
                    sandbox_network = \"10.9.0.0/16\"\nsandbox_resolvers = [\"8.8.8.8\"]";
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
        assert_eq!((cpus("-1"), cpus("0.5")), (Err(expected_cpus()), Ok(0.5)));
        assert_eq!((number("0", &RUNNING_MAX).is_err(), "off".parse()), (true, Ok(SandboxKind::Off)));
        assert_eq!(("built".parse(), "none".parse::<SandboxTemplate>().is_err()), (Ok(SandboxTemplate::Built), true));
    }
}
