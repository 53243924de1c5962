//! A model of the disk below a folder: what is durable, what is only in the cache of the operating system, and what a
//! power cut leaves of it.
//!
//! A write is durable when a later sync of its file has ended. Before that, each sector of 512 bytes has its state
//! before or after any of the writes to it, regardless of other sectors. A file has its size before or after any change
//! of it, and bytes that were never written are zero. A new, changed or removed name is durable when a later sync of
//! the folder has ended. Before that, a power cut leaves the first of these changes. File systems usually lose less.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};

use super::journal::{Change, Record};
use crate::Random;

const SECTOR_BYTES: usize = 512;

/// The content of a folder by file name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// Which of the changes that are not durable survive a power cut.
#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    /// No change survives.
    All,
    /// Each change survives with this probability.
    Some(f64),
    /// The changes of the first records survive, up to this number of records.
    After(usize),
}

/// The disk below one folder.
pub(super) struct Storage {
    /// Whether a sync makes writes durable. `false` models a disk that loses writes which it has confirmed.
    honours_syncs: bool,
    /// The number of records so far.
    records: usize,
    files: Vec<File>,
    /// The index in `files` of the file with an inode. An inode can be used again after its file was removed.
    inodes: HashMap<u64, usize>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// The changes of names that are not durable, with the number of records before each.
    renames: Vec<(usize, Rename)>,
}

#[derive(Clone)]
struct Rename {
    removed: Option<String>,
    added: Option<(String, usize)>,
}

#[derive(Default)]
struct File {
    content: Vec<u8>,
    durable: Vec<u8>,
    /// The states of each sector since its durable state, with the number of records before each.
    sectors: BTreeMap<usize, Vec<(usize, Vec<u8>)>>,
    /// The sizes since the durable size, with the number of records before each.
    sizes: Vec<(usize, usize)>,
}

impl Storage {
    /// Creates the disk of a folder whose files are all durable.
    pub(super) fn new(base: &Files, honours_syncs: bool) -> Storage {
        let files =
            base.values().map(|content| File { content: content.clone(), durable: content.clone(), ..File::default() });
        let names: BTreeMap<String, usize> = base.keys().cloned().zip(0..).collect();
        Storage {
            honours_syncs,
            records: 0,
            files: files.collect(),
            inodes: HashMap::new(),
            durable_names: names.clone(),
            names,
            renames: Vec::new(),
        }
    }

    /// Applies the next record of the journal.
    pub(super) fn apply(&mut self, record: &Record) -> Result<()> {
        let number = self.records;
        self.records += 1;
        match &record.change {
            Change::Open { file, is_new: true, name } => {
                self.files.push(File::default());
                self.inodes.insert(*file, self.files.len() - 1);
                self.rename(number, None, Some((name.clone(), self.files.len() - 1)));
            }
            Change::Open { file, is_new: false, name } => {
                let index = self.named(name)?;
                self.inodes.insert(*file, index);
            }
            Change::Write { file, at, data } => self.file(*file)?.write(number, *at, data),
            Change::Truncate { file, size } => self.file(*file)?.resize(number, *size),
            Change::Sync { file, before } if self.honours_syncs => self.file(*file)?.sync(*before),
            Change::SyncFolder { before } if self.honours_syncs => {
                let settled = self.renames.partition_point(|(number, _)| number < before);
                for (_, rename) in self.renames.drain(..settled) {
                    rename.apply(&mut self.durable_names);
                }
            }
            Change::Sync { .. } | Change::SyncFolder { .. } => {}
            Change::Remove { name } => self.rename(number, Some(name.clone()), None),
            Change::Rename { from, to } => {
                let index = self.named(from)?;
                self.rename(number, Some(from.clone()), Some((to.clone(), index)));
            }
            Change::Link { from, to } => {
                let index = self.named(from)?;
                self.rename(number, None, Some((to.clone(), index)));
            }
        }
        Ok(())
    }

    /// Returns the files as programs see them while the power is on.
    pub(super) fn content(&self) -> Files {
        self.names.iter().map(|(name, index)| (name.clone(), self.files[*index].content.clone())).collect()
    }

    /// Returns the files after a power cut.
    pub(super) fn after_power_cut(&self, loss: Loss, random: &mut Random) -> Files {
        let mut names = self.durable_names.clone();
        for (_, rename) in &self.renames[..kept(&self.renames, loss, random)] {
            rename.apply(&mut names);
        }
        let files = names.into_iter().map(|(name, index)| (name, self.files[index].after_power_cut(loss, random)));
        files.collect()
    }

    /// Returns the number of sectors that a power cut can lose.
    pub(super) fn sectors_at_risk(&self) -> usize {
        self.files.iter().map(|file| file.sectors.len()).sum()
    }

    fn rename(&mut self, number: usize, removed: Option<String>, added: Option<(String, usize)>) {
        let rename = Rename { removed, added };
        rename.apply(&mut self.names);
        self.renames.push((number, rename));
    }

    fn named(&self, name: &str) -> Result<usize> {
        self.names.get(name).copied().with_context(|| format!("the journal does not say how `{name}` was created"))
    }

    fn file(&mut self, inode: u64) -> Result<&mut File> {
        let index = self.inodes.get(&inode).context("the journal has a change of a file that was not opened")?;
        Ok(&mut self.files[*index])
    }
}

impl Rename {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(removed) = &self.removed {
            names.remove(removed);
        }
        if let Some((name, index)) = &self.added {
            names.insert(name.clone(), *index);
        }
    }
}

impl File {
    fn write(&mut self, number: usize, at: usize, data: &[u8]) {
        let end = at + data.len();
        if end > self.content.len() {
            self.resize(number, end);
        }
        self.content[at..end].copy_from_slice(data);
        self.changed(number, at, end);
    }

    fn resize(&mut self, number: usize, size: usize) {
        let before = self.content.len();
        if size != before {
            self.content.resize(size, 0);
            self.sizes.push((number, size));
        }
        // The removed bytes are zero if the file grows again.
        self.changed(number, size, before);
    }

    /// Notes the state of all sectors between two offsets.
    fn changed(&mut self, number: usize, from: usize, to: usize) {
        for sector in from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES) {
            let start = self.content.len().min(sector * SECTOR_BYTES);
            let end = self.content.len().min(start + SECTOR_BYTES);
            let mut state = self.content[start..end].to_vec();
            state.resize(SECTOR_BYTES, 0);
            self.sectors.entry(sector).or_default().push((number, state));
        }
    }

    /// Makes the changes of the first `before` records durable.
    fn sync(&mut self, before: usize) {
        let settled = self.sizes.partition_point(|(number, _)| *number < before);
        if let Some((_, size)) = self.sizes.drain(..settled).next_back() {
            self.durable.resize(size, 0);
        }
        for (sector, states) in &mut self.sectors {
            let settled = states.partition_point(|(number, _)| *number < before);
            if let Some((_, state)) = states.drain(..settled).next_back() {
                put(&mut self.durable, *sector, &state);
            }
        }
        self.sectors.retain(|_, states| !states.is_empty());
    }

    fn after_power_cut(&self, loss: Loss, random: &mut Random) -> Vec<u8> {
        let mut content = self.durable.clone();
        if let Some(last) = kept(&self.sizes, loss, random).checked_sub(1) {
            content.resize(self.sizes[last].1, 0);
        }
        for (sector, states) in &self.sectors {
            if let Some(last) = kept(states, loss, random).checked_sub(1) {
                put(&mut content, *sector, &states[last].1);
            }
        }
        content
    }
}

/// Writes the state of a sector into the part of the sector that is within the file.
fn put(content: &mut [u8], sector: usize, state: &[u8]) {
    let start = content.len().min(sector * SECTOR_BYTES);
    let end = content.len().min(start + SECTOR_BYTES);
    content[start..end].copy_from_slice(&state[..end - start]);
}

/// Returns how many of these changes survive.
fn kept<T>(changes: &[(usize, T)], loss: Loss, random: &mut Random) -> usize {
    match loss {
        Loss::All => 0,
        Loss::Some(probability) if random.share() < probability => random.below(changes.len() + 1),
        Loss::Some(_) => 0,
        Loss::After(records) => changes.partition_point(|(number, _)| *number < records),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(changes: Vec<Change>) -> Storage {
        let base = Files::from([("a".to_owned(), b"old".to_vec())]);
        let mut storage = Storage::new(&base, true);
        let opened = Change::Open { file: 1, is_new: false, name: "a".to_owned() };
        for change in std::iter::once(opened).chain(changes) {
            storage.apply(&Record { change, end: 0 }).unwrap();
        }
        storage
    }

    fn write(at: usize, data: &[u8]) -> Change {
        Change::Write { file: 1, at, data: data.to_vec() }
    }

    /// Returns every content of `a` that a thousand power cuts leave.
    fn outcomes(storage: &Storage) -> Vec<Vec<u8>> {
        let mut random = Random::new(1, 1);
        let mut outcomes: Vec<_> =
            (0..1000).map(|_| storage.after_power_cut(Loss::Some(0.7), &mut random)["a"].clone()).collect();
        outcomes.sort();
        outcomes.dedup();
        outcomes
    }

    #[test]
    fn a_synced_write_survives_and_a_later_one_may_be_lost() {
        let storage = storage(vec![write(0, b"new"), Change::Sync { file: 1, before: 2 }, write(0, b"now")]);
        assert_eq!(storage.content()["a"], b"now");
        assert_eq!(outcomes(&storage), [b"new", b"now"]);
    }

    #[test]
    fn a_sync_covers_no_write_that_came_after_it_began() {
        let storage = storage(vec![write(0, b"new"), Change::Sync { file: 1, before: 1 }]);
        assert_eq!(outcomes(&storage), [b"new", b"old"]);
    }

    #[test]
    fn sectors_and_sizes_are_lost_independently() {
        let storage = storage(vec![write(510, b"xxxx")]);
        let (mut first, mut second) = (vec![0; 514], vec![0; 514]);
        first[..3].copy_from_slice(b"old");
        second[..3].copy_from_slice(b"old");
        let neither = first.clone();
        first[510..512].copy_from_slice(b"xx");
        second[512..].copy_from_slice(b"xx");
        let mut both = first.clone();
        both[512..].copy_from_slice(b"xx");
        assert_eq!(outcomes(&storage), [b"old".to_vec(), neither, second, first, both]);
    }

    #[test]
    fn what_was_cut_off_is_zero_when_the_file_grows_again() {
        let storage =
            storage(vec![Change::Truncate { file: 1, size: 1 }, write(4, b"e"), Change::Sync { file: 1, before: 3 }]);
        assert_eq!(outcomes(&storage), [b"o\0\0\0e"]);
    }

    #[test]
    fn a_name_is_durable_after_a_sync_of_the_folder() {
        let made = Change::Open { file: 2, is_new: true, name: "b".to_owned() };
        let written = Change::Write { file: 2, at: 0, data: b"new".to_vec() };
        let renamed = Change::Rename { from: "b".to_owned(), to: "a".to_owned() };
        let mut storage = storage(vec![made, written, Change::Sync { file: 2, before: 3 }, renamed]);
        assert_eq!(outcomes(&storage), [b"new", b"old"]);
        storage.apply(&Record { change: Change::SyncFolder { before: 5 }, end: 0 }).unwrap();
        assert_eq!(outcomes(&storage), [b"new"]);
    }
}
