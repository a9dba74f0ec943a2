//! Makes a gzipped tar archive in memory, with the few fields of POSIX' ustar form that files need.

use std::io::{self, Write};

use flate2::{Compression, write::GzEncoder};

const BLOCK: usize = 512;
/// Limits of the format in bytes: of a file's name (`NAME`), and of the folders before it
/// (`PREFIX`).
const NAME: usize = 100;
const PREFIX: usize = 155;

pub struct TarArchive {
    folder: String,
    time: i64,
    encoder: GzEncoder<Vec<u8>>,
    bytes: usize,
}

impl TarArchive {
    /// Starts an archive. All files are in `folder` and have the time `time`, in seconds since the
    /// epoch.
    pub fn new(folder: &str, time: i64) -> Self {
        let encoder = GzEncoder::new(Vec::new(), Compression::default());
        Self { folder: folder.to_owned(), time, encoder, bytes: 0 }
    }

    /// Returns the size of all files so far, in bytes, before compression.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn add_file(&mut self, path: &str, content: &[u8]) {
        let header = build_header(&format!("{}/{path}", self.folder), content.len(), self.time);
        let padding = [0; BLOCK];
        let padding = &padding[..content.len().next_multiple_of(BLOCK) - content.len()];
        for part in [&header[..], content, padding] {
            self.encoder.write_all(part).expect("memory takes what is written to it");
        }
        self.bytes += content.len();
    }

    /// Ends the archive and returns its bytes.
    pub fn finish(mut self) -> io::Result<Vec<u8>> {
        self.encoder.write_all(&[0; 2 * BLOCK])?;
        self.encoder.finish()
    }
}

fn build_header(path: &str, size: usize, time: i64) -> [u8; BLOCK] {
    let (prefix, name) = split_path(path);
    let mut header = [0; BLOCK];
    let mut write_field = |offset: usize, text: &str| {
        header[offset..offset + text.len()].copy_from_slice(text.as_bytes());
    };
    write_field(0, name);
    write_field(100, "0000600\0");
    write_field(108, "0000000\0");
    write_field(116, "0000000\0");
    write_field(124, &format!("{size:011o}\0"));
    write_field(136, &format!("{:011o}\0", time.max(0)));
    // The checksum is computed with its own field as spaces.
    write_field(148, "        ");
    write_field(156, "0");
    write_field(257, "ustar\x0000");
    write_field(345, prefix);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// Splits a path into folders and name, each cut to what the format holds. Names of Kubernetes'
/// objects are ASCII.
fn split_path(path: &str) -> (&str, &str) {
    let (prefix, name) = path.rsplit_once('/').unwrap_or(("", path));
    let cut_position = |text: &str, limit: usize| {
        (0..=text.len().min(limit))
            .rev()
            .find(|position| text.is_char_boundary(*position))
            .unwrap_or(0)
    };
    (&prefix[..cut_position(prefix, PREFIX)], &name[..cut_position(name, NAME)])
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn files_lie_in_blocks_behind_their_headers() {
        let mut archive = TarArchive::new("report", 1_700_000_000);
        archive.add_file("a/b.txt", b"hello");
        archive.add_file("empty", b"");
        assert_eq!(archive.bytes(), 5);
        let packed = archive.finish().unwrap();
        let mut raw = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut raw).unwrap();
        // The archive has a header, a content block, a header, and two empty blocks at the end.
        assert_eq!(raw.len(), 5 * BLOCK);
        assert_eq!(&raw[0..6], b"b.txt\0");
        assert_eq!(&raw[345..354], b"report/a\0");
        assert_eq!(&raw[124..136], b"00000000005\0");
        assert_eq!(&raw[BLOCK..BLOCK + 6], b"hello\0");
        assert_eq!(&raw[2 * BLOCK..2 * BLOCK + 6], b"empty\0");
    }
}
