//! What a credential is to egress, and where it comes from.
//!
//! The vault, the sealed audience and OAuth lie behind [`CredentialSource`]; egress asks for what may be used now.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use monstrum_manifest::{InjectRule, OriginPattern, fill, placeholders};
use monstrum_types::{Failure, FailureCode, Secret, UtcMillis};
use url::Url;

/// A credential that may be used, opened.
#[derive(Clone)]
pub struct Credential {
    /// Its fields by name.
    pub fields: BTreeMap<String, Secret>,
    /// The fields that the manifest does not call secret, such as a user's e-mail address. All others are kept from
    /// everybody, so a field that nobody declared is treated as a secret.
    pub plain_fields: BTreeSet<String>,
    /// How it is added to a request: what was sealed with it.
    pub inject: Vec<InjectRule>,
    /// Who may get it: what was sealed with it, less what manifest and configuration no longer say.
    pub audience: Vec<OriginPattern>,
    /// Whether the source can replace it by a newer one.
    pub refreshable: bool,
    /// When the upstream stops accepting it.
    pub expires_at: Option<UtcMillis>,
}

/// How the credential of a resource stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialState {
    /// It can be used.
    Ready,
    /// It is no longer accepted, and cannot be refreshed.
    Expired,
    /// An admin has to confirm it or save it anew before it is used.
    NeedsAuthorization,
    /// None is stored.
    None,
    /// The resource type has no authentication: requests go without.
    NotNeeded,
    /// It cannot be read at present.
    Unavailable,
}

impl CredentialState {
    /// The word by which plugins know this state.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CredentialState::Ready => "ready",
            CredentialState::Expired => "expired",
            CredentialState::NeedsAuthorization => "needs-authorization",
            CredentialState::None | CredentialState::NotNeeded | CredentialState::Unavailable => "none",
        }
    }

    /// What a request ends with that needs a credential in this state.
    pub(crate) fn failure(self) -> Failure {
        let message = match self {
            CredentialState::Expired => "the credential of this resource has expired",
            CredentialState::NeedsAuthorization => {
                "an admin has to confirm the credential of this resource or authorize it again"
            }
            CredentialState::None => "no credential is stored for this resource",
            CredentialState::Unavailable => {
                return Failure::unsent(FailureCode::Unavailable, "the credential cannot be read at present");
            }
            CredentialState::Ready | CredentialState::NotNeeded => {
                return Failure::unsent(FailureCode::Internal, "the state of the credential is not consistent");
            }
        };
        Failure::unsent(FailureCode::Unauthenticated, message)
    }
}

/// Where the credential of one resource comes from.
pub trait CredentialSource: Send + Sync {
    /// The credential as it may be used now.
    fn current(&self) -> BoxFuture<'_, Result<Arc<Credential>, CredentialState>>;

    /// A newer one than `stale`, which expires or was refused. One refresh at a time: who comes second gets what the
    /// first one brought.
    fn refresh<'a>(&'a self, stale: &'a Credential) -> BoxFuture<'a, Result<Arc<Credential>, CredentialState>>;

    /// How it stands, for the plugin.
    fn status(&self) -> CredentialState;
}

/// The source of what goes out without a credential.
#[derive(Clone, Copy, Debug)]
pub struct Anonymous;

impl CredentialSource for Anonymous {
    fn current(&self) -> BoxFuture<'_, Result<Arc<Credential>, CredentialState>> {
        Box::pin(async { Err(CredentialState::NotNeeded) })
    }

    fn refresh<'a>(&'a self, _: &'a Credential) -> BoxFuture<'a, Result<Arc<Credential>, CredentialState>> {
        Box::pin(async { Err(CredentialState::NotNeeded) })
    }

    fn status(&self) -> CredentialState {
        CredentialState::NotNeeded
    }
}

impl Credential {
    /// Every value that must not leave a call: the secret fields, and what the inject rules make of them.
    #[must_use]
    pub fn secret_values(&self) -> Vec<Secret> {
        let secret_fields = self.fields.iter().filter(|(name, _)| !self.plain_fields.contains(*name));
        let mut values: Vec<Secret> = secret_fields.map(|(_, value)| value.clone()).collect();
        for rule in self.inject.iter().filter(|rule| self.uses_secret(rule)) {
            match rule {
                InjectRule::Basic(rule) => {
                    let pair = self.basic(&rule.basic.username, &rule.basic.password);
                    values.extend(pair.into_iter().flat_map(|pair| [basic_token(&pair), pair]));
                }
                other => values.extend(other.templates().into_iter().filter_map(|template| self.fill(template))),
            }
        }
        values
    }

    /// Whether the credential was given for the origin of `url`.
    pub(crate) fn is_for(&self, url: &Url) -> bool {
        self.audience.iter().any(|origin| origin.matches(url))
    }

    /// `template` with the fields in it, or None where one is missing.
    pub(crate) fn fill(&self, template: &str) -> Option<Secret> {
        fill(template, |name| self.fields.get(name).map(|value| value.expose().to_owned())).map(Secret::new)
    }

    /// User name and password with the colon between them, or None where a field is missing.
    pub(crate) fn basic(&self, username: &str, password: &str) -> Option<Secret> {
        let (username, password) = (self.fill(username)?, self.fill(password)?);
        Some(Secret::new(format!("{}:{}", username.expose(), password.expose())))
    }

    fn uses_secret(&self, rule: &InjectRule) -> bool {
        rule.templates().into_iter().flat_map(placeholders).any(|name| !self.plain_fields.contains(name))
    }
}

/// The second word of a Basic authorization (RFC 7617).
pub(crate) fn basic_token(pair: &Secret) -> Secret {
    Secret::new(STANDARD.encode(pair.expose()))
}

#[cfg(test)]
mod tests {
    use monstrum_manifest::{BasicPair, BasicRule, HeaderRule};

    use super::*;

    #[test]
    fn secret_values_are_the_fields_and_what_is_made_of_them() {
        let field = |name: &str, value: &str| (name.to_owned(), Secret::new(value.to_owned()));
        let credential = Credential {
            fields: [field("email", "me@example.com"), field("token", "s3cr3t-token")].into(),
            plain_fields: ["email".to_owned()].into(),
            inject: vec![
                InjectRule::Header(HeaderRule { header: "X-Mail".into(), value: "{email}".into() }),
                InjectRule::Header(HeaderRule { header: "Authorization".into(), value: "Bearer {token}".into() }),
                InjectRule::Header(HeaderRule { header: "X-Version".into(), value: "2026-11-21".into() }),
                InjectRule::Basic(BasicRule {
                    basic: BasicPair { username: "{email}".into(), password: "{token}".into() },
                }),
            ],
            audience: Vec::new(),
            refreshable: false,
            expires_at: None,
        };
        let values: Vec<String> = credential.secret_values().iter().map(|value| value.expose().to_owned()).collect();
        let token = STANDARD.encode("me@example.com:s3cr3t-token");
        assert_eq!(values, ["s3cr3t-token", "Bearer s3cr3t-token", &token, "me@example.com:s3cr3t-token"]);
    }
}
