//! Looks for the authorization server of an MCP server. Each look-up is one request without a credential through egress,
//! with the network rules of the resource. The result is a proposal, which has no effect before an admin confirms it.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use monstrum_egress::{Anonymous, RedactorCell, Scope, StreamedResponse};
use monstrum_store::OauthProposalRow;
use monstrum_types::{Failure, FailureCode, HttpRequest, HttpResponse};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use url::Url;

use super::challenge::BearerChallenge;
use super::metadata::{Proposal, ProtectedResource, Wanted, protected_resource_urls, server_urls};
use super::{Oauth, OauthError, is_same_url, server_url};
use crate::policy::Resource;

/// The maximum number of look-ups and registrations at once, because each one may keep a document in memory.
pub(super) const LOOKUPS_AT_ONCE: usize = 8;
/// The maximum size of a document. Documents of large providers have some KiB.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// The time limit of one request, because an admin waits for it.
const LOOKUP_MAX: Duration = Duration::from_secs(10);
/// The time for which an admin can confirm a proposal.
const PROPOSAL_LIFETIME_MS: i64 = 3600 * 1000;

/// The reason why no proposal was made.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error("the URL of the MCP server is not valid")]
    Server,
    #[error("the request to {url} failed: {}", .failure.message)]
    Failed { url: Url, failure: Failure },
    #[error("{url} answered with status {status}")]
    Status { url: Url, status: u16 },
    #[error("the document at {url} is larger than {} KiB", DOCUMENT_BYTES_MAX >> 10)]
    TooLarge { url: Url },
    #[error("the document at {url} cannot be used: {why}")]
    Unusable { url: Url, why: String },
    #[error("the authorization server cannot be used: {why}")]
    Issuer { why: &'static str },
    #[error("{}", each(.0))]
    All(Vec<LookupError>),
}

impl From<LookupError> for OauthError {
    fn from(error: LookupError) -> Self {
        OauthError::Lookup(Box::new(error))
    }
}

/// Reads a document. The error says why it cannot be used.
type Reading<'r, T> = dyn Fn(&Map<String, Value>) -> Result<T, String> + Sync + 'r;

fn each(errors: &[LookupError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A stored proposal.
pub struct Proposed {
    pub row: OauthProposalRow,
    pub proposal: Proposal,
}

impl Oauth {
    /// Looks for the authorization server of an MCP server. Stores nothing.
    pub async fn look_up(&self, resource: &Resource) -> Result<Proposal, OauthError> {
        Ok(self.proposal(resource, url_of(resource)?).await?)
    }

    /// Stores a proposal, which replaces the earlier one of the resource.
    pub async fn propose(&self, resource: &Resource, proposal: Proposal) -> Result<Proposed, OauthError> {
        let now = self.clock.now();
        let row = OauthProposalRow {
            resource_id: resource.row.id,
            workspace_id: resource.row.workspace_id,
            digest: proposal.digest(),
            proposal: json!(proposal),
            created_at: now,
            expires_at: now.plus_ms(PROPOSAL_LIFETIME_MS),
        };
        self.store.put_oauth_proposal(&row).await?;
        tracing::info!(resource.id = %row.resource_id, "the authorization server of an MCP server was found");
        Ok(Proposed { row, proposal })
    }

    /// Returns the stored proposal of a resource, unless it has expired or the URL of the resource has changed.
    pub async fn proposed(&self, resource: &Resource) -> Result<Option<Proposed>, OauthError> {
        let url = url_of(resource)?;
        let row = self.store.oauth_proposal(resource.row.workspace_id, resource.row.id, self.clock.now()).await?;
        let proposed = row.and_then(|row| {
            let proposal: Proposal = serde_json::from_value(row.proposal.clone()).ok()?;
            Some(Proposed { row, proposal })
        });
        let is_current = |proposed: &Proposed| {
            is_same_url(&proposed.proposal.resource, url) && proposed.proposal.digest() == proposed.row.digest
        };
        Ok(proposed.filter(is_current))
    }

    async fn proposal(&self, resource: &Resource, url: &str) -> Result<Proposal, LookupError> {
        let _place = self.lookups.acquire().await;
        let server = Url::parse(url).map_err(|_| LookupError::Server)?;
        let challenge = self.challenge(resource, &server).await?.unwrap_or_default();
        let places = match &challenge.resource_metadata {
            Some(named) => vec![Url::parse(named).map_err(|_| LookupError::Unusable {
                url: server.clone(),
                why: "its `resource_metadata` is not a URL".to_owned(),
            })?],
            None => protected_resource_urls(&server),
        };
        let read = |document: &Map<String, Value>| ProtectedResource::read(document, url);
        let protected = self.first(resource, places, &read).await?;
        let allow_http = resource.scope.network.allow_http;
        let issuer = issuer_url(&protected.issuer, allow_http).map_err(|why| LookupError::Issuer { why })?;
        let wanted = Wanted {
            resource: &protected,
            challenged: &challenge.scopes,
            allow_http,
            has_client_document: self.client_id().is_some(),
        };
        self.first(resource, server_urls(&issuer), &|document| wanted.propose(document)).await
    }

    /// Sends a request without a credential to the server. Returns its challenge, if the server asks for a token.
    async fn challenge(&self, resource: &Resource, url: &Url) -> Result<Option<BearerChallenge>, LookupError> {
        let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
        let request = HttpRequest {
            method: "POST".to_owned(),
            url: url.to_string(),
            headers: vec![
                ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
                ("content-type".to_owned(), "application/json".to_owned()),
            ],
            body: Some(ping.to_string().into_bytes()),
            ..HttpRequest::default()
        };
        let head = self.head_of(resource, url, request).await;
        let head = head.map_err(|failure| LookupError::Failed { url: url.clone(), failure })?;
        Ok(if head.status == 401 { BearerChallenge::of(&head.headers) } else { None })
    }

    /// Reads documents until one can be used.
    async fn first<T>(&self, resource: &Resource, urls: Vec<Url>, read: &Reading<'_, T>) -> Result<T, LookupError> {
        let mut errors = Vec::new();
        for url in urls {
            match self.document(resource, &url).await {
                Ok(document) => match read(&document) {
                    Ok(value) => return Ok(value),
                    Err(why) => errors.push(LookupError::Unusable { url, why }),
                },
                Err(error) => errors.push(error),
            }
        }
        Err(LookupError::All(errors))
    }

    async fn document(&self, resource: &Resource, url: &Url) -> Result<Map<String, Value>, LookupError> {
        let request = HttpRequest {
            method: "GET".to_owned(),
            url: url.to_string(),
            headers: vec![("accept".to_owned(), "application/json".to_owned())],
            ..HttpRequest::default()
        };
        let answer = self.whole(resource, url, request).await.map_err(|failure| match failure.code {
            FailureCode::TooLarge => LookupError::TooLarge { url: url.clone() },
            _ => LookupError::Failed { url: url.clone(), failure },
        })?;
        if answer.status != 200 {
            return Err(LookupError::Status { url: url.clone(), status: answer.status });
        }
        serde_json::from_slice(&answer.body)
            .map_err(|_| LookupError::Unusable { url: url.clone(), why: "it is not a JSON object".to_owned() })
    }

    /// Sends a request to the only URL to which it may go, and reads the whole answer, up to the size of a document.
    /// Redirects are not followed.
    pub(super) async fn whole(
        &self,
        resource: &Resource,
        url: &Url,
        request: HttpRequest,
    ) -> Result<HttpResponse, Failure> {
        let StreamedResponse { status, headers, body, .. } = self.head_of(resource, url, request).await?;
        let body = body.at_most(DOCUMENT_BYTES_MAX).read().await?;
        Ok(HttpResponse { status, headers, body })
    }

    async fn head_of(&self, resource: &Resource, url: &Url, request: HttpRequest) -> Result<StreamedResponse, Failure> {
        let scope = Scope { api_base: Some(url.clone()), network: resource.scope.network.clone(), ..Scope::default() };
        let nothing_to_do = || -> BoxFuture<'static, Result<(), Failure>> { async { Ok(()) }.boxed() };
        let (redactor, until) = (RedactorCell::default().into(), Instant::now() + LOOKUP_MAX);
        self.egress.open(&scope, &Anonymous, &redactor, request, until, &nothing_to_do).await
    }
}

/// Returns the URL of the MCP server.
fn url_of(resource: &Resource) -> Result<&str, OauthError> {
    server_url(resource).ok_or_else(|| OauthError::NoServer { resource_type: resource.row.resource_type.to_string() })
}

/// Checks the identifier of an issuer (RFC 8414, section 2).
fn issuer_url(issuer: &str, allow_http: bool) -> Result<Url, &'static str> {
    let url = Url::parse(issuer).map_err(|_| "its issuer is not a URL")?;
    if url.scheme() != "https" && !(allow_http && url.scheme() == "http") {
        return Err("its issuer is not an https:// URL");
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err("its issuer has a query, a fragment, a user or a password");
    }
    Ok(url)
}
