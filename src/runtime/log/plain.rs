//! A log with its records undone: lines of other programs stand there as these wrote them.

use serde::Deserialize;

/// The fields of a record from which the line of another program is made again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LineRecord {
    pub stream: String,
    /// The line goes on in the next record of the stream.
    #[serde(default)]
    pub partial: bool,
    pub record: String,
}

impl LineRecord {
    /// Reads a line as a record; `None` when it is none.
    pub fn parse(line: &str) -> Option<Self> {
        if line.starts_with('{') { serde_json::from_str(line).ok() } else { None }
    }
}

/// Takes a log piece by piece, and gives back the lines that other programs wrote.
#[derive(Debug, Default)]
pub struct PlainLog {
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    open: OpenLine,
}

/// Whether the line that was printed last has its end, and from where the end will come.
#[derive(Debug, Default, PartialEq, Eq)]
enum OpenLine {
    #[default]
    No,
    /// The end will come in the next record of this stream.
    Stream(String),
    /// The end will come as the next bytes of the log: the line is no record.
    Other,
}

impl PlainLog {
    /// Takes the next piece of a log, and returns what is to be printed for it.
    pub fn append(&mut self, piece: &[u8]) -> String {
        let mut out = String::new();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.rest);
                self.write_line(&mut out, &String::from_utf8_lossy(&line));
            }
        }
        // A beginning that cannot become a record is printed at once: it may be a prompt.
        if !self.rest.is_empty() && (self.open == OpenLine::Other || !self.rest.starts_with(b"{")) {
            out.push_str(&self.finish());
        }
        out
    }

    /// Returns what is left to be printed at the end of a log.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.write_other(&mut out, &String::from_utf8_lossy(&rest));
            self.open = OpenLine::Other;
        }
        out
    }

    fn write_line(&mut self, out: &mut String, line: &str) {
        let is_continuation = self.open == OpenLine::Other;
        match LineRecord::parse(line).filter(|_| !is_continuation) {
            Some(LineRecord { stream, partial, record }) => {
                let open_line = std::mem::take(&mut self.open);
                if open_line != OpenLine::No && open_line != OpenLine::Stream(stream.clone()) {
                    out.push('\n');
                }
                out.push_str(&record);
                if partial {
                    self.open = OpenLine::Stream(stream);
                } else {
                    out.push('\n');
                }
            }
            None => self.write_other(out, line),
        }
    }

    /// Prints a line that is no record, or a part of such a line.
    fn write_other(&mut self, out: &mut String, line: &str) {
        // This line does not continue the open line of a stream.
        if let OpenLine::Stream(_) = std::mem::take(&mut self.open) {
            out.push('\n');
        }
        out.push_str(line);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::RecordHead, *};

    #[test]
    fn records_are_undone_and_other_lines_stay() {
        let mut log = String::from("{\"ts\":\"T\",\"msg\":\"ours\"}\n");
        let (out, err) = (RecordHead::new("x", "stdout"), RecordHead::new("x", "stderr"));
        out.write_record(&mut log, "T", b"one", false);
        out.write_record(&mut log, "T", b"tw", true);
        out.write_record(&mut log, "T", b"o", false);
        out.write_record(&mut log, "T", b"three", true);
        err.write_record(&mut log, "T", b"four", true);
        log.push_str("{not json\n");
        out.write_record(&mut log, "T", b"five", false);
        log.push_str("ask? {");
        let wanted =
            "{\"ts\":\"T\",\"msg\":\"ours\"}\none\ntwo\nthree\nfour\n{not json\nfive\nask? {";
        for size in [1, 7, 1000] {
            let mut plain = PlainLog::default();
            let mut told: String =
                log.as_bytes().chunks(size).map(|piece| plain.append(piece)).collect();
            told.push_str(&plain.finish());
            assert_eq!(told, wanted, "pieces of {size}");
        }
    }

    #[test]
    fn the_beginning_of_a_line_is_told_before_its_end() {
        let mut plain = PlainLog::default();
        assert_eq!(plain.append(b"ask? "), "ask? ");
        assert_eq!(
            plain.append(b"{\"record\":\"yes\",\"stream\":\"x\"}\nb"),
            "{\"record\":\"yes\",\"stream\":\"x\"}\nb"
        );
        assert_eq!(plain.append(b"\n{"), "\n");
        assert_eq!((plain.finish(), plain.finish()), ("{".to_owned(), String::new()));
    }
}
