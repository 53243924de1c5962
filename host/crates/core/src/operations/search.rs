//! Finds objects by a part of their names, and calls and changes by the id of their request.

use monstrum_api::search::{Found, FoundKind, FoundParent, SearchResult};
use monstrum_store::{AuditRow, PAGE_ITEMS_MAX, Page};
use monstrum_types::RequestId;

use super::list::each_row;
use super::{OperationError, Operator};
use crate::app::App;
use crate::policy::Snapshot;

/// The maximum number of results. A longer name finds an object that is missing in them.
const ITEMS_MAX: usize = 20;
/// The maximum number of characters of a text, which is the maximum length of a name.
const CHARS_MAX: usize = 128;

/// How well a name matches a text. A better match is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Whole,
    Begin,
    Part,
}

/// The objects found so far.
struct Search {
    /// The text in lower case.
    text: String,
    found: Vec<(Match, Found)>,
}

impl Search {
    /// Adds the object if its name contains the text.
    fn offer(&mut self, name: &str, object: impl FnOnce() -> Found) {
        if let Some(quality) = matched(&name.to_lowercase(), &self.text) {
            self.found.push((quality, object()));
        }
    }

    fn best(mut self) -> Vec<Found> {
        self.found.sort_by(|(a_quality, a), (b_quality, b)| {
            let order = a_quality.cmp(b_quality).then_with(|| a.name.cmp(&b.name));
            order.then_with(|| a.kind.cmp(&b.kind)).then_with(|| a.id.cmp(&b.id))
        });
        self.found.truncate(ITEMS_MAX);
        self.found.into_iter().map(|(_, found)| found).collect()
    }
}

/// Finds the objects of the caller's workspace whose names contain `text`, regardless of case.
pub async fn find(app: &App, caller: &Operator, text: &str) -> Result<SearchResult, OperationError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(OperationError::invalid_at("q", "must not be empty"));
    }
    if text.chars().count() > CHARS_MAX {
        return Err(OperationError::invalid_at("q", format!("must have at most {CHARS_MAX} characters")));
    }
    let snapshot = app.policy.load();
    let mut search = Search { text: text.to_lowercase(), found: Vec::new() };
    if let Ok(request) = text.parse() {
        search.found.extend(request_of(app, caller, &snapshot, request).await?.map(|found| (Match::Whole, found)));
    }
    bots_and_roles(&mut search, caller, &snapshot);
    resources(&mut search, app, caller).await?;
    for entry in app.plugins.entries() {
        search.offer(&entry.name, || object(FoundKind::Plugin, &entry.name, &entry.name));
    }
    tools(&mut search, caller, &snapshot);
    Ok(SearchResult { items: search.best() })
}

fn matched(name: &str, text: &str) -> Option<Match> {
    if name == text {
        Some(Match::Whole)
    } else if name.starts_with(text) {
        Some(Match::Begin)
    } else {
        name.contains(text).then_some(Match::Part)
    }
}

fn object(kind: FoundKind, id: &(impl ToString + ?Sized), name: &str) -> Found {
    Found { kind, id: id.to_string(), name: name.to_owned(), parent: None }
}

fn within(kind: FoundKind, id: &(impl ToString + ?Sized), name: &str) -> Option<FoundParent> {
    Some(FoundParent { kind, id: id.to_string(), name: name.to_owned() })
}

/// Returns the call of this request in the caller's workspace, or the change if the caller may read changes.
async fn request_of(
    app: &App,
    caller: &Operator,
    snapshot: &Snapshot,
    request: RequestId,
) -> Result<Option<Found>, OperationError> {
    let rows = app.store.events(caller.workspace, request).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let is_change = rows.iter().any(AuditRow::is_of_change);
    if is_change && caller.admin().is_err() {
        return Ok(None);
    }
    let kind = if is_change { FoundKind::Change } else { FoundKind::Call };
    let name = row.tool.as_deref().or(row.operation.as_deref()).unwrap_or_default();
    let bot = row.bot_id.and_then(|bot| snapshot.bot(caller.workspace, bot));
    let parent = bot.and_then(|bot| within(FoundKind::Bot, &bot.row.id, &bot.row.name));
    Ok(Some(Found { parent, ..object(kind, &request, name) }))
}

fn bots_and_roles(search: &mut Search, caller: &Operator, snapshot: &Snapshot) {
    for bot in snapshot.bots(caller.workspace) {
        search.offer(&bot.row.name, || object(FoundKind::Bot, &bot.row.id, &bot.row.name));
    }
    for role in snapshot.roles(caller.workspace) {
        search.offer(&role.row.name, || object(FoundKind::Role, &role.row.id, &role.row.name));
    }
}

/// Searches the stored resources, because the policy lacks the resources whose plugin is not loaded.
async fn resources(search: &mut Search, app: &App, caller: &Operator) -> Result<(), OperationError> {
    each_row!(Page::first(PAGE_ITEMS_MAX), |page| app.store.resources(caller.workspace, &page), |row| {
        let resource_type = row.resource_type.as_str();
        search.offer(&row.name, || Found {
            parent: within(FoundKind::ResourceType, resource_type, resource_type),
            ..object(FoundKind::Resource, &row.id, &row.name)
        });
    });
    Ok(())
}

/// Searches the tools of the loaded plugins, and the tools that belong to resources of the caller's workspace.
fn tools(search: &mut Search, caller: &Operator, snapshot: &Snapshot) {
    for plugin in snapshot.resource_types() {
        let resource_type = plugin.manifest.resource_type.id.as_str();
        for tool in &plugin.tools {
            let name = tool.manifest.name.as_str();
            search.offer(name, || Found {
                parent: within(FoundKind::ResourceType, resource_type, resource_type),
                ..object(FoundKind::Tool, name, name)
            });
        }
    }
    for resource in snapshot.resources().filter(|resource| resource.row.workspace_id == caller.workspace) {
        let Some(id) = resource.stored_id() else { continue };
        for name in resource.tool_names() {
            search.offer(&name, || Found {
                parent: within(FoundKind::Resource, &id, &resource.row.name),
                ..object(FoundKind::Tool, &name, &name)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_matches_are_first_and_the_rest_is_cut() {
        let mut search = Search { text: "ab".to_owned(), found: Vec::new() };
        for name in ["xab", "ABC", "b", "ab", "Ab2"] {
            search.offer(name, || object(FoundKind::Bot, name, name));
        }
        let names = |found: Vec<Found>| found.into_iter().map(|found| found.name).collect::<Vec<_>>();
        assert_eq!(names(search.best()), ["ab", "ABC", "Ab2", "xab"]);
        let mut search = Search { text: "n".to_owned(), found: Vec::new() };
        for number in 0..50 {
            let name = format!("n{number:02}");
            search.offer(&name, || object(FoundKind::Role, &number, &name));
        }
        let found = names(search.best());
        assert_eq!((found.len(), found[0].as_str(), found[19].as_str()), (20, "n00", "n19"));
    }

    #[test]
    fn a_name_outside_ascii_matches_regardless_of_case() {
        assert_eq!(matched(&"Ärzte".to_lowercase(), &"ÄRZ".to_lowercase()), Some(Match::Begin));
        assert_eq!(matched("bot", "x"), None);
    }
}
