//! Explains why Elasticsearch's process ended by itself.

use crate::engine::exit_explanation::ExitExplanation;

const fn ending(reason: &'static str, message: &'static str) -> ExitExplanation {
    ExitExplanation { reason, message, left: false }
}

/// Texts in the log and what each means, most telling first. Measured on 5.6, 7.17 and 8.19.
const LOG: &[(&str, ExitExplanation)] = &[
    (
        "unknown setting",
        ending(
            "ConfigRejected",
            "Elasticsearch does not know a key of spec.config; is a plugin missing?",
        ),
    ),
    (
        "java.lang.OutOfMemoryError",
        ending("OutOfMemory", "the heap was exhausted; raise jvm.heap and the memory limit"),
    ),
    (
        "failed to obtain node locks",
        ending(
            "PreflightFailed",
            "another process holds the data directory, or it cannot be written",
        ),
    ),
    (
        "BindTransportException",
        ending("PreflightFailed", "a port of the database is in use by another process"),
    ),
    (
        "CorruptIndexException",
        ending(
            "ProcessExited",
            "the node's state on disk is corrupt; replace the node if its shards have copies elsewhere",
        ),
    ),
    ("No space left on device", ending("DiskFull", "the volume is full; grow it or delete data")),
    (
        "bootstrap checks failed",
        ending(
            "PreflightFailed",
            "the machine does not meet Elasticsearch's bootstrap checks; its last lines name them",
        ),
    ),
    (
        "can not run elasticsearch as root",
        ending(
            "PreflightFailed",
            "Elasticsearch refuses to run as root; set securityContext.runAsUser",
        ),
    ),
    (
        "AccessDeniedException",
        ending("PreflightFailed", "a folder of the node cannot be written by the database's user"),
    ),
];

/// Explains the end of the process from its exit code (128 plus the signal's number where a signal
/// ended it) and the last lines of its log. `None`: the cause is unknown.
pub fn explain_exit(code: i32, log_tail: &[String]) -> Option<ExitExplanation> {
    if code == 0 || code == 143 {
        return None;
    }
    let told = LOG.iter().find(|(text, _)| log_tail.iter().any(|line| line.contains(text)));
    if let Some((_, ending)) = told {
        return Some(*ending);
    }
    match code {
        78 => Some(ending(
            "PreflightFailed",
            "the machine does not meet Elasticsearch's bootstrap checks; its last lines name them",
        )),
        // 127: halted by Elasticsearch (5, 6); 3: ended by -XX:+ExitOnOutOfMemoryError.
        127 | 3 => Some(ending(
            "OutOfMemory",
            "the heap was exhausted; raise jvm.heap and the memory limit",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_endings_are_recognised() {
        for (code, line, reason) in [
            (143, "closed", None),
            (137, "", None),
            (78, "", Some("PreflightFailed")),
            (1, "unknown setting [no.such.setting] please check", Some("ConfigRejected")),
            (127, "", Some("OutOfMemory")),
            (1, "IllegalStateException: failed to obtain node locks", Some("PreflightFailed")),
        ] {
            let tail = [line.to_owned()];
            assert_eq!(explain_exit(code, &tail).map(|e| e.reason), reason, "{code} {line}");
        }
    }
}
