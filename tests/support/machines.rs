//! A simulated provider of sandboxes, with files in memory and a few built-in commands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use monstrum_sandbox::{
    ArchiveLimits, ByteStream, Capabilities, Chunk, Ensured, EntryKind, ExecOutput, ExecRequest, Feed, FileEntry,
    Inspection, LIST_ENTRIES_MAX, Limits, Network, Output, SandboxError, SandboxName, SandboxProvider, Spec, State,
    Stream, Termination, WORKSPACE,
};
use monstrum_types::UtcMillis;

/// The provider. Tests set its public fields.
pub struct Machines {
    machines: Mutex<BTreeMap<SandboxName, Machine>>,
    aside: Mutex<BTreeMap<SandboxName, Machine>>,
    capabilities: Capabilities,
    /// Whether the provider is unavailable.
    pub is_down: AtomicBool,
    /// Whether the disks of the sandboxes are full.
    pub is_full: AtomicBool,
    /// Whether every stream of a file or an archive fails after its first chunk.
    pub breaks_off: AtomicBool,
    /// The disk usage, in bytes, that the provider reports for every workspace.
    pub kept_bytes: AtomicU64,
    /// The number of created sandboxes.
    pub created: AtomicUsize,
    /// The numbers of commands that were started, and of commands that were ended early.
    pub begun: AtomicUsize,
    pub ended: AtomicUsize,
}

#[derive(Default)]
struct Machine {
    is_running: bool,
    spec: Spec,
    files: BTreeMap<String, Bytes>,
}

/// Counts a command that was ended before it completed.
struct Ended<'a>(Option<&'a AtomicUsize>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Default for Machines {
    fn default() -> Self {
        Machines {
            machines: Mutex::default(),
            aside: Mutex::default(),
            capabilities: Capabilities {
                system: "Debian GNU/Linux 12 (bookworm)".to_owned(),
                programs: ["bash", "python3", "node", "git", "curl"].map(str::to_owned).to_vec(),
                networks: vec![Network::None, Network::Full],
                can_install_system_packages: true,
                degraded: Vec::new(),
            },
            is_down: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            breaks_off: AtomicBool::new(false),
            kept_bytes: AtomicU64::new(0),
            created: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        }
    }
}

impl Machines {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxName, Machine>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn up(&self) -> Result<(), SandboxError> {
        if self.is_down.load(Ordering::SeqCst) {
            return Err(SandboxError::unavailable("/dev/loop-control is gone"));
        }
        Ok(())
    }

    /// Returns the number of sandboxes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns the limits of the only sandbox.
    #[must_use]
    pub fn limits(&self) -> Option<Limits> {
        self.lock().values().next().map(|machine| machine.spec.limits)
    }

    /// Stops every sandbox. The host is not notified.
    pub fn stop_all(&self) {
        self.lock().values_mut().for_each(|machine| machine.is_running = false);
    }

    /// Puts a file into every sandbox.
    pub fn put(&self, path: &str, content: impl Into<Bytes>) {
        let content = content.into();
        for machine in self.lock().values_mut() {
            machine.files.insert(path.to_owned(), content.clone());
        }
    }

    /// Returns all files of all sandboxes.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, Bytes> {
        self.lock().values().flat_map(|machine| machine.files.clone()).collect()
    }

    fn running<T>(
        &self,
        name: &SandboxName,
        act: impl FnOnce(&mut Machine) -> Result<T, SandboxError>,
    ) -> Result<T, SandboxError> {
        self.up()?;
        let mut machines = self.lock();
        match machines.get_mut(name) {
            Some(machine) if machine.is_running => act(machine),
            _ => Err(SandboxError::Conflict("it does not run".to_owned())),
        }
    }

    fn stream(&self, content: &Bytes) -> ByteStream {
        let half = content.len() / 2;
        let mut pieces = vec![Ok(content.slice(..half)), Ok(content.slice(half..))];
        if self.breaks_off.load(Ordering::SeqCst) {
            pieces[1] = Err(SandboxError::unavailable("the disk is gone"));
        }
        let pieces: BoxStream<'static, _> = futures::stream::iter(pieces).boxed();
        pieces
    }

    async fn command(
        &self,
        name: &SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> Result<ExecOutput, SandboxError> {
        self.running(name, |_| Ok(()))?;
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut ended = Ended(Some(&self.ended));
        let (word, rest) = request.command.split_once(' ').unwrap_or((&request.command, ""));
        let number = || rest.parse::<usize>().unwrap_or_default();
        let (mut stdout, mut stderr, mut exit_code, mut termination) =
            (String::new(), String::new(), 0, Termination::Exited);
        match word {
            "echo" => stdout = format!("{rest}\n"),
            "fail" => {
                exit_code = i32::try_from(number()).unwrap_or_default();
                stderr = "failed\n".to_owned();
            }
            "lines" => stdout = (1..=number()).map(|n| format!("{n}\n")).collect(),
            "bytes" => stdout = "x".repeat(number()),
            "slow" => {
                stdout = "begun\n".to_owned();
                (exit_code, termination) = (124, Termination::TimedOut);
            }
            "sleep" => tokio::time::sleep(Duration::from_millis(number() as u64)).await,
            "hang" => std::future::pending::<()>().await,
            "save" => self.running(name, |machine| {
                machine.files.insert(format!("{WORKSPACE}/{rest}"), Bytes::from_static(b"saved"));
                Ok(())
            })?,
            "speak" => {
                // The output has a character in two chunks, with a chunk of the other stream between them.
                let pieces: [(Stream, &[u8]); 4] = [
                    (Stream::Stdout, b"caf\xc3"),
                    (Stream::Stderr, b"hm\n"),
                    (Stream::Stdout, b"\xa9\n"),
                    (Stream::Stdout, b"end\n"),
                ];
                for (stream, bytes) in pieces {
                    if let Some(feed) = &feed {
                        // Sending fails if the reader has disconnected.
                        drop(feed.send(Chunk { stream, bytes: Bytes::from_static(bytes) }).await);
                    }
                }
                (stdout, stderr) = ("caf\u{e9}\nend\n".to_owned(), "hm\n".to_owned());
            }
            "flood" => {
                let chunk = Chunk { stream: Stream::Stdout, bytes: Bytes::from_static(&[b'x'; 4096]) };
                while let Some(feed) = &feed
                    && feed.send(chunk.clone()).await.is_ok()
                {}
                std::future::pending::<()>().await;
            }
            "lost" => termination = Termination::Lost,
            _ => (stderr, exit_code) = (format!("bash: {word}: command not found\n"), 127),
        }
        ended.0 = None;
        let kept = |text: String| {
            let (bytes, from) = (text.len(), text.len().saturating_sub(request.output_bytes_max));
            Output { text: text[from..].to_owned(), bytes: bytes as u64, is_truncated: from > 0 }
        };
        let duration = Duration::from_millis(7);
        Ok(ExecOutput { stdout: kept(stdout), stderr: kept(stderr), exit_code, termination, duration })
    }
}

/// Resolves a path inside the workspace.
fn resolved(path: &str) -> Result<String, SandboxError> {
    let outside = || SandboxError::Invalid(format!("{path}: leaves {WORKSPACE}"));
    if path.split('/').any(|part| part == "..") {
        return Err(outside());
    }
    let path = match path.strip_prefix('/') {
        Some(_) => path.trim_end_matches('/').to_owned(),
        None => format!("{WORKSPACE}/{}", path.trim_end_matches('/').trim_start_matches("./")),
    };
    let path = path.trim_end_matches("/.").to_owned();
    let is_inside = path == WORKSPACE || path.starts_with(&format!("{WORKSPACE}/"));
    if is_inside { Ok(path) } else { Err(outside()) }
}

fn entry(path: &str, kind: EntryKind, size: usize) -> FileEntry {
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    FileEntry { name, path: path.to_owned(), kind, size: size as u64, modified_ms: 0 }
}

fn absent(path: &str) -> SandboxError {
    SandboxError::NotFound(format!("{path}: no such file or folder"))
}

impl Machine {
    fn entry(&self, path: &str) -> Result<FileEntry, SandboxError> {
        let below = format!("{path}/");
        match self.files.get(path) {
            Some(_) if path.ends_with(".pipe") => Ok(entry(path, EntryKind::Other, 0)),
            Some(content) => Ok(entry(path, EntryKind::File, content.len())),
            None if path == WORKSPACE || self.files.keys().any(|own| own.starts_with(&below)) => {
                Ok(entry(path, EntryKind::Directory, 0))
            }
            None => Err(absent(path)),
        }
    }
}

#[async_trait]
impl SandboxProvider for Machines {
    fn name(&self) -> &'static str {
        "machines"
    }

    fn capabilities(&self) -> Result<&Capabilities, SandboxError> {
        self.up()?;
        Ok(&self.capabilities)
    }

    async fn health(&self) -> Result<(), SandboxError> {
        self.up()
    }

    async fn ensure_running(&self, name: &SandboxName, spec: Spec) -> Result<Ensured, SandboxError> {
        self.up()?;
        let mut machines = self.lock();
        let is_new = !machines.contains_key(name);
        let machine = machines.entry(name.clone()).or_default();
        let was_running = std::mem::replace(&mut machine.is_running, true);
        machine.spec = spec;
        if is_new {
            self.created.fetch_add(1, Ordering::SeqCst);
        }
        Ok(match (is_new, was_running) {
            (true, _) => Ensured::Created,
            (false, false) => Ensured::Resumed,
            (false, true) => Ensured::AlreadyRunning,
        })
    }

    async fn stop(&self, name: &SandboxName) -> Result<(), SandboxError> {
        self.up()?;
        if let Some(machine) = self.lock().get_mut(name) {
            machine.is_running = false;
        }
        Ok(())
    }

    async fn delete(&self, name: &SandboxName) -> Result<(), SandboxError> {
        self.up()?;
        self.lock().remove(name);
        Ok(())
    }

    async fn set_aside(&self, name: &SandboxName, _: UtcMillis) -> Result<(), SandboxError> {
        self.up()?;
        if let Some(machine) = self.lock().remove(name) {
            self.aside.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), machine);
        }
        Ok(())
    }

    async fn restore(&self, name: &SandboxName, _: UtcMillis) -> Result<bool, SandboxError> {
        self.up()?;
        let kept = self.aside.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        Ok(kept.is_some_and(|machine| self.lock().insert(name.clone(), machine).is_none()))
    }

    async fn delete_aside(&self, _: UtcMillis) -> Result<usize, SandboxError> {
        Ok(0)
    }

    async fn inspect(&self, name: &SandboxName) -> Result<Option<Inspection>, SandboxError> {
        let listed = self.list().await?;
        Ok(listed.into_iter().find(|one| one.name == *name))
    }

    async fn list(&self) -> Result<Vec<Inspection>, SandboxError> {
        self.up()?;
        let state = |machine: &Machine| if machine.is_running { State::Running } else { State::Stopped };
        let machines = self.lock();
        Ok(machines
            .iter()
            .map(|(name, machine)| Inspection { name: name.clone(), state: state(machine), execs: 0 })
            .collect())
    }

    async fn kept_bytes(&self, _: &str) -> Result<u64, SandboxError> {
        Ok(self.kept_bytes.load(Ordering::SeqCst))
    }

    async fn exec(
        &self,
        name: &SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> Result<ExecOutput, SandboxError> {
        self.command(name, request, feed).await
    }

    async fn target(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError> {
        self.stat(name, path).await
    }

    async fn list_dir(&self, name: &SandboxName, path: &str) -> Result<Vec<FileEntry>, SandboxError> {
        let path = resolved(path)?;
        self.running(name, |machine| {
            if machine.entry(&path)?.kind != EntryKind::Directory {
                return Err(SandboxError::Invalid(format!("{path}: is no folder")));
            }
            let below = format!("{path}/");
            let inside = machine.files.keys().filter_map(|own| own.strip_prefix(&below));
            let names: BTreeSet<&str> = inside.filter_map(|rest| rest.split('/').next()).collect();
            if names.len() > LIST_ENTRIES_MAX {
                return Err(SandboxError::Exhausted(format!("{path}: has too many entries")));
            }
            names.into_iter().map(|name| machine.entry(&format!("{below}{name}"))).collect()
        })
    }

    async fn stat(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError> {
        let path = resolved(path)?;
        self.running(name, |machine| machine.entry(&path))
    }

    async fn read(&self, name: &SandboxName, path: &str) -> Result<(FileEntry, ByteStream), SandboxError> {
        let path = resolved(path)?;
        let (entry, content) = self.running(name, |machine| {
            let entry = machine.entry(&path)?;
            match machine.files.get(&path).filter(|_| entry.kind == EntryKind::File) {
                Some(content) => Ok((entry, content.clone())),
                None => Err(SandboxError::Invalid(format!("{path}: is no file"))),
            }
        })?;
        Ok((entry, self.stream(&content)))
    }

    async fn write(&self, name: &SandboxName, path: &str, content: Bytes) -> Result<(), SandboxError> {
        let path = resolved(path)?;
        if self.is_full.load(Ordering::SeqCst) {
            return Err(SandboxError::Exhausted("no space is left in the sandbox".to_owned()));
        }
        self.running(name, |machine| {
            machine.files.insert(path, content);
            Ok(())
        })
    }

    async fn mkdir(&self, name: &SandboxName, path: &str) -> Result<(), SandboxError> {
        resolved(path)?;
        self.running(name, |_| Ok(()))
    }

    async fn remove(&self, name: &SandboxName, path: &str) -> Result<(), SandboxError> {
        let path = resolved(path)?;
        self.running(name, |machine| machine.files.remove(&path).map(drop).ok_or_else(|| absent(&path)))
    }

    async fn rename(&self, name: &SandboxName, from: &str, to: &str) -> Result<(), SandboxError> {
        let (from, to) = (resolved(from)?, resolved(to)?);
        self.running(name, |machine| {
            let content = machine.files.remove(&from).ok_or_else(|| absent(&from))?;
            machine.files.insert(to, content);
            Ok(())
        })
    }

    async fn archive(&self, name: &SandboxName, path: &str, _: ArchiveLimits) -> Result<ByteStream, SandboxError> {
        let path = resolved(path)?;
        let content = self.running(name, |machine| {
            let below = format!("{path}/");
            let inside = machine.files.keys().filter_map(|own| own.strip_prefix(&below));
            Ok(format!("PK of {}", inside.collect::<Vec<_>>().join(", ")))
        })?;
        Ok(self.stream(&content.into()))
    }
}
