//! A disk that is full for a while, played by a limit on the size of files.
//!
//! The limit holds for a whole process, so the test binary runs itself as that process.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use navigator::apiserver::storage::{Error, Revision, Storage, StoreEvent};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{SigSet, Signal},
};
use tokio::time::{Instant, sleep};

use super::{
    keys::{key, pilots},
    open,
};

const DIRECTORY: &str = "NAVIGATOR_TEST_FULL_DISK_DIRECTORY";

#[test]
fn a_store_whose_disk_was_full_works_again_and_lost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the limit is a process's own")]
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "storage::full_disk::process_with_a_limit", "--ignored", "--nocapture"])
        .env(DIRECTORY, directory.path().join("store"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("it works again"), "{said}");
}

/// Not a test of its own: the process that the limit is for.
#[test]
#[ignore = "a process of the test above"]
fn process_with_a_limit() {
    #[expect(clippy::disallowed_methods, reason = "this process was started with it")]
    let Some(directory) = env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    // A write past the limit is then an error rather than the end of the process.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    signals.thread_block().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(fill_and_free(directory));
    eprintln!("it works again");
}

fn limit(bytes: Option<u64>) {
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, bytes.unwrap_or(hard), hard).unwrap();
}

async fn fill_and_free(directory: PathBuf) {
    let store = open(&directory).await;
    let start = store.current_revision().await.unwrap();
    let value = Bytes::from(vec![7; 100_000]);
    let mut acknowledged = Vec::new();
    let size = std::fs::metadata(directory.join("store.redb")).unwrap().len();
    limit(Some(size + 1_000_000));
    let error = loop {
        let name = format!("k{}", acknowledged.len());
        match store.create(&key("ns", &name), value.clone()).await {
            Ok(revision) => acknowledged.push((name, revision)),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 1_000, "the limit does not hold");
    };
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    limit(None);
    let started = Instant::now();
    let mut last = loop {
        match store.create(&key("ns", "after"), value.clone()).await {
            Ok(revision) => break revision,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    for (name, revision) in &acknowledged {
        let entry = store.get(&key("ns", name)).await.unwrap().expect("it was acknowledged");
        assert_eq!(entry.revision, *revision);
    }
    last = last.max(store.current_revision().await.unwrap());
    // The write that was refused may have happened or not; the history agrees with the state.
    let mut events = store.watch(&pilots(), start).await.unwrap();
    let mut reached = Revision(0);
    while reached < last {
        match events.next().await.unwrap().unwrap() {
            StoreEvent::Put { entry, .. } => {
                let now = store.get(&entry.key).await.unwrap().unwrap();
                assert_eq!(now.revision, entry.revision);
                reached = entry.revision;
            }
            event => panic!("{event:?}"),
        }
    }
}
