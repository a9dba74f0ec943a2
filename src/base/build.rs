//! Packs Kubernetes' own definitions, which the server knows by heart.

#![allow(clippy::print_stdout, reason = "cargo reads it")]
#![allow(clippy::disallowed_methods, reason = "cargo tells it in the environment")]

use std::{env, fs, io::Write};

use flate2::{Compression, write::DeflateEncoder};

const DEFINITIONS: &str = "../machinery/schema/kubernetes.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={DEFINITIONS}");
    let definitions = fs::read(DEFINITIONS).expect("it is a part of the source");
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
    packer.write_all(&definitions).expect("memory is written");
    let packed = packer.finish().expect("memory is written");
    let file = format!("{}/kubernetes.json.packed", env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(file, packed).expect("cargo made the folder");
}
