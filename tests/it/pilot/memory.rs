//! The kernel kills a database at the memory limit of its container, which is a cgroup here.

use std::fs;

use super::alone::{Alone, PATIENCE};
use crate::support::cgroup::Cgroup;

/// More than the heap of 384 MiB that the pilot is told, so that it starts.
const LIMIT: u64 = 450 << 20;

#[tokio::test]
async fn a_kill_by_the_kernel_is_told_as_out_of_memory() {
    let node = Alone::new(50);
    let program = node.seat.home.join("bin/cassandra");
    fs::write(program, "#!/usr/bin/perl\nmy $size = 900_000_000; my $x = 'a' x $size; sleep 60;")
        .unwrap();
    let cgroup = Cgroup::with_memory("memory", LIMIT);
    let join = format!("echo $$ > {}/cgroup.procs", cgroup.folder().display());
    let pilot = node.start_after(&join);
    node.until(503, "Failed").await;
    for word in ["OutOfMemory", "killed by the kernel at the memory limit"] {
        pilot.says(word, PATIENCE).await;
    }
    assert_eq!(pilot.stop(PATIENCE).await, 0, "the pilot lives on");
}
