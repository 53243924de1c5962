use monstrum_guardian::Permit;

fn alter(permit: &mut Permit) {
    permit.params().insert("repo".to_owned(), "other/x".into());
}

fn main() {}
