//! The `monstrum` binary: runs the command line and returns its exit code.

use std::process::ExitCode;

/// A call makes some hundred small allocations, and this allocator needs half the time of glibc's for each.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // This must be the first statement: a process that becomes the launcher of sandboxes must have one thread and no
    // secrets in memory.
    #[cfg(target_os = "linux")]
    monstrum_sandbox_embedded::run_if_launcher();
    monstrum_host::cli::main()
}
