//! Packs definitions that the program holds as text: Kubernetes' own, and those of the cluster
//! manager's kinds.

#![allow(clippy::print_stdout, reason = "cargo reads it")]
#![allow(clippy::disallowed_methods, reason = "cargo tells it in the environment")]

use std::{env, fs, io::Write};

use flate2::{Compression, write::DeflateEncoder};

const KUBERNETES: &str = "../machinery/schema/kubernetes.json";
const CONTAINERSHIP: &str = "../api/containership/definitions";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={KUBERNETES}");
    println!("cargo::rerun-if-changed={CONTAINERSHIP}");
    pack_file("kubernetes.json", &fs::read(KUBERNETES).expect("it is a part of the source"));
    let folder = fs::read_dir(CONTAINERSHIP).expect("it is a part of the source");
    let mut files: Vec<_> = folder.map(|file| file.expect("it is listed").path()).collect();
    files.sort();
    let mut documents = String::new();
    for file in files {
        documents.push_str("---\n");
        documents.push_str(&fs::read_to_string(file).expect("a file of text"));
    }
    pack_file("containership.yaml", documents.as_bytes());
}

fn pack_file(name: &str, bytes: &[u8]) {
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes).expect("memory is written");
    let packed = packer.finish().expect("memory is written");
    let file = format!("{}/{name}.packed", env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(file, packed).expect("cargo made the folder");
}
