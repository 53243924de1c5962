mod limits;

use super::*;
use crate::model::{Capability, Mode};

const GITHUB: &str = include_str!("../../fixtures/github.yaml");

/// A small manifest. Test cases replace some of its lines.
const SMALL: &str = r#"name: sample
version: 1.2.3
resource_type:
  id: sample
  name: Sample
  icon: star
  config_schema:
    - { field: api_base, type: url, default: "https://api.example.com" }
  credential_schema:
    - { field: access_token, type: secret }
  auth_methods:
    - method: token
  tools:
    - name: sample_read
      description: Reads
      operation: item.read
      input_schema:
        properties: { item: { type: string } }
    - name: sample_write
      description: Writes
      operation: item.write
      input_schema: {}
  scope_dimensions:
    - key: items
      param_paths: [item]
executor:
  capabilities: [http]
"#;

fn says(text: &str) -> String {
    match parse("monstrum.yaml", text) {
        Ok(_) => "loads".to_owned(),
        Err(errors) => errors.to_string(),
    }
}

/// Returns the errors in the small manifest after replacing `old` with `new`.
fn with(old: &str, new: &str) -> String {
    assert!(SMALL.contains(old), "the small manifest has no `{old}`");
    says(&SMALL.replacen(old, new, 1))
}

#[test]
fn the_reference_manifest_loads() {
    let manifest = parse("monstrum.yaml", GITHUB).unwrap();
    assert_eq!(manifest.resource_type.tools.len(), 8);
    assert_eq!(manifest.resource_type.mode, Mode::Plugin);
    assert_eq!(manifest.executor.capabilities, [Capability::Http]);
    assert_eq!(manifest.executor.component, "plugin.wasm");
    assert_eq!(manifest.locales_dir, "locales");
    // The order of properties must be preserved, because models read it.
    let properties = manifest.resource_type.tools[0].input_schema["properties"].as_object().unwrap();
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["repo", "state", "labels", "since", "per_page"]);
    assert_eq!(crate::warnings(&manifest, |_, _| true), Vec::<String>::new());
}

#[test]
fn a_manifest_is_unchanged_by_json() {
    let manifest = parse("monstrum.yaml", GITHUB).unwrap();
    let json = serde_json::to_string(&manifest).unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(&json).unwrap(), manifest);
}

#[test]
fn errors_of_shape_name_line_and_field() {
    let cases = [
        ("name: sample", ""),
        ("name: sample", "name: Sample!"),
        ("name: sample", "name: 5"),
        ("version: 1.2.3", "version: 1.2"),
        ("version: 1.2.3", "version: one"),
        ("version: 1.2.3", "version: 1.2.3\nnames: x"),
        ("  icon: star", "  icons: star"),
        ("  icon: star", "  icon: [star]"),
        ("  icon: star", "  icon: star\n  icon: moon"),
        ("  icon: star", "  mode: plug-in"),
        ("      operation: item.write\n", ""),
        ("      operation: item.write", "      operation: {}"),
        ("input_schema: {}", "input_schema: []"),
        ("input_schema: {}", "input_schema:"),
        ("name: sample_write", "name: Sample-Write"),
        ("[item]", "item"),
        ("- method: token", "- method: magic"),
        ("- method: token", "- method: token\n      inject: [{ header: X, values: y }]"),
        ("- method: token", "- method: token\n      audience: [\"https://*.com\"]"),
        ("capabilities: [http]", "capabilities: [http, files]"),
        ("capabilities: [http]", "egress: [\"ftp://x.example\"]"),
        ("capabilities: [http]", "limits: { fuel: -1 }"),
        ("capabilities: [http]", "limits: { memory: 1 }"),
        ("capabilities: [http]", "follow_redirects: 300"),
        ("capabilities: [http]", "module: executor"),
        ("capabilities: [http]", "limits: [1, 2, 3]"),
        ("    - key: items\n      param_paths: [item]", "    - [items, [item]]"),
        ("  icon: star", "  mode: { plugin: }"),
        ("input_schema: {}", "input_schema: {}\n      cost: { credits: many }"),
    ];
    let said: Vec<String> =
        cases.iter().map(|(old, new)| format!("{old:?} -> {new:?}\n    {}", with(old, new))).collect();
    insta::assert_snapshot!(said.join("\n"), @r###"
    "name: sample" -> ""
        monstrum.yaml:2:1: name: required field is missing
    "name: sample" -> "name: Sample!"
        monstrum.yaml:1:7: name: `Sample!` is not a valid plugin name: expected 1 to 64 lower-case letters, digits and hyphens, starting with a letter
    "name: sample" -> "name: 5"
        monstrum.yaml:1:7: name: expected a string, found integer `5`
    "version: 1.2.3" -> "version: 1.2"
        monstrum.yaml:2:10: version: expected a semantic version such as 1.0.0, found floating point `1.2`
    "version: 1.2.3" -> "version: one"
        monstrum.yaml:2:10: version: expected a semantic version such as 1.0.0: unexpected character 'o' while parsing major version number
    "version: 1.2.3" -> "version: 1.2.3\nnames: x"
        monstrum.yaml:3:1: names: unknown field, expected one of `name`, `version`, `description`, `author`, `license`, `tags`, `homepage`, `repository`, `locales_dir`, `resource_type`, `executor`
    "  icon: star" -> "  icons: star"
        monstrum.yaml:6:3: resource_type.icons: unknown field, expected one of `id`, `name`, `mode`, `description`, `icon`, `auth_flow`, `tool_discovery`, `tools`, `scope_dimensions`, `auth_methods`, `config_schema`, `credential_schema`, `credential_check`
    "  icon: star" -> "  icon: [star]"
        monstrum.yaml:6:9: resource_type.icon: expected a string, found a list
    "  icon: star" -> "  icon: star\n  icon: moon"
        monstrum.yaml:7:3: resource_type.icon: duplicate key
    "  icon: star" -> "  mode: plug-in"
        monstrum.yaml:6:9: resource_type.mode: expected one of `plugin`, `endpoint`, `system`, found `plug-in`
    "      operation: item.write\n" -> ""
        monstrum.yaml:19:7: resource_type.tools[1].operation: required field is missing
    "      operation: item.write" -> "      operation: {}"
        monstrum.yaml:21:18: resource_type.tools[1].operation: expected a string, found a mapping
    "input_schema: {}" -> "input_schema: []"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: expected a mapping, found a list
    "input_schema: {}" -> "input_schema:"
        monstrum.yaml:22:20: resource_type.tools[1].input_schema: expected a mapping, found nothing
    "name: sample_write" -> "name: Sample-Write"
        monstrum.yaml:19:13: resource_type.tools[1].name: `Sample-Write` is not a valid tool name: expected 1 to 64 lower-case letters, digits and underscores, starting with a letter
    "[item]" -> "item"
        monstrum.yaml:25:20: resource_type.scope_dimensions[0].param_paths: expected a list, found string "item"
    "- method: token" -> "- method: magic"
        monstrum.yaml:12:15: resource_type.auth_methods[0].method: expected one of `oauth2_auth_code`, `oauth2_client_creds`, `oauth2_device_code`, `api_key`, `token`, `ssh_key`, `basic`, `none`, found `magic`
    "- method: token" -> "- method: token\n      inject: [{ header: X, values: y }]"
        monstrum.yaml:13:16: resource_type.auth_methods[0].inject[0]: expected one of `{ header, value }`, `{ query, value }`, `{ basic: { username, password } }`, `{ body, value }`, `{ path, value }`
    "- method: token" -> "- method: token\n      audience: [\"https://*.com\"]"
        monstrum.yaml:13:18: resource_type.auth_methods[0].audience[0]: `https://*.com` is not an origin: a wildcard over a public suffix would match domains of other owners
    "capabilities: [http]" -> "capabilities: [http, files]"
        monstrum.yaml:27:24: executor.capabilities[1]: expected one of `http`, `sandbox`, `tools`, `events`, found `files`
    "capabilities: [http]" -> "egress: [\"ftp://x.example\"]"
        monstrum.yaml:27:12: executor.egress[0]: `ftp://x.example` is not an origin: the scheme must be http or https
    "capabilities: [http]" -> "limits: { fuel: -1 }"
        monstrum.yaml:27:19: executor.limits.fuel: expected a non-negative integer, found integer `-1`
    "capabilities: [http]" -> "limits: { memory: 1 }"
        monstrum.yaml:27:13: executor.limits.memory: unknown field, expected one of `fuel`, `memory_mib`, `timeout_s`
    "capabilities: [http]" -> "follow_redirects: 300"
        monstrum.yaml:27:21: executor.follow_redirects: expected an integer from 0 to 255, found integer `300`
    "capabilities: [http]" -> "module: executor"
        monstrum.yaml:27:3: executor.module: unknown field: the executor must be a WebAssembly component; set `component` to its file name (default plugin.wasm); expected one of `component`, `capabilities`, `egress`, `calls`, `limits`, `follow_redirects`
    "capabilities: [http]" -> "limits: [1, 2, 3]"
        monstrum.yaml:27:11: executor.limits: expected a mapping
    "    - key: items\n      param_paths: [item]" -> "    - [items, [item]]"
        monstrum.yaml:24:7: resource_type.scope_dimensions[0]: expected a mapping
    "  icon: star" -> "  mode: { plugin: }"
        monstrum.yaml:6:9: resource_type.mode: expected a string
    "input_schema: {}" -> "input_schema: {}\n      cost: { credits: many }"
        monstrum.yaml:23:24: resource_type.tools[1].cost.credits: expected a number, found string "many"
    "###);
}

/// The parser reports the errors of structure and content in all sections, but no errors that result from the
/// replacement of an invalid part.
#[test]
fn all_errors_of_shape_and_content_are_reported_at_once() {
    let text = SMALL
        .replacen("name: sample", "name: Sample!\ncolour: red", 1)
        .replacen("version: 1.2.3", "version: one", 1)
        .replacen("      operation: item.write\n", "", 1)
        .replacen("  icon: star", "  icon: [star]", 1)
        .replacen("    - key: items\n      param_paths: [item]", "    - [items, [item]]\n    - 5", 1)
        .replacen("capabilities: [http]", "capabilities: [http, http]\n  limits: { fuel: 0, memory: 1 }", 1);
    insta::assert_snapshot!(says(&text), @r#"
    monstrum.yaml:1:7: name: `Sample!` is not a valid plugin name: expected 1 to 64 lower-case letters, digits and hyphens, starting with a letter
    monstrum.yaml:2:1: colour: unknown field, expected one of `name`, `version`, `description`, `author`, `license`, `tags`, `homepage`, `repository`, `locales_dir`, `resource_type`, `executor`
    monstrum.yaml:3:10: version: expected a semantic version such as 1.0.0: unexpected character 'o' while parsing major version number
    monstrum.yaml:7:9: resource_type.icon: expected a string, found a list
    monstrum.yaml:20:7: resource_type.tools[1].operation: required field is missing
    monstrum.yaml:24:7: resource_type.scope_dimensions[0]: expected a mapping
    monstrum.yaml:25:7: resource_type.scope_dimensions[1]: expected a mapping, found integer `5`
    monstrum.yaml:28:22: executor.limits.memory: unknown field, expected one of `fuel`, `memory_mib`, `timeout_s`
    monstrum.yaml:27:24: executor.capabilities[1]: duplicate capability
    monstrum.yaml:28:19: executor.limits.fuel: must be greater than 0
    "#);
}

#[test]
fn errors_explain_fields_of_python_executors() {
    let said = with("capabilities: [http]", "module: plugins.sample.executor\n  class_name: SampleExecutor");
    insta::assert_snapshot!(said, @r#"
    monstrum.yaml:27:3: executor.module: unknown field: the executor must be a WebAssembly component; set `component` to its file name (default plugin.wasm); expected one of `component`, `capabilities`, `egress`, `calls`, `limits`, `follow_redirects`
    monstrum.yaml:28:3: executor.class_name: unknown field: the executor must be a WebAssembly component; set `component` to its file name (default plugin.wasm); expected one of `component`, `capabilities`, `egress`, `calls`, `limits`, `follow_redirects`
    "#);
}

#[test]
fn reserved_features_are_refused() {
    assert_eq!(
        with("  icon: star", "  tool_discovery: dynamic"),
        "monstrum.yaml:6:19: resource_type.tool_discovery: `dynamic` is for built-in types, whose tools come from a server or an agent"
    );
}

#[test]
fn error_recovery_is_bounded() {
    let fields: String = (0..2000).map(|index| format!("wrong{index}: 1\n")).collect();
    let said = says(&format!("{SMALL}\n{fields}"));
    assert_eq!(said.lines().count(), 50, "{said}");
    assert!(said.lines().all(|line| line.contains("unknown field")), "{said}");
}

#[test]
fn syntax_errors_name_the_line() {
    let cases = [
        "",
        "# nothing\n",
        "[]",
        "just text",
        "name: [",
        "name: \"x\nversion: 1.0.0",
        "name: x\n\tversion: 1",
        "name: a: b",
        "name: x\n---\nname: y",
        "name: *nobody",
        "name: !tag x",
        "1: x",
        "? [a]\n: x",
        "name: .inf",
        "name: 99999999999999999999999",
        "name: x\0y",
    ];
    let said: Vec<String> = cases.iter().map(|text| format!("{text:?}\n    {}", says(text))).collect();
    insta::assert_snapshot!(said.join("\n"), @r###"
    ""
        monstrum.yaml: the manifest is empty
    "# nothing\n"
        monstrum.yaml: the manifest is empty
    "[]"
        monstrum.yaml: expected a mapping, found a list
    "just text"
        monstrum.yaml:1:1: expected a mapping, found string "just text"
    "name: ["
        monstrum.yaml:2:1: not valid YAML: did not find expected node content
    "name: \"x\nversion: 1.0.0"
        monstrum.yaml:2:15: not valid YAML: found unexpected end of stream
    "name: x\n\tversion: 1"
        monstrum.yaml:2:1: not valid YAML: found a tab character that violates indentation
    "name: a: b"
        monstrum.yaml:1:8: not valid YAML: mapping values are not allowed in this context
    "name: x\n---\nname: y"
        monstrum.yaml: not valid YAML: deserializing from YAML containing more than one document is not supported
    "name: *nobody"
        monstrum.yaml:1:7: not valid YAML: unknown anchor
    "name: !tag x"
        monstrum.yaml:1:7: name: tags are not supported
    "1: x"
        monstrum.yaml:1:1: a key must be a string: put it in quotes
    "? [a]\n: x"
        monstrum.yaml:1:3: a key must be a string: put it in quotes
    "name: .inf"
        monstrum.yaml:1:7: name: expected a finite number
    "name: 99999999999999999999999"
        monstrum.yaml:1:7: name: the number is too large
    "name: x\0y"
        monstrum.yaml:1:1: not valid YAML: control characters are not allowed at position 7
    "###);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases or one whole answer")]
fn every_rule_has_an_error() {
    let method = |more: &str| ("- method: token", format!("- method: token\n      {more}"));
    let executor = |more: &str| ("capabilities: [http]", more.to_owned());
    let field =
        |more: &str| ("- { field: api_base, type: url, default: \"https://api.example.com\" }", format!("- {more}"));
    let schema = |more: &str| ("input_schema: {}", format!("input_schema: {more}"));
    let plain = |old: &'static str, new: &str| (old, new.to_owned());
    let cases = [
        plain("name: sample\n", "name: ssh\n"),
        plain("  id: sample", "  id: mcp"),
        plain("  name: Sample", "  name: \"\""),
        plain("version: 1.2.3", "version: 1.2.3\nhomepage: \"javascript:alert(1)\""),
        plain("version: 1.2.3", "version: 1.2.3\nlocales_dir: ../other"),
        plain("version: 1.2.3", "version: 1.2.3\nlocales_dir: /etc"),
        plain("  icon: star", "  mode: system"),
        plain("  icon: star", "  mode: endpoint"),
        plain("  icon: star", "  icon: star.svg"),
        plain("  icon: star", "  icon: star.exe"),
        plain("  icon: star", "  icon: ../star.png"),
        plain("sample_write", "sample_read"),
        plain("sample_write", "sandbox_write"),
        plain("sample_write", "llm_write"),
        plain("sample_write", "task_write"),
        plain("description: Writes", "description: \" \""),
        plain("operation: item.write", "operation: \"\""),
        plain("operation: item.write", "operation: item.*"),
        plain("input_schema: {}", "input_schema: {}\n      cost: { credits: -1 }"),
        plain("input_schema: {}", "input_schema: {}\n      output_schema: { type: thing }"),
        schema("{ type: string }"),
        schema("{ properties: { a: { type: strin } } }"),
        schema("{ properties: { _a: { type: string } } }"),
        schema("{ properties: { a: { $ref: \"https://example.com/a.json\" } } }"),
        schema("{ properties: { a: { $ref: \"#/$defs/a\" } } }"),
        schema("{ properties: { a: { type: string, pattern: \"(?=x)\" } } }"),
        schema("{ properties: { a: { type: string, default: 5 } } }"),
        plain("key: items", "key: \"\""),
        plain("[item]", "[]"),
        plain("[item]", "[a..b]"),
        plain("[item]", "[_resource]"),
        plain("[item]", "[item]\n      operation_filter: \"\""),
        plain("[item]", "[item]\n    - { key: items, param_paths: [item] }"),
        method("inject: [{ header: Authorization, value: \"{password}\" }]"),
        method("inject: [{ header: Authorization, value: \"{access_token\" }]"),
        method("inject: [{ header: Authorization, value: \"{access_token}\\r\\nX: y\" }]"),
        method("inject: [{ header: \"X Y\", value: \"{access_token}\" }]"),
        method("inject: [{ header: Host, value: \"{access_token}\" }]"),
        method("inject: [{ header: Proxy-Authorization, value: \"{access_token}\" }]"),
        method("inject: [{ query: \"\", value: \"{access_token}\" }]"),
        method("inject: [{ body: key, value: \"{access_token}\" }]"),
        method("inject: [{ body: /keys/-, value: \"{access_token}\" }]"),
        method("inject: [{ path: \"{a}{b}\", value: \"{access_token}\" }]"),
        method("inject: [{ basic: { username: \"{user}\", password: x } }]"),
        method("inject: [{ header: a, value: x }, { header: A, value: x }]"),
        method("oauth_config: {}"),
        plain("- method: token", "- method: api_key"),
        plain("- method: token", "- method: basic"),
        plain("- method: token", "- method: token\n    - method: token"),
        plain("- method: token", "- method: oauth2_device_code\n      oauth_config: { token_url: \"file:///x\" }"),
        field("{ field: key, type: secret }"),
        field("{ field: api_base, type: string }"),
        field("{ field: a, type: json }"),
        field("{ field: a, schema: { type: object } }"),
        field("{ field: \"a b\" }"),
        field("{ field: a }\n    - { field: a }"),
        field("{ field: a, type: enum }"),
        field("{ field: a, type: enum, enum_values: [] }"),
        field("{ field: a, type: enum, enum_values: [x, x] }"),
        field("{ field: a, enum_values: [x] }"),
        field("{ field: a, type: enum, enum_values: [x], default: y }"),
        field("{ field: a, type: integer, default: \"5\" }"),
        field("{ field: a, type: url, default: \"file:///x\" }"),
        plain("type: secret }", "type: secret, default: hunter2hunter2 }"),
        executor("component: ../plugin.wasm"),
        executor("component: \"C:\\\\plugin.wasm\""),
        executor("component: \"\""),
        executor("capabilities: [http, http]"),
        executor("calls: [\"jira_*\"]"),
        executor("limits: { fuel: 0, memory_mib: 0, timeout_s: 0 }"),
        executor("follow_redirects: 11"),
    ];
    let said: Vec<String> = cases
        .iter()
        .map(|(old, new)| {
            let said = with(old, new);
            assert_ne!(said, "loads", "{new}");
            format!("{new:?}\n    {said}")
        })
        .collect();
    insta::assert_snapshot!(said.join("\n"), @r###"
    "name: ssh\n"
        monstrum.yaml:1:7: name: `ssh` is reserved for the platform
    "  id: mcp"
        monstrum.yaml:4:7: resource_type.id: `mcp` is a built-in type and cannot be replaced
    "  name: \"\""
        monstrum.yaml:5:9: resource_type.name: must not be empty
    "version: 1.2.3\nhomepage: \"javascript:alert(1)\""
        monstrum.yaml:3:11: homepage: expected an http or https URL
    "version: 1.2.3\nlocales_dir: ../other"
        monstrum.yaml:3:14: locales_dir: the path must not have empty parts, `.` or `..`
    "version: 1.2.3\nlocales_dir: /etc"
        monstrum.yaml:3:14: locales_dir: expected a relative path in the plugin's folder, with `/` between its parts
    "  mode: system"
        monstrum.yaml:6:9: resource_type.mode: the mode of a plugin folder must be `plugin`: `system` is for built-in types, and `endpoint` is reserved
    "  mode: endpoint"
        monstrum.yaml:6:9: resource_type.mode: the mode of a plugin folder must be `plugin`: `system` is for built-in types, and `endpoint` is reserved
    "  icon: star.svg"
        monstrum.yaml:6:9: resource_type.icon: an SVG may run scripts: use a PNG or WebP file
    "  icon: star.exe"
        monstrum.yaml:6:9: resource_type.icon: expected a name such as `github`, or a PNG or WebP file
    "  icon: ../star.png"
        monstrum.yaml:6:9: resource_type.icon: the path must not have empty parts, `.` or `..`
    "sample_read"
        monstrum.yaml:19:13: resource_type.tools[1].name: tools[0] already has the name `sample_read`
    "sandbox_write"
        monstrum.yaml:19:13: resource_type.tools[1].name: names that start with `sandbox_` are reserved for the platform
    "llm_write"
        monstrum.yaml:19:13: resource_type.tools[1].name: names that start with `llm_` are reserved for the platform
    "task_write"
        monstrum.yaml:19:13: resource_type.tools[1].name: names that start with `task_` are reserved for the platform
    "description: \" \""
        monstrum.yaml:20:20: resource_type.tools[1].description: must not be empty, because models choose tools by their description
    "operation: \"\""
        monstrum.yaml:21:18: resource_type.tools[1].operation: expected a name such as `issue.read`: 1 to 128 letters, digits, `.`, `_`, `-` or `:`
    "operation: item.*"
        monstrum.yaml:21:18: resource_type.tools[1].operation: expected a name such as `issue.read`: 1 to 128 letters, digits, `.`, `_`, `-` or `:`
    "input_schema: {}\n      cost: { credits: -1 }"
        monstrum.yaml:23:24: resource_type.tools[1].cost.credits: must not be negative
    "input_schema: {}\n      output_schema: { type: thing }"
        monstrum.yaml:23:22: resource_type.tools[1].output_schema: not a JSON Schema: at `/type`: expected array, boolean, integer, null, number, object or string, or a list of these
    "input_schema: { type: string }"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: at `/type`: parameters are an object, so the type must be `object`
    "input_schema: { properties: { a: { type: strin } } }"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: not a JSON Schema: at `/properties/a/type`: expected array, boolean, integer, null, number, object or string, or a list of these
    "input_schema: { properties: { _a: { type: string } } }"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: parameter `_a`: names that start with `_` are reserved for the platform
    "input_schema: { properties: { a: { $ref: \"https://example.com/a.json\" } } }"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: at `/properties/a/$ref`: `https://example.com/a.json` is outside the schema; only references such as `#/$defs/name` are allowed
    "input_schema: { properties: { a: { $ref: \"#/$defs/a\" } } }"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: at `/properties/a/$ref`: `#/$defs/a` does not refer to a schema
    "input_schema: { properties: { a: { type: string, pattern: \"(?=x)\" } } }"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: not a JSON Schema: at `/properties/a/pattern`: `(?=x)` is not a regular expression, is too large, or has look-around or back-references
    "input_schema: { properties: { a: { type: string, default: 5 } } }"
        monstrum.yaml:22:21: resource_type.tools[1].input_schema: the default at `/a` is not valid: 5 is not of type "string"
    "key: \"\""
        monstrum.yaml:24:12: resource_type.scope_dimensions[0].key: must not be empty
    "[]"
        monstrum.yaml:25:20: resource_type.scope_dimensions[0].param_paths: must not be empty, because the dimension would not check anything
    "[a..b]"
        monstrum.yaml:25:21: resource_type.scope_dimensions[0].param_paths[0]: expected the name of a parameter; dots separate the keys of nested objects, as in `target.repo`
    "[_resource]"
        monstrum.yaml:25:21: resource_type.scope_dimensions[0].param_paths[0]: parameters that start with `_` are reserved for the platform
    "[item]\n      operation_filter: \"\""
        monstrum.yaml:26:25: resource_type.scope_dimensions[0].operation_filter: must not be empty
    "[item]\n    - { key: items, param_paths: [item] }"
        monstrum.yaml:26:14: resource_type.scope_dimensions[1].key: duplicate entry `items`
    "- method: token\n      inject: [{ header: Authorization, value: \"{password}\" }]"
        monstrum.yaml:13:16: resource_type.auth_methods[0].inject[0]: `{password}` is not a field: expected one of the credential's fields (`access_token`)
    "- method: token\n      inject: [{ header: Authorization, value: \"{access_token\" }]"
        monstrum.yaml:13:16: resource_type.auth_methods[0].inject[0]: braces must enclose the name of a credential field, as in `{access_token}`
    "- method: token\n      inject: [{ header: Authorization, value: \"{access_token}\\r\\nX: y\" }]"
        monstrum.yaml:13:16: resource_type.auth_methods[0].inject[0]: a value must not contain control characters
    "- method: token\n      inject: [{ header: \"X Y\", value: \"{access_token}\" }]"
        monstrum.yaml:13:26: resource_type.auth_methods[0].inject[0].header: expected the name of a header, such as Authorization
    "- method: token\n      inject: [{ header: Host, value: \"{access_token}\" }]"
        monstrum.yaml:13:26: resource_type.auth_methods[0].inject[0].header: only the host may set the header `Host`
    "- method: token\n      inject: [{ header: Proxy-Authorization, value: \"{access_token}\" }]"
        monstrum.yaml:13:26: resource_type.auth_methods[0].inject[0].header: only the host may set the header `Proxy-Authorization`
    "- method: token\n      inject: [{ query: \"\", value: \"{access_token}\" }]"
        monstrum.yaml:13:25: resource_type.auth_methods[0].inject[0].query: must not be empty
    "- method: token\n      inject: [{ body: key, value: \"{access_token}\" }]"
        monstrum.yaml:13:24: resource_type.auth_methods[0].inject[0].body: expected a JSON pointer such as `/auth/key`
    "- method: token\n      inject: [{ body: /keys/-, value: \"{access_token}\" }]"
        monstrum.yaml:13:24: resource_type.auth_methods[0].inject[0].body: expected a JSON pointer such as `/auth/key`
    "- method: token\n      inject: [{ path: \"{a}{b}\", value: \"{access_token}\" }]"
        monstrum.yaml:13:24: resource_type.auth_methods[0].inject[0].path: expected exactly one placeholder, such as `{token}`
    "- method: token\n      inject: [{ basic: { username: \"{user}\", password: x } }]"
        monstrum.yaml:13:16: resource_type.auth_methods[0].inject[0]: `{user}` is not a field: expected one of the credential's fields (`access_token`)
    "- method: token\n      inject: [{ header: a, value: x }, { header: A, value: x }]"
        monstrum.yaml:13:41: resource_type.auth_methods[0].inject[1]: an earlier rule sets the same part of the request
    "- method: token\n      oauth_config: {}"
        monstrum.yaml:13:21: resource_type.auth_methods[0].oauth_config: the method `token` does not use OAuth
    "- method: api_key"
        monstrum.yaml:12:7: resource_type.auth_methods[0].inject: the default `inject` rules use `{api_key}`, which is not a field of the credential; add the field to the credential, or add `inject` rules that use its fields (`access_token`)
    "- method: basic"
        monstrum.yaml:12:7: resource_type.auth_methods[0].inject: the default `inject` rules use `{username}`, which is not a field of the credential; add the field to the credential, or add `inject` rules that use its fields (`access_token`)
    monstrum.yaml:12:7: resource_type.auth_methods[0].inject: the default `inject` rules use `{password}`, which is not a field of the credential; add the field to the credential, or add `inject` rules that use its fields (`access_token`)
    "- method: token\n    - method: token"
        monstrum.yaml:13:15: resource_type.auth_methods[1].method: duplicate entry `token`
    "- method: oauth2_device_code\n      oauth_config: { token_url: \"file:///x\" }"
        monstrum.yaml:13:34: resource_type.auth_methods[0].oauth_config.token_url: expected an http or https URL
    "- { field: key, type: secret }"
        monstrum.yaml:8:27: resource_type.config_schema[0].type: a configuration is stored and shown as plain text: put secrets into credential_schema
    "- { field: api_base, type: string }"
        monstrum.yaml:8:32: resource_type.config_schema[0].type: the type of api_base must be `url`, because api_base determines where credentials are sent
    "- { field: a, type: json }"
        monstrum.yaml:8:25: resource_type.config_schema[0].type: only built-in types can have a field of type `json` or a field with a schema
    "- { field: a, schema: { type: object } }"
        monstrum.yaml:8:7: resource_type.config_schema[0].type: only built-in types can have a field of type `json` or a field with a schema
    "- { field: \"a b\" }"
        monstrum.yaml:8:16: resource_type.config_schema[0].field: expected 1 to 64 letters, digits, `_` or `-`
    "- { field: a }\n    - { field: a }"
        monstrum.yaml:9:16: resource_type.config_schema[1].field: duplicate entry `a`
    "- { field: a, type: enum }"
        monstrum.yaml:8:7: resource_type.config_schema[0].enum_values: a field of type `enum` requires a list of values
    "- { field: a, type: enum, enum_values: [] }"
        monstrum.yaml:8:44: resource_type.config_schema[0].enum_values: a field of type `enum` requires a list of values
    "- { field: a, type: enum, enum_values: [x, x] }"
        monstrum.yaml:8:48: resource_type.config_schema[0].enum_values[1]: duplicate entry `x`
    "- { field: a, enum_values: [x] }"
        monstrum.yaml:8:32: resource_type.config_schema[0].enum_values: only a field of type `enum` may have a list of values
    "- { field: a, type: enum, enum_values: [x], default: y }"
        monstrum.yaml:8:58: resource_type.config_schema[0].default: the default is not a valid value: expected one of `x`
    "- { field: a, type: integer, default: \"5\" }"
        monstrum.yaml:8:43: resource_type.config_schema[0].default: the default is not a valid value: expected an integer
    "- { field: a, type: url, default: \"file:///x\" }"
        monstrum.yaml:8:39: resource_type.config_schema[0].default: the default is not a valid value: expected an http or https URL
    "type: secret, default: hunter2hunter2 }"
        monstrum.yaml:10:53: resource_type.credential_schema[0].default: a secret must not have a default, because all resources would share it
    "component: ../plugin.wasm"
        monstrum.yaml:27:14: executor.component: the path must not have empty parts, `.` or `..`
    "component: \"C:\\\\plugin.wasm\""
        monstrum.yaml:27:14: executor.component: expected a relative path in the plugin's folder, with `/` between its parts
    "component: \"\""
        monstrum.yaml:27:14: executor.component: expected a name of at most 256 bytes
    "capabilities: [http, http]"
        monstrum.yaml:27:24: executor.capabilities[1]: duplicate capability
    "calls: [\"jira_*\"]"
        monstrum.yaml:27:10: executor.calls: calls to other tools require the capability `tools`
    "limits: { fuel: 0, memory_mib: 0, timeout_s: 0 }"
        monstrum.yaml:27:19: executor.limits.fuel: must be greater than 0
    monstrum.yaml:27:34: executor.limits.memory_mib: must be greater than 0
    monstrum.yaml:27:48: executor.limits.timeout_s: must be greater than 0
    "follow_redirects: 11"
        monstrum.yaml:27:21: executor.follow_redirects: at most 10 redirects are allowed
    "###);
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = SMALL
        .replace("name: sample\n", "name: web\n")
        .replace("item.write", "a b")
        .replace("[item]", "[]")
        .replace("[http]", "[http, http]");
    insta::assert_snapshot!(says(&text), @r###"
    monstrum.yaml:1:7: name: `web` is reserved for the platform
    monstrum.yaml:21:18: resource_type.tools[1].operation: expected a name such as `issue.read`: 1 to 128 letters, digits, `.`, `_`, `-` or `:`
    monstrum.yaml:25:20: resource_type.scope_dimensions[0].param_paths: must not be empty, because the dimension would not check anything
    monstrum.yaml:27:24: executor.capabilities[1]: duplicate capability
    "###);
}

#[test]
fn what_is_allowed_loads() {
    for (old, new) in [
        ("version: 1.2.3", "version: 1.2.3\nx-note: { any: [thing] }\nx-note-2: 1"),
        ("  icon: star", "  icon: star.png\n  x-team: me"),
        ("  icon: star", "  icon: \"\""),
        ("- method: token", "- method: none"),
        ("- method: token", "- method: oauth2_client_creds\n      credential_schema: [{ field: client }]"),
        (
            "- method: token",
            "- method: token\n      inject: [{ header: Cookie, value: \"s={access_token}\", x-why: z }]",
        ),
        ("- method: token", "- method: token\n      inject: []"),
        ("capabilities: [http]", "capabilities: [tools]\n  calls: [\"jira_*\"]"),
        ("capabilities: [http]", "limits: { fuel: 1, memory_mib: 1, timeout_s: 1 }\n  follow_redirects: 10"),
        ("input_schema: {}", "input_schema: &s { properties: { a: {} } }\n      output_schema: *s"),
        ("operation: item.write", "operation: item.read"),
    ] {
        assert_eq!(with(old, new), "loads", "{new}");
    }
}

#[test]
fn schemas_and_defaults_keep_their_keys() {
    let text =
        SMALL.replace("input_schema: {}", "input_schema: { x-a: 1, properties: { x-b: { x-c: 2 } } }\n      x-d: 3");
    let manifest = parse("monstrum.yaml", &text).unwrap();
    let schema = serde_json::to_string(&manifest.resource_type.tools[1].input_schema).unwrap();
    assert_eq!(schema, r#"{"x-a":1,"properties":{"x-b":{"x-c":2}}}"#);
}
