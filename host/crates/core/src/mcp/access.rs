//! The access to the server of a resource: with the credential of the resource, or of one user.

use std::sync::Arc;

use monstrum_types::{CredentialId, ResourceId, UtcMillis};
use serde_json::Value;

use super::url;
use crate::credentials::{HeldCredential, ResourceCredential};
use crate::policy::{Resource, Snapshot, UserCredential};

/// A resource, and the credential with which its server is used.
#[derive(Clone)]
pub struct Access {
    pub(super) resource: Arc<Resource>,
    pub(super) credential: Arc<ResourceCredential>,
    /// The id of the stored credential and the time of its last change; `None` without a credential.
    stored: Option<(CredentialId, UtcMillis)>,
    held: Option<Arc<HeldCredential>>,
    is_of_user: bool,
}

impl Access {
    /// Returns the access with the credential of the resource, if it has one.
    pub fn shared(resource: &Arc<Resource>) -> Access {
        let stored = resource.credential.as_ref().map(|held| (held.row.id, held.row.updated_at));
        let (resource, credential) = (Arc::clone(resource), Arc::clone(resource.credential_source()));
        let held = resource.credential.clone();
        Access { resource, credential, stored, held, is_of_user: false }
    }

    /// Returns the access with the credential of a user.
    pub fn of_user(resource: &Arc<Resource>, user: &UserCredential) -> Access {
        let row = &user.held.row;
        let (stored, credential) = (Some((row.id, row.updated_at)), user.source(resource));
        let held = Some(Arc::clone(&user.held));
        Access { resource: Arc::clone(resource), credential, stored, held, is_of_user: true }
    }

    /// Returns whether requests carry a credential. A server without a credential is public. A credential that cannot be
    /// used makes the request fail.
    pub(super) fn has_credential(&self) -> bool {
        self.stored.is_some()
    }

    /// Returns the stored credential.
    pub(super) fn held(&self) -> Option<&Arc<HeldCredential>> {
        self.held.as_ref()
    }

    pub(super) fn place(&self) -> LinkPlace {
        let user = self.stored.filter(|_| self.is_of_user).map(|(id, _)| id);
        LinkPlace { resource: self.resource.row.id, user }
    }

    /// Returns the access to the resource as it is now, or `None` if the user no longer has the credential.
    pub(super) fn renewed(&self, now: &Arc<Resource>, snapshot: &Snapshot) -> Option<Access> {
        match self.place().user {
            None => Some(Access::shared(now)),
            Some(user) if snapshot.has_user_credential(user) => {
                Some(Access { resource: Arc::clone(now), ..self.clone() })
            }
            Some(_) => None,
        }
    }

    pub(super) fn identity(&self) -> Identity {
        let resource = &self.resource;
        Identity { url: url(resource).to_owned(), network: resource.row.network.clone(), credential: self.stored }
    }
}

/// The owner of a connection: a resource, or a user of a resource. Users never share a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LinkPlace {
    pub(super) resource: ResourceId,
    /// The credential of the user, or `None` for the connection with the credential of the resource.
    pub(super) user: Option<CredentialId>,
}

/// What a connection depends on. A session belongs to one server and one credential.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Identity {
    pub(super) url: String,
    pub(super) network: Value,
    pub(super) credential: Option<(CredentialId, UtcMillis)>,
}

impl Identity {
    /// Returns whether a connection with this identity is a connection of the access.
    pub(super) fn is_of(&self, access: &Access) -> bool {
        let Identity { url: own, network, credential } = self;
        *own == url(&access.resource) && *network == access.resource.row.network && *credential == access.stored
    }
}
