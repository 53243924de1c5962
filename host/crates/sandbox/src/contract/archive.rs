//! Archives: folders as ZIP files.

use std::io::{Cursor, Read};
use std::time::Duration;

use futures::StreamExt;
use zip::ZipArchive;

use super::{Sandbox, Subject};
use crate::{ArchiveLimits, ByteStream, SandboxError};

/// Reads a stream to its end.
pub async fn collect(mut content: ByteStream) -> Result<Vec<u8>, SandboxError> {
    let mut bytes = Vec::new();
    while let Some(piece) = content.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

async fn archive(sandbox: &Sandbox, path: &str, limits: ArchiveLimits) -> Result<Vec<u8>, SandboxError> {
    collect(sandbox.provider.archive(&sandbox.name, path, limits).await?).await
}

/// Returns the files of an archive, sorted by name, as an independent ZIP reader sees them.
fn opened(bytes: Vec<u8>) -> Vec<(String, String)> {
    let mut archive = ZipArchive::new(Cursor::new(bytes)).expect("it is a ZIP");
    let mut files = Vec::new();
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).expect("an entry can be opened");
        let mut content = Vec::new();
        file.read_to_end(&mut content).expect("it has the checksum that it names");
        let name = file.name().expect("its name is text").into_owned();
        files.push((name, String::from_utf8_lossy(&content).into_owned()));
    }
    files.sort();
    files
}

pub async fn archive_contains_the_folder(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.text("mkdir -p site/css site/empty; echo hi >site/index.html; echo é >site/css/ü.css; : >site/none").await;
    let files = opened(archive(&sandbox, "site", ArchiveLimits::default()).await.expect("it is packed"));
    let contents: Vec<_> = files.iter().filter(|(name, _)| !name.ends_with('/')).collect();
    let prefix = contents[0].0.trim_end_matches("css/ü.css").to_owned();
    let expected = [("css/ü.css", "é\n"), ("index.html", "hi\n"), ("none", "")];
    let expected = expected.map(|(name, content)| (format!("{prefix}{name}"), content.to_owned()));
    assert_eq!(contents, expected.iter().collect::<Vec<_>>());
    assert!(prefix.is_empty() || prefix == "site/", "{prefix}");
    assert!(!opened(archive(&sandbox, "/workspace", ArchiveLimits::default()).await.expect("it is packed")).is_empty());
    let error = archive(&sandbox, "none", ArchiveLimits::default()).await.expect_err("the folder does not exist");
    assert!(matches!(error, SandboxError::NotFound(_)), "{error:?}");
}

pub async fn archive_skips_special_files(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let markers = subject.host.as_ref().map(|host| host.plant());
    let marker = markers.as_ref().map_or("/etc/passwd".to_owned(), |markers| markers.paths[0].display().to_string());
    sandbox
        .text(format!(
            "mkdir -p tree; echo own >tree/own; ln -s /etc/passwd tree/passwd; ln -s /etc tree/etc; ln -s {marker} tree/host; \
             ln -s /proc/1/root tree/magic; mkfifo tree/pipe; ln -s ../../.. tree/up; ln -s /workspace/outside tree/aside; mkdir outside"
        ))
        .await;
    let packed = tokio::time::timeout(Duration::from_secs(20), archive(&sandbox, "tree", ArchiveLimits::default()));
    let files = opened(packed.await.expect("nothing waits for a pipe").expect("it is packed"));
    let names: Vec<_> = files.iter().filter(|(name, _)| !name.ends_with('/')).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names[1].0.ends_with("own") && names[1].1 == "own\n");
    // The archive lists the links that it does not contain.
    let mut listed: Vec<&str> = names[0].1.lines().collect();
    listed.sort_unstable();
    assert_eq!(names[0].0, "LINKS-LEFT-OUT.txt");
    let expected = [
        "aside: the folder is not part of this archive",
        "etc: the link `etc` leaves /workspace",
        "host: the link `host` leaves /workspace",
        "magic: the link `magic` leaves /workspace",
        "passwd: the link `passwd` leaves /workspace",
        "up: the link `up` leaves /workspace",
    ];
    assert_eq!(listed, expected);
}

pub async fn archive_contains_links_within(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox
        .text(
            "mkdir -p tree/sub other; echo own >tree/own; echo far >other/far; ln -s own tree/near; ln -s ../own tree/sub/up; \
             ln -s /workspace/tree/own tree/absolute; ln -s /workspace/other/far tree/far; ln -s . tree/loop; \
             ln -s /workspace/tree/sub tree/sub/again",
        )
        .await;
    let files = opened(archive(&sandbox, "tree", ArchiveLimits::default()).await.expect("it is packed"));
    let expected = [
        ("absolute", "own\n"),
        ("far", "far\n"),
        ("loop", "./"),
        ("near", "own\n"),
        ("own", "own\n"),
        ("sub/", ""),
        ("sub/again", "./../sub"),
        ("sub/up", "own\n"),
    ];
    assert_eq!(files, expected.map(|(name, content)| (name.to_owned(), content.to_owned())));
    sandbox.text("truncate -s 2M big; ln -s ../big tree/big").await;
    let limits = ArchiveLimits { bytes_max: 1 << 20, ..ArchiveLimits::default() };
    let error = archive(&sandbox, "tree", limits).await.expect_err("the target of a link counts towards the limit");
    assert!(matches!(error, SandboxError::Exhausted(_)), "{error:?}");
}

/// Packs names that an incorrect escaping would make equal.
pub async fn archive_keeps_names_apart(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = r"
import os
os.mkdir('alike')
for name in (b'\xff', b'%FF', b'a\\b', b'a%5Cb', b'100%', b'%25'):
    open(b'alike/' + name, 'w').close()";
    sandbox.python(program).await;
    let files = opened(archive(&sandbox, "alike", ArchiveLimits::default()).await.expect("it is packed"));
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["%2525", "%25FF", "%FF", "100%25", "a%255Cb", "a%5Cb"]);
}

pub async fn archive_is_capped(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox
        .text("mkdir -p deep/1/2/3/4/5 many big; touch deep/1/2/3/4/5/f many/{1..200}; truncate -s 1T big/huge")
        .await;
    let limits = ArchiveLimits { depth_max: 16, entries_max: 1000, bytes_max: 1 << 20 };
    archive(&sandbox, "deep", limits).await.expect("it fits");
    archive(&sandbox, "many", limits).await.expect("it fits");
    for (path, limits) in [
        ("deep", ArchiveLimits { depth_max: 3, ..limits }),
        ("many", ArchiveLimits { entries_max: 100, ..limits }),
        ("big", limits),
    ] {
        // The error is returned before the first byte, so that an HTTP server can still send an error status.
        let begun = async {
            match sandbox.provider.archive(&sandbox.name, path, limits).await {
                Ok(mut content) => content.next().await.expect("something comes").err(),
                Err(error) => Some(error),
            }
        };
        let begun = tokio::time::timeout(Duration::from_secs(30), begun);
        let error = begun.await.expect("it ends early").expect("it is too much");
        assert!(matches!(error, SandboxError::Exhausted(_)), "{path}: {error:?}");
    }
}

pub async fn archive_is_streamed(subject: &Subject) {
    let sandbox = subject.sandbox_under(crate::Limits { disk_mib: 512, ..Subject::small() }).await;
    sandbox.text("mkdir noise; for i in 1 2 3; do head -c 64M /dev/urandom >noise/$i; done").await;
    let before = subject.host.as_ref().map(|host| host.memory_bytes());
    let packed = sandbox.provider.archive(&sandbox.name, "noise", ArchiveLimits::default()).await;
    let (mut content, mut bytes, mut most) = (packed.expect("it is packed"), 0, 0);
    while let Some(piece) = content.next().await {
        bytes += piece.expect("it is packed").len();
        most = most.max(subject.host.as_ref().map_or(0, |host| host.memory_bytes()));
    }
    assert!(bytes > 192 << 20, "{bytes} bytes");
    if let Some(before) = before {
        assert!(most < before + (64 << 20), "the memory of the host grew by {} bytes", most.saturating_sub(before));
    }
}

pub async fn archive_names_stay_beneath(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program = r"
import os
os.mkdir('bad')
for name in (b'..\\..\\evil', b'C:\\evil', b'\\evil', b'a\nb', b'\xff\xfe', b'\x1b[31m'):
    open(b'bad/' + name, 'w').close()
open('bad/good', 'w').write('good')";
    sandbox.python(program).await;
    let files = opened(archive(&sandbox, "bad", ArchiveLimits::default()).await.expect("it is packed"));
    assert!(files.iter().any(|(name, content)| name.ends_with("good") && content == "good"), "{files:?}");
    for (name, _) in files {
        let climbs = name.split(['/', '\\']).any(|part| part == "..");
        let is_absolute = name.starts_with(['/', '\\']) || name.contains(":\\");
        assert!(!climbs && !is_absolute, "{name:?} leaves the folder into which the archive is unpacked");
    }
}

pub async fn unread_archive_ends(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.text("mkdir noise; head -c 64M /dev/urandom >noise/1").await;
    for _ in 0..20 {
        let content = sandbox.provider.archive(&sandbox.name, "noise", ArchiveLimits::default()).await;
        drop(content.expect("it is packed"));
    }
    // The time-out is long enough for a busy machine, and shorter than the time that a stop waits for a command that
    // does not end.
    let stopped = tokio::time::timeout(Duration::from_secs(90), sandbox.provider.stop(&sandbox.name)).await;
    stopped.expect("an archive does not hold the sandbox").expect("it is stopped");
}
