//! Authorizations for the credential of one user.
//!
//! An app starts the authorization of its user, or a user of an access token follows a link (`connect`). The page that
//! begins the authorization names the user and has a button. Only the browser that opened the page can press it: the
//! browser sends its cookie only with requests that come from this host's own pages.

use std::str::FromStr;
use std::sync::Arc;

use monstrum_store::{FlowStatus, KeyKind, OauthFlowRow};
use monstrum_types::{AppUser, BotId, Secret};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::{Oauth, OauthError, hash, random, same_browser, stored_url};
use crate::policy::{Bot, Resource, Snapshot};

/// The maximum length of a URL to which a browser returns. Browsers and servers accept at least 8000 bytes.
const RETURN_BYTES_MAX: usize = 2048;
/// The path of the console.
const CONSOLE: &str = "/console";

/// The user of an authorization, as the column `subject` has it.
#[derive(Serialize, Deserialize)]
pub(super) struct FlowUser {
    #[serde(flatten)]
    user: AppUser,
    /// The bot for which the user has an access token. Such a user must sign in at the issuer before the authorization
    /// begins. `None` if an app or an admin has started the authorization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bot: Option<BotId>,
}

impl FlowUser {
    /// Returns the user of an access token for the bot.
    pub(super) fn of_token(user: AppUser, bot: BotId) -> Value {
        json!(FlowUser { user, bot: Some(bot) })
    }
}

/// What is authorized, besides the resource.
#[derive(Default)]
pub struct Wanted {
    /// The user whose credential is obtained, or `None` for the credential of the resource.
    pub user: Option<AppUser>,
    pub return_to: Option<ReturnTo>,
}

impl Wanted {
    pub(super) fn subject(&self) -> Option<Value> {
        self.user.as_ref().map(|user| json!(FlowUser { user: user.clone(), bot: None }))
    }
}

/// An origin to which browsers may be sent after an authorization.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ReturnOrigin(String);

impl FromStr for ReturnOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
        let origin = url.origin().ascii_serialization();
        if url.scheme() != "https" || text.trim_end_matches('/') != origin || text.contains('*') {
            return Err(format!("expected https://HOST or https://HOST:PORT, found `{text}`"));
        }
        Ok(ReturnOrigin(origin))
    }
}

impl TryFrom<String> for ReturnOrigin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The URL to which a browser goes after an authorization: a path of this host, or a URL of a permitted origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnTo(String);

impl ReturnTo {
    /// Checks the URL that a caller has chosen.
    pub fn parse(text: &str, origins: &[ReturnOrigin]) -> Result<ReturnTo, String> {
        if text.len() > RETURN_BYTES_MAX {
            return Err(format!("must have at most {RETURN_BYTES_MAX} bytes"));
        }
        if text.bytes().any(|byte| !(b'!'..=b'~').contains(&byte) || byte == b'\\') {
            return Err("must contain only visible ASCII characters and no backslash".to_owned());
        }
        if let Some(rest) = text.strip_prefix('/') {
            // A browser reads `//host` as the URL of another host.
            return match rest.starts_with('/') {
                true => Err("expected a path that begins with one slash".to_owned()),
                false => Ok(ReturnTo(text.to_owned())),
            };
        }
        let url = Url::parse(text).map_err(|_| "expected a path of this server, or an https:// URL".to_owned())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err("must not contain a user or password".to_owned());
        }
        let origin = ReturnOrigin(url.origin().ascii_serialization());
        if url.scheme() != "https" || !origins.contains(&origin) {
            return Err("the origin of the URL must be one of --oauth-return-origins".to_owned());
        }
        Ok(ReturnTo(url.into()))
    }

    /// Checks a path to which the last page of an authorization without a user links: a page of the console.
    pub fn parse_console(text: &str) -> Result<ReturnTo, String> {
        let path = ReturnTo::parse(text, &[])?;
        // Browsers resolve the segments `.` and `..`, encoded or not, before they send the request.
        let resolved = Url::parse("https://host.invalid").and_then(|host| host.join(text));
        let is_of_console =
            |url: &Url| url.path() == CONSOLE || url.path().strip_prefix(CONSOLE).is_some_and(|it| it.starts_with('/'));
        match text.starts_with(CONSOLE) && !text.contains("//") && resolved.is_ok_and(|url| is_of_console(&url)) {
            true => Ok(path),
            false => Err(format!("expected a path below {CONSOLE} that contains no `//`")),
        }
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

/// What the page shows that begins the authorization of a user.
pub struct Consent {
    pub workspace: String,
    pub resource: String,
    pub user: AppUser,
    /// The origin of the provider to which the button leads.
    pub provider: String,
    /// The secret of the browser that has opened the page.
    pub browser: Secret,
}

/// Returns the user of an authorization, or `None` if it obtains the credential of the resource.
pub(super) fn user(flow: &OauthFlowRow) -> Result<Option<AppUser>, OauthError> {
    Ok(flow_user(flow)?.map(|subject| subject.user))
}

/// Returns whether the user must sign in at the issuer of access tokens.
pub(super) fn needs_sign_in(flow: &OauthFlowRow) -> Result<bool, OauthError> {
    Ok(flow_user(flow)?.is_some_and(|subject| subject.bot.is_some()))
}

fn flow_user(flow: &OauthFlowRow) -> Result<Option<FlowUser>, OauthError> {
    let subject = flow.subject.clone().map(serde_json::from_value);
    subject.transpose().map_err(|_| OauthError::Changed)
}

/// Adds the user to a record of a change.
pub(super) fn with_user(mut record: Value, user: Option<&AppUser>) -> Value {
    if let Some(user) = user {
        record["user"] = json!(user);
    }
    record
}

impl Oauth {
    /// Opens the page that begins the authorization of a user. Only the browser that first opens the page can open it
    /// again. `browser` is the secret that this browser received.
    pub async fn consent(&self, flow: &OauthFlowRow, browser: Option<&str>) -> Result<Consent, OauthError> {
        let user = user(flow)?.ok_or(OauthError::NotThisBrowser)?;
        let (resource, provider) = self.unchanged(flow).await?;
        let url = provider.authorization_url.as_deref().ok_or(OauthError::NoUrl { field: "authorization_url" })?;
        let workspace = self.store.workspace(flow.workspace_id).await?.ok_or(OauthError::Changed)?;
        let browser = match (flow.status, &flow.browser_hash) {
            (FlowStatus::Started, None) if !needs_sign_in(flow)? => {
                let browser = random()?;
                if !self.store.show_oauth_flow(flow.id, &hash(browser.expose())).await? {
                    return Err(OauthError::NotThisBrowser);
                }
                browser
            }
            (FlowStatus::Started, Some(_)) => self.confirmed(flow, browser)?,
            (FlowStatus::Begun, Some(_)) if !needs_sign_in(flow)? => same_browser(flow, browser)?,
            _ => return Err(OauthError::NotThisBrowser),
        };
        Ok(Consent {
            workspace: workspace.name,
            resource: resource.row.name.clone(),
            user,
            provider: stored_url(url)?.origin().ascii_serialization(),
            browser,
        })
    }

    /// Checks that this browser has opened the page and, if the user must sign in, that this browser has signed in.
    pub(super) fn confirmed(&self, flow: &OauthFlowRow, browser: Option<&str>) -> Result<Secret, OauthError> {
        let browser = same_browser(flow, browser)?;
        if needs_sign_in(flow)? && !self.has_signed_in(flow) {
            return Err(OauthError::NotThisBrowser);
        }
        Ok(browser)
    }

    /// Returns whether an authorization may continue: its key still has the right to start it, or the user of its access
    /// token may still use the bot, and the resource still uses the credentials of users.
    pub(super) fn is_permitted(
        &self,
        snapshot: &Snapshot,
        resource: &Arc<Resource>,
        flow: &OauthFlowRow,
    ) -> Result<bool, OauthError> {
        let key = || snapshot.key_of_id(flow.key_id);
        let Some(FlowUser { user, bot }) = flow_user(flow)? else {
            return Ok(key().is_some_and(|key| key.administers(flow.workspace_id)));
        };
        let now = self.clock.now();
        let is_bound = |bot: BotId| {
            snapshot.bot(flow.workspace_id, bot).filter(|bot| bot.is_bound_to(resource.row.id, now)).cloned()
        };
        let is_permitted = match bot {
            Some(bot) => is_bound(bot).is_some_and(|bot: Arc<Bot>| bot.admits(&user.user_id)),
            None => key().is_some_and(|key| {
                let is_of_bot = key.kind == KeyKind::Bot && key.bot.is_some_and(|bot| is_bound(bot).is_some());
                key.administers(flow.workspace_id) || is_of_bot
            }),
        };
        Ok(is_permitted && resource.has_user_credentials())
    }

    /// Returns the record of the credential that an authorization replaces.
    pub(super) fn held_before(&self, resource: &Resource, user: Option<&AppUser>) -> Value {
        let snapshot = self.policy.load();
        let held = match user {
            Some(user) => snapshot.user_credential(resource.row.id, user).map(|user| &user.held),
            None => resource.credential.as_ref(),
        };
        held.map(|held| with_user(json!({ "method": held.row.auth_method }), user)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_return_to_paths_and_permitted_origins_only() {
        let origins = ["https://app.example".parse().unwrap(), "https://other.example:8443/".parse().unwrap()];
        for (text, expected) in [
            ("/", "/"),
            ("/done?a=b#c", "/done?a=b#c"),
            ("https://app.example", "https://app.example/"),
            ("https://app.example:443/done?a=//b", "https://app.example/done?a=//b"),
            ("https://OTHER.example:8443/x", "https://other.example:8443/x"),
        ] {
            assert_eq!(ReturnTo::parse(text, &origins), Ok(ReturnTo(expected.to_owned())), "{text}");
        }
        let long = format!("/{}", "a".repeat(RETURN_BYTES_MAX));
        for bad in [
            "",
            "done",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "/\t/evil.example",
            "/ evil",
            "/\u{e9}",
            "http://app.example/",
            "https://app.example.evil.example/",
            "https://app.example:8443/",
            "https://app.example@evil.example/",
            "https://u@app.example/",
            "https://evil.example/?https://app.example",
            "javascript:alert(1)",
            "data:text/html,x",
            &long,
        ] {
            assert!(ReturnTo::parse(bad, &origins).is_err(), "{bad}");
        }
        for bad in ["http://app.example", "https://app.example/x", "https://*.example", "app.example", ""] {
            assert!(bad.parse::<ReturnOrigin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_page_links_to_the_console_only() {
        for good in ["/console", "/console/", "/console/w/default/resources/1?tab=credential#top", "/console?a=b"] {
            assert_eq!(ReturnTo::parse_console(good).map(ReturnTo::into_text), Ok(good.to_owned()));
        }
        let long = format!("/console/{}", "a".repeat(RETURN_BYTES_MAX));
        for bad in [
            "",
            "/",
            "console",
            "/welcome",
            "/consoles",
            "/console.evil.example",
            "/x/console",
            "//console",
            "/console//evil.example",
            "/console?next=//evil.example",
            "/console/..",
            "/console/../docs",
            "/console/%2e%2e/docs",
            "/console\\evil",
            "/console/\u{0}",
            "/console/\n",
            "/console/\u{202e}",
            "https://app.example/console",
            "javascript:alert(1)//console",
            &long,
        ] {
            assert!(ReturnTo::parse_console(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_subject_of_an_authorization_says_how_the_user_is_known() {
        let user = AppUser { app_id: "a".to_owned(), user_id: "7".to_owned() };
        let by_app = Wanted { user: Some(user.clone()), return_to: None }.subject().unwrap();
        assert_eq!(by_app, json!({"app_id": "a", "user_id": "7"}));
        let bot = BotId::new();
        let of_token = FlowUser::of_token(user, bot);
        assert_eq!(of_token, json!({"app_id": "a", "user_id": "7", "bot": bot}));
        let read: FlowUser = serde_json::from_value(of_token).unwrap();
        assert_eq!(read.bot, Some(bot));
    }
}
