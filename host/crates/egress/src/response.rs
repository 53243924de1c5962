//! Step 8: limits the size of a response, removes the headers that only the host needs, and redacts the remaining
//! headers and the body.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use flate2::write::MultiGzDecoder;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap, RETRY_AFTER, SET_COOKIE, TRANSFER_ENCODING,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use monstrum_manifest::InjectRule;
use monstrum_types::{Failure, FailureCode, HttpResponse, UtcMillis};

use crate::client;
use crate::headers::is_injected;
use crate::limits::{RESPONSE_HEADER_BYTES_MAX, RESPONSE_HEADERS_MAX};
use crate::redact::{Redactor, RedactorCell};
use crate::searches::{self, SearchError, Watch};

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
}

/// Reads a response completely.
pub(crate) async fn read(
    response: reqwest::Response,
    method: &Method,
    inject: &[InjectRule],
    redactor: &RedactorCell,
    now: UtcMillis,
    bytes_max: usize,
) -> Result<HttpResponse, Failure> {
    let retry_after_ms = retry_after_ms(response.status(), response.headers(), now);
    let answer = read_parts(response, method, inject, redactor, bytes_max).await;
    answer.map_err(|failure| Failure { retry_after_ms, ..failure })
}

async fn read_parts(
    response: reqwest::Response,
    method: &Method,
    inject: &[InjectRule],
    redactor: &RedactorCell,
    bytes_max: usize,
) -> Result<HttpResponse, Failure> {
    let status = response.status();
    check_headers(response.headers())?;
    check_transfer_encoding(response.headers())?;
    let mut headers = response.headers().clone();
    let has_body = *method != Method::HEAD && status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED;
    let body = if has_body {
        let encoding = encoding(&headers)?;
        let body = read_body(response, encoding, bytes_max).await?;
        headers.remove(CONTENT_ENCODING);
        Some(body)
    } else {
        None
    };
    let dropped: Vec<HeaderName> = headers.keys().filter(|name| is_dropped(name.as_str(), inject)).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
    let bytes = header_bytes(&headers) + body.as_ref().map_or(0, Vec::len);
    let current = redactor.current();
    let search = searches::run(bytes, redactor.budget(), move |watch| redact(headers, body, &current, watch));
    let (headers, body) = search.await.map_err(|stopped| Failure { sent: true, ..stopped.failure() })?;
    Ok(HttpResponse { status: status.as_u16(), headers, body })
}

fn header_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

fn check_headers(headers: &HeaderMap) -> Result<(), Failure> {
    if headers.len() > RESPONSE_HEADERS_MAX || header_bytes(headers) > RESPONSE_HEADER_BYTES_MAX {
        return Err(Failure::sent(FailureCode::TooLarge, "the headers of the response are too large"));
    }
    Ok(())
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
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    if encoding == Encoding::Identity && response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large(bytes_max));
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

fn too_large(bytes_max: usize) -> Failure {
    Failure::sent(FailureCode::TooLarge, format!("the response is larger than {} MiB", bytes_max >> 20))
}

fn not_decoded() -> Failure {
    Failure::sent(FailureCode::Protocol, "the response has a content encoding that the host does not decode")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(values: &[&str]) -> Result<Encoding, FailureCode> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CONTENT_ENCODING, HeaderValue::from_str(value).unwrap());
        }
        encoding(&headers).map_err(|failure| failure.code)
    }

    #[test]
    fn gzip_once_is_all_that_is_decoded() {
        for none in [&[][..], &[""], &["identity"], &["identity, Identity"]] {
            assert_eq!(encoded(none), Ok(Encoding::Identity), "{none:?}");
        }
        for gzip in [&["gzip"][..], &["GZIP"], &["x-gzip"], &["identity", "gzip"]] {
            assert_eq!(encoded(gzip), Ok(Encoding::Gzip), "{gzip:?}");
        }
        for other in [&["br"][..], &["deflate"], &["zstd"], &["gzip, gzip"], &["gzip", "gzip"], &["gzip, br"], &["x"]] {
            assert_eq!(encoded(other), Err(FailureCode::Protocol), "{other:?}");
        }
    }

    #[test]
    fn chunked_is_the_only_transfer_encoding() {
        let accepted = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(TRANSFER_ENCODING, HeaderValue::from_str(value).unwrap());
            }
            check_transfer_encoding(&headers).map_err(|failure| failure.code)
        };
        for values in [&[][..], &["chunked"], &["Chunked"]] {
            assert_eq!(accepted(values), Ok(()), "{values:?}");
        }
        for values in [
            &["gzip"][..],
            &["gzip, chunked"],
            &["gzip", "chunked"],
            &["chunked", "chunked"],
            &["chunked, chunked"],
            &["identity"],
            &["chunked;a=b"],
            &["x-chunked"],
            &[""],
        ] {
            assert_eq!(accepted(values), Err(FailureCode::Protocol), "{values:?}");
        }
    }

    #[test]
    fn the_limit_applies_to_the_decoded_body() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&[0; 2 << 20]).unwrap();
        let packed = encoder.finish().unwrap();
        for (encoding, bytes) in [(Encoding::Identity, [0; 2 << 20].as_slice()), (Encoding::Gzip, &packed)] {
            let read = |bytes_max| {
                let mut body = Body::new(encoding, bytes_max);
                body.push(bytes).and_then(|()| body.finish()).map_err(|failure| failure.message)
            };
            assert_eq!(read(2 << 20).map(|body| body.len()), Ok(2 << 20), "{encoding:?}");
            assert_eq!(read(1 << 20), Err("the response is larger than 1 MiB".to_owned()), "{encoding:?}");
        }
    }

    #[test]
    fn retry_after_is_read_for_two_statuses() {
        // 1994-11-06 08:49:37
        let now = UtcMillis(784_111_777_000);
        let wait = |status, value: &'static str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
            retry_after_ms(status, &headers, now)
        };
        assert_eq!(wait(StatusCode::OK, "2"), None);
        assert_eq!(wait(StatusCode::SERVICE_UNAVAILABLE, "2"), Some(2000));
        for (value, expected) in [
            ("2", Some(2000)),
            (" 0 ", Some(0)),
            ("99999999", Some(u32::MAX)),
            ("99999999999999999999", Some(u32::MAX)),
            ("Sun, 06 Nov 1994 08:49:40 GMT", Some(3000)),
            ("Sunday, 06-Nov-94 08:49:40 GMT", Some(3000)),
            ("Sun Nov  6 08:49:40 1994", Some(3000)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(u32::MAX)),
            ("Sun, 06 Nov 1994 08:49:40", None),
            ("soon", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("", None),
        ] {
            assert_eq!(wait(StatusCode::TOO_MANY_REQUESTS, value), expected, "{value:?}");
        }
    }
}
