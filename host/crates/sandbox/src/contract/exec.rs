//! Commands: how they start, how they end, and which processes they leave behind.

use std::time::{Duration, Instant};

use super::{Subject, eventually, python};
use crate::{EXEC_TIMEOUT_MAX, ExecRequest, Limits, SandboxError, Termination};

/// The time within which ended processes must be gone, even on a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// The maximum time between the time-out of a command and its end.
const LATE_MAX: Duration = Duration::from_millis(1500);

pub async fn exit_codes_match_the_shell(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    for (command, exit_code, termination) in [
        ("true", 0, Termination::Exited),
        ("exit 7", 7, Termination::Exited),
        ("no-such-program", 127, Termination::Exited),
        ("/workspace", 126, Termination::Exited),
        ("kill -9 $$", 137, Termination::Signalled),
        ("kill -TERM $$", 143, Termination::Signalled),
        ("sh -c 'kill -9 $$'; exit $?", 137, Termination::Exited),
    ] {
        let output = sandbox.run(command).await;
        assert_eq!((output.exit_code, output.termination), (exit_code, termination), "{command}");
    }
}

pub async fn returns_while_a_background_job_holds_its_pipes(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let started = Instant::now();
    let output = sandbox.run("sleep 60 & echo hi").await;
    assert_eq!((output.stdout.text.as_str(), output.exit_code), ("hi\n", 0));
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "the call waited for the background job: {:?}",
        started.elapsed()
    );
}

pub async fn background_job_outlives_its_exec(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox
        .start("while :; do date +%s%N >/workspace/beat.new; mv /workspace/beat.new /workspace/beat; sleep 0.1; done")
        .await;
    let mut last = String::new();
    for _ in 0..3 {
        eventually("the background job is still running", Duration::from_secs(5), async || {
            let beat = sandbox.run("cat /workspace/beat").await.stdout.text;
            let went_on = !beat.is_empty() && beat != last;
            last = beat;
            went_on
        })
        .await;
    }
}

pub async fn timeout_kills_the_whole_process_tree(subject: &Subject) {
    let (sandbox, limit) = (subject.sandbox().await, Duration::from_secs(1));
    let command = "trap '' TERM HUP INT; setsid sleep 777 & (setsid setsid sleep 778 &) ; sleep 779";
    // The machine may be busy during one round, but is unlikely to be busy during all three rounds.
    let mut soonest = Duration::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        let output = sandbox.exec(ExecRequest::new(command).with_timeout(limit)).await;
        soonest = soonest.min(started.elapsed());
        assert_eq!((output.exit_code, output.termination), (124, Termination::TimedOut));
        assert!(output.duration >= limit, "the command ended before its time-out: {:?}", output.duration);
        for marker in ["777", "778", "779"] {
            eventually("all processes of the command have ended", GONE_WITHIN, async || {
                sandbox.processes(&format!("sleep {marker}")).await == 0
            })
            .await;
        }
    }
    assert!(soonest < limit + LATE_MAX, "the command ended too long after its time-out: {soonest:?}");
}

pub async fn output_before_a_timeout_is_returned(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let request = ExecRequest::new("echo before; echo fault >&2; sleep 60").with_timeout(Duration::from_secs(5));
    let output = sandbox.exec(request).await;
    assert_eq!((output.stdout.text.as_str(), output.stderr.text.as_str()), ("before\n", "fault\n"));
}

pub async fn exec_works_after_a_timeout(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.start("sleep 776").await;
    let output = sandbox.exec(ExecRequest::new("sleep 60").with_timeout(Duration::from_secs(1))).await;
    assert_eq!(output.termination, Termination::TimedOut);
    assert_eq!(sandbox.text("echo still here").await, "still here");
    assert_eq!(sandbox.processes("sleep 776").await, 1, "a background job of another command was ended as well");
}

pub async fn dropped_exec_leaves_no_process(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let command = "setsid sleep 7771 & touch /workspace/started; sleep 7772";
    {
        let exec = sandbox.provider.exec(&sandbox.name, ExecRequest::new(command), None);
        let begun = eventually("the command has started", Duration::from_secs(10), async || {
            sandbox.provider.stat(&sandbox.name, "/workspace/started").await.is_ok()
        });
        tokio::select! {
            output = exec => panic!("the command ended before it was cancelled: {output:?}"),
            () = begun => {}
        }
    }
    eventually("no process of the command is running", GONE_WITHIN, async || sandbox.processes("sleep 777").await == 0)
        .await;
    eventually("the command is no longer counted", GONE_WITHIN, async || {
        let inspection = sandbox.provider.inspect(&sandbox.name).await.expect("it can be looked at");
        inspection.expect("it is there").execs == 0
    })
    .await;
}

/// A program whose first thread ends while another thread keeps running, so that its process looks like a zombie.
const HEADLESS: &str = "
import ctypes, platform, sys, threading, time
def beat():
    count = 0
    while True:
        count += 1
        with open('/workspace/beat-' + sys.argv[1], 'w') as file:
            file.write(str(count))
        time.sleep(0.05)
threading.Thread(target=beat).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)
";

pub async fn process_whose_first_thread_has_ended_is_killed(subject: &Subject) {
    let limits = Limits { processes_per_exec: 24, ..Subject::small() };
    let (sandbox, limit) = (subject.sandbox_under(limits).await, Duration::from_secs(4));
    sandbox.write("headless.py", HEADLESS).await.expect("it is written");
    let beats = async |name: &str| sandbox.read(&format!("beat-{name}")).await.unwrap_or_default();
    let goes_on = async |name: &str| {
        let before = beats(name).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        before != beats(name).await
    };
    let begin = |name: &str| {
        format!("setsid python3 headless.py {name} & until [ -s beat-{name} ]; do sleep 0.05; done 2>/dev/null")
    };

    // The machine may be busy during one round, but is unlikely to be busy during all three rounds.
    let mut soonest = Duration::MAX;
    for round in ["late0", "late1", "late2"] {
        let started = Instant::now();
        let output = sandbox.exec(ExecRequest::new(format!("{}; sleep 100", begin(round))).with_timeout(limit)).await;
        soonest = soonest.min(started.elapsed());
        assert_eq!(output.termination, Termination::TimedOut);
        assert!(
            !beats(round).await.is_empty() && !goes_on(round).await,
            "a process outlived the time-out of its command"
        );
    }
    assert!(soonest < limit + LATE_MAX, "the command ended too long after its time-out: {soonest:?}");

    // The program is in Python because a shell retries each failed fork for seconds.
    let more = "import subprocess\nfor _ in range(40):\n    try: subprocess.Popen(['sleep', '300'])\n    except OSError: break";
    let hoard = format!("{}; {}", begin("many"), python(more));
    sandbox.exec(ExecRequest::new(hoard).with_timeout(Duration::from_secs(60))).await;
    assert!(
        !beats("many").await.is_empty() && !goes_on("many").await,
        "a process outlived a command that reached the process limit"
    );

    let exec = sandbox.provider.exec(&sandbox.name, ExecRequest::new(format!("{}; sleep 100", begin("gone"))), None);
    let begun =
        eventually("the command has started", Duration::from_secs(30), async || !beats("gone").await.is_empty());
    tokio::select! {
        output = exec => panic!("the command ended before it was cancelled: {output:?}"),
        () = begun => {}
    }
    eventually("the command ends when its caller disconnects", GONE_WITHIN, async || !goes_on("gone").await).await;
    assert_eq!(sandbox.text("echo still here").await, "still here");
}

pub async fn commands_run_side_by_side(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let meet = "mkfifo /workspace/meet 2>/dev/null; ";
    let (first, second) = tokio::join!(
        sandbox.run(format!("{meet} echo word >/workspace/meet")),
        sandbox.run(format!("{meet} timeout 20 cat /workspace/meet")),
    );
    assert_eq!((first.exit_code, second.stdout.text.as_str()), (0, "word\n"));
}

pub async fn starts_in_the_workspace_or_the_given_folder(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.text("mkdir -p '/workspace/a b/c'").await;
    for (cwd, expected) in [
        (None, "/workspace"),
        (Some("/"), "/"),
        (Some("/tmp"), "/tmp"),
        (Some("a b/c"), "/workspace/a b/c"),
        (Some("/workspace/a b"), "/workspace/a b"),
    ] {
        let request = ExecRequest { cwd: cwd.map(str::to_owned), ..ExecRequest::new("pwd") };
        assert_eq!(sandbox.exec(request).await.stdout.text.trim_end(), expected);
    }
    for cwd in ["/no/such/folder", "none", "/etc/passwd", "", "a\0b"] {
        let request = ExecRequest { cwd: Some(cwd.to_owned()), ..ExecRequest::new("pwd") };
        let error = sandbox.refusal(request).await;
        assert!(matches!(error, SandboxError::Invalid(_) | SandboxError::NotFound(_)), "{cwd:?}: {error:?}");
    }
}

pub async fn variables_are_passed_unchanged(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let value = "a 'b' \"c\" $HOME `id`\n\\d = é";
    let env = vec![("GREETING".to_owned(), value.to_owned()), ("HOME".to_owned(), "/workspace".to_owned())];
    let request = ExecRequest { env, ..ExecRequest::new("printf '%s|%s' \"$GREETING\" \"$HOME\"") };
    assert_eq!(sandbox.exec(request).await.stdout.text, format!("{value}|/workspace"));
    assert_eq!(sandbox.text("echo ${GREETING-none} $HOME").await, "none /root");
}

pub async fn invalid_requests_are_refused(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let with_env = |name: &str, value: &str| ExecRequest {
        env: vec![(name.to_owned(), value.to_owned())],
        ..ExecRequest::new("true")
    };
    let many = (0..100_000).map(|number| (format!("NAME_{number}"), "value".to_owned())).collect();
    for (what, request) in [
        ("a NUL in the command", ExecRequest::new("echo a\0b")),
        ("a command of 4 MiB", ExecRequest::new("#".repeat(4 << 20))),
        ("no name", with_env("", "value")),
        ("a name with =", with_env("A=B", "value")),
        ("a NUL in a name", with_env("A\0B", "value")),
        ("a NUL in a value", with_env("A", "a\0b")),
        ("a value of 4 MiB", with_env("A", &"a".repeat(4 << 20))),
        ("too many variables", ExecRequest { env: many, ..ExecRequest::new("true") }),
        ("no time", ExecRequest::new("true").with_timeout(Duration::ZERO)),
        ("too much time", ExecRequest::new("true").with_timeout(EXEC_TIMEOUT_MAX + Duration::from_millis(1))),
    ] {
        let error = sandbox.refusal(request).await;
        assert!(matches!(error, SandboxError::Invalid(_)), "{what}: {error:?}");
    }
    let long = sandbox.run(format!("true {}; echo done", "a".repeat(60_000))).await;
    assert_eq!(long.stdout.text, "done\n", "a command of 60 KB failed");
}

pub async fn stdin_is_empty_and_no_terminal(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let started = Instant::now();
    assert_eq!(sandbox.text("cat | wc -c; read -r line; echo $?").await, "0\n1");
    assert!(started.elapsed() < Duration::from_secs(5), "the command waited for input");
    assert_eq!(sandbox.text("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none").await, "none");
    let terminal = sandbox.run("echo x >/dev/tty").await;
    assert_ne!(terminal.exit_code, 0, "the command can use a terminal of the host");
}

pub async fn only_three_descriptors_are_open(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    // A child of the shell lists the descriptors of the shell, because a process that lists its own descriptors also
    // sees the descriptor of the listing.
    let program = "import os; print(sorted(os.listdir('/proc/%d/fd' % os.getppid())))";
    assert_eq!(sandbox.text(format!("python3 -c \"{program}\"; true")).await, "['0', '1', '2']");
    let opened = sandbox.text("for f in /proc/1/fd/*; do (: <$f) 2>/dev/null && readlink $f; done; true").await;
    let is_foreign = |line: &&str| line.starts_with('/') && !line.starts_with("/dev/null");
    assert_eq!(opened.lines().find(is_foreign), None, "the command can open a file of the first process");
}

pub async fn environment_is_clean(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let known = [
        "PATH",
        "HOME",
        "LANG",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "TERM",
        "TMPDIR",
        "_",
        "OMP_NUM_THREADS",
        "PIP_RETRIES",
        "NPM_CONFIG_FETCH_RETRIES",
    ];
    let environment = sandbox.text("env").await;
    for line in environment.lines() {
        let (name, value) = line.split_once('=').expect("a name and a value");
        assert!(known.contains(&name), "the environment contains the variable `{name}`, which no sandbox needs");
        match name {
            "HOME" => assert_eq!(value, "/root"),
            "LANG" => assert_eq!(value, "C.UTF-8"),
            "PATH" => assert!(value.split(':').all(|folder| folder.starts_with('/')), "{value}"),
            _ => {}
        }
    }
    assert_eq!(sandbox.text("echo $HOME $LANG").await, "/root C.UTF-8");
    assert_eq!(sandbox.text("cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n' | grep -c MONSTRUM; true").await, "0");
}

/// No command may set a limit of the init, because the limit would apply to every later command.
pub async fn limits_of_other_processes_cannot_be_set(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    for limit in ["--nofile=3:3", "--as=1000", "--nproc=1"] {
        assert_ne!(sandbox.run(format!("prlimit --pid 1 {limit}")).await.exit_code, 0, "{limit}");
        assert_eq!(sandbox.text("echo still here").await, "still here", "{limit}");
    }
    assert_eq!(
        sandbox.text("ulimit -n 100; ulimit -n; bash -c 'ulimit -n'").await,
        "100\n100",
        "a command cannot set its own limits"
    );
}

/// A sandbox whose shell is gone rejects commands with a clear error and still serves its files.
pub async fn sandbox_without_a_shell_still_has_files(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.write("kept", "text").await.expect("it is written");
    sandbox.text("rm /usr/bin/bash").await;
    let error = sandbox.refusal(ExecRequest::new("true")).await;
    assert!(matches!(error, SandboxError::Unsupported(_)), "{error:?}");
    assert!(error.to_string().contains("its files can still be read"), "{error}");
    assert_eq!(sandbox.read("kept").await.as_deref(), Ok("text"));
}

pub async fn signals_have_their_defaults(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    assert_eq!(sandbox.text("yes | head -n 1; echo ${PIPESTATUS[0]}").await, "y\n141", "SIGPIPE is ignored");
    let program = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('SigBlk')])";
    assert_eq!(sandbox.text(python(program)).await, "['0000000000000000']");
}

pub async fn is_root_and_has_the_listed_programs(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    assert_eq!(sandbox.text("id -u; id -g; id -un; id -G").await, "0\n0\nroot\n0");
    let capabilities = subject.provider.capabilities().expect("the provider is ready").clone();
    assert!(capabilities.programs.iter().any(|program| program == "bash"), "{capabilities:?}");
    for program in &capabilities.programs {
        sandbox.text(format!("{program} --version")).await;
    }
    for folder in ["/workspace", "/tmp", "/var/tmp", "/root", "/usr/local/bin", "/etc", "/opt"] {
        sandbox.text(format!("touch {folder}/mine && rm {folder}/mine")).await;
    }
}

/// Many packages create system users and groups when they are installed.
pub async fn accounts_can_be_created_and_used(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let accounts = "useradd -r -s /bin/sh service && groupadd team && usermod -aG team service && id -Gn service";
    assert_eq!(sandbox.text(accounts).await, "service team");
    assert_eq!(sandbox.text("su service -c 'id -un; touch /tmp/its'; stat -c %U /tmp/its").await, "service\nservice");
    sandbox.text("userdel service && ! id service").await;
}
