//! Step 3: a plugin never holds a secret, so what it writes must not hold one either.
//!
//! A plugin could come by a secret through an upstream that hands it out in disguise. Finding it here keeps it from
//! being sent on, in any encoding that redaction knows.

use std::sync::Arc;

use monstrum_types::{Failure, FailureCode, HttpRequest};

use crate::limits::INLINE_SEARCH_BYTES_MAX;
use crate::redact::Redactor;

/// Refuses a request in which a live secret of the resource is found. The body is lent to the search.
pub(crate) async fn check(redactor: &Arc<Redactor>, request: &mut HttpRequest) -> Result<(), Failure> {
    let pairs = request.query.iter().chain(&request.headers);
    let mut texts = pairs.flat_map(|(name, value)| [name, value]).chain([&request.url]);
    if texts.any(|text| redactor.contains(text.as_bytes())) || body_holds_secret(redactor, &mut request.body).await? {
        return Err(Failure::unsent(FailureCode::Denied, "the request holds a secret of this resource"));
    }
    Ok(())
}

async fn body_holds_secret(redactor: &Arc<Redactor>, body: &mut Option<Vec<u8>>) -> Result<bool, Failure> {
    let Some(bytes) = body.take_if(|bytes| bytes.len() > INLINE_SEARCH_BYTES_MAX) else {
        return Ok(body.as_ref().is_some_and(|bytes| redactor.contains(bytes)));
    };
    let redactor = Arc::clone(redactor);
    let search = tokio::task::spawn_blocking(move || (redactor.contains(&bytes), bytes));
    let (found, bytes) = search.await.map_err(|_| Failure::unsent(FailureCode::Internal, "the search failed"))?;
    *body = Some(bytes);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use monstrum_types::Secret;

    use super::*;

    async fn refused(request: &HttpRequest) -> bool {
        let redactor = Arc::new(Redactor::new([Secret::new("s3cr3t-t0ken/x".to_owned())]));
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
