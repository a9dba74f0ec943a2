//! A host as a pilot sees it: an address of its own on loopback, a data volume, an installed
//! database; and the pilot's process on it.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    net::{IpAddr, TcpStream},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use navigator::runtime::log::{LineRecord, PlainLog};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{loopback::own, wait::until};

/// The user that databases run as when the tests are root: Elasticsearch refuses root.
pub(crate) const USER: u32 = 9200;

/// Where one pilot runs. Its folders outlive the process, as a volume outlives a pod.
pub(crate) struct Seat {
    pub(crate) name: String,
    /// The database's word on the command line.
    pub(crate) word: &'static str,
    /// What is run as the pilot.
    pub(crate) program: PathBuf,
    pub(crate) address: IpAddr,
    /// Where the database is installed.
    pub(crate) home: PathBuf,
    /// Parent of `data`, `config`, `shared` and the log.
    pub(crate) place: PathBuf,
    /// Run the database as this user when the test is root.
    pub(crate) user: Option<u32>,
    pub(crate) env: Vec<(String, String)>,
    /// Flags beyond those of every pilot.
    pub(crate) flags: Vec<String>,
}

/// A running pilot. Dropping it kills it, and the kernel the database with it.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Seat {
    /// Makes the folders below `root`. The address is [`own`] to this run.
    pub(crate) fn new(
        word: &'static str,
        name: &str,
        address: [u8; 4],
        home: &Path,
        root: &Path,
    ) -> Self {
        let place = root.join(name);
        for folder in ["data", "config", "shared"] {
            fs::create_dir_all(place.join(folder)).unwrap();
        }
        Self {
            name: name.to_owned(),
            word,
            program: env!("CARGO_BIN_EXE_navigator").into(),
            address: own(address),
            home: home.to_owned(),
            place,
            user: None,
            env: Vec::new(),
            flags: Vec::new(),
        }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.place.join("data")
    }

    /// Starts the pilot with credentials of an API.
    pub(crate) fn start(&self, credentials: &Path) -> Running {
        self.start_with(&["--kubeconfig".as_ref(), credentials.as_os_str()])
    }

    /// Starts the pilot with these flags, which say where its intent comes from.
    pub(crate) fn start_with(&self, intent: &[&OsStr]) -> Running {
        self.run(Command::new(&self.program), intent)
    }

    /// Runs the shell commands `preparation` in a new mount namespace, then starts the pilot there.
    pub(crate) fn start_after(&self, preparation: &str, intent: &[&OsStr]) -> Running {
        let mut command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!("{preparation}\nexec \"$@\"");
        command.args(["--mount", "--", "sh", "-ec", &script, "sh"]).arg(&self.program);
        self.run(command, intent)
    }

    /// Runs `command` with the flags that every pilot gets.
    fn run(&self, mut command: Command, intent: &[&OsStr]) -> Running {
        let address = self.address.to_string();
        command
            .args(["pilot", self.word, "--pilot-name", &self.name, "--address", &address])
            .args(["--bind-address", &address])
            .args(intent)
            .args(["--home".as_ref(), self.home.as_path()])
            .args(["--data-dir".into(), self.data()])
            .args(["--config-dir".into(), self.place.join("config")])
            .args(["--shared-dir".into(), self.place.join("shared")])
            .args(&self.flags)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .env("NAVIGATOR_TERMINATION_LOG", "/nonexistent")
            .stdin(Stdio::null());
        if let Some(user) = self.user.filter(|_| nix::unistd::geteuid().is_root()) {
            command.arg(format!("--user={user}"));
            give(&self.place, user);
        }
        let log = self.log();
        let output = fs::File::options().create(true).append(true).open(&log).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Running { child, log }
    }

    /// Waits until one of the pilot's files on the volume holds this value. The pilot starts a
    /// database and reports it without waiting for the disk.
    pub(crate) async fn wait_for_record(
        &self,
        file: &str,
        key: &str,
        value: impl Into<Value>,
        deadline: Duration,
    ) {
        let (path, value) = (self.data().join(".navigator").join(file), value.into());
        until(&format!("{key} {value} in {file}"), deadline, async || {
            let text = fs::read(&path).map_err(|error| error.to_string())?;
            let record: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
            if record[key] == value { Ok(()) } else { Err(record.to_string()) }
        })
        .await;
    }

    /// Waits until the readiness probe answers this code and word.
    pub(crate) async fn until(&self, code: u16, word: &str, deadline: Duration) {
        let what = format!("{} answers {code} {word}", self.name);
        until(&what, deadline, async || match self.get(12001) {
            Some((now, body)) if now == code && body == word => Ok(()),
            other => Err(format!("{other:?}\n{}", tail(&self.log(), 40))),
        })
        .await;
    }

    /// A figure among the pilot's metrics; the name goes with its labels.
    pub(crate) fn gauge(&self, name: &str) -> Option<f64> {
        let (_, page) = self.get(8080)?;
        page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// What pilots and databases wrote here, over all runs, as they wrote it.
    pub(crate) fn said(&self) -> String {
        read(&self.log())
    }

    /// All that its databases wrote to one stream, put together from its records. What is no
    /// UTF-8 was replaced in them.
    pub(crate) fn written(&self, stream: &str) -> String {
        let text = fs::read_to_string(self.log()).unwrap();
        let records = text.lines().filter_map(LineRecord::parse);
        let records = records.filter(|record| record.stream == stream);
        records.map(|one| one.record + if one.partial { "" } else { "\n" }).collect()
    }

    /// The log file of a seat, in which lines of databases are records.
    pub(crate) fn log(&self) -> PathBuf {
        self.place.join("log")
    }

    /// Code and body of what the pilot answers at one of its ports: 12000 liveness, 12001
    /// readiness, 12002 startup, 8080 metrics.
    pub(crate) fn get(&self, port: u16) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect((self.address, port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let code = text.split(' ').nth(1)?.parse().ok()?;
        Some((code, text.split("\r\n\r\n").nth(1)?.trim_end().to_owned()))
    }
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The database's process, while there is one.
    pub(crate) fn database(&self) -> Option<i32> {
        let pid = self.pid();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Kills the pilot, as a lost machine would; waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the pilot's end: the exit code as a shell gives it.
    pub(crate) async fn ended(&mut self, deadline: Duration) -> i32 {
        let log = self.log.clone();
        let status = until("the pilot's end", deadline, async || {
            self.child.try_wait().unwrap().ok_or_else(|| tail(&log, 30))
        })
        .await;
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }

    /// Asks the pilot to end, and waits.
    pub(crate) async fn stop(mut self, deadline: Duration) -> i32 {
        self.signal(Signal::SIGTERM);
        self.ended(deadline).await
    }

    /// Waits until the pilot or its database wrote these words.
    pub(crate) async fn says(&self, words: &str, deadline: Duration) {
        until(&format!("{words:?} in the log"), deadline, async || {
            if self.log().contains(words) { Ok(()) } else { Err(self.tail()) }
        })
        .await;
    }

    /// See [`Seat::said`].
    pub(crate) fn log(&self) -> String {
        read(&self.log)
    }

    pub(crate) fn tail(&self) -> String {
        tail(&self.log, 40)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            #[allow(clippy::print_stderr, reason = "what a failed test leaves to read")]
            {
                eprintln!("--- {}\n{}", self.log.display(), self.tail());
            }
        }
    }
}

/// Sends a signal to any process; one that is gone is no error.
pub(crate) fn signal(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).ok();
}

/// Has this process ended? It may not have been reaped yet.
pub(crate) fn is_gone(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .unwrap_or_default()
        .trim_start()
        .chars()
        .next()
        .is_none_or(|state| state == 'Z')
}

pub(crate) async fn until_gone(pid: i32, deadline: Duration) {
    until("the process's end", deadline, async || {
        if is_gone(pid) { Ok(()) } else { Err(format!("{pid} runs")) }
    })
    .await;
}

fn read(log: &Path) -> String {
    let mut plain = PlainLog::default();
    plain.append(&fs::read(log).unwrap_or_default()) + &plain.finish()
}

fn tail(log: &Path, count: usize) -> String {
    let text = read(log);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Gives a folder and all below it to a user.
pub(crate) fn give(folder: &Path, user: u32) {
    std::os::unix::fs::lchown(folder, Some(user), Some(user)).unwrap();
    if folder.is_symlink() || !folder.is_dir() {
        return;
    }
    for entry in fs::read_dir(folder).unwrap() {
        give(&entry.unwrap().path(), user);
    }
}
