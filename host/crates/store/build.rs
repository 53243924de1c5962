//! Rebuilds the crate when a migration is added, because `sqlx::migrate!` tracks only files that are already embedded.

fn main() {
    println!("cargo:rerun-if-changed=../../../migrations");
}
