//! Exports the configuration of a workspace, or of all workspaces, as lines. An export requires an admin key; an export
//! of all workspaces requires a root key.
//!
//! An export keeps one page of each list that it reads in memory. Unverified rows are not exported, because the export
//! would hide that they may not be authentic.

mod lines;

use std::collections::HashMap;
use std::hash::Hash;

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use monstrum_api::export::{BindingLine, Line};
use monstrum_store::{BindingRow, BotRow, Page, ResourceRow, RoleRow, Store, StoreError, WorkspaceRow};
use monstrum_types::{ResourceId, RoleId, WorkspaceId};
use tokio::sync::mpsc;

use super::list::each_row;
use super::{Admin, OperationError};
use crate::app::App;
use lines::Unreadable;

/// The number of rows that an export reads at a time. A prompt can have 200 000 characters, so a page contains few
/// rows.
const PAGE_ROWS: u32 = 100;
/// The size in bytes at which the collected lines are sent.
const CHUNK_BYTES: usize = 64 << 10;
/// The maximum number of chunks that are queued for the client.
const CHUNKS_WAITING: usize = 4;
/// The maximum number of names that are kept in memory to resolve the references of bindings.
const NAMES_MAX: usize = 10_000;

/// The workspaces that an export contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The workspace in which the caller acts. Its lines name no workspace.
    OwnWorkspace,
    /// All workspaces. Each line names its workspace.
    AllWorkspaces,
}

/// The error of an export that fails after its first bytes may have been sent. The connection is closed early, so that
/// a client does not mistake an incomplete export for a complete one.
#[derive(Debug, thiserror::Error)]
#[error("the export failed before it was complete")]
pub struct ExportBroken(#[source] Broken);

/// The reason why an export ends early.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("the client disconnected")]
    NoReader,
}

/// Streams the configuration with one JSON object per line: first the workspaces, then the roles, bots, resources and
/// bindings of each workspace. Objects of one kind are sorted by age.
pub async fn export(
    app: &App,
    caller: &Admin,
    extent: Extent,
) -> Result<impl Stream<Item = Result<Bytes, ExportBroken>> + Send + use<>, OperationError> {
    // An error that is detected at the start is returned as a response, instead of ending the stream early.
    match extent {
        Extent::OwnWorkspace => app.store.require_verified(caller.workspace)?,
        Extent::AllWorkspaces => {
            caller.root()?;
            all_are_verified(&app.store).await?;
        }
    }
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    let export = Export { store: app.store.clone(), sender: sender.clone(), chunk: BytesMut::new() };
    let workspace = caller.workspace;
    tokio::spawn(async move {
        if let Err(error) = export.run(extent, workspace).await
            && !matches!(error, Broken::NoReader)
        {
            tracing::error!(%error, "an export failed before it was complete");
            // If the client has disconnected, the error cannot be sent.
            drop(sender.send(Err(ExportBroken(error))).await);
        }
    });
    Ok(stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }))
}

async fn all_are_verified(store: &Store) -> Result<(), StoreError> {
    each_row!(Page::first(PAGE_ROWS), |page| store.workspaces(&page), |workspace| {
        store.require_verified(workspace.id)?;
    });
    Ok(())
}

/// A running export.
struct Export {
    store: Store,
    sender: mpsc::Sender<Result<Bytes, ExportBroken>>,
    /// The lines that have not been sent yet.
    chunk: BytesMut,
}

impl Export {
    async fn run(mut self, extent: Extent, own: WorkspaceId) -> Result<(), Broken> {
        match extent {
            Extent::OwnWorkspace => self.workspace(own, None).await?,
            Extent::AllWorkspaces => {
                let first = Page::first(PAGE_ROWS);
                each_row!(first, |page| self.store.workspaces(&page), |row| {
                    self.write(&Line::Workspace(lines::workspace(&row)?)).await?;
                });
                each_row!(first, |page| self.store.workspaces(&page), |row| {
                    let WorkspaceRow { id, name, .. } = row;
                    self.workspace(id, Some(&name)).await?;
                });
            }
        }
        self.send().await
    }

    async fn workspace(&mut self, workspace: WorkspaceId, name: Option<&str>) -> Result<(), Broken> {
        // A failed verification may have been detected since the export began.
        self.store.require_verified(workspace)?;
        let name = || name.map(str::to_owned);
        each_row!(Page::first(PAGE_ROWS), |page| self.store.roles(workspace, &page), |row| {
            self.write(&Line::Role(lines::role(&row, name())?)).await?;
        });
        each_row!(Page::first(PAGE_ROWS), |page| self.store.bots(workspace, &page), |row| {
            self.write(&Line::Bot(lines::bot(&row, name())?)).await?;
        });
        each_row!(Page::first(PAGE_ROWS), |page| self.store.resources(workspace, &page), |row| {
            let bot = match lines::bot_behind(&row) {
                Some(id) => self.store.bot(workspace, id).await?,
                None => None,
            };
            let bot = bot.as_ref().map(|bot: &BotRow| bot.name.as_str());
            self.write(&Line::Resource(lines::resource(&row, name(), bot)?)).await?;
        });
        let mut names = Names::default();
        each_row!(Page::first(PAGE_ROWS), |bots| self.store.bots(workspace, &bots), |bot| {
            each_row!(Page::first(PAGE_ROWS), |page| self.store.bindings(workspace, bot.id, &page), |row| {
                if let Some(line) = self.binding(&bot, &row, &mut names, name()).await? {
                    self.write(&Line::Binding(line)).await?;
                }
            });
        });
        Ok(())
    }

    /// Returns the line of a binding, or `None` if the binding was deleted during the export.
    async fn binding(
        &self,
        bot: &BotRow,
        row: &BindingRow,
        names: &mut Names,
        workspace: Option<String>,
    ) -> Result<Option<BindingLine>, Broken> {
        let resource = names.resource(&self.store, row.workspace_id, row.resource_id).await?;
        let role = match row.role_id {
            Some(id) => Some(names.role(&self.store, row.workspace_id, id).await?),
            None => None,
        };
        match (resource, role) {
            (Some(resource), None) => Ok(Some(lines::binding(row, workspace, &bot.name, &resource, None)?)),
            (Some(resource), Some(Some(role))) => {
                Ok(Some(lines::binding(row, workspace, &bot.name, &resource, Some(&role))?))
            }
            // A role or resource is deleted only after its bindings. If the binding still exists, the row is not
            // consistent.
            _ => match self.store.binding(row.workspace_id, row.bot_id, row.id).await? {
                None => Ok(None),
                Some(_) => Err(Unreadable::of("binding", row.id).into()),
            },
        }
    }

    async fn write(&mut self, line: &Line) -> Result<(), Broken> {
        let text = serde_json::to_vec(line).expect("a line is plain JSON");
        self.chunk.extend_from_slice(&text);
        self.chunk.extend_from_slice(b"\n");
        if self.chunk.len() >= CHUNK_BYTES { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), Broken> {
        let chunk = self.chunk.split().freeze();
        if chunk.is_empty() {
            return Ok(());
        }
        self.sender.send(Ok(chunk)).await.map_err(|_| Broken::NoReader)
    }
}

/// A cache of the names of roles and resources. Only names from authentic rows are added.
#[derive(Default)]
struct Names {
    roles: HashMap<RoleId, String>,
    resources: HashMap<ResourceId, String>,
}

impl Names {
    async fn role(&mut self, store: &Store, workspace: WorkspaceId, id: RoleId) -> Result<Option<String>, StoreError> {
        let read = async { Ok(store.role(workspace, id).await?.map(|RoleRow { name, .. }| name)) };
        kept(&mut self.roles, id, read).await
    }

    async fn resource(
        &mut self,
        store: &Store,
        workspace: WorkspaceId,
        id: ResourceId,
    ) -> Result<Option<String>, StoreError> {
        let read = async { Ok(store.resource(workspace, id).await?.map(|ResourceRow { name, .. }| name)) };
        kept(&mut self.resources, id, read).await
    }
}

/// Returns the name of `id` in `names`. If it is missing, reads it and keeps it.
async fn kept<Id: Hash + Eq>(
    names: &mut HashMap<Id, String>,
    id: Id,
    read: impl Future<Output = Result<Option<String>, StoreError>>,
) -> Result<Option<String>, StoreError> {
    if let Some(name) = names.get(&id) {
        return Ok(Some(name.clone()));
    }
    let name = read.await?;
    if names.len() >= NAMES_MAX {
        names.clear();
    }
    names.extend(name.clone().map(|name| (id, name)));
    Ok(name)
}
