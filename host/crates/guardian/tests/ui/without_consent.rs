use monstrum_guardian::{PendingPermit, Permit};

fn run(pending: PendingPermit) -> Permit {
    pending.permit
}

fn main() {}
