//! A permit is made by `authorize` and by nothing else.

use monstrum_guardian::{CallFacts, Delegation, Denial, Permit, SetSource, authorize};
use monstrum_types::{BindingId, BotId, RequestId, ResourceId, WorkspaceId};
use serde_json::{Value, json};

use crate::support::{World, set};

fn facts(params: &Value) -> CallFacts {
    CallFacts {
        request_id: RequestId::new(),
        workspace: WorkspaceId::new(),
        bot: BotId::new(),
        binding: BindingId::new(),
        resource: ResourceId::new(),
        plugin: "github".parse().unwrap(),
        plugin_digest: Some(format!("sha256:{}", "0".repeat(64)).parse().unwrap()),
        params: params.as_object().unwrap().clone(),
    }
}

fn ask(world: &World, facts: CallFacts) -> Result<Permit, Denial> {
    world.with_subject(|subject| authorize(subject, facts))
}

#[test]
fn a_permit_holds_what_was_judged() {
    let mut world = World::new().constrained(&[]);
    world.sets.push((SetSource::Role, set(&[("repos", &["acme/*", "\"x\""])])));
    world.delegation.push(Delegation { allowed_tools: None, scope_constraints: set(&[("repos", &["*/api"])]) });
    let params = json!({"repo": "acme/api"});
    let facts = facts(&params);
    let permit = ask(&world, facts.clone()).unwrap();
    assert_eq!(Value::Object(permit.params().clone()), params);
    assert_eq!((permit.tool().as_str(), permit.operation()), ("github_list_issues", "issue.read"));
    assert_eq!((permit.request_id(), permit.workspace(), permit.bot()), (facts.request_id, facts.workspace, facts.bot));
    assert_eq!((permit.binding(), permit.resource()), (facts.binding, facts.resource));
    assert_eq!((permit.plugin(), permit.plugin_digest()), (&facts.plugin, facts.plugin_digest.as_ref()));
    assert_eq!(permit.scope_json(), r#"[{"repos":["acme/*","\"x\""]},{"repos":["*/api"]}]"#);
    assert!(!format!("{permit:?}").contains("acme"));
}

#[test]
fn without_constraints_the_scope_is_an_empty_list() {
    assert_eq!(ask(&World::new(), facts(&json!({}))).unwrap().scope_json(), "[]");
}

#[test]
fn a_refused_call_gets_no_permit() {
    let world = World::new().constrained(&[("repos", &["acme/*"])]);
    let denial = ask(&world, facts(&json!({"repo": "other/x"}))).unwrap_err();
    assert_eq!(denial.message, "Scope violation: Repository other/x is not authorized");
    assert_eq!(ask(&World::new().granted(&[]), facts(&json!({}))).unwrap_err().rule, "grant.none");
}

#[test]
fn a_forged_permit_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
