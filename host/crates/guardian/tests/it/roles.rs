//! Tests of role-based access control: the tools that a binding lists and allows.

use monstrum_guardian::{Decision, Denial, Grant, GrantSource, Question, decide};
use monstrum_types::{Code, Status};
use serde_json::json;

use crate::support::{World, denial, operations, tools};

use GrantSource::{Permissions, Role};

const HIDDEN: &str = "Permission denied: tool 'github_list_issues' is not available to this bot";

fn grant(operations_list: &[&str], tools_list: &[&str]) -> Grant {
    Grant { allowed_tools: tools(tools_list).allowed_tools, ..operations(operations_list) }
}

#[test]
fn grants() {
    let nothing = Grant::default();
    for (name, grants, expected) in [
        ("no grant at all", vec![], Err("grant.none")),
        ("a role without lists", vec![(Role, nothing.clone())], Err("grant.none")),
        ("permissions without lists", vec![(Permissions, nothing.clone())], Err("grant.none")),
        ("both without lists", vec![(Role, nothing.clone()), (Permissions, nothing.clone())], Err("grant.none")),
        ("an operation", vec![(Role, operations(&["issue.read"]))], Ok(())),
        ("a glob over operations", vec![(Role, operations(&["issue.*"]))], Ok(())),
        ("the second entry", vec![(Role, operations(&["pr.*", "issue.*"]))], Ok(())),
        ("another operation", vec![(Role, operations(&["issue.write"]))], Err("role.allowed_operations")),
        ("an empty list of operations", vec![(Role, operations(&[]))], Err("role.allowed_operations")),
        ("case counts", vec![(Role, operations(&["Issue.*"]))], Err("role.allowed_operations")),
        ("not a prefix", vec![(Role, operations(&["issue"]))], Err("role.allowed_operations")),
        ("not a regular expression", vec![(Role, operations(&["^issue.*"]))], Err("role.allowed_operations")),
        ("a tool", vec![(Role, tools(&["github_list_*"]))], Ok(())),
        ("another tool", vec![(Role, tools(&["github_get_*"]))], Err("role.allowed_tools")),
        ("an empty list of tools", vec![(Role, tools(&[]))], Err("role.allowed_tools")),
        ("both lists", vec![(Role, grant(&["issue.*"], &["github_*"]))], Ok(())),
        ("both lists, one refuses", vec![(Role, grant(&["issue.*"], &["jira_*"]))], Err("role.allowed_tools")),
        (
            "both lists, the other refuses",
            vec![(Role, grant(&["pr.*"], &["github_*"]))],
            Err("role.allowed_operations"),
        ),
        (
            "permissions narrow the role",
            vec![(Role, operations(&["issue.*"])), (Permissions, tools(&["github_get_*"]))],
            Err("permissions.allowed_tools"),
        ),
        (
            "permissions do not widen the role",
            vec![(Role, operations(&["issue.write"])), (Permissions, operations(&["*"]))],
            Err("role.allowed_operations"),
        ),
        ("both agree", vec![(Role, operations(&["issue.*"])), (Permissions, operations(&["*.read"]))], Ok(())),
        (
            "permissions without lists do not narrow",
            vec![(Role, operations(&["*"])), (Permissions, nothing.clone())],
            Ok(()),
        ),
        ("a role that only carries scopes", vec![(Role, nothing), (Permissions, operations(&["issue.*"]))], Ok(())),
    ] {
        let world = World::new().granted(&grants);
        let list = world.list();
        assert_eq!(list, world.call(&json!({"repo": "acme/api"})), "{name}");
        match expected {
            Ok(()) => assert_eq!(list, Decision::Allow, "{name}"),
            Err(rule) => {
                let denial = denial(list);
                assert_eq!((denial.rule.as_str(), denial.message.as_str()), (rule, HIDDEN), "{name}");
                assert_eq!((denial.status, denial.code()), (Status::PermissionDenied, Code::Denied), "{name}");
            }
        }
    }
}

#[test]
fn a_hidden_tool_gets_the_answer_of_an_unknown_tool() {
    let hidden = World::new().granted(&[(Role, operations(&["pr.*"]))]).refusal(&json!({}));
    let unknown = Denial::unknown_tool("github_list_issues");
    assert_eq!((hidden.status, hidden.code(), &hidden.message), (unknown.status, unknown.code(), &unknown.message));
    assert_ne!(hidden.rule, unknown.rule);
}

#[test]
fn a_denial_by_roles_does_not_reveal_scopes() {
    let world = World::new().granted(&[(Role, operations(&["pr.*"]))]).constrained(&[("repos", &[])]);
    let denial = world.refusal(&json!({"repo": "secret/repo"}));
    assert_eq!((denial.rule.as_str(), denial.message.as_str()), ("role.allowed_operations", HIDDEN));
}

#[test]
fn the_smallest_change_lists_all_denials() {
    let world = World::new()
        .granted(&[(Role, operations(&["pr.*"])), (Permissions, tools(&["github_get_*"]))])
        .constrained(&[("repos", &["acme/*"])]);
    let denial = world.refusal(&json!({"repo": "other/[x]"}));
    assert_eq!(denial.reason, "operation `issue.read` does not match any entry in allowed_operations of the role");
    assert_eq!(
        denial.smallest_change,
        "add `issue.read` to allowed_operations of the role; \
         add `github_list_issues` to allowed_tools of the binding's permissions; \
         add `other/[[]x]` to scope_constraints.repos of the binding"
    );
}

#[test]
fn applying_the_smallest_change_allows_the_call() {
    let params = json!({"repo": "other/*"});
    let denied = World::new().granted(&[(Role, operations(&["pr.*"]))]).constrained(&[("repos", &["acme/*"])]);
    assert!(denied.refusal(&params).smallest_change.contains("`other/[*]`"));
    let changed = World::new()
        .granted(&[(Role, operations(&["pr.*", "issue.read"]))])
        .constrained(&[("repos", &["acme/*", "other/[*]"])]);
    assert_eq!(changed.call(&params), Decision::Allow);
    assert_eq!(changed.refusal(&json!({"repo": "other/x"})).rule, "scope.repos");
}

#[test]
fn grants_reject_unknown_fields() {
    assert!(serde_json::from_value::<Grant>(json!({"allowed_operation": ["*"]})).is_err());
    let grant: Grant = serde_json::from_value(json!({"allowed_operations": ["*"], "allowed_tools": null})).unwrap();
    assert_eq!(grant, operations(&["*"]));
    assert_eq!(serde_json::to_value(&grant).unwrap(), json!({"allowed_operations": ["*"]}));
}

#[test]
fn a_binding_without_grants_permits_nothing() {
    World::new()
        .granted(&[])
        .with_subject(|subject| assert!(matches!(decide(subject, Question::List), Decision::Deny(_))));
}
