//! Reads a plugin's folder. The content of the folder becomes code that acts with credentials. Therefore this module
//! rejects symbolic links, and folders and files that other users can write. Every read has a limit. An open folder
//! remembers the identity of everything that was opened in it.

mod identity;
pub mod staging;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use monstrum_types::UtcMillis;
use parking_lot::Mutex;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};

pub(super) use identity::{FileId, Opened};

/// The manifest's file name.
pub const MANIFEST: &str = "monstrum.yaml";
/// The maximum size of a manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u64 = 256 << 10;
/// The maximum size of a component, in bytes.
pub const COMPONENT_BYTES_MAX: u64 = 32 << 20;
/// The maximum size of a translation, in bytes. A manifest has the same maximum.
pub const LOCALE_BYTES_MAX: u64 = 256 << 10;
/// The maximum size of an icon, in bytes.
pub const ICON_BYTES_MAX: u64 = 64 << 10;
/// The maximum number of translations. Plugins have far fewer translations.
pub const LOCALES_MAX: usize = 100;

/// The reason why a folder cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{} does not exist", path.display())]
    Absent { path: PathBuf },
    #[error("{} is a symbolic link; replace it with the files themselves", path.display())]
    Symlink { path: PathBuf },
    #[error("{} is writable by group or others (mode {mode:03o}); run: chmod go-w {}", path.display(), path.display())]
    WritableByOthers { path: PathBuf, mode: u32 },
    #[error("{} is not a {wanted}", path.display())]
    WrongKind { path: PathBuf, wanted: &'static str },
    #[error("{} has {bytes} bytes; at most {bytes_max} are allowed", path.display())]
    TooLarge { path: PathBuf, bytes: u64, bytes_max: u64 },
    #[error("{} is not UTF-8 text", path.display())]
    NotText { path: PathBuf },
    #[error("{} has more than {LOCALES_MAX} translations", path.display())]
    TooManyLocales { path: PathBuf },
    #[error("{} is neither a PNG nor a WebP image", path.display())]
    NotAPicture { path: PathBuf },
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

/// The icon of a plugin.
#[derive(Clone)]
pub struct Icon {
    /// The media type of the icon, detected from its content.
    pub media_type: &'static str,
    pub bytes: Vec<u8>,
}

/// An open folder. Its files are opened relative to this folder and never through a link.
pub struct PluginFolder {
    path: PathBuf,
    folder: OwnedFd,
    opened: Mutex<Vec<Opened>>,
}

impl PluginFolder {
    /// Opens the plugin's folder `path`.
    pub fn open(path: &Path) -> Result<PluginFolder, FolderError> {
        PluginFolder::open_as(path, path)
    }

    /// Opens the folder `path`. Errors show the folder as `name`.
    pub fn open_as(path: &Path, name: &Path) -> Result<PluginFolder, FolderError> {
        let (folder, stat) = open_checked(CWD, path, name, OFlags::DIRECTORY, "folder")?;
        let own = Opened { path: String::new(), is_folder: true, id: Some(FileId::of(&stat)) };
        Ok(PluginFolder { path: name.to_owned(), folder, opened: Mutex::new(vec![own]) })
    }

    /// Returns everything that was opened in this folder, if nothing has changed since. `began` is a time before the
    /// folder was opened. Returns `None` if a later change might not be detected.
    pub(super) fn opened(&self, began: UtcMillis) -> Option<Vec<Opened>> {
        let opened = self.opened.lock().clone();
        (opened.iter().all(|one| one.is_settled(began)) && self.is_unchanged(&opened)).then_some(opened)
    }

    /// Returns whether everything in `opened` can still be read and has the same identity.
    pub(super) fn is_unchanged(&self, opened: &[Opened]) -> bool {
        opened.iter().all(|one| {
            // Changes of the folder itself are detected on the descriptor, because its path may name another folder.
            let path = if one.path.is_empty() { "." } else { &one.path };
            let (flags, wanted) = if one.is_folder { (OFlags::DIRECTORY, "folder") } else { (OFlags::empty(), "file") };
            let found = open_checked(&self.folder, Path::new(path), &self.path, flags, wanted);
            match (found, one.id) {
                (Ok((_, stat)), Some(id)) => FileId::of(&stat) == id,
                (Err(FolderError::Absent { .. }), None) => true,
                _ => false,
            }
        })
    }

    /// Reads the file `name` if it is still the file `id`.
    pub(super) fn bytes_of(&self, name: &str, id: FileId, bytes_max: u64) -> Result<Option<Vec<u8>>, FolderError> {
        let bytes = self.bytes(name, bytes_max)?;
        let is_same = self.opened.lock().iter().any(|one| one.path == name && one.id == Some(id));
        Ok(is_same.then_some(bytes))
    }

    fn note(&self, path: &str, is_folder: bool, stat: Option<&Stat>) {
        self.opened.lock().push(Opened { path: path.to_owned(), is_folder, id: stat.map(FileId::of) });
    }

    /// Reads a file of the folder as text.
    pub fn text(&self, name: &str, bytes_max: u64) -> Result<String, FolderError> {
        let bytes = self.bytes(name, bytes_max)?;
        String::from_utf8(bytes).map_err(|_| FolderError::NotText { path: self.path.join(name) })
    }

    /// Reads a file of the folder.
    pub fn bytes(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, FolderError> {
        let (bytes, stat) = read_capped(&self.folder, name, &self.path.join(name), bytes_max)?;
        self.note(name, false, Some(&stat));
        Ok(bytes)
    }

    /// Reads the icon that a manifest names. Returns `None` if the manifest names a symbol instead of a file.
    pub fn icon(&self, icon: &str) -> Result<Option<Icon>, FolderError> {
        if !icon.contains('.') {
            return Ok(None);
        }
        let bytes = self.bytes(icon, ICON_BYTES_MAX)?;
        let media_type = if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            "image/png"
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            "image/webp"
        } else {
            return Err(FolderError::NotAPicture { path: self.path.join(icon) });
        };
        Ok(Some(Icon { media_type, bytes }))
    }

    /// Reads the translations as JSON texts by language tag. Returns an empty map if the folder does not exist.
    pub fn locales(&self, directory: &str) -> Result<BTreeMap<String, String>, FolderError> {
        let path = self.path.join(directory);
        let folder = match open_checked(&self.folder, Path::new(directory), &path, OFlags::DIRECTORY, "folder") {
            Ok((folder, stat)) => {
                self.note(directory, true, Some(&stat));
                folder
            }
            Err(FolderError::Absent { .. }) => {
                self.note(directory, true, None);
                return Ok(BTreeMap::new());
            }
            Err(error) => return Err(error),
        };
        let read = |source: rustix::io::Errno| FolderError::Read { path: path.clone(), source: source.into() };
        let mut locales = BTreeMap::new();
        for entry in rustix::fs::Dir::read_from(&folder).map_err(read)? {
            let entry = entry.map_err(read)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(tag) = name.strip_suffix(".json") else { continue };
            if locales.len() == LOCALES_MAX {
                return Err(FolderError::TooManyLocales { path });
            }
            let file = path.join(&name);
            let (bytes, stat) = read_capped(&folder, &name, &file, LOCALE_BYTES_MAX)?;
            self.note(&format!("{directory}/{name}"), false, Some(&stat));
            let text = String::from_utf8(bytes).map_err(|_| FolderError::NotText { path: file })?;
            locales.insert(tag.to_owned(), text);
        }
        Ok(locales)
    }
}

/// Rejects a plugins folder that other users can write, because a new subfolder is new code.
pub fn check_plugins_dir(path: &Path) -> Result<(), FolderError> {
    // The path may be a link that the operator made, so this function checks the target of the link.
    let real = path.canonicalize().map_err(|source| FolderError::Read { path: path.to_owned(), source })?;
    open_checked(CWD, &real, path, OFlags::DIRECTORY, "folder").map(|_| ())
}

fn read_capped(folder: &OwnedFd, name: &str, path: &Path, bytes_max: u64) -> Result<(Vec<u8>, Stat), FolderError> {
    let (file, stat) = open_checked(folder, Path::new(name), path, OFlags::empty(), "file")?;
    let too_large = |bytes| FolderError::TooLarge { path: path.to_owned(), bytes, bytes_max };
    let bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if bytes > bytes_max {
        return Err(too_large(bytes));
    }
    let mut content = Vec::new();
    // The file may grow while it is read, so the limit applies to the bytes that were read.
    let read = File::from(file).take(bytes_max + 1).read_to_end(&mut content);
    read.map_err(|source| FolderError::Read { path: path.to_owned(), source })?;
    if content.len() as u64 > bytes_max {
        return Err(too_large(content.len() as u64));
    }
    Ok((content, stat))
}

/// Opens `name` beneath `folder` without following links. Checks the opened file and not the path.
fn open_checked(
    folder: impl std::os::fd::AsFd,
    name: &Path,
    path: &Path,
    flags: OFlags,
    wanted: &'static str,
) -> Result<(OwnedFd, Stat), FolderError> {
    let fail = |error: rustix::io::Errno| match error {
        rustix::io::Errno::NOENT => FolderError::Absent { path: path.to_owned() },
        rustix::io::Errno::LOOP => FolderError::Symlink { path: path.to_owned() },
        rustix::io::Errno::NOTDIR if is_symlink(path) => FolderError::Symlink { path: path.to_owned() },
        rustix::io::Errno::NOTDIR => FolderError::WrongKind { path: path.to_owned(), wanted },
        other => FolderError::Read { path: path.to_owned(), source: other.into() },
    };
    // `NONBLOCK` prevents a FIFO in the folder from blocking the scan.
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let resolve = if name.is_absolute() {
        ResolveFlags::NO_MAGICLINKS
    } else {
        ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH
    };
    let opened = rustix::fs::openat2(folder, name, flags, Mode::empty(), resolve).map_err(fail)?;
    let stat = rustix::fs::fstat(&opened).map_err(fail)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let expected = if wanted == "folder" { FileType::Directory } else { FileType::RegularFile };
    if kind != expected {
        return Err(FolderError::WrongKind { path: path.to_owned(), wanted });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o022 != 0 {
        return Err(FolderError::WritableByOthers { path: path.to_owned(), mode });
    }
    Ok((opened, stat))
}

fn is_symlink(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("github");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(path.join(MANIFEST), "name: github\n").unwrap();
        std::fs::set_permissions(path.join(MANIFEST), PermissionsExt::from_mode(0o644)).unwrap();
        (parent, path)
    }

    fn text(path: &Path) -> Result<String, FolderError> {
        PluginFolder::open(path)?.text(MANIFEST, 64)
    }

    #[test]
    fn a_plain_file_is_read() {
        let (_parent, path) = folder();
        assert_eq!(text(&path).unwrap(), "name: github\n");
        assert!(PluginFolder::open(&path).unwrap().locales("locales").unwrap().is_empty());
    }

    #[test]
    fn the_type_of_an_icon_is_detected_from_its_bytes() {
        let (_parent, path) = folder();
        let icon = |content: &[u8]| {
            std::fs::write(path.join("icon.png"), content).unwrap();
            PluginFolder::open(&path).unwrap().icon("icon.png")
        };
        assert_eq!(icon(b"\x89PNG\r\n\x1a\nrest").unwrap().unwrap().media_type, "image/png");
        assert_eq!(icon(b"RIFF\0\0\0\0WEBPrest").unwrap().unwrap().media_type, "image/webp");
        assert!(matches!(icon(b"<svg onload='alert(1)'/>"), Err(FolderError::NotAPicture { .. })));
        assert!(matches!(icon(&[0; (64 << 10) + 1]), Err(FolderError::TooLarge { .. })));
        let opened = PluginFolder::open(&path).unwrap();
        assert!(matches!(opened.icon("other.png"), Err(FolderError::Absent { .. })));
        assert!(opened.icon("github").unwrap().is_none() && opened.icon("").unwrap().is_none());
    }

    #[test]
    fn files_that_others_can_write_are_rejected() {
        for (target, mode) in [("", 0o775), ("", 0o757), (MANIFEST, 0o664), (MANIFEST, 0o646)] {
            let (_parent, path) = folder();
            std::fs::set_permissions(path.join(target), PermissionsExt::from_mode(mode)).unwrap();
            let error = text(&path).unwrap_err();
            assert!(matches!(error, FolderError::WritableByOthers { .. }), "{target} {mode:o}: {error}");
        }
    }

    #[test]
    fn links_are_rejected() {
        let (parent, path) = folder();
        let linked = parent.path().join("linked");
        symlink(&path, &linked).unwrap();
        assert!(matches!(PluginFolder::open(&linked), Err(FolderError::Symlink { .. })));

        std::fs::rename(path.join(MANIFEST), path.join("real")).unwrap();
        symlink("real", path.join(MANIFEST)).unwrap();
        assert!(matches!(text(&path), Err(FolderError::Symlink { .. })));
    }

    #[test]
    fn a_folder_in_place_of_a_file_and_a_file_over_the_limit_are_named() {
        let (_parent, path) = folder();
        std::fs::create_dir(path.join("plugin.wasm")).unwrap();
        let opened = PluginFolder::open(&path).unwrap();
        assert!(matches!(opened.bytes("plugin.wasm", 9), Err(FolderError::WrongKind { wanted: "file", .. })));
        assert!(matches!(opened.bytes(MANIFEST, 9), Err(FolderError::TooLarge { bytes: 13, bytes_max: 9, .. })));
        assert!(matches!(opened.bytes("absent", 9), Err(FolderError::Absent { .. })));
    }

    /// A time after all changes, for tests that do not depend on the clock.
    const LATER: UtcMillis = UtcMillis(i64::MAX);

    /// Waits until a new file gets a later time of change than the files that exist.
    fn wait_for_the_clock(path: &Path) {
        let changed = |path: &Path| FileId::of(&rustix::fs::stat(path).unwrap());
        let probe = path.with_extension("probe");
        std::fs::write(&probe, "").unwrap();
        let before = changed(&probe);
        while changed(&probe) == before {
            std::fs::write(&probe, "").unwrap();
            std::fs::set_permissions(&probe, PermissionsExt::from_mode(0o600)).unwrap();
        }
    }

    #[test]
    fn a_change_of_anything_that_was_opened_is_detected() {
        let write = |path: PathBuf, text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
        };
        type Edit = fn(&Path);
        let changes: [(&str, Edit); 8] = [
            ("the content", |path| std::fs::write(path.join(MANIFEST), "name: gitlab\n").unwrap()),
            ("another file", |path| {
                std::fs::write(path.join("new"), "name: github\n").unwrap();
                std::fs::rename(path.join("new"), path.join(MANIFEST)).unwrap();
            }),
            ("the permissions", |path| {
                std::fs::set_permissions(path.join(MANIFEST), PermissionsExt::from_mode(0o600)).unwrap();
            }),
            ("a removal", |path| std::fs::remove_file(path.join(MANIFEST)).unwrap()),
            ("a translation", |path| std::fs::write(path.join("locales/de.json"), "{ }").unwrap()),
            ("a new translation", |path| std::fs::write(path.join("locales/fr.json"), "{}").unwrap()),
            ("a new folder", |path| std::fs::create_dir(path.join("other")).unwrap()),
            ("a link", |path| {
                std::fs::rename(path.join("locales"), path.join("real")).unwrap();
                symlink("real", path.join("locales")).unwrap();
            }),
        ];
        for (what, change) in changes {
            let (_parent, path) = folder();
            std::fs::create_dir(path.join("locales")).unwrap();
            std::fs::set_permissions(path.join("locales"), PermissionsExt::from_mode(0o755)).unwrap();
            write(path.join("locales/de.json"), "{}\n");
            let read = PluginFolder::open(&path).unwrap();
            read.text(MANIFEST, 64).unwrap();
            read.locales("locales").unwrap();
            assert!(read.locales("other").unwrap().is_empty());
            let opened = read.opened(LATER).unwrap();
            assert!(PluginFolder::open(&path).unwrap().is_unchanged(&opened), "{what}");
            assert!(read.opened(UtcMillis(0)).is_none(), "the files are newer than the read");
            wait_for_the_clock(&path);
            change(&path);
            assert!(!PluginFolder::open(&path).unwrap().is_unchanged(&opened), "{what}");
            assert!(read.opened(LATER).is_none(), "{what}");
        }
    }

    #[test]
    fn only_the_same_file_is_read_again() {
        let (_parent, path) = folder();
        let read = PluginFolder::open(&path).unwrap();
        read.text(MANIFEST, 64).unwrap();
        let id = read.opened(LATER).unwrap().iter().find(|one| one.path == MANIFEST).unwrap().id.unwrap();
        let again = || PluginFolder::open(&path).unwrap().bytes_of(MANIFEST, id, 64).unwrap();
        assert_eq!(again().unwrap(), b"name: github\n");
        std::fs::write(path.join(MANIFEST), "name: gitlab, version: 2\n").unwrap();
        assert_eq!(again(), None);
    }
}
