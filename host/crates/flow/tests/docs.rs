//! The examples of docs/workflows.md are valid, and its tables name what the language has.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use monstrum_flow::check;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/workflows.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_example_is_a_valid_definition() {
    let page = page();
    let examples: Vec<&str> =
        page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(examples.len() >= 2, "{} examples", examples.len());
    for example in examples {
        let checked = check(example, None).unwrap_or_else(|faults| panic!("{faults:#?}\n{example}"));
        assert_eq!(checked.warnings, [], "{example}");
    }
}

#[test]
fn the_example_of_a_fault_is_what_the_checker_says() {
    let text =
        "workflow: release\nbot: b\nsteps:\n  - { id: a, tool: t }\n\n\n\n\n\n  - { id: pause, wait: { for: soon } }\n";
    let faults = check(text, None).unwrap_err();
    let line = format!("release.yaml:{}", faults[0]);
    assert!(page().contains(&line), "{line}");
    assert!(page().contains(faults[0].hint.as_deref().unwrap()));
}
