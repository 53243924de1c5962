//! The implementation of [`SandboxProvider`].

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_sandbox::{
    ArchiveLimits, ByteStream, Capabilities, Ensured, ExecOutput, ExecRequest, Feed, FileEntry, Inspection,
    SandboxError, SandboxName, SandboxProvider, Spec,
};
use monstrum_types::UtcMillis;

use super::{Embedded, NAME, on_disk};
use crate::{exec, files};

impl SandboxProvider for Embedded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Result<&Capabilities, SandboxError> {
        Ok(&self.0.capabilities)
    }

    fn health(&self) -> BoxFuture<'_, Result<(), SandboxError>> {
        async {
            if let Ok(network) = &self.0.full {
                let network = Arc::clone(network);
                tokio::task::spawn_blocking(move || network.reload_rules())
                    .await
                    .expect("loading rules does not panic")?;
            }
            self.warm_up().await
        }
        .boxed()
    }

    fn ensure_running<'a>(&'a self, name: &'a SandboxName, spec: Spec) -> BoxFuture<'a, Result<Ensured, SandboxError>> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.ensure(&name, spec).await }).boxed()
    }

    fn stop<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<(), SandboxError>> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.stop(&name).await }).boxed()
    }

    fn delete<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<(), SandboxError>> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.delete(&name).await }).boxed()
    }

    fn set_aside<'a>(&'a self, name: &'a SandboxName, now: UtcMillis) -> BoxFuture<'a, Result<(), SandboxError>> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.set_aside(&name, now).await }).boxed()
    }

    fn restore<'a>(&'a self, name: &'a SandboxName, since: UtcMillis) -> BoxFuture<'a, Result<bool, SandboxError>> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.restore(&name, since).await }).boxed()
    }

    fn delete_aside(&self, before: UtcMillis) -> BoxFuture<'_, Result<usize, SandboxError>> {
        self.uncancelled(move |inner| async move {
            let images = inner.images.clone();
            on_disk("the disk images that are set aside", move || images.delete_aside(before)).await
        })
        .boxed()
    }

    fn inspect<'a>(&'a self, name: &'a SandboxName) -> BoxFuture<'a, Result<Option<Inspection>, SandboxError>> {
        async { Ok(self.0.look(name)) }.boxed()
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Inspection>, SandboxError>> {
        async {
            let names =
                self.0.images.names().map_err(|error| {
                    SandboxError::unavailable_because("the folder of sandboxes cannot be read", error)
                })?;
            let names = names.iter().filter_map(|name| name.parse().ok());
            Ok(names.filter_map(|name| self.0.look(&name)).collect())
        }
        .boxed()
    }

    fn kept_bytes<'a>(&'a self, workspace: &'a str) -> BoxFuture<'a, Result<u64, SandboxError>> {
        let (images, workspace) = (self.0.images.clone(), workspace.to_owned());
        on_disk("the folder of sandboxes", move || images.bytes_of(&workspace)).boxed()
    }

    fn exec<'a>(
        &'a self,
        name: &'a SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> BoxFuture<'a, Result<ExecOutput, SandboxError>> {
        async move {
            let running = self.0.running(name)?;
            let _busy = running.busy();
            exec::run(&running, request, feed).await
        }
        .boxed()
    }

    fn list_dir<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Vec<FileEntry>, SandboxError>> {
        async move { files::list(&self.0.running(name)?, path).await }.boxed()
    }

    fn stat<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<FileEntry, SandboxError>> {
        async move { files::stat(&self.0.running(name)?, path).await }.boxed()
    }

    fn target<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<FileEntry, SandboxError>> {
        async move { files::target(&self.0.running(name)?, path).await }.boxed()
    }

    fn read<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
    ) -> BoxFuture<'a, Result<(FileEntry, ByteStream), SandboxError>> {
        async move { files::read(&self.0.running(name)?, path).await }.boxed()
    }

    fn write<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
        content: Bytes,
    ) -> BoxFuture<'a, Result<(), SandboxError>> {
        async move { files::write(&self.0.running(name)?, path, &content).await }.boxed()
    }

    fn mkdir<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<(), SandboxError>> {
        async move { files::mkdir(&self.0.running(name)?, path).await }.boxed()
    }

    fn remove<'a>(&'a self, name: &'a SandboxName, path: &'a str) -> BoxFuture<'a, Result<(), SandboxError>> {
        async move { files::remove(&self.0.running(name)?, path).await }.boxed()
    }

    fn rename<'a>(
        &'a self,
        name: &'a SandboxName,
        from: &'a str,
        to: &'a str,
    ) -> BoxFuture<'a, Result<(), SandboxError>> {
        async move { files::rename(&self.0.running(name)?, from, to).await }.boxed()
    }

    fn archive<'a>(
        &'a self,
        name: &'a SandboxName,
        path: &'a str,
        limits: ArchiveLimits,
    ) -> BoxFuture<'a, Result<ByteStream, SandboxError>> {
        async move { files::archive(&self.0.running(name)?, path, limits).await }.boxed()
    }
}
