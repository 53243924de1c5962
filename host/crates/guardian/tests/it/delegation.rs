//! Delegation: each link restricts permissions, and the restrictions accumulate.

use monstrum_guardian::{Decision, Delegation, Gate, GateAction};
use monstrum_types::Status;
use serde_json::json;

use crate::support::{World, denial, set, texts};

fn link(tools: Option<&[&str]>, entries: &[(&str, &[&str])]) -> Delegation {
    Delegation { allowed_tools: tools.map(texts), scope_constraints: set(entries), gates: Vec::new() }
}

fn under(links: Vec<Delegation>) -> World {
    World { delegation: links, ..World::new() }
}

#[test]
fn an_empty_link_does_not_restrict() {
    assert_eq!(under(vec![link(None, &[])]).call(&json!({"repo": "a/b"})), Decision::Allow);
}

#[test]
fn every_link_must_allow_the_tool() {
    let any: Option<&[&str]> = Some(&["*"]);
    assert_eq!(under(vec![link(any, &[]), link(Some(&["github_list_*"]), &[])]).list(), Decision::Allow);
    for links in [vec![link(Some(&["jira_*"]), &[]), link(any, &[])], vec![link(any, &[]), link(Some(&[]), &[])]] {
        let denied = denial(under(links).list());
        assert_eq!((denied.rule.as_str(), denied.status), ("delegation.allowed_tools", Status::PermissionDenied));
        assert_eq!(denied.message, "Permission denied: tool 'github_list_issues' is not available to this bot");
    }
}

#[test]
fn constraints_accumulate_along_the_chain() {
    let links = vec![link(None, &[("repos", &["public-*/*"])]), link(None, &[("repos", &["*/api", "*/web"])])];
    let world = under(links).constrained(&[("repos", &["public-org/*"])]);
    assert_eq!(world.call(&json!({"repo": "public-org/api"})), Decision::Allow);
    for repo in ["public-org/db", "public-x/api", "acme/api"] {
        assert_eq!(world.refusal(&json!({"repo": repo})).rule, "scope.repos", "{repo}");
    }
    assert_eq!(
        world.refusal(&json!({"repo": "public-org/db"})).reason,
        "value `public-org/db` does not match any entry in scope_constraints.repos of link 2 of the delegation"
    );
}

#[test]
fn two_links_without_a_common_value_deny_everything() {
    let world = under(vec![link(None, &[("repos", &["a/*"])]), link(None, &[("repos", &["b/*"])])]);
    for repo in ["a/x", "b/x", "a/*", "*"] {
        assert_eq!(world.refusal(&json!({"repo": repo})).rule, "scope.repos", "{repo}");
    }
}

#[test]
fn a_link_with_an_empty_list_or_an_unknown_key_denies() {
    assert_eq!(denial(under(vec![link(None, &[("repos", &[])])]).list()).rule, "scope.repos");
    assert_eq!(denial(under(vec![link(None, &[("projects", &["X"])])]).list()).rule, "scope.unknown_key");
}

#[test]
fn a_forwarding_tool_ignores_keys_of_links_that_it_does_not_have() {
    let links = || vec![link(None, &[("projects", &["X"])]), link(None, &[("repos", &["acme/*"])])];
    let forwarding = |world: World| World { forwards: true, ..world };
    let world = forwarding(under(links()));
    assert_eq!((world.list(), world.call(&json!({"repo": "acme/x"}))), (Decision::Allow, Decision::Allow));
    // Link constraints still apply if the forwarding tool has their dimension. The tool lists of the links and the
    // constraint sets of the role and the binding also still apply.
    assert_eq!(world.refusal(&json!({"repo": "other/x"})).rule, "scope.repos");
    assert_eq!(denial(forwarding(under(vec![link(Some(&["jira_*"]), &[])])).list()).rule, "delegation.allowed_tools");
    assert_eq!(denial(forwarding(under(vec![link(None, &[("repos", &[])])])).list()).rule, "scope.repos");
    let own = forwarding(World::new().constrained(&[("projects", &["X"])]));
    assert_eq!(denial(own.list()).rule, "scope.unknown_key");
    assert_eq!(denial(under(links()).list()).rule, "scope.unknown_key");
}

#[test]
fn the_lists_of_a_link_do_not_restrict_a_step_of_the_bot_itself() {
    let links = || vec![link(Some(&["jira_*"]), &[("repos", &["acme/*"])]), link(Some(&[]), &[("projects", &[])])];
    let own_step = |world: World| World { is_own_step: true, ..world };
    let world = own_step(under(links()));
    assert_eq!((world.list(), world.call(&json!({"repo": "other/x"}))), (Decision::Allow, Decision::Allow));
    // The lists of the role and the binding apply, and so do the gates of a link that name the step.
    let own = own_step(under(links()).constrained(&[("repos", &["acme/*"])]));
    assert_eq!(own.refusal(&json!({"repo": "other/x"})).rule, "scope.repos");
    let gated = |tools: Option<Vec<String>>| {
        under(vec![Delegation { gates: vec![Gate { tools, ..Gate::of(GateAction::Deny) }], ..link(None, &[]) }])
    };
    let (named, params) = (Some(vec![own.tool.to_owned()]), json!({"repo": "a/b"}));
    assert_eq!(own_step(gated(named)).refusal(&params).rule, "delegation.gates");
    assert_eq!(own_step(gated(None)).call(&params), Decision::Allow);
    assert_eq!(gated(None).refusal(&params).rule, "delegation.gates");
    assert_eq!(denial(under(links()).list()).rule, "delegation.allowed_tools");
}

#[test]
fn a_delegation_grants_nothing() {
    let world = World { delegation: vec![link(Some(&["*"]), &[])], ..World::new().granted(&[]) };
    assert_eq!(denial(world.list()).rule, "grant.none");
}

#[test]
fn links_reject_unknown_fields() {
    assert!(serde_json::from_value::<Delegation>(json!({"allowed_operations": ["*"]})).is_err());
    assert_eq!(serde_json::from_value::<Delegation>(json!({})).unwrap(), Delegation::default());
}
