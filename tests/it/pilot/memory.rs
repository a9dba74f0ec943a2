//! The kernel kills a database at the memory limit of its container, which is a cgroup here.

use std::{fs, path::PathBuf};

use super::{database::World, harness::wait_for};

/// More than the heap of 384 MiB that the pilot is told, so that it starts.
const LIMIT: &str = "471859200";

/// A memory cgroup of this test's own.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Self {
        let name = format!("navigator-test-{}", std::process::id());
        let v1 = PathBuf::from("/sys/fs/cgroup/memory");
        let (parent, limit) = if v1.is_dir() {
            (v1, "memory.limit_in_bytes")
        } else {
            let root = PathBuf::from("/sys/fs/cgroup");
            drop(fs::write(root.join("cgroup.subtree_control"), "+memory"));
            (root, "memory.max")
        };
        let made = Self(parent.join(name));
        fs::create_dir(&made.0)
            .and_then(|()| fs::write(made.0.join(limit), LIMIT))
            .unwrap_or_else(|error| panic!("{}: {error}; run as root", made.0.display()));
        made
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that was just killed may still be leaving.
        wait_for("the cgroup's end", || fs::remove_dir(&self.0).ok());
    }
}

#[test]
fn a_kill_by_the_kernel_is_told_as_out_of_memory() {
    let world = World::new(50);
    let program = world.root.join("home/bin/cassandra");
    fs::write(program, "#!/usr/bin/perl\nmy $size = 900_000_000; my $x = 'a' x $size; sleep 60;")
        .unwrap();
    let cgroup = Cgroup::new();
    let join = format!("echo $$ > {}/cgroup.procs", cgroup.0.display());
    let pilot = world.start_after(&join);
    pilot.until(503, "Failed");
    for word in ["OutOfMemory", "killed by the kernel at the memory limit"] {
        world.expect_log(word);
    }
    assert_eq!(pilot.stop(), Some(0), "the pilot lives on");
}
