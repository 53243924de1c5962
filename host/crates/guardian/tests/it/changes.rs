//! Tests of the suggested changes: together they allow the call, and they change nothing else.

use monstrum_guardian::{
    ChangeAction, ChangeHolder, Decision, Gate, GateAction, Grant, GrantSource, RuleChange, SetSource, changes_within,
};
use monstrum_types::Effort;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::properties::{gated_world, params};
use crate::support::{World, operations, tools};

fn changes(world: &World, params: &Value) -> Vec<RuleChange> {
    let effort = Effort::of(u64::MAX);
    world.with_subject(|subject| changes_within(subject, params.as_object().unwrap(), &effort)).unwrap()
}

/// Makes a change in the rules of the role and of the binding, as an administrator would.
fn apply(world: &mut World, change: &RuleChange) {
    let RuleChange { action, holder, field, entry } = change;
    if let Some(key) = field.strip_prefix("scope_constraints") {
        let source = if *holder == ChangeHolder::Role { SetSource::Role } else { SetSource::Binding };
        for (_, set) in world.sets.iter_mut().filter(|(of, _)| *of == source) {
            match action {
                ChangeAction::Remove => {
                    set.remove(entry);
                }
                ChangeAction::Add => {
                    let list = set.get_mut(key.trim_start_matches('.'));
                    list.into_iter().for_each(|list| list.push(entry.clone()));
                }
            }
        }
        return;
    }
    let source = if *holder == ChangeHolder::Role { GrantSource::Role } else { GrantSource::Permissions };
    if !world.grants.iter().any(|(of, _)| *of == source) {
        world.grants.push((source, Grant::default()));
    }
    for (_, grant) in world.grants.iter_mut().filter(|(of, _)| *of == source) {
        let list = match field.rsplit('.').next() {
            Some("allowed_operations") => &mut grant.allowed_operations,
            _ => &mut grant.allowed_tools,
        };
        list.get_or_insert_default().push(entry.clone());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn together_the_changes_allow_the_call(mut world in gated_world(), params in params()) {
        let suggested = changes(&world, &params);
        let before = world.call(&params);
        if suggested.is_empty() {
            return Ok(());
        }
        prop_assert!(matches!(before, Decision::Deny(_)), "an allowed call needs no change: {before:?}");
        for change in &suggested {
            apply(&mut world, change);
        }
        let after = world.call(&params);
        prop_assert!(!matches!(after, Decision::Deny(_)), "{suggested:?}: {after:?}");
    }
}

fn add(holder: ChangeHolder, field: &str, entry: &str) -> RuleChange {
    RuleChange { action: ChangeAction::Add, holder, field: field.to_owned(), entry: entry.to_owned() }
}

#[test]
fn each_list_gets_the_narrowest_entry() {
    let params = json!({"repo": "acme/[x]*"});
    let world = World::new().constrained(&[("repos", &["other/*"])]);
    let entry = add(ChangeHolder::Binding, "scope_constraints.repos", "acme/[[]x][*]");
    assert_eq!(changes(&world, &params), [entry]);
    let world =
        World::new().granted(&[(GrantSource::Role, operations(&["pr.*"])), (GrantSource::Permissions, tools(&[]))]);
    assert_eq!(
        changes(&world, &params),
        [
            add(ChangeHolder::Role, "allowed_operations", "issue.read"),
            add(ChangeHolder::Permissions, "permissions.allowed_tools", "github_list_issues"),
        ]
    );
    let world = World::new().constrained(&[("repos", &[])]);
    let params = json!({"repo": ["a/b", "c/d"]});
    let entries = ["a/b", "c/d"].map(|entry| add(ChangeHolder::Binding, "scope_constraints.repos", entry));
    assert_eq!(changes(&world, &params), entries);
}

#[test]
fn what_no_change_of_a_role_or_a_binding_allows_has_no_change() {
    let constrained = || World::new().constrained(&[("repos", &["acme/*"])]);
    assert_eq!(changes(&constrained(), &json!({})), [], "the value is missing");
    assert_eq!(changes(&constrained(), &json!({"repo": {}})), [], "the value cannot be compared");
    assert_eq!(changes(&constrained(), &json!({"repo": "x".repeat(5000)})), [], "the value is too long");
    assert_eq!(changes(&constrained(), &json!({"repo": "acme/x"})), [], "the call is allowed");
    let gated = World { gates: vec![Gate::of(GateAction::Deny)], ..constrained() };
    assert_eq!(changes(&gated, &json!({"repo": "other/x"})), [], "a gate denies the call as well");
    let many: Vec<String> = (0..20).map(|number| format!("other/{number}")).collect();
    assert_eq!(changes(&constrained(), &json!({"repo": many})), [], "more values than are collected");
}
