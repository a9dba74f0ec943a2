//! How the binary is linked.

#![allow(clippy::print_stdout, reason = "cargo reads it")]

fn main() {
    // A position-independent binary holds a relocation for every pointer in its constants: some
    // 60 000 here, 1.4 MiB that each start reads and that stay in a small process's memory.
    // Packed (RELR) they take a few pages. Static glibc understands them since 2.36.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    println!("cargo::rerun-if-changed=build.rs");
}
