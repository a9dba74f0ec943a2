//! The ends of Elasticsearch's process by itself, and what each means.

use crate::engine::exit_explanation::{
    ExitSign::{Code, Log},
    ExitTable,
};

const HEAP: &str = "the heap was exhausted; raise jvm.heap and the memory limit";
const BOOTSTRAP: &str =
    "the machine does not meet Elasticsearch's bootstrap checks; its last lines name them";

/// Measured on 5.6, 7.17 and 8.19.
pub const EXITS: ExitTable = &[
    (
        Log("unknown setting"),
        "ConfigRejected",
        "Elasticsearch does not know a key of spec.config; is a plugin missing?",
    ),
    // `AbstractScopedSettings.validate` calls a setting of the keystore a secure one.
    (
        Log("unknown secure setting"),
        "ConfigRejected",
        "Elasticsearch does not know a setting of its keystore; is a plugin missing?",
    ),
    (Log("java.lang.OutOfMemoryError"), "OutOfMemory", HEAP),
    (
        Log("failed to obtain node locks"),
        "PreflightFailed",
        "another process holds the data directory, or it cannot be written",
    ),
    (
        Log("BindTransportException"),
        "PreflightFailed",
        "a port of the database is in use by another process",
    ),
    (
        Log("CorruptIndexException"),
        "ProcessExited",
        "the node's state on disk is corrupt; replace the node if its shards have copies elsewhere",
    ),
    (Log("No space left on device"), "DiskFull", "the volume is full; grow it or delete data"),
    (Log("bootstrap checks failed"), "PreflightFailed", BOOTSTRAP),
    (
        Log("can not run elasticsearch as root"),
        "PreflightFailed",
        "Elasticsearch refuses to run as root; set securityContext.runAsUser",
    ),
    (
        Log("AccessDeniedException"),
        "PreflightFailed",
        "a folder of the node cannot be written by the database's user",
    ),
    (Code(78), "PreflightFailed", BOOTSTRAP),
    // Halted by Elasticsearch (5, 6).
    (Code(127), "OutOfMemory", HEAP),
    // Ended by -XX:+ExitOnOutOfMemoryError.
    (Code(3), "OutOfMemory", HEAP),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::exit_explanation::explain_exit;

    #[test]
    fn measured_endings_are_recognised() {
        for (code, line, reason) in [
            (143, "closed", None),
            (137, "", None),
            (78, "", Some("PreflightFailed")),
            (1, "unknown setting [no.such.setting] please check", Some("ConfigRejected")),
            (1, "unknown secure setting [no.such.setting] please", Some("ConfigRejected")),
            (127, "", Some("OutOfMemory")),
            (1, "IllegalStateException: failed to obtain node locks", Some("PreflightFailed")),
        ] {
            let tail = [line.to_owned()];
            assert_eq!(explain_exit(EXITS, code, &tail).map(|e| e.reason), reason, "{code} {line}");
        }
    }
}
