//! Tests of the console, as a browser uses it: requests with cookies and forms, and pages that are read.

mod approvals;
mod browser;
mod budgets;
mod connect;
mod conversations;
mod device;
mod events;
mod failures;
mod first_steps;
mod gates;
mod hostile;
mod instance;
mod login;
mod pages;
mod pictures;
mod refusals;
mod registry;
mod runs;
mod schedules;
mod tasks;
mod webhooks;
mod why;
mod wizard;
mod workflows;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use reqwest::header::{HeaderMap, HeaderValue, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method};

use crate::world::World;

/// A browser with a cookie of the console.
#[derive(Clone)]
pub(crate) struct Browser {
    client: Client,
    url: String,
    cookie: String,
}

/// An answer of the console.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    /// Returns the path to which the answer redirects.
    pub(crate) fn location(&self) -> &str {
        self.headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

impl Browser {
    /// Opens a browser without a session.
    pub(crate) fn open(world: &World) -> Result<Browser> {
        Browser::at(world.server.url().context("the server is not running")?)
    }

    /// Opens a browser without a session at the server with this URL.
    fn at(url: &str) -> Result<Browser> {
        let client = Client::builder().redirect(Policy::none()).build()?;
        Ok(Browser { client, url: url.to_owned(), cookie: String::new() })
    }

    /// Logs in with a key.
    pub(crate) async fn log_in(world: &World, key: &str) -> Result<Browser> {
        Browser::open(world)?.logged_in(key).await
    }

    /// Logs in with a key at the server with this URL.
    pub(crate) async fn log_in_at(url: &str, key: &str) -> Result<Browser> {
        Browser::at(url)?.logged_in(key).await
    }

    async fn logged_in(mut self, key: &str) -> Result<Browser> {
        let browser = &mut self;
        let answer = browser.send(Method::POST, "/console/login", &[("key", key)], &[]).await?;
        ensure!(answer.status == 303, "log-in: {} {}", answer.status, answer.text);
        browser.keep(&answer)?;
        Ok(self)
    }

    /// Keeps the cookie of an answer.
    pub(crate) fn keep(&mut self, answer: &Answer) -> Result<()> {
        let cookie = answer.headers.get(SET_COOKIE).context("the answer sets no cookie")?.to_str()?;
        self.cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Ok(())
    }

    /// Sends a request as a browser does. `headers` replace the headers of the same names; an empty value removes one.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        fields: &[(&str, &str)],
        headers: &[(&'static str, &str)],
    ) -> Result<Answer> {
        let mut all = BTreeMap::from([("cookie", self.cookie.clone())]);
        if method == Method::POST {
            all.insert("sec-fetch-site", "same-origin".to_owned());
        }
        all.extend(headers.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let mut request = self.client.request(method.clone(), format!("{}{path}", self.url));
        for (name, value) in all.into_iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(name, HeaderValue::from_str(&value)?);
        }
        if method == Method::POST {
            request = request.form(fields);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Answer { status, headers, text: response.text().await? })
    }

    /// Reads a page.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer> {
        self.send(Method::GET, path, &[], &[]).await
    }

    /// Reads a page, which must exist.
    pub(crate) async fn page(&self, path: &str) -> Result<String> {
        let answer = self.get(path).await?;
        ensure!(answer.status == 200, "GET {path}: {} {} {}", answer.status, answer.location(), answer.text);
        Ok(answer.text)
    }

    /// Sends the form of a page with this action: its hidden fields, and `fields`.
    pub(crate) async fn submit(&self, page: &str, action: &str, fields: &[(&str, &str)]) -> Result<Answer> {
        let text = self.page(page).await?;
        let hidden = hidden_fields(&text, action)?;
        let mut all: Vec<(&str, &str)> = hidden.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        all.retain(|(name, _)| !fields.iter().any(|(given, _)| given == name));
        all.extend(fields);
        self.send(Method::POST, action, &all, &[]).await
    }
}

/// Returns the hidden fields of the form with this action.
pub(crate) fn hidden_fields(page: &str, action: &str) -> Result<Vec<(String, String)>> {
    let escaped = action.replace('&', "&#38;");
    let start =
        page.find(&format!("action=\"{escaped}\"")).with_context(|| format!("no form for {action} in {page}"))?;
    let form = page[start..].split("</form>").next().unwrap_or_default();
    let hidden = Regex::new("<input type=\"hidden\" name=\"([^\"]*)\" value=\"([^\"]*)\">")?;
    Ok(hidden.captures_iter(form).map(|found| (found[1].to_owned(), unescaped(&found[2]))).collect())
}

fn unescaped(text: &str) -> String {
    text.replace("&#34;", "\"").replace("&#39;", "'").replace("&#60;", "<").replace("&#62;", ">").replace("&#38;", "&")
}

/// Returns the start of the paths of the workspace's pages.
pub(crate) async fn base(world: &World) -> Result<String> {
    let (_, me) = world.api.get("/api/me").await?;
    Ok(format!("/console/w/{}", me["workspace_id"].as_str().context("a workspace")?))
}
