//! `monstrum plugin validate`, which needs no server.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use anyhow::{Context, Result, ensure};
use insta::{assert_json_snapshot, assert_snapshot};
use serde_json::json;
use support::Server;

use crate::cli::{parsed, run, told};
use crate::stable::stable;
use crate::world::text;

/// Prepares a server whose plugin `test-echo` has one change in its manifest.
fn changed(from: &str, to: &str) -> Result<Server> {
    let server = Server::prepare(&["test-echo"])?;
    let manifest = server.plugins_dir().join("test-echo/monstrum.yaml");
    let text = fs::read_to_string(&manifest)?;
    ensure!(text.contains(from), "the manifest has no `{from}`");
    fs::write(manifest, text.replacen(from, to, 1))?;
    Ok(server)
}

const VALIDATE: [&str; 3] = ["plugin", "validate", "plugins/test-echo"];

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of cases or one whole answer")]
async fn a_good_folder_is_valid() -> Result<()> {
    let server = Server::prepare(&["test-echo", "github"])?;
    assert_snapshot!(told(&server, &VALIDATE).await?, @r#"
    test-echo 1.0.0 is valid: 8 tools, component [digest]

    may use      http
    may reach    the api_base that the operator sets
    credentials  token: header Authorization: Bearer {access_token}, to the origin of api_base
                 api_key: header X-API-Key: {api_key}, query api_key={api_key}, to the origin of api_base
                 basic: basic {username}:{password}, to the origin of api_base
    limits       1000000000 fuel, 64 MiB, 30 s per call

     TOOL                 OPERATION      EFFECT  CONSTRAINED BY
     test_echo_run        echo.read      write   repos, paths, labels
     test_echo_again      echo.read      write   repos, paths, labels
     test_echo_write      echo.write     write   repos, paths, labels, kinds
     test_echo_open       echo.open      write   repos
     test_echo_mismatch   echo.mismatch  write   repos
     test_echo_unhandled  nothing.run    write   nothing
     test_echo_fetch      fetch.run      write   nothing
     test_echo_flood      flood.run      write   nothing

    no scope constrains the parameters of: test_echo_unhandled, test_echo_fetch, test_echo_flood
    [stderr]
    warning: scope dimension `repos`: tool `test_echo_unhandled` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `repos`: tool `test_echo_fetch` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `repos`: tool `test_echo_flood` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `paths`: tool `test_echo_open` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `paths`: tool `test_echo_mismatch` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `paths`: tool `test_echo_unhandled` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `paths`: tool `test_echo_fetch` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `paths`: tool `test_echo_flood` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `labels`: tool `test_echo_open` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `labels`: tool `test_echo_mismatch` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `labels`: tool `test_echo_unhandled` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `labels`: tool `test_echo_fetch` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    warning: scope dimension `labels`: tool `test_echo_flood` does not declare any of its param_paths, so a binding that constrains the dimension denies the tool
    [exit 0]
    "#);
    assert_snapshot!(told(&server, &["plugin", "validate", "plugins/github/"]).await?, @r#"
    github 1.0.0 is valid: 8 tools, component [digest]

    may use      http
    may reach    https://api.github.com (api_base, unless the operator sets another URL)
    credentials  oauth2_auth_code: header Authorization: Bearer {access_token}, to https://api.github.com
                 token: header Authorization: Bearer {access_token}, to https://api.github.com
    limits       1000000000 fuel, 64 MiB, 30 s per call

     TOOL                  OPERATION            EFFECT      CONSTRAINED BY
     github_list_issues    issue.read           read        repos
     github_create_issue   issue.write          write       repos
     github_update_issue   issue.write          idempotent  repos
     github_add_labels     issue.label.write    idempotent  repos
     github_remove_labels  issue.label.write    idempotent  repos
     github_add_comment    issue.comment.write  write       repos
     github_list_comments  issue.comment.read   read        repos
     github_get_repo       repo.read            read        repos
    [exit 0]
    "#);
    let (code, mut report) = parsed(&server, &["plugin", "validate", "plugins/github"]).await?;
    assert_eq!(code, Some(0));
    let permissions = report["permissions"].take();
    assert_json_snapshot!(stable(&report), @r#"
    {
      "valid": true,
      "name": "github",
      "version": "1.0.0",
      "digest": "[digest]",
      "tools": [
        "github_list_issues",
        "github_create_issue",
        "github_update_issue",
        "github_add_labels",
        "github_remove_labels",
        "github_add_comment",
        "github_list_comments",
        "github_get_repo"
      ],
      "imports": [
        "monstrum:plugin/types@0.1.0",
        "monstrum:plugin/http@0.1.0",
        "monstrum:plugin/log@0.1.0",
        "wasi:io/poll@0.2.6",
        "wasi:io/error@0.2.6",
        "wasi:io/streams@0.2.6",
        "wasi:cli/environment@0.2.6",
        "wasi:cli/exit@0.2.6",
        "wasi:cli/stdin@0.2.6",
        "wasi:cli/stdout@0.2.6",
        "wasi:cli/stderr@0.2.6",
        "wasi:cli/terminal-input@0.2.6",
        "wasi:cli/terminal-output@0.2.6",
        "wasi:cli/terminal-stdin@0.2.6",
        "wasi:cli/terminal-stdout@0.2.6",
        "wasi:cli/terminal-stderr@0.2.6",
        "wasi:random/insecure-seed@0.2.6"
      ],
      "capabilities": [
        "http"
      ],
      "permissions": null,
      "errors": [],
      "warnings": []
    }
    "#);
    let tool = json!({ "name": "github_get_repo", "operation": "repo.read", "effect": "read", "dimensions": ["repos"], "denied_by": [] });
    assert_eq!(permissions["tools"][7], tool);
    let token = json!({
        "method": "token", "secret_fields": ["access_token"], "audience": ["https://api.github.com"],
        "inject": [{ "header": "Authorization", "value": "Bearer {access_token}" }],
    });
    assert_eq!(permissions["credentials"][1], token);
    assert_eq!(permissions["limits"], json!({ "fuel": 1_000_000_000, "memory_mib": 64, "timeout_s": 30 }));
    let (_, echo) = parsed(&server, &VALIDATE).await?;
    let unbounded = json!(["test_echo_unhandled", "test_echo_fetch", "test_echo_flood"]);
    assert_eq!(echo["permissions"]["unconstrained_tools"], unbounded);
    assert_eq!(echo["permissions"]["credentials"][0]["audience"], json!(null));
    Ok(())
}

#[tokio::test]
async fn every_limit_of_a_schema_that_is_exceeded_is_named() -> Result<()> {
    let before = "          repo: { type: string }\n        additionalProperties: true";
    let after = "          repo: { type: string, maxLength: 70000, pattern: \"^.{0,200}$\" }\n        \
                 patternProperties: { \"^x-.{0,100}$\": {} }\n        additionalProperties: true";
    let server = changed(before, after)?;
    let (code, report) = parsed(&server, &VALIDATE).await?;
    assert_eq!(code, Some(1), "{report}");
    let errors = report["errors"].as_array().context("the report has no list of faults")?;
    let told: Vec<_> = errors.iter().map(|error| (text(&error["field"]), text(&error["message"]))).collect();
    let field = "resource_type.tools[3].input_schema";
    let too_large = "the pattern has more than 10240 bytes after compilation; use minLength and maxLength instead of a \
                     count such as `{1,200}`, and small classes such as `[0-9A-Za-z_]` instead of `.`, `[^/]` or \
                     `\\p{L}`";
    assert_eq!(
        told,
        [
            (field, format!("at `/patternProperties/^x-.{{0,100}}$`: {too_large}").as_str()),
            (field, format!("at `/properties/repo/pattern`: {too_large}").as_str()),
            (
                field,
                "at `/properties/repo/maxLength`: next to a `pattern`, maxLength must be at most 65536, because the work \
                 of a match grows with the text"
            ),
        ]
    );
    Ok(())
}

#[tokio::test]
async fn a_fault_of_a_manifest_is_shown_where_it_is() -> Result<()> {
    let server = changed("version: 1.0.0", "version: 1.0.0\nlisence: MIT")?;
    assert_snapshot!(told(&server, &VALIDATE).await?, @r#"
    [stderr]
      × lisence: unknown field, expected one of `name`, `version`, `description`, `author`, `license`, `tags`, `homepage`, `repository`, `locales_dir`, `resource_type`, `executor`
       ╭─[plugins/test-echo/monstrum.yaml:3:1]
     2 │ version: 1.0.0
     3 │ lisence: MIT
       · ────────────
     4 │ description: A guest that returns its parameters, and sends requests unchanged
       ╰────
    error: the plugin in plugins/test-echo would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    "#);
    let (code, report) = parsed(&server, &VALIDATE).await?;
    assert_eq!(code, Some(1));
    assert_json_snapshot!(report, @r#"
    {
      "valid": false,
      "errors": [
        {
          "file": "plugins/test-echo/monstrum.yaml",
          "line": 3,
          "column": 1,
          "field": "lisence",
          "message": "unknown field, expected one of `name`, `version`, `description`, `author`, `license`, `tags`, `homepage`, `repository`, `locales_dir`, `resource_type`, `executor`"
        }
      ],
      "warnings": []
    }
    "#);
    let mut told_of = Vec::new();
    for (from, to) in [
        ("name: test-echo", "name: Test Echo"),
        ("name: test-echo", "name: sandbox"),
        ("name: test-echo", "name: other"),
        ("tags: [test]", "tags: test"),
        ("      type: url", "      type: uri"),
        ("    - method: token", "    - method: magic"),
        ("operation: echo.read", "operation: [echo.read]"),
        ("type: object", "type: objekt"),
        ("name: test_echo_again", "name: test_echo_run"),
        ("name: test_echo_again", "name: sandbox_again"),
        ("match_mode: path", "match_mode: regex"),
        ("author: Monstrum", "author: Monstrum\n  license: x"),
        ("version: 1.0.0\n", ""),
        ("version: 1.0.0", "version: one"),
        ("author: Monstrum", "author: Monstrum\nauthor: Twice"),
    ] {
        let server = changed(from, to)?;
        let (code, report) = parsed(&server, &VALIDATE).await?;
        assert_eq!(code, Some(1), "{to}: {report}");
        for error in report["errors"].as_array().context("the report has no errors")? {
            told_of.push(format!(
                "{to:?}: {}:{}:{}: {}: {}",
                text(&error["file"]),
                error["line"],
                error["column"],
                error["field"],
                error["message"]
            ));
        }
    }
    assert_snapshot!(told_of.join("\n"), @r#"
    "name: Test Echo": plugins/test-echo/monstrum.yaml:1:7: "name": "`Test Echo` is not a valid plugin name: expected 1 to 64 lower-case letters, digits and hyphens, starting with a letter"
    "name: sandbox": plugins/test-echo/monstrum.yaml:1:7: "name": "`sandbox` is reserved for the platform"
    "name: other": plugins/test-echo/monstrum.yaml:null:null: "name": "expected `test-echo`, the name of the folder, found `other`"
    "tags: test": plugins/test-echo/monstrum.yaml:6:7: "tags": "expected a list, found string \"test\""
    "      type: uri": plugins/test-echo/monstrum.yaml:17:13: "resource_type.config_schema[0].type": "expected one of `string`, `integer`, `secret`, `url`, `enum`, `json`, found `uri`"
    "    - method: magic": plugins/test-echo/monstrum.yaml:37:15: "resource_type.auth_methods[0].method": "expected one of `oauth2_auth_code`, `oauth2_client_creds`, `oauth2_device_code`, `api_key`, `token`, `ssh_key`, `basic`, `none`, found `magic`"
    "operation: [echo.read]": plugins/test-echo/monstrum.yaml:66:18: "resource_type.tools[0].operation": "expected a string, found a list"
    "type: objekt": plugins/test-echo/monstrum.yaml:67:21: "resource_type.tools[0].input_schema": "at `/type`: parameters are an object, so the type must be `object`"
    "type: objekt": plugins/test-echo/monstrum.yaml:67:21: "resource_type.tools[1].input_schema": "at `/type`: parameters are an object, so the type must be `object`"
    "type: objekt": plugins/test-echo/monstrum.yaml:67:21: "resource_type.tools[2].input_schema": "at `/type`: parameters are an object, so the type must be `object`"
    "name: test_echo_run": plugins/test-echo/monstrum.yaml:87:13: "resource_type.tools[1].name": "tools[0] already has the name `test_echo_run`"
    "name: sandbox_again": plugins/test-echo/monstrum.yaml:87:13: "resource_type.tools[1].name": "names that start with `sandbox_` are reserved for the platform"
    "match_mode: regex": plugins/test-echo/monstrum.yaml:162:19: "resource_type.scope_dimensions[1].match_mode": "expected one of `pattern`, `path`, `exact`, found `regex`"
    "author: Monstrum\n  license: x": plugins/test-echo/monstrum.yaml:5:10: "": "not valid YAML: mapping values are not allowed in this context"
    "": plugins/test-echo/monstrum.yaml:1:1: "version": "required field is missing"
    "version: one": plugins/test-echo/monstrum.yaml:2:10: "version": "expected a semantic version such as 1.0.0: unexpected character 'o' while parsing major version number"
    "author: Monstrum\nauthor: Twice": plugins/test-echo/monstrum.yaml:5:1: "author": "duplicate key"
    "#);
    Ok(())
}

/// If a translation has an unknown key, the key is usually misspelled.
#[tokio::test]
async fn translations_that_stand_for_nothing_are_told() -> Result<()> {
    let server = Server::prepare(&["github"])?;
    let locale = server.plugins_dir().join("github/locales/de.json");
    fs::write(locale, r#"{ "tools.github_get_repos.description": "Zeigt ein Repository" }"#)?;
    let (code, report) = parsed(&server, &["plugin", "validate", "plugins/github"]).await?;
    let warning = "translation file `de`: the key `tools.github_get_repos.description` does not name a text of the \
                   manifest";
    assert_eq!((code, &report["warnings"]), (Some(0), &json!([warning])));
    Ok(())
}

#[tokio::test]
async fn a_folder_that_cannot_be_a_plugin_is_named() -> Result<()> {
    let server = Server::prepare(&["test-echo", "test-import", "test-wrong-world"])?;
    let plugin = server.plugins_dir().join("test-echo");
    let mut answers = Vec::new();
    for folder in ["plugins/absent", "plugins", "plugins/test-import", "plugins/test-wrong-world"] {
        answers.push(told(&server, &["plugin", "validate", folder]).await?);
    }
    symlink(&plugin, server.plugins_dir().join("linked"))?;
    answers.push(told(&server, &["plugin", "validate", "plugins/linked"]).await?);
    fs::write(plugin.join("plugin.wasm"), "no component")?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::set_permissions(plugin.join("plugin.wasm"), fs::Permissions::from_mode(0o666))?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::remove_file(plugin.join("plugin.wasm"))?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::write(plugin.join("monstrum.yaml"), b"name: \xff\n")?;
    answers.push(told(&server, &VALIDATE).await?);
    fs::write(plugin.join("monstrum.yaml"), vec![b'#'; (256 << 10) + 1])?;
    answers.push(told(&server, &VALIDATE).await?);
    assert_snapshot!(answers.join("\n"), @r#"
    [stderr]
    error: plugins/absent: does not exist
    error: the plugin in plugins/absent would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/monstrum.yaml: does not exist
    error: the plugin in plugins would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/test-import/plugin.wasm: the component of plugin `test-import` imports `test:unknown/door@1.0.0`, which this host does not provide
    error: the plugin in plugins/test-import would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/test-wrong-world/plugin.wasm: the component of plugin `test-wrong-world` does not export `monstrum:plugin/executor@0.1.0`: it was built for a different WIT world
    error: the plugin in plugins/test-wrong-world would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/linked: is a symbolic link; replace it with the files themselves
    error: the plugin in plugins/linked would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/test-echo/plugin.wasm: the component of plugin `test-echo` is not a WebAssembly component: the file does not have the header of a component
    error: the plugin in plugins/test-echo would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/test-echo/plugin.wasm: is writable by group or others (mode 666); run: chmod go-w [home]/plugins/test-echo/plugin.wasm
    error: the plugin in plugins/test-echo would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/test-echo/plugin.wasm: does not exist
    error: the plugin in plugins/test-echo would not load: 1 error
    hint: build the component first: run `monstrum plugin dev` in the folder; or run `cargo build --release --target wasm32-wasip2` and copy the .wasm file to this path
    [exit 1]
    [stderr]
    error: plugins/test-echo/monstrum.yaml: is not UTF-8 text
    error: the plugin in plugins/test-echo would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    [stderr]
    error: plugins/test-echo/monstrum.yaml: has 262145 bytes; at most 262144 are allowed
    error: the plugin in plugins/test-echo would not load: 1 error
    hint: correct the errors above and run this command again
    [exit 1]
    "#);
    Ok(())
}

/// Colours are used only on terminals, and never if `NO_COLOR` is set. A plugin's text cannot send control sequences to
/// the terminal.
#[tokio::test]
async fn colours_are_for_terminals_only() -> Result<()> {
    let faulty = || changed("version: 1.0.0", "version: \"\\e[2J\"\nlisence: MIT");
    let escapes = async |server: &Server| -> Result<(bool, bool)> {
        let output = run(server, &VALIDATE).await?;
        let text = String::from_utf8(output.stderr)?;
        Ok((text.contains("\u{1b}[3"), text.contains("\u{1b}[2J")))
    };
    // The test simulates a terminal: the library reads this variable instead of the real state.
    let terminal = |server: Server| server.variable("IGNORE_IS_TERMINAL", "1").variable("TERM", "xterm-256color");
    assert_eq!(escapes(&faulty()?).await?, (false, false), "no terminal");
    assert_eq!(escapes(&terminal(faulty()?)).await?, (true, false), "a terminal");
    assert_eq!(escapes(&terminal(faulty()?).variable("NO_COLOR", "1")).await?, (false, false), "NO_COLOR");
    Ok(())
}
