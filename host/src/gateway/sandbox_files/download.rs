//! The response to a download, with a file or a folder as its body.

use axum::body::Body;
use axum::response::Response;
use futures::StreamExt as _;
use http::{HeaderValue, header};
use monstrum_sandbox::ByteStream;

use super::disposition::attachment;
use monstrum_core::operations::sandbox_files::Download;
use monstrum_types::with_causes;

/// Returns the answer with the content of `download`, which `deliver` passes on to the client.
pub(super) fn answer(download: Download, deliver: impl FnOnce(ByteStream) -> ByteStream) -> Response {
    let Download { name, is_archive, length, content, record } = download;
    let content = record.follow(deliver(content), length);
    let content = content.map(|piece| {
        piece.inspect_err(|error| tracing::warn!(error = %with_causes(error), "a download from a sandbox failed"))
    });
    // Compression polls the content again after its end.
    let mut response = Response::new(Body::from_stream(content.fuse()));
    let kind = if is_archive { "application/zip" } else { "application/octet-stream" };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_DISPOSITION, attachment(&name));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}
