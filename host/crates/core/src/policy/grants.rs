//! The approvals that permit a call now.

use monstrum_guardian::Consent;
use monstrum_store::{Changed, GrantRow};
use monstrum_types::{ApprovalId, Digest, UtcMillis, WorkspaceId};

/// The grants of a snapshot, by the digest of the call that each permits.
#[derive(Clone, Default)]
pub struct Grants {
    of_calls: imbl::HashMap<Digest, GrantRow>,
    digests: imbl::HashMap<ApprovalId, Digest>,
}

impl Grants {
    /// Returns the consent to the call with this digest, if the workspace has a grant for the call that has not expired.
    pub fn consent(&self, workspace: WorkspaceId, digest: &Digest, now: UtcMillis) -> Option<Consent> {
        let grant = self.of_calls.get(digest)?;
        let is_in_force = grant.workspace_id == workspace && grant.expires_at > now;
        is_in_force.then(|| Consent { approval: grant.id, digest: grant.digest.clone() })
    }

    /// Returns whether there is a grant for the call with this digest.
    pub fn contain(&self, digest: &Digest) -> bool {
        self.of_calls.contains_key(digest)
    }

    /// Applies changes of grants.
    pub(super) fn change(&mut self, rows: Changed<ApprovalId, GrantRow>) {
        // All old grants are removed before new grants are added, because the call of an old grant may have a new grant.
        for id in rows.keys() {
            if let Some(digest) = self.digests.remove(id) {
                self.of_calls.remove(&digest);
            }
        }
        for row in rows.into_values().flatten() {
            self.digests.insert(row.id, row.digest.clone());
            self.of_calls.insert(row.digest.clone(), row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(character: char) -> Digest {
        format!("sha256:{}", character.to_string().repeat(64)).parse().unwrap()
    }

    #[test]
    fn a_consent_is_to_one_call_of_one_workspace_until_it_expires() {
        let (workspace, now) = (WorkspaceId::new(), UtcMillis(1_000));
        let row = |digest: Digest| GrantRow {
            id: ApprovalId::new(),
            workspace_id: workspace,
            digest,
            expires_at: UtcMillis(2_000),
        };
        let (first, second) = (row(digest('a')), row(digest('a')));
        let mut grants = Grants::default();
        grants.change(Changed::from([(first.id, Some(first.clone()))]));
        let consent = grants.consent(workspace, &digest('a'), now).unwrap();
        assert_eq!((consent.approval, consent.digest), (first.id, digest('a')));
        assert!(grants.consent(workspace, &digest('b'), now).is_none());
        assert!(grants.consent(WorkspaceId::new(), &digest('a'), now).is_none());
        assert!(grants.consent(workspace, &digest('a'), UtcMillis(2_000)).is_none());
        grants.change(Changed::from([(first.id, None), (second.id, Some(second.clone()))]));
        assert_eq!(grants.consent(workspace, &digest('a'), now).unwrap().approval, second.id);
        grants.change(Changed::from([(second.id, None)]));
        assert!(grants.consent(workspace, &digest('a'), now).is_none());
    }
}
