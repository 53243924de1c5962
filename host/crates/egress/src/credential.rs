//! Credentials and their source.
//!
//! [`CredentialSource`] hides the vault, the stored audience and OAuth. Egress only requests the current credential.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use monstrum_manifest::{InjectRule, OriginPattern, fill, placeholders};
use monstrum_types::{Failure, FailureCode, Secret, UtcMillis};
use url::Url;

/// A decrypted credential that may be used.
#[derive(Clone)]
pub struct Credential {
    /// The values of the credential's fields, by field name.
    pub fields: BTreeMap<String, Secret>,
    /// The fields that the manifest declares as not secret, such as a user's e-mail address. All other fields are
    /// secret, including undeclared ones.
    pub plain_fields: BTreeSet<String>,
    /// The inject rules, which were stored with the credential.
    pub inject: Vec<InjectRule>,
    /// The audience that was stored with the credential, restricted to the current audience.
    pub audience: Vec<OriginPattern>,
    /// Whether the source can refresh the credential.
    pub refreshable: bool,
    /// The time at which the credential expires.
    pub expires_at: Option<UtcMillis>,
}

/// The state of a resource's credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialState {
    /// The credential can be used.
    Ready,
    /// The credential has expired and cannot be refreshed.
    Expired,
    /// An admin must confirm the credential or save it again before it is used.
    NeedsAuthorization,
    /// No credential is stored.
    None,
    /// The resource type has no authentication, so requests are sent without a credential.
    NotNeeded,
    /// The credential cannot be read at the moment.
    Unavailable,
}

impl CredentialState {
    /// Returns the name of this state in the plugin interface.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CredentialState::Ready => "ready",
            CredentialState::Expired => "expired",
            CredentialState::NeedsAuthorization => "needs-authorization",
            CredentialState::None | CredentialState::NotNeeded | CredentialState::Unavailable => "none",
        }
    }

    /// Returns the failure of a request that needs a credential in this state.
    pub(crate) fn failure(self) -> Failure {
        let message = match self {
            CredentialState::Expired => "the credential of this resource has expired",
            CredentialState::NeedsAuthorization => {
                "an admin must confirm or reauthorize the credential of this resource"
            }
            CredentialState::None => "no credential is stored for this resource",
            CredentialState::Unavailable => {
                return Failure::unsent(
                    FailureCode::Unavailable,
                    "the credential is temporarily unavailable; try again later",
                );
            }
            CredentialState::Ready | CredentialState::NotNeeded => {
                return Failure::unsent(FailureCode::Internal, "the credential is in an inconsistent state");
            }
        };
        Failure::unsent(FailureCode::Unauthenticated, message)
    }
}

/// The source of the credential of one resource.
pub trait CredentialSource: Send + Sync {
    /// Returns the current credential.
    fn current(&self) -> BoxFuture<'_, Result<Arc<Credential>, CredentialState>>;

    /// Replaces `stale`, which is about to expire or was rejected. Concurrent calls share one refresh.
    fn refresh<'a>(&'a self, stale: &'a Credential) -> BoxFuture<'a, Result<Arc<Credential>, CredentialState>>;

    /// Returns the state of the credential, for the plugin.
    fn status(&self) -> CredentialState;
}

/// A source that never has a credential.
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
    /// Returns all values to redact: the secret fields, and the values that the inject rules derive from them.
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

    /// Returns whether the audience of the credential includes `url`.
    pub(crate) fn is_for(&self, url: &Url) -> bool {
        self.audience.iter().any(|origin| origin.matches(url))
    }

    /// Fills `template` with the fields. Returns `None` if a field is missing.
    pub(crate) fn fill(&self, template: &str) -> Option<Secret> {
        fill(template, |name| self.fields.get(name).map(|value| value.expose().to_owned())).map(Secret::new)
    }

    /// Returns the user name and password, separated by a colon, or `None` if a field is missing.
    pub(crate) fn basic(&self, username: &str, password: &str) -> Option<Secret> {
        let (username, password) = (self.fill(username)?, self.fill(password)?);
        Some(Secret::new(format!("{}:{}", username.expose(), password.expose())))
    }

    fn uses_secret(&self, rule: &InjectRule) -> bool {
        rule.templates().into_iter().flat_map(placeholders).any(|name| !self.plain_fields.contains(name))
    }
}

/// Encodes a user name and password for HTTP Basic (RFC 7617).
pub(crate) fn basic_token(pair: &Secret) -> Secret {
    Secret::new(STANDARD.encode(pair.expose()))
}

#[cfg(test)]
mod tests {
    use monstrum_manifest::{BasicPair, BasicRule, HeaderRule};

    use super::*;

    #[test]
    fn secret_values_are_the_secret_fields_and_derived_values() {
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
