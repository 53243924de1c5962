//! The credentials of users. They are not part of their resource, so that the authorization of one user replaces neither
//! the resource nor its bindings.

use std::sync::{Arc, Weak};

use monstrum_store::CredentialRow;
use monstrum_types::{AppUser, BotId, CredentialId, ResourceId, WorkspaceId};
use parking_lot::Mutex;

use super::{Binding, Resource};
use crate::call_types::call_secrets::SharedRedactors;
use crate::credentials::{HeldCredential, Refresher, ResourceCredential, Subject};

/// The credential of one user for one resource.
pub struct UserCredential {
    pub held: Arc<HeldCredential>,
    /// The source from which egress reads the credential, and the resource for which it was checked.
    source: Mutex<Option<(Weak<Resource>, Arc<ResourceCredential>)>>,
}

impl UserCredential {
    /// Returns the source for calls on `resource`, which is the resource of this credential. The first call decrypts the
    /// credential.
    pub fn source(&self, resource: &Arc<Resource>) -> Arc<ResourceCredential> {
        let mut source = self.source.lock();
        if let Some((of, known)) = &*source
            && std::ptr::eq(of.as_ptr(), Arc::as_ptr(resource))
        {
            return Arc::clone(known);
        }
        let new = Arc::new(resource.source_of(Some(&self.held)));
        *source = Some((Arc::downgrade(resource), Arc::clone(&new)));
        new
    }
}

/// The credentials of the users of all resources.
#[derive(Clone, Default)]
pub(super) struct UserCredentials {
    by_resource: imbl::HashMap<ResourceId, imbl::HashMap<Subject, Arc<UserCredential>>>,
    places: imbl::HashMap<CredentialId, (ResourceId, Subject)>,
}

impl UserCredentials {
    /// Adds the credential of this row. Reuses an unchanged credential of `before`.
    pub(super) fn insert(
        &mut self,
        subject: Subject,
        row: CredentialRow,
        refresher: &Arc<Refresher>,
        before: &UserCredentials,
    ) {
        let (id, resource) = (row.id, row.resource_id);
        let known = before.get(resource, &subject).filter(|known| known.held.is_of(&row)).cloned();
        let credential = known.unwrap_or_else(|| {
            let held = Arc::new(HeldCredential::new(row, Arc::clone(refresher)));
            Arc::new(UserCredential { held, source: Mutex::default() })
        });
        self.places.insert(id, (resource, subject.clone()));
        self.by_resource.entry(resource).or_default().insert(subject, credential);
    }

    /// Removes a credential. Returns whether this is the credential of a user.
    pub(super) fn remove(&mut self, id: CredentialId) -> bool {
        let Some((resource, subject)) = self.places.remove(&id) else { return false };
        // A new credential of the same user may already be in its place.
        if self.get(resource, &subject).is_some_and(|held| held.held.row.id == id)
            && let Some(users) = self.by_resource.get_mut(&resource)
        {
            users.remove(&subject);
            if users.is_empty() {
                self.by_resource.remove(&resource);
            }
        }
        true
    }

    /// Returns the credential of a user for a resource.
    pub(super) fn get(&self, resource: ResourceId, subject: &Subject) -> Option<&Arc<UserCredential>> {
        self.by_resource.get(&resource)?.get(subject)
    }

    /// Returns the number of users who have a credential for the resource.
    pub(super) fn count(&self, resource: ResourceId) -> usize {
        self.by_resource.get(&resource).map_or(0, imbl::HashMap::len)
    }

    /// Returns the rows of all credentials.
    #[cfg(test)]
    pub(super) fn rows(&self) -> impl Iterator<Item = &CredentialRow> {
        self.by_resource.values().flat_map(imbl::HashMap::values).map(|credential| &credential.held.row)
    }
}

impl super::Snapshot {
    /// Returns the credential of a user for a resource.
    pub fn user_credential(&self, resource: ResourceId, user: &AppUser) -> Option<&Arc<UserCredential>> {
        self.user_credentials.get(resource, &Subject::of_user(user))
    }

    /// Returns the number of users who have a credential for the resource.
    pub fn user_credential_count(&self, resource: ResourceId) -> usize {
        self.user_credentials.count(resource)
    }

    /// Returns whether a credential of a user is still in force.
    pub fn has_user_credential(&self, id: CredentialId) -> bool {
        self.user_credentials.places.contains_key(&id)
    }

    /// Returns the source from which calls on `resource` for this user read their credential. The source is
    /// empty without a user, and for a user without a credential.
    pub fn user_source(&self, resource: &Arc<Resource>, user: Option<&AppUser>) -> Arc<ResourceCredential> {
        let held = user.and_then(|user| self.user_credential(resource.row.id, user));
        held.map_or_else(|| Arc::new(ResourceCredential::absent()), |held| held.source(resource))
    }

    /// Returns the redactors for the credentials of the resources to which the bot is bound, and for those of the user, if
    /// there is one, at these resources. The first call decrypts the credentials.
    pub fn redactors_of(&self, workspace: WorkspaceId, bot: BotId, user: Option<&AppUser>) -> SharedRedactors {
        let bindings = self.bot(workspace, bot).into_iter().flat_map(|bot| &bot.bindings);
        let of_binding = |binding: &Arc<Binding>| {
            let resource = &binding.resource;
            let own = resource.credential.is_some().then(|| resource.credential_source().redactor());
            let held = user.and_then(|user| self.user_credential(resource.row.id, user));
            let of_user = held.map(|held| held.source(resource).redactor());
            [own, of_user]
        };
        bindings.flat_map(of_binding).flatten().collect()
    }
}
