//! The output of commands.

use std::time::Duration;

use tokio::sync::mpsc;

use super::{Subject, eventually};
use crate::{Chunk, EXEC_TIMEOUT_MAX, ExecRequest, OUTPUT_BYTES_MAX, Stream, Termination};

pub async fn streams_are_apart(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let output = sandbox.run("echo out; echo err >&2; printf more").await;
    assert_eq!((output.stdout.text.as_str(), output.stderr.text.as_str()), ("out\nmore", "err\n"));
    assert_eq!((output.stdout.bytes, output.stderr.bytes, output.is_truncated()), (8, 4, false));
}

pub async fn flood_is_capped_and_host_memory_stays_flat(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let before = subject.host.as_ref().map(|host| host.memory_bytes());
    let flood = sandbox.exec(ExecRequest::new("yes | head -c 10G").with_timeout(EXEC_TIMEOUT_MAX));
    tokio::pin!(flood);
    let mut most = 0;
    let output = loop {
        tokio::select! {
            output = &mut flood => break output,
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                most = most.max(subject.host.as_ref().map_or(0, |host| host.memory_bytes()));
            }
        }
    };
    assert_eq!((output.exit_code, output.termination), (0, Termination::Exited));
    assert_eq!(output.stdout.bytes, 10 << 30);
    assert!(output.stdout.is_truncated && !output.stderr.is_truncated);
    assert!(output.stdout.text.len() <= OUTPUT_BYTES_MAX && output.stdout.text.len() > OUTPUT_BYTES_MAX / 2);
    if let Some(before) = before {
        assert!(most < before + (64 << 20), "the memory of the host grew by {} bytes", most.saturating_sub(before));
    }
}

/// No caller waits for this output, so reading it must cost the host less than reading the output of a command.
pub async fn background_output_is_drained_slowly(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = "
import os, time
began, written = time.monotonic(), 0
while time.monotonic() < began + 3:
    written += os.write(1, bytes(1 << 16))
with open('/workspace/rate', 'w') as file:
    file.write(str(int(written / (time.monotonic() - began))))";
    sandbox.write("writer.py", program).await.expect("it is written");
    let output = sandbox.run("python3 writer.py & for n in 1 2 3; do (sleep 1; echo heard >>heard) & done").await;
    assert_eq!(output.exit_code, 0);
    eventually("the program has written its output", Duration::from_secs(60), async || {
        sandbox.read("rate").await.is_ok_and(|rate| !rate.is_empty())
    })
    .await;
    let bytes_per_s: u64 = sandbox.text("cat rate").await.parse().expect("a number");
    // The pipe immediately buffers a part of the output.
    assert!(bytes_per_s < 16 << 20, "the host reads {bytes_per_s} bytes of background output per second");
    assert_eq!(sandbox.text("wc -l <heard").await, "3", "other background programs were blocked");
}

pub async fn newest_bytes_are_kept(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let output = sandbox.run("seq 1 1000000; seq 1 1000000 >&2").await;
    for stream in [&output.stdout, &output.stderr] {
        assert!(stream.is_truncated && stream.text.ends_with("\n999999\n1000000\n"));
        assert_eq!(stream.bytes, 6_888_896);
    }
}

pub async fn cut_text_stays_text(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    for cap in [100, 101, 102, 103] {
        let request = ExecRequest {
            output_bytes_max: cap,
            ..ExecRequest::new("for i in {1..200}; do printf '\\xf0\\x9f\\x90\\x99'; done")
        };
        let output = sandbox.exec(request).await;
        assert!(output.stdout.is_truncated && output.stdout.text.len() <= cap, "{output:?}");
        assert_eq!(output.stdout.text.trim_start_matches('🐙'), "", "a character was cut in the middle");
    }
}

pub async fn invalid_utf8_is_replaced(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let output = sandbox.run("printf '\\xff\\xfeok\\x00'").await;
    assert_eq!((output.stdout.text.as_str(), output.stdout.bytes), ("\u{fffd}\u{fffd}ok\0", 5));
}

pub async fn feed_gets_every_piece_in_order(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let (feed, mut pieces) = mpsc::channel::<Chunk>(4);
    let request = ExecRequest::new("for i in {1..2000}; do echo $i; done; echo end >&2");
    let reader = async {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(piece) = pieces.recv().await {
            match piece.stream {
                Stream::Stdout => stdout.extend_from_slice(&piece.bytes),
                Stream::Stderr => stderr.extend_from_slice(&piece.bytes),
            }
        }
        (stdout, stderr)
    };
    let (output, (stdout, stderr)) = tokio::join!(sandbox.provider.exec(&sandbox.name, request, Some(feed)), reader);
    let output = output.expect("it is run");
    assert_eq!(output.stdout.text.lines().count(), 2000);
    assert_eq!(output.stdout.text.as_bytes(), stdout);
    assert_eq!(output.stderr.text.as_bytes(), stderr);
}

pub async fn feed_is_live(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let (feed, mut pieces) = mpsc::channel::<Chunk>(4);
    let request = ExecRequest::new("echo first; while [ ! -e /workspace/go ]; do sleep 0.05; done; echo last");
    let exec = sandbox.provider.exec(&sandbox.name, request, Some(feed));
    let reader = async {
        let first = pieces.recv().await.expect("the first piece comes while the command runs");
        assert_eq!(first.bytes.as_ref(), b"first\n");
        sandbox.write("/workspace/go", "").await.expect("it is written");
        while pieces.recv().await.is_some() {}
    };
    let (output, ()) = tokio::join!(exec, reader);
    assert_eq!(output.expect("it is run").stdout.text, "first\nlast\n");
}

pub async fn closed_feed_is_ignored(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let (feed, pieces) = mpsc::channel::<Chunk>(1);
    drop(pieces);
    let output = sandbox.provider.exec(&sandbox.name, ExecRequest::new("seq 1 100000"), Some(feed)).await;
    let output = output.expect("it is run");
    assert!(output.exit_code == 0 && output.stdout.text.ends_with("\n100000\n"));
}

pub async fn slow_reader_does_not_extend_the_timeout(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    // The receiver is kept but never read: a command that writes must still time out.
    let (feed, _pieces) = mpsc::channel::<Chunk>(1);
    let request = ExecRequest::new("yes").with_timeout(Duration::from_secs(1));
    let exec = sandbox.provider.exec(&sandbox.name, request, Some(feed));
    let output = tokio::time::timeout(Duration::from_secs(10), exec).await.expect("it ends at its time");
    assert_eq!(output.expect("it is run").termination, Termination::TimedOut);
}
