//! What it means when a database's process ended by itself.

/// Why a process ended, for `status.lastTermination`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitExplanation {
    /// The reason in one word, for machines.
    pub reason: &'static str,
    /// What happened and what to do, for people.
    pub message: &'static str,
    /// The node has left its database cluster for good; another start fails in the same way.
    pub left: bool,
}

/// The sign by which an end of a process is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitSign {
    /// A text in one of the last lines of the log.
    Log(&'static str),
    /// The exit code (128 plus the signal's number where a signal ended the process).
    Code(u8),
    /// A text that begins one of the last lines of the log of a process that exited with 1, and
    /// says that the node has left for good. That is final, and texts of users get into logs, too:
    /// so it is concluded from nothing less.
    Left(&'static str),
}

impl ExitSign {
    fn is_matched(self, code: i32, log_tail: &[String]) -> bool {
        match self {
            Self::Log(text) => log_tail.iter().any(|line| line.contains(text)),
            Self::Code(expected) => code == i32::from(expected),
            Self::Left(text) => {
                code == 1 && log_tail.iter().any(|line| line.trim_start().starts_with(text))
            }
        }
    }
}

/// The ends that a database is known for, with their signs: reason and message of each. The most
/// telling sign stands first.
pub type ExitTable = &'static [(ExitSign, &'static str, &'static str)];

/// Exit code of a process that ended as TERM asked it to.
const TERMINATED: i32 = 143;

/// Explains the end of a process from its exit code and the last lines of its log. `None`: it
/// succeeded, was asked to end, or ended in a way that the table does not have.
pub fn explain_exit(table: ExitTable, code: i32, log_tail: &[String]) -> Option<ExitExplanation> {
    if code == 0 || code == TERMINATED {
        return None;
    }
    let (sign, reason, message) =
        *table.iter().find(|(sign, ..)| sign.is_matched(code, log_tail))?;
    Some(ExitExplanation { reason, message, left: matches!(sign, ExitSign::Left(_)) })
}

/// Most bytes of a line of the log in a message.
const LINE: usize = 200;

/// Returns what the log says of the end of a process: the line with the sign that explains the end, from
/// that sign on. Where no text explains it, and `is_start` says that the process never served, the last
/// line that names an exception or an error: a line of a start holds settings and no data of users.
pub fn find_error_line(
    table: ExitTable,
    code: i32,
    log_tail: &[String],
    is_start: bool,
) -> Option<String> {
    let sign = table.iter().map(|(sign, ..)| *sign).find(|sign| sign.is_matched(code, log_tail));
    let mut lines = log_tail.iter().rev().map(|line| line.trim());
    let line = match sign {
        Some(ExitSign::Log(text) | ExitSign::Left(text)) => {
            lines.find_map(|line| Some(&line[line.find(text)?..]))
        }
        Some(ExitSign::Code(_)) | None => {
            let is_error_line = |line: &&str| line.contains("Exception") || line.contains("Error");
            lines.find(is_error_line).filter(|_| is_start)
        }
    }?;
    Some(match line.char_indices().map(|(index, _)| index).find(|index| *index > LINE) {
        Some(end) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: ExitTable = &[
        (ExitSign::Left("this node is gone"), "Gone", "it left"),
        (ExitSign::Log("no space"), "DiskFull", "the volume is full"),
        (ExitSign::Code(134), "Crashed", "it crashed"),
    ];

    #[test]
    fn the_first_sign_that_is_seen_explains_an_end_that_was_not_asked_for() {
        let reason = |code, line: &str| {
            explain_exit(TABLE, code, &[line.to_owned()]).map(|ending| ending.reason)
        };
        assert_eq!(reason(134, "write failed: no space left"), Some("DiskFull"));
        assert_eq!(reason(134, ""), Some("Crashed"));
        assert_eq!(reason(1, ""), None);
        for asked in [0, 143] {
            assert_eq!(reason(asked, "no space"), None);
        }
    }

    #[test]
    fn the_log_is_quoted_from_the_sign_on() {
        let told = |code, line: &str, is_start| {
            let tail = [line.to_owned(), "see the log".to_owned()];
            find_error_line(TABLE, code, &tail, is_start)
        };
        assert_eq!(told(1, "[x] no space on /data", false).as_deref(), Some("no space on /data"));
        let why = "IllegalArgumentException: unknown [a.b]";
        assert_eq!(told(1, why, true).as_deref(), Some(why));
        assert_eq!(told(134, why, true).as_deref(), Some(why));
        assert_eq!(told(1, why, false), None, "it may be about data");
        assert_eq!(told(1, "nothing", true), None);
        let long = told(1, &format!("no space {}", "ä".repeat(300)), true).unwrap();
        assert!(long.len() < LINE + 8 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn a_node_has_left_by_its_exit_code_and_by_a_line_that_begins_so() {
        let left = |code, line: &str| {
            explain_exit(TABLE, code, &[line.to_owned()]).is_some_and(|ending| ending.left)
        };
        assert!(left(1, "  this node is gone for good"));
        assert!(!left(3, "this node is gone") && !left(1, "said: this node is gone"));
    }
}
