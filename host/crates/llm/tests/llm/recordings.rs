//! Streams in the forms that servers send, whole, in bytes, and cut at every byte.
//!
//! Each file in `tests/streams` has the shape that the named server documents or is known to send: its order of fields,
//! its spelling of usage, its fragments of calls and its own fields.

use std::path::{Path, PathBuf};

use monstrum_llm::{Delta, ReadError, Round};

use crate::support::{calls, read, read_pieces};

/// The file, and its round in one line: reason, text, reasoning, calls, tokens (input, cached, output, reasoning).
const ROUNDS: &[(&str, &str)] = &[
    ("anthropic", r#"ToolCalls "I look it up." "" ["toolu_01Bb get_weather {\"city\": \"Zürich\"}"] 402 0 61 0"#),
    ("azure", r#"Stop "It is 9 °C." "" [] 21 0 6 0"#),
    ("deepseek", r#"Stop "你好😀" "简单的问题" [] 14 0 25 19"#),
    (
        "gemini",
        r#"ToolCalls "" "" ["jm4owj31 get_weather {\"city\":\"Zürich\"}", "k8ppq2x0 get_time {\"zone\":\"Europe/Zurich\"}"] 90 0 94 0"#,
    ),
    ("groq", r#"ToolCalls "" "No parameters." ["fc_3b1 list_rooms {}"] 150 0 40 0"#),
    ("llama-cpp", r#"ToolCalls "" "One call." ["9mTzYx0AQnGB get_weather {\"city\":\"Zürich\"}"] 190 7 33 0"#),
    ("lm-studio", r#"ToolCalls "Sure" "" ["365174485 list_rooms {}"] none"#),
    (
        "mistral",
        r#"ToolCalls "Let me look." "The user wants the weather." ["D681PevKs get_weather {\"city\": \"Zürich\"}"] 83 0 27 0"#,
    ),
    (
        "ollama",
        r#"ToolCalls "" "Two calls." ["call_g5m7s1u2 get_weather {\"city\":\"Zürich\"}", "call_p0q9r8s7 get_time {\"zone\":\"Europe/Zurich\"}"] 171 0 96 0"#,
    ),
    (
        "openai",
        r#"ToolCalls "" "" ["call_aA1 get_weather {\"city\":\"Zürich\"}", "call_bB2 get_time {\"zone\":\"Europe/Zurich\"}"] 132 64 47 12"#,
    ),
    (
        "openrouter",
        r#"ToolCalls "I look." "The city is given." ["toolu_01Aa get_weather {\"city\": \"Zürich\"}"] 431 0 88 21"#,
    ),
    ("proxy-bom", r#"Length "naïve 🦀" "" [] none"#),
    ("vllm", r#"ToolCalls "" "" ["chatcmpl-tool-01aa get_weather {\"city\": \"Zürich\"}"] 205 0 19 0"#),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams")
}

pub(crate) fn recording(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name).with_extension("sse")).unwrap()
}

fn line(round: &Round) -> String {
    let tokens = round.usage.map_or("none".to_owned(), |usage| {
        format!("{} {} {} {}", usage.input, usage.cached_input, usage.output, usage.reasoning)
    });
    format!("{:?} {:?} {:?} {:?} {tokens}", round.finish, round.message.text, round.reasoning, calls(round))
}

/// Checks that the deltas, put together, are the round.
fn assert_deltas(name: &str, deltas: &[Delta], round: &Round) {
    let (mut text, mut reasoning) = (String::new(), String::new());
    let mut calls = vec![(String::new(), String::new()); round.message.calls.len()];
    for delta in deltas {
        match delta {
            Delta::Text(piece) => text.push_str(piece),
            Delta::Reasoning(piece) => reasoning.push_str(piece),
            Delta::CallName { call, name } => calls[*call].0.push_str(name),
            Delta::CallArguments { call, text } => calls[*call].1.push_str(text),
        }
    }
    assert_eq!((&text, &reasoning), (&round.message.text, &round.reasoning), "{name}");
    for (call, (called, arguments)) in round.message.calls.iter().zip(calls) {
        assert_eq!(call.name, called, "{name}");
        // No arguments, and `null`, become an empty object.
        let arguments = if matches!(arguments.as_str(), "" | "null") { "{}".to_owned() } else { arguments };
        assert_eq!(call.arguments.as_str(), arguments, "{name}");
    }
}

#[test]
fn every_recording_is_read() {
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    let named: Vec<&str> = ROUNDS.iter().map(|(name, _)| *name).collect();
    assert_eq!(files, named);
    for (name, expected) in ROUNDS {
        let (deltas, round) = read_pieces([recording(name).as_slice()]);
        let round = round.unwrap();
        assert_eq!(line(&round), *expected, "{name}");
        assert_deltas(name, &deltas, &round);
    }
}

#[test]
fn every_recording_is_read_byte_by_byte() {
    for (name, _) in ROUNDS {
        let bytes = recording(name);
        let (deltas, round) = read_pieces(bytes.chunks(1));
        let round = round.unwrap();
        assert_eq!(round, read(&bytes).unwrap(), "{name}");
        assert_deltas(name, &deltas, &round);
    }
}

#[test]
fn every_recording_is_read_when_cut_at_any_byte() {
    for (name, _) in ROUNDS {
        let bytes = recording(name);
        let whole = read_pieces([bytes.as_slice()]);
        let (deltas, whole) = (whole.0, whole.1.unwrap());
        for cut in 0..=bytes.len() {
            let (start, end) = bytes.split_at(cut);
            let (cut_deltas, round) = read_pieces([start, end]);
            assert_eq!(round.unwrap(), whole, "{name} cut at {cut}");
            assert_eq!(cut_deltas, deltas, "{name} cut at {cut}");
        }
    }
}

#[test]
fn a_recording_that_ends_early_fails_or_has_all_calls_and_all_text() {
    for (name, _) in ROUNDS {
        let bytes = recording(name);
        let whole = read(&bytes).unwrap();
        let mut failed = 0;
        for end in 0..bytes.len() {
            match read(&bytes[..end]) {
                Ok(round) => assert_eq!(round.message, whole.message, "{name} ended at {end}"),
                Err(ReadError::Unfinished { .. }) => failed += 1,
                Err(error) => panic!("{name} ended at {end}: {error:?}"),
            }
        }
        assert!(failed > bytes.len() / 3, "{name}: {failed} of {} failed", bytes.len());
    }
}
