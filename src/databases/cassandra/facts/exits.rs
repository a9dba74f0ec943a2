//! The ends of Cassandra's process by itself, and what each means.

use crate::engine::exit_explanation::{
    ExitSign::{Code, Left, Log},
    ExitTable,
};

/// Measured on 5.0.6.
pub const EXITS: ExitTable = &[
    (
        Left("This node was decommissioned and will not rejoin"),
        "NodeDecommissioned",
        "the node was decommissioned and may not rejoin; delete the data on its volume",
    ),
    // check_data_resurrection, from 4.1 on. The heartbeat of a node that is adopted is removed.
    (
        Log("There are tables for which gc_grace_seconds is older"),
        "AwayTooLong",
        "the node was away for longer than gc_grace_seconds of some tables, which the last lines \
         of its log name: rows that were deleted meanwhile would come back. Replace it (delete its \
         claim and pod); or, to take that risk, annotate its Pilot with \
         navigator.jetstack.io/adopt-data=true, and repair",
    ),
    (
        Log("java.lang.OutOfMemoryError"),
        "OutOfMemory",
        "the heap was exhausted; raise jvm.heap and the memory limit",
    ),
    (
        Log("Invalid yaml"),
        "ConfigRejected",
        "Cassandra does not know a key of spec.config, or cannot read its value",
    ),
    (
        Log("Saved cluster name"),
        "IdentityMismatch",
        "the volume holds data of a cluster of another name",
    ),
    (
        Log("Cannot start node if snitch's"),
        "IdentityMismatch",
        "the node's data were written in another rack or datacenter",
    ),
    (
        Log("Unable to gossip with any peers"),
        "ProcessExited",
        "no seed answered; see whether the other nodes are up and reachable",
    ),
    (
        Log("A node with address"),
        "ProcessExited",
        "another node of the ring has this address and another host id",
    ),
    // Logged by a node that died while it joined, and comes back at another address.
    (
        Log("Other bootstrapping/leaving/moving nodes detected"),
        "JoinWaits",
        "waits until no other node joins, leaves or moves; or, after a join that was cut off, \
         until the ring forgets its former address, which takes some minutes",
    ),
    (
        Log("Discovered existing bootstrap data"),
        "JoinFailed",
        "an earlier join left data behind; take cassandra.reset_bootstrap_progress out of \
         jvm.options, so that it begins anew",
    ),
    (
        Log("Token allocation failed"),
        "ConfigRejected",
        "the ring has more racks than this node was told of; set \
         allocate_tokens_for_local_replication_factor in config to null, or to their number",
    ),
    (
        Log("CorruptSSTableException"),
        "ProcessExited",
        "a file of the database is corrupt; replace the node or restore the file",
    ),
    (
        Log("AccessDeniedException"),
        "PreflightFailed",
        "the data directory cannot be written by the database's user",
    ),
    (Log("No space left on device"), "DiskFull", "the volume is full; grow it or delete data"),
    // Measured: a full tmpfs below the mapped commit log. The JVM says so as it aborts.
    (
        Log("SIGBUS (0x7)"),
        "DiskFull",
        "the volume filled below a mapped commit log; grow it or delete data",
    ),
    (
        Log("is in use by another process"),
        "PreflightFailed",
        "a port of the database is in use by another process",
    ),
    // `CommitLogReplayer` hands a `CommitLogReadException` ("Could not read commit log descriptor in
    // file …", "Mutation checksum failure at …") to `JVMStabilityInspector.inspectCommitLogThrowable`,
    // which ends a process that starts with this line and code 100, whatever the policy is. It
    // tolerates a torn end of the last file.
    (
        Log("error while processing commit log during initialization"),
        "CommitLogUnreadable",
        "Cassandra cannot read a file of its commit log, which the last lines of its log name. \
         Replace the node, if other nodes hold its data. Or let it start without the writes that it \
         cannot read: set -Dcassandra.commitlog.ignorereplayerrors=true in jvm.options, take that \
         out once the node serves, and repair",
    ),
    // `commit_failure_policy: die`, or `disk_failure_policy: die` of a user. Read and write errors; corrupt files have a line of their own.
    (
        Log("JVM state determined to be unstable"),
        "DiskFailed",
        "Cassandra could not read or write its files and ended; its last lines name the file. Look \
         at the disk, or replace the node",
    ),
    // `DefaultFSErrorHandler.handleStartupFSError`, with any policy but `best_effort` and `ignore`.
    (
        Log("due to file system exception on startup"),
        "DiskFailed",
        "Cassandra could not read or write its files as it started; its last lines name the file. \
         Look at the disk, or replace the node",
    ),
    (
        Log("Fatal configuration error"),
        "ConfigRejected",
        "Cassandra refused its configuration; its last lines say why",
    ),
    (Code(134), "ProcessExited", "the JVM crashed; its last lines and its hs_err file say where"),
    (
        Code(100),
        "IdentityMismatch",
        "the data on the volume belong to another cluster, rack or datacenter",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::exit_explanation::{ExitExplanation, explain_exit};

    fn explained(code: i32, log_tail: &[String]) -> Option<ExitExplanation> {
        explain_exit(EXITS, code, log_tail)
    }

    #[test]
    fn the_words_of_a_user_do_not_end_a_nodes_life() {
        let own = "This node was decommissioned and will not rejoin the ring unless";
        let left = |code, line: &str| {
            explained(code, &[line.to_owned()]).is_some_and(|ending| ending.left)
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
            (
                100,
                "ERROR [main] Exiting due to error while processing commit log during initialization.",
                Some("CommitLogUnreadable"),
            ),
            (
                100,
                "org.apache.cassandra.io.sstable.CorruptSSTableException: Corrupted: /d/nb-1-big-Data.db",
                Some("ProcessExited"),
            ),
            (
                100,
                "ERROR Exiting forcefully due to file system exception on startup, disk failure \
                 policy \"stop\"",
                Some("DiskFailed"),
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
            assert_eq!(explained(code, &tail).map(|ending| ending.reason), reason, "{code} {line}");
        }
    }

    #[test]
    fn commit_log_without_room_is_a_full_disk() {
        let tail = [
            "ERROR [main] Exiting due to error while processing commit log during initialization.",
            "org.apache.cassandra.io.FSWriteError: java.io.IOException: No space left on device",
        ];
        let ending = explained(100, &tail.map(str::to_owned)).unwrap();
        assert_eq!(ending.reason, "DiskFull");
    }
}
