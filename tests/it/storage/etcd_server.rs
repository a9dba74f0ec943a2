//! A real etcd on free loopback ports, ended with the test process whatever becomes of it.

use std::{
    env,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::OnceLock,
};

/// etcd is killed, and its data removed, when this is dropped or the process ends.
pub(crate) struct Server {
    url: String,
    shell: Child,
    /// The shell reads it; its end is the sign to clean up.
    alive: Option<ChildStdin>,
}

/// The server that cases of different keys share.
pub(crate) fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(Server::start)
}

impl Server {
    pub(crate) fn start() -> Self {
        // No test needs its data after a power failure; it makes the suite a third faster.
        Self::start_with(&["--unsafe-no-fsync"])
    }

    pub(crate) fn start_with(extra: &[&str]) -> Self {
        let data = tempfile::tempdir().unwrap().keep();
        let (client, peer) = (free_address(), free_address());
        let url = format!("http://{client}");
        let peer = format!("http://{peer}");
        let script = r#"data=$1; shift; "$@" >"$data/log" 2>&1 & pid=$!; read _; kill -9 $pid; wait $pid; rm -rf "$data""#;
        #[expect(clippy::disallowed_methods, reason = "tests start servers of their own")]
        let mut shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&data)
            .arg(binary())
            .args(["--name", "test", "--data-dir"])
            .arg(data.join("data"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}"), "--log-level", "error"])
            .args(extra)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let alive = shell.stdin.take();
        Self { url, shell, alive }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.alive.take());
        drop(self.shell.wait());
    }
}

pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[expect(clippy::disallowed_methods, reason = "make exports where its test bed is")]
fn binary() -> PathBuf {
    let testbed = env::var_os("NAVIGATOR_TESTBED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".testbed"), PathBuf::from);
    let path = testbed.join("bin/etcd");
    assert!(path.exists(), "etcd is missing: run make testbed");
    path
}
