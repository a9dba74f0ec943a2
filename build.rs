//! How the binary is linked.

#![allow(clippy::print_stdout, reason = "cargo reads it")]
#![allow(clippy::disallowed_methods, reason = "cargo tells it in the environment")]

use std::env;

const ORDER: &str = "src/pilot/idle.ld";

fn main() {
    // A position-independent binary holds a relocation for every pointer in its constants: some
    // 60 000 here, 1.4 MiB that each start reads and that stay in a small process's memory.
    // Packed (RELR) they take a few pages. Static glibc understands them since 2.36.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // The code that an idle pilot runs lies together: the kernel maps 16 pages around each page in
    // use, and of 14 MiB of code little more than one MiB is in use (docs/pilot.md).
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
        // Functions of the same machine code are linked once.
        println!("cargo::rustc-link-arg-bin=navigator=-Wl,--icf=all");
        println!("cargo::rustc-link-arg-bin=navigator=-Wl,-T,{root}/{ORDER}");
        // Beside the program: where each function lies, for scripts/idle.py. The program is stripped.
        let out = env::var("OUT_DIR").expect("cargo sets it");
        println!("cargo::rustc-link-arg-bin=navigator=-Wl,-Map,{out}/../../../navigator.map");
    }
    println!("cargo::rerun-if-changed={ORDER}");
    println!("cargo::rerun-if-changed=build.rs");
}
