//! Makes cargo embed new files of the SDK: `include_dir!` itself only notices changes of known files.

fn main() {
    println!("cargo::rerun-if-changed=../sdk-guest/src");
}
