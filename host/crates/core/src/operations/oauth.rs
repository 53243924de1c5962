//! Obtains the credential of a resource by OAuth, and refreshes it.

use std::pin::pin;

use monstrum_api::credentials::CredentialMetadata;
use monstrum_api::oauth::{DeviceInput, DeviceProgress, DeviceStarted, StartInput, Started};
use monstrum_egress::{CredentialSource as _, CredentialState};
use monstrum_store::OauthFlowRow;
use monstrum_types::{AppUser, AwaitedAuthorization, CredentialId, OauthFlowId, ResourceId, Secret, UtcMillis};
use tokio::time::{Instant, sleep_until};
use url::Url;

use super::change::Change;
use super::credentials::{as_it_stands, credential_of, served};
use super::resources::resource;
use super::{Admin, Caller, InputErrors, OperationError, tools, user_credentials};
use crate::access_tokens::SignInRequest;
use crate::app::App;
use crate::oauth::{OauthError, ReturnTo, SignIn, Wanted};

/// Starts an authorization in a browser.
///
/// The browser visits the OAuth provider of the resource, and the server then stores the credential of the resource or of
/// the user. The link is valid for ten minutes and for one browser. Only an admin authorizes the resource itself.
pub async fn start(
    app: &App,
    caller: &Caller,
    id: ResourceId,
    StartInput { user, return_to }: StartInput,
) -> Result<Started, OperationError> {
    user_credentials::may_act(app, caller, id)?;
    if user.is_none() {
        caller.admin()?;
    }
    let mut errors = InputErrors::default();
    if let Some(user) = &user {
        user_credentials::check_user(&mut errors, "/user", user);
    }
    // The browser of a user is redirected. An admin gets a link to the console.
    let checked = |text: &str| match user {
        Some(_) => ReturnTo::parse(text, &app.return_origins),
        None => ReturnTo::parse_console(text),
    };
    let return_to = return_to_of(&mut errors, return_to.as_deref().map(checked));
    errors.check()?;
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    if let Some(user) = &user {
        user_credentials::check_resource(app, serving, user)?;
    }
    Ok(app.oauth.start(serving, caller.key, Wanted { user, return_to }).await?)
}

/// Returns a link with which the user of an access token authorizes a resource, or `None` if users cannot sign in, or the
/// resource has no OAuth provider.
pub fn connect_url(app: &App, caller: &Caller, needed: &AwaitedAuthorization) -> Option<(String, UtcMillis)> {
    let user = caller.token_user.as_ref()?;
    let is_own = |other: &AppUser| other.app_id == *user.issuer && other.user_id == *user.subject;
    if !app.access_tokens.as_ref()?.signs_in() || !needed.user.as_ref().is_some_and(is_own) {
        return None;
    }
    let snapshot = app.policy.load();
    let resource = snapshot.resource(caller.workspace, needed.resource_id)?;
    snapshot.issuer(&resource.row)?;
    let link = app.oauth.connect_url((caller.workspace, resource.row.id), user, caller.key);
    link.inspect_err(|error| tracing::error!(%error, "failed to make a link for the authorization of a user")).ok()
}

/// Opens a link for the user of an access token. Returns the URL at the issuer at which the user signs in.
pub async fn connect(app: &App, ticket: &str, browser: Option<&str>) -> Result<(Url, SignIn), OauthError> {
    let issuer = app.access_tokens.as_ref().ok_or(OauthError::NotThisBrowser)?;
    let sign_in = app.oauth.connect(ticket, browser).await?;
    let redirect_uri = app.oauth.sign_in_callback_url()?;
    let SignIn { state, nonce, challenge, .. } = &sign_in;
    let request = SignInRequest { state, nonce, challenge, redirect_uri: &redirect_uri };
    let url = issuer.sign_in_url(&request).await.map_err(|error| OauthError::SignIn(error.to_string()))?;
    Ok((url, sign_in))
}

/// Handles the answer of the issuer at which a user has signed in. Returns the URL of the page that begins the
/// authorization, if the person who has signed in is the user.
pub async fn signed_in(
    app: &App,
    flow: &OauthFlowRow,
    browser: Option<&str>,
    code: Result<Secret, String>,
    issuer: Option<&str>,
) -> Result<String, OauthError> {
    let step = app.oauth.sign_in_step(flow, browser)?;
    let tokens = app.access_tokens.as_ref().ok_or(OauthError::NotThisBrowser)?;
    let redirect_uri = app.oauth.sign_in_callback_url()?;
    let subject = match code {
        Ok(code) => {
            let expected = (&step.verifier, &step.nonce);
            tokens.signed_in(&code, issuer, expected, &redirect_uri).await.map_err(|error| error.to_string())
        }
        Err(_) => Err("the issuer sent no code".to_owned()),
    };
    app.oauth.signed_in(flow, step, subject).await
}

/// Waits up to `wait_s` seconds until the user has a credential for the resource other than `known`, or the caller loses
/// its access. The call itself then decides.
pub async fn until_authorized(
    app: &App,
    caller: &Caller,
    resource: ResourceId,
    user: &AppUser,
    (known, wait_s): (Option<CredentialId>, u32),
) -> Result<(), OperationError> {
    let until = Instant::now() + tools::approval_wait(wait_s)?;
    let mut renewals = app.policy.renewals();
    let mut expired = pin!(caller.expired(&*app.clock));
    loop {
        // The wait must not keep an old policy alive.
        let is_over = {
            let snapshot = app.policy.load();
            let present = snapshot.user_credential(resource, user).map(|credential| credential.held.row.id);
            present != known || !caller.is_known(&snapshot, app.clock.now())
        };
        if is_over {
            return Ok(());
        }
        tokio::select! {
            () = &mut expired => return Ok(()),
            renewed = renewals.changed() => if renewed.is_err() { return Ok(()) },
            () = sleep_until(until) => return Ok(()),
            () = app.approvals.closed() => return Ok(()),
        }
    }
}

/// Starts an authorization that a person confirms by entering a code on another device.
pub async fn device(
    app: &App,
    caller: &Admin,
    id: ResourceId,
    DeviceInput { return_to }: DeviceInput,
) -> Result<DeviceStarted, OperationError> {
    let mut errors = InputErrors::default();
    let return_to = return_to_of(&mut errors, return_to.as_deref().map(ReturnTo::parse_console));
    errors.check()?;
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    Ok(app.oauth.start_device(served(&snapshot, &row)?, caller.key, return_to).await?)
}

/// Shows the progress of an authorization that was started with `device`.
pub async fn show_device(
    app: &App,
    caller: &Admin,
    id: ResourceId,
    flow_id: OauthFlowId,
) -> Result<DeviceProgress, OperationError> {
    let flow = app.store.oauth_flow(caller.workspace, id, flow_id).await?;
    let flow =
        flow.filter(|flow| flow.poll_interval_s.is_some()).ok_or_else(|| OperationError::not_found("authorization"))?;
    Ok(app.oauth.device_progress(flow)?)
}

/// Returns the checked `return_to` of an authorization. Adds its error to `errors`.
fn return_to_of(errors: &mut InputErrors, checked: Option<Result<ReturnTo, String>>) -> Option<ReturnTo> {
    match checked? {
        Ok(return_to) => Some(return_to),
        Err(why) => {
            errors.add("/return_to", why);
            None
        }
    }
}

/// Refreshes the credential of a resource.
///
/// A credential that this server refreshed within the last ten seconds is not refreshed again.
pub async fn refresh(app: &App, caller: &Admin, id: ResourceId) -> Result<CredentialMetadata, OperationError> {
    let row = resource(app, caller, id).await?;
    let snapshot = app.policy.load();
    let serving = served(&snapshot, &row)?;
    let source = serving.credential_source();
    let credential = source.current().await.map_err(not_refreshed)?;
    if !credential.refreshable {
        let why = "this credential cannot be refreshed: it was not obtained through OAuth, or has no refresh token";
        return Err(OperationError::conflict(why));
    }
    let change = Change::new("credential.refresh", &id).of_resource(id).from(&credential_of(app, &row).await?);
    let refresh = async { source.refresh(&credential).await.map(|_| ()).map_err(not_refreshed) };
    change.apply(app, caller, refresh).await?;
    as_it_stands(app, &row).await
}

fn not_refreshed(state: CredentialState) -> OperationError {
    match state {
        CredentialState::Unavailable => {
            OperationError::unavailable("the provider or the database is not available; try again")
        }
        CredentialState::None | CredentialState::NotNeeded => OperationError::not_found("credential"),
        _ => OperationError::conflict("the credential must be authorized again"),
    }
}

impl From<OauthError> for OperationError {
    fn from(error: OauthError) -> Self {
        match error {
            OauthError::Token(error) => OperationError::BadGateway(error.to_string()),
            OauthError::Lookup(error) => OperationError::BadGateway(error.to_string()),
            OauthError::Store(error) => error.into(),
            OauthError::Vault(error) => OperationError::internal(error),
            OauthError::Audit(error) => OperationError::unavailable(error.to_string()),
            refused => OperationError::conflict(refused.to_string()),
        }
    }
}
