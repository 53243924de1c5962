use monstrum_guardian::Permit;

fn main() {
    let _permit: Permit = serde_json::from_str("{}").unwrap();
}
