//! The runner of upgrades as a process, on a machine that is a folder: its kubelet is a small program of
//! two versions, kubeadm and systemd are scripts. Killed at every change of a file it ends with the old
//! kubelet or the new one; what it refuses; how it and the agent speak.

mod handed;
mod installed;
mod killed;
mod refused;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use navigator::{
    api::containership::ProgramDigests,
    engine::machines::{HostPolicy, JOB_FORM, MachineRole, UpgradeJob},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::port::Port;

const OLD: &str = "v1.33.13";
const NEW: &str = "v1.34.4";

/// Stops the kubelet and starts the one that is installed. Two of these wait for each other, as
/// systemd's do.
const RESTART: &str = "#!/bin/sh
cd \"$1\" && exec 9>restart.lock && flock 9
if [ -f pid ]; then kill -9 \"$(cat pid)\" 2>/dev/null; fi
setsid ./bin/kubelet \"$2\" ./etc/config.yaml </dev/null >/dev/null 2>&1 9>&- &
echo $! > pid
";

/// Writes the configuration of its version. `etc/fails` has it fail afterwards.
const KUBEADM: &str = "#!/bin/sh
if [ \"$1\" = version ]; then echo VERSION; exit 0; fi
echo \"$@\" >> HOME/kubeadm.calls
echo VERSION > HOME/etc/config.yaml
if [ -f HOME/etc/fails ]; then echo 'preflight: this node is not well' >&2; exit 3; fi
";

#[expect(clippy::disallowed_methods, reason = "tests start programs of their own")]
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}

/// Lays a machine from the parts. A process of its own does that: what this one has open for writing while
/// another thread forks, could not be executed.
const LAY: &str = "set -e
mkdir bin etc jobs web
cp \"$1/v1.33.13 200 OK\" bin/kubelet
cp \"$1/v1.34.4 $2\" web/kubelet
echo v1.33.13 > etc/config.yaml
sed \"s|HOME|$PWD|\" \"$1/kubeadm\" > web/kubeadm
cp \"$1/restart\" restart
chmod 755 web/kubeadm restart
";

/// The parts of machines, of which the kubelets are compiled once, by version and answer.
fn parts() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let build = || {
        let folder = tempfile::tempdir().unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/runner/kubelet.c");
        for (version, answer) in [(OLD, "200 OK"), (NEW, "200 OK"), (NEW, "500 Sick")] {
            let built = command("cc")
                .arg(format!("-DVERSION=\"{version}\""))
                .arg(format!("-DANSWER=\"{answer}\""))
                .args([source, "-o"])
                .arg(folder.path().join(format!("{version} {answer}")))
                .status();
            let built = built.expect("cc is missing: please install gcc");
            assert!(built.success(), "{source}");
        }
        fs::write(folder.path().join("kubeadm"), KUBEADM.replace("VERSION", NEW)).unwrap();
        fs::write(folder.path().join("restart"), RESTART).unwrap();
        folder
    };
    FOLDER.get_or_init(build).path()
}

fn digest(path: &Path) -> String {
    format!("{:x}", Sha256::digest(fs::read(path).unwrap()))
}

/// A machine.
struct Host {
    home: tempfile::TempDir,
    port: Port,
    old: String,
    new: String,
}

impl Host {
    /// A machine whose old kubelet runs. The new one answers `/healthz` so.
    fn new(answer: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        let mut lay = command("sh");
        lay.args(["-c", LAY, "lay"]).arg(parts()).arg(answer).current_dir(root);
        assert!(lay.status().unwrap().success());
        let (old, new) = (digest(&root.join("bin/kubelet")), digest(&root.join("web/kubelet")));
        let host = Self { home, port: Port::reserve(), old, new };
        host.set_policy(|_| {});
        let [restart] = &host.policy().restart[..] else { panic!("one command") };
        assert!(command(&restart[0]).args(&restart[1..]).status().unwrap().success());
        host
    }

    fn path(&self, below: &str) -> PathBuf {
        self.home.path().join(below)
    }

    fn policy(&self) -> HostPolicy {
        serde_json::from_slice(&fs::read(self.path("policy.json")).unwrap()).unwrap()
    }

    fn set_policy(&self, change: impl FnOnce(&mut HostPolicy)) {
        let port = self.port.address.port();
        let restart =
            [self.path("restart").display().to_string(), self.path("").display().to_string()];
        let mut policy = HostPolicy {
            kubelet: self.path("bin/kubelet"),
            kept_files: vec![self.path("etc/config.yaml"), self.path("etc/none.env")],
            restart: vec![restart.into_iter().chain([port.to_string()]).collect()],
            health_url: format!("http://127.0.0.1:{port}/healthz"),
            health_seconds: 20,
            stable_seconds: 0,
            ..HostPolicy::new(vec![self.web()], "v1.33.0".into(), "v1.34.99".into())
        };
        change(&mut policy);
        fs::write(self.path("policy.json"), json!(policy).to_string()).unwrap();
    }

    fn web(&self) -> String {
        format!("file://{}", self.path("web").display())
    }

    fn job(&self) -> UpgradeJob {
        UpgradeJob {
            form: JOB_FORM,
            id: "u-1".to_owned(),
            attempt: 1,
            role: MachineRole::Worker,
            from: OLD.to_owned(),
            to: NEW.to_owned(),
            base_url: self.web(),
            sha256: ProgramDigests {
                kubelet: self.new.clone(),
                kubeadm: digest(&self.path("web/kubeadm")),
            },
            etcd_upgrade: true,
            deadline: None,
        }
    }

    /// Writes a job as the agent does.
    fn hand(&self, job: &Value) {
        let id = job["id"].as_str().unwrap();
        fs::create_dir_all(self.path("jobs").join(id)).unwrap();
        fs::write(self.path("jobs").join(id).join("job.json"), job.to_string()).unwrap();
        fs::write(self.path("jobs/current"), id).unwrap();
    }

    fn runner(&self) -> Command {
        let mut command = command(env!("CARGO_BIN_EXE_navigator"));
        command.args(["agent", "run-job"]).arg(self.path("jobs"));
        command.arg("--policy").arg(self.path("policy.json"));
        command.arg("--state").arg(self.path("state"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn start(&self) -> Child {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        self.runner().stderr(log).spawn().unwrap()
    }

    /// Runs the runner to its end; returns its exit code.
    fn run(&self) -> i32 {
        self.start().wait().unwrap().code().unwrap()
    }

    /// What the agent is told of the job.
    fn told(&self) -> Value {
        let text = fs::read(self.path("jobs/u-1/state.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// The version that the installed kubelet says; `None` where it is neither of the two.
    fn installed(&self) -> Option<&'static str> {
        let found = digest(&self.path("bin/kubelet"));
        [(&self.old, OLD), (&self.new, NEW)]
            .into_iter()
            .find(|(one, _)| **one == found)
            .map(|one| one.1)
    }

    /// The version that runs, as its `/healthz` says.
    fn running(&self) -> String {
        use std::io::{Read, Write};
        let begun = std::time::Instant::now();
        let mut stream = loop {
            match std::net::TcpStream::connect(self.port.address) {
                Ok(stream) => break stream,
                // It was just started.
                Err(error) => assert!(begun.elapsed().as_secs() < 60, "{error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.rsplit('\n').next().unwrap().to_owned()
    }

    fn configured(&self) -> String {
        fs::read_to_string(self.path("etc/config.yaml")).unwrap().trim().to_owned()
    }

    /// Claims that the machine is wholly of this version.
    fn is_of(&self, version: &str) {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let seen = (self.installed(), self.running(), self.configured());
        assert_eq!(seen, (Some(version), version.to_owned(), version.to_owned()), "{log}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.path("pid")).unwrap_or_default();
        drop(command("kill").args(["-9", pid.trim()]).status());
    }
}
