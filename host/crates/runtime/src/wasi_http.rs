//! `wasi:http` for components that use it instead of `monstrum:plugin/http`.
//!
//! Both interfaces share one path: a request is converted to an [`HttpRequest`] with `authenticate` set and goes
//! through [`HostCalls::http_send`], with the same counters and limits. Egress checks destinations and headers. This
//! interface allows concurrent requests, so this module also limits the memory that the host holds for a guest.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use monstrum_types::{
    Failure, FailureCode, HttpRequest, HttpResponse, REQUEST_BODY_BYTES_MAX, REQUEST_HEADER_BYTES_MAX,
    REQUEST_HEADERS_MAX, URL_BYTES_MAX,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use wasmtime_wasi_http::{
    Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

use crate::host::{Counters, HostCalls};
use crate::store::State;

/// The maximum size of one `fields` resource in bytes: the 32 KiB of headers that a request may have, and the
/// bookkeeping for 100 headers. A guest that exceeds this size traps.
const FIELDS_BYTES_MAX: usize = REQUEST_HEADER_BYTES_MAX + REQUEST_HEADERS_MAX * 160;

/// The number of bytes that a guest may write to a body at once. The host holds up to twice as much for each unsent
/// body.
const BODY_CHUNK_BYTES: usize = 16 << 10;

/// The maximum total size of the request and response bodies that the host holds for one call: three request bodies of
/// the maximum size, or many small bodies.
const HELD_BYTES_MAX: usize = 3 * REQUEST_BODY_BYTES_MAX;

/// The maximum number of concurrent requests of one call. Further requests wait. The limit exists because each response
/// may have the maximum size.
const SENDING_MAX: usize = 4;

/// The outgoing requests of a call, both through `monstrum:plugin/http` and through `wasi:http`.
pub(crate) struct Outgoing {
    pub(crate) host: Arc<dyn HostCalls>,
    pub(crate) counters: Counters,
    held: Arc<Semaphore>,
    sending: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Outgoing {
    pub(crate) fn new(host: Arc<dyn HostCalls>) -> Self {
        Outgoing {
            host,
            counters: Counters::default(),
            held: Arc::new(Semaphore::new(HELD_BYTES_MAX)),
            sending: Arc::new(Semaphore::new(SENDING_MAX)),
            tasks: TaskTracker::new(),
        }
    }

    /// Returns the requests in flight. Dropping the store aborts these requests, but does not wait for them, so a call
    /// must wait until the requests have ended.
    pub(crate) fn tasks(&self) -> TaskTracker {
        self.tasks.clone()
    }
}

/// Creates the context with the size limit of `fields`.
pub(crate) fn context() -> WasiHttpCtx {
    let mut context = WasiHttpCtx::new();
    context.set_field_size_limit(FIELDS_BYTES_MAX);
    context
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.outgoing, table: &mut self.handles, ctx: &mut self.wasi_http }
    }
}

/// The response, and a future that completes when the response is transmitted.
type SendResult = Result<(Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>), Error>;

impl WasiHttpHooks for Outgoing {
    /// Allows all headers, because egress decides which headers a plugin may set.
    fn is_forbidden_header(&mut self, _: &HeaderName) -> bool {
        false
    }

    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        Arc::new(|_| false)
    }

    fn is_supported_scheme(&mut self, scheme: &Scheme) -> bool {
        *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS
    }

    /// Returns false, because egress sets the header from the URL.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        BODY_CHUNK_BYTES
    }

    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = SendResult> + Send> {
        let counted = self.counters.count_http();
        let (host, held, sending) = (Arc::clone(&self.host), Arc::clone(&self.held), Arc::clone(&self.sending));
        let answer = async move {
            counted.map_err(error)?;
            let (request, _held) = collected(request, options, &held).await?;
            let _permit = sending.acquire().await.expect("the semaphore is never closed");
            let response = host.http_send(request).await.map_err(error)?;
            let nothing_left_to_do: Box<dyn Future<Output = Result<(), Error>> + Send> =
                Box::new(std::future::ready(Ok(())));
            Ok((handed_over(response, &held)?, nothing_left_to_do))
        };
        Box::new(self.tasks.track_future(answer))
    }
}

/// Collects a request with its whole body in the form that egress checks and sends.
async fn collected(
    request: Request<WasiBody>,
    options: Option<RequestOptions>,
    held: &Arc<Semaphore>,
) -> Result<(HttpRequest, OwnedSemaphorePermit), Error> {
    let (mut parts, body) = request.into_parts();
    let declared = parts.headers.remove(CONTENT_LENGTH);
    let url = parts.uri.to_string();
    if url.len() > URL_BYTES_MAX {
        return Err(Error::HttpRequestUriTooLong);
    }
    let headers = written(&parts.headers)?;
    let (body, held) = whole(body, held).await?;
    // The host sets Content-Length. If the guest declares a different length, the request is rejected.
    if declared.is_some_and(|declared| declared.as_bytes() != body.len().to_string().as_bytes()) {
        return Err(Error::HttpRequestBodySize(u64::try_from(body.len()).ok()));
    }
    let request = HttpRequest {
        method: parts.method.as_str().to_owned(),
        url,
        query: Vec::new(),
        headers,
        body: (!body.is_empty()).then_some(body),
        timeout_ms: options.and_then(timeout_ms),
        authenticate: true,
    };
    Ok((request, held))
}

/// Returns the guest's headers as text. This function also checks the header limits, because this interface has a
/// specific error for headers.
fn written(headers: &HeaderMap) -> Result<Vec<(String, String)>, Error> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > REQUEST_HEADERS_MAX || bytes > REQUEST_HEADER_BYTES_MAX {
        return Err(Error::HttpRequestHeaderSectionSize(u32::try_from(bytes).ok()));
    }
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = std::str::from_utf8(value.as_bytes()).map_err(|_| Error::HttpProtocolError)?;
        Ok((name.as_str().to_owned(), value.to_owned()))
    };
    headers.iter().map(text).collect()
}

/// Reads a body until the guest finishes it. If the guest never finishes the body, the time limit of the call ends the
/// read.
async fn whole(mut body: WasiBody, held: &Arc<Semaphore>) -> Result<(Vec<u8>, OwnedSemaphorePermit), Error> {
    let mut collected = Vec::new();
    let mut holding = hold(held, 0)?;
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        // Trailers are not supported, so they are rejected instead of dropped.
        let data = frame.into_data().map_err(|_| Error::HttpRequestTrailerSectionSize(None))?;
        let size = collected.len() + data.len();
        if size > REQUEST_BODY_BYTES_MAX {
            return Err(Error::HttpRequestBodySize(u64::try_from(size).ok()));
        }
        holding.merge(hold(held, data.len())?);
        collected.extend_from_slice(&data);
    }
    Ok((collected, holding))
}

/// Reserves bytes of the call's limit on held bodies.
fn hold(held: &Arc<Semaphore>, bytes: usize) -> Result<OwnedSemaphorePermit, Error> {
    let bytes = u32::try_from(bytes).map_err(|_| Error::ConnectionLimitReached)?;
    Arc::clone(held).try_acquire_many_owned(bytes).map_err(|_| Error::ConnectionLimitReached)
}

/// Returns the timeout that the guest requested. The timeout for the first byte starts after the connection is
/// established, so both timeouts are added. The timeout between bytes is ignored, because the call has a time limit.
fn timeout_ms(options: RequestOptions) -> Option<u32> {
    let first_byte = options.first_byte_timeout?;
    let asked = first_byte.saturating_add(options.connect_timeout.unwrap_or(Duration::ZERO));
    Some(u32::try_from(asked.as_millis()).unwrap_or(u32::MAX))
}

/// Converts a response for the guest.
fn handed_over(response: HttpResponse, held: &Arc<Semaphore>) -> Result<Response<WasiBody>, Error> {
    let HttpResponse { status, headers, body } = response;
    let holding = hold(held, body.len()).map_err(|_| Error::HttpResponseBodySize(u64::try_from(body.len()).ok()))?;
    let body = HeldBody { bytes: (!body.is_empty()).then(|| Bytes::from(body)), _holding: holding };
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(status).map_err(|_| Error::HttpProtocolError)?;
    for (name, value) in headers {
        // A redacted name may be an invalid header name.
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap_or(HeaderName::from_static("redacted"));
        let value = HeaderValue::from_str(&value).map_err(|_| Error::HttpProtocolError)?;
        answer.headers_mut().append(name, value);
    }
    Ok(answer)
}

/// A response body. The body's bytes count as held until the body is dropped.
struct HeldBody {
    bytes: Option<Bytes>,
    _holding: OwnedSemaphorePermit,
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Error>>> {
        Poll::Ready(self.bytes.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// Converts a failure to the closest error of `wasi:http`.
fn error(failure: Failure) -> Error {
    match failure.code {
        FailureCode::Denied | FailureCode::Unauthenticated => Error::HttpRequestDenied,
        FailureCode::Invalid => Error::HttpRequestUriInvalid,
        FailureCode::Dns => Error::DnsError { rcode: None, info_code: None },
        FailureCode::Connect => Error::ConnectionRefused,
        FailureCode::Tls => Error::TlsProtocolError,
        FailureCode::Timeout if failure.sent => Error::HttpResponseTimeout,
        FailureCode::Timeout => Error::ConnectionTimeout,
        FailureCode::TooLarge => Error::HttpResponseBodySize(None),
        FailureCode::Limit => Error::ConnectionLimitReached,
        FailureCode::Unavailable => Error::DestinationUnavailable,
        FailureCode::Protocol => Error::HttpProtocolError,
        FailureCode::Internal => Error::InternalError(Some(failure.message)),
    }
}

#[cfg(test)]
mod tests;
