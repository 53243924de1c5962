//! The file functions, in sandboxes that try to make them leave the workspace.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;

use super::{Sandbox, Subject, python};
use crate::{EntryKind, FILE_BYTES_MAX, LIST_ENTRIES_MAX, PATH_BYTES_MAX, SandboxError};

/// The maximum duration of a file function.
const AT_ONCE: Duration = Duration::from_secs(10);

pub async fn written_files_can_be_read(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let provider = &sandbox.provider;
    sandbox.write("a/b/first.txt", "first").await.expect("missing folders are made");
    sandbox.write("/workspace/a/second.txt", "second").await.expect("it is written");
    provider.mkdir(&sandbox.name, "a/empty/deep").await.expect("it is made");
    provider.mkdir(&sandbox.name, "a/empty").await.expect("an existing folder is not an error");
    assert_eq!(sandbox.names("a").await, Ok(vec!["b".into(), "empty".into(), "second.txt".into()]));
    assert_eq!(sandbox.read("/workspace/a/b/first.txt").await.as_deref(), Ok("first"));
    assert_eq!(sandbox.text("cat a/b/first.txt a/second.txt").await, "firstsecond");

    let entry = provider.stat(&sandbox.name, "a/b/first.txt").await.expect("it is there");
    assert_eq!((entry.name.as_str(), entry.path.as_str()), ("first.txt", "/workspace/a/b/first.txt"));
    assert_eq!((entry.kind, entry.size), (EntryKind::File, 5));
    let seconds: i64 = sandbox.text("stat -c %Y a/b/first.txt").await.parse().expect("a number");
    assert_eq!(entry.modified_ms / 1000, seconds);
    let folder = provider.stat(&sandbox.name, "/workspace").await.expect("it is there");
    assert_eq!((folder.kind, folder.path.as_str()), (EntryKind::Directory, "/workspace"));

    provider.rename(&sandbox.name, "a/b/first.txt", "a/second.txt").await.expect("over another");
    assert_eq!(sandbox.read("a/second.txt").await.as_deref(), Ok("first"));
    provider.remove(&sandbox.name, "a").await.expect("the folder is removed with its contents");
    for gone in ["a", "a/second.txt"] {
        let error = provider.stat(&sandbox.name, gone).await.expect_err("it is gone");
        assert!(matches!(error, SandboxError::NotFound(_)), "{error:?}");
    }
    let error = provider.remove(&sandbox.name, "/workspace").await.expect_err("the workspace itself cannot be removed");
    assert!(matches!(error, SandboxError::Invalid(_)), "{error:?}");
}

pub async fn new_files_belong_to_root_inside(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.write("made/by/api.txt", "text").await.expect("it is written");
    sandbox.provider.mkdir(&sandbox.name, "made/folder").await.expect("it is made");
    let owners = sandbox.text("stat -c '%u:%g' made made/by made/by/api.txt made/folder | sort -u").await;
    assert_eq!(owners, "0:0");
    assert_eq!(sandbox.text("stat -c %a made/by/api.txt").await, "644");
    sandbox.text("echo more >>made/by/api.txt && rm -r made").await;
}

/// Asserts that every file function rejects a path.
async fn is_refused(sandbox: &Sandbox, path: &str) {
    let (provider, name) = (&sandbox.provider, &sandbox.name);
    sandbox.write("own.txt", "own").await.expect("it is written");
    assert!(sandbox.read(path).await.is_err(), "read {path:?}");
    assert!(sandbox.write(path, "overwritten").await.is_err(), "write {path:?}");
    assert!(provider.list_dir(name, path).await.is_err(), "list {path:?}");
    assert!(provider.stat(name, path).await.is_err(), "stat {path:?}");
    assert!(provider.mkdir(name, &format!("{path}/made")).await.is_err(), "mkdir {path:?}");
    assert!(provider.remove(name, path).await.is_err(), "remove {path:?}");
    assert!(provider.rename(name, "own.txt", path).await.is_err(), "an entry was renamed to {path:?}");
    assert!(provider.rename(name, path, "own.txt").await.is_err(), "an entry was renamed from {path:?}");
    let archive = async { super::archive::collect(provider.archive(name, path, Default::default()).await?).await };
    assert!(archive.await.is_err(), "archive {path:?}");
    assert_eq!(sandbox.read("own.txt").await.as_deref(), Ok("own"));
}

pub async fn paths_outside_are_refused(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let before = sandbox.text("cat /etc/passwd /etc/hostname; ls -A / /etc").await;
    for path in [
        "..",
        "../etc/passwd",
        "/workspace/../etc/passwd",
        "a/../../etc/passwd",
        "/etc/passwd",
        "/etc",
        "/",
        "//etc/passwd",
        "/workspace/../workspace2",
        "/workspacex/a",
        "/proc/self/environ",
        "/proc/1/root/etc/passwd",
        "/dev/null",
        "a\0b",
        "/workspace\0/../etc",
    ] {
        is_refused(&sandbox, path).await;
    }
    is_refused(&sandbox, &format!("/workspace/{}", "a/".repeat(PATH_BYTES_MAX / 2))).await;
    is_refused(&sandbox, &"a".repeat(256)).await;
    assert_eq!(sandbox.text("cat /etc/passwd /etc/hostname; ls -A / /etc").await, before);
}

pub async fn links_out_are_refused(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let markers = subject.host.as_ref().map(|host| host.plant());
    let host_folder = markers.as_ref().map_or(PathBuf::from("/etc"), |markers| markers.paths[0].with_file_name(""));
    sandbox
        .text(format!(
            "mkdir -p real && echo here >real/file && ln -s /etc etc && ln -s / root && ln -s ../etc up && \
             ln -s /etc/passwd passwd && ln -s {} host && ln -s etc twice && ln -s /no/where gone && ln -s self self",
            host_folder.display()
        ))
        .await;
    let before = sandbox.text("cat /etc/passwd; ls -A / /etc").await;
    let mut beneath: Vec<String> =
        ["etc/passwd", "root/etc/passwd", "up/passwd", "twice/passwd", "etc", "self/a"].map(str::to_owned).into();
    beneath.retain(|path| path.contains('/'));
    beneath.extend(markers.as_ref().map(|markers| format!("host/{}", markers.name)));
    for path in &beneath {
        is_refused(&sandbox, path).await;
    }
    for link in ["etc", "passwd", "root", "gone", "self"] {
        let entry = sandbox.provider.stat(&sandbox.name, link).await.expect("the link itself");
        assert_eq!(entry.kind, EntryKind::Other, "{link}");
        assert!(
            sandbox.read(link).await.is_err() && sandbox.names(link).await.is_err(),
            "the link {link} was followed"
        );
        // The write replaces the link or fails; the target of the link does not change.
        let written = sandbox.write(link, "mine").await;
        assert_eq!(written.is_ok(), sandbox.read(link).await.as_deref() == Ok("mine"), "{link}: {written:?}");
        sandbox.provider.remove(&sandbox.name, link).await.expect("a link is removed, not what it points to");
    }
    assert_eq!(sandbox.text("cat /etc/passwd; ls -A / /etc").await, before);
    for path in markers.iter().flat_map(|markers| &markers.paths) {
        let text = std::fs::read_to_string(path).expect("the host's file is there");
        assert_eq!(Some(text), markers.as_ref().map(|markers| markers.text.clone()));
    }
}

pub async fn links_within_are_followed(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox
        .text(
            "mkdir -p real/deep; echo here >real/file; ln -s /workspace/real abs; ln -s real rel; ln -s /workspace/abs/deep far; \
             ln -s ../../rel/file real/deep/back; ln -s /workspace home; ln -s /workspace/abs/../real/file dots; \
             ln -s /workspace/../etc/passwd out; ln -s /workspace2/file near; ln -s /workspace/home/out twice",
        )
        .await;
    for path in ["abs/file", "rel/file", "far/back", "home/abs/file", "dots", "home/home/dots", "/workspace/abs/file"] {
        assert_eq!(sandbox.read(path).await.as_deref(), Ok("here\n"), "{path}");
        let target = sandbox.provider.target(&sandbox.name, path).await.expect("it leads to a file");
        assert_eq!((target.kind, target.size), (EntryKind::File, 5), "{path}");
    }
    assert_eq!(sandbox.names("abs").await, sandbox.names("real").await);
    assert_eq!(sandbox.provider.target(&sandbox.name, "far").await.map(|found| found.kind), Ok(EntryKind::Directory));
    sandbox.write("abs/new/file", "written").await.expect("it is written");
    assert_eq!(sandbox.read("real/new/file").await.as_deref(), Ok("written"));
    for (path, link) in [("out", "out"), ("near", "near"), ("twice", "out"), ("home/out", "out")] {
        let error = sandbox.read(path).await.expect_err("the link leads out of the workspace");
        assert_eq!(error, SandboxError::Invalid(format!("the link `{link}` leaves /workspace")), "{path}");
        assert!(sandbox.provider.target(&sandbox.name, path).await.is_err(), "{path}");
    }
}

pub async fn magic_links_are_refused(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let markers = subject.host.as_ref().map(|host| host.plant());
    let marker = markers.as_ref().map_or("/etc/passwd".to_owned(), |markers| markers.paths[0].display().to_string());
    sandbox.text("sleep 600 </etc/passwd >/dev/null 2>&1 & echo $! >pid; cat pid").await;
    let command = "ln -s /proc/self/root m0; ln -s /proc/1/root m1; ln -s /proc/self/cwd m2; ln -s /proc/1/cwd m3; \
                   ln -s /proc/self/fd m4; ln -s /proc/$(cat pid)/fd m5; ln -s /proc/self/exe m6; ln -s /proc/thread-self/root m7";
    sandbox.text(command).await;
    for link in ["m0", "m1", "m7"] {
        is_refused(&sandbox, &format!("{link}{marker}")).await;
        is_refused(&sandbox, &format!("{link}/etc/passwd")).await;
    }
    for path in ["m2/m0/etc/passwd", "m3/etc/passwd", "m4/0", "m4/3", "m5/0", "m2/../etc/passwd"] {
        is_refused(&sandbox, path).await;
    }
    assert!(sandbox.read("m6").await.is_err(), "a program of the host was read");
}

/// Starts a loop in the sandbox that repeatedly swaps a folder and a link.
async fn race(sandbox: &Sandbox, target: &str) {
    sandbox.text(format!("rm -rf d l; mkdir -p d && echo inside >d/passwd && ln -s {target} l")).await;
    sandbox
        .start(&python(
            "
import ctypes
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b'/workspace/d', -100, b'/workspace/l', 2)",
        ))
        .await;
}

pub async fn rename_race_does_not_lead_out(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let folder = subject.host.as_ref().map(|host| {
        let folder = host.data_dir().join("race");
        std::fs::create_dir_all(&folder).expect("the data folder can be written");
        std::fs::write(folder.join("passwd"), "outside").expect("it can be written");
        folder
    });
    let target = folder.as_ref().map_or("/etc".to_owned(), |folder| folder.display().to_string());
    for target in [target.as_str(), "/etc", "/proc/1/root/etc"] {
        race(&sandbox, target).await;
        let before = sandbox.text("ls -A /etc; cat /etc/passwd").await;
        let (mut read, mut refused) = (0, 0);
        for round in 0..500 {
            match sandbox.read("d/passwd").await {
                Ok(text) => {
                    assert_eq!(text, "inside\n", "round {round}: a file outside was read");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
            // The write fails or writes into the folder, which has either of the two names at this time.
            let _refused = sandbox.write("d/written", "mine").await;
            if round % 10 == 0 {
                let _refused = sandbox.provider.mkdir(&sandbox.name, "d/made").await;
                let _refused = sandbox.provider.remove(&sandbox.name, "d/made").await;
                let _refused = sandbox.provider.rename(&sandbox.name, "d/written", "d/renamed").await;
                if let Ok(names) = sandbox.names("d").await {
                    let known = ["passwd", "written", "renamed", "made"];
                    assert!(
                        names.iter().all(|name| known.contains(&name.as_str())),
                        "a folder outside the workspace was listed: {names:?}"
                    );
                }
            }
        }
        assert!(
            read > 0 && refused > 0,
            "the swap did not affect the reads: {read} succeeded, {refused} were rejected"
        );
        sandbox.text("pkill -9 python3; true").await;
        assert_eq!(
            sandbox.text("ls -A /etc; cat /etc/passwd").await,
            before,
            "a file outside the workspace was changed"
        );
    }
    if let Some(folder) = folder {
        let names: Vec<_> = std::fs::read_dir(&folder).expect("it is there").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names, ["passwd"], "a file was written on the host");
        assert_eq!(std::fs::read_to_string(folder.join("passwd")).expect("it is there"), "outside");
    }
}

pub async fn pipes_and_sockets_never_block(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let program =
        "import os, socket; os.mkfifo('/workspace/pipe'); socket.socket(socket.AF_UNIX).bind('/workspace/socket')";
    sandbox.python(program).await;
    let work = async {
        for path in ["pipe", "socket"] {
            assert_eq!(sandbox.provider.stat(&sandbox.name, path).await.expect("it is there").kind, EntryKind::Other);
            assert!(matches!(sandbox.read(path).await, Err(SandboxError::Invalid(_))), "{path} was read");
            assert!(sandbox.names(path).await.is_err());
            sandbox.write(path, "a file now").await.expect("it is replaced whole");
            assert_eq!(sandbox.read(path).await.as_deref(), Ok("a file now"));
        }
    };
    tokio::time::timeout(AT_ONCE, work).await.expect("no file function waits for the other end of a pipe");
}

pub async fn sparse_file_costs_nothing(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.text("truncate -s 1T huge; truncate -s 1G large").await;
    let before = subject.host.as_ref().map(|host| host.memory_bytes());
    let entry = sandbox.provider.stat(&sandbox.name, "huge").await.expect("it is there");
    assert_eq!(entry.size, 1 << 40);
    let work = async {
        let refused = sandbox.provider.read(&sandbox.name, "huge").await.map(drop);
        assert!(matches!(refused, Err(SandboxError::Exhausted(_))), "a sparse file of 1 TiB was read: {refused:?}");
        let (entry, mut content) = sandbox.provider.read(&sandbox.name, "large").await.expect("it is read");
        assert_eq!(entry.size, 1 << 30);
        let mut read = 0;
        while read < 256 << 20 {
            read += content.next().await.expect("the stream has more content").expect("it is read").len();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("it is read as it comes");
    if let (Some(before), Some(host)) = (before, &subject.host) {
        assert!(host.memory_bytes() < before + (64 << 20), "the memory of the host grew");
    }
}

pub async fn odd_names_work(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let long = "n".repeat(255);
    let names = [
        "a\nb",
        "-rf",
        "--",
        "'",
        "\"",
        "$(touch pwned)",
        "`touch pwned`",
        ";touch pwned",
        "a b ",
        " ",
        "*",
        "~",
        "\\",
        "a\\b",
        "%s%n",
        "\u{1b}[31m",
        "é",
        "🐙",
        "...",
        "..a",
        "C:",
        "\r",
        "\t",
        long.as_str(),
    ];
    for name in names {
        let path = format!("/workspace/odd/{name}");
        sandbox.write(&path, name).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!(sandbox.read(&path).await.as_deref(), Ok(name));
        assert_eq!(sandbox.provider.stat(&sandbox.name, &path).await.expect("it is there").name, name);
    }
    let mut expected: Vec<String> = names.map(str::to_owned).into();
    expected.sort();
    let mut listed = sandbox.names("odd").await.expect("it is listed");
    listed.sort();
    assert_eq!(listed, expected);
    sandbox.text("echo raw >odd/$'\\xff\\xfe' && mkdir odd/$'\\xfd' && echo in >odd/$'\\xfd'/é$'\\xfc'").await;
    let raw = ["\\xFD", "\\xFF\\xFE"];
    let listed = sandbox.names("odd").await.expect("it is listed");
    assert_eq!(listed.len(), names.len() + raw.len(), "names of invalid UTF-8 are missing in the list");
    assert!(raw.iter().all(|name| listed.iter().any(|listed| listed == name)), "{listed:?}");
    assert_eq!(sandbox.names("odd/\\xFD").await, Ok(vec!["é\\xFC".to_owned()]));
    assert_eq!(sandbox.read("odd/\\xFD/é\\xFC").await.as_deref(), Ok("in\n"));
    assert_eq!(sandbox.read("odd/\\xFF\\xFE").await.as_deref(), Ok("raw\n"));
    // A file that has the escaped form as its real name takes precedence.
    sandbox.write("odd/\\xFF\\xFE", "text").await.expect("it is written");
    for content in ["text", "raw\n"] {
        assert_eq!(sandbox.read("odd/\\xFF\\xFE").await.as_deref(), Ok(content));
        sandbox.provider.remove(&sandbox.name, "odd/\\xFF\\xFE").await.expect("it is removed");
    }
    sandbox.provider.rename(&sandbox.name, "odd/\\xFD", "odd/named").await.expect("it gets a name that is text");
    sandbox.provider.remove(&sandbox.name, "odd/named").await.expect("it is removed");
    for name in names {
        sandbox.provider.rename(&sandbox.name, &format!("odd/{name}"), "odd/moved").await.expect("it is moved");
        sandbox.provider.remove(&sandbox.name, "odd/moved").await.expect("it is removed");
    }
    sandbox
        .provider
        .remove(&sandbox.name, "odd")
        .await
        .expect("the folder is removed with entries that are not listed");
    assert_eq!(sandbox.text("find / -xdev -name pwned 2>/dev/null; ls -A | grep -v lost+found; true").await, "");
}

pub async fn writes_are_atomic(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let (first, second) = ("a".repeat(1 << 20), "b".repeat(1 << 20));
    sandbox.write("whole", &first).await.expect("it is written");
    sandbox
        .start(&python(
            "
while True:
    text = open('/workspace/whole').read()
    if len(text) != 1 << 20 or len(set(text)) != 1:
        open('/workspace/torn', 'w').close()",
        ))
        .await;
    for _ in 0..25 {
        sandbox.write("whole", &second).await.expect("it is written");
        sandbox.write("whole", &first).await.expect("it is written");
    }
    let names = sandbox.names("/workspace").await.expect("it is listed");
    assert_eq!(names, ["whole"], "a reader saw an incomplete file, or a temporary file was left");
}

pub async fn sizes_are_capped(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    let largest = Bytes::from(vec![b'a'; FILE_BYTES_MAX]);
    sandbox.provider.write(&sandbox.name, "largest", largest).await.expect("it is written");
    let larger = Bytes::from(vec![b'a'; FILE_BYTES_MAX + 1]);
    let error = sandbox.provider.write(&sandbox.name, "larger", larger).await.expect_err("the file is too large");
    assert!(matches!(error, SandboxError::Exhausted(_) | SandboxError::Invalid(_)), "{error:?}");
    assert_eq!(sandbox.names("/workspace").await.expect("it is listed"), ["largest"]);
}

pub async fn large_files_are_streamed(subject: &Subject) {
    let sandbox = subject.sandbox().await;
    sandbox.text("seq 1 5000000 >large").await;
    let (entry, mut content) = sandbox.provider.read(&sandbox.name, "large").await.expect("it is read");
    let (mut bytes, mut largest, mut last) = (0, 0, Bytes::new());
    while let Some(piece) = content.next().await {
        last = piece.expect("it is read");
        (bytes, largest) = (bytes + last.len() as u64, largest.max(last.len()));
    }
    assert_eq!((bytes, entry.size), (38_888_896, 38_888_896));
    assert!(last.ends_with(b"\n5000000\n") && largest <= 4 << 20, "the file was read in pieces of {largest} bytes");
}

pub async fn listing_is_capped(subject: &Subject) {
    let sandbox = subject.sandbox_under(crate::Limits { disk_mib: 512, ..Subject::small() }).await;
    let make = |count| {
        python(&format!(
            "import os\nos.makedirs('many', exist_ok=True)\nfor n in range({count}): open('many/%d' % n, 'w').close()"
        ))
    };
    sandbox.text(make(LIST_ENTRIES_MAX)).await;
    assert_eq!(sandbox.names("many").await.expect("it is listed").len(), LIST_ENTRIES_MAX);
    sandbox.text(make(LIST_ENTRIES_MAX + 1)).await;
    let error = sandbox.names("many").await.expect_err("the list is too long");
    assert!(matches!(error, SandboxError::Exhausted(_)), "{error:?}");
}
