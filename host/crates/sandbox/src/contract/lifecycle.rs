//! The lifecycle of sandboxes, from the first command to the deletion.

use std::time::Duration;

use futures::future::join_all;

use super::{Sandbox, Subject, eventually, random_hex};
use crate::{Ensured, ExecRequest, Limits, Network, SandboxError, Spec, State, Termination};

async fn state(sandbox: &Sandbox) -> Option<State> {
    let inspection = sandbox.provider.inspect(&sandbox.name).await.expect("it can be looked at");
    inspection.map(|inspection| inspection.state)
}

async fn listed(sandbox: &Sandbox) -> Vec<State> {
    let all = sandbox.provider.list().await.expect("they can be listed");
    all.into_iter().filter(|one| one.name == sandbox.name).map(|one| one.state).collect()
}

pub async fn provider_is_ready_and_describes_itself(subject: &Subject) {
    let capabilities = subject.provider.capabilities().expect("the provider is ready");
    assert!(!capabilities.system.is_empty() && capabilities.networks.contains(&Network::None), "{capabilities:?}");
    for degraded in &capabilities.degraded {
        assert!(!degraded.reason.is_empty() && !degraded.remedy.is_empty(), "{degraded:?}");
    }
    subject.provider.health().await.expect("it can be used");
}

pub async fn concurrent_starts_create_one_sandbox(subject: &Subject) {
    let sandbox = subject.absent();
    let calls = (0..20).map(|_| sandbox.ensure(Subject::small()));
    let answers = join_all(calls).await;
    let created = answers.iter().filter(|answer| **answer == Ensured::Created).count();
    assert_eq!(created, 1, "{answers:?}");
    assert!(!answers.contains(&Ensured::Resumed), "{answers:?}");
    assert_eq!(listed(&sandbox).await, [State::Running]);
    assert_eq!(sandbox.text("echo usable").await, "usable");
}

pub async fn stop_and_resume_twice_keep_files(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let install = "printf '#!/bin/sh\\necho tool\\n' >/usr/local/bin/tool && chmod +x /usr/local/bin/tool && \
                   echo mine >/root/.mine && echo mine >/etc/mine && rm /etc/hostname && mkdir -p /opt/mine && \
                   echo work >/workspace/work && echo gone >/tmp/gone";
    sandbox.text(install).await;
    for round in 1..=2 {
        sandbox.start("sleep 4243").await;
        sandbox.provider.stop(&sandbox.name).await.expect("it is stopped");
        assert_eq!((state(&sandbox).await, listed(&sandbox).await), (Some(State::Stopped), vec![State::Stopped]));
        assert_eq!(sandbox.ensure(Subject::small()).await, Ensured::Resumed);
        assert_eq!(sandbox.ensure(Subject::small()).await, Ensured::AlreadyRunning);
        let kept = "tool && cat /root/.mine /etc/mine /workspace/work && [ -d /opt/mine ] && [ ! -e /etc/hostname ]";
        assert_eq!(sandbox.text(kept).await, "tool\nmine\nmine\nwork", "round {round}");
        assert_eq!(sandbox.text("ls -A /tmp").await, "", "files in memory were kept");
        assert_eq!(sandbox.processes("sleep 4243").await, 0);
    }
}

pub async fn stop_ends_everything(subject: &Subject) {
    let Some(host) = &subject.host else { return };
    let sandbox = subject.sandbox().await;
    let marker = format!("86400{}", u32::from_str_radix(&random_hex(3), 16).expect("hex digits"));
    sandbox.start(&format!("trap '' TERM HUP; setsid sleep {marker}")).await;
    sandbox.start(&format!("exec setsid setsid sleep {marker}")).await;
    eventually("it runs", Duration::from_secs(5), async || host.processes(&marker) >= 2).await;
    sandbox.provider.stop(&sandbox.name).await.expect("it is stopped");
    assert_eq!(host.processes(&marker), 0, "a process outlived its sandbox");
}

/// Starts a command that runs for a long time, runs `end`, and returns how the command ended.
async fn ended_by<F: Future<Output = ()>>(sandbox: &Sandbox, end: F) -> Termination {
    let exec = sandbox.run("touch /workspace/started; sleep 600");
    let end = async {
        eventually("the command has started", Duration::from_secs(10), async || {
            let inspection = sandbox.provider.inspect(&sandbox.name).await.expect("it can be looked at");
            let is_counted = inspection.is_some_and(|inspection| inspection.execs == 1);
            is_counted && sandbox.provider.stat(&sandbox.name, "/workspace/started").await.is_ok()
        })
        .await;
        end.await;
    };
    let (output, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(30), exec), end);
    output.expect("it ends with its sandbox").termination
}

pub async fn stop_of_a_running_exec_is_lost(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let end = async { sandbox.provider.stop(&sandbox.name).await.expect("it is stopped") };
    assert_eq!(ended_by(&sandbox, end).await, Termination::Lost);
    assert_eq!(sandbox.ensure(Subject::small()).await, Ensured::Resumed);
    assert_eq!(sandbox.text("cat /workspace/started && echo there").await, "there");
}

pub async fn delete_during_an_exec(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let end = async { sandbox.provider.delete(&sandbox.name).await.expect("it is deleted") };
    assert_eq!(ended_by(&sandbox, end).await, Termination::Lost);
    assert_eq!((state(&sandbox).await, listed(&sandbox).await), (None, vec![]));
}

pub async fn second_delete_succeeds_and_a_new_sandbox_is_empty(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.text("echo old >/workspace/old; echo old >/root/old").await;
    let (first, second) = tokio::join!(sandbox.provider.delete(&sandbox.name), sandbox.provider.delete(&sandbox.name));
    assert_eq!((first, second), (Ok(()), Ok(())));
    assert_eq!(sandbox.provider.delete(&sandbox.name).await, Ok(()));
    assert_eq!(sandbox.ensure(Subject::small()).await, Ensured::Created);
    assert_eq!(sandbox.text("ls -A /workspace /root | grep -w old; true").await, "");
}

pub async fn missing_sandboxes_are_never_created(subject: &Subject) {
    let sandbox = subject.absent();
    assert_eq!(sandbox.provider.stop(&sandbox.name).await, Ok(()));
    assert_eq!(sandbox.provider.delete(&sandbox.name).await, Ok(()));
    let refusals = [
        sandbox.refusal(ExecRequest::new("true")).await,
        sandbox.names("/workspace").await.expect_err("the sandbox does not exist"),
        sandbox.read("file").await.expect_err("the sandbox does not exist"),
        sandbox.write("file", "text").await.expect_err("the sandbox does not exist"),
    ];
    for error in refusals {
        assert!(matches!(error, SandboxError::Conflict(_) | SandboxError::NotFound(_)), "{error:?}");
    }
    assert_eq!((state(&sandbox).await, listed(&sandbox).await), (None, vec![]));
}

pub async fn command_does_not_resume_a_stopped_sandbox(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.provider.stop(&sandbox.name).await.expect("it is stopped");
    sandbox.provider.stop(&sandbox.name).await.expect("a second stop is not an error");
    let error = sandbox.refusal(ExecRequest::new("true")).await;
    assert!(matches!(error, SandboxError::Conflict(_)), "{error:?}");
    assert_eq!(state(&sandbox).await, Some(State::Stopped));
}

pub async fn list_contains_all_sandboxes(subject: &Subject) {
    let (first, second) = (subject.sandbox().await, subject.sandbox().await);
    second.provider.stop(&second.name).await.expect("it is stopped");
    assert_eq!((listed(&first).await, listed(&second).await), (vec![State::Running], vec![State::Stopped]));
}

pub async fn invalid_limits_are_refused(subject: &Subject) {
    let fine = Subject::small();
    for (what, limits) in [
        ("no processor", Limits { cpu_millis: 0, ..fine }),
        ("no memory", Limits { memory_mib: 0, ..fine }),
        ("no disk", Limits { disk_mib: 0, ..fine }),
        ("no /tmp", Limits { tmp_mib: 0, ..fine }),
        ("no processes", Limits { processes: 0, ..fine }),
        ("no processes of a command", Limits { processes_per_exec: 0, ..fine }),
        ("a disk of 4 PiB", Limits { disk_mib: u32::MAX, ..fine }),
    ] {
        let sandbox = subject.absent();
        let spec = Spec { limits, network: Network::None };
        let error = sandbox.provider.ensure_running(&sandbox.name, spec).await.expect_err(what);
        let is_said =
            matches!(error, SandboxError::Invalid(_) | SandboxError::Unsupported(_) | SandboxError::Exhausted(_));
        assert!(is_said, "{what}: {error:?}");
        assert_eq!((state(&sandbox).await, listed(&sandbox).await), (None, vec![]), "{what}");
    }
}

pub async fn unsupported_network_is_refused(subject: &Subject) {
    let networks = &subject.provider.capabilities().expect("the provider is ready").networks;
    if networks.contains(&Network::Full) {
        return;
    }
    let sandbox = subject.absent();
    let spec = Spec { limits: Subject::small(), network: Network::Full };
    let error = sandbox
        .provider
        .ensure_running(&sandbox.name, spec)
        .await
        .expect_err("the provider does not have this network");
    assert!(matches!(error, SandboxError::Unsupported(_)), "{error:?}");
    assert_eq!((state(&sandbox).await, listed(&sandbox).await), (None, vec![]));
}

pub async fn concurrent_calls_leave_a_usable_sandbox(subject: &Subject) {
    let sandbox = subject.absent();
    let spec = Spec { limits: Subject::small(), network: Network::None };
    let calls = (0..40).map(|number| {
        let sandbox = &sandbox;
        async move {
            let (provider, name) = (&sandbox.provider, &sandbox.name);
            match number % 5 {
                0 | 1 => provider.ensure_running(name, spec).await.map(|_| ()),
                2 => provider.stop(name).await,
                3 => provider.delete(name).await,
                _ => provider.exec(name, ExecRequest::new("true"), None).await.map(|_| ()),
            }
        }
    });
    for (number, answer) in join_all(calls).await.into_iter().enumerate() {
        // Another call may have changed or deleted the sandbox first. Every other error is a failure.
        let is_fine = matches!(answer, Ok(()) | Err(SandboxError::Conflict(_) | SandboxError::NotFound(_)));
        assert!(is_fine, "call {number}: {answer:?}");
    }
    sandbox.ensure(Subject::small()).await;
    assert_eq!(sandbox.text("echo usable").await, "usable");
    assert_eq!(listed(&sandbox).await, [State::Running]);
    sandbox.provider.delete(&sandbox.name).await.expect("it is deleted");
    assert_eq!(listed(&sandbox).await, []);
}

pub async fn cancelled_calls_leave_a_usable_sandbox(subject: &Subject) {
    let sandbox = subject.absent();
    let spec = Spec { limits: Subject::small(), network: Network::None };
    for wait in [0, 1, 5, 10, 20, 40, 80] {
        let ensure = sandbox.provider.ensure_running(&sandbox.name, spec);
        let _dropped = tokio::time::timeout(Duration::from_millis(wait), ensure).await;
        let stop = sandbox.provider.stop(&sandbox.name);
        let _dropped = tokio::time::timeout(Duration::from_millis(wait), stop).await;
    }
    sandbox.ensure(Subject::small()).await;
    assert_eq!(sandbox.text("echo usable").await, "usable");
}

/// A caller that only reads files must not trigger programs that the sandbox has replaced.
pub async fn resume_runs_no_program_of_the_sandbox(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let hostile = "cp /usr/bin/bash /usr/local/own && \
        printf '#!/usr/local/own\\necho ran >>/workspace/ran\\nexec /usr/local/own \"$@\"' >/usr/local/new && \
        chmod 755 /usr/local/new && mv /usr/local/new /usr/bin/bash";
    sandbox.text(hostile).await;
    sandbox.provider.stop(&sandbox.name).await.expect("it stops");
    assert_eq!(sandbox.ensure(Subject::small()).await, crate::Ensured::Resumed);
    let names = async || {
        let entries = sandbox.provider.list_dir(&sandbox.name, "/workspace").await.expect("it is listed");
        entries.into_iter().map(|entry| entry.name).filter(|name| name == "ran").count()
    };
    assert_eq!(names().await, 0, "the resume ran a program of the sandbox");
    sandbox.run("true").await;
    assert_eq!(names().await, 1, "a command did not run the program of the sandbox");
}
