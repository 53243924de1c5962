//! The launcher as a program of its own, for the tests of this crate: a test cannot be started as one.

fn main() {
    monstrum_sandbox::run_if_launcher();
}
