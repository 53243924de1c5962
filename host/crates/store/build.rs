//! Rebuilds the crate when a migration is added: `sqlx::migrate!` tracks only the files that it has embedded.

fn main() {
    println!("cargo:rerun-if-changed=../../../migrations");
}
