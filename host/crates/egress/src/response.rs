//! Step 8: limits the size of a response, removes the headers that only the host needs, and redacts the remaining
//! headers and the body.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use flate2::write::MultiGzDecoder;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, RETRY_AFTER, SET_COOKIE, TRANSFER_ENCODING,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use monstrum_manifest::InjectRule;
use monstrum_types::{Failure, FailureCode, HttpResponse, UtcMillis};
use tokio::time::Instant;

use crate::client;
use crate::headers::is_injected;
use crate::limits::{RESPONSE_HEADER_BYTES_MAX, RESPONSE_HEADERS_MAX};
use crate::redact::{Redactor, RedactorCell};
use crate::searches::{self, SearchError, Watch};
use crate::stream::{StreamedBody, StreamedResponse};

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

/// A response whose status and headers have been received, before they are checked and redacted.
pub(crate) struct Received {
    pub(crate) response: reqwest::Response,
    pub(crate) method: Method,
    /// The inject rules of the request. The response's headers with the names that these rules set are removed.
    pub(crate) inject: Vec<InjectRule>,
    pub(crate) received_at: UtcMillis,
    /// The maximum size of the decoded body.
    pub(crate) bytes_max: usize,
}

impl Received {
    /// Reads the body completely, and redacts the headers and the body.
    pub(crate) async fn read(self, redactor: &RedactorCell) -> Result<HttpResponse, Failure> {
        let retry_after_ms = self.retry_after_ms();
        self.read_parts(redactor).await.map_err(|failure| Failure { retry_after_ms, ..failure })
    }

    /// Redacts the headers and returns the body unread. The body must not have a content encoding.
    pub(crate) async fn open(
        self,
        redactor: &Arc<RedactorCell>,
        deadline: Instant,
    ) -> Result<StreamedResponse, Failure> {
        let retry_after_ms = self.retry_after_ms();
        let opened = self.open_parts(redactor, deadline).await;
        opened.map_err(|failure| Failure { retry_after_ms, ..failure })
    }

    fn retry_after_ms(&self) -> Option<u32> {
        retry_after_ms(self.response.status(), self.response.headers(), self.received_at)
    }

    async fn read_parts(self, redactor: &RedactorCell) -> Result<HttpResponse, Failure> {
        let status = self.response.status();
        check_head(self.response.headers())?;
        let mut headers = self.response.headers().clone();
        let body = if self.has_body() {
            let encoding = encoding(&headers)?;
            let body = read_body(self.response, encoding, self.bytes_max).await?;
            headers.remove(CONTENT_ENCODING);
            Some(body)
        } else {
            None
        };
        let (headers, body) = redacted(without_dropped(headers, &self.inject), body, redactor).await?;
        Ok(HttpResponse { status: status.as_u16(), headers, body })
    }

    async fn open_parts(self, redactor: &Arc<RedactorCell>, deadline: Instant) -> Result<StreamedResponse, Failure> {
        let (status, retry_after_ms) = (self.response.status().as_u16(), self.retry_after_ms());
        check_head(self.response.headers())?;
        let mut headers = self.response.headers().clone();
        let has_body = self.has_body();
        if has_body {
            if encoding(&headers)? != Encoding::Identity {
                return Err(not_decoded());
            }
            check_length(&self.response, self.bytes_max)?;
            headers.remove(CONTENT_ENCODING);
            // Redaction may change the length of the body.
            headers.remove(CONTENT_LENGTH);
        }
        let (headers, _) = redacted(without_dropped(headers, &self.inject), None, redactor).await?;
        let response = has_body.then_some(self.response);
        let body = StreamedBody::new(response, Arc::clone(redactor), deadline, self.bytes_max);
        Ok(StreamedResponse { status, headers, retry_after_ms, body })
    }

    fn has_body(&self) -> bool {
        let status = self.response.status();
        self.method != Method::HEAD && status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED
    }
}

/// Removes the headers that only the host needs.
fn without_dropped(mut headers: HeaderMap, inject: &[InjectRule]) -> HeaderMap {
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| is_dropped(name.as_str(), inject)).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
    headers
}

/// Redacts the headers and the body.
async fn redacted(headers: HeaderMap, body: Option<Vec<u8>>, redactor: &RedactorCell) -> Result<Redacted, Failure> {
    let bytes = header_bytes(&headers) + body.as_ref().map_or(0, Vec::len);
    let current = redactor.current();
    let search = searches::run(bytes, redactor.budget(), move |watch| redact(headers, body, &current, watch));
    search.await.map_err(|stopped| Failure { sent: true, ..stopped.failure() })
}

fn header_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

fn check_head(headers: &HeaderMap) -> Result<(), Failure> {
    if headers.len() > RESPONSE_HEADERS_MAX || header_bytes(headers) > RESPONSE_HEADER_BYTES_MAX {
        return Err(Failure::sent(FailureCode::TooLarge, "the headers of the response are too large"));
    }
    check_transfer_encoding(headers)
}

/// Rejects a body that is not compressed and declares a length over the limit.
fn check_length(response: &reqwest::Response, bytes_max: usize) -> Result<(), Failure> {
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    if response.content_length().is_some_and(|length| length > limit) { Err(too_large(bytes_max)) } else { Ok(()) }
}

/// Rejects all transfer codings except `chunked`, which the HTTP library decodes. The host cannot search bodies in
/// other codings for secrets.
fn check_transfer_encoding(headers: &HeaderMap) -> Result<(), Failure> {
    let mut values = headers.get_all(TRANSFER_ENCODING).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(()),
        (Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => {
            let message = "the response has a transfer encoding that the host does not decode";
            Err(Failure::sent(FailureCode::Protocol, message))
        }
    }
}

/// Returns the encoding of the body. Only gzip is supported. Bodies in other encodings are rejected, because the host
/// cannot redact them.
fn encoding(headers: &HeaderMap) -> Result<Encoding, Failure> {
    let mut encoding = Encoding::Identity;
    for value in headers.get_all(CONTENT_ENCODING) {
        let names = value.to_str().map_err(|_| not_decoded())?;
        for name in names.split(',').map(str::trim) {
            match name.to_ascii_lowercase().as_str() {
                "" | "identity" => {}
                "gzip" | "x-gzip" if encoding == Encoding::Identity => encoding = Encoding::Gzip,
                _ => return Err(not_decoded()),
            }
        }
    }
    Ok(encoding)
}

async fn read_body(mut response: reqwest::Response, encoding: Encoding, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    if encoding == Encoding::Identity {
        check_length(&response, bytes_max)?;
    }
    let host = response.url().host_str().unwrap_or_default().to_owned();
    let mut body = Body::new(encoding, bytes_max);
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => body.push(&chunk)?,
            Ok(None) => return body.finish(),
            Err(error) => return Err(Failure { sent: true, ..client::failure(error, &host) }),
        }
    }
}

/// A body that is being received, with a limit on its decoded size.
enum Body {
    Identity(Capped),
    /// `None` before the first byte, because an empty body is valid although it is not a gzip stream.
    Gzip(Option<Box<MultiGzDecoder<Capped>>>, usize),
}

impl Body {
    fn new(encoding: Encoding, bytes_max: usize) -> Self {
        match encoding {
            Encoding::Identity => Body::Identity(Capped::new(bytes_max)),
            Encoding::Gzip => Body::Gzip(None, bytes_max),
        }
    }

    fn push(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        match self {
            Body::Identity(bytes) => {
                let bytes_max = bytes.bytes_max;
                bytes.write_all(chunk).map_err(|error| body_failure(&error, bytes_max))
            }
            Body::Gzip(..) if chunk.is_empty() => Ok(()),
            Body::Gzip(decoder, bytes_max) => {
                let decoder = decoder.get_or_insert_with(|| Box::new(MultiGzDecoder::new(Capped::new(*bytes_max))));
                decoder.write_all(chunk).map_err(|error| body_failure(&error, *bytes_max))
            }
        }
    }

    fn finish(self) -> Result<Vec<u8>, Failure> {
        match self {
            Body::Identity(bytes) => Ok(bytes.bytes),
            Body::Gzip(None, _) => Ok(Vec::new()),
            Body::Gzip(Some(decoder), bytes_max) => {
                decoder.finish().map(|capped| capped.bytes).map_err(|error| body_failure(&error, bytes_max))
            }
        }
    }
}

/// A buffer that fails when its limit is exceeded, so that even one chunk cannot decode to more than the limit.
struct Capped {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Capped {
    fn new(bytes_max: usize) -> Self {
        Capped { bytes: Vec::new(), bytes_max }
    }
}

impl Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn body_failure(error: &io::Error, bytes_max: usize) -> Failure {
    if error.kind() == io::ErrorKind::FileTooLarge {
        too_large(bytes_max)
    } else {
        Failure::sent(FailureCode::Protocol, "the response body does not match its content encoding")
    }
}

/// The headers and the body for the plugin.
type Redacted = (Vec<(String, String)>, Vec<u8>);

/// Redacts the headers and the body of a response.
fn redact(
    mut headers: HeaderMap,
    body: Option<Vec<u8>>,
    redactor: &Redactor,
    watch: &Watch,
) -> Result<Redacted, SearchError> {
    let mut redacted = Vec::new();
    if let Some(body) = body {
        redacted = redactor.redact_watched(body, watch)?;
        if headers.contains_key(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, redacted.len().into());
        }
    }
    let hand_over = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = redactor.redact_watched(value.as_bytes().to_vec(), watch)?;
        // Invalid UTF-8 is replaced, and the value is searched again, because the replacement may reveal a secret.
        let value = redactor.redact_watched(String::from_utf8_lossy(&value).into_owned().into_bytes(), watch)?;
        let name = redactor.redact_name(name.as_str().to_owned());
        Ok((name, String::from_utf8_lossy(&value).into_owned()))
    };
    Ok((headers.iter().map(hand_over).collect::<Result<_, _>>()?, redacted))
}

/// Returns whether a header is removed: cookies, credentials, and headers about the connection or the transfer.
fn is_dropped(name: &str, inject: &[InjectRule]) -> bool {
    [SET_COOKIE, AUTHORIZATION, CONNECTION, TRANSFER_ENCODING].iter().any(|dropped| dropped == name)
        || name == "set-cookie2"
        || name.starts_with("proxy-")
        || is_injected(name, inject)
}

/// Returns the delay that a Retry-After header requests, in seconds or until a date (RFC 9110, section 10.2.3).
fn retry_after_ms(status: StatusCode, headers: &HeaderMap, now: UtcMillis) -> Option<u32> {
    if status != StatusCode::TOO_MANY_REQUESTS && status != StatusCode::SERVICE_UNAVAILABLE {
        return None;
    }
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(value.parse::<u32>().unwrap_or(u32::MAX).saturating_mul(1000));
    }
    let now = UNIX_EPOCH.checked_add(Duration::from_millis(now.0.try_into().ok()?))?;
    let wait = httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default();
    Some(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX))
}

pub(crate) fn too_large(bytes_max: usize) -> Failure {
    let limit =
        if bytes_max < 1 << 20 { format!("{} KiB", bytes_max >> 10) } else { format!("{} MiB", bytes_max >> 20) };
    Failure::sent(FailureCode::TooLarge, format!("the response is larger than {limit}"))
}

fn not_decoded() -> Failure {
    Failure::sent(FailureCode::Protocol, "the response has a content encoding that the host does not decode")
}

#[cfg(test)]
mod tests;
