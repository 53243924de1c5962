//! A client for `wasi:http`, written as a plugin author would write it.

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, HeaderError, IncomingBody, IncomingResponse, Method, OutgoingBody,
    OutgoingRequest, RequestOptions, Scheme,
};
use wasip2::io::streams::StreamError;

pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) trailer: Option<String>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// A failure, with its code in the plugin interface and its name in `wasi:http`.
pub(crate) struct Failed {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

/// A request in flight.
pub(crate) struct Pending(FutureIncomingResponse);

/// A response whose body has not been read.
pub(crate) struct Head(IncomingResponse);

pub(crate) fn begin(asked: &Asked) -> Result<Pending, Failed> {
    let headers = Fields::new();
    for (name, value) in &asked.headers {
        headers.append(name, value.as_bytes()).map_err(of_header)?;
    }
    let request = OutgoingRequest::new(headers);
    let (scheme, rest) = asked.url.split_once("://").ok_or_else(|| invalid("no scheme"))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let set = [
        request.set_method(&method(&asked.method)),
        request.set_scheme(Some(&match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            other => Scheme::Other(other.to_owned()),
        })),
        request.set_authority(Some(authority)),
        request.set_path_with_query(Some(path)),
    ];
    if set.contains(&Err(())) {
        return Err(invalid("the method, scheme, authority or path of the request is malformed"));
    }
    let options = RequestOptions::new();
    if let Some(ms) = asked.timeout_ms {
        options
            .set_first_byte_timeout(Some(ms * 1_000_000))
            .map_err(|()| invalid("the host does not support time-outs"))?;
    }
    let body = match (&asked.body, &asked.trailer) {
        (None, None) => None,
        _ => Some(request.body().map_err(|()| invalid("no body"))?),
    };
    let pending = handle(request, Some(options)).map_err(|code| of_code(&code))?;
    if let Some(body) = body {
        send_body(body, asked.body.as_deref().unwrap_or_default(), asked.trailer.as_deref())?;
    }
    Ok(Pending(pending))
}

/// Writes the body until it is complete or the host closes the stream. If the host closes the stream, the response
/// contains the reason.
fn send_body(body: OutgoingBody, bytes: &[u8], trailer: Option<&str>) -> Result<(), Failed> {
    let stream = body.write().map_err(|()| invalid("no stream"))?;
    let writable = stream.subscribe();
    let mut rest = bytes;
    while !rest.is_empty() {
        writable.block();
        let allowed = match stream.check_write() {
            Ok(allowed) => rest.len().min(usize::try_from(allowed).unwrap_or(usize::MAX)),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(error)) => return Err(invalid(&error.to_debug_string())),
        };
        if stream.write(&rest[..allowed]).is_err() {
            break;
        }
        rest = &rest[allowed..];
    }
    drop((writable, stream));
    let trailers = match trailer {
        Some(name) => Some(Fields::from_list(&[(name.to_owned(), b"x".to_vec())]).map_err(of_header)?),
        None => None,
    };
    OutgoingBody::finish(body, trailers).map_err(|code| of_code(&code))
}

impl Pending {
    pub(crate) fn head(self) -> Result<Head, Failed> {
        self.0.subscribe().block();
        match self.0.get() {
            Some(Ok(Ok(response))) => Ok(Head(response)),
            Some(Ok(Err(code))) => Err(of_code(&code)),
            _ => Err(invalid("no response")),
        }
    }

    pub(crate) fn answer(self) -> Result<Answer, Failed> {
        self.head().and_then(Head::read)
    }
}

impl Head {
    pub(crate) fn read(self) -> Result<Answer, Failed> {
        let headers = self.0.headers().entries();
        let text = |(name, value): (String, Vec<u8>)| (name, String::from_utf8_lossy(&value).into_owned());
        let status = self.0.status();
        let body = self.0.consume().map_err(|()| invalid("no body"))?;
        Ok(Answer { status, headers: headers.into_iter().map(text).collect(), body: all_of(&body)? })
    }
}

fn all_of(body: &IncomingBody) -> Result<Vec<u8>, Failed> {
    let stream = body.stream().map_err(|()| invalid("no stream"))?;
    let mut bytes = Vec::new();
    loop {
        match stream.blocking_read(256 * 1024) {
            Ok(chunk) => bytes.extend(chunk),
            Err(StreamError::Closed) => return Ok(bytes),
            Err(StreamError::LastOperationFailed(error)) => return Err(invalid(&error.to_debug_string())),
        }
    }
}

/// Creates a set of `count` header fields, to test that the host limits their number.
pub(crate) fn many_fields(count: usize) -> Result<(), Failed> {
    let fields = Fields::new();
    (0..count).try_for_each(|number| fields.append(&format!("x-{number}"), b"x").map_err(of_header))
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "PATCH" => Method::Patch,
        other => Method::Other(other.to_owned()),
    }
}

fn of_header(error: HeaderError) -> Failed {
    let code = match error {
        HeaderError::Forbidden => "denied",
        HeaderError::InvalidSyntax | HeaderError::Immutable => "invalid",
    };
    Failed { code, message: format!("{error:?}") }
}

fn of_code(error: &ErrorCode) -> Failed {
    let code = match error {
        ErrorCode::HttpRequestDenied => "denied",
        ErrorCode::HttpRequestUriInvalid
        | ErrorCode::HttpRequestUriTooLong
        | ErrorCode::HttpRequestBodySize(_)
        | ErrorCode::HttpRequestHeaderSectionSize(_)
        | ErrorCode::HttpRequestTrailerSectionSize(_)
        | ErrorCode::HttpRequestMethodInvalid => "invalid",
        ErrorCode::DnsError(_) => "dns",
        ErrorCode::ConnectionRefused => "connect",
        ErrorCode::TlsProtocolError => "tls",
        ErrorCode::ConnectionTimeout | ErrorCode::HttpResponseTimeout => "timeout",
        ErrorCode::HttpResponseBodySize(_) => "too_large",
        ErrorCode::ConnectionLimitReached => "limit",
        ErrorCode::DestinationUnavailable => "unavailable",
        ErrorCode::HttpProtocolError => "protocol",
        _ => "internal",
    };
    Failed { code, message: format!("{error:?}") }
}

fn invalid(message: &str) -> Failed {
    Failed { code: "invalid", message: message.to_owned() }
}
