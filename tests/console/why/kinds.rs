//! Each kind of denial that the tests of the Guardian know.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Case, RUN, Scene, every_operation};

/// A case, the rule that denies the call, and the changes that together allow it.
type Kind = (Case, &'static str, Vec<[&'static str; 4]>);

async fn proved(kinds: Vec<Kind>) -> Result<()> {
    let scene = Scene::open().await?;
    for (case, rule, changes) in kinds {
        let proved = scene.proved(&case, rule, &changes, "success").await;
        proved.with_context(|| case.name.clone())?;
    }
    Ok(())
}

/// Adds an entry to the scope `repos` of the binding.
fn repo(entry: &'static str) -> [&'static str; 4] {
    ["add", "binding", "scope_constraints.repos", entry]
}

fn site() -> Value {
    json!({ "repo": "acme/site" })
}

#[tokio::test]
async fn denials_by_roles_and_permissions() -> Result<()> {
    const TOOL: [&str; 4] = ["add", "permissions", "permissions.allowed_tools", RUN];
    const OPERATION: [&str; 4] = ["add", "permissions", "permissions.allowed_operations", "echo.read"];
    const TOOL_OF_ROLE: [&str; 4] = ["add", "role", "allowed_tools", RUN];
    const OPERATION_OF_ROLE: [&str; 4] = ["add", "role", "allowed_operations", "echo.read"];
    let case = |name: &str, role: Value, permissions: Value| {
        Case::new(name, role, json!({ "permissions": permissions }), site())
    };
    let all = every_operation;
    let scopes = json!({ "repos": ["acme/*"], "paths": ["/srv"] });
    proved(vec![
        (case("a role without lists", json!({}), Value::Null), "grant.none", vec![TOOL]),
        (case("permissions without lists", Value::Null, json!({})), "grant.none", vec![TOOL]),
        (case("both without lists", json!({}), json!({})), "grant.none", vec![TOOL]),
        (
            case("another operation", json!({ "allowed_operations": ["other.*", "Echo.*", "echo"] }), Value::Null),
            "role.allowed_operations",
            vec![OPERATION_OF_ROLE],
        ),
        (
            case("an empty list of operations", json!({ "allowed_operations": [] }), Value::Null),
            "role.allowed_operations",
            vec![OPERATION_OF_ROLE],
        ),
        (
            case("another tool", json!({ "allowed_tools": ["jira_*"] }), Value::Null),
            "role.allowed_tools",
            vec![TOOL_OF_ROLE],
        ),
        (
            case("an empty list of tools", json!({ "allowed_tools": [] }), Value::Null),
            "role.allowed_tools",
            vec![TOOL_OF_ROLE],
        ),
        (
            case("both lists", json!({ "allowed_operations": [], "allowed_tools": ["jira_*"] }), Value::Null),
            "role.allowed_operations",
            vec![OPERATION_OF_ROLE, TOOL_OF_ROLE],
        ),
        (
            case("permissions narrow the tools", all(), json!({ "allowed_tools": ["test_echo_a*"] })),
            "permissions.allowed_tools",
            vec![TOOL],
        ),
        (
            case(
                "permissions alone narrow the operations",
                Value::Null,
                json!({ "allowed_operations": ["fetch.*"], "allowed_tools": ["*"] }),
            ),
            "permissions.allowed_operations",
            vec![OPERATION],
        ),
        (
            case("permissions do not widen", json!({ "allowed_operations": ["fetch.*"] }), all()),
            "role.allowed_operations",
            vec![OPERATION_OF_ROLE],
        ),
        (
            Case::new(
                "every rule at once",
                json!({ "allowed_operations": ["fetch.*"], "scope_constraints": { "repos": ["x/*"] } }),
                json!({ "permissions": { "allowed_tools": [] }, "scope_constraints": scopes }),
                json!({ "repo": "other/[x]", "file": "/etc/*" }),
            ),
            "role.allowed_operations",
            vec![
                OPERATION_OF_ROLE,
                TOOL,
                ["add", "role", "scope_constraints.repos", "other/[[]x]"],
                repo("other/[[]x]"),
                ["add", "binding", "scope_constraints.paths", "/etc/[*]"],
            ],
        ),
        (case("a tool that does not exist", all(), Value::Null).of("no_such_tool"), "unknown_tool", vec![]),
        (case("a switch that is off", all(), Value::Null).of("sandbox_shell"), "unknown_tool", vec![]),
    ])
    .await
}

#[tokio::test]
async fn denials_by_values_of_scopes() -> Result<()> {
    let acme = || json!({ "repos": ["acme/*"] });
    let case = |name: &str, params: Value| Case::scoped(name, &acme(), params);
    let open = |name: &str, value: Value| case(name, json!({ "owner_repo": value })).of("test_echo_open");
    let of_role = |name: &str, binding: Value| {
        let role = json!({ "allowed_operations": ["*"], "scope_constraints": acme() });
        Case::new(name, role, json!({ "scope_constraints": binding }), json!({ "repo": "other/x" }))
    };
    let long = |length: usize, end: &str| json!({ "repo": format!("{}{end}", "x".repeat(length)) });
    proved(vec![
        (case("another value", json!({ "repo": "other/x" })), "scope.repos", vec![repo("other/x")]),
        (case("case counts", json!({ "repo": "Acme/x" })), "scope.repos", vec![repo("Acme/x")]),
        (case("a value like a glob", json!({ "repo": "other/[x]*?" })), "scope.repos", vec![repo("other/[[]x][*][?]")]),
        (case("an empty text", json!({ "repo": "" })), "scope.repos", vec![repo("")]),
        (
            case("a hostile value", json!({ "repo": " a\u{202e}\u{200b}\r\n<b>&\"'\u{1b}[31m" })),
            "scope.repos",
            vec![repo(" a\u{202e}\u{200b}\r\n<b>&\"'\u{1b}[[]31m")],
        ),
        (
            case("another value by the alias", json!({ "repo": "acme/a", "owner_repo": "other/x" })),
            "scope.repos",
            vec![repo("other/x")],
        ),
        (open("an integer", json!(42)), "scope.repos", vec![repo("42")]),
        (open("a float", json!(7.0)), "scope.repos", vec![repo("7.0")]),
        (open("a boolean", json!(true)), "scope.repos", vec![repo("true")]),
        (open("a list", json!(["acme/a", "other/x", "y"])), "scope.repos", vec![repo("other/x"), repo("y")]),
        (
            of_role("a scope of the role", json!({})),
            "scope.repos",
            vec![["add", "role", "scope_constraints.repos", "other/x"]],
        ),
        (
            of_role("scopes of the role and the binding", json!({ "repos": ["*/api"] })),
            "scope.repos",
            vec![["add", "role", "scope_constraints.repos", "other/x"], repo("other/x")],
        ),
        (case("no value", json!({})), "scope.repos", vec![]),
        (open("null", Value::Null), "scope.repos", vec![]),
        (open("an object", json!({ "a": "b" })), "scope.repos", vec![]),
        (open("a list in a list", json!([["acme/a"]])), "scope.repos", vec![]),
        (open("null in a list", json!(["acme/a", null])), "scope.repos", vec![]),
        (case("a value that is too long", long(4_097, "")), "scope.repos", vec![]),
        (case("a value whose entry is too long", long(4_095, "*")), "scope.repos", vec![]),
    ])
    .await
}

#[tokio::test]
async fn the_longest_value_of_a_scope_is_added() -> Result<()> {
    let scene = Scene::open().await?;
    let longest = "x".repeat(4_096);
    let case = Case::scoped("the longest value", &json!({ "repos": ["acme/*"] }), json!({ "repo": longest }));
    let change = ["add", "binding", "scope_constraints.repos", longest.as_str()];
    scene.proved(&case, "scope.repos", &[change], "success").await
}

#[tokio::test]
async fn denials_by_paths_exact_texts_and_several_dimensions() -> Result<()> {
    const PATHS: &str = "scope_constraints.paths";
    const LABELS: &str = "scope_constraints.labels";
    let path = |name: &str, params: Value| Case::scoped(name, &json!({ "paths": ["/srv/data"] }), params);
    let kind = |name: &str, value: &str| {
        Case::scoped(name, &json!({ "kinds": ["bug", "ch*"] }), json!({ "kind": value })).of("test_echo_write")
    };
    let several = json!({ "repos": ["a"], "paths": ["/b"], "labels": ["c"] });
    let many: Vec<String> = (0..20).map(|number| format!("label {number}")).collect();
    proved(vec![
        (
            path("a path like a glob", json!({ "file": "/etc/*" })),
            "scope.paths",
            vec![["add", "binding", PATHS, "/etc/[*]"]],
        ),
        (
            path("a path that leads out", json!({ "file": "/srv/data/a", "options": { "dir": "/srv/data/../x" } })),
            "scope.paths",
            vec![["add", "binding", PATHS, "/srv/data/../x"]],
        ),
        (path("a path out of its start", json!({ "file": "../x" })), "scope.paths", vec![]),
        (path("a path with a NUL", json!({ "file": "/srv/data/a\0.txt" })), "scope.paths", vec![]),
        (kind("a star is a star", "*"), "scope.kinds", vec![["add", "binding", "scope_constraints.kinds", "*"]]),
        (kind("no glob", "chore"), "scope.kinds", vec![["add", "binding", "scope_constraints.kinds", "chore"]]),
        (
            Case::scoped("several dimensions", &several, json!({ "repo": "r", "file": "/f", "labels": ["c", "l"] })),
            "scope.repos",
            vec![repo("r"), ["add", "binding", PATHS, "/f"], ["add", "binding", LABELS, "l"]],
        ),
        (
            Case::scoped("more values than changes", &json!({ "labels": ["x"] }), json!({ "labels": many })),
            "scope.labels",
            vec![],
        ),
        (
            Case::scoped("an empty list and two values", &json!({ "labels": [] }), json!({ "labels": ["a", "b*"] })),
            "scope.labels",
            vec![["add", "binding", LABELS, "a"], ["add", "binding", LABELS, "b[*]"]],
        ),
        (Case::scoped("an empty list and no value", &json!({ "labels": [] }), json!({})), "scope.labels", vec![]),
        (
            Case::scoped("an empty list for other operations", &json!({ "kinds": [] }), json!({ "kind": "bug" })),
            "scope.kinds",
            vec![],
        ),
        (
            Case::new(
                "empty lists of the role and the binding",
                json!({ "allowed_operations": ["*"], "scope_constraints": { "repos": [] } }),
                json!({ "scope_constraints": { "repos": [] } }),
                site(),
            ),
            "scope.repos",
            vec![["add", "role", "scope_constraints.repos", "acme/site"], repo("acme/site")],
        ),
    ])
    .await
}

#[tokio::test]
async fn denials_by_scopes_that_the_tool_does_not_have() -> Result<()> {
    let fetch = || json!({ "path": "/echo" });
    let role = |scopes: Value| json!({ "allowed_operations": ["*"], "scope_constraints": scopes });
    let own = json!({ "scope_constraints": { "repos": ["*"] } });
    proved(vec![
        (
            Case::scoped("scopes of other tools", &json!({ "repos": ["*"], "labels": ["a"] }), fetch())
                .of("test_echo_fetch"),
            "scope.repos",
            vec![
                ["remove", "binding", "scope_constraints", "repos"],
                ["remove", "binding", "scope_constraints", "labels"],
            ],
        ),
        (
            Case::new("scopes of other tools twice", role(json!({ "repos": ["*"] })), own, fetch())
                .of("test_echo_fetch"),
            "scope.repos",
            vec![["remove", "role", "scope_constraints", "repos"], ["remove", "binding", "scope_constraints", "repos"]],
        ),
        (
            Case::new("an unknown key", role(json!({ "orgs": ["*"], "repos": ["acme/*"] })), json!({}), site()),
            "scope.unknown_key",
            vec![["remove", "role", "scope_constraints", "orgs"]],
        ),
    ])
    .await
}

#[tokio::test]
async fn denials_by_gates() -> Result<()> {
    let deny = json!({ "action": "deny", "reason": "not\u{202e} <b>now" });
    let denying = json!([deny]);
    let when = json!([{ "action": "deny", "when": { "repos": ["acme/*"] } }]);
    let by_bot = Case {
        bot: json!({ "gates": denying }),
        ..Case::new("a gate of the bot", every_operation(), json!({}), site())
    };
    let by_role = json!({ "allowed_operations": ["*"], "gates": when });
    let scoped = json!({ "scope_constraints": { "repos": ["x"] }, "gates": when });
    proved(vec![
        (by_bot, "bot.gates", vec![]),
        (Case::new("a gate of the role", by_role, json!({}), site()), "role.gates", vec![]),
        (
            Case::new("a gate of the binding", every_operation(), json!({ "gates": denying }), site()),
            "binding.gates",
            vec![],
        ),
        (Case::new("a scope and a gate", every_operation(), scoped, site()), "scope.repos", vec![]),
    ])
    .await?;
    // A change does not pass a gate that asks.
    let asking = json!({ "scope_constraints": { "repos": ["x"] }, "gates": [{ "action": "ask" }] });
    let case = Case::new("a scope and a gate that asks", every_operation(), asking, site());
    Scene::open().await?.proved(&case, "scope.repos", &[repo("acme/site")], "approval_required").await
}
