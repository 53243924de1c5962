//! The content of a file or a folder while it is sent. If the content is interrupted, the stream ends with an error, so
//! that a client never mistakes incomplete content for complete content.

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use monstrum_sandbox::{ByteStream, SandboxError};

use crate::sandboxes::AccessError;

/// Waits for the first piece of a stream, and returns the whole stream.
pub(super) async fn begun(mut content: ByteStream) -> Result<ByteStream, AccessError> {
    match content.next().await {
        None => Ok(stream::empty().boxed()),
        Some(Ok(first)) => Ok(stream::iter([Ok(first)]).chain(content).boxed()),
        Some(Err(error)) => Err(error.into()),
    }
}

/// Limits the content of a file to the length that the file had when it was opened. If the file becomes shorter while
/// it is read, the stream ends with an error.
pub(super) fn exactly(bytes: u64, content: ByteStream) -> ByteStream {
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
                let error = SandboxError::Conflict("the file was truncated while it was being read".to_owned());
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
