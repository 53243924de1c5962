//! Compares the macro `contract_suite` with the modules that define its cases.

/// Fails when a module has a case that `contract_suite` does not list: that case would never run.
#[test]
fn suite_lists_every_case() {
    let suite = include_str!("../src/contract/suite.rs");
    let themes = [
        include_str!("../src/contract/archive.rs"),
        include_str!("../src/contract/attacks.rs"),
        include_str!("../src/contract/exec.rs"),
        include_str!("../src/contract/files.rs"),
        include_str!("../src/contract/isolation.rs"),
        include_str!("../src/contract/lifecycle.rs"),
        include_str!("../src/contract/limits.rs"),
        include_str!("../src/contract/output.rs"),
        include_str!("../src/contract/programs.rs"),
    ];
    let mut checked = 0;
    for line in themes.iter().flat_map(|theme| theme.lines()) {
        let case = line.strip_prefix("pub async fn ").and_then(|rest| rest.strip_suffix("(subject: &Subject) {"));
        if let Some(case) = case {
            let is_listed = suite.split(|c: char| c != '_' && !c.is_alphanumeric()).any(|word| word == case);
            assert!(is_listed, "`{case}` is not in `contract_suite`");
            checked += 1;
        }
    }
    assert!(checked > 90, "only {checked} cases were found");
}
