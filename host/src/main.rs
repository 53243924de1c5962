//! The binary: hands the arguments to the command line and its exit code to the system.

use std::process::ExitCode;

fn main() -> ExitCode {
    monstrum_host::cli::main()
}
