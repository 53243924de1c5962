//! ZIP archives, built record by record, with content that only an attacker would write.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// The fields that an entry has twice, in the local and in the central record. The two records may differ.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) name: Vec<u8>,
    pub(super) flags: u16,
    pub(super) method: u16,
    pub(super) crc: u32,
    pub(super) packed: u32,
    pub(super) size: u32,
    pub(super) extra: Vec<u8>,
}

/// An entry of an archive.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) local: Record,
    pub(super) central: Record,
    pub(super) data: Vec<u8>,
    /// External attributes.
    pub(super) attributes: u32,
    pub(super) disk: u16,
    /// Bytes before the entry that belong to no record.
    pub(super) gap: Vec<u8>,
    /// The offset in the central directory, if it differs from the entry's real offset.
    pub(super) offset: Option<u32>,
}

impl Entry {
    /// Creates a plain file, stored without compression.
    pub(super) fn file(name: impl AsRef<[u8]>, content: &[u8]) -> Entry {
        Entry::new(name.as_ref(), content, content.to_vec(), 0)
    }

    /// Creates a plain file, deflated.
    pub(super) fn deflated(name: impl AsRef<[u8]>, content: &[u8]) -> Entry {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(content).expect("a vector takes everything");
        let data = encoder.finish().expect("a vector takes everything");
        Entry::new(name.as_ref(), content, data, 8)
    }

    /// Creates an entry whose mode bits state that it is not a file.
    pub(super) fn special(name: impl AsRef<[u8]>, content: &[u8], kind: u32) -> Entry {
        Entry { attributes: (kind | 0o777) << 16, ..Entry::file(name, content) }
    }

    fn new(name: &[u8], content: &[u8], data: Vec<u8>, method: u16) -> Entry {
        let record = Record {
            name: name.to_vec(),
            flags: 0,
            method,
            crc: crc32(content),
            packed: u32::try_from(data.len()).expect("it is small"),
            size: u32::try_from(content.len()).expect("it is small"),
            extra: Vec::new(),
        };
        let attributes = 0o100_644 << 16;
        let (local, central) = (record.clone(), record);
        Entry { local, central, data, attributes, disk: 0, gap: Vec::new(), offset: None }
    }

    /// Changes both records in the same way.
    pub(super) fn both(mut self, change: impl Fn(&mut Record)) -> Entry {
        change(&mut self.local);
        change(&mut self.central);
        self
    }

    /// Changes only the local record, before the data.
    pub(super) fn locally(mut self, change: impl Fn(&mut Record)) -> Entry {
        change(&mut self.local);
        self
    }
}

/// The fields of an archive's end record.
#[derive(Default)]
pub(super) struct End {
    pub(super) count: Option<u16>,
    pub(super) disk: u16,
    pub(super) offset: Option<u32>,
    pub(super) comment: Vec<u8>,
    /// Bytes between the central directory and the end record.
    pub(super) gap: Vec<u8>,
    pub(super) marker: bool,
}

/// Builds an archive with correct records.
pub(super) fn zip(entries: &[Entry]) -> Vec<u8> {
    zip_ending(entries, &End::default())
}

pub(super) fn zip_ending(entries: &[Entry], end: &End) -> Vec<u8> {
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for entry in entries {
        archive.extend_from_slice(&entry.gap);
        let offset = entry.offset.unwrap_or(u32::try_from(archive.len()).expect("it is small"));
        archive.extend_from_slice(b"PK\x03\x04\x14\0");
        record(&mut archive, &entry.local);
        lengths(&mut archive, &entry.local);
        archive.extend_from_slice(&entry.local.name);
        archive.extend_from_slice(&entry.local.extra);
        archive.extend_from_slice(&entry.data);

        directory.extend_from_slice(b"PK\x01\x02\x14\x03\x14\0");
        record(&mut directory, &entry.central);
        lengths(&mut directory, &entry.central);
        directory.extend_from_slice(&[0; 2]);
        directory.extend_from_slice(&entry.disk.to_le_bytes());
        directory.extend_from_slice(&[0; 2]);
        directory.extend_from_slice(&entry.attributes.to_le_bytes());
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(&entry.central.name);
        directory.extend_from_slice(&entry.central.extra);
    }
    let offset = end.offset.unwrap_or(u32::try_from(archive.len()).expect("it is small"));
    let size = u32::try_from(directory.len()).expect("it is small");
    archive.extend_from_slice(&directory);
    archive.extend_from_slice(&end.gap);
    let count = end.count.unwrap_or(u16::try_from(entries.len()).expect("they are few"));
    archive.extend_from_slice(b"PK\x05\x06");
    archive.extend_from_slice(&end.disk.to_le_bytes());
    archive.extend_from_slice(&[0; 2]);
    archive.extend_from_slice(&count.to_le_bytes());
    archive.extend_from_slice(&count.to_le_bytes());
    archive.extend_from_slice(&if end.marker { u32::MAX } else { size }.to_le_bytes());
    archive.extend_from_slice(&if end.marker { u32::MAX } else { offset }.to_le_bytes());
    archive.extend_from_slice(&u16::try_from(end.comment.len()).expect("it is short").to_le_bytes());
    archive.extend_from_slice(&end.comment);
    archive
}

fn record(archive: &mut Vec<u8>, record: &Record) {
    archive.extend_from_slice(&record.flags.to_le_bytes());
    archive.extend_from_slice(&record.method.to_le_bytes());
    // The date is 1 January 1980.
    archive.extend_from_slice(&[0, 0, 0x21, 0]);
    archive.extend_from_slice(&record.crc.to_le_bytes());
    archive.extend_from_slice(&record.packed.to_le_bytes());
    archive.extend_from_slice(&record.size.to_le_bytes());
}

fn lengths(archive: &mut Vec<u8>, record: &Record) {
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).expect("names are short").to_le_bytes();
    archive.extend_from_slice(&length(&record.name));
    archive.extend_from_slice(&length(&record.extra));
}

/// Builds an extra field.
pub(super) fn extra(id: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).expect("it is short");
    [id.to_le_bytes().as_slice(), &length.to_le_bytes(), content].concat()
}

fn crc32(content: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(content);
    crc.sum()
}
