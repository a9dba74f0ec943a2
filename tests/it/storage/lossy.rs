//! A disk that loses what was not synced when the power goes, and one that fails.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use navigator::apiserver::storage::{
    Error, PageRequest, Revision, Storage,
    embedded::{EmbeddedStore, HistoryLimits},
};
use rand::Rng;
use redb::StorageBackend;
use tokio::time::timeout;

use super::keys::{key, pilots};

const DEADLINE: Duration = Duration::from_secs(60);
const BLOCK: usize = 512;

#[derive(Debug, Default)]
struct Medium {
    /// What a power failure leaves.
    durable: Vec<u8>,
    /// What a read shows.
    written: Vec<u8>,
    syncs: usize,
}

#[derive(Clone, Debug, Default)]
struct Disk {
    medium: Arc<Mutex<Medium>>,
    syncs_fail: Arc<AtomicBool>,
    writes_panic: Arc<AtomicBool>,
    /// How long a sync takes.
    slow: Duration,
}

impl Disk {
    fn holding(bytes: Vec<u8>) -> Self {
        let medium = Medium { durable: bytes.clone(), written: bytes, syncs: 0 };
        Self { medium: Arc::new(Mutex::new(medium)), ..Self::default() }
    }

    /// The disk after a power failure: nothing that was not synced.
    fn after_a_power_failure(&self) -> Self {
        Self::holding(self.medium.lock().unwrap().durable.clone())
    }

    /// The disk after a power failure that tears: some blocks got there without a sync, in no
    /// order.
    fn after_a_power_failure_that_tears(&self) -> Self {
        let medium = self.medium.lock().unwrap();
        let mut bytes = medium.durable.clone();
        bytes.resize(medium.written.len(), 0);
        for (torn, written) in bytes.chunks_mut(BLOCK).zip(medium.written.chunks(BLOCK)) {
            if rand::rng().random() {
                torn.copy_from_slice(written);
            }
        }
        Self::holding(bytes)
    }

    fn syncs(&self) -> usize {
        self.medium.lock().unwrap().syncs
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.medium.lock().unwrap().written.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let medium = self.medium.lock().unwrap();
        let start = usize::try_from(offset).unwrap();
        let bytes = medium.written.get(start..start + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.medium.lock().unwrap().written.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.syncs_fail.load(Ordering::SeqCst) {
            return Err(io::Error::other("the disk is broken"));
        }
        std::thread::sleep(self.slow);
        let mut medium = self.medium.lock().unwrap();
        let Medium { durable, written, syncs } = &mut *medium;
        durable.clone_from(written);
        *syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        assert!(!self.writes_panic.load(Ordering::SeqCst), "on purpose");
        let start = usize::try_from(offset).unwrap();
        self.medium.lock().unwrap().written[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn open(disk: Disk) -> EmbeddedStore {
    EmbeddedStore::open_backend(disk, HistoryLimits::default()).unwrap()
}

#[tokio::test]
async fn every_acknowledged_write_outlives_a_power_failure() {
    let disk = Disk::default();
    let store = open(disk.clone());
    let mut at = store.create(&key("ns", "a"), Bytes::from("0")).await.unwrap();
    for n in 1..30 {
        at = match n % 3 {
            0 => {
                store.delete(&key("ns", "a"), at).await.unwrap();
                store.create(&key("ns", "a"), Bytes::from(n.to_string())).await.unwrap()
            }
            _ => store.update(&key("ns", "a"), at, Bytes::from(n.to_string())).await.unwrap(),
        };
        for after in [disk.after_a_power_failure(), disk.after_a_power_failure_that_tears()] {
            let found = open(after).get(&key("ns", "a")).await.unwrap().expect("it was created");
            assert_eq!((found.revision, found.value), (at, Bytes::from(n.to_string())), "{n}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_failure_at_any_moment_loses_no_acknowledged_write_of_many() {
    let disk = Disk { slow: Duration::from_millis(5), ..Disk::default() };
    let store = open(disk.clone());
    let acknowledged: Mutex<Vec<(String, Revision)>> = Mutex::default();
    let writing = join_all((0..8).map(|writer| {
        let (store, acknowledged) = (&store, &acknowledged);
        async move {
            for n in 0..60 {
                let name = format!("k{writer}-{n}");
                let written = store.create(&key("ns", &name), Bytes::from_static(b"x")).await;
                acknowledged.lock().unwrap().push((name, written.unwrap()));
            }
        }
    }));
    let failing = async {
        let mut failures = 0;
        while acknowledged.lock().unwrap().len() < 8 * 60 {
            // What was acknowledged before the power failed has to be there.
            let known = acknowledged.lock().unwrap().clone();
            let store = open(disk.after_a_power_failure_that_tears());
            let page = store.list(&pilots(), PageRequest::default()).await.unwrap();
            for (name, revision) in known {
                let found = page.entries.iter().find(|entry| entry.key == key("ns", &name));
                assert_eq!(found.map(|entry| entry.revision), Some(revision), "{name}");
            }
            failures += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        failures
    };
    let (_, failures) = futures::future::join(writing, failing).await;
    assert!(failures > 0, "the power failed {failures} times only");
}

#[tokio::test]
async fn writers_that_wait_share_a_sync() {
    let disk = Disk { slow: Duration::from_millis(5), ..Disk::default() };
    let store = open(disk.clone());
    let keys: Vec<_> = (0..1_000).map(|n| key("ns", &format!("k{n}"))).collect();
    let before = disk.syncs();
    for key in &keys[..50] {
        store.create(key, Bytes::from_static(b"x")).await.unwrap();
    }
    assert!(disk.syncs() - before >= 50, "not every write was synced before its answer");
    let before = disk.syncs();
    let written = join_all(keys[50..].iter().map(|k| store.create(k, Bytes::from_static(b"x"))));
    for result in written.await {
        result.unwrap();
    }
    let syncs = disk.syncs() - before;
    assert!(syncs < 950 / 4, "{syncs} syncs for 950 writers that waited together");
}

/// The store does nothing any more, and its process is told.
async fn has_ended(store: &EmbeddedStore, why: &str) {
    let said = timeout(DEADLINE, store.until_failed()).await.expect("it says that it ended");
    assert!(said.contains(why), "{said}");
    let refused = store.create(&key("ns", "later"), Bytes::from_static(b"x")).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    assert!(store.get(&key("ns", "a")).await.is_err(), "pages that nobody can trust were read");
    assert!(store.current_revision().await.is_err());
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_believed() {
    let disk = Disk::default();
    let store = open(disk.clone());
    store.create(&key("ns", "a"), Bytes::from_static(b"x")).await.unwrap();
    disk.syncs_fail.store(true, Ordering::SeqCst);
    let refused = store.create(&key("ns", "b"), Bytes::from_static(b"x")).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    // The kernel reports the failure once. A file that is opened again would look whole.
    disk.syncs_fail.store(false, Ordering::SeqCst);
    has_ended(&store, "the disk did not take").await;
}

#[tokio::test]
async fn a_panic_of_the_writer_is_the_end_of_the_store() {
    let disk = Disk::default();
    let store = open(disk.clone());
    store.create(&key("ns", "a"), Bytes::from_static(b"x")).await.unwrap();
    disk.writes_panic.store(true, Ordering::SeqCst);
    let refused = store.create(&key("ns", "b"), Bytes::from_static(b"x")).await;
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    has_ended(&store, "panicked").await;
}
