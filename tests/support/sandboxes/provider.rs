//! The behaviour of the simulated provider.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use monstrum_sandbox::{
    ArchiveLimits, ByteStream, Capabilities, Chunk, Ensured, EntryKind, ExecOutput, ExecRequest, Feed, FileEntry,
    Inspection, Output, SandboxError, SandboxName, SandboxProvider, Spec, State, Stream, Termination,
};
use monstrum_types::UtcMillis;

use super::{Asked, Inside, Machine, Running, SandboxDouble, absent};

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

    fn health(&self) -> BoxFuture<'_, Result<(), SandboxError>> {
        Box::pin(async { self.capabilities().map(drop) })
    }

    fn ensure_running<'a>(&'a self, name: &'a SandboxName, spec: Spec) -> BoxFuture<'a, Result<Ensured, SandboxError>> {
        Box::pin(async move {
            self.asked_for(Asked::EnsureRunning, Some(name)).await?;
            Ok(self.inside().ensure(name, spec))
        })
    }

    fn stop<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            self.asked_for(Asked::Stop, Some(name)).await?;
            self.crash(name);
            Ok(())
        })
    }

    fn delete<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            self.asked_for(Asked::Delete, Some(name)).await?;
            self.inside().sandboxes.remove(name);
            self.tick();
            Ok(())
        })
    }

    fn set_aside<'a>(&'a self, name: &'a SandboxName, now: UtcMillis) -> BoxFuture<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            self.asked_for(Asked::SetAside, Some(name)).await?;
            let mut inside = self.inside();
            if let Some(machine) = inside.sandboxes.remove(name) {
                inside.aside.push((name.clone(), now, machine));
            }
            Ok(())
        })
    }

    fn restore<'a>(&'a self, name: &'a SandboxName, since: UtcMillis) -> BoxFuture<'a, Result<bool, SandboxError>> {
        Box::pin(async move {
            let mut inside = self.inside();
            let found = inside.aside.iter().rposition(|(kept, at, _)| kept == name && *at >= since);
            let Some(found) = found else { return Ok(false) };
            let (name, _, machine) = inside.aside.remove(found);
            inside.sandboxes.insert(name, Machine { is_running: false, ..machine });
            Ok(true)
        })
    }

    fn delete_aside(&self, before: UtcMillis) -> BoxFuture<'_, Result<usize, SandboxError>> {
        Box::pin(async move {
            let mut inside = self.inside();
            let had = inside.aside.len();
            inside.aside.retain(|(_, at, _)| *at >= before);
            Ok(had - inside.aside.len())
        })
    }

    fn inspect<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<Option<Inspection>, SandboxError>> {
        Box::pin(async move { Ok(self.list().await?.into_iter().find(|inspection| inspection.name == *name)) })
    }

    fn target<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<FileEntry, SandboxError>> {
        self.stat(name, path)
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Inspection>, SandboxError>> {
        Box::pin(async {
            self.asked_for(Asked::List, None).await?;
            let of = |(name, machine): (&SandboxName, &Machine)| Inspection {
                name: name.clone(),
                state: if machine.is_running { State::Running } else { State::Stopped },
                execs: machine.execs,
            };
            Ok(self.inside().sandboxes.iter().map(of).collect())
        })
    }

    fn kept_bytes<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<u64, SandboxError>> {
        Box::pin(async { Ok(0) })
    }

    fn exec<'a>(
        &'a self,
        name: &'a SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> BoxFuture<'a, Result<ExecOutput, SandboxError>> {
        Box::pin(async move {
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
        })
    }

    fn list_dir<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Vec<FileEntry>, SandboxError>> {
        let folder = format!("{}/", path.trim_end_matches('/'));
        let listed = self.file(name, |files| {
            let inside = files.iter().filter(|(path, _)| path.starts_with(&folder));
            Ok(inside.map(|(path, content)| entry(path, content)).collect())
        });
        Box::pin(async move { listed })
    }

    fn stat<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<FileEntry, SandboxError>> {
        let found = self.file(name, |files| files.get(path).map(|content| entry(path, content)).ok_or_else(absent));
        Box::pin(async move { found })
    }

    fn read<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
    ) -> BoxFuture<'a, Result<(FileEntry, ByteStream), SandboxError>> {
        let found = self.file(name, |files| files.get(path).cloned().ok_or_else(absent));
        Box::pin(async move { found.map(|content| (entry(path, &content), stream(content))) })
    }

    fn write<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
        content: Bytes,
    ) -> BoxFuture<'a, Result<(), SandboxError>> {
        let written = self.file(name, |files| {
            files.insert(path.to_owned(), content);
            Ok(())
        });
        Box::pin(async move { written })
    }

    fn mkdir<'a>(&'a self, name: &'a SandboxName, _: &'a str) -> BoxFuture<'a, Result<(), SandboxError>> {
        let made = self.file(name, |_| Ok(()));
        Box::pin(async move { made })
    }

    fn remove<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<(), SandboxError>> {
        let removed = self.file(name, |files| files.remove(path).map(drop).ok_or_else(absent));
        Box::pin(async move { removed })
    }

    fn rename<'a>(
        &'a self,
        name: &'a SandboxName,
        from: &'a str,
        to: &'a str,
    ) -> BoxFuture<'a, Result<(), SandboxError>> {
        let renamed = self.file(name, |files| {
            let content = files.remove(from).ok_or_else(absent)?;
            files.insert(to.to_owned(), content);
            Ok(())
        });
        Box::pin(async move { renamed })
    }

    fn archive<'a>(
        &'a self,
        name: &'a SandboxName,
        _: &'a str,
        _: ArchiveLimits,
    ) -> BoxFuture<'a, Result<ByteStream, SandboxError>> {
        let archive = self.file(name, |files| Ok(files.values().flatten().copied().collect::<Bytes>()));
        Box::pin(async move { archive.map(stream) })
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
