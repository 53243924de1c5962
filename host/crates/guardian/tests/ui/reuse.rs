use monstrum_guardian::Permit;

fn run(_permit: Permit) {}

fn twice(permit: Permit) {
    run(permit);
    run(permit);
}

fn main() {}
