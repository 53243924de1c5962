//! A file or a folder on its way to a client. What breaks off in the middle breaks the connection off, so that nobody takes
//! a part for the whole.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Version, header};
use monstrum_sandbox::{ArchiveLimits, ByteStream, EntryKind, SandboxError, WORKSPACE};

use super::disposition::attachment;
use crate::gateway::problem::Problem;
use monstrum_core::plugins::with_causes;
use monstrum_core::sandboxes::{Fault, Open};

/// The answer that carries `path`, as it is to be delivered. What goes wrong before its first byte is a problem like any
/// other.
pub(super) async fn answer(
    open: &Open,
    path: &str,
    version: Version,
    deliver: impl FnOnce(ByteStream, Option<u64>) -> ByteStream,
) -> Result<Result<Response, Problem>, Fault> {
    let entry = open.target(path).await?;
    let name = if entry.path.trim_end_matches('/') == WORKSPACE { "workspace" } else { &entry.name };
    let (content, name, kind, length) = match entry.kind {
        EntryKind::File => {
            let (opened, content) = open.read(path).await?;
            let content = exactly(opened.size, content);
            (content, name.to_owned(), "application/octet-stream", Some(opened.size))
        }
        EntryKind::Directory if version < Version::HTTP_11 => {
            return Ok(Err(Problem::old_http(
                "a folder has no length, and HTTP/1.0 could not tell a part from the whole",
            )));
        }
        EntryKind::Directory => {
            let content = open.archive(path, ArchiveLimits::default()).await?;
            (content, format!("{name}.zip"), "application/zip", None)
        }
        EntryKind::Other => {
            return Ok(Err(Problem::invalid_at("/path", "is neither a file nor a folder")));
        }
    };
    let mut response = Response::new(Body::from_stream(deliver(begun(content).await?, length).map(|piece| {
        piece.inspect_err(
            |error| tracing::warn!(error = %with_causes(error), "a download from a sandbox was broken off"),
        )
    })));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_DISPOSITION, attachment(&name));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(Ok(response))
}

/// The stream once its first piece is there.
async fn begun(mut content: ByteStream) -> Result<ByteStream, Fault> {
    match content.next().await {
        None => Ok(stream::empty().boxed()),
        Some(Ok(first)) => Ok(stream::iter([Ok(first)]).chain(content).boxed()),
        Some(Err(error)) => Err(error.into()),
    }
}

/// A file that is written to while it is read: its beginning as long as it was when it was opened, or an error.
fn exactly(bytes: u64, content: ByteStream) -> ByteStream {
    let next = async |(mut content, left): (Option<ByteStream>, u64)| {
        let mut stream = content.take()?;
        if left == 0 {
            return None;
        }
        match stream.next().await {
            Some(Ok(piece)) => {
                let piece = cut(piece, left);
                let left = left - piece.len() as u64;
                Some((Ok(piece), (Some(stream), left)))
            }
            Some(Err(error)) => Some((Err(error), (None, 0))),
            None => {
                let error = SandboxError::Conflict("the file became shorter while it was read".to_owned());
                Some((Err(error), (None, 0)))
            }
        }
    };
    stream::unfold((Some(content), bytes), next).boxed()
}

fn cut(piece: Bytes, bytes_max: u64) -> Bytes {
    let max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    if piece.len() > max { piece.slice(..max) } else { piece }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: u64, pieces: &[&'static str]) -> Result<String, SandboxError> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect();
        let mut content = exactly(bytes, stream::iter(pieces).boxed());
        let mut text = String::new();
        while let Some(piece) = content.next().await {
            text.push_str(std::str::from_utf8(&piece?).unwrap());
        }
        Ok(text)
    }

    #[tokio::test]
    async fn a_file_is_as_long_as_it_was_said_to_be_or_none_at_all() {
        assert_eq!(read(4, &["ab", "cd"]).await.unwrap(), "abcd");
        assert_eq!(read(3, &["ab", "cd", "ef"]).await.unwrap(), "abc");
        assert_eq!(read(0, &["ab"]).await.unwrap(), "");
        assert!(read(5, &["ab", "cd"]).await.is_err());
    }
}
