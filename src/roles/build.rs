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
    let packed_agent = if Path::new(&file).exists() {
        let jar = fs::read(&file).expect("it is there");
        pack_bytes(&store_uncompressed(&jar).expect("an archive of Java"))
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
    fs::write(&file, packed_agent).expect("cargo made the folder");
    println!("cargo::rustc-env=NAVIGATOR_JOLOKIA_AGENT={file}");
}

fn pack_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::best());
    packer.write_all(bytes).expect("memory is written");
    packer.finish().expect("memory is written")
}

/// Returns a ZIP archive with the same entries, none of them compressed: packed as a whole it takes
/// two thirds of what its entries take when each is packed by itself.
fn store_uncompressed(archive: &[u8]) -> Option<Vec<u8>> {
    const END: &[u8] = b"PK\x05\x06";
    let read_u16 = |offset: usize| {
        Some(usize::from(u16::from_le_bytes(archive.get(offset..offset + 2)?.try_into().ok()?)))
    };
    let read_u32 = |offset: usize| {
        Some(u32::from_le_bytes(archive.get(offset..offset + 4)?.try_into().ok()?) as usize)
    };
    let end = archive.windows(END.len()).rposition(|window| window == END)?;
    let (mut position, count) = (read_u32(end + 16)?, read_u16(end + 10)?);
    let (mut files, mut directory) = (Vec::new(), Vec::new());
    for _ in 0..count {
        // Of the directory's entry: method, sizes, lengths of what follows, where the file begins.
        let entry = archive.get(position..position + 46)?;
        let (method, packed_size, size) =
            (read_u16(position + 10)?, read_u32(position + 20)?, read_u32(position + 24)?);
        let (name, extra, comment) =
            (read_u16(position + 28)?, read_u16(position + 30)?, read_u16(position + 32)?);
        let local = read_u32(position + 42)?;
        let start = local + 30 + read_u16(local + 26)? + read_u16(local + 28)?;
        let content = archive.get(start..start + packed_size)?;
        let mut plain_content = Vec::new();
        match method {
            0 => plain_content.extend(content),
            8 => drop(DeflateDecoder::new(content).read_to_end(&mut plain_content).ok()?),
            _ => return None,
        }
        if plain_content.len() != size {
            return None;
        }
        let name = archive.get(position + 46..position + 46 + name)?;
        let length = u16::try_from(name.len()).ok()?.to_le_bytes();
        let size = u32::try_from(size).ok()?.to_le_bytes();
        let place = u32::try_from(files.len()).ok()?.to_le_bytes();
        // Of the flags the encoding of names alone; time, date and checksum as they were.
        let flags = [0, entry[9] & 8];
        let kept_bytes = &entry[12..20];
        for (target, head) in
            [(&mut files, &b"PK\x03\x04\x0a\0"[..]), (&mut directory, b"PK\x01\x02\x0a\0\x0a\0")]
        {
            target.extend(head);
            target.extend(flags);
            target.extend([0, 0]);
            target.extend(kept_bytes);
            target.extend(size);
            target.extend(size);
            target.extend(length);
            target.extend([0, 0]);
        }
        files.extend(name);
        files.extend(plain_content);
        // No comment, on the first disk, attributes of no importance.
        directory.extend([0; 10]);
        directory.extend(place);
        directory.extend(name);
        position += 46 + read_u16(position + 28)? + extra + comment;
    }
    let (directory_start, length) = (files.len(), directory.len());
    files.extend(directory);
    files.extend(END);
    files.extend([0; 4]);
    for _ in 0..2 {
        files.extend(u16::try_from(count).ok()?.to_le_bytes());
    }
    files.extend(u32::try_from(length).ok()?.to_le_bytes());
    files.extend(u32::try_from(directory_start).ok()?.to_le_bytes());
    files.extend([0, 0]);
    Some(files)
}
