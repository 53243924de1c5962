//! The disk images of sandboxes. Each image is a file system whose size is the disk limit of its sandbox.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monstrum_sandbox::SandboxName;
use monstrum_types::UtcMillis;
use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags, SeekFrom, renameat_with};
use rustix::io::Errno;

use crate::programs;

/// The number of bytes for each inode. The value yields enough inodes for the small files of a package manager.
const BYTES_PER_INODE: &str = "8192";
/// The smallest journal that mkfs.ext4 accepts.
const JOURNAL_MIB: &str = "size=4";
/// The folder of images of sandboxes, and the folder of images that are set aside.
const BOXES: &str = "boxes";
const ASIDE: &str = "aside";
/// The possible paths of mkfs.ext4.
const MKFS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];

/// The base of a sandbox. The sandbox's image is a layer on top of this base and cannot be used with the other base.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TemplateKind {
    /// The programs of the host.
    #[default]
    Host,
    /// The system made by `monstrum sandbox template build`.
    Built,
}

impl TemplateKind {
    const ALL: [TemplateKind; 2] = [TemplateKind::Host, TemplateKind::Built];

    fn folder(self) -> &'static str {
        match self {
            TemplateKind::Host => "host",
            TemplateKind::Built => "built",
        }
    }
}

/// The images of one server.
#[derive(Debug, Clone)]
pub(crate) struct Images {
    /// One folder for each base.
    boxes: PathBuf,
    blanks: PathBuf,
    /// One folder for each base; files are named `{name}.{since_ms}`.
    aside: PathBuf,
    /// The lock for making an empty image.
    making: Arc<Mutex<()>>,
}

impl Images {
    /// Opens the images below `folder` and removes incomplete images that a previous process left behind.
    pub(crate) fn open(folder: &Path) -> io::Result<Images> {
        let images = Images {
            boxes: folder.join(BOXES),
            blanks: folder.join("blank"),
            aside: folder.join(ASIDE),
            making: Arc::default(),
        };
        let of_bases = |folder: &Path| TemplateKind::ALL.map(|base| folder.join(base.folder()));
        for folder in of_bases(&images.boxes).iter().chain(&of_bases(&images.aside)).chain([&images.blanks]) {
            fs::create_dir_all(folder)?;
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "part" || extension == "gone") {
                    remove(&path)?;
                }
            }
        }
        Ok(images)
    }

    fn place(&self, name: &str, base: TemplateKind) -> PathBuf {
        self.boxes.join(base.folder()).join(name)
    }

    /// Returns the image of a sandbox and its base, or `None` if the sandbox has no image.
    pub(crate) fn find(&self, name: &str) -> Option<(PathBuf, TemplateKind)> {
        TemplateKind::ALL.into_iter().map(|base| (self.place(name, base), base)).find(|(image, _)| image.exists())
    }

    /// Returns the names of all sandboxes that have an image.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        Ok(images_in(&self.boxes)?.into_iter().map(|(name, _)| name.to_string()).collect())
    }

    /// Returns the disk space of all images of a workspace, in bytes.
    pub(crate) fn bytes_of(&self, workspace: &str) -> io::Result<u64> {
        let mut bytes = 0;
        for (_, path) in images_in(&self.boxes)?.iter().filter(|(name, _)| name.is_of(workspace)) {
            bytes += bytes_on_disk(path)?;
        }
        Ok(bytes)
    }

    /// Sets an image aside. Does nothing if the image does not exist.
    pub(crate) fn set_aside(&self, name: &str, now: UtcMillis) -> io::Result<()> {
        for base in TemplateKind::ALL {
            let aside = self.aside.join(base.folder()).join(format!("{name}.{}", now.0));
            match renameat_with(CWD, self.place(name, base), CWD, &aside, RenameFlags::NOREPLACE) {
                Err(Errno::NOENT) => {}
                renamed => renamed?,
            }
        }
        Ok(())
    }

    /// Restores the image that was last set aside under this name at `since` or later, and returns whether such
    /// an image existed.
    pub(crate) fn restore(&self, name: &str, since: UtcMillis) -> io::Result<bool> {
        let mut kept = kept_aside(&self.aside)?;
        kept.retain(|kept| kept.name == name && kept.since >= since);
        let Some(newest) = kept.into_iter().max_by_key(|kept| kept.since) else { return Ok(false) };
        if self.find(name).is_some() {
            return Ok(false);
        }
        renameat_with(CWD, &newest.path, CWD, self.place(name, newest.base), RenameFlags::NOREPLACE)?;
        Ok(true)
    }

    /// Deletes the images that were set aside before `before`, and returns the number of deleted images. If a deletion
    /// fails, the function continues with the other images and then returns the first error.
    pub(crate) fn delete_aside(&self, before: UtcMillis) -> io::Result<usize> {
        let mut kept = kept_aside(&self.aside)?;
        kept.retain(|kept| kept.since < before);
        let removed: Vec<io::Result<()>> = kept.iter().map(|kept| remove(&kept.path)).collect();
        removed.into_iter().collect::<io::Result<Vec<()>>>().map(|removed| removed.len())
    }

    /// Creates an image atomically.
    pub(crate) fn create(&self, name: &str, base: TemplateKind, mib: u32) -> io::Result<()> {
        let blank = self.blank(mib)?;
        let image = self.place(name, base);
        let part = image.with_extension("part");
        let made = copy_sparse(&blank, &part)
            // Never replaces an existing image, which may be in use.
            .and_then(|()| Ok(renameat_with(CWD, &part, CWD, &image, RenameFlags::NOREPLACE)?));
        if made.is_err() {
            remove(&part)?;
        }
        made
    }

    /// Deletes an image if it exists. [`Self::names`] omits the image from the start of the deletion.
    pub(crate) fn delete(&self, name: &str) -> io::Result<()> {
        for base in TemplateKind::ALL {
            let image = self.place(name, base);
            let gone = image.with_extension("gone");
            match fs::rename(image, &gone) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed?,
            }
            remove(&gone)?;
        }
        Ok(())
    }

    /// Returns the path of an empty file system of the given size. The first call for a size creates the file system.
    fn blank(&self, mib: u32) -> io::Result<PathBuf> {
        // Concurrent calls wait until the first call has made the file system.
        let _making = self.making.lock();
        let blank = self.blanks.join(format!("{mib}.ext4"));
        if blank.exists() {
            return Ok(blank);
        }
        let part = self.blanks.join(format!("{mib}-{}.part", std::process::id()));
        let program = mkfs().ok_or_else(|| {
            io::Error::other("mkfs.ext4 is not installed; install it with `apt-get install e2fsprogs`")
        })?;
        let file = File::create(&part)?;
        file.set_len(u64::from(mib) << 20)?;
        drop(file);
        let mut mkfs = programs::command(program);
        mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-i", BYTES_PER_INODE, "-J", JOURNAL_MIB]);
        mkfs.args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-L", "sandbox"]).arg(&part);
        if let Err(error) = programs::run(mkfs, "") {
            remove(&part)?;
            return Err(io::Error::other(error));
        }
        fs::rename(&part, &blank)?;
        Ok(blank)
    }
}

/// The images in a server's folder.
#[derive(Debug, Clone, Default)]
pub struct KeptImages {
    /// The sandboxes that have an image, and the disk space of each image in bytes.
    pub images: Vec<(SandboxName, u64)>,
    /// Images that are set aside.
    pub aside: Vec<KeptAside>,
}

/// An image that is set aside.
#[derive(Debug, Clone)]
pub struct KeptAside {
    /// The name of the sandbox to which the image belonged.
    pub name: String,
    pub since: UtcMillis,
    pub path: PathBuf,
    base: TemplateKind,
}

/// Reads the folder of a server without changing it. The folder need not exist, and the server may be running.
pub fn kept_images(folder: &Path) -> io::Result<KeptImages> {
    let images = images_in(&folder.join(BOXES))?;
    let images = images.into_iter().map(|(name, path)| Ok((name, bytes_on_disk(&path)?)));
    Ok(KeptImages { images: images.collect::<io::Result<_>>()?, aside: kept_aside(&folder.join(ASIDE))? })
}

fn images_in(boxes: &Path) -> io::Result<Vec<(SandboxName, PathBuf)>> {
    let image = |(name, path, _): (String, PathBuf, TemplateKind)| Some((name.parse().ok()?, path));
    Ok(files_of_bases(boxes)?.into_iter().filter_map(image).collect())
}

/// Returns the disk space that an image uses: less than its size if the image is sparse, and 0 if the image does not
/// exist.
fn bytes_on_disk(image: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    match fs::metadata(image) {
        Ok(metadata) => Ok(metadata.blocks() * 512),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn kept_aside(folder: &Path) -> io::Result<Vec<KeptAside>> {
    let kept = |(file, path, base): (String, PathBuf, TemplateKind)| {
        let (name, since) = file.rsplit_once('.')?;
        Some(KeptAside { name: name.to_owned(), since: UtcMillis(since.parse().ok()?), path, base })
    };
    Ok(files_of_bases(folder)?.into_iter().filter_map(kept).collect())
}

/// Returns the files in the folders of both bases, each with its name, path and base.
fn files_of_bases(folder: &Path) -> io::Result<Vec<(String, PathBuf, TemplateKind)>> {
    let mut files = Vec::new();
    for base in TemplateKind::ALL {
        let entries = match fs::read_dir(folder.join(base.folder())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            files.extend(entry.file_name().into_string().ok().map(|name| (name, entry.path(), base)));
        }
    }
    Ok(files)
}

/// Returns the path of mkfs.ext4, if it is installed.
pub(crate) fn mkfs() -> Option<&'static Path> {
    MKFS.iter().map(Path::new).find(|path| path.exists())
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Copies a file and preserves its holes.
fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let from = File::open(from)?;
    let to = File::options().write(true).create(true).truncate(true).open(to)?;
    to.set_len(from.metadata()?.len())?;
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(()),
            start => start?,
        };
        let end = rustix::fs::seek(&from, SeekFrom::Hole(start))?;
        let (mut read, mut written) = (start, start);
        while read < end {
            let length = usize::try_from(end - read).unwrap_or(usize::MAX);
            if rustix::fs::copy_file_range(&from, Some(&mut read), &to, Some(&mut written), length)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_set_aside_is_kept_until_it_is_old_or_restored() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let images = Images::open(folder.path()).expect("it is opened");
        let (name, at) = ("ms-aa-1", |ms| UtcMillis(ms));
        let write = |text: &str| fs::write(images.place(name, TemplateKind::Built), text).expect("it is written");
        write("older");
        images.set_aside(name, at(1000)).expect("it is moved");
        write("newer");
        images.set_aside(name, at(2000)).expect("it is moved");
        images.set_aside(name, at(3000)).expect("a missing image is not an error");
        let kept = kept_images(folder.path()).expect("it is read");
        let mut since: Vec<i64> = kept.aside.iter().map(|kept| kept.since.0).collect();
        since.sort_unstable();
        assert_eq!((kept.images.len(), since), (0, vec![1000, 2000]));
        let images = Images::open(folder.path()).expect("a start keeps images that are set aside");
        assert!(!images.restore(name, at(2001)).expect("it is looked for"), "a later sandbox got the older files");
        assert!(!images.restore("ms-aa-2", at(0)).expect("it is looked for"), "the files belong to another sandbox");
        assert!(images.restore(name, at(2000)).expect("it is moved back"));
        let (image, base) = images.find(name).expect("it is there");
        assert_eq!((fs::read_to_string(image).expect("it is read"), base), ("newer".to_owned(), TemplateKind::Built));
        assert!(!images.restore(name, at(0)).expect("it is looked for"), "an existing image was replaced");
        assert_eq!(images.delete_aside(at(1000)).expect("they are looked at"), 0);
        assert_eq!(images.delete_aside(at(1001)).expect("it is removed"), 1);
        assert!(kept_images(folder.path()).expect("it is read").aside.is_empty());
        assert!(images.find(name).is_some());
    }

    #[test]
    fn disk_space_of_a_workspace_is_that_of_its_images() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let images = Images::open(folder.path()).expect("it is opened");
        let write = |name: &str, base, bytes: usize| {
            let image = images.place(name, base);
            fs::write(&image, vec![b'x'; bytes]).expect("it is written");
            // A hole uses no disk space.
            File::options().write(true).open(image).and_then(|file| file.set_len(1 << 30)).expect("it grows");
        };
        write("ms-aa-b-1", TemplateKind::Host, 64 << 10);
        write("ms-aa-b-2", TemplateKind::Built, 64 << 10);
        write("ms-aa-3", TemplateKind::Host, 64 << 10);
        let bytes = images.bytes_of("aa-b").expect("they are looked at");
        assert!((128 << 10..256 << 10).contains(&bytes), "{bytes}");
        assert_eq!(images.bytes_of("aa-b-1").expect("they are looked at"), 0);
        let kept = kept_images(folder.path()).expect("it is read");
        assert_eq!((kept.images.len(), kept.images.iter().map(|(_, bytes)| bytes).sum::<u64>() > bytes), (3, true));
    }

    #[test]
    fn one_undeletable_image_keeps_no_others() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let images = Images::open(folder.path()).expect("it is opened");
        for name in ["ms-aa-1", "ms-aa-2", "ms-aa-3"] {
            fs::write(images.place(name, TemplateKind::Host), "x").expect("it is written");
            images.set_aside(name, UtcMillis(1000)).expect("it is moved");
        }
        // A folder cannot be deleted with `remove_file`.
        let stuck = kept_images(folder.path()).expect("it is read").aside[0].path.clone();
        fs::remove_file(&stuck).expect("it is removed");
        fs::create_dir(&stuck).expect("it is made");
        assert!(images.delete_aside(UtcMillis(2000)).is_err());
        let left: Vec<_> =
            kept_images(folder.path()).expect("it is read").aside.into_iter().map(|kept| kept.path).collect();
        assert_eq!(left, [stuck]);
    }

    #[test]
    fn concurrent_first_images_of_a_size_are_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let images = Images::open(folder.path()).expect("it is opened");
        for mib in [33, 34] {
            let made = |number: u32| images.create(&format!("ms-{mib}-{number}"), TemplateKind::Host, mib);
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..8).map(|number| scope.spawn(move || made(number))).collect();
                all.into_iter().for_each(|one| one.join().expect("it ends").expect("each thread creates an image"));
            });
        }
        let names = images.names().expect("they are listed");
        assert_eq!(names.len(), 16, "{names:?}");
        let (first, _) = images.find("ms-33-0").expect("it is there");
        let first = fs::read(first).expect("it is read");
        for name in names.iter().filter(|name| name.starts_with("ms-33-")) {
            let (image, _) = images.find(name).expect("it is there");
            assert!(fs::read(image).expect("it is read") == first, "{name} is not a complete file system");
        }
        assert_eq!(
            fs::read_dir(folder.path().join("blank")).expect("it is there").count(),
            2,
            "an incomplete image was left"
        );
    }
}
