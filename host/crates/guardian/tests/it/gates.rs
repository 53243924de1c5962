//! Gates: which calls they apply to, and what several gates require together.

use monstrum_guardian::{Approver, Asked, AskingGate, Decision, Delegation, Gate, GateAction, Gates, may_ask};
use monstrum_manifest::MatchMode;
use monstrum_types::{Effort, Labels, Status};
use serde_json::{Value, json};

use crate::support::{World, denial, dimension, repos};

fn gate(value: Value) -> Gate {
    serde_json::from_value(value).unwrap()
}

/// Returns an asking gate with these fields.
fn ask(fields: Value) -> Gate {
    with_action("ask", fields)
}

fn deny(fields: Value) -> Gate {
    with_action("deny", fields)
}

fn with_action(action: &str, mut fields: Value) -> Gate {
    fields["action"] = json!(action);
    gate(fields)
}

fn gated(gates: Vec<Gate>) -> World {
    World { gates, ..World::new() }
}

/// Returns whether an asking gate with these fields asks for the call, and checks that a denying gate with the same
/// fields denies exactly these calls.
fn applies(fields: &Value, params: &Value) -> bool {
    let asks = match gated(vec![ask(fields.clone())]).call(params) {
        Decision::Allow => false,
        Decision::Ask(_) => true,
        Decision::Deny(denial) => panic!("{denial:?}"),
    };
    let denies = matches!(gated(vec![deny(fields.clone())]).call(params), Decision::Deny(_));
    assert_eq!(asks, denies, "{fields} {params}");
    asks
}

fn asked(decision: Decision) -> Asked {
    match decision {
        Decision::Ask(asked) => asked,
        other => panic!("expected gates that ask, but the decision was {other:?}"),
    }
}

#[test]
fn a_gate_applies_to_the_tools_and_operations_that_it_names() {
    let call = json!({"repo": "acme/site"});
    for (fields, expected) in [
        (json!({}), true),
        (json!({"tools": ["github_*"]}), true),
        (json!({"tools": ["jira_*"]}), false),
        (json!({"tools": ["jira_*", "github_list_issues"]}), true),
        (json!({"operations": ["issue.*"]}), true),
        (json!({"operations": ["pr.*"]}), false),
        (json!({"tools": ["github_*"], "operations": ["pr.*"]}), false),
        (json!({"tools": ["jira_*"], "operations": ["issue.*"]}), false),
        (json!({"tools": ["github_*"], "operations": ["issue.*"]}), true),
        (json!({"tools": []}), false),
    ] {
        assert_eq!(applies(&fields, &call), expected, "{fields}");
    }
}

#[test]
fn a_condition_holds_if_some_value_matches_or_there_is_none() {
    let when = json!({"when": {"repos": ["acme/*"]}});
    let long = format!("other/{}", "x".repeat(4096));
    for (params, expected) in [
        (json!({"repo": "acme/site"}), true),
        (json!({"repo": "other/x"}), false),
        (json!({"repo": "other/x", "owner_repo": "acme/site"}), true),
        (json!({}), true),
        (json!({"repo": null}), true),
        // A value that cannot be compared may match.
        (json!({"repo": {"a": 1}}), true),
        (json!({"repo": long}), true),
        (json!({"repo": ["other/x", "acme/site"]}), true),
        (json!({"repo": ["other/x", "other/y"]}), false),
        (json!({"repo": ["other/x", {}]}), true),
    ] {
        assert_eq!(applies(&when, &params), expected, "{params}");
    }
}

#[test]
fn an_exception_holds_only_if_there_are_values_and_all_match() {
    let unless = json!({"unless": {"repos": ["acme/*"]}});
    let long = format!("acme/{}", "x".repeat(4096));
    for (params, is_excepted) in [
        (json!({"repo": "acme/site"}), true),
        (json!({"repo": "other/x"}), false),
        (json!({"repo": "acme/site", "owner_repo": "other/x"}), false),
        (json!({"repo": "acme/site", "owner_repo": "acme/x"}), true),
        (json!({}), false),
        (json!({"repo": null}), false),
        (json!({"repo": {"a": 1}}), false),
        (json!({"repo": long}), false),
        (json!({"repo": ["acme/a", "acme/b"]}), true),
        (json!({"repo": ["acme/a", "other/b"]}), false),
        (json!({"repo": ["acme/a", []]}), false),
        (json!({"repo": []}), false),
    ] {
        assert_eq!(applies(&unless, &params), !is_excepted, "{params}");
    }
}

#[test]
fn all_conditions_of_a_gate_must_hold() {
    let world = |fields: Value| World {
        dimensions: vec![repos(), dimension("paths", &["path"], MatchMode::Path)],
        declared: vec!["repo", "path"],
        ..gated(vec![ask(fields)])
    };
    let call = json!({"repo": "acme/site", "path": "/a/b"});
    let asks = |fields: Value| matches!(world(fields).call(&call), Decision::Ask(_));
    assert!(asks(json!({"when": {"repos": ["acme/*"], "paths": ["/a"]}})));
    assert!(!asks(json!({"when": {"repos": ["acme/*"], "paths": ["/c"]}})));
    assert!(!asks(json!({"unless": {"repos": ["acme/*"], "paths": ["/a"]}})));
    assert!(asks(json!({"unless": {"repos": ["acme/*"], "paths": ["/c"]}})));
    assert!(!asks(json!({"when": {"repos": ["acme/*"]}, "unless": {"paths": ["/a"]}})));
    assert!(asks(json!({"when": {"repos": ["acme/*"]}, "unless": {"paths": ["/c"]}})));
    assert!(!asks(json!({"when": {"repos": ["x/*"]}, "unless": {"paths": ["/c"]}})));
}

#[test]
fn a_dimension_that_the_tool_lacks_never_keeps_a_gate_away() {
    let call = json!({"repo": "acme/site", "project": "X"});
    for fields in [
        json!({"when": {"projects": ["Y"]}}),
        json!({"unless": {"projects": ["*"]}}),
        json!({"unless": {"projects": ["*"], "repos": ["*"]}}),
        json!({"when": {"projects": ["Y"], "repos": ["acme/*"]}}),
    ] {
        assert!(applies(&fields, &call), "{fields}");
    }
    assert!(!applies(&json!({"when": {"projects": ["Y"], "repos": ["other/*"]}}), &call));
    // A tool that does not declare the parameter of a dimension lacks the dimension, and so does a tool whose operation
    // the filter of the dimension does not match.
    let filtered = monstrum_manifest::ScopeDimension { operation_filter: Some("pr.*".to_owned()), ..repos() };
    for world in
        [World { declared: vec!["other"], ..World::new() }, World { dimensions: vec![filtered], ..World::new() }]
    {
        for fields in [json!({"when": {"repos": ["other/*"]}}), json!({"unless": {"repos": ["*"]}})] {
            let world = World { gates: vec![ask(fields.clone())], ..world.clone() };
            assert!(matches!(world.call(&call), Decision::Ask(_)), "{fields}");
        }
    }
}

#[test]
fn an_unknown_context_carries_every_label() {
    assert!(applies(&json!({"after": ["untrusted"]}), &json!({})));
    assert!(!applies(&json!({"after": ["untrusted"], "tools": ["jira_*"]}), &json!({})));
}

#[test]
fn a_gate_after_labels_applies_to_calls_that_carry_one_of_them() {
    let gates = vec![ask(json!({"after": ["untrusted", "private"]}))];
    let call = |carried: &[&str]| {
        let labels: Labels = carried.iter().map(|label| (*label).to_owned()).collect();
        World { labels, ..gated(gates.clone()) }.call(&json!({}))
    };
    assert!(matches!(call(&["private"]), Decision::Ask(_)));
    assert!(matches!(call(&["other", "untrusted"]), Decision::Ask(_)));
    for carried in [&[][..], &["other"], &["privat"]] {
        assert_eq!(call(carried), Decision::Allow, "{carried:?}");
    }
    let both = World { labels: Labels::none(), ..gated(vec![ask(json!({"after": ["untrusted"]})), ask(json!({}))]) };
    assert_eq!(asked(both.call(&json!({}))).gates.len(), 1, "a gate without `after` applies to every call");
}

#[test]
fn gates_of_every_holder_count() {
    let asking = || vec![ask(json!({"reason": "why"}))];
    let holders = |world: World| -> Vec<String> {
        asked(world.call(&json!({}))).gates.into_iter().map(|gate| gate.holder).collect()
    };
    assert_eq!(holders(World { bot_gates: asking(), ..World::new() }), ["bot"]);
    assert_eq!(holders(World { role_gates: asking(), ..World::new() }), ["role"]);
    assert_eq!(holders(gated(asking())), ["binding"]);
    let link = || Delegation { gates: asking(), ..Delegation::default() };
    assert_eq!(holders(World { delegation: vec![Delegation::default(), link()], ..World::new() }), ["delegation"]);
    let all = World { bot_gates: asking(), role_gates: asking(), delegation: vec![link(), link()], ..gated(asking()) };
    assert_eq!(holders(all), ["bot", "role", "binding", "delegation", "delegation"]);
}

#[test]
fn several_gates_require_what_each_requires() {
    let of = |fields: &[Value]| asked(gated(fields.iter().cloned().map(ask).collect()).call(&json!({})));
    let alone = of(&[json!({})]);
    let gates = vec![AskingGate { holder: "binding".to_owned(), reason: None }];
    assert_eq!(alone, Asked { gates, approvers: vec![Approver::Admin], allow_starter: false, expires_s: 3600 });
    assert_eq!(alone.rule(), "binding.gates");
    let operators = json!({"approvers": ["operator", "admin"], "allow_starter": true, "expires_s": 60});
    let approvers = json!({"approvers": ["approver", "operator"], "allow_starter": true, "expires_s": 7200});
    let both = of(&[operators.clone(), approvers.clone()]);
    assert_eq!((both.approvers, both.allow_starter, both.expires_s), (vec![Approver::Operator], true, 60));
    let with_default = of(&[operators, json!({})]);
    assert_eq!((with_default.approvers, with_default.allow_starter), (vec![Approver::Admin], false));
    assert_eq!(of(&[approvers.clone(), json!({})]).approvers, [], "only a root key may decide");
    assert_eq!(of(std::slice::from_ref(&approvers)).expires_s, 7200);
    // A gate that does not apply requires nothing.
    let absent = json!({"tools": ["jira_*"], "expires_s": 60, "approvers": ["admin"]});
    assert_eq!(of(&[approvers, absent]).expires_s, 7200);
}

#[test]
fn one_gate_that_denies_is_enough() {
    let world = World {
        bot_gates: vec![ask(json!({}))],
        delegation: vec![Delegation {
            gates: vec![deny(json!({"reason": "not\u{202e} now"}))],
            ..Delegation::default()
        }],
        ..gated(vec![ask(json!({}))])
    };
    let denied = denial(world.call(&json!({})));
    assert_eq!((denied.status, denied.rule.as_str()), (Status::PermissionDenied, "delegation.gates"));
    let message = "Permission denied: a gate denies this call of tool 'github_list_issues': not\\u{202e} now";
    assert_eq!(denied.message, message);
    assert_eq!(
        denied.smallest_change,
        "remove the gate from gates of link 1 of the delegation, or narrow its conditions"
    );
}

#[test]
fn a_list_hides_only_tools_that_a_gate_always_denies() {
    assert_eq!(denial(gated(vec![deny(json!({}))]).list()).rule, "binding.gates");
    assert_eq!(denial(gated(vec![deny(json!({"tools": ["github_*"]}))]).list()).rule, "binding.gates");
    for gate in [
        deny(json!({"when": {"repos": ["*"]}})),
        deny(json!({"unless": {"repos": ["*"]}})),
        deny(json!({"after": ["untrusted"]})),
        deny(json!({"operations": ["pr.*"]})),
        ask(json!({})),
    ] {
        assert_eq!(gated(vec![gate.clone()]).list(), Decision::Allow, "{gate:?}");
    }
}

#[test]
fn a_tool_may_ask_if_a_gate_for_it_asks() {
    let may_ask = |world: World| world.with_subject(|subject| may_ask(subject, &Effort::of(u64::MAX))).unwrap();
    assert!(!may_ask(World::new()));
    assert!(may_ask(gated(vec![ask(json!({"when": {"repos": ["never"]}}))])));
    assert!(!may_ask(gated(vec![deny(json!({}))])));
    assert!(!may_ask(gated(vec![ask(json!({"tools": ["jira_*"]}))])));
    assert!(may_ask(World { role_gates: vec![ask(json!({"operations": ["issue.read"]}))], ..World::new() }));
}

#[test]
fn globs_do_not_reach_the_steps_of_a_bot_itself() {
    let asks = |fields: Value| {
        let (tool, operation) = ("llm_complete", "llm.complete");
        let world = World { tool, operation, is_own_step: true, ..gated(vec![ask(fields)]) };
        matches!(world.call(&json!({})), Decision::Ask(_))
    };
    for fields in [json!({}), json!({"tools": ["*"]}), json!({"tools": ["llm_*"]}), json!({"operations": ["llm.*"]})] {
        assert!(!asks(fields.clone()), "{fields}");
    }
    assert!(asks(json!({"tools": ["*", "llm_complete"]})));
    assert!(asks(json!({"operations": ["llm.complete"]})));
    assert!(!asks(json!({"tools": ["llm_complete"], "operations": ["x"]})));
}

/// Plugins and servers choose the names of their tools, so a name must not lead past a gate.
#[test]
fn globs_reach_tools_whose_names_look_like_steps_of_the_bot() {
    for (tool, operation) in [("task_write", "task.write"), ("llm_complete", "llm.complete")] {
        for fields in [json!({}), json!({"tools": ["*"]}), json!({"operations": ["*.*"]})] {
            let world = World { tool, operation, ..gated(vec![deny(fields.clone())]) };
            assert_eq!(world.refusal(&json!({})).rule, "binding.gates", "{tool}: {fields}");
            let world = World { tool, operation, ..gated(vec![ask(fields.clone())]) };
            assert!(matches!(world.call(&json!({})), Decision::Ask(_)), "{tool}: {fields}");
        }
    }
}

#[test]
fn gates_do_not_help_a_call_that_another_rule_denies() {
    let world = World { bot_gates: vec![ask(json!({}))], ..World::new().constrained(&[("repos", &["acme/*"])]) };
    assert_eq!(world.refusal(&json!({"repo": "other/x"})).rule, "scope.repos");
    assert!(matches!(world.call(&json!({"repo": "acme/x"})), Decision::Ask(_)));
    let hidden = World { gates: vec![ask(json!({}))], ..World::new().granted(&[]) };
    assert_eq!(hidden.refusal(&json!({})).rule, "grant.none");
}

#[test]
fn unreadable_gates_deny_every_call() {
    let world = World { gates: vec![Gate::of(GateAction::Deny)], ..World::new() };
    assert!(matches!(world.call(&json!({"repo": "a/b"})), Decision::Deny(_)));
    let gates = Gates::unreadable();
    assert!(gates.is_same(&gates.clone()) && !gates.is_same(&Gates::unreadable()));
    assert!(Gates::new(&[]).is_same(&Gates::default()));
    for unknown in [json!({"action": "allow"}), json!({"action": "ask", "more": 1}), json!({"when": {}})] {
        assert!(serde_json::from_value::<Gate>(unknown).is_err());
    }
}

#[test]
fn a_gate_is_written_as_it_was_read() {
    for text in [
        r#"{"action":"deny"}"#,
        r#"{"tools":["a"],"operations":["b"],"when":{"k":["v"]},"unless":{"k":["w"]},"after":["untrusted"],"action":"ask","approvers":["operator","admin"],"allow_starter":false,"expires_s":60,"reason":""}"#,
    ] {
        let read: Gate = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }
}
