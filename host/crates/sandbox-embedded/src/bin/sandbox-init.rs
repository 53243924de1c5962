//! The launcher as a program for the tests of this crate. It is needed because a test binary cannot become the
//! launcher.

fn main() {
    #[cfg(target_os = "linux")]
    monstrum_sandbox_embedded::run_if_launcher();
}
