//! The difference between what bots are granted before and after an import.

use std::collections::BTreeMap;

use monstrum_api::import::{BindingGrant, ChangedGates, ChangedLabels, Grant, ImportedPermissions, RoleGrant};
use monstrum_store::{BindingRow, BotRow, ResourceRow, RoleRow};
use monstrum_types::UtcMillis;
use serde::Serialize;

use crate::operations::gates;

/// The remaining space for grants in a response. The patterns of a role in a grant may be long, so the size of all
/// grants is limited in addition to their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    grants: usize,
    bytes: usize,
}

impl Listing {
    /// The limits of a whole response.
    pub(super) const WHOLE: Listing = Listing { grants: 1_000, bytes: 4 << 20 };
}

/// A grant that a response may list. The content is copied only if the grant is listed.
pub(super) enum GrantOf<'a> {
    Binding { row: &'a BindingRow, resource: &'a str, role: Option<&'a RoleRow> },
    Sandbox,
}

impl<'a> GrantOf<'a> {
    /// Returns the grant of a binding, or `None` if the binding is disabled or has expired, and therefore grants
    /// nothing.
    pub(super) fn binding(
        row: &'a BindingRow,
        resource: &'a str,
        role: Option<&'a RoleRow>,
        now: UtcMillis,
    ) -> Option<Self> {
        let is_active = row.enabled && row.expires_at.is_none_or(|end| now < end);
        is_active.then_some(GrantOf::Binding { row, resource, role })
    }

    /// Returns the grant of a sandbox, or `None` if sandboxes are switched off for the bot.
    pub(super) fn switch(use_agent_sandbox: bool) -> Option<Self> {
        use_agent_sandbox.then_some(GrantOf::Sandbox)
    }

    fn shown(&self) -> Grant {
        let GrantOf::Binding { row, resource, role } = self else { return Grant::Sandbox };
        let role = role.map(|role| RoleGrant {
            name: role.name.clone(),
            allowed_operations: role.allowed_operations.clone(),
            allowed_tools: role.allowed_tools.clone(),
            scope_constraints: role.scope_constraints.clone(),
            gates: gates::shown(role.gates.clone()),
        });
        Grant::Binding(Box::new(BindingGrant {
            resource: (*resource).to_owned(),
            role,
            permissions: row.permissions.clone(),
            scope_constraints: row.scope_constraints.clone(),
            delegate: row.delegate.clone(),
            gates: gates::shown(row.gates.clone()),
            allow_calls: row.allow_calls.clone(),
            allow_subscribe: row.allow_subscribe,
            limits: row.limits.clone(),
            calls_per_minute: row.calls_per_minute,
            expires_at: row.expires_at,
        }))
    }
}

/// The changed grants in a workspace, by bot, and the changed gates and labels.
pub(super) struct Differences {
    bots: BTreeMap<String, (Vec<Grant>, Vec<Grant>)>,
    gates: Vec<ChangedGates>,
    labels: Vec<ChangedLabels>,
    listing: Listing,
    left_out: usize,
}

/// The differences as a response shows them.
pub(super) struct Shown {
    pub(super) permissions: Vec<ImportedPermissions>,
    pub(super) gates: Vec<ChangedGates>,
    pub(super) labels: Vec<ChangedLabels>,
    pub(super) left_out: usize,
}

impl Differences {
    pub(super) fn new(listing: Listing) -> Differences {
        Differences { bots: BTreeMap::new(), gates: Vec::new(), labels: Vec::new(), listing, left_out: 0 }
    }

    /// Returns the space that remains for other workspaces.
    pub(super) fn listing(&self) -> Listing {
        self.listing
    }

    /// Adds a changed grant: `lost` is the grant before the import, and `gained` is the grant after it.
    pub(super) fn add(&mut self, bot: &str, lost: Option<GrantOf<'_>>, gained: Option<GrantOf<'_>>) {
        for (grant, is_gained) in [(lost, false), (gained, true)] {
            let Some(grant) = grant else { continue };
            let Some(shown) = self.listed(|| grant.shown()) else { continue };
            let (gains, loses) = self.bots.entry(bot.to_owned()).or_default();
            if is_gained { gains.push(shown) } else { loses.push(shown) }
        }
    }

    /// Adds the gates of a bot if the import changes them.
    pub(super) fn add_gates(&mut self, row: &BotRow, before: Option<&BotRow>) {
        let before = before.and_then(|before| before.gates.as_ref());
        if row.gates.as_ref() != before {
            let (bot, before, after) = (row.name.clone(), before.cloned(), row.gates.clone());
            let shown = || ChangedGates { bot, before: gates::shown(before), after: gates::shown(after) };
            let listed = self.listed(shown);
            self.gates.extend(listed);
        }
    }

    /// Adds the labels of a resource if the import changes them.
    pub(super) fn add_labels(&mut self, row: &ResourceRow, before: Option<&ResourceRow>) {
        let before = before.and_then(|before| before.labels.as_ref());
        if row.labels.as_ref() != before {
            let (resource, before, after) = (row.name.clone(), before.cloned(), row.labels.clone());
            let shown = || ChangedLabels { resource, before: gates::shown(before), after: gates::shown(after) };
            let listed = self.listed(shown);
            self.labels.extend(listed);
        }
    }

    /// Returns the entry if there is space for it in the response, and counts it.
    fn listed<T: Serialize>(&mut self, shown: impl FnOnce() -> T) -> Option<T> {
        if self.listing.grants == 0 || self.listing.bytes == 0 {
            self.left_out += 1;
            return None;
        }
        let shown = shown();
        let bytes = serde_json::to_vec(&shown).map_or(0, |text| text.len());
        self.listing.grants -= 1;
        self.listing.bytes = self.listing.bytes.saturating_sub(bytes);
        Some(shown)
    }

    /// Returns the differences by bot, the changed gates and labels, and the number of entries that are not listed.
    pub(super) fn shown(self) -> Shown {
        let Differences { bots, gates, labels, left_out, .. } = self;
        let shown = |(bot, (gains, loses))| ImportedPermissions { bot, gains, loses };
        Shown { permissions: bots.into_iter().map(shown).collect(), gates, labels, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_ends_at_its_number_and_at_its_bytes() {
        for (grants, bytes) in [(3, 1 << 20), (1_000, 50)] {
            let mut differences = Differences::new(Listing { grants, bytes });
            for _ in 0..10 {
                differences.add("a", None, GrantOf::switch(true));
            }
            let Shown { permissions, left_out, .. } = differences.shown();
            assert_eq!((permissions[0].gains.len(), left_out), (3, 7), "a sandbox takes 18 bytes");
        }
    }
}
