//! How runs end: stop, undo, finally, cancel, retry, limits.

use super::*;

const UNDO: &str = "- { id: a, tool: t, undo: { tool: u, params: { n: '${{ steps.a.data.n }}' } } }\n- { id: b, each: [7, 8], steps: [{ id: c, tool: t, undo: { tool: u, params: { n: '${{ steps.c.data }}', i: '${{ item }}' } } }] }\n- { id: d, tool: t }\nfinally: [{ id: f, emit: x, data: { s: '${{ run.status }}', d: '${{ steps.d.status }}' } }]\n";

/// A run whose last step is about to end.
fn before_the_end() -> World {
    let mut run = World::with(UNDO);
    run.plan();
    run.ok("a", json!({"n": 1}));
    run.ok("c.0", json!("zero"));
    run.ok("c.1", json!("one"));
    run
}

#[test]
fn a_failed_run_undoes_the_newest_first_and_then_runs_finally() {
    let mut run = before_the_end();
    assert_eq!(run.fail("d", "upstream"), ["ending failed", "start -c.1"]);
    run.history.rows.pop();
    let Command::Start { work: Work::Tool { params, .. }, .. } = run.last() else { panic!() };
    assert_eq!(params, json!({"n": "one", "i": 8}));
    run.plan();
    assert_eq!(run.ok("-c.1", json!(1)), ["start -c.0"]);
    // A failed undo does not stop the others.
    assert_eq!(run.fail("-c.0", "upstream"), ["start -a"]);
    assert_eq!(run.ok("-a", json!(1)), ["start f"]);
    run.history.rows.pop();
    let Command::Start { work, .. } = run.last() else { panic!() };
    assert_eq!(work, Work::Emit { name: "x".to_owned(), data: json!({"s": "failed", "d": "failed"}) });
    run.plan();
    assert_eq!(run.ok("f", json!(1)), ["end failed upstream undo_failed=c.0"]);
}

#[test]
fn a_completed_run_undoes_nothing() {
    let mut run = before_the_end();
    assert_eq!(run.ok("d", json!(1)), ["ending completed", "start f"]);
    assert_eq!(run.ok("f", json!(1)), ["end completed"]);
    let mut run = before_the_end();
    run.ok("d", json!(1));
    assert_eq!(run.fail("f", "upstream"), ["end failed upstream"]);
}

#[test]
fn finally_is_not_undone() {
    let mut run =
        World::with("- { id: a, tool: t }\nfinally: [{ id: f, tool: t, undo: { tool: u } }, { id: g, tool: t }]");
    run.plan();
    assert_eq!(run.fail("a", "upstream"), ["ending failed", "start f"]);
    assert_eq!(run.ok("f", json!(1)), ["start g"]);
    assert_eq!(run.ok("g", json!(1)), ["end failed upstream"]);
}

#[test]
fn a_run_whose_output_fails_undoes_nothing() {
    let steps =
        "- { id: a, tool: t, undo: { tool: u } }\nfinally: [{ id: f, emit: x }]\noutput: '${{ steps.a.data.x }}'";
    let mut run = World::with(steps);
    run.plan();
    assert_eq!(run.ok("a", json!({})), ["ending failed", "start f"]);
    assert_eq!(run.ok("f", json!(1)), ["end failed expression"]);
}

#[test]
fn a_cancelled_run_undoes_if_asked() {
    for (undo, next) in [(false, "start f"), (true, "start -c.1")] {
        let mut run = before_the_end();
        run.history.run.cancel = Some(Cancellation { undo });
        assert_eq!(run.plan(), ["ending cancelled", "cancel d"]);
        assert_eq!(run.end("d", StepStatus::Uncertain, Value::Null, None), [next]);
        if !undo {
            assert_eq!(run.ok("f", json!(1)), ["end cancelled cancelled uncertain=d"]);
        }
    }
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let mut run = before_the_end();
    run.history.run.paused = true;
    run.history.run.cancel = Some(Cancellation { undo: false });
    run.plan();
    assert_eq!(run.stopped("d"), ["start f"]);
}

#[test]
fn stop_ends_the_run() {
    let steps = |status: &str| {
        format!(
            "- {{ id: a, tool: t, undo: {{ tool: u }} }}\n- {{ id: b, tool: t, needs: [] }}\n- {{ id: s, stop: {status}, message: 'no ${{{{ steps.a.data }}}}', output: {{ x: 1 }}, needs: [a] }}"
        )
    };
    let mut run = World::with(&steps("completed"));
    run.plan();
    assert_eq!(run.ok("a", json!(5)), ["succeeded s", "ending completed", "cancel b"]);
    run.stopped("b");
    assert!(
        matches!(run.last(), Command::EndRun { status: RunEnd::Completed, output: Some(output), .. } if output == json!({"x": 1}))
    );
    let mut run = World::with(&steps("failed"));
    run.plan();
    run.ok("a", json!(5));
    assert_eq!(run.stopped("b"), ["start -a"]);
    run.ok("-a", json!(1));
    let Command::EndRun { error: Some(error), .. } = run.last() else { panic!() };
    assert_eq!((error.code.as_str(), error.message.as_str()), ("stopped", "no 5"));
    let mut last = World::with("- { id: s, stop: failed }");
    assert_eq!(last.plan(), ["succeeded s", "ending failed", "end failed stopped"]);
}

#[test]
fn a_run_and_its_end_have_a_time() {
    let mut run = before_the_end();
    run.now = 86_400_000;
    assert_eq!(run.plan(), ["ending failed", "cancel d"]);
    assert_eq!(run.stopped("d"), ["start -c.1"]);
    run.now += ENDING_MS_MAX;
    assert_eq!(run.plan(), ["cancel -c.1 timeout"]);
    let mut silent = World { definition: run.definition.clone(), history: run.history.clone(), now: run.now };
    assert_eq!(silent.last(), Command::SetTimer { at: 86_400_000 + ENDING_MS_MAX + ENDING_STOP_MS_MAX });
    silent.now += ENDING_STOP_MS_MAX;
    assert_eq!(silent.plan(), ["uncertain -c.1 timeout", "end failed timeout undo_failed=c.1,c.0,a"]);
    assert_eq!(run.fail("-c.1", "timeout"), ["end failed timeout undo_failed=c.1,c.0,a"]);
}

#[test]
fn a_step_that_does_not_stop_is_left_as_uncertain() {
    let mut run = World::with(
        "- { id: l, each: [1], steps: [{ id: c, tool: t, on_uncertain: ask }] }\n- { id: d, tool: t, needs: [], on_uncertain: retry }\nfinally: [{ id: f, emit: x }]",
    );
    run.plan();
    run.history.run.cancel = Some(Cancellation { undo: true });
    assert_eq!(run.plan(), ["ending cancelled", "cancel c.0", "cancel d"]);
    let end = run.now + ENDING_MS_MAX;
    assert_eq!(run.last(), Command::SetTimer { at: end });
    run.now = end;
    assert_eq!(
        run.plan(),
        [
            "uncertain c.0 timeout",
            "uncertain d timeout",
            "cancelled l cancelled",
            "end failed cancelled uncertain=c.0,d"
        ]
    );
    let row = run.row("d");
    assert!(row.may_have_happened && row.effect == Effect::Write);
}

#[test]
fn a_retry_keeps_what_succeeded_and_was_not_undone() {
    let mut run = before_the_end();
    run.fail("d", "upstream");
    run.ok("-c.1", json!(1));
    run.fail("-c.0", "upstream");
    run.ok("-a", json!(1));
    run.ok("f", json!(1));
    run.retry();
    // `a` was undone and runs again, before all that needs it. Item 0 of `c` was not undone.
    assert_eq!(run.plan(), ["start a"]);
    assert_eq!(run.ok("a", json!({"n": 2})), ["open b", "start c.1"]);
    assert_eq!(run.ok("c.1", json!("again")), ["succeeded b", "start d"]);
    assert_eq!(run.ok("d", json!(1)), ["ending completed", "start f"]);
    assert_eq!(run.ok("f", json!(1)), ["end completed"]);
}

/// A second call could undo something again.
#[test]
fn a_retry_does_not_repeat_an_undo_that_may_have_happened() {
    for (status, effect, may_have_happened, is_repeated) in [
        (StepStatus::Uncertain, Effect::Write, true, false),
        (StepStatus::Failed, Effect::Write, true, false),
        (StepStatus::Failed, Effect::Write, false, true),
        (StepStatus::Failed, Effect::Idempotent, true, true),
    ] {
        let mut run = World::with(
            "- { id: k, tool: t, undo: { tool: u } }\n- { id: a, tool: t, undo: { tool: u } }\n- { id: d, tool: t }",
        );
        run.plan();
        run.ok("k", json!(1));
        run.ok("a", json!(1));
        assert_eq!(run.fail("d", "upstream"), ["ending failed", "start -a"]);
        let row = run.row("-a");
        (row.effect, row.may_have_happened) = (effect, may_have_happened);
        assert_eq!(run.end("-a", status, Value::Null, None), ["start -k"]);
        assert_eq!(run.fail("-k", "upstream"), ["end failed upstream undo_failed=a,k"]);
        run.retry();
        assert_eq!(run.plan(), ["start d"]);
        let next = if is_repeated { "start -a" } else { "start -k" };
        assert_eq!(run.fail("d", "upstream"), ["ending failed", next], "{status:?} {effect:?}");
        if !is_repeated {
            assert_eq!(run.ok("-k", json!(1)), ["end failed upstream undo_failed=a"]);
        }
    }
}

#[test]
fn finally_of_a_retry_reads_what_was_kept() {
    let finally = "[{ id: c, choose: [{ when: steps.b.error.code == 'one', steps: [{ id: f, emit: x }] }] }, { id: g, emit: x, data: { a: '${{ steps.a.data }}', b: '${{ steps.b.status }}', f: '${{ steps.f.status }}' } }]";
    let mut run = World::with(&format!("- {{ id: a, tool: t }}\n- {{ id: b, tool: t }}\nfinally: {finally}\n"));
    run.plan();
    run.ok("a", json!(7));
    assert_eq!(run.fail("b", "one"), ["ending failed", "open c", "start f"]);
    assert_eq!(run.ok("f", json!(1)), ["succeeded c", "start g"]);
    run.ok("g", json!(1));
    run.retry();
    assert_eq!(run.plan(), ["start b"]);
    assert_eq!(run.fail("b", "two"), ["ending failed", "succeeded c", "start g"]);
    run.history.rows.pop();
    // The steps of `finally` keep nothing.
    let Command::Start { work: Work::Emit { data, .. }, .. } = run.last() else { panic!() };
    assert_eq!(data, json!({"a": 7, "b": "failed", "f": "skipped"}));
}

#[test]
fn a_retry_keeps_items_only_if_they_are_the_same() {
    let text = "workflow: w\nbot: b\nsteps:\n- { id: a, tool: t, undo: { tool: u } }\n- { id: b, each: '${{ steps.a.data }}', steps: [{ id: c, tool: t }] }\n";
    let mut run = World::of(text, json!({}));
    run.plan();
    run.ok("a", json!([1, 2, 3]));
    run.ok("c.0", json!("one"));
    run.ok("c.1", json!("two"));
    run.fail("c.2", "upstream");
    run.ok("-a", json!(1));
    run.retry();
    assert_eq!(run.plan(), ["start a"]);
    assert_eq!(run.ok("a", json!([1, 9, 3])), ["open b", "start c.1", "start c.2"]);
}

#[test]
fn nothing_starts_after_a_stop() {
    let mut run = World::with("- { id: s, stop: failed }\n- { id: a, tool: t }");
    assert_eq!(run.plan(), ["succeeded s", "ending failed", "end failed stopped"]);
    let mut run = World::with(
        "- { id: p, parallel: { x: [{ id: s, stop: completed }], y: [{ id: a, tool: t }] } }\n- { id: b, tool: t, needs: [] }\nfinally: [{ id: f, emit: x }]",
    );
    let commands = run.plan();
    assert_eq!(commands, ["open p", "succeeded s", "ending completed", "cancelled p cancelled", "start f"]);
    assert_eq!(run.ok("f", json!(1)), ["end completed"]);
}

#[test]
fn a_retry_asks_again() {
    let ask = "{ id: q, approve: { text: 'Go on?', for: [b] } }";
    let block = "{ id: c, choose: [{ steps: [{ id: q, approve: { text: 'Go on?' } }] }] }";
    for (list, asked) in [(ask, vec!["wait q"]), (block, vec!["open c", "wait q"])] {
        let mut run = World::with(&format!("- {{ id: a, tool: t }}\n- {list}\n- {{ id: b, tool: t }}"));
        run.plan();
        run.ok("a", json!(1));
        run.ok("q", json!({"by": "k"}));
        run.fail("b", "upstream");
        run.retry();
        // The call that was approved begins only after another decision.
        assert_eq!(run.plan(), asked, "{list}");
        let denied = run.fail("q", "denied");
        assert_eq!(denied.last().map(String::as_str), Some("end failed denied"), "{list}");
        assert!(denied.iter().all(|command| !command.starts_with("start")), "{list}: {denied:?}");
    }
}

#[test]
fn a_retry_keeps_to_the_concurrency_of_each() {
    let steps = "- { id: l, each: [1, 2, 3, 4, 5], concurrency: 2, on_item_error: continue, steps: [{ id: a, tool: t }, { id: b, tool: t }] }\n- { id: z, tool: t }";
    let mut run = World::with(steps);
    run.plan();
    for index in 0..5 {
        run.ok(&format!("a.{index}"), json!(1));
        if index == 3 {
            run.ok("b.3", json!(1));
        } else {
            run.fail(&format!("b.{index}"), "upstream");
        }
    }
    run.fail("z", "upstream");
    // The block has its result, and one of its items is undone.
    run.history.rows.iter_mut().find(|row| row.key == key("b.2")).unwrap().status = StepStatus::Undone;
    run.retry();
    // Each item has kept its first step, and item 3 all of it.
    assert_eq!(run.plan(), ["open l", "start b.0", "start b.1"]);
    assert_eq!(run.ok("b.1", json!(1)), ["start b.2"]);
    assert_eq!(run.ok("b.2", json!(1)), ["start b.4"]);
    assert_eq!(run.ok("b.4", json!(1)), [""; 0]);
    assert_eq!(run.ok("b.0", json!(1)), ["succeeded l", "start z"]);
}

#[test]
fn a_retry_stops_where_the_run_stopped() {
    let stop = "{ id: s, stop: failed, when: steps.a.data.bad }";
    for (list, ids) in [
        (stop.to_owned(), &["s"] as &[&str]),
        (format!("{{ id: c, choose: [{{ steps: [{stop}] }}] }}"), &["c", "s"]),
        (
            format!(
                "{{ id: p, parallel: {{ x: [{{ id: c, choose: [{{ steps: [{stop}] }}] }}], y: [{{ id: z, emit: x }}] }} }}"
            ),
            &["c", "s"],
        ),
    ] {
        let mut run = World::with(&format!("- {{ id: a, tool: t }}\n- {list}\n- {{ id: b, tool: t }}"));
        run.plan();
        run.ok("a", json!({"bad": true}));
        run.stopped("z");
        assert!(matches!(run.last(), Command::EndRun { status: RunEnd::Failed, .. }), "{list}");
        run.retry();
        let commands = run.plan();
        run.stopped("z");
        assert!(matches!(run.last(), Command::EndRun { status: RunEnd::Failed, .. }), "{list}: {commands:?}");
        let again = run.history.rows.iter().filter(|row| row.run_attempt == 2);
        let again: Vec<&str> = again.map(|row| row.key.step.as_str()).filter(|id| ids.contains(id)).collect();
        assert_eq!(again, ids, "{list}");
    }
}

#[test]
fn the_limits_of_a_run_are_reached() {
    let mut run = World::with("- { id: a, tool: t }\n- { id: b, tool: t }");
    run.plan();
    run.ok("a", json!(1));
    run.row("a").data_bytes = RUN_RESULT_BYTES_MAX + 1;
    assert_eq!(run.plan(), ["ending failed", "cancel b"]);
    assert!(matches!(&run.history.run.ending, Some(Ending { error: Some(error), .. }) if error.code == "limit"));
    let mut run = World::with("- { id: a, tool: t }\n- { id: b, tool: t }");
    run.plan();
    let row = StepRow { key: key("z"), attempt: 1, status: StepStatus::Succeeded, ..StepRow::default() };
    run.history.rows.extend(vec![row; RUN_ATTEMPTS_MAX]);
    run.history.end(&key("a"), StepStatus::Succeeded, json!(1), None, 1_001);
    assert_eq!(run.plan(), ["ending failed", "end failed limit"]);
    let large = "workflow: w\nbot: b\nsteps:\n- { id: a, each: [1, 2, 3, 4, 5], concurrency: 5, steps: [{ id: b, tool: t }] }\n";
    let mut run = World::of(large, json!({}));
    run.plan();
    for index in 0..5 {
        run.history.end(&key(&format!("b.{index}")), StepStatus::Succeeded, json!("x".repeat(250_000)), None, 1_001);
    }
    assert_eq!(run.plan(), ["failed a limit", "ending failed", "end failed limit"]);
}

#[test]
fn one_plan_keeps_to_the_attempts_of_a_run() {
    let steps = "- { id: a, each: '${{ input.many }}', steps: [{ id: b, each: '${{ input.many }}', steps: [{ id: c, emit: x, when: 'false' }] }] }";
    let mut run = World::with(steps);
    run.history.run.input = json!({"many": vec![1; 1_000]}).into();
    let commands = plan(&run.definition, &run.history, run.now);
    assert!((RUN_ATTEMPTS_MAX..RUN_ATTEMPTS_MAX + 50).contains(&commands.len()), "{} commands", commands.len());
    assert_eq!(commands.last().and_then(short).unwrap(), "end failed limit");
}

#[test]
fn finally_has_limits_of_its_own() {
    let start = || {
        let mut run = World::with(
            "- { id: a, tool: t }\nfinally: [{ id: f, emit: x }, { id: g, emit: x, on_error: continue }, { id: h, emit: x, on_error: continue }]",
        );
        run.plan();
        assert_eq!(run.ok("a", json!(1)), ["ending completed", "start f"]);
        run
    };
    let fill = |run: &mut World, step: &str, count: usize| {
        let run_attempt = run.history.run.attempt;
        let row = StepRow { key: key(step), run_attempt, status: StepStatus::Succeeded, ..StepRow::default() };
        run.history.rows.extend(vec![row; count]);
    };
    // What the steps have used does not count.
    let mut run = start();
    fill(&mut run, "z", RUN_ATTEMPTS_MAX);
    run.row("a").data_bytes = RUN_RESULT_BYTES_MAX;
    assert_eq!(run.ok("f", json!(1)), ["start g"]);
    let mut run = start();
    fill(&mut run, "f", ENDING_ATTEMPTS_MAX - 1);
    assert_eq!(run.ok("f", json!(1)), ["failed g limit", "end failed limit"]);
    let mut run = start();
    run.ok("f", json!(1));
    run.row("f").data_bytes = ENDING_RESULT_BYTES_MAX + 1;
    assert_eq!(run.plan(), ["cancel g"]);
    assert_eq!(run.stopped("g"), ["end failed limit"]);
    // Neither does what `finally` has used in an earlier attempt of the run.
    run.history.run.ending.as_mut().unwrap().status = RunEnd::Failed;
    fill(&mut run, "f", RUN_ATTEMPTS_MAX);
    run.retry();
    assert_eq!(run.plan(), ["ending completed", "start f"]);
    assert_eq!(run.ok("f", json!(1)), ["start g"]);
}
