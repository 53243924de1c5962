//! Resolves paths beneath the workspace.
//!
//! The kernel resolves a path in one step and rejects every link that leaves the folder, including absolute links. If
//! the kernel rejects a path for that reason, this module walks the path step by step, so that absolute links into the
//! workspace work. Each step opens one name in the previous folder and follows no links.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use monstrum_sandbox::WORKSPACE;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, openat2, readlinkat, statat};
use rustix::io::Errno;

use crate::worker::{FileError, FileErrorKind};

/// The maximum number of links on one path, the same as in the kernel.
const LINKS_MAX: usize = 40;

/// Opens the target of a path.
pub(super) fn open(workspace: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, FileError> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match opened(workspace, path, flags, resolve) {
        Err(Errno::XDEV) => walk(workspace, path, flags),
        opened => Ok(opened?),
    }
}

fn opened(folder: BorrowedFd<'_>, path: &[u8], flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    loop {
        match openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // A concurrent rename prevented the kernel from checking the path.
            Err(Errno::AGAIN) => {}
            opened => return opened,
        }
    }
}

fn walk(workspace: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, FileError> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut rest: VecDeque<Vec<u8>> = names(path).collect();
    let (mut links, mut link) = (0, None);
    while let Some(name) = rest.pop_front() {
        if name == b".." {
            above.pop().ok_or_else(|| leaves(link.as_deref()))?;
            continue;
        }
        let here = above.last().map_or(workspace, AsFd::as_fd);
        let stat = statat(here, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode).is_symlink() {
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP.into());
            }
            let target = readlinkat(here, &*name, Vec::new())?.into_bytes();
            let beneath = match target.strip_prefix(b"/") {
                None => target.as_slice(),
                Some(_) => {
                    above.clear();
                    below_workspace(&target).ok_or_else(|| leaves(Some(&name)))?
                }
            };
            names(beneath).rev().for_each(|name| rest.push_front(name));
            link = Some(name);
            continue;
        }
        if rest.is_empty() {
            return Ok(opened(here, &name, flags, resolve)?);
        }
        let folder = opened(here, &name, OFlags::PATH | OFlags::DIRECTORY, resolve)?;
        above.push(folder);
    }
    Ok(opened(above.last().map_or(workspace, AsFd::as_fd), b".", flags, resolve)?)
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec)
}

fn below_workspace(target: &[u8]) -> Option<&[u8]> {
    let rest = target.strip_prefix(WORKSPACE.as_bytes())?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn leaves(link: Option<&[u8]>) -> FileError {
    let message = match link {
        Some(link) => format!("the link `{}` leaves {WORKSPACE}", link.escape_ascii()),
        None => format!("the path leaves {WORKSPACE}"),
    };
    FileError::new(FileErrorKind::Invalid, message)
}

/// Converts a name to text. Each byte of invalid UTF-8 is written as `\x` and two digits.
pub(super) fn text(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02X}"));
        }
    }
    text
}

/// Decodes a path in the form of [`text`]. Returns `None` if it contains no escaped byte.
pub(super) fn bytes(path: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest, mut is_escaped) = (Vec::new(), path.as_bytes(), false);
    while let Some((first, after)) = rest.split_first() {
        match escaped(rest) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
                is_escaped = true;
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    is_escaped.then_some(bytes)
}

/// Decodes an escaped byte. Accepts only bytes that cannot stand alone in valid UTF-8.
fn escaped(rest: &[u8]) -> Option<u8> {
    let digits = rest.strip_prefix(b"\\x")?.get(..2)?;
    let is_digit = |digit: &u8| digit.is_ascii_digit() || (b'A'..=b'F').contains(digit);
    let byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (digits.iter().all(is_digit) && byte >= 0x80).then_some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_utf8_names_round_trip() {
        for name in [&b"a\xff\xfeb"[..], b"\xe9", b"x\\x41\xff", b"\xed\xa0\x80"] {
            assert_eq!(bytes(&text(name)).as_deref(), Some(name), "{}", text(name));
        }
        assert_eq!(text(b"a\xffb"), "a\\xFFb");
        for plain in ["a", "\\x41", "\\xff", "\\x8", "é", "a\\"] {
            assert_eq!((bytes(plain), text(plain.as_bytes()).as_str()), (None, plain));
        }
    }
}
