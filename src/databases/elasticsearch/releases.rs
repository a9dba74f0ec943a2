//! The supported releases of Elasticsearch.

use crate::api::validation::releases::{ReleaseLine, ReleaseTable};

pub static RELEASES: ReleaseTable = ReleaseTable {
    database: "Elasticsearch",
    lines: &[
        ReleaseLine {
            name: "5",
            first: (5, 6),
            last: (5, 6),
            reads: (5, 6),
            tested: &["5.6.16"],
            java: "8 to 17",
            upgraded_from: &[],
            around_upgrade: "",
        },
        ReleaseLine {
            name: "6",
            first: (6, 0),
            last: (6, 8),
            reads: (5, 6),
            tested: &["6.8.23"],
            java: "8 to 17",
            upgraded_from: &[],
            around_upgrade: "take a snapshot; indices that 2.x made are made anew first",
        },
        ReleaseLine {
            name: "7",
            first: (7, 0),
            last: (7, 17),
            reads: (6, 8),
            tested: &["7.17.29"],
            java: "11 to 17",
            upgraded_from: &["6.8.23"],
            around_upgrade: "take a snapshot; look at `_migration/deprecations`; indices that 5.x made are made anew first",
        },
        ReleaseLine {
            name: "8",
            first: (8, 0),
            last: (8, 19),
            reads: (7, 17),
            tested: &["8.19.4"],
            java: "17 and later",
            upgraded_from: &["7.17.29"],
            around_upgrade: "take a snapshot; look at `_migration/deprecations`; indices that 6.x made are made anew first",
        },
        ReleaseLine {
            name: "9",
            // 9.0 follows 8.18 and does not read what 8.19 wrote.
            first: (9, 1),
            last: (9, 5),
            reads: (8, 19),
            tested: &["9.5.0"],
            java: "21 and later",
            upgraded_from: &["8.19.4"],
            around_upgrade: "take a snapshot; look at `_migration/deprecations`; indices that 7.x made are made anew or marked read-only first",
        },
    ],
};
