//! Loopback addresses that no other run of tests on this machine has: a database's ports are
//! fixed, so two checkouts that took the same addresses would meet.

use std::{
    fs::{File, TryLockError},
    io,
    net::IpAddr,
    sync::OnceLock,
};

/// The host of this address in this process's own 127.N.0.0/16.
pub(crate) fn own([_, _, net, host]: [u8; 4]) -> IpAddr {
    // The lock is held until the process ends, however it ends.
    static OWN: OnceLock<(u8, File)> = OnceLock::new();
    let (run, _) = OWN.get_or_init(|| {
        let free = |run| try_lock(&format!("navigator-127.{run}")).map(|lock| (run, lock));
        (100..250).find_map(free).expect("150 runs of tests at once")
    });
    [127, *run, net, host].into()
}

/// Waits until no other run of these tests has a real Cassandra: its JMX listens on 127.0.0.1,
/// whatever the node's address.
pub(crate) fn alone() -> File {
    let lock = open("navigator-cassandra").unwrap();
    if lock.try_lock().is_err() {
        #[allow(clippy::print_stdout, reason = "says why nothing happens")]
        {
            println!("another run has the ports of Cassandra's JMX: waiting for its end");
        }
        lock.lock().unwrap();
    }
    lock
}

fn try_lock(name: &str) -> Option<File> {
    let file = open(name).ok()?;
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => panic!("{name}: {error}"),
    }
}

fn open(name: &str) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("{name}.lock"));
    // Another user's file can be locked, but not written.
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .or_else(|_| File::open(&path))
}
