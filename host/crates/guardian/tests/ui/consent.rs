use monstrum_guardian::Permit;
use monstrum_types::ApprovalId;

fn approve(permit: &mut Permit, approval: ApprovalId) {
    permit.approval = Some(approval);
}

fn main() {}
