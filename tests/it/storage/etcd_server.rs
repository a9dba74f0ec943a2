//! A real etcd on free loopback ports, ended with the test process whatever becomes of it.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
};

/// Runs etcd, kills it and starts it again for each line that it reads, cleans up at the end.
const SCRIPT: &str = r#"
data=$1; shift
start() { "$@" >>"$data/log" 2>&1 & pid=$!; }
start "$@"
while read -r _; do kill -9 "$pid"; wait "$pid"; echo killed; start "$@"; done
kill -9 "$pid"; wait "$pid"; rm -rf "$data"
"#;

/// etcd is killed, and its data removed, when this is dropped or the process ends.
pub(crate) struct Server {
    url: String,
    shell: Child,
    /// What the shell reads.
    alive: Option<ChildStdin>,
    /// Where the shell says that it killed etcd.
    killed: BufReader<ChildStdout>,
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
        #[expect(clippy::disallowed_methods, reason = "tests start servers of their own")]
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(&data)
            .arg(binary())
            .args(["--name", "test", "--data-dir"])
            .arg(data.join("data"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}"), "--log-level", "error"])
            .args(extra)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let alive = shell.stdin.take();
        let killed = BufReader::new(shell.stdout.take().expect("it is piped"));
        Self { url, shell, alive, killed }
    }

    /// The address stays, and so does what was written.
    pub(crate) fn kill_and_start_again(&mut self) {
        self.alive.as_mut().unwrap().write_all(b"again\n").unwrap();
        let mut said = String::new();
        self.killed.read_line(&mut said).unwrap();
        assert_eq!(said, "killed\n");
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
