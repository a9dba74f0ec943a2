//! The process of a coordinator.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use tempfile::TempDir;

/// A running coordinator; killed when this is dropped.
pub(super) struct Coordinator {
    child: Child,
    folder: TempDir,
}

impl Coordinator {
    /// Starts the only coordinator of a cluster, whose API is at this address.
    pub(super) fn start(server: &str) -> Self {
        Self::with(server, &["--leader-elect=false"])
    }

    /// Starts one of several, of which one leads.
    pub(super) fn candidate(server: &str) -> Self {
        let times = [
            "--leader-elect-lease-duration=6",
            "--leader-elect-renew-deadline=4",
            "--leader-elect-retry-period=1",
        ];
        Self::with(server, &times)
    }

    /// Starts the only coordinator with further flags.
    pub(super) fn only(server: &str, flags: &[&str]) -> Self {
        Self::with(server, &[&["--leader-elect=false"], flags].concat())
    }

    fn with(server: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "t",
            "clusters": [{"name": "t", "cluster": {"server": server}}],
            "users": [{"name": "t", "user": {}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        });
        let path = folder.path().join("kubeconfig");
        fs::write(&path, config.to_string()).unwrap();
        let log = fs::File::create(Self::log(folder.path())).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the process is under test")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_navigator"));
        let child = command
            .args(["coordinator", "--enable-cluster-upgrade", "--admin-address=127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(path)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, folder }
    }

    fn log(folder: &Path) -> PathBuf {
        folder.join("log")
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Returns its exit code, once it has ended.
    pub(super) fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap())
    }

    /// Kills it (-9), and waits until it is gone.
    pub(super) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            let text = fs::read_to_string(Self::log(self.folder.path())).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            #[allow(clippy::print_stderr, reason = "what a failed test leaves to read")]
            {
                eprintln!("{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            }
        }
    }
}
