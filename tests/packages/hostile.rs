//! Hostile archives by name. Each archive is signed by a trusted key, so that only the archive itself can be the reason
//! for its rejection. Each archive is rejected with a specific message, and leaves no files behind.

use anyhow::{Result, ensure};
use insta::assert_snapshot;
use monstrum_package::PACKAGE_BYTES_MAX;
use support::Server;

use super::archives::{End, Entry, extra, zip, zip_ending};
use super::{Source, detail, left, trusted};

const DIRECTORY: u32 = 0o040_000;
const FIFO: u32 = 0o010_000;
const DEVICE: u32 = 0o020_000;
const BLOCK_DEVICE: u32 = 0o060_000;
const LINK: u32 = 0o120_000;
const SOCKET: u32 = 0o140_000;
const MIB: usize = 1 << 20;

/// Archives by name: each is an honest plugin with one fault.
struct Cases {
    honest: Vec<Entry>,
    home: String,
    all: Vec<(&'static str, Vec<u8>)>,
}

impl Cases {
    /// Adds an archive with the honest plugin and more entries.
    fn with(&mut self, name: &'static str, more: Vec<Entry>) {
        self.all.push((name, zip(&[self.honest.clone(), more].concat())));
    }

    /// Adds an archive with the honest plugin and a file of this name.
    fn named(&mut self, name: &'static str, file: impl AsRef<[u8]>) {
        self.with(name, vec![Entry::file(file, b"x")]);
    }

    fn ending(&mut self, name: &'static str, end: &End) {
        self.all.push((name, zip_ending(&self.honest, end)));
    }

    fn names(&mut self) {
        let absolute = format!("{}/outside", self.home);
        self.named("absolute-path", absolute);
        self.named("absolute-root", "/");
        self.named("drive-letter", "C:/outside");
        self.named("dot-dot", "../outside");
        self.named("dot-dot-deep", "locales/../../../outside");
        self.named("dot-dot-alone", "..");
        self.named("dot-segment", "./outside");
        self.named("empty-segment", "locales//outside");
        self.named("backslash-dot-dot", "..\\outside");
        self.named("backslash", "locales\\outside");
        self.named("nul", b"outside\0.txt");
        self.named("nul-hides-the-rest", b"monstrum.yaml\0.txt");
        self.named("line-end", "out\nside");
        self.named("terminal-escape", "\u{1b}[2Joutside");
        self.named("not-ascii", "ä.txt");
        self.named("right-to-left", "\u{202e}lmay.txt");
        self.named("not-utf-8", b"\xff\xfe.txt");
        self.named("empty-name", "");
        self.named("long-name", "x".repeat(300));
        self.named("deep", "a/".repeat(20) + "x");
        self.named("dot-at-the-end", "plugin.wasm.");
        self.named("space-at-the-end", "plugin.wasm ");
        self.named("stream-of-a-file", "plugin.wasm:hidden");
        self.named("wildcard", "*");
        self.named("twice", "plugin.wasm");
        self.named("manifest-twice", "monstrum.yaml");
        self.named("case", "Plugin.WASM");
        self.with("case-of-unicode", vec![Entry::file("K.txt", b"k"), Entry::file("\u{212a}.txt", b"K")]);
        self.with("case-of-a-folder", vec![Entry::file("Docs/a", b"a"), Entry::file("docs/b", b"b")]);
        self.with("file-then-folder", vec![Entry::file("x", b"x"), Entry::file("x/y", b"y")]);
        self.with("folder-then-file", vec![Entry::file("x/y", b"y"), Entry::file("x", b"x")]);
        self.with(
            "folder-twice",
            vec![Entry::file("docs/", b""), Entry::file("docs/", b"")]
                .into_iter()
                .map(|entry| Entry { attributes: DIRECTORY << 16, ..entry })
                .collect(),
        );
    }

    fn kinds(&mut self) {
        self.with("symbolic-link", vec![Entry::special("link", b"/etc/passwd", LINK)]);
        let folder = format!("{}/plugins", self.home);
        let through = vec![Entry::special("docs", folder.as_bytes(), LINK), Entry::file("docs/outside", b"x")];
        self.with("through-a-symbolic-link", through);
        self.with("link-in-place-of-a-folder", vec![Entry::special("docs/", b"", LINK)]);
        self.with("fifo", vec![Entry::special("fifo", b"", FIFO)]);
        self.with("device", vec![Entry::special("device", b"", DEVICE)]);
        self.with("block-device", vec![Entry::special("disk", b"", BLOCK_DEVICE)]);
        self.with("socket", vec![Entry::special("socket", b"", SOCKET)]);
        self.with("folder-by-its-mode-only", vec![Entry::special("docs", b"", DIRECTORY)]);
        self.with("folder-by-its-dos-bit-only", vec![Entry { attributes: 0x10, ..Entry::file("docs", b"x") }]);
        self.with("folder-with-content", vec![Entry { attributes: DIRECTORY << 16, ..Entry::file("docs/", b"x") }]);
    }

    fn entries(&mut self) {
        let file = || Entry::file("x", b"xyz");
        self.with("encrypted", vec![file().both(|record| record.flags |= 1)]);
        self.with("strongly-encrypted", vec![file().both(|record| record.flags |= 1 << 6)]);
        self.with("masked-headers", vec![file().both(|record| record.flags |= 1 << 13)]);
        self.with("aes", vec![file().both(|record| record.extra = extra(0x9901, &[2, 0, b'A', b'E', 3, 0, 0]))]);
        self.with("streamed", vec![file().both(|record| record.flags |= 1 << 3)]);
        self.with("unknown-flag", vec![file().both(|record| record.flags |= 1 << 5)]);
        for (name, method) in [("bzip2", 12), ("deflate64", 9), ("lzma", 14), ("zstd", 93), ("unknown-method", 77)] {
            self.with(name, vec![file().both(|record| record.method = method)]);
        }
        self.with("zip64-field", vec![file().both(|record| record.extra = extra(1, &[0; 16]))]);
        self.with("zip64-size", vec![file().both(|record| record.size = u32::MAX)]);
        let other_name = extra(0x7075, b"\x01\0\0\0\0monstrum.yaml");
        self.with("another-name-in-unicode", vec![file().both(|record| record.extra.clone_from(&other_name))]);
        self.with("cut-extra", vec![file().both(|record| record.extra = vec![0x55, 0x54, 0xff, 0xff, 1])]);
        self.with("another-name-before-the-data", vec![file().locally(|record| record.name = b"y".to_vec())]);
        self.with("another-size-before-the-data", vec![file().locally(|record| record.size = 2)]);
        self.with("another-crc-before-the-data", vec![file().locally(|record| record.crc ^= 1)]);
        self.with("another-method-before-the-data", vec![file().locally(|record| record.method = 8)]);
        self.with("another-flag-before-the-data", vec![file().locally(|record| record.flags = 1 << 11)]);
        self.with("zip64-before-the-data", vec![file().locally(|record| record.extra = extra(1, &[0; 16]))]);
        self.with("wrong-crc", vec![file().both(|record| record.crc ^= 1)]);
        self.with("stored-but-shorter", vec![file().both(|record| record.size = 2)]);
        let deflated = || Entry::deflated("x", &[b'x'; 1000]);
        self.with("longer-than-it-says", vec![deflated().both(|record| record.size = 10)]);
        self.with("shorter-than-it-says", vec![deflated().both(|record| record.size = 2000)]);
        self.with("not-deflate", vec![Entry { data: vec![0xff; 20], ..deflated() }.both(|record| record.packed = 20)]);
    }

    fn layouts(&mut self) {
        let first = || Some(0);
        self.with("two-names-for-one-file", vec![Entry { offset: first(), ..Entry::file("x", b"x") }]);
        self.with("outside-of-the-archive", vec![Entry { offset: Some(0x7fff_ffff), ..Entry::file("x", b"x") }]);
        self.with("in-the-middle-of-another", vec![Entry { offset: Some(40), ..Entry::file("x", b"x") }]);
        self.with("gap", vec![Entry { gap: b"hidden".to_vec(), ..Entry::file("x", b"x") }]);
        self.with("on-another-disk", vec![Entry { disk: 1, ..Entry::file("x", b"x") }]);
        let honest = zip(&self.honest);
        self.all.push(("program-before-it", [b"#!/bin/sh\nexit\n".as_slice(), &honest].concat()));
        self.all.push(("bytes-behind-it", [honest.as_slice(), b"hidden"].concat()));
        let other = zip(&[Entry::file("monstrum.yaml", b"name: other\n")]);
        self.all.push(("archive-behind-it", [honest.as_slice(), &other].concat()));
        self.all.push(("archive-before-it", [other.as_slice(), &honest].concat()));
        self.ending("archive-in-its-comment", &End { comment: other, ..End::default() });
        self.ending("comment", &End { comment: b"hello".to_vec(), ..End::default() });
        self.ending("counts-too-few", &End { count: Some(1), ..End::default() });
        self.ending("counts-too-many", &End { count: Some(9), ..End::default() });
        self.ending("counts-far-too-many", &End { count: Some(60_000), ..End::default() });
        self.ending("directory-elsewhere", &End { offset: Some(0), ..End::default() });
        self.ending("part-of-several", &End { disk: 1, ..End::default() });
        self.ending("zip64-end", &End { marker: true, ..End::default() });
        let locator = [b"PK\x06\x07".as_slice(), &[0; 16]].concat();
        self.ending("zip64-locator", &End { gap: locator, ..End::default() });
        self.ending("bytes-behind-the-directory", &End { gap: b"hidden".to_vec(), ..End::default() });
        self.all.push(("cut-off", honest[..honest.len() / 2].to_vec()));
        self.all.push(("end-cut-off", honest[..honest.len() - 1].to_vec()));
        self.all.push(("empty", Vec::new()));
        self.all.push(("no-entries", zip(&[])));
        self.all.push(("text", b"this is no archive at all, whatever it is called".to_vec()));
        self.all.push(("gzip", [b"\x1f\x8b\x08\0".as_slice(), &[0; 60]].concat()));
    }

    fn sizes(&mut self) {
        let zeros = |bytes: usize| vec![0; bytes];
        self.with("too-large-a-file", vec![Entry::deflated("x", &zeros(32 * MIB + 1))]);
        let bomb = Entry::deflated("x", &zeros(100 * MIB));
        self.with("bomb-that-says-so", vec![bomb.clone()]);
        self.with("bomb-that-does-not", vec![bomb.both(|record| record.size = 1000)]);
        let large = |name: &str| Entry::deflated(name, &zeros(30 * MIB));
        self.with("too-much-in-all", vec![large("x"), large("y"), large("z")]);
        let mut manifest = self.honest.clone();
        manifest[0] = Entry::deflated("monstrum.yaml", &[b'#'; (256 << 10) + 1]);
        self.all.push(("too-large-a-manifest", zip(&manifest)));
        let files = |count: usize| (0..count).map(|number| Entry::file(format!("docs/{number}"), b"")).collect();
        self.with("too-many-files", files(511));
        self.with("too-many-entries", files(1100));
        let folders = |count: usize| (0..count).map(|number| Entry::file(format!("{number}/"), b""));
        let folders = folders(1100).map(|entry| Entry { attributes: DIRECTORY << 16, ..entry }).collect();
        self.with("too-many-folders", folders);
        self.all.push(("too-large-a-package", zeros(PACKAGE_BYTES_MAX + 1)));
    }

    fn contents(&mut self) {
        let renamed = |folder: &str, entries: &[Entry]| -> Vec<Entry> {
            let named = |name: &[u8]| [folder.as_bytes(), b"/", name].concat();
            entries.iter().cloned().map(|entry| entry.both(|record| record.name = named(&record.name))).collect()
        };
        self.all.push(("no-manifest", zip(&self.honest[1..])));
        self.all.push(("another-folder", zip(&renamed("test-other", &self.honest))));
        let beside = [renamed("test-echo", &self.honest), vec![Entry::file("beside", b"x")]].concat();
        self.all.push(("folder-with-something-beside", zip(&beside)));
        self.all.push(("folder-in-a-folder", zip(&renamed("a", &renamed("test-echo", &self.honest)))));
        let manifest = |text: &[u8]| [vec![Entry::file("monstrum.yaml", text)], self.honest[1..].to_vec()].concat();
        let not_text = zip(&manifest(b"name: \xff\n"));
        let not_a_manifest = zip(&manifest(b"name: [\n"));
        self.all.push(("manifest-that-is-no-text", not_text));
        self.all.push(("manifest-that-is-none", not_a_manifest));
        self.all.push(("no-component", zip(&self.honest[..1])));
    }
}

fn cases(source: &Source, home: &str) -> Cases {
    let file = |name: &str| Entry::file(name, &source.files[name]);
    let honest = vec![file("monstrum.yaml"), file("plugin.wasm")];
    let mut cases = Cases { honest, home: home.to_owned(), all: Vec::new() };
    cases.names();
    cases.kinds();
    cases.entries();
    cases.layouts();
    cases.sizes();
    cases.contents();
    cases
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases or one whole answer")]
async fn every_hostile_archive_is_refused_by_name_and_leaves_nothing_behind() -> Result<()> {
    let server = Server::start(&["test-result"]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let source = Source::of("test-echo", "1.0.0")?;
    let home = server.home().to_str().unwrap_or_default();
    let cases = cases(&source, home);
    let before = left(&server)?;
    let mut told = Vec::new();
    for (name, archive) in &cases.all {
        let answer = source.signed(archive.clone(), &key)?.to(&api).await?;
        ensure!(matches!(answer.0, 422 | 413), "{name}: {answer:?}");
        let detail = detail(&answer).replace(home, "[home]");
        told.push(format!("{name}: {}", detail.replace("/package: the package", "…")));
        assert_eq!(left(&server)?, before, "{name} has left files behind");
    }
    let (_, list) = api.get("/api/plugins").await?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    let mut names: Vec<&str> = cases.all.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() == cases.all.len() && names.len() >= 40, "{} archives", names.len());
    // Without its fault, each of the archives would have been installed.
    let answer = source.signed(zip(&cases.honest), &key)?.to(&api).await?;
    assert_eq!((answer.0, &answer.1["status"]), (201, &"loaded".into()), "{answer:?}");
    assert_snapshot!(told.join("\n"), @r#"
    absolute-path: 422 …'s entry `[home]/outside` has an absolute path
    absolute-root: 422 …'s entry `/` is neither a regular file nor a folder
    drive-letter: 422 …'s entry `C:/outside` has an absolute path
    dot-dot: 422 …'s entry `../outside` has a path with a component that is empty, `.` or `..`
    dot-dot-deep: 422 …'s entry `locales/../../../outside` has a path with a component that is empty, `.` or `..`
    dot-dot-alone: 422 …'s entry `..` has a path with a component that is empty, `.` or `..`
    dot-segment: 422 …'s entry `./outside` has a path with a component that is empty, `.` or `..`
    empty-segment: 422 …'s entry `locales//outside` has a path with a component that is empty, `.` or `..`
    backslash-dot-dot: 422 …'s entry `..\\outside` has a backslash in its path; use `/` as the path separator
    backslash: 422 …'s entry `locales\\outside` has a backslash in its path; use `/` as the path separator
    nul: 422 …'s entry `outside\u{0}.txt` has a NUL character in its path
    nul-hides-the-rest: 422 …'s entry `monstrum.yaml\u{0}.txt` has a NUL character in its path
    line-end: 422 …'s entry `out\nside` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    terminal-escape: 422 …'s entry `\u{1b}[2Joutside` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    not-ascii: 422 …'s entry `\u{e4}.txt` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    right-to-left: 422 …'s entry `\u{202e}lmay.txt` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    not-utf-8: 422 …'s entry `\u{fffd}\u{fffd}.txt` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    empty-name: 422 …'s entry `` has an empty path or a path longer than 256 bytes
    long-name: 422 …'s entry `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…` has an empty path or a path longer than 256 bytes
    deep: 422 …'s entry `a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/x` is nested deeper than 8 folders
    dot-at-the-end: 422 …'s entry `plugin.wasm.` has a path component that starts with a space, or ends with a space or a dot; some systems remove these characters
    space-at-the-end: 422 …'s entry `plugin.wasm ` has a path component that starts with a space, or ends with a space or a dot; some systems remove these characters
    stream-of-a-file: 422 …'s entry `plugin.wasm:hidden` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    wildcard: 422 …'s entry `*` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    twice: 422 …'s entry `plugin.wasm` is in the archive twice
    manifest-twice: 422 …'s entry `monstrum.yaml` is in the archive twice
    case: 422 …'s entry `Plugin.WASM` differs from `plugin.wasm` only in case
    case-of-unicode: 422 …'s entry `\u{212a}.txt` has a path with characters that are not allowed: use only printable ASCII characters other than `:*?"<>|`
    case-of-a-folder: 422 …'s entry `docs/b` differs from `Docs` only in case
    file-then-folder: 422 …'s entry `x/y` makes `x` both a file and a folder
    folder-then-file: 422 …'s entry `x` makes `x` both a file and a folder
    folder-twice: 422 …'s entry `docs/` is in the archive twice
    symbolic-link: 422 …'s entry `link` is neither a regular file nor a folder
    through-a-symbolic-link: 422 …'s entry `docs` is neither a regular file nor a folder
    link-in-place-of-a-folder: 422 …'s entry `docs/` is neither a regular file nor a folder
    fifo: 422 …'s entry `fifo` is neither a regular file nor a folder
    device: 422 …'s entry `device` is neither a regular file nor a folder
    block-device: 422 …'s entry `disk` is neither a regular file nor a folder
    socket: 422 …'s entry `socket` is neither a regular file nor a folder
    folder-by-its-mode-only: 422 …'s entry `docs` is neither a regular file nor a folder
    folder-by-its-dos-bit-only: 422 …'s entry `docs` is neither a regular file nor a folder
    folder-with-content: 422 …'s entry `docs/` has sizes that contradict each other
    encrypted: 422 …'s entry `x` is encrypted
    strongly-encrypted: 422 …'s entry `x` is encrypted
    masked-headers: 422 …'s entry `x` is encrypted
    aes: 422 …'s entry `x` has an extra field that could give it another name or content
    streamed: 422 …'s entry `x` was written as a stream, with its sizes after its data; pack it with `monstrum plugin pack`
    unknown-flag: 422 …'s entry `x` has unknown flags
    bzip2: 422 …'s entry `x` is compressed with method 12; only deflate is supported
    deflate64: 422 …'s entry `x` is compressed with method 9; only deflate is supported
    lzma: 422 …'s entry `x` is compressed with method 14; only deflate is supported
    zstd: 422 …'s entry `x` is compressed with method 93; only deflate is supported
    unknown-method: 422 …'s entry `x` is compressed with method 77; only deflate is supported
    zip64-field: 422 …'s entry `x` uses ZIP64, which readers interpret differently
    zip64-size: 422 … uses ZIP64, which readers interpret differently; pack it with `monstrum plugin pack`
    another-name-in-unicode: 422 …'s entry `x` has an extra field that could give it another name or content
    cut-extra: 422 …'s entry `x` has an extra field that could give it another name or content
    another-name-before-the-data: 422 …'s entry `x` has a local header that disagrees with the central directory
    another-size-before-the-data: 422 …'s entry `x` has a local header that disagrees with the central directory
    another-crc-before-the-data: 422 …'s entry `x` has a local header that disagrees with the central directory
    another-method-before-the-data: 422 …'s entry `x` has a local header that disagrees with the central directory
    another-flag-before-the-data: 422 …'s entry `x` has a local header that disagrees with the central directory
    zip64-before-the-data: 422 …'s entry `x` uses ZIP64, which readers interpret differently
    wrong-crc: 422 …'s entry `x` is damaged: its data does not unpack to the recorded size and checksum
    stored-but-shorter: 422 …'s entry `x` has sizes that contradict each other
    longer-than-it-says: 422 …'s entry `x` is damaged: its data does not unpack to the recorded size and checksum
    shorter-than-it-says: 422 …'s entry `x` is damaged: its data does not unpack to the recorded size and checksum
    not-deflate: 422 …'s entry `x` is damaged: its data does not unpack to the recorded size and checksum
    two-names-for-one-file: 422 …'s entry `x` has a local header that disagrees with the central directory
    outside-of-the-archive: 422 …'s entry `x` is not at the offset in the central directory
    in-the-middle-of-another: 422 …'s entry `x` is not at the offset in the central directory
    gap: 422 … is ambiguous: its files overlap, or there are bytes before or between them; pack it with `monstrum plugin pack`
    on-another-disk: 422 … is ambiguous: it is marked as a part of a split archive; pack it with `monstrum plugin pack`
    program-before-it: 422 … is ambiguous: its central directory is not at the offset in its end record; pack it with `monstrum plugin pack`
    bytes-behind-it: 422 … is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    archive-behind-it: 422 … is ambiguous: its central directory is not at the offset in its end record; pack it with `monstrum plugin pack`
    archive-before-it: 422 … is ambiguous: its central directory is not at the offset in its end record; pack it with `monstrum plugin pack`
    archive-in-its-comment: 422 … is ambiguous: its central directory is not at the offset in its end record; pack it with `monstrum plugin pack`
    comment: 422 … is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    counts-too-few: 422 … is ambiguous: its central directory has bytes after its last entry; pack it with `monstrum plugin pack`
    counts-too-many: 422 … is ambiguous: its central directory is truncated; pack it with `monstrum plugin pack`
    counts-far-too-many: 422 … has 60000 entries; at most 1024 are allowed
    directory-elsewhere: 422 … is ambiguous: its central directory is not at the offset in its end record; pack it with `monstrum plugin pack`
    part-of-several: 422 … is ambiguous: it is marked as a part of a split archive; pack it with `monstrum plugin pack`
    zip64-end: 422 … uses ZIP64, which readers interpret differently; pack it with `monstrum plugin pack`
    zip64-locator: 422 … uses ZIP64, which readers interpret differently; pack it with `monstrum plugin pack`
    bytes-behind-the-directory: 422 … is ambiguous: its central directory is not at the offset in its end record; pack it with `monstrum plugin pack`
    cut-off: 422 … is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    end-cut-off: 422 … is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    empty: 422 … is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    no-entries: 422 … has no monstrum.yaml, neither at the top level nor in a single top-level folder
    text: 422 … is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    gzip: 422 … is not a ZIP archive: its end record is missing (the archive is truncated, or has a comment or other bytes at its end)
    too-large-a-file: 422 …'s entry `x` is too large: the limit is 33554432 bytes for a file and 262144 bytes for `monstrum.yaml`
    bomb-that-says-so: 422 …'s entry `x` is too large: the limit is 33554432 bytes for a file and 262144 bytes for `monstrum.yaml`
    bomb-that-does-not: 422 …'s entry `x` is damaged: its data does not unpack to the recorded size and checksum
    too-much-in-all: 422 … unpacks to more than 67108864 bytes
    too-large-a-manifest: 422 …'s entry `monstrum.yaml` is too large: the limit is 33554432 bytes for a file and 262144 bytes for `monstrum.yaml`
    too-many-files: 422 … has more than 512 files
    too-many-entries: 422 … has 1102 entries; at most 1024 are allowed
    too-many-folders: 422 … has 1102 entries; at most 1024 are allowed
    too-large-a-package: 413 the body exceeds the limit of 68157440 bytes
    no-manifest: 422 … has no monstrum.yaml, neither at the top level nor in a single top-level folder
    another-folder: 422 … was renamed: the folder in the package contains `test-other`, but the manifest contains `test-echo`
    folder-with-something-beside: 422 … has no monstrum.yaml, neither at the top level nor in a single top-level folder
    folder-in-a-folder: 422 … has no monstrum.yaml, neither at the top level nor in a single top-level folder
    manifest-that-is-no-text: 422 …'s monstrum.yaml is not UTF-8 text
    manifest-that-is-none: 422 …'s monstrum.yaml:2:1: not valid YAML: did not find expected node content
    no-component: 422 /package: test-echo/plugin.wasm does not exist
    "#);
    Ok(())
}

/// Common tools write these bits and fields, which have the same meaning for every reader.
#[tokio::test]
async fn archives_of_common_tools_are_taken() -> Result<()> {
    let server = Server::start(&[]).await?;
    let api = server.api()?;
    let key = trusted(&api).await?;
    let source = Source::of("test-echo", "1.0.0")?;
    let file = |name: &str| Entry::deflated(format!("test-echo/{name}"), &source.files[name]);
    let times = extra(0x5455, &[3, 1, 2, 3, 4]);
    let entries = [
        Entry { attributes: DIRECTORY << 16 | 0x10, ..Entry::file("test-echo/", b"") },
        file("monstrum.yaml").both(|record| record.flags |= 2),
        file("plugin.wasm").both(|record| record.extra.clone_from(&times)),
        Entry { attributes: 0, ..Entry::file("test-echo/README.md", b"x") },
    ];
    let answer = source.signed(zip(&entries), &key)?.to(&api).await?;
    assert_eq!((answer.0, &answer.1["status"]), (201, &"loaded".into()), "{answer:?}");
    assert_eq!(
        left(&server)?,
        [
            "plugins",
            "plugins/test-echo",
            "plugins/test-echo/README.md",
            "plugins/test-echo/monstrum.yaml",
            "plugins/test-echo/plugin.wasm"
        ]
    );
    Ok(())
}
