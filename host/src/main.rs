//! The binary: hands the arguments to the command line and its exit code to the system.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else has begun: what becomes the launcher of sandboxes has one thread, and nothing in memory.
    #[cfg(target_os = "linux")]
    monstrum_sandbox_embedded::run_if_launcher();
    monstrum_host::cli::main()
}
