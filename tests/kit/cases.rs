//! `monstrum plugin test`: cases that pass, cases that fail, and the output for both.

use std::fs;

use anyhow::Result;
use serde_json::{Value, json};
use support::Server;

use crate::cli::{parsed, run};

const REPO: &str = "tool: github_get_repo
params: { repo: acme/site }
resource: { credential: { access_token: a-dummy-token-7 } }
http:
  - request:
      url: https://api.github.com/repos/acme/site
      headers: { authorization: Bearer a-dummy-token-7, accept: application/vnd.github+json }
    answer: { body: { id: 1, echo: a-dummy-token-7 }, headers: { x-echo: a-dummy-token-7 } }
result: { status: success, data: { id: 1, echo: \"[redacted]\" } }
";

/// Prepares a folder with the plugin and these cases, by name.
fn with_cases(plugin: &str, cases: &[(&str, &str)]) -> Result<Server> {
    let server = Server::prepare(&[plugin])?;
    let folder = server.plugins_dir().join(plugin).join("tests");
    fs::create_dir(&folder)?;
    for (name, text) in cases {
        fs::write(folder.join(format!("{name}.yaml")), text)?;
    }
    Ok(server)
}

/// Returns the exit code and the faults of each case. A case that passed has no faults.
async fn faults(server: &Server, plugin: &str) -> Result<(Option<i32>, Vec<Value>)> {
    let (code, report) = parsed(server, &["plugin", "test", &format!("plugins/{plugin}")]).await?;
    let cases = report["cases"].as_array().cloned().unwrap_or_default();
    assert!(cases.iter().all(|case| case["passed"] == (case["faults"] == json!([]))), "{report}");
    assert_eq!(report["passed"], code == Some(0), "{report}");
    Ok((code, cases.into_iter().map(|case| case["faults"].clone()).collect()))
}

#[tokio::test]
async fn what_is_as_declared_passes() -> Result<()> {
    let create = "tool: github_create_issue
params: { repo: acme/site, title: Broken, labels: [bug] }
resource:
  config: { api_base: 'https://ghe.example/api/v3' }
  auth_method: token
  credential: { access_token: a-dummy-token-7 }
http:
  - request: { method: POST, url: 'https://ghe.example/api/v3/repos/acme/site/issues', body: { title: Broken } }
    answer: { status: 201, body: { number: 7 } }
result: { status: success, data: { number: 7 } }
";
    let missing = "tool: github_get_repo
params: { repo: acme/gone }
resource: { credential: { access_token: a-dummy-token-7 } }
http: [{ request: { url: 'https://api.github.com/repos/acme/gone' }, answer: { status: 404, body: no such repo } }]
result: { status: error, code: plugin, message: 'GitHub API error: 404 - no such repo' }
";
    let late = "tool: github_get_repo
params: { repo: acme/site }
resource: { credential: { access_token: a-dummy-token-7 } }
http: [{ request: { url: 'https://api.github.com/repos/acme/site' }, answer: { failure: dns } }]
result: { status: error, code: upstream }
";
    let outside = "tool: github_get_repo
params: { repo: other/site }
grant: { scope_constraints: { repos: ['acme/*'] } }
result: { status: scope_violation, code: scope, message: 'Scope violation: Repository other/site is not authorized' }
";
    let refused = "tool: github_create_issue
params: { repo: acme/site, title: x }
grant: { allowed_operations: ['*.read'] }
result: { status: permission_denied, code: denied }
";
    let bare = "tool: github_get_repo\nparams: { repo: acme/site }\nresult: { status: error, code: unauthenticated }\n";
    let invalid =
        "tool: github_get_repo\nparams: { repos: acme/site }\nresult: { status: error, code: invalid_params }\n";
    let inside = "tool: github_get_repo
params: { repo: acme/site }
resource: { config: { api_base: 'https://10.1.2.3' }, credential: { access_token: a-dummy-token-7 } }
result: { status: error }
";
    let cases = [
        ("repo", REPO),
        ("create", create),
        ("missing", missing),
        ("late", late),
        ("outside", outside),
        ("refused", refused),
        ("bare", bare),
        ("invalid", invalid),
        ("inside", inside),
    ];
    let server = with_cases("github", &cases)?;
    let (code, faults) = faults(&server, "github").await?;
    assert_eq!((code, faults), (Some(0), vec![json!([]); cases.len()]));
    assert_eq!(fs::read_dir(server.home())?.count(), 1, "the command created a data folder");
    Ok(())
}

#[tokio::test]
async fn what_is_not_as_declared_is_told_where_it_differs() -> Result<()> {
    let changed = |from: &str, to: &str| {
        assert!(REPO.contains(from), "{from}");
        REPO.replacen(from, to, 1)
    };
    let cases = [
        ("1-data", changed("data: { id: 1,", "data: { id: 2, more: x,")),
        ("2-header", changed("Bearer a-dummy-token-7,", "Bearer another,")),
        ("3-unexpected", changed("repos/acme/site\n", "repos/acme/other\n")),
        ("4-status", changed("status: success", "status: error, message: none")),
        ("5-credential", changed("access_token: a-dummy-token-7 } }", "access_token: short } }")),
        ("6-config", changed("resource: { ", "resource: { config: { region: us }, ")),
    ];
    let texts: Vec<(&str, &str)> = cases.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let server = with_cases("github", &texts)?;
    let (code, faults) = faults(&server, "github").await?;
    assert_eq!(code, Some(1));
    assert_eq!(faults[0], json!(["data/id: expected 2, found 1", "data/more: expected \"x\", found nothing"]));
    let header = "http: GET https://api.github.com/repos/acme/site: header authorization: expected `Bearer another`, found `Bearer [redacted]`";
    assert_eq!(faults[1], json!([header]));
    let connect = "GitHub request error: the case has no answer to this request";
    assert_eq!(
        faults[2],
        json!([
            "status: expected \"success\", found \"error\"",
            format!("message: {connect} (upstream)"),
            "data: expected {\"id\":1,\"echo\":\"[redacted]\"}, found null",
            "http: unexpected request GET https://api.github.com/repos/acme/site",
            "http: no request was made for GET https://api.github.com/repos/acme/other",
        ])
    );
    assert_eq!(faults[3][0], "status: expected \"error\", found \"success\"");
    let told = |index: usize| faults[index][0].as_str().unwrap_or_default().to_owned();
    assert!(told(4).starts_with("resource.credential: ") && told(4).contains("at least 8 bytes"), "{}", told(4));
    assert!(told(5).starts_with("resource: ") && told(5).contains("/config/region: unknown field"), "{}", told(5));
    let everything = serde_json::to_string(&faults)?;
    assert!(!everything.contains("a-dummy-token-7"), "{everything}");

    let output = run(&server, &["plugin", "test", "plugins/github"]).await?;
    let (told, errors) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    assert!(
        told.contains("FAIL plugins/github/tests/1-data.yaml (")
            && told.contains("\n       data/id: expected 2, found 1\n"),
        "{told}"
    );
    assert!(!told.contains("a-dummy-token-7"), "{told}");
    assert_eq!(
        errors,
        "error: 6 of 6 cases failed\nhint: correct the plugin or the case; --json prints the report as JSON\n"
    );
    Ok(())
}

/// If one case cannot be read, no case runs.
#[tokio::test]
async fn a_case_with_an_unknown_field_is_shown_where_it_is() -> Result<()> {
    let server = with_cases(
        "github",
        &[("good", REPO), ("typo", "tool: github_get_repo\nparam: {}\nresult: { status: success }\n")],
    )?;
    let output = run(&server, &["plugin", "test", "plugins/github"]).await?;
    let told = String::from_utf8(output.stderr)?;
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    for part in ["param: unknown field, expected one of", "plugins/github/tests/typo.yaml:2:1", "2 │ param: {}"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(
        told.ends_with("hint: correct the errors above; docs/authors-guide.md describes the fields of a case\n"),
        "{told}"
    );
    Ok(())
}

#[tokio::test]
async fn what_there_is_to_test_must_be_there() -> Result<()> {
    let server = with_cases("github", &[])?;
    let folder = server.plugins_dir().join("github");
    let told = async || -> Result<String> {
        let output = run(&server, &["plugin", "test", "plugins/github"]).await?;
        assert_eq!(output.status.code(), Some(1));
        Ok(String::from_utf8(output.stderr)?)
    };
    assert!(told().await?.starts_with("error: no cases in plugins/github/tests\nhint: create a case in"));
    fs::write(folder.join("tests/repo.yaml"), REPO)?;
    fs::remove_file(folder.join("plugin.wasm"))?;
    assert!(told().await?.contains("the component plugins/github/plugin.wasm does not exist\nhint: build it"));
    fs::write(folder.join("plugin.wasm"), "no component")?;
    assert!(told().await?.contains("the plugin does not load"));
    fs::write(folder.join("monstrum.yaml"), "name: github\n")?;
    assert!(told().await?.contains("required field is missing"));
    Ok(())
}

/// The test command uses the host's limits, and a guest that exceeds them ends as on a server.
#[tokio::test]
async fn limits_are_those_of_a_server() -> Result<()> {
    let case = "tool: test_loop_run\nresult: { status: error, code: fuel, message: the plugin used up its computing budget }\n";
    let server = with_cases("test-loop", &[("fuel", case)])?;
    let (code, faults) = faults(&server, "test-loop").await?;
    assert_eq!((code, faults), (Some(0), vec![json!([])]));
    Ok(())
}

/// The cases of the reference plugins pass.
#[tokio::test]
async fn the_cases_of_the_reference_plugins_pass() -> Result<()> {
    for (plugin, cases_min) in [("github", 4), ("jira", 2), ("notebook", 2)] {
        let mut cases = Vec::new();
        for entry in fs::read_dir(format!("{}/../plugins-wasm/{plugin}/tests", env!("CARGO_MANIFEST_DIR")))? {
            let path = entry?.path();
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            cases.push((name, fs::read_to_string(&path)?));
        }
        assert!(cases.len() >= cases_min, "only {} cases of {plugin} were found", cases.len());
        let cases: Vec<(&str, &str)> = cases.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let server = with_cases(plugin, &cases)?;
        let (code, faults) = faults(&server, plugin).await?;
        assert_eq!((code, faults), (Some(0), vec![json!([]); cases.len()]));
    }
    Ok(())
}
