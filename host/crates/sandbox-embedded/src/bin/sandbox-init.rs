//! The launcher as a program of its own, for the tests of this crate: a test cannot be started as one.

fn main() {
    #[cfg(target_os = "linux")]
    monstrum_sandbox_embedded::run_if_launcher();
}
