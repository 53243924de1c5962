use serde_json::json;

use super::*;
use crate::model::{OnUncertain, StepKind, WhenFull};

const RELEASE: &str = include_str!("../../tests/release.yaml");

fn faults(text: &str) -> Vec<String> {
    match check(text, None) {
        Ok(checked) => panic!("no faults in {text}: {checked:?}"),
        Err(faults) => faults.iter().map(ToString::to_string).collect(),
    }
}

/// A definition with these steps.
fn with(steps: &str) -> String {
    format!("workflow: w\nbot: b\nsteps:\n{steps}")
}

#[test]
fn the_release_workflow_is_read_whole() {
    let checked = check(RELEASE, None).unwrap();
    assert_eq!(checked.warnings, []);
    let definition = checked.definition;
    assert_eq!((definition.workflow.as_str(), definition.bot.as_str()), ("release", "release-bot"));
    assert_eq!(definition.timeout_ms, 86_400_000);
    assert_eq!(definition.concurrency.as_ref().unwrap().full, WhenFull::Queue);
    let kinds: Vec<&str> = definition.steps.iter().map(|step| step.kind.name()).collect();
    assert_eq!(kinds, ["tool", "each", "approve", "tool"]);
    assert_eq!(definition.steps[0].retry.on, ["timeout", "busy"]);
    assert_eq!((definition.steps[0].retry.backoff_ms, definition.steps[0].retry.backoff_max_ms), (2_000, 60_000));
    assert_eq!(definition.steps[3].needs, ["ok"]);
    assert_eq!(definition.steps[3].on_uncertain, OnUncertain::Fail);
    let StepKind::Approve(approve) = &definition.steps[2].kind else { panic!() };
    assert_eq!((approve.targets.as_slice(), approve.allow_starter), (["announce".to_owned()].as_slice(), false));
    assert_eq!(definition.check_input(&json!({"repo": "o/r", "version": "1"})), Ok(()));
    let key = |input: serde_json::Value| definition.concurrency_key(&input, None, None);
    assert_eq!(key(json!({"repo": "o/r"})), Ok(Some("o/r".to_owned())));
    key(json!({})).unwrap_err();
    let wrong = definition.check_input(&json!({"repo": 1})).unwrap_err();
    assert_eq!(wrong.iter().map(|(pointer, _)| pointer.as_str()).collect::<Vec<_>>(), ["", "/repo"]);
}

#[test]
fn yaml_and_json_are_one_language() {
    let node = crate::node::read(RELEASE).unwrap();
    let json = serde_json::to_string_pretty(&node.to_json()).unwrap();
    let (yaml, json) = (check(RELEASE, None).unwrap(), check(&json, None).unwrap());
    assert_eq!(yaml.definition.output.unwrap().skeleton(), json.definition.output.unwrap().skeleton());
}

#[test]
fn every_fault_is_reported_at_once_with_its_place() {
    let text = "\
workflow: Release
bots: b
timeout: 1y
steps:
  - { id: a, tool: t, agent: {}, params: {} }
  - { id: true, tool: t }
  - id: for
    tool: t
  - { id: c, toll: t }
  - { id: d, tool: t, params: { x: '${{ inptu.y }}', y: '${{ 1 + }}' }, retrys: 3 }
  - { id: e, emit: custom.x }
  - { id: d, wait: { for: 1m, until: x } }
finally: {}
";
    let expected = [
        "1:1: the key `bot` is missing",
        "1:11: /workflow: `Release` is not a valid name",
        "2:1: /bots: a workflow has no key `bots`",
        "3:10: /timeout: `1y` is not a duration",
        "5:5: /steps/0: the step has 2 kinds: tool, agent",
        "6:11: /steps/1/id: expected a string, found a boolean",
        "7:9: /steps/2/id: `for` is a word of the expression language",
        "9:5: /steps/3: the step does not say what it does",
        "10:36: /steps/4/params/x: in `inptu.y`: unknown variable `inptu`",
        "10:57: /steps/4/params/y: not an expression: `1 +`: mismatched input the end expecting an expression",
        "10:73: /steps/4/retrys: a `tool` step has no key `retrys`",
        "11:20: /steps/5/emit: `custom.x` is not a valid name",
        "12:20: /steps/6/wait: `wait` has exactly one of `for`, `until` and `event`",
        "13:10: /finally: expected a list of steps, found a map",
    ];
    let found = faults(text);
    for (found, expected) in found.iter().zip(expected) {
        let found =
            if expected.contains("not an expression") { found.split("expecting").next() } else { Some(found.as_str()) };
        let expected = expected.split("expecting").next();
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    let hints: Vec<Option<String>> = check(text, None).unwrap_err().into_iter().map(|fault| fault.hint).collect();
    assert_eq!(hints[2].as_deref(), Some("did you mean `bot`?"));
    assert_eq!(hints[7].as_deref(), Some("did you mean `tool`?"));
    assert_eq!(hints[8].as_deref(), Some("did you mean `input`?"));
    assert_eq!(hints[10].as_deref(), Some("did you mean `retry`?"));
}

#[test]
fn each_rule_refuses() {
    let long = "x".repeat(64);
    let cases = [
        ("- { id: a, tool: t }\n- { id: a, tool: t }", "the id `a` is used twice"),
        ("- { id: A, tool: t }", "`A` is not a valid name"),
        (&*format!("- {{ id: {long}, tool: t }}"), "not a valid name"),
        ("- { tool: t }", "the key `id` is missing"),
        ("  []", "the list has no steps"),
        ("- 1", "expected a step, found a number"),
        ("- { id: a, tool: t, needs: [b] }", "unknown step `b`"),
        ("- { id: a, tool: t, needs: [a] }", "in a circle: a -> a"),
        (
            "- { id: a, tool: t, needs: [c] }\n- { id: b, tool: t }\n- { id: c, tool: t }",
            "in a circle: a -> c -> b -> a",
        ),
        (
            "- { id: a, parallel: { x: [{ id: b, tool: t }], y: [{ id: c, tool: t, needs: [b] }] } }",
            "step `b` is in another list",
        ),
        ("- { id: a, parallel: { x: [{ id: b, tool: t }] } }", "2 to 16 branches"),
        ("- { id: a, parallel: { x: [{ id: b, tool: t }], 'Y y': [{ id: c, tool: t }] } }", "valid name of a branch"),
        (
            "- { id: a, parallel: { x: [{ id: b, tool: t }], y: [{ id: c, tool: t, params: { v: '${{ steps.b.data }}' } }] } }",
            "need not have ended",
        ),
        (
            "- { id: a, tool: t, params: { v: '${{ steps.b.data }}' } }\n- { id: b, tool: t }",
            "step `b` need not have ended",
        ),
        (
            "- { id: a, tool: t }\n- { id: b, tool: t, needs: [], when: steps.a.status == 'failed' }",
            "step `a` need not have ended",
        ),
        ("- { id: a, tool: t, params: { v: '${{ steps.a.data }}' } }", "cannot read itself"),
        ("- { id: a, tool: t, params: { v: '${{ steps.zz.data }}' } }", "unknown step `zz`"),
        ("- { id: a, tool: t, params: { v: '${{ item }}' } }", "`item` exists only inside `each`"),
        (
            "- { id: a, each: [1], steps: [{ id: b, tool: t }] }\n- { id: c, tool: t, params: { v: '${{ steps.b.data }}' } }",
            "need not have ended",
        ),
        ("- { id: a, each: 5, steps: [{ id: b, tool: t }] }", "expected a list"),
        ("- { id: a, each: 'x ${{ input }}', steps: [{ id: b, tool: t }] }", "expected a list"),
        ("- { id: a, each: [1], concurrency: 17, steps: [{ id: b, tool: t }] }", "from 1 to 16"),
        ("- { id: a, each: [1], on_item_error: stop, steps: [{ id: b, tool: t }] }", "unknown value `stop`"),
        ("- { id: a, each: [1] }", "the key `steps` is missing"),
        ("- { id: a, choose: [] }", "1 to 64 branches"),
        (
            "- { id: a, choose: [{ steps: [{ id: b, tool: t }] }, { steps: [{ id: c, tool: t }] }] }",
            "only the last branch",
        ),
        ("- { id: a, choose: [{ when: 1 +, steps: [{ id: b, tool: t }] }] }", "not an expression"),
        ("- { id: a, wait: { for: 31d } }", "from 1s to 30d"),
        ("- { id: a, wait: { for: 5 } }", "expected a duration"),
        ("- { id: a, wait: { event: 'task.*' } }", "not a valid name"),
        ("- { id: a, wait: { event: task.completed, since: ever } }", "unknown value `ever`"),
        ("- { id: a, approve: { text: x, by: [bot] } }", "unknown value `bot`"),
        ("- { id: a, approve: { text: x, by: [] } }", "nobody may decide"),
        ("- { id: a, approve: { text: x, for: [b] } }", "unknown step `b`"),
        ("- { id: b, tool: t }\n- { id: a, approve: { text: x, for: [b] } }", "does not wait for this step"),
        ("- { id: a, approve: { text: x, for: [b] } }\n- { id: b, emit: x }", "is not a tool step"),
        ("- { id: a, approve: { text: x, for: [b] } }\n- { id: b, tool: t, needs: [] }", "does not wait"),
        (
            "- { id: a, approve: { text: x, for: [c] } }\n- { id: b, tool: t }\n- { id: c, tool: t, params: { v: '${{ steps.b.data }}' } }",
            "reads `b`",
        ),
        (
            "- { id: a, approve: { text: x, for: [c] } }\n- { id: b, each: [1], steps: [{ id: c, tool: t }] }",
            "not after this step",
        ),
        ("- { id: a, workflow: w }", "calls itself"),
        ("- { id: a, workflow: W }", "not a valid name"),
        ("- { id: a, emit: '' }", "not a valid name"),
        ("- { id: a, stop: done }", "unknown value `done`"),
        ("- { id: a, stop: failed, timeout: 1m }", "takes no time"),
        ("- { id: a, wait: { for: 1m }, retry: { attempts: 2 } }", "is not repeated"),
        ("- { id: a, wait: { for: 1m }, on_uncertain: ask }", "never uncertain"),
        ("- { id: a, agent: { instruction: x }, undo: { tool: t } }", "only `tool` steps have `undo`"),
        ("- { id: a, tool: t, undo: { agent: x } }", "the key `tool` is missing"),
        ("- { id: a, tool: t, retry: { attempts: 11 } }", "from 1 to 10"),
        ("- { id: a, tool: t, retry: { attempts: 2, backoff: 2m, backoff_max: 1m } }", "shorter"),
        ("- { id: a, tool: t, retry: { backoff: 2m } }", "the key `attempts` is missing"),
        ("- { id: a, tool: t, params: [1] }", "expected a map"),
        ("- { id: a, tool: 't ${{ input }}' }", "expressions are not supported here"),
        ("- { id: a, agent: { instruction: 1 } }", "expected a string"),
        ("- { id: a, agent: { instruction: x, output_schema: { type: 5 } } }", "not a usable JSON Schema"),
        ("- { id: a, tool: t, when: '${{ true }} ${{ false }}' }", "one expression without text"),
        ("- { id: a, tool: t, on_error: ignore }", "unknown value `ignore`"),
        ("- { id: a, tool: t, on_uncertain: maybe }", "unknown value `maybe`"),
    ];
    for (steps, message) in cases {
        let found = faults(&with(steps));
        assert!(found.iter().any(|fault| fault.contains(message)), "{steps}\n{found:#?}");
    }
}

#[test]
fn each_rule_of_the_whole_document_refuses() {
    let top = |rest: &str| format!("workflow: w\nbot: b\nsteps: [{{ id: a, tool: t }}]\n{rest}\n");
    for (rest, message) in [
        ("concurrency: { max: 0 }", "from 1 to 100"),
        ("concurrency: { max: 1, full: drop }", "unknown value `drop`"),
        ("concurrency: { max: 1, key: '${{ steps.a.data }}' }", "has not started"),
        ("timeout: 31d", "from 1s to 30d"),
        ("output: '${{ steps.b.data }}'", "unknown step `b`"),
        ("finally: [{ id: f, tool: t }]\noutput: '${{ steps.f.data }}'", "need not have ended"),
        ("input: { $ref: 'https://example.com/x' }", "must refer to this schema"),
        ("input: 5", "expected a JSON Schema"),
        ("finally: [{ id: f, stop: failed }]", "`stop` has no meaning in `finally`"),
    ] {
        let found = faults(&top(rest));
        assert!(found.iter().any(|fault| fault.contains(message)), "{rest}\n{found:#?}");
    }
}

#[test]
fn what_is_allowed_has_no_faults() {
    for steps in [
        "- { id: a, tool: t, needs: [b] }\n- { id: b, tool: t, needs: [] }",
        "- { id: a, tool: t }\n- { id: b, tool: t, when: steps.a.status == 'failed' }",
        "- { id: a, parallel: { x: [{ id: b, tool: t }], y: [{ id: c, tool: t }] } }\n- { id: d, tool: t, params: { v: '${{ steps.b.data }}' } }",
        "- { id: a, choose: [{ when: input.x, steps: [{ id: b, tool: t }] }, { steps: [{ id: c, tool: t }] }] }",
        "- { id: a, each: '${{ input.l }}', collect: steps.b.data.x, steps: [{ id: b, tool: t, params: { v: '${{ item }}', w: '${{ index }}' } }] }",
        "- { id: a, wait: { event: custom.deployed, match: { repo: '${{ input.repo }}' }, since: run } }",
        "- { id: a, wait: { until: '${{ string(timestamp(input.at) + duration(\"1h\")) }}' } }",
        "- { id: a, approve: { text: x, for: [c] } }\n- { id: b, choose: [{ when: 'true', steps: [{ id: c, tool: t }] }] }",
        "- { id: a, stop: failed, message: 'no ${{ input.x }}', when: false }",
        "- { id: a, workflow: other, input: { x: 1 } }",
    ] {
        let checked = check(&with(steps), None);
        assert!(checked.is_ok(), "{steps}\n{:#?}", checked.unwrap_err());
    }
}

#[test]
fn the_limits_of_a_definition_are_reached() {
    let many = |count: usize| with(&(0..count).map(|at| format!("- {{ id: s{at}, tool: t }}\n")).collect::<String>());
    assert!(check(&many(200), None).is_ok());
    assert!(faults(&many(201))[0].contains("more than 200 steps"));
    let nested = |blocks: usize| {
        let open: String = (0..blocks).map(|at| format!("[{{ id: b{at}, each: [1], steps: ")).collect();
        format!("workflow: w\nbot: b\nsteps: {open}[{{ id: a, tool: t }}]{}\n", " }]".repeat(blocks))
    };
    assert!(check(&nested(8), None).is_ok());
    assert!(faults(&nested(9))[0].contains("nested deeper than 8"));
    let long = "x".repeat(900);
    let expressions = |count: usize| {
        with(
            &(0..count).map(|at| format!("- {{ id: s{at}, tool: t, when: \"'{long}' == ''\" }}\n")).collect::<String>(),
        )
    };
    assert!(check(&expressions(35), None).is_ok());
    let found = faults(&expressions(40));
    assert!(found.len() == 1 && found[0].contains("more than 32 KiB"), "{found:?}");
    let wrong = with(&(0..150).map(|at| format!("- {{ id: s{at}, tool: t, x: 1 }}\n")).collect::<String>());
    let found = faults(&wrong);
    assert_eq!((found.len(), found.last().unwrap().contains("and 50 more faults")), (FAULTS_MAX + 1, true));
}

/// A plugin wrote the schema, which has an error for each value and each alternative.
#[test]
fn large_parameters_have_one_fault_and_many_are_left_to_the_calls() {
    let schema = json!({"properties": {"x": {"items": {"anyOf": vec![json!({"type": "string"}); 30]}}}});
    let tools = [KnownTool { name: "t".to_owned(), input_schema: Some(schema) }];
    let nulls = |count: usize| vec!["null"; count].join(",");
    let one =
        |values: &str| check(&with(&format!("- {{ id: a, tool: t, params: {{ x: [{values}] }} }}")), Some(&tools));
    let faults = one(&nulls(19_000)).unwrap_err();
    assert!(faults.len() == 1 && faults[0].message.contains("too large to say where"), "{faults:?}");
    assert_eq!(faults[0].path, "/steps/0/params");
    // An expression stands for values that may be right.
    one(&format!("{}, '${{{{ run.id }}}}'", nulls(5_000))).unwrap();
    assert_eq!(one(&nulls(5)).unwrap_err().len(), 5);
    let steps: String = (0..90)
        .map(|at| format!("- {{ id: s{at}, tool: t, params: {{ x: [{}] }} }}\n", vec!["s"; 200].join(",")))
        .collect();
    check(&with(&steps), Some(&tools)).unwrap();
}

#[test]
fn literal_parameters_fit_the_schema_of_the_tool() {
    let schema = json!({
        "type": "object", "required": ["repo"], "additionalProperties": false,
        "properties": {"repo": {"type": "string"}, "count": {"type": "integer", "maximum": 5}, "tags": {"type": "array", "items": {"type": "string"}}},
    });
    let tools = [KnownTool { name: "t".to_owned(), input_schema: Some(schema) }];
    let check_params =
        |params: &str| match check(&with(&format!("- {{ id: a, tool: t, params: {params} }}")), Some(&tools)) {
            Ok(_) => Vec::new(),
            Err(faults) => {
                faults.into_iter().map(|fault| format!("{} {}:{}", fault.path, fault.line, fault.column)).collect()
            }
        };
    let none: [&str; 0] = [];
    assert_eq!(check_params("{ repo: x, count: 3, tags: [a] }"), none);
    assert_eq!(check_params("{ repo: '${{ input.r }}', count: '${{ input.c }}', tags: '${{ input.t }}' }"), none);
    assert_eq!(check_params("{ repo: x, tags: ['${{ input.t }}'] }"), none);
    assert_eq!(check_params("{ repo: x, count: 9 }"), ["/steps/0/params/count 4:47"]);
    assert_eq!(check_params("{ count: '${{ input.c }}' }"), ["/steps/0/params 4:29"]);
    assert_eq!(check_params("{ repo: x, tags: ['${{ input.t }}', 5] }"), ["/steps/0/params/tags/1 4:65"]);
    assert_eq!(check_params("{ repo: x, other: 1 }"), ["/steps/0/params 4:29"]);
}

#[test]
fn warnings_do_not_refuse() {
    let warnings = |steps: &str, tools: Option<&[KnownTool]>| {
        let checked = check(&with(steps), tools).unwrap_or_else(|faults| panic!("{faults:?}"));
        checked.warnings.into_iter().map(|warning| (warning.path, warning.message)).collect::<Vec<_>>()
    };
    let tools = [KnownTool { name: "github_list".to_owned(), input_schema: None }];
    let found = warnings("- { id: a, tool: github_lists }", Some(&tools));
    assert_eq!(found, [("/steps/0/tool".to_owned(), "the bot has no tool `github_lists` now".to_owned())]);
    let may_skip = "- { id: a, tool: t, when: input.x }\n- { id: b, tool: t, params: { v: '${{ steps.a.data.n }}' } }";
    assert!(warnings(may_skip, None)[0].1.contains("may have no data"));
    let asked = "- { id: a, tool: t, when: input.x }\n- { id: b, tool: t, when: steps.a.status == 'succeeded', params: { v: '${{ steps.a.data.n }}' } }";
    assert_eq!(warnings(asked, None), []);
    let branch = "- { id: a, choose: [{ when: input.x, steps: [{ id: c, tool: t }] }] }\n- { id: b, tool: t, params: { v: '${{ steps.c.data.n }}' } }";
    assert!(warnings(branch, None)[0].1.contains("may have no data"));
    for literal in [
        "{ token: 'ghp_0123456789abcdef0123' }",
        "{ password: hunter22222 }",
        "{ a: [{ b: 'Bearer eyJhbGciOiJIUzI1NiJ9' }] }",
    ] {
        let found = warnings(&format!("- {{ id: a, tool: t, params: {literal} }}"), None);
        assert!(found.len() == 1 && found[0].1.contains("credential"), "{literal} {found:?}");
    }
    assert_eq!(warnings("- { id: a, tool: t, params: { password: '${{ input.p }}', key: short, sk-a: b } }", None), []);
}

#[test]
fn a_list_of_each_has_a_thousand_items() {
    for item in ["1", "'${{ input.x }}'"] {
        let text = |count: usize| {
            with(&format!("- {{ id: a, each: [{}], steps: [{{ id: b, tool: t }}] }}", vec![item; count].join(", ")))
        };
        check(&text(1_000), None).unwrap();
        assert_eq!(faults(&text(1_001)), ["4:18: /steps/0/each: a list of `each` has at most 1000 items, found 1001"]);
    }
}
