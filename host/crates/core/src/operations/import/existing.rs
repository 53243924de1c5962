//! The objects of a workspace before an import, by name.

use std::collections::{HashMap, HashSet};

use monstrum_store::{BindingRow, BotRow, PAGE_ITEMS_MAX, Page, ResourceRow, RoleRow, Store, StoreError};
use monstrum_types::{BotId, ResourceId, ResourceTypeId, WorkspaceId};

use super::lines::Lines;
use crate::operations::list::each_row;

/// The objects of a workspace. Only authentic rows are read. For bots and resources that the import does not describe,
/// only the ids are kept, because the rows may be large.
#[derive(Default)]
pub(super) struct Existing {
    pub(super) roles: HashMap<String, RoleRow>,
    pub(super) bots: HashMap<String, BotId>,
    pub(super) bot_rows: HashMap<String, BotRow>,
    pub(super) resources: HashMap<String, (ResourceId, ResourceTypeId)>,
    pub(super) resource_rows: HashMap<String, ResourceRow>,
    /// The bindings of the bots to which the import binds resources.
    pub(super) bindings: HashMap<(BotId, ResourceId), BindingRow>,
}

impl Existing {
    /// Reads the objects of a workspace.
    pub(super) async fn read(store: &Store, workspace: WorkspaceId, lines: &Lines) -> Result<Existing, StoreError> {
        let mut existing = Existing::default();
        let described: HashSet<&str> = lines.bots.iter().map(|bot| bot.line.name.as_str()).collect();
        let first = Page::first(PAGE_ITEMS_MAX);
        each_row!(first, |page| store.roles(workspace, &page), |row| {
            existing.roles.insert(row.name.clone(), row);
        });
        // A page of bots or resources may be large, because of their prompts and configurations.
        each_row!(Page::first(LARGE_ROWS), |page| store.bots(workspace, &page), |row| {
            existing.bots.insert(row.name.clone(), row.id);
            if described.contains(row.name.as_str()) {
                existing.bot_rows.insert(row.name.clone(), row);
            }
        });
        let described: HashSet<&str> = lines.resources.iter().map(|resource| resource.line.name.as_str()).collect();
        each_row!(Page::first(LARGE_ROWS), |page| store.resources(workspace, &page), |row| {
            existing.resources.insert(row.name.clone(), (row.id, row.resource_type.clone()));
            if described.contains(row.name.as_str()) {
                existing.resource_rows.insert(row.name.clone(), row);
            }
        });
        let bound: HashSet<&str> = lines.bindings.iter().map(|binding| binding.line.bot.as_str()).collect();
        for bot in bound {
            let Some(bot) = existing.bots.get(bot).copied() else { continue };
            each_row!(Page::first(PAGE_ITEMS_MAX), |page| store.bindings(workspace, bot, &page), |row| {
                existing.bindings.insert((row.bot_id, row.resource_id), row);
            });
        }
        Ok(existing)
    }
}

/// The number of rows on a page of bots or resources.
const LARGE_ROWS: u32 = 100;
