//! The files that hold what stays of a sandbox, each a file system of its own whose size is the disk limit.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, RenameFlags, SeekFrom, renameat_with};
use rustix::io::Errno;

/// One inode for so many bytes: enough for the small files of a package manager.
const BYTES_PER_INODE: &str = "8192";
/// Of the journal, the smallest that there is.
const JOURNAL_MIB: &str = "size=4";
/// Where the program that makes file systems may be.
const MKFS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];

/// Which template a sandbox is made of. Its image is a layer over it, and no use over the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TemplateKind {
    /// The programs of the host.
    #[default]
    Host,
    /// The system that `monstrum sandbox template build` has made.
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
pub struct Images {
    /// A folder for each base.
    boxes: PathBuf,
    blanks: PathBuf,
    /// Held while a blank is made.
    making: Arc<Mutex<()>>,
}

impl Images {
    /// Images below `folder`. What an earlier life has left half done is removed.
    pub fn open(folder: &Path) -> io::Result<Images> {
        let images = Images { boxes: folder.join("boxes"), blanks: folder.join("blank"), making: Arc::default() };
        let boxes = TemplateKind::ALL.map(|base| images.boxes.join(base.folder()));
        for folder in boxes.iter().chain([&images.blanks]) {
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

    /// The image of a sandbox, and what it is over; `None` where it has none.
    pub fn find(&self, name: &str) -> Option<(PathBuf, TemplateKind)> {
        TemplateKind::ALL.into_iter().map(|base| (self.place(name, base), base)).find(|(image, _)| image.exists())
    }

    /// The names of all that there are.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for base in TemplateKind::ALL {
            for entry in fs::read_dir(self.boxes.join(base.folder()))? {
                let name = entry?.file_name().into_string().ok();
                names.extend(name.filter(|name| name.starts_with("ms-") && !name.contains('.')));
            }
        }
        Ok(names)
    }

    /// Makes an image, whole or not at all.
    pub fn create(&self, name: &str, base: TemplateKind, mib: u32) -> io::Result<()> {
        let blank = self.blank(mib)?;
        let image = self.place(name, base);
        let part = image.with_extension("part");
        let made = copy_sparse(&blank, &part)
            // Never over one that is there, which may be in use.
            .and_then(|()| Ok(renameat_with(CWD, &part, CWD, &image, RenameFlags::NOREPLACE)?));
        if made.is_err() {
            remove(&part)?;
        }
        made
    }

    /// Removes an image; one that is not there is no fault. From the first moment on it is no longer one of [`Self::names`].
    pub fn delete(&self, name: &str) -> io::Result<()> {
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

    /// An empty file system of a size, made once.
    fn blank(&self, mib: u32) -> io::Result<PathBuf> {
        // Of several who need the first one, one makes it.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let blank = self.blanks.join(format!("{mib}.ext4"));
        if blank.exists() {
            return Ok(blank);
        }
        let part = self.blanks.join(format!("{mib}-{}.part", std::process::id()));
        let program =
            mkfs().ok_or_else(|| io::Error::other("mkfs.ext4 is not installed (Debian package e2fsprogs)"))?;
        let file = File::create(&part)?;
        file.set_len(u64::from(mib) << 20)?;
        drop(file);
        let output = Command::new(program)
            .env_clear()
            .args(["-q", "-F", "-b", "4096", "-m", "0", "-i", BYTES_PER_INODE, "-J", JOURNAL_MIB])
            .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", "-L", "sandbox"])
            .arg(&part)
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            remove(&part)?;
            let told = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("mkfs.ext4 failed: {}", told.trim())));
        }
        fs::rename(&part, &blank)?;
        Ok(blank)
    }
}

/// The program that makes file systems.
pub fn mkfs() -> Option<&'static Path> {
    MKFS.iter().map(Path::new).find(|path| path.exists())
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Copies what is there, and leaves out what is not.
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
    fn many_may_be_the_first_of_their_size() {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let images = Images::open(folder.path()).expect("it is opened");
        for mib in [33, 34] {
            let made = |number: u32| images.create(&format!("ms-{mib}-{number}"), TemplateKind::Host, mib);
            std::thread::scope(|scope| {
                let all: Vec<_> = (0..8).map(|number| scope.spawn(move || made(number))).collect();
                all.into_iter().for_each(|one| one.join().expect("it ends").expect("each gets its own"));
            });
        }
        let names = images.names().expect("they are listed");
        assert_eq!(names.len(), 16, "{names:?}");
        let (first, _) = images.find("ms-33-0").expect("it is there");
        let first = fs::read(first).expect("it is read");
        for name in names.iter().filter(|name| name.starts_with("ms-33-")) {
            let (image, _) = images.find(name).expect("it is there");
            assert!(fs::read(image).expect("it is read") == first, "{name} is a whole file system");
        }
        assert_eq!(fs::read_dir(folder.path().join("blank")).expect("it is there").count(), 2, "nothing half done");
    }
}
