//! A scripted Cassandra under a pilot that knows no API: its Pilot is a file.

use std::{ffi::OsStr, fs, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    ring::{self, Ring},
    seat::{Running, Seat},
    wait::until,
};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Alone {
    _root: tempfile::TempDir,
    pub(super) seat: Seat,
}

impl Alone {
    /// Each test has a loopback address of its own: the ports of a database are fixed.
    pub(super) fn new(host: u8) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mut seat = Ring::new(root.path(), "demo").seat("cass-demo-a-0", [127, 0, 66, host]);
        let flags = ["--takeover-interval=0.02", "--termination-grace-period=60"];
        seat.flags.extend(flags.map(str::to_owned));
        Self { _root: root, seat }
    }

    /// Starts the pilot. `wanted` is laid over the spec in the file.
    pub(super) fn start(&self, wanted: &Value) -> Running {
        self.seat.start_with(&["--config".as_ref(), self.file(wanted).as_ref()])
    }

    /// Starts the pilot in a mount namespace of its own, after commands of a shell.
    pub(super) fn start_after(&self, preparation: &str) -> Running {
        let file = self.file(&ring::phase("Running"));
        self.seat.start_after(preparation, &["--config".as_ref(), file.as_ref()])
    }

    fn file(&self, wanted: &Value) -> impl AsRef<OsStr> + use<> {
        let mut spec = json!({
            "version": "5.0.6", "jvm": {"heap": "384Mi"},
            "cassandra": {"clusterName": "demo", "datacenter": "d", "rack": "r"},
        });
        json_patch::merge(&mut spec, wanted);
        let metadata = json!({"name": self.seat.name, "namespace": "default"});
        let file = self.seat.place.join("pilot.yaml");
        fs::write(&file, json!({"metadata": metadata, "spec": spec}).to_string()).unwrap();
        file
    }

    /// Waits until the readiness probe answers this code and word.
    pub(super) async fn until(&self, code: u16, word: &str) {
        self.seat.until(code, word, PATIENCE).await;
    }

    /// What happened to its database, in order.
    pub(super) fn notes(&self) -> Vec<String> {
        ring::notes(&self.seat)
    }
}

/// Waits until a pilot runs another database process than this one.
pub(super) async fn another(pilot: &Running, than: i32) -> i32 {
    until("another database process", PATIENCE, async || match pilot.database() {
        Some(pid) if pid != than => Ok(pid),
        other => Err(format!("{other:?}")),
    })
    .await
}
