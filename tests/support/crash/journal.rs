//! The journal of a server: every change to the files of its data folder, as `shim.c` recorded it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The source of the library that records the changes.
const SHIM: &str = include_str!("shim.c");
/// The number of bytes of a record before its data.
const HEADER_BYTES: usize = 32;

/// One change to the files of a folder. Files are named by their inode.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A file was opened under this name.
    Open {
        file: u64,
        is_new: bool,
        name: String,
    },
    Write {
        file: u64,
        at: usize,
        data: Vec<u8>,
    },
    Truncate {
        file: u64,
        size: usize,
    },
    /// The writes of the first `before` records are on disk.
    Sync {
        file: u64,
        before: usize,
    },
    /// The names that the first `before` records gave and removed are on disk.
    SyncFolder {
        before: usize,
    },
    Remove {
        name: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) change: Change,
    /// The length of the journal up to the end of this record.
    pub(super) end: u64,
}

/// Compiles the library in `folder`, and returns its path.
pub(super) fn build_shim(folder: &Path) -> Result<PathBuf> {
    let (source, library) = (folder.join("shim.c"), folder.join("shim.so"));
    std::fs::write(&source, SHIM)?;
    // Some systems define _FORTIFY_SOURCE, which replaces the functions that the library defines.
    let arguments = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-U_FORTIFY_SOURCE", "-o"];
    let built = Command::new("cc").args(arguments).arg(&library).arg(&source).output();
    let built = built.context("cannot run the C compiler `cc`")?;
    ensure!(built.status.success(), "shim.c cannot be compiled:\n{}", String::from_utf8_lossy(&built.stderr));
    Ok(library)
}

/// Reads all records. The last record may be incomplete if the server was killed, and is then left out.
pub(super) fn read(journal: &Path) -> Result<Vec<Record>> {
    let bytes = std::fs::read(journal).context("the server recorded no changes")?;
    let mut records = Vec::new();
    let mut from = 0;
    while let Some(header) = bytes.get(from..from + HEADER_BYTES) {
        let number = |index: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&header[index * 8..index * 8 + 8]);
            u64::from_le_bytes(number)
        };
        let end = from + HEADER_BYTES + usize::try_from(number(3))?;
        let Some(data) = bytes.get(from + HEADER_BYTES..end) else { break };
        let change = change([number(0), number(1), number(2)], data)?;
        records.push(Record { change, end: u64::try_from(end)? });
        from = end;
    }
    Ok(records)
}

fn change([kind, file, at]: [u64; 3], data: &[u8]) -> Result<Change> {
    let name = || String::from_utf8(data.to_vec()).context("the name of a file is not UTF-8");
    let names = || -> Result<(String, String)> {
        let names = name()?;
        let (from, to) = names.split_once('\0').context("a record has only one name")?;
        Ok((from.to_owned(), to.to_owned()))
    };
    let at = usize::try_from(at)?;
    Ok(match kind {
        1 | 2 => Change::Open { file, is_new: kind == 2, name: name()? },
        3 => Change::Write { file, at, data: data.to_vec() },
        4 => Change::Truncate { file, size: at },
        5 => Change::Sync { file, before: at },
        6 => Change::SyncFolder { before: at },
        7 => Change::Remove { name: name()? },
        8 => names().map(|(from, to)| Change::Rename { from, to })?,
        9 => names().map(|(from, to)| Change::Link { from, to })?,
        10 => bail!("the server changed a file with `{}`, which the journal cannot express", name()?),
        kind => bail!("the journal has a record of the unknown kind {kind}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_records_the_changes_of_a_program() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().canonicalize().unwrap();
        let (data, journal) = (folder.join("data"), folder.join("journal"));
        std::fs::create_dir(&data).unwrap();
        let script = "echo one > a; echo two >> a; : > b-shm; sync -d a; mv a c; sync .; mkdir d; echo no > d/e; rm c";
        let library = build_shim(&folder).unwrap();
        let run = Command::new("sh")
            .args(["-c", script])
            .current_dir(&data)
            .env("LD_PRELOAD", library)
            .env("CRASH_FOLDER", &data)
            .env("CRASH_JOURNAL", &journal)
            .status();
        assert!(run.unwrap().success());
        let mut records = read(&journal).unwrap();
        let Change::Open { file, .. } = records[0].change else { panic!("{:?}", records[0]) };
        let name = || "a".to_owned();
        let write = |at, data: &str| Change::Write { file, at, data: data.as_bytes().to_vec() };
        let changes: Vec<Change> = records.drain(..).map(|record| record.change).collect();
        // Each program of the script counts its own records.
        let wanted = [
            Change::Open { file, is_new: true, name: name() },
            Change::Truncate { file, size: 0 },
            write(0, "one\n"),
            Change::Open { file, is_new: false, name: name() },
            write(4, "two\n"),
            Change::Open { file, is_new: false, name: name() },
            Change::Sync { file, before: 1 },
            Change::Rename { from: name(), to: "c".to_owned() },
            Change::SyncFolder { before: 0 },
            Change::Remove { name: "c".to_owned() },
        ];
        assert_eq!(changes, wanted);
    }
}
