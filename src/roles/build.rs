//! Packs the agent by which pilots ask a JVM, and names the file. Without the agent the code can still be
//! checked and its unit tests run: an empty file takes its place, which `navigator install` refuses.

#![allow(clippy::print_stdout, reason = "cargo reads it")]
#![allow(clippy::disallowed_methods, reason = "cargo tells it in the environment")]

use std::{
    env, fs,
    io::{Read, Write},
    path::Path,
};

use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};

/// Where `make deps` puts the agent.
const FOLDER: &str = "../../.cache/agent";
const AGENT: &str = "jolokia-agent-jvm-2.2.9.jar";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The folder, since a file that is missing would make this run each time, and all be compiled again.
    println!("cargo::rerun-if-changed={FOLDER}");
    let file = format!("{FOLDER}/{AGENT}");
    let packed = if Path::new(&file).exists() {
        let jar = fs::read(&file).expect("it is there");
        pack(&stored(&jar).expect("an archive of Java"))
    } else {
        let missing = format!("{AGENT} is missing: `make deps` fetches it (with Maven)");
        if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
            println!("cargo::error={missing}");
            return;
        }
        println!("cargo::warning={missing}; this build can be checked and tested, not installed");
        Vec::new()
    };
    let file = format!("{}/agent.packed", env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(&file, packed).expect("cargo made the folder");
    println!("cargo::rustc-env=NAVIGATOR_JOLOKIA_AGENT={file}");
}

fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes).expect("memory is written");
    packer.finish().expect("memory is written")
}

/// Returns a ZIP archive with the same entries, none of them compressed: packed as a whole it takes
/// two thirds of what its entries take when each is packed by itself.
fn stored(archive: &[u8]) -> Option<Vec<u8>> {
    const END: &[u8] = b"PK\x05\x06";
    let short = |at: usize| {
        Some(usize::from(u16::from_le_bytes(archive.get(at..at + 2)?.try_into().ok()?)))
    };
    let long =
        |at: usize| Some(u32::from_le_bytes(archive.get(at..at + 4)?.try_into().ok()?) as usize);
    let end = archive.windows(END.len()).rposition(|window| window == END)?;
    let (mut at, count) = (long(end + 16)?, short(end + 10)?);
    let (mut files, mut directory) = (Vec::new(), Vec::new());
    for _ in 0..count {
        // Of the directory's entry: method, sizes, lengths of what follows, where the file begins.
        let entry = archive.get(at..at + 46)?;
        let (method, packed, size) = (short(at + 10)?, long(at + 20)?, long(at + 24)?);
        let (name, extra, comment) = (short(at + 28)?, short(at + 30)?, short(at + 32)?);
        let local = long(at + 42)?;
        let begins = local + 30 + short(local + 26)? + short(local + 28)?;
        let content = archive.get(begins..begins + packed)?;
        let mut plain = Vec::new();
        match method {
            0 => plain.extend(content),
            8 => drop(DeflateDecoder::new(content).read_to_end(&mut plain).ok()?),
            _ => return None,
        }
        if plain.len() != size {
            return None;
        }
        let name = archive.get(at + 46..at + 46 + name)?;
        let length = u16::try_from(name.len()).ok()?.to_le_bytes();
        let size = u32::try_from(size).ok()?.to_le_bytes();
        let place = u32::try_from(files.len()).ok()?.to_le_bytes();
        // Of the flags the encoding of names alone; time, date and checksum as they were.
        let flags = [0, entry[9] & 8];
        let same = &entry[12..20];
        for (into, head) in
            [(&mut files, &b"PK\x03\x04\x0a\0"[..]), (&mut directory, b"PK\x01\x02\x0a\0\x0a\0")]
        {
            into.extend(head);
            into.extend(flags);
            into.extend([0, 0]);
            into.extend(same);
            into.extend(size);
            into.extend(size);
            into.extend(length);
            into.extend([0, 0]);
        }
        files.extend(name);
        files.extend(plain);
        // No comment, on the first disk, attributes of no importance.
        directory.extend([0; 10]);
        directory.extend(place);
        directory.extend(name);
        at += 46 + short(at + 28)? + extra + comment;
    }
    let (begins, length) = (files.len(), directory.len());
    files.extend(directory);
    files.extend(END);
    files.extend([0; 4]);
    for _ in 0..2 {
        files.extend(u16::try_from(count).ok()?.to_le_bytes());
    }
    files.extend(u32::try_from(length).ok()?.to_le_bytes());
    files.extend(u32::try_from(begins).ok()?.to_le_bytes());
    files.extend([0, 0]);
    Some(files)
}
