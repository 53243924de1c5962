//! The calls of the demo, each with its expected result.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use support::{Api, FakeGithub, Recorded};

use crate::leaks;

/// The secret that only the host and the upstream may see.
pub(crate) const TOKEN: &str = "ghp_demo4fG7kQ2mXw9LrT5vB8nZs1Yc6HdJeUa";

/// One row of the table.
pub(crate) struct Row {
    pub(crate) title: String,
    pub(crate) call: String,
    pub(crate) caller: String,
    pub(crate) upstream: String,
    pub(crate) audit: String,
}

/// A call and its expected result.
pub(crate) struct Scene {
    pub(crate) title: &'static str,
    tool: &'static str,
    params: Value,
    status: &'static str,
    code: Option<&'static str>,
    /// The start of the message.
    message: &'static str,
    /// The requests that the upstream receives, in order.
    upstream: &'static [(&'static str, &'static str)],
    /// A further condition on the answer, and its description for the table.
    claim: fn(&Value) -> Result<String>,
}

/// Returns the seven calls.
pub(crate) fn all(thief: &FakeGithub) -> [Scene; 7] {
    const ISSUES: &str = "/repos/acme/site/issues";
    [
        Scene {
            title: "an allowed read",
            tool: "github_list_issues",
            params: json!({ "repo": "acme/site" }),
            status: "success",
            code: None,
            message: "",
            upstream: &[("GET", ISSUES)],
            claim: |answer| {
                let titles: Vec<&str> = answer["data"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|issue| issue["title"].as_str())
                    .collect();
                ensure!(titles.len() == 2, "expected two open issues, got {}", titles.len());
                Ok(format!("{} issues: {}", titles.len(), titles.join("; ")))
            },
        },
        Scene {
            title: "an allowed write",
            tool: "github_create_issue",
            params: json!({ "repo": "acme/site", "title": "Written by a bot", "labels": ["bot"] }),
            status: "success",
            code: None,
            message: "",
            upstream: &[("POST", ISSUES)],
            claim: |answer| {
                ensure!(answer["data"]["title"] == "Written by a bot", "the issue has another title");
                Ok(format!("issue #{}: {}", answer["data"]["number"], text(&answer["data"]["title"])))
            },
        },
        Scene {
            title: "rejected by the role",
            tool: "github_get_repo",
            params: json!({ "repo": "acme/site" }),
            status: "permission_denied",
            code: Some("denied"),
            message: "Permission denied: ",
            upstream: &[],
            claim: no_more,
        },
        Scene {
            title: "rejected by the scope",
            tool: "github_list_issues",
            params: json!({ "repo": "other/secret" }),
            status: "scope_violation",
            code: Some("scope"),
            message: "Scope violation: Repository other/secret is not authorized",
            upstream: &[],
            claim: no_more,
        },
        Scene {
            title: "bad input",
            tool: "github_create_issue",
            params: json!({ "repo": "acme/site" }),
            status: "error",
            code: Some("invalid_params"),
            message: "",
            upstream: &[],
            claim: |answer| {
                ensure!(text(&answer["message"]).contains("title"), "the message does not name the missing parameter");
                Ok(String::new())
            },
        },
        Scene {
            title: "a plugin that loops",
            tool: "test_loop_run",
            params: json!({}),
            status: "error",
            code: Some("fuel"),
            message: "the plugin used up its computing budget",
            upstream: &[],
            claim: no_more,
        },
        Scene {
            title: "a plugin that steals",
            tool: "test_steal_run",
            params: json!({ "target": format!("{}/collect", thief.url()), "patterns": patterns() }),
            status: "success",
            code: None,
            message: "",
            upstream: &[("GET", "/echo-headers")],
            claim: nothing_stolen,
        },
    ]
}

/// The bot and its environment.
pub(crate) struct Stage<'a> {
    api: &'a Api,
    github: &'a FakeGithub,
    thief: &'a FakeGithub,
    bot: String,
}

impl<'a> Stage<'a> {
    /// Creates one bot with a role and a scope for GitHub, and with permission to use the other plugins.
    pub(crate) async fn set_up(api: &'a Api, github: &'a FakeGithub, thief: &'a FakeGithub) -> Result<Stage<'a>> {
        let bot = api.bot("triage").await?;
        let url = github.url();
        let upstream = (url.as_str(), TOKEN);
        let scope = json!({ "repos": ["acme/*"] });
        api.grant(&bot, "github", upstream, &["issue.read", "issue.write"], &scope).await?;
        api.grant(&bot, "test-loop", upstream, &["*"], &json!({})).await?;
        api.grant(&bot, "test-steal", upstream, &["*"], &json!({})).await?;
        Ok(Stage { api, github, thief, bot })
    }

    /// Makes the call and checks everything that the table shows about it.
    pub(crate) async fn play(&self, scene: &Scene) -> Result<Row> {
        let answer = self.api.call(&self.bot, scene.tool, &scene.params).await?;
        let seen = self.github.take_requests();
        let audit = self.api.audit(text(&answer["request_id"])).await?;
        let claim = check(scene, &answer, &seen, &audit).with_context(|| format!("the answer was {answer}"))?;
        leaks::check_text("the answer", &answer.to_string())?;
        leaks::check_text("the audit row", &audit.to_string())?;
        let stolen = self.thief.take_requests();
        ensure!(stolen.is_empty(), "the other upstream received requests: {stolen:?}");
        let caller = [text(&answer["status"]), text(&answer["code"]), text(&answer["message"]), &claim];
        let row = [text(&audit["status"]), text(&audit["code"]), text(&audit["rule"])];
        Ok(Row {
            title: scene.title.to_owned(),
            call: format!("{}\n{}", scene.tool, short(&scene.params)).trim_end().to_owned(),
            caller: joined(&caller),
            upstream: upstream_cell(&seen),
            audit: format!("{}\n{}, {} ms", joined(&row), text(&audit["started_at"]), audit["duration_ms"]),
        })
    }
}

fn check(scene: &Scene, answer: &Value, seen: &[Recorded], audit: &Value) -> Result<String> {
    ensure!(answer["status"] == scene.status, "the status should be {}", scene.status);
    ensure!(answer["code"].as_str() == scene.code, "the code should be {:?}", scene.code);
    ensure!(text(&answer["message"]).starts_with(scene.message), "the message should be {:?}", scene.message);
    let requests: Vec<(&str, &str)> =
        seen.iter().map(|request| (request.method.as_str(), request.path.as_str())).collect();
    ensure!(
        requests == scene.upstream,
        "the upstream should have received {:?}, but received {requests:?}",
        scene.upstream
    );
    let expected = format!("Bearer {TOKEN}");
    for request in seen {
        ensure!(request.header("authorization") == Some(&expected), "a request has no token");
    }
    for field in ["request_id", "status", "code", "message"] {
        ensure!(audit[field] == answer[field], "the audit's {field} is {}", audit[field]);
    }
    ensure!(audit["tool"] == scene.tool, "the audit's tool is {}", audit["tool"]);
    (scene.claim)(answer)
}

fn no_more(_: &Value) -> Result<String> {
    Ok(String::new())
}

/// Returns the texts that the guest searches for in its memory: the token in plain text and in base64, and a text that
/// the memory must contain.
fn patterns() -> [String; 3] {
    let reversed = |text: &str| hex::encode(text.bytes().rev().collect::<Vec<u8>>());
    [reversed(TOKEN), reversed(&BASE64_STANDARD.encode(TOKEN)), reversed("/echo-headers")]
}

fn nothing_stolen(answer: &Value) -> Result<String> {
    let report = &answer["data"];
    let hits: Vec<u64> = report["memory"]["hits"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let [0, 0, known] = hits[..] else { anyhow::bail!("the token is in the guest's memory: {hits:?}") };
    ensure!(known > 0, "the guest's search does not find the known text");
    let elsewhere = text(&report["elsewhere"]["failure"]["code"]);
    ensure!(elsewhere == "denied", "the request to another origin returned {}", report["elsewhere"]);
    let echo = report["echo"].to_string();
    ensure!(echo.contains("[redacted]"), "the echo of the upstream was not redacted: {echo}");
    ensure!(report["environment"] == json!([]), "the guest has environment variables: {}", report["environment"]);
    let kib = report["memory"]["bytes"].as_u64().unwrap_or_default() / 1024;
    Ok(format!(
        "its own {kib} KiB of memory: no token; echoed by the upstream: [redacted]; sent elsewhere: {elsewhere}"
    ))
}

fn upstream_cell(seen: &[Recorded]) -> String {
    if seen.is_empty() {
        return "nothing".to_owned();
    }
    let lines: Vec<String> =
        seen.iter().map(|request| format!("{} {}, with the token", request.method, request.path)).collect();
    lines.join("\n")
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn joined(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" · ")
}

/// Formats parameters for a table cell, in which lines can be broken. Omits the patterns of the stealing plugin.
fn short(params: &Value) -> String {
    let shown: Vec<String> = params
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "patterns")
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    shown.join(", ")
}
