//! The implementation of [`SandboxProvider`].

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use monstrum_sandbox::{
    ArchiveLimits, ByteStream, Capabilities, Ensured, ExecOutput, ExecRequest, Feed, FileEntry, Inspection,
    SandboxError, SandboxName, SandboxProvider, Spec,
};
use monstrum_types::UtcMillis;

use super::{Embedded, NAME, on_disk};
use crate::{exec, files};

#[async_trait]
impl SandboxProvider for Embedded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Result<&Capabilities, SandboxError> {
        Ok(&self.0.capabilities)
    }

    async fn health(&self) -> Result<(), SandboxError> {
        if let Ok(network) = &self.0.full {
            let network = Arc::clone(network);
            tokio::task::spawn_blocking(move || network.reload_rules()).await.expect("loading rules does not panic")?;
        }
        self.warm_up().await
    }

    async fn ensure_running(&self, name: &SandboxName, spec: Spec) -> Result<Ensured, SandboxError> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.ensure(&name, spec).await }).await
    }

    async fn stop(&self, name: &SandboxName) -> Result<(), SandboxError> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.stop(&name).await }).await
    }

    async fn delete(&self, name: &SandboxName) -> Result<(), SandboxError> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.delete(&name).await }).await
    }

    async fn set_aside(&self, name: &SandboxName, now: UtcMillis) -> Result<(), SandboxError> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.set_aside(&name, now).await }).await
    }

    async fn restore(&self, name: &SandboxName, since: UtcMillis) -> Result<bool, SandboxError> {
        let name = name.clone();
        self.uncancelled(move |inner| async move { inner.restore(&name, since).await }).await
    }

    async fn delete_aside(&self, before: UtcMillis) -> Result<usize, SandboxError> {
        self.uncancelled(move |inner| async move {
            let images = inner.images.clone();
            on_disk("the disk images that are set aside", move || images.delete_aside(before)).await
        })
        .await
    }

    async fn inspect(&self, name: &SandboxName) -> Result<Option<Inspection>, SandboxError> {
        Ok(self.0.look(name))
    }

    async fn list(&self) -> Result<Vec<Inspection>, SandboxError> {
        let names = self
            .0
            .images
            .names()
            .map_err(|error| SandboxError::unavailable_because("the folder of sandboxes cannot be read", error))?;
        let names = names.iter().filter_map(|name| name.parse().ok());
        Ok(names.filter_map(|name| self.0.look(&name)).collect())
    }

    async fn kept_bytes(&self, workspace: &str) -> Result<u64, SandboxError> {
        let (images, workspace) = (self.0.images.clone(), workspace.to_owned());
        on_disk("the folder of sandboxes", move || images.bytes_of(&workspace)).await
    }

    async fn exec(
        &self,
        name: &SandboxName,
        request: ExecRequest,
        feed: Option<Feed>,
    ) -> Result<ExecOutput, SandboxError> {
        let running = self.0.running(name)?;
        let _busy = running.busy();
        exec::run(&running, request, feed).await
    }

    async fn list_dir(&self, name: &SandboxName, path: &str) -> Result<Vec<FileEntry>, SandboxError> {
        files::list(&self.0.running(name)?, path).await
    }

    async fn stat(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError> {
        files::stat(&self.0.running(name)?, path).await
    }

    async fn target(&self, name: &SandboxName, path: &str) -> Result<FileEntry, SandboxError> {
        files::target(&self.0.running(name)?, path).await
    }

    async fn read(&self, name: &SandboxName, path: &str) -> Result<(FileEntry, ByteStream), SandboxError> {
        files::read(&self.0.running(name)?, path).await
    }

    async fn write(&self, name: &SandboxName, path: &str, content: Bytes) -> Result<(), SandboxError> {
        files::write(&self.0.running(name)?, path, &content).await
    }

    async fn mkdir(&self, name: &SandboxName, path: &str) -> Result<(), SandboxError> {
        files::mkdir(&self.0.running(name)?, path).await
    }

    async fn remove(&self, name: &SandboxName, path: &str) -> Result<(), SandboxError> {
        files::remove(&self.0.running(name)?, path).await
    }

    async fn rename(&self, name: &SandboxName, from: &str, to: &str) -> Result<(), SandboxError> {
        files::rename(&self.0.running(name)?, from, to).await
    }

    async fn archive(&self, name: &SandboxName, path: &str, limits: ArchiveLimits) -> Result<ByteStream, SandboxError> {
        files::archive(&self.0.running(name)?, path, limits).await
    }
}
