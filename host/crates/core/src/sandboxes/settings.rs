//! The sandbox settings of a workspace, which take precedence over the options of the server.

use std::ops::RangeInclusive;
use std::time::Duration;

use monstrum_sandbox::{Limits, Network, Spec};
use monstrum_types::WorkspaceSandbox;
use serde_json::{Value, json};

use super::options::{CPU_MILLIS, DISK_MIB, IDLE_S, MEMORY_MIB, Options, PROCESSES, TMP_MIB};

/// Returns the settings that are out of range, each with its JSON pointer and a message that contains the valid range.
pub fn out_of_range(settings: &WorkspaceSandbox) -> Vec<(&'static str, String)> {
    let limits = settings.limits.unwrap_or_default();
    let checked: [(&str, Option<u32>, RangeInclusive<u32>); 7] = [
        ("/idle_s", settings.idle_s, IDLE_S),
        ("/limits/cpu_millis", limits.cpu_millis, CPU_MILLIS),
        ("/limits/memory_mib", limits.memory_mib, MEMORY_MIB),
        ("/limits/disk_mib", limits.disk_mib, DISK_MIB),
        ("/limits/tmp_mib", limits.tmp_mib, TMP_MIB),
        ("/limits/processes", limits.processes, PROCESSES),
        ("/limits/processes_per_exec", limits.processes_per_exec, PROCESSES),
    ];
    let outside = |(place, value, range): (&'static str, Option<u32>, RangeInclusive<u32>)| {
        let is_outside = value.is_some_and(|value| !range.contains(&value));
        is_outside.then(|| (place, format!("must be from {} to {}", range.start(), range.end())))
    };
    checked.into_iter().filter_map(outside).collect()
}

/// Returns the spec of a new or resumed sandbox. The settings of the workspace take precedence over the server's
/// options.
pub(super) fn spec(settings: &WorkspaceSandbox, options: &Options) -> Spec {
    let (own, all) = (settings.limits.unwrap_or_default(), options.limits);
    let processes = own.processes.unwrap_or(all.processes);
    let limits = Limits {
        cpu_millis: own.cpu_millis.unwrap_or(all.cpu_millis),
        memory_mib: own.memory_mib.unwrap_or(all.memory_mib),
        disk_mib: own.disk_mib.unwrap_or(all.disk_mib),
        tmp_mib: own.tmp_mib.unwrap_or(all.tmp_mib),
        processes,
        processes_per_exec: own.processes_per_exec.unwrap_or(all.processes_per_exec).min(processes),
    };
    Spec { limits, network: settings.network.unwrap_or_default() }
}

/// Returns the time for which a sandbox may be unused before it is stopped.
pub(super) fn idle(settings: &WorkspaceSandbox, options: &Options) -> Duration {
    settings.idle_s.map_or(options.idle, |seconds| Duration::from_secs(seconds.into()))
}

/// Converts limits to the form in which a row stores them.
pub(super) fn limits_json(limits: &Limits) -> Value {
    let Limits { cpu_millis, memory_mib, disk_mib, tmp_mib, processes, processes_per_exec } = *limits;
    // Whole numbers have no fraction in the JSON text.
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

/// Returns the name of a network as a row stores it.
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
    fn limits_are_stored_by_their_public_names() {
        let stored = limits_json(&Limits { cpu_millis: 1500, disk_mib: 512, ..Limits::default() });
        let expected = json!({
            "cpuCount": 1.5, "memoryMiB": 1024, "diskGiB": 0.5, "tmpMiB": 256, "processes": 1024, "processesPerExec": 256,
        });
        assert_eq!(stored, expected);
    }
}
