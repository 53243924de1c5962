//! Answers that are made to take memory or time. Each is refused or read within the limits.

use monstrum_llm::reader::CALLS_MAX;
use monstrum_llm::{ROUND_BYTES_MAX, ReadError};
use serde_json::json;

use crate::support::{calls, delta, finish, read, read_deltas, read_pieces, reader, stream};

#[test]
fn an_answer_over_the_limit_fails_the_round() {
    let piece = format!("data: {}\n\n", delta(&json!({"content": "x".repeat(60_000)}))).into_bytes();
    let mut reader = reader();
    let mut pushed = 0;
    while !reader.is_over() {
        assert!(pushed <= ROUND_BYTES_MAX, "the reader took {pushed} bytes");
        reader.push(&piece);
        pushed += piece.len();
    }
    assert!(matches!(reader.finish(), Err(ReadError::TooLong)));
}

#[test]
fn an_answer_at_the_limit_is_read() {
    let end = stream(&[finish("stop")]);
    let comment = format!(":{}\n\n", "x".repeat(ROUND_BYTES_MAX - end.len() - 3));
    assert!(read(comment.clone() + &end).is_ok());
    assert!(matches!(read(comment + &end.replace("[DONE]", " [DONE]")), Err(ReadError::TooLong)));
}

#[test]
fn a_line_without_an_end_fails_the_round() {
    let bytes = [b"data: ".as_slice(), &vec![b'x'; ROUND_BYTES_MAX]].concat();
    assert!(matches!(read(&bytes), Err(ReadError::TooLong)));
    assert!(matches!(read_pieces(bytes.chunks(1_000)).1, Err(ReadError::TooLong)));
    assert!(matches!(read(vec![b' '; ROUND_BYTES_MAX + 1]), Err(ReadError::TooLong)));
    assert!(matches!(read("[".repeat(ROUND_BYTES_MAX + 1)), Err(ReadError::TooLong)));
}

#[test]
fn deep_nesting_fails_the_round() {
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    for text in [deep.clone(), format!("data: {{\"choices\":{deep}}}\n\n")] {
        assert!(matches!(read(text), Err(ReadError::Json { .. })));
    }
}

#[test]
fn deep_nesting_over_many_chunks_is_not_possible() {
    // Merging never nests deeper than one chunk does.
    let mut value = json!(1);
    for _ in 0..60 {
        value = json!({"a": value});
    }
    let round = read_deltas(&vec![json!({"vendor": value}); 100]);
    assert_eq!(round.message.extra["vendor"].to_string().matches('{').count(), 60);
}

#[test]
fn deeply_nested_arguments_do_not_run() {
    let arguments = format!("{{\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let call = json!({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": arguments}}]});
    let round = read_deltas(&[call]);
    assert!(round.runnable(&round.message.calls[0]).is_err());
}

#[test]
fn a_huge_index_takes_no_memory() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"index": u64::MAX, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 1e300, "id": "b", "function": {"name": "g", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": -1, "id": "c", "function": {"name": "h", "arguments": "{}"}}]}),
        json!({"choices": u64::MAX}),
    ]);
    assert_eq!(calls(&round), ["a f {}", "b g {}", "c h {}"]);
}

#[test]
fn too_many_calls_fail_the_round() {
    let call = |index: usize| delta(&json!({"tool_calls": [{"index": index, "id": index, "function": {"name": "f"}}]}));
    let mut chunks: Vec<_> = (0..CALLS_MAX).map(call).collect();
    chunks.push(finish("tool_calls"));
    assert_eq!(read(stream(&chunks)).unwrap().message.calls.len(), CALLS_MAX);
    chunks.insert(0, call(CALLS_MAX));
    assert!(matches!(read(stream(&chunks)), Err(ReadError::TooManyCalls)));
}

#[test]
fn millions_of_tiny_fragments_are_bounded() {
    // In one chunk, the number of values is limited before they take memory.
    let many = "{},".repeat(ROUND_BYTES_MAX / 3 - 100);
    let text = format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{many}{{}}]}}}}]}}\n\n");
    assert!(matches!(read(text), Err(ReadError::Json { .. })));
    // In many chunks, they all continue one call.
    let chunk = "data:{\"choices\":[{\"delta\":{\"tool_calls\":[{},{},{},{}]}}]}\n\n";
    let text = chunk.repeat(ROUND_BYTES_MAX / chunk.len() - 1);
    assert!(matches!(read(text), Err(ReadError::Unfinished { .. })));
}

#[test]
fn millions_of_empty_events_are_read() {
    let text = "data:\n\n".repeat(ROUND_BYTES_MAX / 7 - 100) + &stream(&[finish("stop")]);
    assert!(read(text).is_ok());
}

/// Each event is within its limits; what they leave together is not.
#[test]
fn many_events_with_many_values_fail_the_round() {
    let values = vec![0; 40_000];
    for many in [
        json!({"vendor": values}),
        json!({"vendor": {"list": values}}),
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}, "vendor": values}]}),
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "vendor": values}}]}),
    ] {
        let chunk = delta(&many);
        assert!(read(stream(&[chunk.clone(), chunk.clone(), finish("stop")])).is_ok(), "80 000 values are kept");
        let event = format!("data: {chunk}\n\n").into_bytes();
        let mut reader = reader();
        let pushed = (0..42).take_while(|_| {
            let goes_on = !reader.is_over();
            reader.push(&event);
            goes_on
        });
        assert_eq!(pushed.count(), 3, "the third event is one too many");
        assert!(matches!(reader.finish(), Err(ReadError::TooManyValues)));
    }
}

#[test]
fn new_fields_and_elements_of_many_events_are_counted() {
    let field = |event: usize| {
        let fields: serde_json::Map<_, _> = (0..30_000).map(|at| (format!("{event}-{at}"), json!(1))).collect();
        delta(&json!({"vendor": fields}))
    };
    let element = |event: usize| {
        let elements: Vec<_> = (0..10_000).map(|at| json!({"index": at, "type": event, "x": 1})).collect();
        delta(&json!({"vendor": elements}))
    };
    for chunks in [(0..4).map(field).collect::<Vec<_>>(), (0..4).map(element).collect()] {
        assert!(matches!(read(stream(&chunks)), Err(ReadError::TooManyValues)));
    }
}

#[test]
fn values_that_later_events_replace_are_not_counted() {
    let replaced = vec![json!({"vendor": {"progress": {"done": 1, "of": 2}, "state": "busy"}}); 40_000];
    let round = read_deltas(&replaced);
    assert_eq!(round.message.extra["vendor"]["progress"]["done"], 1);
}
