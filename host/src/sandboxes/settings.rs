//! The sandbox settings of a workspace, set by an operator, and the server's defaults.

use std::ops::RangeInclusive;
use std::time::Duration;

use monstrum_sandbox::{Limits, Network, Spec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::config::{
    SANDBOX_CPU_MILLIS, SANDBOX_DISK_MIB, SANDBOX_IDLE_S, SANDBOX_MEMORY_MIB, SANDBOX_PROCESSES, SANDBOX_TMP_MIB,
    SandboxSettings,
};

/// The sandbox settings of a workspace. Missing values are the server's defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = WorkspaceSandbox)]
pub struct WorkspaceSandbox {
    /// `none`, or `full` for public addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<SandboxLimits>,
    /// Seconds after which a sandbox that nobody uses is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 5, maximum = 86400)]
    pub idle_s: Option<u32>,
}

/// The limits of one sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxLimits {
    /// Thousandths of a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Of /workspace and what was installed. It counts for sandboxes that are made from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// Of /tmp, which is in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmp_mib: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_per_exec: Option<u32>,
}

impl WorkspaceSandbox {
    /// The values out of range: for each its place, as a JSON pointer, and the expected range.
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        let limits = self.limits.unwrap_or_default();
        let checked: [(&str, Option<u32>, RangeInclusive<u32>); 7] = [
            ("/idle_s", self.idle_s, SANDBOX_IDLE_S),
            ("/limits/cpu_millis", limits.cpu_millis, SANDBOX_CPU_MILLIS),
            ("/limits/memory_mib", limits.memory_mib, SANDBOX_MEMORY_MIB),
            ("/limits/disk_mib", limits.disk_mib, SANDBOX_DISK_MIB),
            ("/limits/tmp_mib", limits.tmp_mib, SANDBOX_TMP_MIB),
            ("/limits/processes", limits.processes, SANDBOX_PROCESSES),
            ("/limits/processes_per_exec", limits.processes_per_exec, SANDBOX_PROCESSES),
        ];
        let outside = |(place, value, range): (&'static str, Option<u32>, RangeInclusive<u32>)| {
            let is_outside = value.is_some_and(|value| !range.contains(&value));
            is_outside.then(|| (place, format!("must be from {} to {}", range.start(), range.end())))
        };
        checked.into_iter().filter_map(outside).collect()
    }

    /// The parameters of a start.
    pub(super) fn spec(&self, settings: &SandboxSettings) -> Spec {
        let (own, all) = (self.limits.unwrap_or_default(), settings.limits);
        let processes = own.processes.unwrap_or(all.processes);
        let limits = Limits {
            cpu_millis: own.cpu_millis.unwrap_or(all.cpu_millis),
            memory_mib: own.memory_mib.unwrap_or(all.memory_mib),
            disk_mib: own.disk_mib.unwrap_or(all.disk_mib),
            tmp_mib: own.tmp_mib.unwrap_or(all.tmp_mib),
            processes,
            processes_per_exec: own.processes_per_exec.unwrap_or(all.processes_per_exec).min(processes),
        };
        Spec { limits, network: self.network.unwrap_or_default() }
    }

    /// How long a sandbox may be idle.
    pub(super) fn idle(&self, settings: &SandboxSettings) -> Duration {
        self.idle_s.map_or(settings.idle, |seconds| Duration::from_secs(seconds.into()))
    }
}

/// The limits in the format of a row, and which ones it lacks.
pub(super) fn told(limits: &Limits) -> Value {
    let Limits { cpu_millis, memory_mib, disk_mib, tmp_mib, processes, processes_per_exec } = *limits;
    // Whole numbers are written without a fraction.
    let quotient = |number: u32, by: u32| match number % by {
        0 => json!(number / by),
        _ => json!(f64::from(number) / f64::from(by)),
    };
    json!({
        "cpuCount": quotient(cpu_millis, 1000),
        "memoryMiB": memory_mib,
        "diskGiB": quotient(disk_mib, 1024),
        "tmpMiB": tmp_mib,
        "processes": processes,
        "processesPerExec": processes_per_exec,
    })
}

/// The name of a network in a row.
pub(super) fn word(network: Network) -> &'static str {
    match network {
        Network::None => "none",
        Network::Full => "full",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_by_the_names_of_the_requirement() {
        let told = told(&Limits { cpu_millis: 1500, disk_mib: 512, ..Limits::default() });
        let expected = json!({
            "cpuCount": 1.5, "memoryMiB": 1024, "diskGiB": 0.5, "tmpMiB": 256, "processes": 1024, "processesPerExec": 256,
        });
        assert_eq!(told, expected);
    }
}
