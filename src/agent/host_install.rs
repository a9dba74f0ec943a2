//! Lays the runner on a machine: its binary, the units of systemd that start it, its policy.
//!
//! No pod does this: what root runs on a machine, no pod of a cluster may write.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use serde_json::json;

use super::job_folder::JobFolder;
use crate::engine::machines::HostPolicy;

/// Paths of the runner, and of what it uses, on the machine.
const BINARY: &str = "opt/containership/navigator";
const POLICY: &str = "etc/containership/policy.json";
const JOBS: &str = "etc/containership/upgrade";
const UNITS: &str = "etc/systemd/system";
const PATH_UNIT: &str = "containership-upgrade.path";
const SERVICE: &str = "containership-upgrade.service";

/// Starts the runner when the agent has written a job.
const PATH_UNIT_TEXT: &str = "\
[Unit]
Description=Jobs of upgrades of this machine

[Path]
PathChanged=/etc/containership/upgrade/current

[Install]
WantedBy=multi-user.target
";

/// A runner that was killed, or that asks to be started again, is started again; so is one that a
/// reboot ended.
const SERVICE_TEXT: &str = "\
[Unit]
Description=Runner of upgrades of this machine
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/opt/containership/navigator agent run-job /etc/containership/upgrade
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=20 30 64

[Install]
WantedBy=multi-user.target
";

/// What is laid on a machine.
#[derive(Clone, Debug)]
pub struct HostInstall {
    /// Root directory of the machine.
    pub root: PathBuf,
    /// The program itself.
    pub binary: PathBuf,
    /// Policy of a machine that has none yet.
    pub policy: HostPolicy,
}

impl HostInstall {
    /// Lays everything. A policy that is there stays as it is. Returns whether it was laid.
    ///
    /// # Errors
    /// With the path that could not be written.
    pub fn install_runner(&self) -> io::Result<bool> {
        let with_path = |path: &Path, result: io::Result<()>| {
            result.map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            })
        };
        let write_file = |path: &str, mode: u32, text: &[u8]| {
            let path = self.root.join(path);
            with_path(&path, replace_file(&path, mode, text))
        };
        write_file(BINARY, 0o755, &fs::read(&self.binary)?)?;
        write_file(&format!("{UNITS}/{SERVICE}"), 0o644, SERVICE_TEXT.as_bytes())?;
        write_file(&format!("{UNITS}/{PATH_UNIT}"), 0o644, PATH_UNIT_TEXT.as_bytes())?;
        for unit in [SERVICE, PATH_UNIT] {
            // As `systemctl enable` does.
            let link = self.root.join(UNITS).join("multi-user.target.wants").join(unit);
            with_path(&link, enable_unit(&link, unit))?;
        }
        let jobs = self.root.join(JOBS);
        with_path(
            &jobs,
            create_folder(&jobs).and_then(|()| JobFolder::open(&jobs)?.announce_runner()),
        )?;
        let policy = self.root.join(POLICY);
        if policy.exists() {
            return Ok(false);
        }
        let text = serde_json::to_string_pretty(&json!(self.policy)).map_err(io::Error::other)?;
        write_file(POLICY, 0o600, format!("{text}\n").as_bytes())?;
        Ok(true)
    }
}

fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Puts a file into its place at once: a runner may be at work.
fn replace_file(path: &Path, mode: u32, text: &[u8]) -> io::Result<()> {
    create_folder(path.parent().unwrap_or(Path::new("/")))?;
    let new_path = path.with_extension("new");
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(mode).open(&new_path)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(new_path, path)
}

fn enable_unit(link: &Path, unit: &str) -> io::Result<()> {
    create_folder(link.parent().unwrap_or(Path::new("/")))?;
    match symlink(Path::new("..").join(unit), link) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_is_there_stays() {
        let place = tempfile::tempdir().unwrap();
        let binary = place.path().join("binary");
        fs::write(&binary, "program").unwrap();
        let root = place.path().join("root");
        let policy = |urls: &[&str]| {
            HostPolicy::new(
                urls.iter().map(|url| (*url).into()).collect(),
                "v1.33.0".into(),
                "v1.37.99".into(),
            )
        };
        let install = |policy| HostInstall { root: root.clone(), binary: binary.clone(), policy };
        assert!(install(policy(&["https://a.example"])).install_runner().unwrap());
        assert!(!install(policy(&[])).install_runner().unwrap());
        let laid: HostPolicy =
            serde_json::from_slice(&fs::read(root.join(POLICY)).unwrap()).unwrap();
        assert_eq!(laid, policy(&["https://a.example"]));
        assert_eq!(fs::read(root.join(BINARY)).unwrap(), b"program");
        assert!(
            fs::read_to_string(root.join(UNITS).join("multi-user.target.wants").join(SERVICE))
                .unwrap()
                .contains(BINARY)
        );
        assert_eq!(JobFolder::open(&root.join(JOBS)).unwrap().runner_form(), Some(1));
    }
}
