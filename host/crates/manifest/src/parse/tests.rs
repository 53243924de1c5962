use proptest::prelude::*;

use super::*;
use crate::model::{Capability, Mode};

const GITHUB: &str = include_str!("../../fixtures/github.yaml");

/// A small manifest, whose lines the cases below replace.
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

/// What the small manifest says once `old` has become `new`.
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
    // The order of the source is kept, because models read it.
    let properties = manifest.resource_type.tools[0].input_schema["properties"].as_object().unwrap();
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["repo", "state", "labels", "since", "per_page"]);
    assert_eq!(crate::warnings(&manifest, |_, _| true), Vec::<String>::new());
}

#[test]
fn a_manifest_survives_json() {
    let manifest = parse("monstrum.yaml", GITHUB).unwrap();
    let json = serde_json::to_string(&manifest).unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(&json).unwrap(), manifest);
}

#[test]
fn faults_of_shape_name_line_and_field() {
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
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn faults_of_yaml_name_the_line() {
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
fn every_rule_refuses_what_breaks_it() {
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
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn all_faults_are_told_at_once() {
    let text = SMALL
        .replace("name: sample\n", "name: web\n")
        .replace("item.write", "a b")
        .replace("[item]", "[]")
        .replace("[http]", "[http, http]");
    insta::assert_snapshot!(says(&text), @r###"
    monstrum.yaml:1:7: name: `web` is reserved for the platform
    monstrum.yaml:21:18: resource_type.tools[1].operation: expected a name such as `issue.read`: 1 to 128 letters, digits, `.`, `_`, `-` or `:`
    monstrum.yaml:25:20: resource_type.scope_dimensions[0].param_paths: must not be empty: the dimension would check nothing
    monstrum.yaml:27:24: executor.capabilities[1]: the capability is there twice
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

#[test]
fn a_file_is_capped_before_it_is_parsed() {
    let large = format!("{SMALL}# {}", "x".repeat(MANIFEST_BYTES_MAX));
    assert_eq!(says(&large), "monstrum.yaml: a manifest has at most 262144 bytes, this one has 262771");
    let deep = |text: &str| says(&text.repeat(60_000).chars().take(MANIFEST_BYTES_MAX).collect::<String>());
    for (unit, line) in
        [("[", "1:65"), ("{a: ", "1:257"), ("- ", "1:129"), ("? ", "1:129"), ("{[", "1:65"), ("[\n", "65:1")]
    {
        assert_eq!(deep(unit), format!("monstrum.yaml:{line}: nested deeper than 64 levels"), "{unit}");
    }
    let nested = |levels: usize| format!("x-a: {}{}\n{SMALL}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(says(&nested(63)), "loads");
    assert_eq!(says(&nested(64)), "monstrum.yaml:1:69: nested deeper than 64 levels");
}

#[test]
fn aliases_cannot_multiply() {
    let mut text = format!("resource_type:\n  a0: &a0 [{}]\n", vec!["x"; 1_000].join(", "));
    for level in 1..10 {
        let list = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("  a{level}: &a{level} [{list}]\n"));
    }
    assert!(says(&text).ends_with(": the manifest holds more than 200000 keys and values"), "{}", says(&text));
    let long = format!("name: &a \"{}\"\ntags: [{}]", "x".repeat(10_000), vec!["*a"; 200].join(", "));
    assert!(says(&long).ends_with(": the manifest holds more than 1048576 bytes of text"), "{}", says(&long));
    assert!(says("name: &a [*a]").ends_with(": nested deeper than 64 levels"), "{}", says("name: &a [*a]"));
}

#[test]
fn lists_have_limits() {
    let tools: String = (0..1_001)
        .map(|n| format!("    - {{ name: sample_{n}, description: d, operation: o, input_schema: {{}} }}\n"))
        .collect();
    let text = SMALL.replace("  tools:\n", &format!("  tools:\n{tools}"));
    assert!(says(&text).contains("resource_type.tools: at most 1000 entries are allowed, here are 1003"));
    let egress: String = (0..65).map(|n| format!("\"https://h{n}.example\", ")).collect();
    let said = with("capabilities: [http]", &format!("egress: [{egress}]"));
    assert!(said.ends_with("executor.egress: at most 64 entries are allowed, here are 65"), "{said}");
    let dimensions: String = (0..100).map(|n| format!("    - {{ key: k{n}, param_paths: [item] }}\n")).collect();
    let said = with("  scope_dimensions:\n", &format!("  scope_dimensions:\n{dimensions}"));
    assert!(said.ends_with("resource_type.scope_dimensions: at most 100 entries are allowed, here are 101"), "{said}");
}

#[test]
fn faults_are_capped_and_long_values_are_not_echoed() {
    let dimensions: String = (0..90).map(|n| format!("    - {{ key: k{n}, param_paths: [a., _b] }}\n")).collect();
    let said = with("  scope_dimensions:\n", &format!("  scope_dimensions:\n{dimensions}"));
    assert_eq!(said.lines().count(), FAULTS_MAX + 1);
    assert!(said.ends_with("monstrum.yaml: and 80 more faults"), "{said}");
    let said = with("name: sample", &format!("name: {}", "x".repeat(10_000)));
    assert!(said.len() < 1_000, "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_text_never_panics(text in "(?s).{0,200}") {
        let _ = parse("m", &text);
    }

    #[test]
    fn random_yaml_never_panics(text in "([a-c]|: |\\n|- |\\? |  |\\[|\\]|\\{|\\}|,|'|\"|#|&a |\\*a|!t |\\||>|%|---|\\.\\.\\.|<<|~|1|\\\\){0,60}") {
        let _ = parse("m", &text);
    }

    #[test]
    fn random_mutations_never_panic(at in 0..GITHUB.len(), length in 0..40_usize, by in "[\\PC\\n]{0,8}") {
        let mut bytes = GITHUB.as_bytes().to_vec();
        let end = (at + length).min(bytes.len());
        bytes.splice(at..end, by.bytes());
        let text = String::from_utf8_lossy(&bytes);
        if let Err(errors) = parse("m", &text) {
            prop_assert!(!errors.0.is_empty());
        }
    }
}
