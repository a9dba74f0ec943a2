//! The way of one stream's bytes: out as they are, or line by line as records.
//!
//! Holds the beginning of a line at most, and at most [`CHUNK`] of it: a longer line becomes
//! several records. Writes whole records only, each to its end, so no record is held back either.
//! While no output comes, the passage has no buffer.

use std::{fs::File, io::Write, ops::Range};

use crate::runtime::log::{self, RecordHead, StandardStream};

/// Bytes that are read at once, and the most that a record holds. Reading more than the default
/// size of a pipe would not be faster.
pub(super) const CHUNK: usize = 16 * 1024;

pub(super) struct StreamForwarder {
    stream: StandardStream,
    to: Option<File>,
    /// Present when lines become records.
    head: Option<RecordHead>,
    /// What was read last, with the beginning of its line.
    buffer: Vec<u8>,
    held: usize,
    /// Records that are written together.
    out: String,
}

impl StreamForwarder {
    pub(super) fn new(
        stream: StandardStream,
        output: Option<File>,
        head: Option<RecordHead>,
    ) -> Self {
        Self { stream, to: output, head, buffer: Vec::new(), held: 0, out: String::new() }
    }

    /// Is there a buffer to [`close`](Self::close)?
    pub(super) fn is_open(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// The part of the buffer to read into. It is never empty.
    pub(super) fn read_buffer(&mut self) -> &mut [u8] {
        self.buffer.resize(CHUNK, 0);
        &mut self.buffer[self.held..]
    }

    /// The last `length` bytes that were read.
    pub(super) fn last_read(&self, length: usize) -> &[u8] {
        &self.buffer[self.held..self.held + length]
    }

    /// Passes on what was read last; the beginning of a line may wait for its end.
    pub(super) fn forward_bytes(&mut self, length: usize) {
        if self.head.is_none() || self.to.is_none() {
            if let Some(output) = &mut self.to {
                // A log reader that is gone must not end the database: go on without one.
                drop(output.write_all(&self.buffer[..length]));
            }
            return;
        }
        let (now, filled_length) = (log::current_time(), self.held + length);
        let (mut line_start, mut scanned) = (0, self.held);
        while let Some(newline) =
            self.buffer[scanned..filled_length].iter().position(|byte| *byte == b'\n')
        {
            let end = scanned + newline;
            self.put_record(&now, line_start..end, false);
            (line_start, scanned) = (end + 1, end + 1);
        }
        if filled_length - line_start == CHUNK {
            line_start = whole_length(&self.buffer);
            self.put_record(&now, 0..line_start, true);
        }
        self.buffer.copy_within(line_start..filled_length, 0);
        self.held = filled_length - line_start;
        self.write_records();
    }

    /// Passes on what waits for the end of its line, and gives the buffers back.
    pub(super) fn close(&mut self) {
        if self.held > 0 {
            self.put_record(&log::current_time(), 0..self.held, true);
            self.write_records();
        }
        self.held = 0;
        (self.buffer, self.out) = (Vec::new(), String::new());
    }

    fn put_record(&mut self, now: &str, line: Range<usize>, is_partial: bool) {
        if let Some(head) = &self.head {
            head.write_record(&mut self.out, now, &self.buffer[line], is_partial);
        }
        if self.out.len() >= CHUNK {
            self.write_records();
        }
    }

    fn write_records(&mut self) {
        if let Some(output) = &mut self.to
            && !self.out.is_empty()
        {
            let _turn = log::lock_stream(self.stream);
            // A log reader that is gone changes nothing here either.
            drop(output.write_all(self.out.as_bytes()));
        }
        self.out.clear();
    }
}

/// Returns how many bytes of `piece` can be passed on without the next piece: not the first bytes
/// of a character that goes on there.
fn whole_length(piece: &[u8]) -> usize {
    let incomplete = piece.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    // Only bytes at the very end may go on, and only when more bytes could make them valid.
    match std::str::from_utf8(&piece[piece.len() - incomplete.len()..]) {
        Err(error) if error.error_len().is_none() => piece.len() - incomplete.len(),
        _ => piece.len(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// What is written of these pieces, with a pause behind some of them.
    fn passed(pieces: &[(&[u8], bool)]) -> Vec<Value> {
        let mut file = tempfile::tempfile().unwrap();
        let to = file.try_clone().unwrap();
        let head = RecordHead::new("example", "stdout");
        let mut passage = StreamForwarder::new(StandardStream::Stdout, Some(to), Some(head));
        for (piece, pause) in pieces {
            let mut left = *piece;
            while !left.is_empty() {
                let room = passage.read_buffer();
                let length = room.len().min(left.len());
                room[..length].copy_from_slice(&left[..length]);
                assert_eq!(passage.last_read(length), &left[..length]);
                passage.forward_bytes(length);
                assert!(passage.held < CHUNK && passage.out.is_empty());
                assert!(passage.out.capacity() <= 16 * CHUNK, "{}", passage.out.capacity());
                left = &left[length..];
            }
            if *pause {
                passage.close();
                assert!(!passage.is_open());
            }
        }
        passage.close();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn joined(records: &[Value]) -> String {
        let one = |record: &Value| {
            let text = record["record"].as_str().unwrap().to_owned();
            text + if record["partial"] == true { "" } else { "\n" }
        };
        records.iter().map(one).collect()
    }

    #[test]
    fn a_line_is_a_record_and_one_without_an_end_a_partial_one() {
        let told = |pieces: &[(&[u8], bool)]| -> Vec<(String, bool)> {
            let one = |record: Value| {
                (record["record"].as_str().unwrap().to_owned(), record["partial"] == true)
            };
            passed(pieces).into_iter().map(one).collect()
        };
        let (whole, partial) =
            (|text: &str| (text.to_owned(), false), |text: &str| (text.to_owned(), true));
        assert_eq!(told(&[(b"a\n\nb\r\n", false)]), [whole("a"), whole(""), whole("b\r")]);
        assert_eq!(told(&[(b"a", false), (b"b\nc", false)]), [whole("ab"), partial("c")]);
        assert_eq!(told(&[(b"ask? ", true), (b"yes\n", false)]), [partial("ask? "), whole("yes")]);
        assert_eq!(told(&[(b"", true)]), []);
    }

    #[test]
    fn a_long_line_is_cut_between_its_characters() {
        let long = format!("x{}\n", "\u{20ac}".repeat(CHUNK));
        let records = passed(&[(long.as_bytes(), false)]);
        assert_eq!(records.len(), 4, "three bytes each");
        assert!(records.iter().all(|record| record["record"].as_str().unwrap().len() <= CHUNK));
        assert_eq!(joined(&records), long);
        // Invalid bytes that no further byte can complete are no reason to wait.
        let odd = [b"\xe2\x82".repeat(CHUNK), vec![0xe2; CHUNK + 1], b"\n".to_vec()].concat();
        assert_eq!(joined(&passed(&[(&odd, false)])), String::from_utf8_lossy(&odd));
    }

    #[test]
    fn the_worst_of_lines_takes_little_memory() {
        let records = passed(&[(&vec![0x1b; 100 * CHUNK], false)]);
        assert_eq!(joined(&records).len(), 100 * CHUNK);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_doubled(
            pieces in prop::collection::vec(
                (prop_oneof!["[a-z\n\u{e9}]{0,40}", "[\u{0}-\u{20ac}]{0,20000}"], any::<bool>()),
                0..12,
            ),
        ) {
            let pieces: Vec<(&[u8], bool)> =
                pieces.iter().map(|(text, pause)| (text.as_bytes(), *pause)).collect();
            let all: Vec<u8> = pieces.iter().flat_map(|(piece, _)| piece.to_vec()).collect();
            prop_assert_eq!(joined(&passed(&pieces)).into_bytes(), all);
        }
    }
}
