//! Step 3: searches a request for secrets, which plugins must not possess.
//!
//! A plugin could receive a secret from an upstream that transforms it. This step finds secrets in all encodings that
//! redaction knows, so that the plugin cannot send them elsewhere.

use std::sync::Arc;

use monstrum_types::{Failure, FailureCode, HttpRequest};

use crate::redact::{Redactor, RedactorCell};
use crate::searches::{self, SearchError, Watch};

/// Rejects a request that contains a current secret of the resource. The search takes ownership of the request while it
/// runs. If the search fails, the request is not restored.
pub(crate) async fn check(redactor: &RedactorCell, request: &mut HttpRequest) -> Result<(), Failure> {
    let bytes = texts(request).map(<[u8]>::len).sum();
    let lent = std::mem::take(request);
    let current = redactor.current();
    let search = searches::run(bytes, redactor.budget(), move |watch| {
        let found = holds_secret(&current, &lent, watch)?;
        Ok((found, lent))
    });
    let (found, lent) = search.await.map_err(SearchError::failure)?;
    *request = lent;
    if found {
        return Err(Failure::unsent(FailureCode::Denied, "the request contains a secret of this resource"));
    }
    Ok(())
}

fn holds_secret(redactor: &Arc<Redactor>, request: &HttpRequest, watch: &Watch) -> Result<bool, SearchError> {
    for text in texts(request) {
        if redactor.contains_watched(text, watch)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the texts of a request in which a plugin could place a secret: the URL, the body, and the names and values
/// of query parameters and headers.
fn texts(request: &HttpRequest) -> impl Iterator<Item = &[u8]> {
    let pairs = request.query.iter().chain(&request.headers);
    let texts = pairs.flat_map(|(name, value)| [name, value]).chain([&request.url]);
    texts.map(String::as_bytes).chain(request.body.as_deref())
}

#[cfg(test)]
mod tests {
    use monstrum_types::Secret;

    use super::*;
    use crate::searches::INLINE_SEARCH_BYTES_MAX;

    async fn refused(request: &HttpRequest) -> bool {
        let redactor = RedactorCell::new(Arc::new(Redactor::new([Secret::new("s3cr3t-t0ken/x".to_owned())])));
        let mut lent = request.clone();
        let failure = check(&redactor, &mut lent).await.err();
        assert_eq!(&lent, request);
        failure.is_some_and(|failure| failure.code == FailureCode::Denied && !failure.sent)
    }

    #[tokio::test]
    async fn every_part_of_a_request_is_searched() {
        let secret = || "a s3cr3t-t0ken/x b".to_owned();
        let plain = || "plain".to_owned();
        let base = HttpRequest { url: "/x".to_owned(), body: Some(b"y".to_vec()), ..HttpRequest::default() };
        assert!(!refused(&base).await);
        assert!(refused(&HttpRequest { url: "/%73%33cr3t-t0ken%2fx".to_owned(), ..base.clone() }).await);
        for pair in [(secret(), plain()), (plain(), secret())] {
            assert!(refused(&HttpRequest { query: vec![(plain(), plain()), pair.clone()], ..base.clone() }).await);
            assert!(refused(&HttpRequest { headers: vec![(plain(), plain()), pair], ..base.clone() }).await);
        }
        assert!(refused(&HttpRequest { body: Some(br#"{"a":"s3cr3t-t0ken\/x"}"#.to_vec()), ..base.clone() }).await);
        let mut large = vec![b'x'; INLINE_SEARCH_BYTES_MAX * 2];
        assert!(!refused(&HttpRequest { body: Some(large.clone()), ..base.clone() }).await);
        large.extend_from_slice(b"s3cr3t-t0ken/x");
        assert!(refused(&HttpRequest { body: Some(large), ..base }).await);
    }
}
