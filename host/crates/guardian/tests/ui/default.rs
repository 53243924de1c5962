use monstrum_guardian::Permit;

fn main() {
    let _permit: Permit = Default::default();
}
