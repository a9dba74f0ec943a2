//! Explains why Cassandra's process ended by itself.

use crate::engine::exit_explanation::ExitExplanation;

/// Texts in the log and what each means, most telling first. Measured on 5.0.6.
const LOG: &[(&str, ExitExplanation)] = &[
    (
        "This node was decommissioned and will not rejoin",
        ExitExplanation {
            reason: "NodeDecommissioned",
            message: "the node was decommissioned and may not rejoin; delete the data on its volume",
            left: true,
        },
    ),
    (
        // check_data_resurrection, from 4.1 on. The heartbeat of a node that is adopted is removed.
        "There are tables for which gc_grace_seconds is older",
        ExitExplanation {
            reason: "AwayTooLong",
            message: "the node was away for longer than gc_grace_seconds of some tables, which the last lines \
                      of its log name: rows that were deleted meanwhile would come back. Replace it (delete \
                      its claim and pod); or, to take that risk, annotate its Pilot with \
                      navigator.jetstack.io/adopt-data=true, and repair",
            left: false,
        },
    ),
    (
        "java.lang.OutOfMemoryError",
        ExitExplanation {
            reason: "OutOfMemory",
            message: "the heap was exhausted; raise jvm.heap and the memory limit",
            left: false,
        },
    ),
    (
        "Invalid yaml",
        ExitExplanation {
            reason: "ConfigRejected",
            message: "Cassandra does not know a key of spec.config, or cannot read its value",
            left: false,
        },
    ),
    (
        "Saved cluster name",
        ExitExplanation {
            reason: "IdentityMismatch",
            message: "the volume holds data of a cluster of another name",
            left: false,
        },
    ),
    (
        "Cannot start node if snitch's",
        ExitExplanation {
            reason: "IdentityMismatch",
            message: "the node's data were written in another rack or datacenter",
            left: false,
        },
    ),
    (
        "Unable to gossip with any peers",
        ExitExplanation {
            reason: "ProcessExited",
            message: "no seed answered; see whether the other nodes are up and reachable",
            left: false,
        },
    ),
    (
        "A node with address",
        ExitExplanation {
            reason: "ProcessExited",
            message: "another node of the ring has this address and another host id",
            left: false,
        },
    ),
    (
        // Logged by a node that died while it joined, and comes back at another address.
        "Other bootstrapping/leaving/moving nodes detected",
        ExitExplanation {
            reason: "JoinWaits",
            message: "waits until no other node joins, leaves or moves; or, after a join that was cut \
                      off, until the ring forgets its former address, which takes some minutes",
            left: false,
        },
    ),
    (
        "Discovered existing bootstrap data",
        ExitExplanation {
            reason: "JoinFailed",
            message: "an earlier join left data behind; take cassandra.reset_bootstrap_progress out of \
                      jvm.options, so that it begins anew",
            left: false,
        },
    ),
    (
        "Token allocation failed",
        ExitExplanation {
            reason: "ConfigRejected",
            message: "the ring has more racks than this node was told of; set \
                      allocate_tokens_for_local_replication_factor in config to null, or to their number",
            left: false,
        },
    ),
    (
        "CorruptSSTableException",
        ExitExplanation {
            reason: "ProcessExited",
            message: "a file of the database is corrupt; replace the node or restore the file",
            left: false,
        },
    ),
    (
        "AccessDeniedException",
        ExitExplanation {
            reason: "PreflightFailed",
            message: "the data directory cannot be written by the database's user",
            left: false,
        },
    ),
    (
        "No space left on device",
        ExitExplanation {
            reason: "DiskFull",
            message: "the volume is full; grow it or delete data",
            left: false,
        },
    ),
    (
        // Measured: a full tmpfs below the mapped commit log. The JVM says so as it aborts.
        "SIGBUS (0x7)",
        ExitExplanation {
            reason: "DiskFull",
            message: "the volume filled below a mapped commit log; grow it or delete data",
            left: false,
        },
    ),
    (
        "is in use by another process",
        ExitExplanation {
            reason: "PreflightFailed",
            message: "a port of the database is in use by another process",
            left: false,
        },
    ),
    (
        // disk_failure_policy: die. Read and write errors; corrupt files have a line of their own.
        "JVM state determined to be unstable",
        ExitExplanation {
            reason: "DiskFailed",
            message: "Cassandra could not read or write its files and ended; its last lines name the file. \
                      Look at the disk, or replace the node",
            left: false,
        },
    ),
    (
        "Fatal configuration error",
        ExitExplanation {
            reason: "ConfigRejected",
            message: "Cassandra refused its configuration; its last lines say why",
            left: false,
        },
    ),
];

/// Explains the end of the process from its exit code (128 plus the signal's number where a signal
/// ended it) and the last lines of its log. `None`: the cause is unknown.
///
/// That a node left is final, so it is concluded only when Cassandra exited with 1 and a line
/// begins with the exception's own text: texts of users get into logs too.
pub fn explain_exit(code: i32, log_tail: &[String]) -> Option<ExitExplanation> {
    if code == 0 || code == 143 {
        return None;
    }
    let tells = |text: &str, line: &str, left: bool| {
        if left { code == 1 && line.trim_start().starts_with(text) } else { line.contains(text) }
    };
    let told = LOG
        .iter()
        .find(|(text, ending)| log_tail.iter().any(|line| tells(text, line, ending.left)));
    if let Some((_, ending)) = told {
        return Some(*ending);
    }
    match code {
        134 => Some(ExitExplanation {
            reason: "ProcessExited",
            message: "the JVM crashed; its last lines and its hs_err file say where",
            left: false,
        }),
        100 => Some(ExitExplanation {
            reason: "IdentityMismatch",
            message: "the data on the volume belong to another cluster, rack or datacenter",
            left: false,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_user_do_not_end_a_nodes_life() {
        let own = "This node was decommissioned and will not rejoin the ring unless";
        let left = |code, line: &str| {
            explain_exit(code, &[line.to_owned()]).is_some_and(|ending| ending.left)
        };
        assert!(left(1, own));
        assert!(!left(137, own) && !left(3, own));
        let quoted = format!("WARN  [Native-1] slow: INSERT INTO t (a) VALUES ('{own}')");
        assert!(!left(1, &quoted));
    }

    #[test]
    fn measured_endings_are_recognised() {
        for (code, line, reason) in [
            (143, "Cassandra shutdown complete", None),
            (137, "", None),
            (3, "Invalid yaml. Please remove properties [no_such_key]", Some("ConfigRejected")),
            (3, "Terminating due to java.lang.OutOfMemoryError: Java heap", Some("OutOfMemory")),
            (100, "Saved cluster name demo != configured name demo2", Some("IdentityMismatch")),
            (100, "", Some("IdentityMismatch")),
            (
                100,
                "ERROR JVM state determined to be unstable.  Exiting forcefully due to:",
                Some("DiskFailed"),
            ),
            (
                3,
                "Other bootstrapping/leaving/moving nodes detected, cannot bootstrap while \
                 cassandra.consistent.rangemovement is true",
                Some("JoinWaits"),
            ),
            (
                1,
                "Token allocation failed: the number of racks 2 in datacenter eu is lower than \
                 its replication factor 3.",
                Some("ConfigRejected"),
            ),
            (
                1,
                "ERROR There are tables for which gc_grace_seconds is older than the lastly known time \
                 Cassandra node was up based on its heartbeat /d/cassandra-heartbeat with timestamp 1. \
                 Invalid tables: shop.a",
                Some("AwayTooLong"),
            ),
            (134, "#  SIGBUS (0x7) at pc=0x00007f6d, pid=7, tid=9", Some("DiskFull")),
            (134, "#  SIGSEGV (0xb) at pc=0x00007f6d, pid=7, tid=9", Some("ProcessExited")),
            (
                1,
                "This node was decommissioned and will not rejoin the ring",
                Some("NodeDecommissioned"),
            ),
        ] {
            let tail = ["INFO before".to_owned(), line.to_owned()];
            assert_eq!(
                explain_exit(code, &tail).map(|ending| ending.reason),
                reason,
                "{code} {line}"
            );
        }
    }
}
