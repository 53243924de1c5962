//! The launcher as a separate program for the tests of this crate: a test binary cannot become the launcher.

fn main() {
    #[cfg(target_os = "linux")]
    monstrum_sandbox_embedded::run_if_launcher();
}
