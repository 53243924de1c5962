//! Tests with large, deeply nested and random text.

use proptest::prelude::*;

use super::*;

#[test]
fn size_and_depth_are_limited_before_parsing() {
    let large = format!("{SMALL}# {}", "x".repeat(MANIFEST_BYTES_MAX));
    assert_eq!(says(&large), "monstrum.yaml: the manifest has 262771 bytes; at most 262144 are allowed");
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
fn alias_expansion_is_limited() {
    let mut text = format!("resource_type:\n  a0: &a0 [{}]\n", vec!["x"; 1_000].join(", "));
    for level in 1..10 {
        let list = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("  a{level}: &a{level} [{list}]\n"));
    }
    assert!(
        says(&text).ends_with(": the file has more than 200000 keys and values after aliases are expanded"),
        "{}",
        says(&text)
    );
    let long = format!("name: &a \"{}\"\ntags: [{}]", "x".repeat(10_000), vec!["*a"; 200].join(", "));
    assert!(
        says(&long).ends_with(": the file has more than 1048576 bytes of text after aliases are expanded"),
        "{}",
        says(&long)
    );
    assert!(says("name: &a [*a]").ends_with(": nested deeper than 64 levels"), "{}", says("name: &a [*a]"));
}

#[test]
fn lists_have_limits() {
    let tools: String = (0..1_001)
        .map(|n| format!("    - {{ name: sample_{n}, description: d, operation: o, input_schema: {{}} }}\n"))
        .collect();
    let text = SMALL.replace("  tools:\n", &format!("  tools:\n{tools}"));
    assert!(says(&text).contains("resource_type.tools: at most 1000 entries are allowed, found 1003"));
    let egress: String = (0..65).map(|n| format!("\"https://h{n}.example\", ")).collect();
    let said = with("capabilities: [http]", &format!("egress: [{egress}]"));
    assert!(said.ends_with("executor.egress: at most 64 entries are allowed, found 65"), "{said}");
    let dimensions: String = (0..100).map(|n| format!("    - {{ key: k{n}, param_paths: [item] }}\n")).collect();
    let said = with("  scope_dimensions:\n", &format!("  scope_dimensions:\n{dimensions}"));
    assert!(said.ends_with("resource_type.scope_dimensions: at most 100 entries are allowed, found 101"), "{said}");
}

#[test]
fn errors_are_limited_and_quoted_values_are_cut() {
    let dimensions: String = (0..90).map(|n| format!("    - {{ key: k{n}, param_paths: [a., _b] }}\n")).collect();
    let said = with("  scope_dimensions:\n", &format!("  scope_dimensions:\n{dimensions}"));
    assert_eq!(said.lines().count(), ERRORS_MAX + 1);
    assert!(said.ends_with("monstrum.yaml: and 130 more errors"), "{said}");
    let said = with("name: sample", &format!("name: {}", "x".repeat(10_000)));
    assert!(said.len() < 1_000, "{said}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

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
