//! Order, blocks, repetition, waits.

use super::*;
use crate::measure::processor_time;

#[test]
fn steps_run_one_after_the_other() {
    let mut run = World::with(
        "- { id: a, tool: t, params: { x: '${{ input.x }}' } }\n- { id: b, tool: t, params: { y: '${{ steps.a.data.y }}' } }",
    );
    run.history.run.input = json!({"x": 5}).into();
    let Command::Start { work, .. } = run.last() else { panic!() };
    assert_eq!(work, Work::Tool { tool: "t".to_owned(), resource: None, params: json!({"x": 5}) });
    assert_eq!(run.plan(), ["start a"]);
    assert_eq!(run.plan(), [""; 0]);
    assert_eq!(run.ok("a", json!({"y": [1]})), ["start b"]);
    assert_eq!(run.ok("b", json!(1)), ["ending completed", "end completed"]);
}

#[test]
fn needs_replace_the_order_of_the_list() {
    let mut run =
        World::with("- { id: a, tool: t }\n- { id: b, tool: t, needs: [] }\n- { id: c, tool: t, needs: [a, b] }");
    assert_eq!(run.plan(), ["start a", "start b"]);
    assert_eq!(run.ok("a", json!(1)), [""; 0]);
    assert_eq!(run.ok("b", json!(1)), ["start c"]);
}

#[test]
fn a_skipped_step_lets_the_others_go_on() {
    let mut run = World::with(
        "- { id: a, tool: t, when: 'false' }\n- { id: b, tool: t, when: \"steps.a.status == 'skipped' && steps.a.data == null\" }",
    );
    assert_eq!(run.plan(), ["skipped a", "start b"]);
}

#[test]
fn a_wrong_expression_fails_the_step() {
    for steps in [
        "- { id: a, tool: t, params: { x: '${{ input.x }}' }, retry: { attempts: 3 } }",
        "- { id: a, tool: t, when: input.x }",
        "- { id: a, tool: t, when: '1' }",
    ] {
        assert_eq!(World::with(steps).plan(), ["failed a expression", "ending failed", "end failed expression"]);
    }
    let mut run =
        World::of("workflow: w\nbot: b\nsteps: [{ id: a, tool: t }]\noutput: '${{ steps.a.data.x }}'\n", json!({}));
    run.plan();
    assert_eq!(run.ok("a", json!({})), ["ending failed", "end failed expression"]);
}

#[test]
fn on_error_continue_lets_the_others_go_on() {
    let mut run = World::with(
        "- { id: a, tool: t, on_error: continue }\n- { id: b, tool: t, params: { x: '${{ steps.a.error.code }}' } }",
    );
    run.plan();
    assert_eq!(run.fail("a", "upstream"), ["start b"]);
    assert_eq!(run.ok("b", json!(1)), ["ending completed", "end completed"]);
}

#[test]
fn choose_runs_the_first_branch_that_holds() {
    let steps = "- { id: a, choose: [{ when: input.n == 1, steps: [{ id: b, tool: t }] }, { when: input.n == 2, steps: [{ id: c, tool: t }] }] }\n- { id: d, tool: t, params: { x: '${{ steps.a.data.branch }}', y: '${{ steps.b.status }}' } }";
    let text = format!("workflow: w\nbot: b\nsteps:\n{steps}");
    let mut run = World::of(&text, json!({"n": 2}));
    assert_eq!(run.plan(), ["open a", "start c"]);
    assert_eq!(run.ok("c", json!(1)), ["succeeded a", "start d"]);
    let mut none = World::of(&text, json!({"n": 3}));
    assert_eq!(none.plan(), ["succeeded a", "start d"]);
    assert_eq!(*none.row("a").data, json!({"branch": null}));
    let Command::Start { work: Work::Tool { params, .. }, .. } = ({
        none.history.rows.pop();
        none.last()
    }) else {
        panic!()
    };
    assert_eq!(params, json!({"x": null, "y": "skipped"}));
}

#[test]
fn parallel_branches_run_at_once() {
    let mut run = World::with(
        "- { id: a, parallel: { x: [{ id: b, tool: t }, { id: c, tool: t }], y: [{ id: d, tool: t }] } }\n- { id: e, tool: t, params: { x: '${{ steps.c.data }}' } }",
    );
    assert_eq!(run.plan(), ["open a", "start b", "start d"]);
    assert_eq!(run.ok("d", json!(1)), [""; 0]);
    assert_eq!(run.ok("b", json!(1)), ["start c"]);
    assert_eq!(run.ok("c", json!(1)), ["succeeded a", "start e"]);
}

#[test]
fn a_failure_stops_the_siblings_first() {
    let mut run = World::with(
        "- { id: a, parallel: { x: [{ id: b, tool: t }, { id: c, tool: t }], y: [{ id: d, tool: t }] } }\n- { id: e, tool: t, needs: [] }\n- { id: f, wait: { for: 1h }, needs: [] }",
    );
    assert_eq!(run.plan(), ["open a", "start b", "start d", "start e", "wait f"]);
    assert_eq!(run.fail("b", "upstream"), ["cancel d"]);
    assert_eq!(run.stopped("d"), ["failed a upstream", "cancel e", "cancelled f cancelled"]);
    assert_eq!(run.stopped("e"), ["ending failed", "end failed upstream"]);
    let Command::EndRun { error: Some(error), .. } = run.last() else { panic!() };
    assert_eq!(error.at, Some(key("b")));
}

#[test]
fn each_keeps_to_its_concurrency_and_its_order() {
    let text = "workflow: w\nbot: b\nsteps:\n- { id: a, each: '${{ input.l }}', concurrency: 2, collect: '${{ steps.b.data.v + index }}', steps: [{ id: b, tool: t, params: { x: '${{ item }}' } }] }\n";
    let mut run = World::of(text, json!({"l": [10, 20, 30]}));
    assert_eq!(run.plan(), ["open a", "start b.0", "start b.1"]);
    assert_eq!(run.ok("b.1", json!({"v": 1})), ["start b.2"]);
    assert_eq!(run.ok("b.2", json!({"v": 2})), [""; 0]);
    assert_eq!(run.ok("b.0", json!({"v": 3})), ["succeeded a", "ending completed", "end completed"]);
    let of = |data: i64| json!({"status": "succeeded", "data": data, "error": null});
    assert_eq!(*run.row("a").data, json!([of(3), of(2), of(4)]));
    let mut empty = World::of(text, json!({"l": []}));
    assert_eq!(empty.plan(), ["succeeded a", "ending completed", "end completed"]);
    let mut wrong = World::of(text, json!({"l": {}}));
    assert_eq!(wrong.plan()[0], "failed a expression");
    let mut many = World::of(text, json!({"l": vec![0; 1_001]}));
    assert_eq!(many.plan()[0], "failed a limit");
}

#[test]
fn the_message_of_a_stop_is_cut() {
    let mut run = World::with("- { id: a, stop: failed, message: '${{ input.long }}' }");
    run.history.run.input = json!({"long": "ä".repeat(100_000)}).into();
    let commands = plan(&run.definition, &run.history, run.now);
    let Some(Command::EndRun { error: Some(error), .. }) = commands.last() else { panic!("{commands:?}") };
    assert_eq!((error.code.as_str(), error.message.chars().count()), ("stopped", 1_001));
    run.plan();
}

/// Each of the expressions uses nearly all of what one may use.
#[test]
fn a_plan_whose_expressions_take_too_long_fails_the_run() {
    let heavy = "input.many.all(x, input.page != input.other)";
    let steps = [
        "- { id: u, tool: t, undo: { tool: t, params: { x: '${{ steps.u.data }}' } } }".to_owned(),
        format!("- {{ id: a, each: '${{{{ input.many }}}}', on_item_error: continue, collect: {heavy:?},"),
        "    steps: [{ id: b, tool: t, when: 'false' }] }".to_owned(),
        "- { id: c, tool: t }".to_owned(),
    ]
    .join("\n");
    let mut run = World::with(&steps);
    let page = |last: &str| format!("{}{last}", "x".repeat(60_000));
    let input = json!({"many": vec![7; 900], "page": page("a"), "other": page("b")});
    run.history.run.input = input.into();
    run.plan();
    let started = processor_time();
    let commands = run.ok("u", json!(1));
    let time = processor_time() - started;
    assert!(time.as_secs() < 60, "{time:?}");
    assert_eq!(commands[0], "open a");
    // The undo has a budget of its own.
    assert_eq!(commands[commands.len() - 2..], ["ending failed", "start -u"]);
    let Some(Ending { error: Some(error), .. }) = &run.history.run.ending else { panic!() };
    assert_eq!(error.code, "limit");
    assert_eq!(run.ok("-u", json!(1)), ["end failed limit"]);
}

#[test]
fn items_stand_in_items() {
    let mut run = World::with(
        "- { id: a, each: [[1, 2], [3]], steps: [{ id: b, tool: t }, { id: c, each: '${{ item }}', steps: [{ id: d, tool: t, params: { x: '${{ item }}', y: '${{ steps.b.data }}' } }] }] }",
    );
    assert_eq!(run.plan(), ["open a", "start b.0", "start b.1"]);
    assert_eq!(run.ok("b.1", json!("B")), ["open c.1", "start d.1.0"]);
    run.history.rows.pop();
    let Command::Start { work: Work::Tool { params, .. }, .. } = run.last() else { panic!() };
    assert_eq!(params, json!({"x": 3, "y": "B"}));
    run.plan();
    assert_eq!(run.ok("d.1.0", json!(1)), ["succeeded c.1"]);
}

#[test]
fn a_failed_item_fails_the_block_or_is_listed() {
    let steps = |rest: &str| {
        format!("- {{ id: a, each: [1, 2], {rest} steps: [{{ id: b, tool: t }}] }}\n- {{ id: c, tool: t }}")
    };
    let mut run = World::with(&steps(""));
    run.plan();
    assert_eq!(run.fail("b.0", "upstream"), ["cancel b.1"]);
    assert_eq!(run.stopped("b.1"), ["failed a upstream", "ending failed", "end failed upstream"]);
    let mut run = World::with(&steps("on_item_error: continue,"));
    run.plan();
    assert_eq!(run.fail("b.0", "upstream"), [""; 0]);
    assert_eq!(run.ok("b.1", json!(7)), ["succeeded a", "start c"]);
    assert_eq!(run.row("a").data[0]["error"]["code"], "upstream");
}

#[test]
fn what_did_not_happen_is_repeated_with_growing_pauses() {
    let mut run = World::with("- { id: a, tool: t, retry: { attempts: 4, backoff: 1s, backoff_max: 3s, on: [busy] } }");
    run.plan();
    assert_eq!(run.fail("a", "busy"), [""; 0]);
    for (attempt, pause) in [(2, 1_000), (3, 2_000), (4, 3_000)] {
        run.now += pause - 1;
        assert_eq!(run.plan(), [""; 0]);
        assert!(matches!(run.last(), Command::SetTimer { at } if at == run.now + 1));
        run.now += 1;
        assert_eq!(run.plan(), [format!("start a#{attempt}")]);
        run.history.end(&key("a"), StepStatus::Failed, Value::Null, Some(StepError::new("busy", "m")), run.now);
    }
    assert_eq!(run.plan(), ["ending failed", "end failed busy"]);
    let mut other = World::with("- { id: a, tool: t, retry: { attempts: 4, on: [busy] } }");
    other.plan();
    assert_eq!(other.fail("a", "upstream"), ["ending failed", "end failed upstream"]);
}

#[test]
fn what_may_have_happened_is_repeated_only_if_that_is_harmless() {
    for (effect, happened, refused, expected) in [
        (Effect::Write, true, false, vec!["ending failed", "end failed upstream"]),
        (Effect::Write, false, false, vec!["start a#2"]),
        (Effect::Idempotent, true, false, vec!["start a#2 same"]),
        (Effect::Read, true, false, vec!["start a#2 same"]),
        (Effect::Read, false, true, vec!["ending failed", "end failed upstream"]),
    ] {
        let mut run = World::with("- { id: a, tool: t, retry: { attempts: 2 } }");
        run.plan();
        let row = run.row("a");
        (row.effect, row.may_have_happened, row.refused) = (effect, happened, refused);
        run.history.end(&key("a"), StepStatus::Failed, Value::Null, Some(StepError::new("upstream", "m")), 0);
        run.now += 10_000;
        assert_eq!(run.plan(), expected);
    }
}

#[test]
fn an_uncertain_step_fails_is_repeated_or_is_asked_about() {
    let uncertain = |rest: &str| {
        let mut run = World::with(&format!("- {{ id: a, tool: t, {rest} }}\n- {{ id: b, tool: t }}"));
        run.plan();
        run.end("a", StepStatus::Uncertain, Value::Null, None);
        run
    };
    let run = uncertain("on_uncertain: fail");
    let Command::EndRun { uncertain: keys, error, .. } = run.last() else { panic!() };
    assert_eq!((keys, error.unwrap().code.as_str()), (vec![key("a")], "uncertain"));
    let mut run = uncertain("on_uncertain: retry");
    run.now += 1_000;
    assert_eq!(run.plan(), ["start a#2 same"]);
    let mut run = uncertain("on_uncertain: ask");
    assert!(run.row("a").asked);
    assert_eq!(run.plan(), [""; 0]);
    let mut repeated = uncertain("on_uncertain: ask");
    repeated.row("a").repeat = true;
    assert_eq!(repeated.plan(), ["start a#2 same"]);
    // A person says what happened.
    let mut happened = uncertain("on_uncertain: ask");
    assert_eq!(happened.ok("a", json!(1)), ["start b"]);
    assert_eq!(run.fail("a", "resolved"), ["ending failed", "end failed resolved"]);
}

/// An uncertain step whose repetition has begun.
fn repeated(on_uncertain: &str) -> World {
    let mut run = World::with(&format!("- {{ id: a, tool: t, on_uncertain: {on_uncertain} }}"));
    run.plan();
    run.end("a", StepStatus::Uncertain, Value::Null, None);
    run.row("a").repeat = on_uncertain == "ask";
    run.now += 1_000;
    assert_eq!(run.plan(), ["start a#2 same"]);
    run
}

#[test]
fn a_refused_repetition_is_repeated_only_by_a_person() {
    let mut run = repeated("retry");
    run.row("a").refused = true;
    let ended = run.end("a", StepStatus::Uncertain, Value::Null, None);
    assert_eq!(ended, ["ending failed", "end failed uncertain uncertain=a"]);
    let mut run = repeated("ask");
    run.row("a").refused = true;
    assert_eq!(run.end("a", StepStatus::Uncertain, Value::Null, None), ["ask a"]);
    run.now += 3_600_000;
    assert_eq!(run.plan(), [""; 0], "a person is asked once");
    run.row("a").repeat = true;
    assert_eq!(run.plan(), ["start a#3 same"]);
}

#[test]
fn the_repetitions_of_an_uncertain_step_have_an_end() {
    let mut run = repeated("retry");
    for attempt in 3..=crate::model::RETRY_ATTEMPTS_MAX {
        assert_eq!(run.end("a", StepStatus::Uncertain, Value::Null, None), [""; 0]);
        run.now += 3_600_000;
        assert_eq!(run.plan(), [format!("start a#{attempt} same")]);
    }
    let ended = run.end("a", StepStatus::Uncertain, Value::Null, None);
    assert_eq!(ended, ["ending failed", "end failed uncertain uncertain=a"]);
}

#[test]
fn a_repetition_that_cannot_begin_leaves_the_step_uncertain() {
    let uncertain = |on_uncertain: &str| {
        let mut run = World::with(&format!(
            "- {{ id: a, tool: t, params: {{ x: '${{{{ input.x }}}}' }}, on_uncertain: {on_uncertain} }}"
        ));
        run.history.run.input = json!({"x": 1}).into();
        assert_eq!(run.plan(), ["start a"]);
        run.end("a", StepStatus::Uncertain, Value::Null, None);
        run.now += 1_000;
        run
    };
    let mut run = uncertain("retry");
    run.history.run.input = json!({}).into();
    assert_eq!(run.plan(), ["uncertain a expression", "ending failed", "end failed uncertain uncertain=a"]);
    assert!(run.row("a").may_have_happened && run.row("a").effect == Effect::Write);
    let mut run = uncertain("ask");
    run.history.run.input = json!({}).into();
    run.row("a").repeat = true;
    assert_eq!(run.plan(), ["uncertain a expression", "ask a"]);
    run.history.run.input = json!({"x": 1}).into();
    run.row("a").repeat = true;
    assert_eq!(run.plan(), ["start a#3 same"]);
    let mut run = uncertain("retry");
    let row = StepRow { key: key("z"), attempt: 1, status: StepStatus::Succeeded, ..StepRow::default() };
    run.history.rows.extend(vec![row; RUN_ATTEMPTS_MAX - 1]);
    assert_eq!(run.plan(), ["uncertain a limit", "ending failed", "end failed limit uncertain=a"]);
}

#[test]
fn waits_end_at_their_time_or_with_their_event() {
    let mut run = World::with(
        "- { id: a, wait: { for: 10s } }\n- { id: b, wait: { until: '1970-01-01T00:01:00Z' } }\n- { id: c, wait: { event: custom.x, match: { n: '${{ input.n }}' } }, timeout: 1m }",
    );
    run.history.run.input = json!({"n": 4}).into();
    assert_eq!(run.plan(), ["wait a"]);
    assert!(matches!(run.last(), Command::SetTimer { at: 11_000 }));
    run.now = 11_000;
    assert_eq!(run.plan(), ["succeeded a", "wait b"]);
    assert_eq!(*run.row("a").data, json!("1970-01-01T00:00:11Z"));
    run.now = 60_000;
    assert_eq!(run.plan(), ["succeeded b", "wait c"]);
    run.history.rows.pop();
    let Command::Wait { wait, .. } = run.last() else { panic!() };
    let matches = vec![("n".to_owned(), json!(4))];
    assert_eq!(wait, Awaited::Event { event_type: "custom.x".to_owned(), matches, since: 60_000 });
    run.plan();
    let mut late = World { definition: run.definition.clone(), history: run.history.clone(), now: 120_000 };
    assert_eq!(late.plan(), ["failed c timeout", "ending failed", "end failed timeout"]);
    assert_eq!(run.ok("c", json!({"id": 1})), ["ending completed", "end completed"]);
    assert_eq!(World::with("- { id: a, wait: { until: soon } }").plan()[0], "failed a expression");
}

#[test]
fn a_question_shows_the_calls_and_is_answered_or_expires() {
    let steps = "- { id: a, approve: { text: 'Go ${{ input.n }}?', for: [b], expires: 1h, by: [admin], allow_starter: false } }\n- { id: b, tool: t, params: { n: '${{ input.n }}' }, resource: r }";
    let ask = || {
        let mut run = World::with(steps);
        run.history.run.input = json!({"n": 4}).into();
        run
    };
    let mut run = ask();
    let Command::Wait { wait, until, .. } = run.last() else { panic!() };
    let target =
        ApprovalTarget { step: "b".into(), tool: "t".into(), resource: Some("r".into()), params: json!({"n": 4}) };
    let by = vec!["admin".to_owned()];
    assert_eq!(wait, Awaited::Approval { text: "Go 4?".into(), targets: vec![target], by, allow_starter: false });
    assert_eq!(until, Some(3_601_000));
    run.plan();
    assert_eq!(run.ok("a", json!({"by": "k"})), ["start b"]);
    run.history.rows.pop();
    assert!(matches!(run.last(), Command::Start { approved_by, .. } if approved_by == ["a"]));
    let mut denied = ask();
    denied.plan();
    assert_eq!(denied.fail("a", "denied"), ["ending failed", "end failed denied"]);
    let mut expired = ask();
    expired.plan();
    expired.now = 3_601_000;
    assert_eq!(expired.plan(), ["failed a timeout", "ending failed", "end failed timeout"]);
}

#[test]
fn an_attempt_is_stopped_when_its_time_is_over() {
    let mut run = World::with("- { id: a, tool: t, timeout: 5s, retry: { attempts: 2 } }");
    run.plan();
    run.now = 6_000;
    assert_eq!(run.plan(), ["cancel a timeout"]);
    assert_eq!(run.plan(), [""; 0]);
    run.fail("a", "timeout");
    run.row("a").effect = Effect::Read;
    run.now += 1_000;
    assert_eq!(run.plan(), ["start a#2"]);
    let mut block = World::with("- { id: a, each: [1], timeout: 5s, steps: [{ id: b, tool: t }] }");
    block.plan();
    block.now = 6_000;
    assert_eq!(block.plan(), ["cancel b.0"]);
    assert_eq!(block.stopped("b.0"), ["failed a timeout", "ending failed", "end failed timeout"]);
    // A task has an hour.
    let mut task = World::with("- { id: a, agent: { instruction: 'Do ${{ input.x }}.' } }");
    task.history.run.input = json!({"x": "it"}).into();
    let Command::Start { work: Work::Agent { instruction, .. }, .. } = task.last() else { panic!() };
    let text = |text: &str| InstructionPart::Text(text.to_owned());
    assert_eq!(instruction, [text("Do "), InstructionPart::Value("it".to_owned()), text(".")]);
    task.plan();
    task.now += 3_600_000;
    assert_eq!(task.plan(), ["cancel a timeout"]);
}

#[test]
fn a_paused_run_starts_nothing() {
    let mut run = World::with("- { id: a, tool: t }\n- { id: b, tool: t }");
    run.plan();
    run.history.run.paused = true;
    assert_eq!(run.ok("a", json!(1)), [""; 0]);
    run.history.run.paused = false;
    assert_eq!(run.plan(), ["start b"]);
}
