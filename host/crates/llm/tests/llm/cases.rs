//! What servers leave out, repeat and add, case by case.

use monstrum_llm::{FinishReason, NotRun, Usage};
use serde_json::{Value, json};

use crate::support::{calls, delta, finish, read, read_deltas, read_pieces, stream, with_causes};

#[test]
fn content_may_be_null_missing_empty_or_in_parts() {
    let round = read_deltas(&[
        json!({"role": "assistant", "content": null}),
        json!({}),
        json!({"content": ""}),
        json!({"content": "a"}),
        json!({"content": [{"type": "text", "text": "b"}, "c", {"type": "image_url"}, {"type": "text", "text": "d"}]}),
        json!({"content": {"unknown": 1}}),
    ]);
    assert_eq!(round.message.text, "abcd");
}

#[test]
fn thoughts_in_parts_are_reasoning() {
    let round = read_deltas(&[json!({"content": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "x"}]},
        {"type": "thinking", "thinking": "y"},
        {"type": "text", "text": "z"},
    ]})]);
    assert_eq!((round.reasoning.as_str(), round.message.text.as_str()), ("xy", "z"));
}

#[test]
fn reasoning_that_is_sent_by_two_names_is_read_once() {
    let round = read_deltas(&[json!({"reasoning": "r", "reasoning_content": "r"}), json!({"reasoning": "s"})]);
    assert_eq!(round.reasoning, "rs");
}

#[test]
fn usage_may_be_in_any_chunk_or_in_none() {
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10});
    let expected = Some(Usage { input: 7, output: 3, ..Usage::default() });
    let text = delta(&json!({"content": "a"}));
    let with_usage = |chunk: &Value| {
        let mut chunk = chunk.clone();
        chunk["usage"] = usage.clone();
        chunk
    };
    let alone = json!({"choices": [], "usage": usage});
    let in_choice = json!({"choices": [{"delta": {}, "finish_reason": "stop", "usage": usage}]});
    for chunks in [
        vec![with_usage(&text), finish("stop")],
        vec![text.clone(), with_usage(&finish("stop"))],
        vec![text.clone(), finish("stop"), alone.clone()],
        vec![alone, text.clone(), finish("stop")],
        vec![text.clone(), in_choice],
    ] {
        assert_eq!(read(stream(&chunks)).unwrap().usage, expected, "{chunks:?}");
    }
    assert_eq!(read(stream(&[text, finish("stop")])).unwrap().usage, None);
}

#[test]
fn the_largest_of_running_sums_counts() {
    let usage = |output: u64| json!({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": output}});
    let round = read(stream(&[usage(1), usage(9), usage(0), finish("stop")])).unwrap();
    assert_eq!(round.usage, Some(Usage { input: 5, output: 9, ..Usage::default() }));
}

#[test]
fn usage_that_is_null_partial_or_enormous_is_read() {
    let round = |usage: Value| read(stream(&[json!({"usage": usage}), finish("stop")])).unwrap().usage;
    assert_eq!(round(Value::Null), None);
    assert_eq!(round(json!({"cost": 1})), None);
    assert_eq!(round(json!({"prompt_tokens": null, "completion_tokens": 2.0})).unwrap().output, 2);
    assert_eq!(round(json!({"prompt_tokens": -4, "completion_tokens": 2})).unwrap().input, 0);
    let enormous = round(json!({"prompt_tokens": u64::MAX, "completion_tokens": 1e300})).unwrap();
    assert_eq!((enormous.input, enormous.output), (1 << 40, 1 << 40));
}

#[test]
fn choices_may_be_empty_null_or_absent() {
    let chunks = [
        json!({"choices": []}),
        json!({"choices": null}),
        json!({"id": "a"}),
        json!({"choices": [null, 4]}),
        json!({"choices": [{"index": 0, "delta": null}]}),
        json!({"choices": [{"delta": {"content": "x"}}]}),
        json!({"choices": [{"index": 1, "delta": {"content": "another answer"}, "finish_reason": "length"}]}),
        finish("stop"),
    ];
    let round = read(stream(&chunks)).unwrap();
    assert_eq!((round.message.text.as_str(), &round.finish), ("x", &FinishReason::Stop));
}

#[test]
fn fragments_of_calls_belong_together_by_index() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{\"y\""}}]}),
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\""}}]}),
        json!({"tool_calls": [{"index": 1, "function": {"arguments": ":2}"}}, {"index": 0, "function": {"arguments": ":1}"}}]}),
    ]);
    assert_eq!(calls(&round), [r#"b g {"y":2}"#, r#"a f {"x":1}"#]);
}

#[test]
fn fragments_of_calls_belong_together_by_id() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{\"x\""}}]}),
        json!({"tool_calls": [{"id": "b", "function": {"name": "g", "arguments": "{\"y\""}}]}),
        json!({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ":1}"}}]}),
        json!({"tool_calls": [{"id": "b", "function": {"arguments": ":2}"}}]}),
    ]);
    assert_eq!(calls(&round), [r#"a f {"x":1}"#, r#"b g {"y":2}"#]);
}

#[test]
fn fragments_of_calls_belong_together_in_order() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"function": {"name": "f", "arguments": "{\"x\""}}]}),
        json!({"tool_calls": [{"function": {"arguments": ":1}"}}]}),
        json!({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    ]);
    assert_eq!(calls(&round), [r#"made-1 f {"x":1}"#, "made-2 f {}"]);
}

#[test]
fn calls_that_all_have_the_index_0_stay_apart() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "f", "arguments": "{\"y\""}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": ":2}"}}]}),
    ]);
    assert_eq!(calls(&round), ["a f {}", r#"b f {"y":2}"#]);
}

#[test]
fn an_id_may_change_or_be_repeated_within_one_call() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}),
        json!({"tool_calls": [{"index": 0, "id": "random", "function": {"arguments": "{\"x\""}}]}),
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ":1}"}}]}),
    ]);
    assert_eq!(calls(&round), [r#"a f {"x":1}"#]);
}

#[test]
fn ids_that_are_missing_or_used_twice_are_made() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"index": 0, "id": null, "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 1, "id": "", "function": {"name": "g", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 2, "id": "c", "function": {"name": "h", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 3, "id": "c", "function": {"name": "i", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 4, "id": 17, "function": {"name": "j", "arguments": "{}"}}]}),
    ]);
    assert_eq!(calls(&round), ["made-1 f {}", "made-2 g {}", "c h {}", "made-3 i {}", "17 j {}"]);
}

#[test]
fn an_id_may_come_in_the_first_fragment_only_or_late() {
    let round = read_deltas(&[
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 1, "function": {"name": "g", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 1, "id": "b"}]}),
    ]);
    assert_eq!(calls(&round), ["a f {}", "b g {}"]);
}

#[test]
fn arguments_may_be_an_object_empty_null_or_absent() {
    let call = |index: u64, function: Value| json!({"tool_calls": [{"index": index, "function": function}]});
    let round = read_deltas(&[
        call(0, json!({"name": "object", "arguments": {"x": 9_007_199_254_740_993_u64, "y": [1]}})),
        call(1, json!({"name": "empty", "arguments": ""})),
        call(2, json!({"name": "null", "arguments": null})),
        call(3, json!({"name": "absent"})),
        call(4, json!({"name": "space", "arguments": " \n"})),
    ]);
    let object = r#"made-1 object {"x":9007199254740993,"y":[1]}"#;
    assert_eq!(calls(&round), [object, "made-2 empty {}", "made-3 null {}", "made-4 absent {}", "made-5 space {}"]);
    assert_eq!(round.runnable(&round.message.calls[0]).unwrap()["x"], json!(9_007_199_254_740_993_u64));
}

#[test]
fn arguments_that_are_no_json_object_do_not_run_and_are_not_repaired() {
    let invalid = ["{\"x\":1", "{'x': 1}", "{\"x\":1}}", "[1]", "\"x\"", "```json\n{}\n```"];
    let fragments: Vec<Value> = invalid
        .iter()
        .enumerate()
        .map(|(index, text)| json!({"index": index, "function": {"name": "f", "arguments": text}}))
        .collect();
    let round = read_deltas(&[json!({"tool_calls": fragments})]);
    for (call, text) in round.message.calls.iter().zip(invalid) {
        assert_eq!(call.arguments.as_str(), text);
        assert!(matches!(round.runnable(call), Err(NotRun::Arguments { tool, .. }) if tool == "f"), "{text}");
    }
    let error = round.runnable(&round.message.calls[3]).unwrap_err();
    assert_eq!(with_causes(&error), "the call of `f` does not run: the arguments of the call are not a JSON object");
}

#[test]
fn no_call_of_a_cut_or_filtered_answer_runs() {
    let call = delta(&json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}));
    let run = |reason: &str| {
        let round = read(stream(&[call.clone(), finish(reason)])).unwrap();
        round.runnable(&round.message.calls[0]).map(|_| ())
    };
    assert!(matches!(run("length"), Err(NotRun::Cut)));
    assert!(matches!(run("max_tokens"), Err(NotRun::Cut)));
    assert!(matches!(run("content_filter"), Err(NotRun::Filtered)));
    assert!(run("tool_calls").is_ok() && run("stop").is_ok() && run("made_up").is_ok());
}

#[test]
fn the_reason_of_the_end_is_read() {
    let read = |reason: &str| read(stream(&[finish(reason)])).unwrap().finish;
    assert_eq!(read("STOP"), FinishReason::Stop);
    assert_eq!(read("function_call"), FinishReason::ToolCalls);
    assert_eq!(read("model_length"), FinishReason::Length);
    assert_eq!(read("made_up"), FinishReason::Other("made_up".to_owned()));
    assert_eq!(read(&"made_up".repeat(10)), FinishReason::Other("other".to_owned()));
}

#[test]
fn done_may_be_missing_and_nothing_after_it_counts() {
    let text = stream(&[delta(&json!({"content": "a"})), finish("stop")]);
    let without = text.strip_suffix("data: [DONE]\n\n").unwrap();
    assert_eq!(read(without).unwrap(), read(&text).unwrap());
    assert_eq!(read(without.trim_end()).unwrap(), read(&text).unwrap());
    let more = text.clone() + &stream(&[delta(&json!({"content": "b"}))]) + "data: {broken\n\n";
    assert_eq!(read(more).unwrap(), read(&text).unwrap());
}

#[test]
fn a_reader_that_is_over_says_so() {
    let mut reader = crate::support::reader();
    assert_eq!(reader.push(stream(&[]).as_bytes()), []);
    assert!(reader.is_over());
}

#[test]
fn comments_crlf_a_byte_order_mark_and_cut_characters_are_read() {
    let chunk = json!({"choices": [{"delta": {"content": "你😀"}, "finish_reason": "stop"}]});
    let text = format!("\u{feff}: hello\r\n\r\n: OPENROUTER PROCESSING\r\n\r\ndata: {chunk}\r\n\r\ndata:\r\n\r\n");
    let (_, round) = read_pieces(text.as_bytes().chunks(1));
    assert_eq!(round.unwrap().message.text, "你😀");
}

#[test]
fn fields_that_the_host_does_not_know_are_kept() {
    let round = read_deltas(&[
        json!({"role": "assistant", "refusal": null, "annotations": [], "vendor": {"a": 1}, "mode": "x"}),
        json!({"vendor": {"b": "s"}, "mode": "x", "tool_calls": [
            {"index": 0, "id": "a", "type": "function", "extra_content": {"google": {"thought_signature": "S=="}},
             "function": {"name": "f", "arguments": "{}", "strict": true}},
        ]}),
        json!({"tool_calls": [{"index": 0, "type": "function", "extra_content": {"google": {"other": 1}}}]}),
    ]);
    assert_eq!(Value::Object(round.message.extra), json!({"vendor": {"a": 1, "b": "s"}, "mode": "x"}));
    let call = &round.message.calls[0];
    let signature = json!({"extra_content": {"google": {"thought_signature": "S==", "other": 1}}});
    assert_eq!(Value::Object(call.extra.clone()), signature);
    assert_eq!(Value::Object(call.function_extra.clone()), json!({"strict": true}));
}

#[test]
fn details_of_reasoning_are_put_together() {
    let detail = |value: Value| json!({"reasoning_details": [value]});
    let round = read_deltas(&[
        detail(json!({"type": "reasoning.text", "index": 0, "format": "v1", "text": "a"})),
        detail(json!({"type": "reasoning.text", "index": 0, "format": "v1", "text": "b"})),
        detail(json!({"type": "reasoning.text", "index": 0, "format": "v1", "signature": "S"})),
        detail(json!({"type": "reasoning.encrypted", "index": 1, "data": "E"})),
        detail(json!({"type": "reasoning.encrypted", "data": "F"})),
    ]);
    let expected = json!({"reasoning_details": [
        {"type": "reasoning.text", "index": 0, "format": "v1", "text": "ab", "signature": "S"},
        {"type": "reasoning.encrypted", "index": 1, "data": "E"},
        {"type": "reasoning.encrypted", "data": "F"},
    ]});
    assert_eq!(Value::Object(round.message.extra), expected);
}

#[test]
fn an_answer_that_is_not_a_stream_is_read() {
    let message = json!({"role": "assistant", "content": "hi", "reasoning_content": "r", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]});
    let usage = json!({"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6, "prompt_cache_hit_tokens": 3});
    let choices = json!([{"index": 0, "message": message, "finish_reason": "tool_calls"}]);
    let document = json!({"id": "i", "object": "chat.completion", "model": "m-1", "choices": choices, "usage": usage});
    for text in [document.to_string(), format!("\u{feff} \n{document:#}\n")] {
        let (deltas, round) = read_pieces(text.as_bytes().chunks(1));
        let round = round.unwrap();
        assert_eq!(deltas, []);
        assert_eq!(calls(&round), [r#"a f {"x":1}"#, "b g {}"]);
        assert_eq!((round.message.text.as_str(), round.reasoning.as_str()), ("hi", "r"));
        assert_eq!((round.id.as_deref(), round.model.as_deref()), (Some("i"), Some("m-1")));
        assert_eq!(round.usage, Some(Usage { input: 4, cached_input: 3, output: 2, reasoning: 0 }));
        assert_eq!(round, read(&text).unwrap());
    }
}
