//! A strict parser for the structure of a ZIP archive. The parser accepts only contiguous files, a central directory
//! that matches the local headers of the files, and the end record. No other bytes may come before, between or after
//! these parts.
//!
//! ZIP readers differ in which of the redundant records they trust. If the records of an archive disagree, a reviewer
//! could see different files from those that the host installs, so the parser rejects the archive.

use super::{ArchiveError, EntryError};
use crate::limits::{ENTRIES_MAX, FILE_BYTES_MAX};

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const ZIP64_LOCATOR: u32 = 0x0706_4b50;

const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
const ZIP64_LOCATOR_BYTES: usize = 20;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// The flag bits for encryption (bit 0), strong encryption (bit 6) and masked header values (bit 13).
const FLAGS_ENCRYPTED: u16 = 1 | 1 << 6 | 1 << 13;
/// The flag bit for a data descriptor (bit 3), which stores the CRC and the sizes after the data.
const FLAG_DESCRIPTOR: u16 = 1 << 3;
/// The accepted flag bits, which indicate the compression level (bits 1 and 2) and a UTF-8 name (bit 11).
const FLAGS_KNOWN: u16 = 1 << 1 | 1 << 2 | 1 << 11;

/// Extra fields that make some readers use another size, name or content.
const EXTRA_ZIP64: u16 = 0x0001;
const EXTRA_OTHERS: [u16; 5] = [0x7075, 0x6375, 0x9901, 0x0014, 0x0017];

const DOS_FOLDER: u32 = 0x10;
const MODE_KIND: u32 = 0o170_000;
const MODE_FILE: u32 = 0o100_000;
const MODE_FOLDER: u32 = 0o040_000;

/// An entry whose local header matches its record in the central directory.
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) is_folder: bool,
    /// The unpacked size according to the archive's records. Unpacking checks the actual size against it.
    pub(super) bytes: usize,
    start: usize,
    end: usize,
}

/// Returns the entries in the order of the central directory.
pub(super) fn entries(archive: &[u8]) -> Result<Vec<Entry>, ArchiveError> {
    let (count, directory) = end(archive)?;
    let mut entries = Vec::with_capacity(count);
    let mut at = directory;
    let directory_end = archive.len() - END_BYTES;
    for _ in 0..count {
        let (entry, next) = central(archive, at, directory_end, directory)?;
        entries.push(entry);
        at = next;
    }
    if at != directory_end {
        return Err(ArchiveError::Layout("its central directory has bytes after its last entry"));
    }
    check_row(&entries, directory)?;
    Ok(entries)
}

/// Returns the number of entries and the offset of the central directory.
fn end(archive: &[u8]) -> Result<(usize, usize), ArchiveError> {
    let cut = || {
        ArchiveError::NotZip(
            "its end record is missing (the archive is truncated, or has a comment or other bytes at its end)",
        )
    };
    let at = archive.len().checked_sub(END_BYTES).ok_or_else(cut)?;
    if u32_at(archive, at) != Some(END) || u16_at(archive, at + 20) != Some(0) {
        return Err(cut());
    }
    let field16 = |offset| u16_at(archive, at + offset).ok_or_else(cut);
    let field32 = |offset| u32_at(archive, at + offset).ok_or_else(cut);
    let (on_disk, in_all) = (field16(8)?, field16(10)?);
    let (size, offset) = (field32(12)?, field32(16)?);
    let has_locator = at.checked_sub(ZIP64_LOCATOR_BYTES).and_then(|at| u32_at(archive, at)) == Some(ZIP64_LOCATOR);
    if has_locator || in_all == u16::MAX || size == u32::MAX || offset == u32::MAX {
        return Err(ArchiveError::Zip64);
    }
    if field16(4)? != 0 || field16(6)? != 0 || on_disk != in_all {
        return Err(ArchiveError::Layout("it is marked as a part of a split archive"));
    }
    let count = usize::from(in_all);
    if count > ENTRIES_MAX {
        return Err(ArchiveError::TooManyEntries { entries: count });
    }
    let directory = usize::try_from(offset)
        .ok()
        .filter(|offset| usize::try_from(size).ok().and_then(|size| offset.checked_add(size)) == Some(at));
    directory
        .map(|directory| (count, directory))
        .ok_or(ArchiveError::Layout("its central directory is not at the offset in its end record"))
}

/// Parses a record of the central directory and checks the local header of its file. Also returns the offset of the
/// next record.
fn central(archive: &[u8], at: usize, directory_end: usize, directory: usize) -> Result<(Entry, usize), ArchiveError> {
    let cut = || ArchiveError::Layout("its central directory is truncated");
    let record = archive.get(at..directory_end).ok_or_else(cut)?;
    if u32_at(record, 0) != Some(CENTRAL) || record.len() < CENTRAL_BYTES {
        return Err(cut());
    }
    let word = |offset| u16_at(record, offset).ok_or_else(cut);
    let long = |offset| u32_at(record, offset).ok_or_else(cut);
    let lengths = (usize::from(word(28)?), usize::from(word(30)?), usize::from(word(32)?));
    let name_end = CENTRAL_BYTES + lengths.0;
    let extra_end = name_end + lengths.1;
    let name = record.get(CENTRAL_BYTES..name_end).ok_or_else(cut)?;
    let extra = record.get(name_end..extra_end).ok_or_else(cut)?;
    let next = at + extra_end + lengths.2;
    if next > directory_end {
        return Err(cut());
    }
    let entry_error = |error| ArchiveError::Entry { name: shown(name), error };

    let (flags, method) = (word(8)?, word(10)?);
    if flags & FLAGS_ENCRYPTED != 0 {
        return Err(entry_error(EntryError::Encrypted));
    }
    if flags & FLAG_DESCRIPTOR != 0 {
        return Err(entry_error(EntryError::Streamed));
    }
    if flags & !FLAGS_KNOWN != 0 {
        return Err(entry_error(EntryError::Flags));
    }
    if method != STORED && method != DEFLATED {
        return Err(entry_error(EntryError::Method(method)));
    }
    check_extra(extra).map_err(entry_error)?;
    let (packed, bytes, offset) = (long(20)?, long(24)?, long(42)?);
    if packed == u32::MAX || bytes == u32::MAX || offset == u32::MAX {
        return Err(ArchiveError::Zip64);
    }
    if word(34)? != 0 {
        return Err(ArchiveError::Layout("it is marked as a part of a split archive"));
    }
    let is_folder = name.last() == Some(&b'/');
    check_kind(long(38)?, is_folder).map_err(entry_error)?;
    if is_folder && (packed, bytes) != (0, 0) || method == STORED && packed != bytes {
        return Err(entry_error(EntryError::Size));
    }
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if bytes > FILE_BYTES_MAX {
        return Err(entry_error(EntryError::TooLarge));
    }

    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = local(archive, start, directory, name, record).map_err(entry_error)?;
    Ok((Entry { name: name.to_vec(), is_folder, bytes, start, end }, next))
}

/// Checks that a local header matches its record in the central directory. Returns the end offset of the file's data.
fn local(archive: &[u8], at: usize, directory: usize, name: &[u8], central: &[u8]) -> Result<usize, EntryError> {
    let record = archive.get(at..directory).ok_or(EntryError::Outside)?;
    if u32_at(record, 0) != Some(LOCAL) || record.len() < LOCAL_BYTES {
        return Err(EntryError::Outside);
    }
    // Compare the flags, method, CRC and both sizes. The gap skips the modification time, which may differ.
    let same = record[6..10] == central[8..12] && record[14..26] == central[16..28];
    let name_end = LOCAL_BYTES + usize::from(u16_at(record, 26).ok_or(EntryError::Outside)?);
    let extra_end = name_end + usize::from(u16_at(record, 28).ok_or(EntryError::Outside)?);
    if !same || record.get(LOCAL_BYTES..name_end) != Some(name) {
        return Err(EntryError::Disagrees);
    }
    check_extra(record.get(name_end..extra_end).ok_or(EntryError::Outside)?)?;
    let packed = u32_at(record, 18).and_then(|packed| usize::try_from(packed).ok()).ok_or(EntryError::Outside)?;
    let end = extra_end.checked_add(packed).filter(|end| *end <= record.len()).ok_or(EntryError::Outside)?;
    Ok(at + end)
}

fn check_extra(mut extra: &[u8]) -> Result<(), EntryError> {
    while !extra.is_empty() {
        let (Some(id), Some(length)) = (u16_at(extra, 0), u16_at(extra, 2)) else { return Err(EntryError::Extra) };
        if id == EXTRA_ZIP64 {
            return Err(EntryError::Zip64);
        }
        if EXTRA_OTHERS.contains(&id) {
            return Err(EntryError::Extra);
        }
        extra = extra.get(4 + usize::from(length)..).ok_or(EntryError::Extra)?;
    }
    Ok(())
}

/// Checks that the entry is a regular file or a folder, as its name indicates. Ignores the field for the creating
/// system, because not all readers use that field.
fn check_kind(attributes: u32, is_folder: bool) -> Result<(), EntryError> {
    let says_folder = attributes & DOS_FOLDER != 0;
    match attributes >> 16 & MODE_KIND {
        0 if says_folder && !is_folder => Err(EntryError::Special),
        0 => Ok(()),
        MODE_FILE if !is_folder && !says_folder => Ok(()),
        MODE_FOLDER if is_folder => Ok(()),
        _ => Err(EntryError::Special),
    }
}

/// Checks that the files fill the archive without gaps, from the first byte to the central directory.
fn check_row(entries: &[Entry], directory: usize) -> Result<(), ArchiveError> {
    let mut spans: Vec<(usize, usize)> = entries.iter().map(|entry| (entry.start, entry.end)).collect();
    spans.sort_unstable();
    let mut at = 0;
    for (start, end) in spans {
        if start != at {
            return Err(ArchiveError::Layout("its files overlap, or there are bytes before or between them"));
        }
        at = end;
    }
    if at == directory {
        Ok(())
    } else {
        Err(ArchiveError::Layout("there are bytes between its files and its central directory"))
    }
}

/// Escapes and truncates a name for an error message.
pub(super) fn shown(name: &[u8]) -> String {
    const CHARS_MAX: usize = 80;
    let text = String::from_utf8_lossy(name);
    let mut shown: String = text.chars().take(CHARS_MAX).flat_map(char::escape_default).collect();
    if text.chars().count() > CHARS_MAX {
        shown.push('…');
    }
    shown
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
