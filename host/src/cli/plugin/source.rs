//! An author's folder, which contains the manifest, translations and built component of a plugin beside its sources.
//! This module copies the files that a server loads into a plugins folder.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use monstrum_manifest::Manifest;
use rustix::fs::{CWD, RenameFlags};

use super::super::failure::Failure;
use super::faults;
use monstrum_core::plugins::folder::{COMPONENT_BYTES_MAX, LOCALE_BYTES_MAX, MANIFEST, MANIFEST_BYTES_MAX};

const HINT_FILE: &str = "check that DIR is the folder of your plugin and that you may read its files";

/// An author's folder with a valid manifest.
pub(super) struct Source {
    dir: PathBuf,
    pub(super) manifest: Manifest,
    text: String,
}

impl Source {
    /// Reads the manifest and shows its errors.
    pub(super) fn open(dir: &Path) -> Result<Source, Failure> {
        let path = dir.join(MANIFEST);
        let bytes = read(&path, MANIFEST_BYTES_MAX)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Failure::new(format!("{} is not UTF-8 text", path.display()), HINT_FILE))?;
        match monstrum_manifest::parse(&path.display().to_string(), &text) {
            Ok(manifest) => Ok(Source { dir: dir.to_owned(), manifest, text }),
            Err(errors) => {
                for fault in &errors.0 {
                    faults::show(fault, &text);
                }
                let message = format!("a server would reject the manifest {}", path.display());
                Err(Failure::new(message, "correct the errors above and run this command again"))
            }
        }
    }

    /// Returns the path of the component in the manifest.
    pub(super) fn component(&self) -> PathBuf {
        self.dir.join(&self.manifest.executor.component)
    }

    /// Returns the component that cargo built, if it is newer than the component at the manifest's path.
    pub(super) fn newer_build(&self) -> Option<PathBuf> {
        let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        let present = modified(&self.component());
        let file = format!("{}.wasm", self.manifest.name.as_str().replace('-', "_"));
        let built = ["wasm32-wasip2", "wasm32-wasip1"]
            .map(|target| self.dir.join("target").join(target).join("release").join(&file));
        built.into_iter().filter(|path| modified(path) > present).max_by_key(|path| modified(path))
    }

    /// Copies the plugin with `component` into the plugins folder `plugins`, completely or not at all.
    pub(super) fn lay_out(&self, component: &Path, plugins: &Path) -> Result<(), Failure> {
        let name = self.manifest.name.as_str();
        let (target, staging) = (plugins.join(name), plugins.join(format!(".{name}.new")));
        remove(&staging)?;
        write(&staging.join(MANIFEST), self.text.as_bytes())?;
        write(&staging.join(&self.manifest.executor.component), &read(component, COMPONENT_BYTES_MAX)?)?;
        let locales = self.dir.join(&self.manifest.locales_dir);
        if locales.is_dir() {
            for path in json_files(&locales)? {
                let file = path.file_name().expect("an entry of a folder has a name");
                write(&staging.join(&self.manifest.locales_dir).join(file), &read(&path, LOCALE_BYTES_MAX)?)?;
            }
        }
        let flags = if target.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        rustix::fs::renameat_with(CWD, &staging, CWD, &target, flags).map_err(|error| cannot_write(&target, &error))?;
        remove(&staging)
    }
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let fail = |error: &std::io::Error| Failure::of(format!("cannot read {}", path.display()), error, HINT_FILE);
    let bytes = path.metadata().map_err(|error| fail(&error))?.len();
    if bytes > bytes_max {
        let message = format!("{} has {bytes} bytes; at most {bytes_max} are allowed", path.display());
        return Err(Failure::new(message, "a server would reject the file: make it smaller"));
    }
    fs::read(path).map_err(|error| fail(&error))
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let list = || -> std::io::Result<Vec<PathBuf>> { fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
    let all = list().map_err(|error| Failure::of(format!("cannot read {}", folder.display()), &error, HINT_FILE))?;
    Ok(all.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect())
}

fn cannot_write(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::of(
        format!("cannot write {}", path.display()),
        error,
        "check the free disk space and your write permission",
    )
}

/// Writes a file that only its owner can write, independent of the umask. A server rejects files that other users can
/// write.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), Failure> {
    make_dir(path.parent().expect("a file is in a folder"))?;
    let put = fs::write(path, content).and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o644)));
    put.map_err(|error| cannot_write(path, &error))
}

/// Creates a folder and its missing parents, which only their owner can write.
pub(super) fn make_dir(folder: &Path) -> Result<(), Failure> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    // The empty path is the working directory, which exists.
    for folder in missing.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = fs::create_dir(folder).and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)));
        made.map_err(|error| cannot_write(folder, &error))?;
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(cannot_write(folder, &error)),
        _ => Ok(()),
    }
}
