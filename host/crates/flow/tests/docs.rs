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

/// The recipes are linked from the page, and the page's tests run them.
#[test]
fn every_recipe_is_a_valid_definition_and_has_a_section() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/workflows");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let checked = check(&std::fs::read_to_string(&path).unwrap(), None);
        let checked = checked.unwrap_or_else(|faults| panic!("{faults:#?}\n{}", path.display()));
        assert_eq!(checked.warnings, [], "{}", path.display());
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(page().contains(&format!("](../examples/workflows/{name})")), "the page has no link to {name}");
        assert_eq!(name, format!("{}.yaml", checked.definition.workflow));
        found += 1;
    }
    assert_eq!(found, 4);
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
