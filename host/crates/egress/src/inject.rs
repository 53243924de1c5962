//! Step 5, first half: the credential is added to the request, by the rules that were sealed with it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use monstrum_manifest::{BasicPair, BodyRule, HeaderRule, InjectRule, PathRule, QueryRule};
use monstrum_types::{Failure, FailureCode, Secret};
use percent_encoding::{percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value};
use url::Url;

use crate::credential::Credential;
use crate::url::{RESERVED, push_query};

/// A request that has passed the checks.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Vec<u8>>,
}

/// `outgoing` with `credential` in it.
pub(crate) fn inject(mut outgoing: Outgoing, credential: &Credential) -> Result<Outgoing, Failure> {
    for rule in &credential.inject {
        match rule {
            InjectRule::Header(rule) => add_header(&mut outgoing, credential, rule)?,
            InjectRule::Query(rule) => add_query(&mut outgoing, credential, rule)?,
            InjectRule::Basic(rule) => add_basic(&mut outgoing, credential, &rule.basic)?,
            InjectRule::Body(rule) => add_body(&mut outgoing, credential, rule)?,
            InjectRule::Path(rule) => add_path(&mut outgoing, credential, rule)?,
        }
    }
    Ok(outgoing)
}

fn add_header(outgoing: &mut Outgoing, credential: &Credential, rule: &HeaderRule) -> Result<(), Failure> {
    let name = HeaderName::from_bytes(rule.header.as_bytes()).map_err(|_| unusable())?;
    set_secret_header(&mut outgoing.headers, name, &filled(credential, &rule.value)?)
}

fn add_basic(outgoing: &mut Outgoing, credential: &Credential, pair: &BasicPair) -> Result<(), Failure> {
    // RFC 7617: the first colon ends the user name, so one within it would shift the password.
    if filled(credential, &pair.username)?.expose().contains(':') {
        return Err(unusable());
    }
    let pair = credential.basic(&pair.username, &pair.password).ok_or_else(unusable)?;
    let value = Secret::new(format!("Basic {}", STANDARD.encode(pair.expose())));
    set_secret_header(&mut outgoing.headers, AUTHORIZATION, &value)
}

/// The plugin's own headers never have this name: that was refused in step 1, and is again, should the rules of the
/// credential differ from those of the manifest.
fn set_secret_header(headers: &mut HeaderMap, name: HeaderName, value: &Secret) -> Result<(), Failure> {
    let mut value = HeaderValue::from_bytes(value.expose().as_bytes()).map_err(|_| unusable())?;
    value.set_sensitive(true);
    match headers.entry(name) {
        http::header::Entry::Occupied(entry) => Err(taken(&format!("the header `{}`", entry.key()))),
        http::header::Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
    }
}

fn add_query(outgoing: &mut Outgoing, credential: &Credential, rule: &QueryRule) -> Result<(), Failure> {
    if outgoing.url.query_pairs().any(|(name, _)| name == rule.query.as_str()) {
        return Err(taken(&format!("the query parameter `{}`", rule.query)));
    }
    let mut url = String::from(outgoing.url.as_str());
    push_query(&mut url, &rule.query, filled(credential, &rule.value)?.expose());
    outgoing.url = Url::parse(&url).map_err(|_| unusable())?;
    Ok(())
}

/// The body is written anew from its JSON: numbers beyond 64 bits become floating point.
fn add_body(outgoing: &mut Outgoing, credential: &Credential, rule: &BodyRule) -> Result<(), Failure> {
    let value = filled(credential, &rule.value)?;
    let body = outgoing.body.as_deref().filter(|body| !body.is_empty());
    let mut body: Value = match body {
        Some(body) => serde_json::from_slice(body).map_err(|_| invalid("the body must be JSON for the credential"))?,
        None => Value::Object(Map::new()),
    };
    let mut steps = rule.body.strip_prefix('/').ok_or_else(unusable)?.split('/').map(unescape_pointer).peekable();
    let mut place = &mut body;
    while let Some(step) = steps.next() {
        let members = place.as_object_mut().ok_or_else(|| invalid("the body has no place for the credential"))?;
        if steps.peek().is_none() {
            if members.contains_key(&step) {
                return Err(taken(&format!("`{}` in the body", rule.body)));
            }
            members.insert(step, Value::String(value.expose().to_owned()));
            break;
        }
        place = members.entry(step).or_insert_with(|| Value::Object(Map::new()));
    }
    outgoing.body = Some(body.to_string().into_bytes());
    outgoing.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    Ok(())
}

/// RFC 6901.
fn unescape_pointer(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

fn add_path(outgoing: &mut Outgoing, credential: &Credential, rule: &PathRule) -> Result<(), Failure> {
    let value = filled(credential, &rule.value)?;
    // Segment by segment, and each decoded: the placeholder's braces may have been encoded on the way.
    let mut found = 0;
    let segments: Vec<String> = outgoing
        .url
        .path()
        .split('/')
        .map(|segment| {
            let decoded = percent_decode_str(segment).decode_utf8_lossy();
            let here = decoded.matches(rule.path.as_str()).count();
            found += here;
            if here == 0 {
                return segment.to_owned();
            }
            let parts: Vec<String> =
                decoded.split(rule.path.as_str()).map(|part| utf8_percent_encode(part, RESERVED).to_string()).collect();
            parts.join(&utf8_percent_encode(value.expose(), RESERVED).to_string())
        })
        .collect();
    if found != 1 {
        return Err(invalid(&format!("the URL's path must hold `{}` exactly once", rule.path)));
    }
    outgoing.url.set_path(&segments.join("/"));
    Ok(())
}

fn filled(credential: &Credential, template: &str) -> Result<Secret, Failure> {
    credential.fill(template).ok_or_else(unusable)
}

/// What is wrong is not told in more detail: the details are secret.
fn unusable() -> Failure {
    Failure::unsent(FailureCode::Unauthenticated, "the stored credential does not fit the way in which it is sent")
}

fn taken(place: &str) -> Failure {
    Failure::unsent(FailureCode::Denied, format!("{place} is the host's to write"))
}

fn invalid(message: &str) -> Failure {
    Failure::unsent(FailureCode::Invalid, message)
}

#[cfg(test)]
mod tests;
