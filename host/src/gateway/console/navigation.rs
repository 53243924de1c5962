//! The side bar: the pages that the key of the session may read.

use crate::gateway::console::page::{NavGroup, NavItem};
use crate::gateway::console::visit::Visit;

/// An entry: the section, and the operation of the API that it shows.
struct Entry(&'static str, &'static str);

const ABOVE: &[Entry] = &[Entry("overview", "overview_attention"), Entry("approvals", "approvals_list")];

const GROUPS: &[(&str, &[Entry])] = &[
    (
        "nav.use",
        &[
            Entry("bots", "bots_list"),
            Entry("tasks", "tasks_list"),
            Entry("sessions", "sessions_list"),
            Entry("workflows", "workflows_list"),
            Entry("schedules", "schedules_list"),
            Entry("events", "events_list"),
            Entry("conversations", "sandboxes_commands"),
        ],
    ),
    (
        "nav.connect",
        &[Entry("resources", "resources_list"), Entry("plugins", "plugins_list"), Entry("oauth-apps", "oauth_create")],
    ),
    (
        "nav.control",
        &[
            Entry("activity", "audit_list"),
            Entry("budgets", "budgets_list"),
            Entry("roles", "roles_list"),
            Entry("keys", "keys_list"),
        ],
    ),
    (
        "nav.instance",
        &[
            Entry("workspaces", "workspaces_list"),
            Entry("trust", "trust_list"),
            // The health check needs no key, but the page is for those who run the server.
            Entry("health", "workspaces_list"),
        ],
    ),
];

/// Returns the groups of the side bar. `waiting` is the number of approvals that wait for a person.
pub(super) fn groups(visit: &Visit, section: &str, waiting: Option<u64>) -> Vec<NavGroup> {
    let words = visit.words();
    let items = |entries: &[Entry]| -> Vec<NavItem> {
        let allowed = entries.iter().filter(|Entry(_, operation)| visit.may(operation));
        allowed
            .map(|Entry(name, _)| NavItem {
                label: words.known(&format!("nav.{name}")).unwrap_or_default(),
                href: visit.to(name),
                count: waiting.filter(|_| *name == "approvals"),
                current: *name == section,
            })
            .collect()
    };
    let above = NavGroup { label: "", items: items(ABOVE) };
    let rest = GROUPS.iter().map(|(label, entries)| NavGroup { label: words.text(label), items: items(entries) });
    std::iter::once(above).chain(rest).filter(|group| !group.items.is_empty()).collect()
}
