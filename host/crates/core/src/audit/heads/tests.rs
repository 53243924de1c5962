use std::fs;
use std::process::Command;
use std::sync::Arc;

use monstrum_store::StoreOptions;
use rustix::process::{Resource, Rlimit, setrlimit};
use tempfile::TempDir;

use super::*;
use crate::policy::row_seals;

const NOW: UtcMillis = UtcMillis(1_800_000_000_000);

/// Returns an empty chain, and its keys.
async fn chain() -> (Chain, KeyRing, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = row_seals::open_for_tests(StoreOptions::sqlite(folder.path().join("db"))).await.unwrap();
    let keys = Arc::new(AuditKeys::generate(1).unwrap());
    let chain = Chain::resume(&store, "node".to_owned(), Arc::clone(&keys)).await.unwrap();
    (chain, KeyRing::from([(1, keys)]), folder)
}

fn policy(generation: i64) -> PolicyState {
    PolicyState { generation, row_key_version: Some(1) }
}

/// Returns the policy generations of the heads in the file, in order. Panics if a line is not a head.
fn generations(path: &Path) -> Vec<i64> {
    let lines = read(path).unwrap().unwrap();
    lines.into_iter().map(|line| line.expect("every line is a head").policy_generation.unwrap()).collect()
}

#[tokio::test]
async fn a_line_that_a_crash_left_incomplete_is_removed_at_the_next_start() {
    let (mut chain, keys, folder) = chain().await;
    let path = folder.path().join(HEADS_FILE);
    let mut heads = Heads::open(&path, &keys).unwrap();
    heads.sign(&mut chain, policy(1), NOW).unwrap();
    let whole = fs::read(&path).unwrap();
    // A crash can cut a line at any byte, including the byte before its line break.
    for cut in [1, 100, whole.len() - 1] {
        fs::write(&path, [&whole[..], &whole[..cut]].concat()).unwrap();
        let mut heads = Heads::open(&path, &keys).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole, "{cut}");
        heads.sign(&mut chain, policy(2), NOW).unwrap();
        assert_eq!(generations(&path), [1, 2], "{cut}");
    }
    fs::write(&path, &whole[..100]).unwrap();
    Heads::open(&path, &keys).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"", "the first line was incomplete");
}

/// The test runs itself in another process, because a limit on file sizes applies to a whole process. That process
/// ignores the signal that is sent when a file exceeds the limit.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the variable tells this process from the other")]
async fn a_head_that_is_written_in_part_is_removed() {
    const INNER: &str = "MONSTRUM_TEST_LIMITED";
    if std::env::var_os(INNER).is_some() {
        return sign_under_a_limit().await;
    }
    let name = "audit::heads::tests::a_head_that_is_written_in_part_is_removed";
    let mut inner = Command::new("sh");
    inner.args(["-c", "trap '' XFSZ; exec \"$0\" --exact \"$1\""]).arg(std::env::current_exe().unwrap()).arg(name);
    let output = inner.env(INNER, "1").output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && shown.contains("1 passed"), "{shown}");
}

async fn sign_under_a_limit() {
    let (mut chain, keys, folder) = chain().await;
    let path = folder.path().join(HEADS_FILE);
    let mut heads = Heads::open(&path, &keys).unwrap();
    heads.sign(&mut chain, policy(1), NOW).unwrap();
    let whole = fs::read(&path).unwrap();
    let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
    limit(Some(whole.len() as u64 + 100));
    for _ in 0..2 {
        let error = heads.sign(&mut chain, policy(2), NOW).unwrap_err();
        assert_eq!(error.source.kind(), std::io::ErrorKind::FileTooLarge);
        assert_eq!(fs::read(&path).unwrap(), whole);
        assert!(heads.lacks_policy(2), "the head is not in force");
    }
    limit(None);
    heads.sign(&mut chain, policy(3), NOW).unwrap();
    assert_eq!(generations(&path), [1, 3]);
}

#[tokio::test]
async fn a_long_incomplete_line_is_removed() {
    let (mut chain, keys, folder) = chain().await;
    let path = folder.path().join(HEADS_FILE);
    Heads::open(&path, &keys).unwrap().sign(&mut chain, policy(1), NOW).unwrap();
    let whole = fs::read(&path).unwrap();
    for bytes in [LINE_BYTES_MAX - 1, LINE_BYTES_MAX, 3 * LINE_BYTES_MAX + 7] {
        fs::write(&path, [&whole[..], &vec![b'x'; bytes as usize]].concat()).unwrap();
        Heads::open(&path, &keys).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole, "{bytes}");
    }
}
