//! Permits are created for allowed calls only.

use monstrum_guardian::{
    Authorized, CallContext, CallFacts, Consent, Delegation, Denial, Gate, GateAction, PendingPermit, Permit,
    SetSource, ToolRules, authorize, authorize_check, authorize_function,
};
use monstrum_types::{ApprovalId, BindingId, BotId, Digest, Effort, RequestId, ResourceId, WorkspaceId};
use serde_json::{Value, json};

use crate::support::{World, set};

fn facts(params: &Value) -> CallFacts {
    CallFacts {
        request_id: RequestId::new(),
        workspace: WorkspaceId::new(),
        bot: Some(BotId::new()),
        binding: Some(BindingId::new()),
        resource: Some(ResourceId::new()),
        plugin: "github".parse().unwrap(),
        plugin_digest: Some(format!("sha256:{}", "0".repeat(64)).parse().unwrap()),
        params: params.as_object().unwrap().clone().into(),
    }
}

fn ask(world: &World, facts: CallFacts) -> Result<Permit, Denial> {
    match authorized(world, facts)? {
        Authorized::Permitted(permit) => Ok(permit),
        Authorized::Asks(pending) => panic!("gates ask: {pending:?}"),
    }
}

fn authorized(world: &World, facts: CallFacts) -> Result<Authorized, Denial> {
    world.with_subject(|subject| authorize(subject, facts, &Effort::of(u64::MAX))).unwrap()
}

fn pending(facts: CallFacts) -> Box<PendingPermit> {
    match authorized(&World { gates: vec![Gate::of(GateAction::Ask)], ..World::new() }, facts) {
        Ok(Authorized::Asks(pending)) => pending,
        other => panic!("expected a pending permit, but got {other:?}"),
    }
}

fn sha256(digit: &str) -> Digest {
    format!("sha256:{}", digit.repeat(64)).parse().unwrap()
}

#[test]
fn a_permit_holds_the_checked_call() {
    let mut world = World::new().constrained(&[]);
    world.sets.push((SetSource::Role, set(&[("repos", &["acme/*", "\"x\""])])));
    world.delegation.push(Delegation { scope_constraints: set(&[("repos", &["*/api"])]), ..Delegation::default() });
    let params = json!({"repo": "acme/api"});
    let facts = facts(&params);
    let permit = ask(&world, facts.clone()).unwrap();
    assert_eq!(Value::Object(permit.params().clone()), params);
    assert_eq!((permit.tool(), permit.operation()), ("github_list_issues", "issue.read"));
    assert_eq!((permit.request_id(), permit.workspace(), permit.bot()), (facts.request_id, facts.workspace, facts.bot));
    assert_eq!((permit.binding(), permit.resource()), (facts.binding, facts.resource));
    assert_eq!((permit.plugin(), permit.plugin_digest()), (&facts.plugin, facts.plugin_digest.as_ref()));
    assert_eq!(permit.scope_json(), r#"[{"repos":["acme/*","\"x\""]},{"repos":["*/api"]}]"#);
    assert!(!format!("{permit:?}").contains("acme"));
    assert_eq!(permit.approval(), None);
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

/// A call with a bot or a binding is subject to roles and scopes.
#[test]
fn calls_of_a_bot_are_not_permitted_without_roles() {
    let of_bot = facts(&json!({"a": 1}));
    let of_no_bot = || CallFacts { bot: None, binding: None, ..facts(&json!({"a": 1})) };
    let tool = ToolRules::new("github_get_me".parse().unwrap(), "user.read".to_owned(), &[], |_| true);
    let (name, other) = ("github_get_me".parse().unwrap(), "github_drop".parse().unwrap());
    let params = json!({"a": 1}).as_object().unwrap().clone();
    let check = |name, params: &Value, facts| authorize_check(&tool, (name, params.as_object().unwrap()), facts);
    assert!(authorize_function("github", "sync", of_bot.clone()).is_none());
    assert!(authorize_function("github", "sync", CallFacts { bot: None, ..of_bot.clone() }).is_none());
    let permit = authorize_function("github", "sync", of_no_bot()).unwrap();
    assert_eq!(
        (permit.tool(), permit.operation(), permit.bot()),
        ("platform.github.sync", "platform.github.sync", None)
    );
    let params = Value::Object(params);
    assert_eq!(check(&name, &params, of_no_bot()).unwrap().operation(), "user.read");
    for refused in [
        check(&other, &params, of_no_bot()),
        check(&name, &json!({"a": 2}), of_no_bot()),
        check(&name, &params, of_bot.clone()),
        check(&name, &params, CallFacts { binding: None, ..of_bot.clone() }),
        check(&name, &params, CallFacts { bot: None, ..of_bot }),
        check(&name, &params, CallFacts { resource: None, ..of_no_bot() }),
    ] {
        assert!(refused.is_none());
    }
}

#[test]
fn a_consent_permits_exactly_the_call_that_was_approved() {
    let call = facts(&json!({"repo": "acme/site"}));
    let context =
        || CallContext { user: Some(("app", "7")), links: Vec::new(), attached: None, definition: sha256("d") };
    let asked = pending(call.clone());
    assert_eq!((asked.tool(), asked.operation(), asked.asked().expires_s), ("github_list_issues", "issue.read", 3600));
    assert!(!format!("{asked:?}").contains("acme"), "a log does not contain parameters");
    let consent = Consent { approval: ApprovalId::new(), digest: asked.digest(&context()) };
    let other = Consent { approval: consent.approval, digest: sha256("0") };
    let asked = asked.with_consent(&other, &context()).unwrap_err();
    let permit = asked.with_consent(&consent, &context()).unwrap();
    assert_eq!((permit.approval(), permit.request_id()), (Some(consent.approval), call.request_id));
    // The same call by another request needs no other consent.
    let again = CallFacts { request_id: RequestId::new(), binding: Some(BindingId::new()), ..call.clone() };
    assert!(pending(again).with_consent(&consent, &context()).is_ok());

    let changed = |params: &Value| CallFacts { params: params.as_object().unwrap().clone().into(), ..call.clone() };
    for facts in [
        changed(&json!({"repo": "acme/site2"})),
        changed(&json!({"repo": "acme/site", "more": null})),
        CallFacts { workspace: WorkspaceId::new(), ..call.clone() },
        CallFacts { bot: Some(BotId::new()), ..call.clone() },
        CallFacts { resource: Some(ResourceId::new()), ..call.clone() },
    ] {
        assert!(pending(facts).with_consent(&consent, &context()).is_err());
    }
    let link = (BindingId::new(), BotId::new(), BotId::new());
    for context in [
        CallContext { user: None, ..context() },
        CallContext { user: Some(("app", "8")), ..context() },
        CallContext { user: Some(("other", "7")), ..context() },
        CallContext { links: vec![link], ..context() },
        CallContext { attached: Some(sha256("a")), ..context() },
        CallContext { definition: sha256("e"), ..context() },
    ] {
        assert!(pending(call.clone()).with_consent(&consent, &context).is_err(), "{context:?}");
    }
}

/// Digests use the exact value of an integer, although a double cannot represent it.
#[test]
fn neighbouring_integers_are_different_calls() {
    let context = CallContext { user: None, links: Vec::new(), attached: None, definition: sha256("d") };
    let call = facts(&json!({}));
    let digest = |params: Value| {
        let facts = CallFacts { params: params.as_object().unwrap().clone().into(), ..call.clone() };
        pending(facts).digest(&context)
    };
    assert_ne!(digest(json!({"n": 9_007_199_254_740_992_u64})), digest(json!({"n": 9_007_199_254_740_993_u64})));
    assert_eq!(digest(json!({"n": 1, "m": 2})), digest(json!({"m": 2.0, "n": 1.0})));
    assert_ne!(digest(json!({"n": 1})), digest(json!({"n": "1"})));
}

#[test]
fn a_forged_permit_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
