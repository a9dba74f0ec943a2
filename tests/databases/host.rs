//! The host's part: where the databases are, and a process that does not outlive its test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use navigator::pilot::database::ProcessSpec;

use crate::support::wait::until;

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Lays a database out below `.testbed`, once.
#[expect(clippy::disallowed_methods, reason = "tests start what they test")]
pub(crate) fn home(database: &str, version: &str) -> PathBuf {
    let home = repository().join(".testbed").join(format!("{database}-{version}"));
    let script = repository().join("tests/testbed").join(format!("get-{database}.sh"));
    let status = Command::new(script).arg(version).arg(&home).status().unwrap();
    assert!(
        status.success(),
        "get-{database}.sh {version} failed: is `mvn` (apt: maven) installed?"
    );
    home
}

/// A Java that runs every database of the tests.
pub(crate) fn java_home() -> PathBuf {
    let known = ["java-17-openjdk-amd64", "java-17-openjdk-arm64"];
    known
        .iter()
        .map(|name| Path::new("/usr/lib/jvm").join(name))
        .find(|path| path.join("bin/java").exists())
        .expect("Java 17 is missing: apt-get install openjdk-17-jre-headless")
}

/// A running database. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    pub(crate) log: PathBuf,
}

impl Running {
    /// Starts what a flavour said, its output going to a file.
    #[expect(clippy::disallowed_methods, reason = "tests start what they test")]
    pub(crate) fn start(process: &ProcessSpec, log: &Path) -> Self {
        let output = fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(&process.program);
        command
            .args(&process.args)
            .envs(&process.env)
            .env("JAVA_HOME", java_home())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        if let Some(folder) = &process.working_directory {
            command.current_dir(folder);
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{process:?}: {error}"));
        Self { child, log: log.to_owned() }
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM)
            .unwrap();
    }

    /// Exit code as a shell gives it, within the deadline.
    pub(crate) async fn wait(&mut self, deadline: Duration) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let mut status = None;
        until("the process ends", deadline, async || {
            status = self.child.try_wait().unwrap();
            status.map(|_| ()).ok_or_else(|| "it runs".to_owned())
        })
        .await;
        let status = status.unwrap();
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[lines.len().saturating_sub(20)..].to_vec()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}
