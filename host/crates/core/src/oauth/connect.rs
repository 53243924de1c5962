//! Links with which the user of an access token authorizes a resource.
//!
//! The ticket of a link names the user, the bot and the resource. It is sealed, and it is not a credential: the browser that
//! opens the link must sign in at the issuer of access tokens, as the user whom the ticket names. A link that was sent to
//! another person stores nothing. The authorization begins when the link is opened, so that calls write no rows.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use monstrum_manifest::AuthKind;
use monstrum_store::{FlowStatus, OauthFlowRow, StoreError};
use monstrum_types::{AppUser, BotId, KeyId, OauthFlowId, ResourceId, Secret, UtcMillis, WorkspaceId};
use monstrum_vault::{AssociatedData, Vault, VaultError};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::users::{self, FlowUser};
use super::{AUTHORIZATION_LIFETIME_MS, Oauth, OauthError, hash, new_flow, random, same_browser};
use crate::call_types::incoming::TokenUser;

/// The content of a ticket.
#[derive(Serialize, Deserialize)]
struct Ticket {
    flow: OauthFlowId,
    workspace: WorkspaceId,
    resource: ResourceId,
    bot: BotId,
    user: AppUser,
    /// The id that stands for the user where other authorizations have the id of a key.
    key: KeyId,
    expires_at: UtcMillis,
}

/// The sealed record of an authorization whose user has not signed in yet, or has signed in.
#[derive(Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
enum Step {
    SignIn { verifier: String, nonce: String, ticket: String },
    SignedIn { browser: String },
}

/// What the answer of the issuer is checked against.
pub struct SignInStep {
    /// The PKCE verifier.
    pub verifier: Secret,
    pub nonce: Secret,
    ticket: Secret,
}

/// A sign-in that begins.
pub struct SignIn {
    pub flow: OauthFlowId,
    pub state: Secret,
    pub nonce: Secret,
    /// The PKCE challenge.
    pub challenge: String,
    /// The secret with which the browser is recognized when it returns.
    pub browser: Secret,
}

impl Ticket {
    fn sealed(&self, vault: &Vault) -> Result<String, VaultError> {
        let text = serde_json::to_vec(self).expect("ids and texts are JSON");
        Ok(vault.seal(&text, Ticket::place())?.to_string())
    }

    /// Opens the text of a ticket. Returns `None` if this host has not made it, or if it has expired.
    fn opened(text: &str, vault: &Vault, now: UtcMillis) -> Option<Ticket> {
        let opened = vault.unseal(&text.parse().ok()?, Ticket::place()).ok()?;
        let ticket: Ticket = serde_json::from_slice(&opened).ok()?;
        (now < ticket.expires_at).then_some(ticket)
    }

    fn place() -> AssociatedData {
        AssociatedData::new("oauth connect ticket")
    }
}

impl Oauth {
    /// Returns a link with which the user of an access token authorizes the resource, and its expiry. `key` stands for
    /// the user.
    pub fn connect_url(
        &self,
        (workspace, resource): (WorkspaceId, ResourceId),
        user: &TokenUser,
        key: KeyId,
    ) -> Result<(String, UtcMillis), OauthError> {
        let expires_at = self.clock.now().plus_ms(AUTHORIZATION_LIFETIME_MS);
        let (app_id, user_id) = (user.issuer.to_string(), user.subject.to_string());
        let user_of_app = AppUser { app_id, user_id };
        let flow = OauthFlowId::new();
        let ticket = Ticket { flow, workspace, resource, bot: user.bot, user: user_of_app, key, expires_at };
        let sealed = ticket.sealed(&self.vault)?;
        Ok((self.own_url(&format!("oauth/connect/{sealed}"))?, expires_at))
    }

    /// Returns the URL to which the issuer redirects browsers.
    pub fn sign_in_callback_url(&self) -> Result<String, OauthError> {
        self.own_url("oauth/connect/callback")
    }

    /// Returns the id of the authorization of a link, so that the browser can be recognized.
    pub fn flow_of_link(&self, ticket: &str) -> Result<OauthFlowId, OauthError> {
        Ok(self.ticket(ticket)?.flow)
    }

    fn ticket(&self, ticket: &str) -> Result<Ticket, OauthError> {
        Ticket::opened(ticket, &self.vault, self.clock.now()).ok_or(OauthError::NotThisBrowser)
    }

    /// Opens a link. Only the browser that first opens it can open it again, until it has signed in. `browser` is the
    /// secret that this browser received.
    pub async fn connect(&self, ticket: &str, browser: Option<&str>) -> Result<SignIn, OauthError> {
        let now = self.clock.now();
        let opened = self.ticket(ticket)?;
        let known = self.store.oauth_flow_of_ticket(&hash(ticket), now).await?;
        let is_new = known.is_none();
        let (flow, browser) = match known {
            Some(flow) if flow.status == FlowStatus::SigningIn => {
                let browser = same_browser(&flow, browser)?;
                (flow, browser)
            }
            Some(_) => return Err(OauthError::NotThisBrowser),
            None => (self.of_link(&opened, ticket, now).await?, random()?),
        };
        let (state, nonce, verifier) = (random()?, random()?, random()?);
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.expose().as_bytes()));
        let text = |secret: &Secret| secret.expose().to_owned();
        let step = Step::SignIn { verifier: text(&verifier), nonce: text(&nonce), ticket: ticket.to_owned() };
        let flow = OauthFlowRow {
            state_hash: Some(hash(state.expose())),
            browser_hash: Some(hash(browser.expose())),
            sealed: Some(self.seal_step(&flow, &step)?),
            ..flow
        };
        if is_new {
            // The id and the ticket are unique, so only one of several browsers inserts the row.
            self.store.insert_oauth_flow(&flow).await.map_err(|error| match error {
                StoreError::Conflict { .. } => OauthError::NotThisBrowser,
                error => error.into(),
            })?;
        } else if !self.store.sign_in_oauth_flow(&flow).await? {
            return Err(OauthError::NotThisBrowser);
        }
        Ok(SignIn { flow: flow.id, state, nonce, challenge, browser })
    }

    /// Returns the authorization of a link that is opened for the first time.
    async fn of_link(&self, opened: &Ticket, ticket: &str, now: UtcMillis) -> Result<OauthFlowRow, OauthError> {
        let snapshot = self.policy.load();
        let resource = snapshot.resource(opened.workspace, opened.resource).ok_or(OauthError::Changed)?;
        let (provider, given_for) = self.of_type(resource, AuthKind::Oauth2AuthCode).await?;
        let flow = OauthFlowRow {
            id: opened.flow,
            status: FlowStatus::SigningIn,
            ticket_hash: Some(hash(ticket)),
            expires_at: now.plus_ms(AUTHORIZATION_LIFETIME_MS),
            subject: Some(FlowUser::of_token(opened.user.clone(), opened.bot)),
            ..new_flow(resource, &provider, opened.key, &given_for, now)
        };
        if self.is_permitted(&snapshot, resource, &flow)? { Ok(flow) } else { Err(OauthError::Changed) }
    }

    /// Returns what the answer of the issuer is checked against, if this browser has begun the sign-in.
    pub fn sign_in_step(&self, flow: &OauthFlowRow, browser: Option<&str>) -> Result<SignInStep, OauthError> {
        same_browser(flow, browser)?;
        match self.unseal_step(flow) {
            Some(Step::SignIn { verifier, nonce, ticket }) if flow.status == FlowStatus::SigningIn => {
                Ok(SignInStep { verifier: verifier.into(), nonce: nonce.into(), ticket: ticket.into() })
            }
            _ => Err(OauthError::NotThisBrowser),
        }
    }

    /// Continues an authorization after the sign-in of `subject`, the user at the issuer, or ends it after a failure.
    /// Returns the URL of the page that begins the authorization.
    pub async fn signed_in(
        &self,
        flow: &OauthFlowRow,
        step: SignInStep,
        subject: Result<String, String>,
    ) -> Result<String, OauthError> {
        let user = users::user(flow)?.ok_or(OauthError::NotThisBrowser)?;
        let checked = match subject {
            Ok(subject) if subject == user.user_id => Ok(()),
            Ok(_) => Err(OauthError::OtherPerson),
            Err(why) => Err(OauthError::SignIn(why)),
        };
        if let Err(error) = checked {
            let (id, resource) = (flow.id, flow.resource_id);
            tracing::info!(oauth_flow.id = %id, resource.id = %resource, %error, "a sign-in was refused");
            self.store.refuse_sign_in(flow, &error.to_string()).await?;
            return Err(error);
        }
        let browser = flow.browser_hash.clone().ok_or(OauthError::NotThisBrowser)?;
        let proof = self.seal_step(flow, &Step::SignedIn { browser })?;
        if !self.store.signed_in_oauth_flow(flow, &proof).await? {
            return Err(OauthError::NotThisBrowser);
        }
        self.own_url(&format!("oauth/begin/{}", step.ticket.expose()))
    }

    /// Returns whether the browser of the authorization has signed in as its user. The status in the row does not
    /// prove this, because another program could have written it.
    pub(super) fn has_signed_in(&self, flow: &OauthFlowRow) -> bool {
        let Some(Step::SignedIn { browser }) = self.unseal_step(flow) else { return false };
        let stored = flow.browser_hash.as_deref().unwrap_or_default();
        browser.as_bytes().ct_eq(stored.as_bytes()).into()
    }

    fn seal_step(&self, flow: &OauthFlowRow, step: &Step) -> Result<String, OauthError> {
        self.seal(flow, &Secret::new(serde_json::to_string(step).expect("texts are JSON")))
    }

    fn unseal_step(&self, flow: &OauthFlowRow) -> Option<Step> {
        serde_json::from_str(self.unseal(flow).ok()?.expose()).ok()
    }
}

#[cfg(test)]
mod tests {
    use monstrum_vault::MasterKeys;

    use super::*;

    #[test]
    fn a_ticket_opens_until_it_expires_and_only_where_it_was_made() {
        let folder = tempfile::tempdir().unwrap();
        let vault = |name: &str| Vault::new(MasterKeys::create(&folder.path().join(name)).unwrap());
        let (own, other) = (vault("own.key"), vault("other.key"));
        let ticket = Ticket {
            flow: OauthFlowId::new(),
            workspace: WorkspaceId::new(),
            resource: ResourceId::new(),
            bot: BotId::new(),
            user: AppUser { app_id: "https://id.example".to_owned(), user_id: "ann".to_owned() },
            key: KeyId::new(),
            expires_at: UtcMillis(1000),
        };
        let text = ticket.sealed(&own).unwrap();
        let opened = |text: &str, vault: &Vault, now| Ticket::opened(text, vault, UtcMillis(now)).map(|it| it.flow);
        assert_eq!(opened(&text, &own, 999), Some(ticket.flow));
        assert_eq!(opened(&text, &own, 1000), None, "expired");
        assert_eq!(opened(&text, &other, 999), None, "another master key");
        let of_other_kind = own.seal(&serde_json::to_vec(&ticket).unwrap(), AssociatedData::new("another kind"));
        assert_eq!(opened(&of_other_kind.unwrap().to_string(), &own, 999), None, "another kind of record");
        for forged in ["", "a", "callback", &text[1..], &format!("{text}A"), &text.replace('A', "B")] {
            assert_eq!(opened(forged, &own, 999), None, "{forged}");
        }
        assert!(!text.contains("ann"), "a ticket shows nothing");
    }
}
