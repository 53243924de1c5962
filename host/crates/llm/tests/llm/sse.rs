//! The parser of event streams: the examples of the standard, and properties over all ways to cut a stream.

use monstrum_llm::sse::{Event, Parser, SseError};
use proptest::prelude::*;

fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<(String, String)> {
    let mut parser = Parser::new(1 << 20);
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut events).unwrap();
    }
    events.extend(parser.finish().unwrap());
    events.into_iter().map(|Event { name, data }| (name, data)).collect()
}

fn data(stream: &str) -> Vec<String> {
    parse([stream.as_bytes()]).into_iter().map(|(_, data)| data).collect()
}

#[test]
fn fields_of_one_event_are_put_together() {
    assert_eq!(data("data: YHOO\ndata: +2\ndata: 10\n\n"), ["YHOO\n+2\n10"]);
    assert_eq!(data("data\n\ndata\ndata\n\n"), ["", "\n"]);
    assert_eq!(data("data:test\n\ndata: test\n\ndata:  test\n\n"), ["test", "test", " test"]);
    let named = parse([b"event: add\ndata: 1\n\ndata: 2\n\n".as_slice()]);
    assert_eq!(named, [("add".to_owned(), "1".to_owned()), (String::new(), "2".to_owned())]);
}

#[test]
fn comments_and_other_fields_are_skipped() {
    assert_eq!(data(": ping\n\n:\nid: 4\nretry: 9\ndata: a\nother: b\n: more\n\nevent: only\n\n"), ["a"]);
}

#[test]
fn all_ends_of_lines_are_known() {
    for end in ["\n", "\r\n", "\r"] {
        assert_eq!(data(&format!("data: a{end}data: b{end}{end}data: c{end}{end}")), ["a\nb", "c"], "{end:?}");
    }
}

#[test]
fn a_byte_order_mark_is_skipped_only_at_the_start() {
    assert_eq!(data("\u{feff}data: a\n\n"), ["a"]);
    assert_eq!(data("data: a\n\n\u{feff}data: b\n\n"), ["a"]);
}

#[test]
fn an_event_without_its_blank_line_is_the_last() {
    assert_eq!(data("data: a\n\ndata: b"), ["a", "b"]);
    assert_eq!(data("data: a\n\ndata: b\n"), ["a", "b"]);
}

#[test]
fn bytes_that_are_not_utf_8_are_replaced() {
    assert_eq!(parse([b"data: a\xffb\n\n".as_slice()]), [(String::new(), "a\u{fffd}b".to_owned())]);
}

#[test]
fn a_line_over_the_limit_fails_the_stream() {
    let mut parser = Parser::new(10);
    let mut events = Vec::new();
    parser.push(b"data: 1234\n\n", &mut events).unwrap();
    assert_eq!(events.len(), 1);
    let failure = Err(SseError::LineTooLong { limit: 10 });
    assert_eq!(parser.push(b"data: 12345", &mut events), failure);
    assert_eq!(parser.push(b"\n\ndata: a\n\n", &mut events), failure);
    assert_eq!(events.len(), 1);
    assert_eq!(parser.finish(), Err(SseError::LineTooLong { limit: 10 }));
}

#[test]
fn an_event_over_the_limit_fails_the_stream() {
    let mut parser = Parser::new(10);
    let pushed = parser.push(b"data: 1234\ndata: 1234\ndata: 1\n\n", &mut Vec::new());
    assert_eq!(pushed, Err(SseError::EventTooLong { limit: 10 }));
}

/// Lines that are typical, and lines of any bytes.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        Just(b"data: {\"a\":1}".to_vec()),
        Just(b"data:".to_vec()),
        Just("data: h\u{e9}\u{4f60}\u{1f600}".as_bytes().to_vec()),
        Just("\u{feff}data: a".as_bytes().to_vec()),
        Just(b": comment".to_vec()),
        Just(b"event: error".to_vec()),
        Just(Vec::new()),
        prop::collection::vec(any::<u8>(), 0..12),
    ];
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r"), Just("\n\n"), Just("\r\n\r\n"), Just("")];
    prop::collection::vec((line, end), 0..20)
        .prop_map(|lines| lines.into_iter().flat_map(|(line, end)| [line, end.as_bytes().to_vec()].concat()).collect())
}

proptest! {
    #[test]
    fn the_events_do_not_depend_on_the_pieces(stream in lines(), mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let whole = parse([stream.as_slice()]);
        let bytes = parse(stream.chunks(1));
        prop_assert_eq!(&whole, &bytes);
        cuts.sort_by_key(|cut| cut.index(stream.len() + 1));
        let mut pieces = Vec::new();
        let mut start = 0;
        for cut in cuts {
            let end = cut.index(stream.len() + 1);
            pieces.push(&stream[start..end]);
            start = end;
        }
        pieces.push(&stream[start..]);
        prop_assert_eq!(&whole, &parse(pieces));
    }

    #[test]
    fn what_is_written_is_read(texts in prop::collection::vec("[^\r]{0,20}", 0..8), end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")]) {
        let write = |text: &String| text.split('\n').map(|line| format!("data: {line}{end}")).collect::<String>() + end;
        let stream: String = texts.iter().map(write).collect();
        prop_assert_eq!(data(&stream), texts);
    }
}
