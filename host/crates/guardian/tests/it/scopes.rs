//! Tests of attribute-based access control: the parameter values that scopes permit.

use monstrum_guardian::{Decision, Grant, GrantSource, SetSource};
use monstrum_manifest::{MatchMode, ScopeDimension};
use monstrum_types::{Code, Labels, Status};
use serde_json::{Value, json};

use crate::support::{World, denial, dimension, operations, repos, set};

/// The name of a case, its parameters, and the rule and message of the expected denial; `None` if the call is allowed.
type Case<'a> = (&'a str, Value, Option<(&'a str, &'a str)>);

fn check(world: &World, cases: &[Case<'_>]) {
    for (name, params, expected) in cases {
        match (world.call(params), expected) {
            (Decision::Allow, None) => {}
            (Decision::Deny(denial), Some((rule, message))) => {
                assert_eq!((denial.rule.as_str(), denial.message.as_str()), (*rule, *message), "{name}");
                assert_eq!((denial.status, denial.code()), (Status::ScopeViolation, Code::Scope), "{name}");
                assert!(!denial.reason.is_empty() && !denial.smallest_change.is_empty(), "{name}");
            }
            (decision, expected) => panic!("{name}: {decision:?}, expected {expected:?}"),
        }
    }
}

/// Returns an expected denial with the rule `scope.repos` and this message.
fn refused(message: &'static str) -> Option<(&'static str, &'static str)> {
    Some(("scope.repos", message))
}

#[test]
fn values_in_pattern_mode() {
    let world = World::new().constrained(&[("repos", &["acme/*", "7", "true", "1.5"])]);
    let other = refused("Scope violation: Repository other/x is not authorized");
    let missing = refused("Scope violation: Repository (missing) is not authorized");
    check(
        &world,
        &[
            ("a match", json!({"repo": "acme/api"}), None),
            ("no match", json!({"repo": "other/x"}), other),
            (
                "case counts",
                json!({"repo": "Acme/api"}),
                refused("Scope violation: Repository Acme/api is not authorized"),
            ),
            ("the text is not normalised", json!({"repo": "acme/../../user"}), None),
            ("nor decoded", json!({"repo": "acme/..%2f.."}), None),
            (
                "a traversal that begins outside",
                json!({"repo": "other/../acme/api"}),
                refused("Scope violation: Repository other/../acme/api is not authorized"),
            ),
            (
                "a longer owner",
                json!({"repo": "acme-evil/x"}),
                refused("Scope violation: Repository acme-evil/x is not authorized"),
            ),
            (
                "a space before",
                json!({"repo": " acme/x"}),
                refused("Scope violation: Repository  acme/x is not authorized"),
            ),
            (
                "a line break before",
                json!({"repo": "\nacme/x"}),
                refused("Scope violation: Repository \\nacme/x is not authorized"),
            ),
            (
                "an allowed line after another",
                json!({"repo": "other\nacme/x"}),
                refused("Scope violation: Repository other\\nacme/x is not authorized"),
            ),
            (
                "a letter that looks the same",
                json!({"repo": "асme/x"}),
                refused("Scope violation: Repository асme/x is not authorized"),
            ),
            ("the pattern as value", json!({"repo": "*"}), refused("Scope violation: Repository * is not authorized")),
            ("the empty string", json!({"repo": ""}), refused("Scope violation: Repository  is not authorized")),
            ("an integer by its JSON text", json!({"repo": 7}), None),
            ("another integer", json!({"repo": 70}), refused("Scope violation: Repository 70 is not authorized")),
            (
                "an integer as a float",
                json!({"repo": 7.0}),
                refused("Scope violation: Repository 7.0 is not authorized"),
            ),
            ("a float", json!({"repo": 1.50}), None),
            ("a boolean by its JSON text", json!({"repo": true}), None),
            ("another boolean", json!({"repo": false}), refused("Scope violation: Repository false is not authorized")),
            ("null is absent", json!({"repo": null}), missing),
            ("the call omits it", json!({}), missing),
            ("an empty list has no value", json!({"repo": []}), missing),
            ("null and an empty list", json!({"repo": null, "owner_repo": []}), missing),
            ("a list", json!({"repo": ["acme/a", "acme/b"]}), None),
            ("a list with one stranger", json!({"repo": ["acme/a", "other/x"]}), other),
            (
                "a list in a list",
                json!({"repo": ["acme/a", ["acme/b"]]}),
                refused(r#"Scope violation: Repository ["acme/b"] is not authorized"#),
            ),
            (
                "null in a list",
                json!({"repo": ["acme/a", null]}),
                refused("Scope violation: Repository null is not authorized"),
            ),
            (
                "an object in a list",
                json!({"repo": [{"name": "acme/a"}]}),
                refused(r#"Scope violation: Repository {"name":"acme/a"} is not authorized"#),
            ),
            (
                "an object",
                json!({"repo": {"name": "acme/a"}}),
                refused(r#"Scope violation: Repository {"name":"acme/a"} is not authorized"#),
            ),
            ("the alias alone", json!({"owner_repo": "acme/a"}), None),
            ("the alias with a stranger", json!({"owner_repo": "other/x"}), other),
            ("the alias smuggles a value past", json!({"repo": "acme/a", "owner_repo": "other/x"}), other),
            ("the first is checked too", json!({"repo": "other/x", "owner_repo": "acme/a"}), other),
            ("a null beside a match", json!({"repo": "acme/a", "owner_repo": null}), None),
            ("an empty list beside a match", json!({"repo": "acme/a", "owner_repo": []}), None),
            ("another parameter", json!({"repo": "acme/a", "Repo": "other/x"}), None),
            (
                "a placeholder as value",
                json!({"repo": "{value}"}),
                refused("Scope violation: Repository {value} is not authorized"),
            ),
        ],
    );
}

#[test]
fn values_in_exact_mode() {
    let world = World { dimensions: vec![dimension("repos", &["repo"], MatchMode::Exact)], ..World::new() };
    let world = world.constrained(&[("repos", &["Bug", "*", "a/../b", ""])]);
    check(
        &world,
        &[
            ("the same text", json!({"repo": "Bug"}), None),
            ("a star is a star", json!({"repo": "*"}), None),
            ("not a glob", json!({"repo": "Task"}), refused("Scope violation: repos Task is not authorized")),
            ("case counts", json!({"repo": "bug"}), refused("Scope violation: repos bug is not authorized")),
            ("not normalised", json!({"repo": "b"}), refused("Scope violation: repos b is not authorized")),
            ("the text with dots", json!({"repo": "a/../b"}), None),
            ("the empty string is an entry", json!({"repo": ""}), None),
        ],
    );
}

#[test]
fn values_in_path_mode() {
    let world = World { dimensions: vec![dimension("repos", &["repo"], MatchMode::Path)], ..World::new() };
    let world = world.constrained(&[("repos", &["/srv/data", "/tmp/*", "docs/**"])]);
    check(
        &world,
        &[
            ("below", json!({"repo": "/srv/data/a/b"}), None),
            ("traversal inside", json!({"repo": "/srv/data/a/../b"}), None),
            (
                "traversal out",
                json!({"repo": "/srv/data/../../etc"}),
                refused("Scope violation: repos /srv/data/../../etc is not authorized"),
            ),
            (
                "a longer name",
                json!({"repo": "/srv/data2"}),
                refused("Scope violation: repos /srv/data2 is not authorized"),
            ),
            ("two levels", json!({"repo": "/tmp/a/b"}), refused("Scope violation: repos /tmp/a/b is not authorized")),
            ("relative", json!({"repo": "docs/a/b"}), None),
            (
                "relative is not absolute",
                json!({"repo": "srv/data/a"}),
                refused("Scope violation: repos srv/data/a is not authorized"),
            ),
            (
                "out of a relative start",
                json!({"repo": "docs/../../x"}),
                refused("Scope violation: repos docs/../../x is not authorized"),
            ),
            (
                "a NUL",
                json!({"repo": "/srv/data/a\0.txt"}),
                refused("Scope violation: repos /srv/data/a\\0.txt is not authorized"),
            ),
            ("the empty string", json!({"repo": ""}), refused("Scope violation: repos  is not authorized")),
        ],
    );
    let out = world.refusal(&json!({"repo": "../x"}));
    assert!(out.smallest_change.starts_with("none: no entry of scope_constraints.repos of the binding can"), "{out:?}");
    let etc = world.refusal(&json!({"repo": "/etc/*"}));
    assert_eq!(
        etc.smallest_change,
        "add `/etc/[*]` to scope_constraints.repos of the binding, which also permits its descendants"
    );
}

#[test]
fn dotted_paths() {
    let world = World {
        dimensions: vec![dimension("repos", &["target.repo", "targets.repos"], MatchMode::Pattern)],
        declared: vec!["target.repo"],
        ..World::new()
    };
    let world = world.constrained(&[("repos", &["acme/*"])]);
    let other = refused("Scope violation: repos other/x is not authorized");
    check(
        &world,
        &[
            ("inside", json!({"target": {"repo": "acme/a"}}), None),
            ("a stranger inside", json!({"target": {"repo": "other/x"}}), other),
            ("a list inside", json!({"targets": {"repos": ["acme/a", "other/x"]}}), other),
            ("a literal key with a dot", json!({"target.repo": "other/x", "target": {"repo": "acme/a"}}), other),
            ("a literal key alone", json!({"target.repo": "acme/a"}), None),
            ("nothing inside", json!({"target": {}}), refused("Scope violation: repos (missing) is not authorized")),
            (
                "null on the way is absent",
                json!({"target": null}),
                refused("Scope violation: repos (missing) is not authorized"),
            ),
            (
                "text on the way",
                json!({"target": "acme/a"}),
                refused("Scope violation: repos acme/a is not authorized"),
            ),
            (
                "a list on the way",
                json!({"target": [{"repo": "acme/a"}]}),
                refused(r#"Scope violation: repos [{"repo":"acme/a"}] is not authorized"#),
            ),
            (
                "text on the way beside a match",
                json!({"target": "x", "targets": {"repos": "acme/a"}}),
                refused("Scope violation: repos x is not authorized"),
            ),
        ],
    );
}

#[test]
fn a_value_must_match_in_every_set() {
    let mut world = World::new().constrained(&[("repos", &["*/api"])]);
    world.sets.push((SetSource::Role, set(&[("repos", &["acme/*"])])));
    assert_eq!(world.call(&json!({"repo": "acme/api"})), Decision::Allow);
    for repo in ["acme/web", "other/api", "other/web"] {
        assert_eq!(world.refusal(&json!({"repo": repo})).rule, "scope.repos", "{repo}");
    }
    assert_eq!(
        world.refusal(&json!({"repo": "x/y"})).smallest_change,
        "add `x/y` to scope_constraints.repos of the binding; add `x/y` to scope_constraints.repos of the role"
    );
}

#[test]
fn an_unconstrained_dimension_allows_all_values() {
    assert_eq!(World::new().call(&json!({"repo": {"any": "thing"}})), Decision::Allow);
    assert_eq!(World::new().constrained(&[]).call(&json!({})), Decision::Allow);
}

#[test]
fn an_empty_list_denies_every_call_and_hides_the_tool() {
    let world = World::new().constrained(&[("repos", &[])]);
    assert_eq!(denial(world.list()).message, "Scope violation: Repository (missing) is not authorized");
    let denied = world.refusal(&json!({"repo": "acme/api"}));
    assert_eq!(
        (denied.rule.as_str(), denied.message.as_str()),
        ("scope.repos", "Scope violation: Repository acme/api is not authorized")
    );
    assert_eq!(denied.reason, "scope_constraints.repos of the binding is an empty list, which permits no value");
    assert_eq!(denied.smallest_change, "add `acme/api` to scope_constraints.repos of the binding");

    let for_others = ScopeDimension { operation_filter: Some("pr.*".to_owned()), ..repos() };
    let world = World { dimensions: vec![for_others], ..World::new() }.constrained(&[("repos", &[])]);
    assert_eq!(denial(world.list()).rule, "scope.repos", "for every operation");
    assert_eq!(
        world.refusal(&json!({"repo": "acme/api"})).smallest_change,
        "add an entry to scope_constraints.repos of the binding"
    );
}

#[test]
fn the_empty_string_is_a_pattern() {
    let world = World::new().constrained(&[("repos", &[""])]);
    assert_eq!(world.call(&json!({"repo": ""})), Decision::Allow);
    assert_eq!(world.list(), Decision::Allow);
    assert_eq!(world.refusal(&json!({"repo": "x"})).rule, "scope.repos");
}

#[test]
fn an_unknown_key_denies_every_call_and_hides_the_tool() {
    let world = World::new().constrained(&[("repos", &["*"]), ("branches", &["main"])]);
    for decision in [world.list(), world.call(&json!({"repo": "acme/api", "branches": "main"}))] {
        let denied = denial(decision);
        assert_eq!((denied.rule.as_str(), denied.status), ("scope.unknown_key", Status::ScopeViolation));
        assert_eq!(denied.message, "Scope violation: this tool has no scope branches");
        assert_eq!(denied.smallest_change, "remove `branches` from scope_constraints of the binding");
    }
}

#[test]
fn a_constrained_dimension_that_the_tool_does_not_declare_hides_the_tool() {
    let world = World { declared: vec!["title"], ..World::new() }.constrained(&[("repos", &["*"])]);
    for decision in [world.list(), world.call(&json!({"repo": "acme/api"}))] {
        let denied = denial(decision);
        assert_eq!(
            (denied.rule.as_str(), denied.message.as_str()),
            ("scope.repos", "Scope violation: Repository (missing) is not authorized")
        );
    }
}

#[test]
fn the_operation_filter_limits_a_dimension() {
    for (filter, is_checked) in
        [("issue.*", true), ("issue.read", true), ("*", true), ("issue.write", false), ("", false), ("Issue.*", false)]
    {
        let filtered = ScopeDimension { operation_filter: Some(filter.to_owned()), ..repos() };
        let world = World { dimensions: vec![filtered], ..World::new() }.constrained(&[("repos", &["acme/*"])]);
        assert_eq!(world.call(&json!({"repo": "other/x"})) != Decision::Allow, is_checked, "{filter:?}");
        let undeclared = World { declared: Vec::new(), ..world };
        assert_eq!(undeclared.list() != Decision::Allow, is_checked, "{filter:?}");
    }
}

#[test]
fn two_dimensions_of_one_key_both_apply() {
    let world = World {
        dimensions: vec![repos(), dimension("repos", &["file"], MatchMode::Path)],
        declared: vec!["repo", "file"],
        ..World::new()
    };
    let world = world.constrained(&[("repos", &["/srv"])]);
    assert_eq!(world.call(&json!({"repo": "/srv", "file": "/srv/x"})), Decision::Allow);
    assert_eq!(world.refusal(&json!({"repo": "/srv/x", "file": "/srv/x"})).rule, "scope.repos");
    assert_eq!(world.refusal(&json!({"repo": "/srv", "file": "/srv/../x"})).rule, "scope.repos");
}

#[test]
fn templates() {
    let with = |template: &str| {
        let templated = ScopeDimension { error_template: template.to_owned(), ..repos() };
        World { dimensions: vec![templated], ..World::new() }.constrained(&[("repos", &["acme/*"])])
    };
    let message = |template: &str, value: &str| with(template).refusal(&json!({"repo": value})).message;
    assert_eq!(message("仓库 {value} 不在授权范围内", "a/b"), "Scope violation: 仓库 a/b 不在授权范围内");
    assert_eq!(message("", "a/b"), "Scope violation: repos a/b is not authorized");
    assert_eq!(message("no", "a/b"), "Scope violation: no");
    assert_eq!(message("<{value}>", "{value}{value}"), "Scope violation: <{value}{value}>");
    let long = message("{value}", &"x".repeat(4_000));
    assert_eq!(long, format!("Scope violation: {}…", "x".repeat(200)));
}

#[test]
fn rules_compiled_from_another_manifest_deny() {
    use monstrum_guardian::{BindingRules, DimensionModes, NO_GATES, Question, Subject, ToolRules, decide};
    let tool = ToolRules::new(
        "t".parse().unwrap(),
        "issue.read".to_owned(),
        &[dimension("repos", &["repo"], MatchMode::Path)],
        |_| true,
    );
    let sets = [(SetSource::Binding, set(&[("repos", &["/srv"])]))];
    let grants: [(GrantSource, Grant); 1] = [(GrantSource::Role, operations(&["*"]))];
    for dimensions in [vec![repos()], Vec::new()] {
        let binding = BindingRules::new(&grants, &sets, &DimensionModes::of(&dimensions));
        let params = json!({"repo": "/srv"});
        let subject =
            Subject { tool: &tool, binding: &binding, delegation: &[], bot_gates: &NO_GATES, labels: &Labels::ALL };
        assert_eq!(denial(decide(&subject, Question::Call(params.as_object().unwrap()))).rule, "scope.repos");
    }
}
