//! The supported releases of Cassandra.

use crate::api::validation::releases::{ReleaseLine, ReleaseTable};

pub static RELEASES: ReleaseTable = ReleaseTable {
    database: "Cassandra",
    lines: &[
        ReleaseLine {
            name: "4.0",
            first: (4, 0),
            last: (4, 0),
            reads: (4, 0),
            tested: &["4.0.19"],
            java: "8, 11, 17",
            upgraded_from: &[],
            around_upgrade: "",
        },
        ReleaseLine {
            name: "4.1",
            first: (4, 1),
            last: (4, 1),
            reads: (4, 0),
            tested: &["4.1.10"],
            java: "8, 11, 17",
            upgraded_from: &[],
            around_upgrade: "a snapshot and a repair before; `nodetool upgradesstables` on each node after",
        },
        ReleaseLine {
            name: "5.0",
            first: (5, 0),
            last: (5, 0),
            reads: (4, 0),
            tested: &["5.0.6"],
            java: "11, 17",
            upgraded_from: &["4.1.10"],
            around_upgrade: "a snapshot and a repair before; `nodetool upgradesstables` on each node after; then `storage_compatibility_mode: UPGRADING` and later `NONE` in `spec.config`, a restart of all nodes each, for the new format of sstables",
        },
    ],
};
