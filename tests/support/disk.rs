//! A disk that can be filled on demand, for a database of a PostgreSQL server.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::postgres::{Postgres, hand_over};

/// The size of the disk, three times the size of an empty database.
const SIZE: &str = "size=40m";
const BALLAST_BLOCK: [u8; 4096] = [0; 4096];

/// A small file system. Mounting it requires root. For other users, triggers make the server report a full disk, which
/// is a weaker test.
pub struct Disk {
    folder: TempDir,
    is_mounted: bool,
}

impl Disk {
    pub fn new() -> Result<Disk> {
        let folder = tempfile::Builder::new().prefix("disk-").tempdir().context("cannot create a temporary folder")?;
        let is_mounted = rustix::process::geteuid().is_root();
        if is_mounted {
            let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "tmpfs"]).arg(folder.path()).status();
            ensure!(mounted.context("cannot run mount")?.success(), "cannot mount a small disk");
        }
        Ok(Disk { folder, is_mounted })
    }

    /// Creates a database on this disk.
    pub fn database(&self, server: &Postgres, name: &str) -> Result<String> {
        let mut place = "";
        if self.is_mounted {
            let space = self.folder.path().join("space");
            fs::create_dir(&space)?;
            hand_over(&space)?;
            server.sql("postgres", &format!("create tablespace small location '{}'", space.display()))?;
            place = "tablespace small";
        }
        server.sql("postgres", &format!("create database {name} template template0 {place}"))?;
        Ok(server.url(name))
    }

    /// Fills the disk, so that no further page fits.
    pub fn fill(&self, server: &Postgres, name: &str) -> Result<()> {
        if !self.is_mounted {
            let refuse = "create function full() returns trigger language plpgsql as $$ begin \
                          raise exception 'could not extend file: No space left on device' using errcode = '53100'; \
                          end; $$; \
                          create trigger full_events before insert on audit_rows execute function full(); \
                          create trigger full_bots before insert on bots execute function full();";
            return server.sql(name, refuse).map(drop);
        }
        let mut ballast = OpenOptions::new().create(true).append(true).open(self.folder.path().join("ballast"))?;
        while ballast.write_all(&BALLAST_BLOCK).is_ok() {}
        Ok(())
    }

    /// Frees space on the disk.
    pub fn free(&self, server: &Postgres, name: &str) -> Result<()> {
        if self.is_mounted {
            return fs::remove_file(self.folder.path().join("ballast"))
                .context("cannot remove the file that fills the disk");
        }
        server.sql(name, "drop function full() cascade").map(drop)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            // The server was dropped before and no longer uses the file system, and no other process uses it.
            drop(Command::new("umount").arg("--lazy").arg(self.folder.path()).status());
        }
    }
}
