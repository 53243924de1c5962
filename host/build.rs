//! Makes cargo embed new files of the SDK: `include_dir!` itself only notices changes of known files.

#![expect(clippy::print_stdout, reason = "build scripts write instructions for cargo to standard output")]

fn main() {
    println!("cargo::rerun-if-changed=../sdk-guest/src");
}
