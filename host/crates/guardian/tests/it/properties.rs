//! Compares decisions on generated rules and calls with a naive implementation of the rules.

use std::cell::Cell;

use monstrum_guardian::matching::match_any_path;
use monstrum_guardian::{
    Approver, Decision, Delegation, Gate, GateAction, Grant, GrantSource, ScopeConstraints, SetSource, may_ask,
};
use monstrum_manifest::{MatchMode, ScopeDimension};
use monstrum_types::{Effort, Status};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::World;

const KEYS: [&str; 4] = ["repos", "paths", "kinds", "unknown"];
const PATHS: [&str; 5] = ["repo", "owner_repo", "path", "target.kind", "kind"];

fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("*".to_owned()),
        1 => prop::sample::select(vec!["a/*", "*/x", "a/b", "/a", "/a/**", "", "7", "[ab]*", "a"]).prop_map(str::to_owned),
    ]
}

fn constraints() -> impl Strategy<Value = ScopeConstraints> {
    // The key `unknown` is in no manifest. The key is generated rarely, so that the tests also exercise the other
    // rules.
    let key = prop_oneof![8 => prop::sample::select(KEYS[..3].to_vec()), 1 => Just(KEYS[3])].prop_map(str::to_owned);
    prop::collection::btree_map(key, prop::collection::vec(pattern(), 0..3), 0..3)
}

fn dimensions() -> impl Strategy<Value = Vec<ScopeDimension>> {
    let mode = prop::sample::select(vec![MatchMode::Pattern, MatchMode::Path, MatchMode::Exact]);
    let filter = prop::sample::select(vec![None, Some("issue.*"), Some("pr.*")]);
    let paths = prop::sample::subsequence(PATHS.to_vec(), 1..3);
    prop::collection::vec((paths, mode, filter), 3..4).prop_map(|parts| {
        let build = |(key, (paths, match_mode, filter)): (&str, (Vec<&str>, MatchMode, Option<&str>))| ScopeDimension {
            operation_filter: filter.map(str::to_owned),
            ..crate::support::dimension(key, &paths, match_mode)
        };
        KEYS.into_iter().zip(parts).map(build).collect()
    })
}

fn grant() -> impl Strategy<Value = Grant> {
    let list = |patterns: &'static [&'static str]| {
        prop::option::of(prop::sample::subsequence(patterns.to_vec(), 0..=patterns.len()))
            .prop_map(|list| list.map(|list| list.into_iter().map(str::to_owned).collect::<Vec<String>>()))
    };
    (list(&["issue.*", "*.read", "pr.*"]), list(&["github_*", "*_issues", "jira_*"]))
        .prop_map(|(allowed_operations, allowed_tools)| Grant { allowed_operations, allowed_tools })
}

fn link() -> impl Strategy<Value = Delegation> {
    (grant(), constraints()).prop_map(|(grant, scope_constraints)| Delegation {
        allowed_tools: grant.allowed_tools,
        scope_constraints,
        gates: Vec::new(),
    })
}

/// Generates chains of all allowed lengths. Most chains are short, so that some of them permit a call.
fn links() -> impl Strategy<Value = Vec<Delegation>> {
    let open = Just(Delegation::default());
    prop_oneof![
        4 => prop::collection::vec(link(), 0..2),
        1 => prop::collection::vec(prop_oneof![3 => open, 1 => link()], 0..=8),
    ]
}

pub(crate) fn world() -> impl Strategy<Value = World> {
    let grants = prop_oneof![
        2 => Just(vec![(GrantSource::Role, crate::support::operations(&["*"]))]),
        1 => prop::collection::vec((prop::sample::select(vec![GrantSource::Role, GrantSource::Permissions]), grant()), 0..3),
    ];
    let sources = prop::sample::select(vec![SetSource::Role, SetSource::Binding]);
    (
        dimensions(),
        prop::sample::subsequence(PATHS.to_vec(), 0..=PATHS.len()),
        grants,
        prop::collection::vec((sources, constraints()), 0..3),
        links(),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(dimensions, declared, grants, sets, delegation, forwards)| World {
            dimensions,
            declared,
            grants,
            sets,
            delegation,
            forwards,
            ..World::new()
        })
}

fn gate() -> impl Strategy<Value = Gate> {
    let globs = |list: &'static [&'static str]| {
        prop::option::weighted(0.3, prop::sample::subsequence(list.to_vec(), 1..=list.len()))
            .prop_map(|list| list.map(|list| list.into_iter().map(str::to_owned).collect::<Vec<String>>()))
    };
    let set = || prop::option::weighted(0.4, constraints());
    let approvers = prop::option::of(prop::sample::subsequence(Approver::ALL.to_vec(), 1..=3));
    (
        (globs(&["github_*", "jira_*"]), globs(&["issue.*", "pr.*"]), set(), set()),
        prop::sample::select(vec![GateAction::Ask, GateAction::Ask, GateAction::Deny]),
        (approvers, prop::option::of(any::<bool>()), prop::option::of(60_u32..10_000)),
    )
        .prop_map(|((tools, operations, when, unless), action, (approvers, allow_starter, expires_s))| Gate {
            tools,
            operations,
            when,
            unless,
            approvers,
            allow_starter,
            expires_s,
            ..Gate::of(action)
        })
}

/// Generates a world with up to two gates of each holder.
pub(crate) fn gated_world() -> impl Strategy<Value = World> {
    let gates = || prop::collection::vec(gate(), 0..2);
    (world(), gates(), gates(), gates()).prop_map(|(world, bot_gates, role_gates, gates)| World {
        bot_gates,
        role_gates,
        gates,
        ..world
    })
}

/// Returns whether `after` requires at least what `before` requires.
fn is_at_least_as_strict(before: &Decision, after: &Decision) -> bool {
    match (before, after) {
        (Decision::Allow, _) | (_, Decision::Deny(_)) => true,
        (Decision::Ask(before), Decision::Ask(after)) => {
            after.approvers.iter().all(|approver| before.approvers.contains(approver))
                && (before.allow_starter || !after.allow_starter)
                && after.expires_s <= before.expires_s
                && after.gates.len() >= before.gates.len()
        }
        (Decision::Ask(_), Decision::Allow) | (Decision::Deny(_), Decision::Allow | Decision::Ask(_)) => false,
    }
}

pub(crate) fn params() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        8 => prop::sample::select(vec!["a/b", "a/x", "b", "/a", "/a/../b", "", "*"]).prop_map(|text| json!(text)),
        1 => prop::sample::select(vec![json!(null), json!(7), json!(true), json!({"a": "b"})]),
    ];
    let value = prop_oneof![4 => scalar.clone(), 1 => prop::collection::vec(scalar, 0..3).prop_map(Value::from)];
    prop::collection::btree_map(
        prop::sample::select(vec!["repo", "owner_repo", "path", "kind", "target.kind"]),
        value,
        0..5,
    )
    .prop_map(|entries| {
        let mut map: serde_json::Map<String, Value> =
            entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        if let Some(kind) = map.remove("target.kind") {
            map.insert("target".to_owned(), json!({"kind": kind}));
        }
        Value::Object(map)
    })
}

/// Returns the constraints of role and binding.
fn own_sets(world: &World) -> impl Iterator<Item = (&String, &Vec<String>)> {
    world.sets.iter().flat_map(|(_, set)| set)
}

/// Returns the constraints of the links, except for the keys that a forwarding tool ignores.
fn known_of_links(world: &World) -> impl Iterator<Item = (&String, &Vec<String>)> {
    let known = |key: &str| world.dimensions.iter().any(|dimension| dimension.key == key);
    let all = world.delegation.iter().flat_map(|link| &link.scope_constraints);
    all.filter(move |(key, _)| !world.forwards || known(key))
}

/// Matches the generated patterns with a simple recursive matcher.
fn matches_any(text: &str, patterns: &[String]) -> bool {
    fn matches(pattern: &[u8], text: &[u8]) -> bool {
        let rest = |count: usize| pattern.get(count..).unwrap_or_default();
        match (pattern.first(), text.first()) {
            (None, None) => true,
            (Some(b'*'), _) => matches(rest(1), text) || (!text.is_empty() && matches(pattern, &text[1..])),
            (Some(b'['), Some(first)) => {
                let end = pattern.iter().position(|byte| *byte == b']').expect("every set is closed");
                pattern[1..end].contains(first) && matches(rest(end + 1), &text[1..])
            }
            (Some(own), Some(first)) => own == first && matches(rest(1), &text[1..]),
            _ => false,
        }
    }
    patterns.iter().any(|pattern| matches(pattern.as_bytes(), text.as_bytes()))
}

fn applies(dimension: &ScopeDimension) -> bool {
    dimension.operation_filter.as_deref() != Some("pr.*")
}

fn rbac_permits(world: &World) -> bool {
    let allows = |list: &Option<Vec<String>>, value| list.as_ref().is_none_or(|list| matches_any(value, list));
    world.grants.iter().any(|(_, grant)| grant.allowed_operations.is_some() || grant.allowed_tools.is_some())
        && world.grants.iter().all(|(_, grant)| {
            allows(&grant.allowed_operations, "issue.read") && allows(&grant.allowed_tools, "github_list_issues")
        })
        && world.delegation.iter().all(|link| allows(&link.allowed_tools, "github_list_issues"))
}

fn expected_in_list(world: &World) -> bool {
    rbac_permits(world)
        && own_sets(world).chain(known_of_links(world)).all(|(key, patterns)| {
            let mut of_key = world.dimensions.iter().filter(|dimension| dimension.key == *key);
            !patterns.is_empty()
                && of_key.clone().next().is_some()
                && of_key.all(|dimension| {
                    !applies(dimension)
                        || dimension.param_paths.iter().any(|path| world.declared.contains(&path.as_str()))
                })
        })
}

fn expected_call(world: &World, params: &Value) -> bool {
    expected_in_list(world)
        && own_sets(world).chain(known_of_links(world)).all(|(key, patterns)| {
            world.dimensions.iter().filter(|dimension| dimension.key == *key && applies(dimension)).all(|dimension| {
                let values: Vec<Value> = dimension
                    .param_paths
                    .iter()
                    .filter_map(|path| params.pointer(&format!("/{}", path.replace('.', "/"))))
                    .flat_map(|value| match value {
                        Value::Null => Vec::new(),
                        Value::Array(elements) => elements.clone(),
                        other => vec![other.clone()],
                    })
                    .collect();
                !values.is_empty() && values.iter().all(|value| permits(dimension.match_mode, value, patterns))
            })
        })
}

fn permits(mode: MatchMode, value: &Value, patterns: &[String]) -> bool {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        _ => return false,
    };
    match mode {
        MatchMode::Pattern => matches_any(&text, patterns),
        // The reference implementation for paths is in path_properties.rs.
        MatchMode::Path => match_any_path(&text, patterns),
        MatchMode::Exact => patterns.contains(&text),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_list_agrees_with_the_reference(world in world()) {
        prop_assert_eq!(world.list() == Decision::Allow, expected_in_list(&world));
    }

    #[test]
    fn the_call_agrees_with_the_reference(world in world(), params in params()) {
        prop_assert_eq!(world.call(&params) == Decision::Allow, expected_call(&world, &params));
    }

    #[test]
    fn a_callable_tool_is_listed(world in world(), params in params()) {
        prop_assert!(world.call(&params) != Decision::Allow || world.list() == Decision::Allow);
    }

    #[test]
    fn a_further_set_or_link_never_allows_more(mut world in world(), params in params(), more in constraints(), link in link()) {
        let (list, call) = (world.list() == Decision::Allow, world.call(&params) == Decision::Allow);
        world.sets.push((SetSource::Binding, more));
        let (list_with_set, call_with_set) = (world.list() == Decision::Allow, world.call(&params) == Decision::Allow);
        prop_assert!((list || !list_with_set) && (call || !call_with_set));
        world.delegation.push(link);
        prop_assert!(list_with_set || world.list() != Decision::Allow);
        prop_assert!(call_with_set || world.call(&params) != Decision::Allow);
    }

    #[test]
    fn a_further_gate_never_allows_more(
        world in gated_world(), params in params(), more in gate(), holder in 0..4_usize, at in any::<prop::sample::Index>()
    ) {
        let (list, call) = (world.list(), world.call(&params));
        let mut with_gate = world;
        match holder {
            0 => with_gate.bot_gates.push(more),
            1 => with_gate.role_gates.push(more),
            2 => with_gate.gates.push(more),
            _ if with_gate.delegation.is_empty() => with_gate.gates.insert(0, more),
            _ => {
                let link = at.index(with_gate.delegation.len());
                with_gate.delegation[link].gates.push(more);
            }
        }
        prop_assert!(is_at_least_as_strict(&call, &with_gate.call(&params)));
        prop_assert!(is_at_least_as_strict(&list, &with_gate.list()));
        if let Decision::Deny(denial) = &call {
            // What another rule denies, is denied by the same rule.
            let of_gate = denial.rule.ends_with(".gates");
            prop_assert!(of_gate || with_gate.call(&params) == call);
        }
    }

    #[test]
    fn without_its_gates_a_world_decides_as_before(world in gated_world(), params in params()) {
        let bare = World { bot_gates: Vec::new(), role_gates: Vec::new(), gates: Vec::new(), ..world.clone() };
        let decision = world.call(&params);
        prop_assert!(is_at_least_as_strict(&bare.call(&params), &decision));
        // A call that may run is of a listed tool, and a tool for which gates ask is known to ask.
        prop_assert!(matches!(decision, Decision::Deny(_)) || world.list() == Decision::Allow);
        let may_ask = world.with_subject(|subject| may_ask(subject, &Effort::of(u64::MAX))).unwrap();
        prop_assert!(may_ask || !matches!(decision, Decision::Ask(_)));
    }

    #[test]
    fn every_refusal_is_complete(world in world(), params in params()) {
        if let Decision::Deny(denial) = world.call(&params) {
            prop_assert!(denial.message.starts_with(prefix(denial.status)));
            prop_assert!(!denial.rule.is_empty() && !denial.reason.is_empty() && !denial.smallest_change.is_empty());
        }
    }
}

/// Each world combines roles, scopes, chains of links and parameters, and is tested with four calls.
#[test]
fn a_hundred_thousand_decisions_agree_with_the_reference() {
    let config = ProptestConfig { cases: 25_000, failure_persistence: None, ..ProptestConfig::default() };
    let (allowed, denied) = (Cell::new(0_u32), Cell::new(0_u32));
    let outcome = TestRunner::new(config).run(&(world(), prop::collection::vec(params(), 4)), |(world, calls)| {
        let is_listed = world.list() == Decision::Allow;
        prop_assert_eq!(is_listed, expected_in_list(&world));
        for params in calls {
            let is_allowed = world.call(&params) == Decision::Allow;
            prop_assert_eq!(is_allowed, expected_call(&world, &params));
            prop_assert!(is_listed || !is_allowed);
            let count = if is_allowed { &allowed } else { &denied };
            count.set(count.get() + 1);
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    // The test is meaningful only if calls are often allowed and often refused.
    let (allowed, denied) = (allowed.get(), denied.get());
    assert!(
        allowed > 5_000 && denied > 5_000,
        "{allowed} calls were allowed and {denied} denied; more than 5000 of each are required"
    );
}

fn prefix(status: Status) -> &'static str {
    if status == Status::ScopeViolation {
        "Scope violation: "
    } else {
        "Permission denied: tool 'github_list_issues' is "
    }
}
