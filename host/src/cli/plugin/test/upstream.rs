//! The upstream of a case, which replaces the network. It compares each request that the host would send with the case
//! and returns the case's answer. The real host does everything before and after the network.

use std::net::IpAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use monstrum_egress::{LookupError, Resolve, Transport};
use monstrum_types::{Failure, FailureCode};
use parking_lot::Mutex;
use reqwest::Url;
use serde_json::Value;

use super::case::{Answer, Breakdown, Exchange, Wanted};
use super::compare::{Closeness, differences, shown};

/// The address of every host name. The registry of special addresses lists this address as globally reachable, so
/// egress accepts it. No connection is made to this address.
const ANYWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 0, 9));

/// The upstream of the current case.
#[derive(Default)]
pub(super) struct Upstream {
    script: Mutex<Script>,
}

#[derive(Default)]
struct Script {
    waiting: Vec<Exchange>,
    faults: Vec<String>,
}

impl Upstream {
    /// Starts the next case.
    pub(super) fn play(&self, exchanges: Vec<Exchange>) {
        *self.script.lock() = Script { waiting: exchanges, faults: Vec::new() };
    }

    /// Ends the case. Returns the differences of its requests, and the expected requests that were not made.
    pub(super) fn finish(&self) -> Vec<String> {
        let Script { waiting, mut faults } = std::mem::take(&mut *self.script.lock());
        let unused =
            waiting.iter().map(|exchange| format!("http: no request was made for {}", exchange.request.line()));
        faults.extend(unused);
        faults
    }

    fn answer(&self, request: &Request<Vec<u8>>) -> Result<Response<Vec<u8>>, Failure> {
        let mut script = self.script.lock();
        let Some(index) = script.waiting.iter().position(|exchange| exchange.request.is_meant(request)) else {
            let unexpected = format!("http: unexpected request {} {}", request.method(), request.uri());
            script.faults.push(unexpected);
            return Err(Failure::unsent(FailureCode::Connect, "the case has no answer to this request"));
        };
        let Exchange { request: wanted, answer } = script.waiting.remove(index);
        let faults = wanted.faults(request).into_iter().map(|fault| format!("http: {}: {fault}", wanted.line()));
        script.faults.extend(faults);
        answer.response()
    }
}

impl Transport for Upstream {
    fn exchange(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, Failure>> {
        async move { self.answer(&request) }.boxed()
    }
}

/// A resolver that maps every name to a public address. The host's own tests cover names with forbidden addresses.
pub(super) struct EveryName;

impl Resolve for EveryName {
    fn lookup<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, LookupError>> {
        async { Ok(vec![ANYWHERE]) }.boxed()
    }
}

impl Wanted {
    fn line(&self) -> String {
        format!("{} {}", self.method, self.url)
    }

    /// Returns whether `request` has the expected method and URL.
    fn is_meant(&self, request: &Request<Vec<u8>>) -> bool {
        let (Ok(wanted), Ok(mut sent)) = (Url::parse(&self.url), Url::parse(&request.uri().to_string())) else {
            return false;
        };
        if wanted.query().is_none() {
            sent.set_query(None);
        }
        self.method == request.method().as_str() && wanted == sent
    }

    /// Returns the differences between the headers and body of `request` and the expected headers and body.
    fn faults(&self, request: &Request<Vec<u8>>) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, value) in &self.headers {
            let sent: Vec<&[u8]> =
                request.headers().get_all(name.to_ascii_lowercase()).iter().map(HeaderValue::as_bytes).collect();
            if !sent.contains(&value.as_bytes()) {
                let found = match sent.first() {
                    Some(found) => format!("`{}`", String::from_utf8_lossy(found)),
                    None => "none".to_owned(),
                };
                faults.push(format!("header {name}: expected `{value}`, found {found}"));
            }
        }
        if let Some(wanted) = &self.body {
            let text = String::from_utf8_lossy(request.body());
            faults.extend(match wanted {
                Value::String(wanted) if *wanted == text => Vec::new(),
                Value::String(wanted) => {
                    vec![format!("body: expected {}, found {}", shown(&wanted.as_str().into()), shown(&text.into()))]
                }
                wanted => match serde_json::from_str(&text) {
                    Ok(found) => differences("body", wanted, &found, Closeness::Within),
                    Err(_) => vec![format!("body: expected JSON, found {}", shown(&text.into()))],
                },
            });
        }
        faults
    }
}

impl Answer {
    fn response(self) -> Result<Response<Vec<u8>>, Failure> {
        if let Some(breakdown) = self.failure {
            return Err(breakdown.failure());
        }
        let body = match &self.body {
            None => Vec::new(),
            Some(Value::String(text)) => text.clone().into_bytes(),
            Some(json) => json.to_string().into_bytes(),
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(self.status).map_err(|_| unusable())?;
        if self.body.as_ref().is_some_and(|body| !body.is_string()) {
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        for (name, value) in &self.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable())?;
            response.headers_mut().insert(name, HeaderValue::from_str(value).map_err(|_| unusable())?);
        }
        Ok(response)
    }
}

/// Returns the failure for an invalid answer. This failure does not occur, because cases are validated when they are
/// read.
fn unusable() -> Failure {
    Failure::unsent(FailureCode::Internal, "the case's answer is not valid HTTP")
}

impl Breakdown {
    /// Returns the failure with the code and message that the host uses.
    fn failure(self) -> Failure {
        match self {
            Breakdown::Dns => Failure::unsent(FailureCode::Dns, "the name could not be resolved"),
            Breakdown::Connect => Failure::unsent(FailureCode::Connect, "no connection could be established"),
            Breakdown::Tls => Failure::unsent(FailureCode::Tls, "no secure connection could be established"),
            Breakdown::Timeout => Failure::sent(FailureCode::Timeout, "the upstream did not answer in time"),
            Breakdown::Protocol => Failure::sent(FailureCode::Protocol, "the upstream did not speak HTTP"),
        }
    }
}
