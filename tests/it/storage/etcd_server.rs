//! A real etcd on free loopback ports, ended with the test process whatever becomes of it.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::OnceLock,
};

use tokio::net::TcpSocket;

/// Runs etcd; kills it, does something to its data and starts it again for each line that it
/// reads; cleans up at the end.
const SCRIPT: &str = r#"
data=$1; shift
start() { "$@" >>"$data/log" 2>&1 & pid=$!; }
start "$@"
while read -r what; do
    kill -9 "$pid"; wait "$pid"
    case "$what" in
        wipe) rm -rf "$data/data" ;;
        save) cp -r "$data/data" "$data/saved" ;;
        restore) rm -rf "$data/data"; cp -r "$data/saved" "$data/data" ;;
    esac
    echo killed
    start "$@"
done
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
    _ports: [Port; 2],
}

/// A free port that no other process gets while this is held. etcd can share it, because both set
/// SO_REUSEPORT.
struct Port {
    _held: TcpSocket,
    address: String,
}

impl Port {
    fn reserve() -> Self {
        let held = TcpSocket::new_v4().unwrap();
        held.set_reuseport(true).unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = held.local_addr().unwrap().to_string();
        Self { _held: held, address }
    }
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
        let ports = [Port::reserve(), Port::reserve()];
        let [url, peer] = ports.each_ref().map(|port| format!("http://{}", port.address));
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
            .arg("--socket-reuse-port")
            .args(extra)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let alive = shell.stdin.take();
        let killed = BufReader::new(shell.stdout.take().expect("it is piped"));
        Self { url, shell, alive, killed, _ports: ports }
    }

    /// The address stays, and so does what was written.
    pub(crate) fn kill_and_start_again(&mut self) {
        self.kill_and("nothing");
    }

    /// Starts again with nothing, at the same address.
    pub(crate) fn wipe(&mut self) {
        self.kill_and("wipe");
    }

    /// Keeps a copy of what is there, to [`Server::restore`] it.
    pub(crate) fn save(&mut self) {
        self.kill_and("save");
    }

    pub(crate) fn restore(&mut self) {
        self.kill_and("restore");
    }

    fn kill_and(&mut self, what: &str) {
        self.alive.as_mut().unwrap().write_all(format!("{what}\n").as_bytes()).unwrap();
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

#[expect(clippy::disallowed_methods, reason = "make exports where its test bed is")]
fn binary() -> PathBuf {
    let testbed = env::var_os("NAVIGATOR_TESTBED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".testbed"), PathBuf::from);
    let path = testbed.join("bin/etcd");
    assert!(path.exists(), "etcd is missing: run make testbed");
    path
}
