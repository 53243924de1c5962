use monstrum_guardian::Permit;

fn twice(permit: &Permit) -> Permit {
    Clone::clone(permit)
}

fn main() {}
