use monstrum_guardian::Permit;

fn alter(permit: &mut Permit) {
    permit.facts.params.clear();
}

fn main() {}
