use monstrum_guardian::{CallFacts, Permit};

fn forge(facts: CallFacts) -> Permit {
    Permit {
        facts,
        tool: "github_list_issues".parse().unwrap(),
        operation: "issue.read".to_owned(),
        scope_json: "[]".to_owned(),
    }
}

fn main() {}
