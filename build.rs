//! How the binary is linked, and which agent it brings along.

#![allow(clippy::print_stdout, reason = "cargo reads it")]
#![allow(clippy::disallowed_methods, reason = "cargo tells it in the environment")]

use std::{env, fs, path::Path};

const ORDER: &str = "src/pilot/idle.ld";
/// The agent by which pilots ask a JVM; `make deps` fetches it.
const AGENT: &str = ".cache/jolokia-agent-jvm-2.2.9.jar";

fn main() {
    // A position-independent binary holds a relocation for every pointer in its constants: some
    // 60 000 here, 1.4 MiB that each start reads and that stay in a small process's memory.
    // Packed (RELR) they take a few pages. Static glibc understands them since 2.36.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    // The code that an idle pilot runs lies together: the kernel maps 16 pages around each page in
    // use, and of 14 MiB of code little more than one MiB is in use (docs/pilot.md).
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    agent(&root, is_release);
    if is_release {
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

/// Names the agent's file. Without one the code can still be checked and its unit tests run: an
/// empty file takes its place, which `navigator install` refuses.
fn agent(root: &str, is_release: bool) {
    let mut file = format!("{root}/{AGENT}");
    println!("cargo::rerun-if-changed={file}");
    if !Path::new(&file).exists() {
        let missing = format!("{AGENT} is missing: `make deps` fetches it (with Maven)");
        if is_release {
            println!("cargo::error={missing}");
            return;
        }
        println!("cargo::warning={missing}; this build can be checked and tested, not installed");
        file = format!("{}/no-agent.jar", env::var("OUT_DIR").expect("cargo sets it"));
        fs::write(&file, b"").expect("cargo made the folder");
    }
    println!("cargo::rustc-env=NAVIGATOR_JOLOKIA_AGENT={file}");
}
