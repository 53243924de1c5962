//! A browser in front of the pages of the server.

use anyhow::{Context, Result};
use reqwest::Method;
use reqwest::header::{CONTENT_SECURITY_POLICY, COOKIE, LOCATION, SET_COOKIE};
use support::Api;

/// A page as a browser receives it.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) status: u16,
    pub(super) location: Option<String>,
    pub(super) policy: String,
    pub(super) text: String,
}

/// A browser that keeps the cookies of one server.
pub(super) struct Browser {
    api: Api,
    /// The URL at which the server believes to be.
    public: String,
    cookies: Vec<String>,
}

impl Browser {
    pub(super) fn new(api: &Api, public: &str) -> Browser {
        Browser { api: api.with_key(""), public: public.to_owned(), cookies: Vec::new() }
    }

    /// Opens a page of the server.
    pub(super) async fn open(&mut self, url: &str) -> Result<Page> {
        self.visit(Method::GET, url).await
    }

    /// Presses the button of the page.
    pub(super) async fn press(&mut self, url: &str) -> Result<Page> {
        self.visit(Method::POST, url).await
    }

    async fn visit(&mut self, method: Method, url: &str) -> Result<Page> {
        let path = url.strip_prefix(&self.public).with_context(|| format!("{url} is not a page of {}", self.public))?;
        let mut request = self.api.request(method, path);
        if !self.cookies.is_empty() {
            request = request.header(COOKIE, self.cookies.join("; "));
        }
        let answer = request.send().await?;
        let header = |name| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (location, cookie, policy) = (header(LOCATION), header(SET_COOKIE), header(CONTENT_SECURITY_POLICY));
        if let Some(pair) = cookie.as_deref().and_then(|cookie| cookie.split(';').next()) {
            let (name, _) = pair.split_once('=').context("a cookie")?;
            self.cookies.retain(|held| !held.starts_with(&format!("{name}=")));
            self.cookies.push(pair.to_owned());
        }
        let policy = policy.unwrap_or_default();
        Ok(Page { status: answer.status().as_u16(), location, policy, text: answer.text().await? })
    }
}

impl Page {
    /// Returns the URL to which the page redirects.
    pub(super) fn next(self) -> Result<String> {
        let Page { status, location, text, .. } = self;
        location.filter(|_| status == 303).with_context(|| format!("the page does not redirect: {status} {text}"))
    }
}
