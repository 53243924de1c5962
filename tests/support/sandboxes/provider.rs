//! The behaviour of the simulated provider.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use monstrum_sandbox::{
    ArchiveLimits, ByteStream, Capabilities, Chunk, Ensured, EntryKind, ExecOutput, ExecRequest, Feed, FileEntry,
    Inspection, Output, SandboxError, SandboxName, SandboxProvider, Spec, State, Stream, Termination,
};
use monstrum_types::UtcMillis;

use super::{Asked, Inside, Machine, Running, SandboxDouble, absent};

#[async_trait]
impl SandboxProvider for SandboxDouble {
    fn name(&self) -> &'static str {
        "double"
    }

    fn capabilities(&self) -> Result<&Capabilities, SandboxError> {
        match self.inside().down.clone() {
            Some(error) => Err(error),
            None => Ok(&self.capabilities),
        }
    }

    async fn health(&self) -> Result<(), SandboxError> {
        self.capabilities().map(drop)
    }

    async fn ensure_running(&self, name: &SandboxName, spec: Spec) -> Result<Ensured, SandboxError> {
        self.asked_for(Asked::EnsureRunning, Some(name)).await?;
        Ok(self.inside().ensure(name, spec))
    }

    async fn stop(&self, name: &SandboxName) -> Result<(), SandboxError> {
        self.asked_for(Asked::Stop, Some(name)).await?;
        self.crash(name);
        Ok(())
    }

    async fn delete(&self, name: &SandboxName) -> Result<(), SandboxError> {
        self.asked_for(Asked::Delete, Some(name)).await?;
        self.inside().sandboxes.remove(name);
        self.tick();
        Ok(())
    }

    async fn set_aside(&self, name: &SandboxName, now: UtcMillis) -> Result<(), SandboxError> {
        self.asked_for(Asked::SetAside, Some(name)).await?;
        let mut inside = self.inside();
        if let Some(machine) = inside.sandboxes.remove(name) {
            inside.aside.push((name.clone(), now, machine));
        }
        Ok(())
    }

    async fn restore(&self, name: &SandboxName, since: UtcMillis) -> Result<bool, SandboxError> {
        let mut inside = self.inside();
        let found = inside.aside.iter().rposition(|(kept, at, _)| kept == name && *at >= since);
        let Some(found) = found else { return Ok(false) };
        let (name, _, machine) = inside.aside.remove(found);
        inside.sandboxes.insert(name, Machine { is_running: false, ..machine });
        Ok(true)
    }

    async fn delete_aside(&self, before: UtcMillis) -> Result<usize, SandboxError> {
        let mut inside = self.inside();
        let had = inside.aside.len();
        inside.aside.retain(|(_, at, _)| *at >= before);
        Ok(had - inside.aside.len())
    }

    async fn inspect(&self, name: &SandboxName) -> Result<Option<Inspection>, SandboxError> {
        Ok(self.list().await?.into_iter().find(|inspection| inspection.name == *name))
    }

    async fn target(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError> {
        self.stat(name, path).await
    }

    async fn list(&self) -> Result<Vec<Inspection>, SandboxError> {
        self.asked_for(Asked::List, None).await?;
        let of = |(name, machine): (&SandboxName, &Machine)| Inspection {
            name: name.clone(),
            state: if machine.is_running { State::Running } else { State::Stopped },
            execs: machine.execs,
        };
        Ok(self.inside().sandboxes.iter().map(of).collect())
    }

    async fn kept_bytes(&self, _: &str) -> Result<u64, SandboxError> {
        Ok(0)
    }

    async fn exec(
        &self,
        name: &SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> Result<ExecOutput, SandboxError> {
        self.asked_for(Asked::Exec, Some(name)).await?;
        let (life, finished) = {
            let mut inside = self.inside();
            let finished = inside.finished;
            match inside.sandboxes.get_mut(name) {
                Some(machine) if machine.is_running => {
                    machine.execs += 1;
                    (machine.lives, finished)
                }
                Some(_) => return Err(SandboxError::Conflict("it does not run".to_owned())),
                None => return Err(SandboxError::NotFound("the sandbox does not exist".to_owned())),
            }
        };
        self.tick();
        let _running = Running(self, name.clone());
        let is_lost = |inside: &Inside| inside.sandboxes.get(name).is_none_or(|machine| machine.lives != life);
        match request.command.split_once(' ').unwrap_or((&request.command, "")) {
            ("wait", _) => {
                let ended = |inside: &mut Inside| {
                    let lost = is_lost(inside).then(|| output("", -1, Termination::Lost));
                    lost.or_else(|| (inside.finished > finished).then(|| output("", 0, Termination::Exited)))
                };
                Ok(self.until(ended).await)
            }
            ("echo", text) => {
                let text = format!("{text}\n");
                if let Some(feed) = feed {
                    // Sending fails if the reader has disconnected.
                    drop(feed.send(Chunk { stream: Stream::Stdout, bytes: text.clone().into() }).await);
                }
                Ok(output(&text, 0, Termination::Exited))
            }
            ("fail", _) => Ok(output("", 7, Termination::Exited)),
            _ => Ok(output("", 0, Termination::Exited)),
        }
    }

    async fn list_dir(&self, name: &SandboxName, path: &str) -> Result<Vec<FileEntry>, SandboxError> {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.file(name, |files| {
            let inside = files.iter().filter(|(path, _)| path.starts_with(&folder));
            Ok(inside.map(|(path, content)| entry(path, content)).collect())
        })
    }

    async fn stat(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError> {
        self.file(name, |files| files.get(path).map(|content| entry(path, content)).ok_or_else(absent))
    }

    async fn read(&self, name: &SandboxName, path: &str) -> Result<(FileEntry, ByteStream), SandboxError> {
        let found = self.file(name, |files| files.get(path).cloned().ok_or_else(absent));
        found.map(|content| (entry(path, &content), stream(content)))
    }

    async fn write(&self, name: &SandboxName, path: &str, content: Bytes) -> Result<(), SandboxError> {
        self.file(name, |files| {
            files.insert(path.to_owned(), content);
            Ok(())
        })
    }

    async fn mkdir(&self, name: &SandboxName, _: &str) -> Result<(), SandboxError> {
        self.file(name, |_| Ok(()))
    }

    async fn remove(&self, name: &SandboxName, path: &str) -> Result<(), SandboxError> {
        self.file(name, |files| files.remove(path).map(drop).ok_or_else(absent))
    }

    async fn rename(&self, name: &SandboxName, from: &str, to: &str) -> Result<(), SandboxError> {
        self.file(name, |files| {
            let content = files.remove(from).ok_or_else(absent)?;
            files.insert(to.to_owned(), content);
            Ok(())
        })
    }

    async fn archive(&self, name: &SandboxName, _: &str, _: ArchiveLimits) -> Result<ByteStream, SandboxError> {
        let archive = self.file(name, |files| Ok(files.values().flatten().copied().collect::<Bytes>()));
        archive.map(stream)
    }
}

fn entry(path: &str, content: &Bytes) -> FileEntry {
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    FileEntry { name, path: path.to_owned(), kind: EntryKind::File, size: content.len() as u64, modified_ms: 0 }
}

fn output(stdout: &str, exit_code: i32, termination: Termination) -> ExecOutput {
    let stdout = Output { text: stdout.to_owned(), bytes: stdout.len() as u64, is_truncated: false };
    ExecOutput { stdout, stderr: Output::default(), exit_code, termination, duration: Duration::from_millis(1) }
}

fn stream(bytes: Bytes) -> ByteStream {
    futures::stream::iter([Ok(bytes)]).boxed()
}
