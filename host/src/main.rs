//! The binary: hands the arguments to the command line and its exit code to the system.

use std::process::ExitCode;

/// Every call makes some hundred small allocations on whichever thread it runs; glibc's own takes twice the time for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    monstrum_host::cli::main()
}
