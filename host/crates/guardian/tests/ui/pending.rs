use monstrum_guardian::{Asked, PendingPermit, Permit};

fn forge(permit: Permit, asked: Asked) -> PendingPermit {
    PendingPermit { permit, asked }
}

fn main() {}
