//! `navigator pilot cassandra --config`: the whole pilot around a scripted Cassandra, which
//! answers like the Jolokia agent and notes down what it is asked.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::harness::{children, folder, signal, state, wait_for};
use crate::support::{loopback::own, ring::install};

pub(super) struct World {
    _kept: tempfile::TempDir,
    pub(super) root: PathBuf,
    pub(super) address: String,
}

impl World {
    /// Each test has a loopback address of its own: the ports of a database are fixed.
    pub(super) fn new(host: u8) -> Self {
        let (kept, root) = folder();
        for name in ["data", "config", "shared"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("shared/jolokia.jar"), "").unwrap();
        install(&root.join("home"));
        Self { _kept: kept, root, address: own([127, 0, 66, host]).to_string() }
    }

    fn start(&self, phase: &str) -> Running<'_> {
        let program = Path::new(env!("CARGO_BIN_EXE_navigator"));
        self.start_program(program, &format!("phase: {phase}"), null())
    }

    /// The database will write lines with rising numbers all the time.
    pub(super) fn be_noisy(&self) {
        fs::create_dir_all(self.root.join("switches")).unwrap();
        fs::write(self.root.join("switches/noise"), "").unwrap();
    }

    /// Waits until the pilot logs this.
    pub(super) fn expect_log(&self, words: &str) {
        wait_for(words, || {
            let text = fs::read_to_string(self.root.join("stderr")).unwrap_or_default();
            text.contains(words).then_some(())
        });
    }

    /// Does somebody hold the data directory?
    pub(super) fn lock_is_held(&self) -> bool {
        let folder = fs::File::open(self.root.join("data")).unwrap();
        nix::fcntl::Flock::lock(folder, nix::fcntl::FlockArg::LockExclusiveNonblock).is_err()
    }

    /// `wanted` goes into the spec.
    pub(super) fn start_program(
        &self,
        program: &Path,
        wanted: &str,
        stdout: fs::File,
    ) -> Running<'_> {
        self.run(wanted, Command::new(program), stdout)
    }

    /// Starts the pilot in a mount namespace of its own, after commands of a shell.
    pub(super) fn start_after(&self, preparation: &str) -> Running<'_> {
        let mut command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!("{preparation}\nexec \"$@\"");
        command.args(["--mount", "--", "sh", "-ec", &script, "sh"]);
        command.arg(env!("CARGO_BIN_EXE_navigator"));
        self.run("phase: Running", command, null())
    }

    fn run(&self, wanted: &str, mut command: Command, stdout: fs::File) -> Running<'_> {
        let pilot = format!(
            "metadata: {{name: cass-demo-a-0, namespace: default}}\nspec:\n  {wanted}\n  \
             version: 5.0.6\n  jvm: {{heap: 384Mi}}\n  cassandra: {{clusterName: demo, \
             datacenter: d, rack: r}}\n"
        );
        let file = self.root.join("pilot.yaml");
        fs::write(&file, pilot).unwrap();
        let path = |name: &str| self.root.join(name);
        let child = command
            .args(["pilot", "cassandra", "--address", &self.address])
            .args(["--takeover-interval", "0.02"])
            .args(["--bind-address", &self.address, "--termination-grace-period", "60"])
            .args(["--config".into(), file, "--home".into(), path("home")])
            .args(["--data-dir".into(), path("data"), "--config-dir".into(), path("config")])
            .args(["--shared-dir".into(), path("shared")])
            .env("NAVIGATOR_TERMINATION_LOG", "/nonexistent")
            .stdin(Stdio::null())
            .stdout(Stdio::from(stdout))
            .stderr(Stdio::from(fs::File::create(path("stderr")).unwrap()))
            .spawn()
            .unwrap();
        Running { world: self, child }
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.root.join("notes")).unwrap_or_default()
    }

    pub(super) fn get(&self, port: u16) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect((self.address.as_str(), port)).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let code = text.split(' ').nth(1)?.parse().ok()?;
        Some((code, text.split("\r\n\r\n").nth(1)?.trim_end().to_owned()))
    }
}

pub(super) struct Running<'a> {
    world: &'a World,
    child: Child,
}

impl Running<'_> {
    pub(super) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(super) fn database(&self) -> i32 {
        wait_for("the database", || children(self.pid()).first().copied())
    }

    pub(super) fn until(&self, code: u16, word: &str) {
        let mut last = None;
        let wanted = Some((code, word.to_owned()));
        let until = std::time::Instant::now() + super::harness::DEADLINE;
        while last != wanted {
            last = self.world.get(12001);
            let stderr = || fs::read_to_string(self.world.root.join("stderr")).unwrap_or_default();
            assert!(
                std::time::Instant::now() < until,
                "want {wanted:?}, saw {last:?}\n{}",
                stderr()
            );
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    pub(super) fn stop(mut self) -> Option<i32> {
        signal(self.pid(), 15);
        wait_for("the pilot's end", || self.child.try_wait().unwrap()).code()
    }
}

fn null() -> fs::File {
    fs::OpenOptions::new().write(true).open("/dev/null").unwrap()
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_node_serves_and_is_drained_before_it_is_stopped() {
    let world = World::new(1);
    let pilot = world.start("Running");
    pilot.until(200, "Running");
    assert_eq!(world.get(12000).unwrap().0, 200);
    assert_eq!(world.get(12002).unwrap().0, 200);
    let metrics = world.get(8080).unwrap().1;
    assert!(metrics.contains("\nnavigator_pilot_ready 1\n"), "{metrics}");
    assert!(metrics.contains("\nnavigator_cassandra_live_nodes 1\n"), "{metrics}");
    let pid = pilot.database();
    assert_eq!(pilot.stop(), Some(0));
    assert_eq!(world.log(), format!("start {pid}\nfounds\nnormal\ndrain\nterm\n"));
    let left: Vec<_> = fs::read_dir(world.root.join("data/.navigator")).unwrap().collect();
    assert!(!left.iter().any(|entry| entry.as_ref().unwrap().file_name() == "run.json"));
}

#[test]
fn a_crashed_database_is_started_again_under_the_same_pilot() {
    let world = World::new(2);
    let pilot = world.start("Running");
    pilot.until(200, "Running");
    let first = pilot.database();
    signal(first, 9);
    let second = wait_for("another process", || {
        children(pilot.pid()).first().copied().filter(|pid| *pid != first)
    });
    pilot.until(200, "Running");
    assert_ne!(first, second);
    assert!(world.get(8080).unwrap().1.contains("navigator_pilot_process_crashes_total 1\n"));
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_killed_pilot_takes_the_database_along_and_the_next_one_takes_over() {
    let world = World::new(3);
    let mut pilot = world.start("Running");
    pilot.until(200, "Running");
    let database = pilot.database();
    pilot.child.kill().unwrap();
    pilot.child.wait().unwrap();
    wait_for("the database's end", || state(database).is_none_or(|s| s == 'Z').then_some(()));
    drop(pilot);
    let next = world.start("Running");
    next.until(200, "Running");
    world.expect_log("An earlier run has no end");
    assert_eq!(next.stop(), Some(0));
}

#[test]
fn a_fenced_or_stopped_node_is_kept_down() {
    for (host, phase) in [(4, "Fenced"), (5, "Stopped")] {
        let world = World::new(host);
        let pilot = world.start(phase);
        pilot.until(503, phase);
        assert_eq!(world.get(12000).unwrap().0, 200, "the container is kept");
        assert_eq!(world.log(), "");
        assert_eq!(pilot.stop(), Some(0));
    }
}

#[test]
fn a_phase_that_is_not_known_starts_nothing() {
    let world = World::new(61);
    let pilot = world.start("FromTheFuture");
    world.expect_log("The phase that is wanted is not known");
    pilot.until(503, "Pending");
    assert_eq!(world.log(), "", "nothing was started");
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn foreign_data_are_not_touched() {
    let world = World::new(6);
    fs::write(world.root.join("data/rows"), "x").unwrap();
    let pilot = world.start("Running");
    pilot.until(503, "Failed");
    assert_eq!(world.log(), "");
    world.expect_log("IdentityMismatch");
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_serving_node_gives_the_memory_of_its_start_back() {
    let world = World::new(7);
    let pilot = world.start("Running");
    pilot.until(200, "Running");
    let kibibytes = |key: &str| {
        let text = fs::read_to_string(format!("/proc/{}/status", pilot.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u32>().unwrap()
    };
    wait_for("less memory than at its most", || {
        (kibibytes("VmRSS:") + 1024 < kibibytes("VmHWM:")).then_some(())
    });
    assert_eq!(pilot.stop(), Some(0));
}
