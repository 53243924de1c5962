//! Random policies and calls: each denial has its page, and each change does what the page announced.

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

use super::{Case, Scene};

/// The same policies are made on every run.
const SEED: u64 = 0x6d6f_6e73_7472_756d;
/// The number of policies whose change is made.
const POLICIES: usize = 50;
/// The maximum number of policies. Many allow the call, or no change allows it.
const POLICIES_MAX: usize = 500;

const TOOLS: [&str; 4] = ["test_echo_run", "test_echo_again", "test_echo_write", "test_echo_open"];
const OPERATIONS: [&str; 4] = ["echo.*", "*.read", "echo.write", "fetch.*"];
const TOOL_GLOBS: [&str; 4] = ["test_echo_*", "*_run", "*_[ow]*", "jira_*"];
/// The scopes with their patterns.
const SCOPES: [(&str, [&str; 5]); 4] = [
    ("repos", ["acme/*", "*/site", "acme/site", "[a-m]*", ""]),
    ("paths", ["/srv", "/srv/**", "/srv/*", "docs", "/"]),
    ("labels", ["team-*", "bug", "*", "[!b]*", "?"]),
    ("kinds", ["bug", "*", "chore", "", "b*"]),
];
const REPOS: [&str; 6] = ["acme/site", "acme/docs", "other/[x]*", "x", "", "\u{202e}<b>"];
const PATHS: [&str; 6] = ["/srv/a", "/srv/../etc/*", "docs/x", "../x", "/", "/srv/[a]/b"];
const LABELS: [&str; 5] = ["bug", "team-a", "b", "<b>", "*"];
const KINDS: [&str; 5] = ["bug", "chore", "*", "", "Bug"];

/// A generator of random policies and calls.
struct Random(support::Random);

impl Random {
    fn is(&mut self, percent: usize) -> bool {
        self.0.below(100) < percent
    }

    fn one<'v>(&mut self, of: &[&'v str]) -> &'v str {
        of[self.0.below(of.len())]
    }

    fn some<'v>(&mut self, of: &[&'v str]) -> Vec<&'v str> {
        of.iter().copied().filter(|_| self.is(40)).collect()
    }

    /// Returns the lists of a role or of the permissions of a binding.
    fn lists(&mut self) -> Map<String, Value> {
        let mut lists = Map::new();
        for (name, globs, percent) in [("allowed_operations", OPERATIONS, 60), ("allowed_tools", TOOL_GLOBS, 40)] {
            if self.is(percent) {
                lists.insert(name.to_owned(), json!(self.some(&globs)));
            }
        }
        lists
    }

    fn scopes(&mut self) -> Value {
        let mut scopes = Map::new();
        for (key, patterns) in SCOPES {
            if self.is(30) {
                scopes.insert(key.to_owned(), json!(self.some(&patterns)));
            }
        }
        Value::Object(scopes)
    }

    fn gates(&mut self) -> Value {
        if self.is(8) { json!([{ "action": "deny", "when": { "repos": [self.one(&REPOS[..4])] } }]) } else { json!([]) }
    }

    fn params(&mut self, tool: &str) -> Value {
        let mut params = Map::new();
        if self.is(80) {
            params.insert("repo".to_owned(), json!(self.one(&REPOS)));
        }
        if tool == "test_echo_open" {
            // This tool takes parameters that it does not declare.
            if self.is(50) {
                let values = [json!(self.some(&REPOS)), json!(7), json!(false), Value::Null, json!({ "a": "b" })];
                params.insert("owner_repo".to_owned(), values[self.0.below(values.len())].clone());
            }
            return Value::Object(params);
        }
        if self.is(20) {
            params.insert("owner_repo".to_owned(), json!(self.one(&REPOS)));
        }
        if self.is(70) {
            params.insert("file".to_owned(), json!(self.one(&PATHS)));
        }
        if self.is(20) {
            params.insert("options".to_owned(), json!({ "dir": self.one(&PATHS) }));
        }
        if self.is(70) {
            params.insert("labels".to_owned(), json!(self.some(&LABELS)));
        }
        if self.is(70) {
            params.insert("kind".to_owned(), json!(self.one(&KINDS)));
        }
        Value::Object(params)
    }

    fn case(&mut self, number: usize) -> Case {
        let role = if self.is(80) {
            let mut role = self.lists();
            role.insert("scope_constraints".to_owned(), self.scopes());
            role.insert("gates".to_owned(), self.gates());
            if self.is(5) {
                role["scope_constraints"]["orgs"] = json!(["*"]);
            }
            Value::Object(role)
        } else {
            Value::Null
        };
        let mut binding = json!({ "scope_constraints": self.scopes(), "gates": self.gates() });
        if role.is_null() || self.is(40) {
            binding["permissions"] = Value::Object(self.lists());
        }
        let tool = self.one(&TOOLS);
        let params = self.params(tool);
        Case::new(&format!("policy {number}"), role, binding, params).of(tool)
    }
}

/// Returns whether a change allows the call, or `None` if the call is not denied.
async fn proved(scene: &Scene, case: &Case) -> Result<Option<bool>> {
    let Some(denied) = scene.denied(case).await? else { return Ok(None) };
    let change = scene.explained(case, &denied).await?;
    if let Some(change) = &change {
        scene.flipped(case, &denied, change, "success").await?;
    }
    Ok(Some(change.is_some()))
}

#[tokio::test]
async fn changes_of_random_policies_allow_the_call_and_nothing_else_changes() -> Result<()> {
    let scene = Scene::open().await?;
    let mut random = Random(support::Random::new(SEED, 3));
    let (mut changed, mut fixed, mut allowed) = (0, 0, 0);
    for number in 0..POLICIES_MAX {
        let case = random.case(number);
        let outcome = proved(&scene, &case).await;
        match outcome.with_context(|| format!("policy {number} of the seed {SEED:#x}: {case:#?}"))? {
            Some(true) => changed += 1,
            Some(false) => fixed += 1,
            None => allowed += 1,
        }
        if changed == POLICIES {
            break;
        }
    }
    ensure!(changed == POLICIES, "{changed} policies were changed; {fixed} could not be, {allowed} allowed the call");
    ensure!(fixed > 0 && allowed > 0, "no policy was of another kind: {fixed} {allowed}");
    Ok(())
}
