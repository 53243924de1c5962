use monstrum_guardian::{Consent, Permit};

fn approve(permit: &mut Permit, consent: Consent) {
    permit.consent = Some(consent);
}

fn main() {}
