//! A real sshd, which is asked by a real ssh.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use super::{Machine, PATIENCE, file_of};
use crate::support::wait::until;

const SSHD: &str = "/usr/sbin/sshd";

#[expect(clippy::disallowed_methods, reason = "tests start programs of their own")]
fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| {
        panic!("{program}: {error}: please install openssh-server and openssh-client")
    })
}

/// An sshd that is started for each login, at the other end of ssh's pipe.
struct Door {
    folder: tempfile::TempDir,
    user: String,
}

impl Door {
    fn new(keys: &Path) -> Self {
        assert!(Path::new(SSHD).exists(), "{SSHD} is missing: please install openssh-server");
        if nix::unistd::geteuid().is_root() {
            // What Debian's service makes; sshd of root does not start without it.
            fs::create_dir_all("/run/sshd").unwrap();
            fs::set_permissions("/run/sshd", fs::Permissions::from_mode(0o755)).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
        let door = Self { folder, user };
        let host = door.key("host");
        // The folders above are a temporary folder's, which all may write to.
        let config = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PermitRootLogin prohibit-password\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\n",
            host.display(),
            keys.display()
        );
        fs::write(door.folder.path().join("sshd_config"), config).unwrap();
        door
    }

    /// Makes a pair of keys, and returns the path of the private one.
    fn key(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let file = path.to_str().unwrap();
        let made = run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file]);
        assert!(made.status.success(), "{made:?}");
        path
    }

    /// Does this key let in?
    fn lets_in(&self, key: &Path) -> Result<bool, String> {
        let config = self.folder.path().join("sshd_config");
        let log = self.folder.path().join("log");
        let door = format!("ProxyCommand={SSHD} -i -f {} -E {}", config.display(), log.display());
        let key = key.to_str().unwrap();
        let mut args = vec!["-F", "none", "-i", key, "-o", &door];
        for option in [
            "BatchMode=yes",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        ] {
            args.extend(["-o", option]);
        }
        let target = format!("{}@here", self.user);
        args.extend([&*target, "echo", "in"]);
        let output = run("ssh", &args);
        let (said, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() && said == "in\n" {
            return Ok(true);
        }
        if error.contains("Permission denied (publickey)") {
            return Ok(false);
        }
        Err(format!("{output:?}\n{}", fs::read_to_string(log).unwrap_or_default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sshd_lets_a_user_in_until_the_key_or_the_user_is_gone() {
    let machine = Machine::new("agent-sshd").await;
    let door = Door::new(&machine.file());
    let (anne, bob) = (door.key("anne"), door.key("bob"));
    let text = |key: &Path| fs::read_to_string(key.with_extension("pub")).unwrap();
    let (annes, bobs) = (text(&anne), text(&bob));
    machine.set("anne", &[&annes]).await;
    let agent = machine.agent(machine.config(Duration::from_secs(1))).await;
    let lets_in = async |key: &Path, wanted: bool| {
        until("whom sshd lets in", PATIENCE, async || match door.lets_in(key) {
            Ok(is) if is == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    };
    lets_in(&anne, true).await;
    lets_in(&bob, false).await;
    // A second User, whose key no command of ours goes with, whatever is asked for.
    machine.set("bob", &[&format!("command=\"/bin/false\" {bobs}"), &bobs]).await;
    lets_in(&bob, true).await;
    machine.set("anne", &[]).await;
    lets_in(&anne, false).await;
    lets_in(&bob, true).await;
    machine.delete("bob").await;
    lets_in(&bob, false).await;
    machine.until_file_is(&file_of(&[])).await;
    machine.set("anne", &[&annes]).await;
    lets_in(&anne, true).await;
    agent.stop().await;
    lets_in(&anne, true).await;
}
