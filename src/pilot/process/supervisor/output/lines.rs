//! The last lines of a child's output.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Most lines that are remembered: the bound of `status.lastTermination.logTail`.
const LINES: usize = 20;
/// Most bytes of the lines that `status.lastTermination.logTail` may hold.
const BYTES: usize = 4096;

/// A ring of lines. A line longer than all that is kept is cut at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LineBuffer {
    whole: VecDeque<String>,
    part: Vec<u8>,
}

impl LineBuffer {
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.part.extend_from_slice(&rest[..end]);
            let line = String::from_utf8_lossy(&self.part).trim_end().to_owned();
            self.part.clear();
            let line = cut_line(line);
            // A stack trace is longer than all that is kept, and its first line says what
            // happened.
            if !line.is_empty() && !line.starts_with("\tat ") {
                self.whole.push_back(line);
            }
            while self.whole.len() > LINES {
                self.whole.pop_front();
            }
            rest = &rest[end + 1..];
        }
        self.part.extend_from_slice(rest);
        let surplus = self.part.len().saturating_sub(BYTES);
        self.part.drain(..surplus);
    }

    pub(super) fn get(&self) -> Vec<String> {
        let part = String::from_utf8_lossy(&self.part).trim_end().to_owned();
        let all_lines = self.whole.iter().cloned().chain((!part.is_empty()).then_some(part));
        let mut lines: Vec<String> = all_lines.collect();
        let mut bytes_left = BYTES;
        let mut first_line = lines.len();
        while first_line > lines.len().saturating_sub(LINES)
            && lines[first_line - 1].len() < bytes_left
        {
            first_line -= 1;
            bytes_left -= lines[first_line].len() + 1;
        }
        let kept_lines = lines.split_off(first_line);
        if kept_lines.is_empty()
            && let Some(long_line) = lines.pop()
        {
            return vec![end_of(&long_line, BYTES / 2)];
        }
        kept_lines
    }

    /// Returns how many bytes of memory are held.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.part.capacity() + self.whole.iter().map(String::capacity).sum::<usize>()
    }
}

/// Cuts a line to the bound of all lines together, at its start.
fn cut_line(line: String) -> String {
    if line.len() > BYTES { end_of(&line, BYTES) } else { line }
}

/// Returns the last bytes of a line, at most `length`, in memory of their own.
fn end_of(line: &str, length: usize) -> String {
    let mut start = line.len().saturating_sub(length);
    while !line.is_char_boundary(start) {
        start += 1;
    }
    line[start..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that a thread reads at once.
    const CHUNK: usize = 16 * 1024;

    fn of(text: &str) -> Vec<String> {
        let mut lines = LineBuffer::default();
        for piece in text.as_bytes().chunks(7) {
            lines.push_bytes(piece);
        }
        lines.get()
    }

    #[test]
    fn the_last_twenty_lines_are_kept_and_an_unfinished_one_counts() {
        assert_eq!(of("one\n\ntwo\r\nthr"), ["one", "two", "thr"]);
        assert_eq!(of("Exception: why\n\tat a.b(C.java:1)\n\tat d\n"), ["Exception: why"]);
        let many: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        assert_eq!(of(&many.join("\n")), many[30..]);
    }

    #[test]
    fn twenty_long_lines_take_no_more_memory_than_is_told_of_each() {
        let mut lines = LineBuffer::default();
        let long = format!("{}\n", "x".repeat(CHUNK - 1));
        for _ in 0..2 * LINES {
            lines.push_bytes(long.as_bytes());
        }
        assert!(lines.held() <= (LINES + 1) * BYTES + CHUNK, "{} bytes", lines.held());
    }

    #[test]
    fn four_kibibytes_are_the_limit() {
        let long = format!("{}\nend\n", "x".repeat(9000));
        assert_eq!(of(&long), ["end"]);
        let kept = of(&"ä".repeat(4000));
        assert_eq!(kept.len(), 1);
        assert!(kept[0].len() <= BYTES, "{}", kept[0].len());
    }
}
