use monstrum_types::Secret;
use proptest::prelude::*;

use super::*;
use crate::limits::RESPONSE_BODY_BYTES_MAX;

const TOKEN: &str = "s3cr3t-t0ken/x";

fn cell(secrets: &[&str]) -> Arc<RedactorCell> {
    let secrets = secrets.iter().map(|secret| Secret::new((*secret).to_owned()));
    Arc::new(RedactorCell::new(Arc::new(Redactor::new(secrets))))
}

/// Reads the events of a body that arrives in `chunks`.
fn reader(chunks: &[&[u8]], secrets: &[&str]) -> EventReader {
    let chunks: Vec<_> = chunks.iter().map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec())).collect();
    let body = reqwest::Body::wrap_stream(futures::stream::iter(chunks));
    let response = reqwest::Response::from(http::Response::new(body));
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    StreamedBody::new(Some(response), cell(secrets), deadline, RESPONSE_BODY_BYTES_MAX).events()
}

/// Returns the kinds and data of all events.
async fn all(chunks: &[&[u8]], secrets: &[&str]) -> Result<Vec<(String, String)>, FailureCode> {
    let mut reader = reader(chunks, secrets);
    let mut events = Vec::new();
    while let Some(Event { kind, data }) = reader.next().await.map_err(|failure| failure.code)? {
        events.push((kind, data));
    }
    Ok(events)
}

/// Returns the data of all events of a body that arrives in one chunk.
async fn data_of(body: &[u8]) -> Vec<String> {
    all(&[body], &[]).await.unwrap().into_iter().map(|(_, data)| data).collect()
}

#[tokio::test]
async fn events_are_parsed_as_the_standard_says() {
    for (body, expected) in [
        ("data: a\n\n", &["a"][..]),
        ("data:a\n\n", &["a"]),
        ("data:  a\n\n", &[" a"]),
        ("data: a\ndata: b\n\ndata: c\n\n", &["a\nb", "c"]),
        ("data\n\n", &[""]),
        ("data:\ndata\n\n", &["\n"]),
        ("\n\n\ndata: a\n\n\n\n", &["a"]),
        // The end of the body cuts this event off.
        ("data: a\n\ndata: b\n", &["a"]),
        ("data: a\n\ndata: b", &["a"]),
        ("", &[]),
        // These lines have no data.
        ("event: x\nid: 1\nretry: 5\n\n", &[]),
        (": a comment\n\n", &[]),
        (": a comment\ndata: a\n:\ndata: b\n\n", &["a\nb"]),
        ("unknown: x\nDATA: x\n data: x\ndata : x\n\n", &[]),
        ("data: a: b\n\n", &["a: b"]),
        ("data: {\"a\": 1}\n\n", &["{\"a\": 1}"]),
    ] {
        assert_eq!(data_of(body.as_bytes()).await, expected, "{body:?}");
    }
}

#[tokio::test]
async fn a_line_ends_with_crlf_lf_or_cr() {
    for end in ["\n", "\r\n", "\r"] {
        let body = ["data: a", "data: b", "", "data: c", "", ""].join(end);
        assert_eq!(data_of(body.as_bytes()).await, ["a\nb", "c"], "{end:?}");
    }
    assert_eq!(data_of(b"data: a\r\rdata: b\r\n\ndata: c\n\r\n").await, ["a", "b", "c"]);
    assert_eq!(data_of(b"data: a\n\rdata: b\n\n").await, ["a", "b"]);
}

#[tokio::test]
async fn a_byte_order_mark_is_skipped_at_the_beginning_only() {
    assert_eq!(data_of(b"\xEF\xBB\xBFdata: a\n\n").await, ["a"]);
    assert_eq!(data_of(b"\xEF\xBB\xBF: a comment\ndata: a\n\n").await, ["a"]);
    assert_eq!(data_of(b"\xEF\xBB\xBF\ndata: a\n\n").await, ["a"]);
    assert_eq!(data_of(b"data: a\n\n\xEF\xBB\xBFdata: b\n\n").await, ["a"]);
    assert_eq!(data_of(b"\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\n").await, Vec::<String>::new());
}

#[tokio::test]
async fn fields_outside_of_the_data_are_kept() {
    let body =
        b"event: first\nid: 7\ndata: a\n\nretry: 1500\n\nid: x\0y\nretry: 1s\ndata: b\n\nid\nevent:\ndata: c\n\n";
    let mut reader = reader(&[body], &[]);
    let mut seen = Vec::new();
    while let Some(event) = reader.next().await.unwrap() {
        seen.push((event.kind, event.data, reader.last_event_id().to_owned(), reader.retry_ms()));
    }
    let expected =
        |kind: &str, data: &str, id: &str, retry_ms| (kind.to_owned(), data.to_owned(), id.to_owned(), retry_ms);
    let expected = [
        expected("first", "a", "7", None),
        expected("message", "b", "7", Some(1500)),
        expected("message", "c", "", Some(1500)),
    ];
    assert_eq!(seen, expected);
}

/// Checks that the result does not depend on the place at which the body is cut into chunks.
#[tokio::test]
async fn a_body_may_be_cut_at_every_byte() {
    let body = format!(
        "\u{feff}: hello\r\nevent: grüße\rdata: é€😀 {TOKEN}\r\n\ndata: x\ndata: {TOKEN}\r\r\n: {TOKEN}\n\rdata: z\n\n"
    );
    let body = body.as_bytes();
    let of = |kind: &str, data: &str| (kind.to_owned(), data.to_owned());
    let expected = vec![of("grüße", "é€😀 [redacted]"), of("message", "x\n[redacted]"), of("message", "z")];
    assert_eq!(all(&[body], &[TOKEN]).await.unwrap(), expected);
    for cut in 0..=body.len() {
        assert_eq!(all(&[&body[..cut], &body[cut..]], &[TOKEN]).await.unwrap(), expected, "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(all(&bytes, &[TOKEN]).await.unwrap(), expected);
}

proptest! {
    #[test]
    fn a_splitter_does_not_depend_on_chunks(
        body in prop::collection::vec(prop::sample::select(b"ab:\r\n\xEF\xBB\xBF ".to_vec()), 0..60),
        cuts in prop::collection::vec(0..60_usize, 0..8),
    ) {
        let split = |chunks: Vec<&[u8]>| {
            let (mut splitter, mut blocks) = (Splitter::default(), Vec::new());
            for chunk in chunks {
                let mut chunk = Bytes::copy_from_slice(chunk);
                while let Some(block) = splitter.split(&mut chunk).unwrap() {
                    blocks.push(block);
                }
            }
            blocks
        };
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(body.len())).chain([0, body.len()]).collect();
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
        prop_assert_eq!(split(chunks), split(vec![body.as_slice()]));
    }
}

#[tokio::test]
async fn an_event_is_redacted_as_a_whole() {
    let json = "{\"token\":\"s3cr3t-t0ken\\/x\"}";
    let of = async |body: String| all(&[body.as_bytes()], &[TOKEN, "first line\nsecond line"]).await.unwrap();
    let redacted = |data: &str| vec![("message".to_owned(), data.to_owned())];
    assert_eq!(of(format!("data: a {TOKEN} b\n\n")).await, redacted("a [redacted] b"));
    assert_eq!(of(format!("data: {json}\n\n")).await, redacted("{\"token\":\"[redacted]\"}"));
    // The lines of the secret are separated by `\ndata: ` in the body and by a line feed in the data.
    assert_eq!(of("data: first line\ndata: second line\n\n".to_owned()).await, redacted("[redacted]"));
    assert_eq!(of(format!("event: {TOKEN}\ndata: a\n\n")).await, [("[redacted]".to_owned(), "a".to_owned())]);
    let mut reader = reader(&[format!("id: {TOKEN}\ndata: a\n\n").as_bytes()], &[TOKEN]);
    reader.next().await.unwrap().unwrap();
    assert_eq!(reader.last_event_id(), "[redacted]");
}

/// Checks that the replacement of invalid UTF-8 does not reveal a secret that contains the replacement character.
#[tokio::test]
async fn invalid_utf_8_is_replaced_and_searched_again() {
    let secret = "top\u{fffd}secret";
    let body = b"data: a top\xFFsecret b\n\ndata: \xC3\n\n";
    let events = all(&[body], &[secret]).await.unwrap();
    let data: Vec<&str> = events.iter().map(|(_, data)| data.as_str()).collect();
    assert_eq!(data, ["a [redacted] b", "\u{fffd}"]);
}

#[tokio::test]
async fn an_event_over_1_mib_fails_and_ends_the_body() {
    let most = "x".repeat(EVENT_BYTES_MAX - "data: \n".len());
    assert_eq!(data_of(format!("data: {most}\n\n").as_bytes()).await, [most.as_str()]);
    let after = b"\n\ndata: after\n\n";
    let over = format!("data: {most}x");
    let half = over.len() / 2;
    for chunks in [&[over.as_bytes(), after][..], &[&over.as_bytes()[..half], &over.as_bytes()[half..], after]] {
        let mut reader = reader(&[&[&b"data: before\n\n"[..]], chunks].concat(), &[]);
        assert_eq!(reader.next().await.unwrap().unwrap().data, "before");
        let failure = reader.next().await.unwrap_err();
        assert_eq!((failure.code, failure.sent), (FailureCode::TooLarge, true));
        assert_eq!(failure.message, "the response has an event that is larger than 1 MiB");
        assert_eq!(reader.next().await, Ok(None));
    }
    let lines = "data: x\n".repeat(EVENT_BYTES_MAX / 8 + 1);
    assert_eq!(all(&[lines.as_bytes()], &[]).await, Err(FailureCode::TooLarge));
    let comments = ": a comment\n".repeat(EVENT_BYTES_MAX / 8);
    assert_eq!(data_of(format!("{comments}data: a\n\n").as_bytes()).await, ["a"]);
}

#[tokio::test]
async fn the_body_has_at_most_10_mib() {
    let event = format!("data: {}\n\n", "x".repeat((1 << 20) - 8));
    let chunks = vec![event.as_bytes(); 11];
    let mut reader = reader(&chunks, &[]);
    for _ in 0..10 {
        assert!(reader.next().await.unwrap().is_some());
    }
    assert_eq!(reader.next().await.unwrap_err().code, FailureCode::TooLarge);
    assert_eq!(reader.next().await, Ok(None));
}

/// Checks that an event whose search runs on another thread is not lost if the caller stops waiting for it.
#[tokio::test]
async fn a_dropped_read_loses_no_event() {
    let large = "x".repeat(searches::INLINE_SEARCH_BYTES_MAX * 4);
    let mut reader = reader(&[format!("data: {large}\n\ndata: b\n\n").as_bytes()], &[TOKEN]);
    let mut polls = 0;
    let first = loop {
        let mut next = Box::pin(reader.next());
        let polled = futures::poll!(next.as_mut());
        drop(next);
        polls += 1;
        match polled {
            std::task::Poll::Ready(event) => break event.unwrap().unwrap(),
            std::task::Poll::Pending => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
        }
    };
    assert!(polls > 1, "the search did not run on another thread");
    assert_eq!(first.data, large);
    assert_eq!(reader.next().await.unwrap().unwrap().data, "b");
}
