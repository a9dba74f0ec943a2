//! Checks of the host and the data volume that every database needs, before anything starts.
//!
//! Every failed check says what was found and what to do. The calls here block: a
//! [`Volume`](crate::pilot::volume::data_volume::Volume) is where they are made.

mod clock;
mod data_directory;
mod installed_version;
mod kernel_limits;
mod network;

use std::time::SystemTime;

use self::{clock::ClockReference, kernel_limits::KernelLimits};
pub use self::{
    data_directory::{VolumeSpace, read_space},
    installed_version::{find_installed_version, out_of_turn},
    network::find_unresolved,
};
use crate::pilot::{
    database::DrivenDatabase,
    driver::{DatabaseNode, Driver, FailedCheck},
    node::disk_shortage::DiskShortage,
    volume::data_volume::VolumeLock,
};

/// What the checks must know beyond the node itself.
#[derive(Clone, Debug)]
pub struct PreflightContext {
    /// The data directory must be a mount: in a container anything else is the image's layer.
    pub require_mount: bool,
    /// TCP ports that the database will listen on, at the node's address.
    pub ports: Vec<u16>,
    pub namespace: String,
    /// The database orders writes by the machine's clock.
    pub orders_by_time: bool,
    /// The time of the API server's clock; `None` where that is unknown or may be this machine's.
    pub api_time: Option<SystemTime>,
    /// Ends of the database for want of room.
    pub shortage: DiskShortage,
}

/// Checks the data directory, the clock and the network. `lock` is filled with the lock of the data
/// directory when that is free.
pub fn check_host(
    node: &DatabaseNode,
    host: &PreflightContext,
    lock: &mut Option<VolumeLock>,
) -> Vec<FailedCheck> {
    let mut failed_checks = Vec::new();
    if let Err(check) = data_directory::check_directory(node, host, lock) {
        // Without its directory nothing else can be said about the data.
        failed_checks.push(check);
    } else {
        failed_checks.extend(data_directory::check_identity(node, host).err());
        let data = host.orders_by_time.then_some(node.data.as_path());
        let witness = ClockReference { data, api: host.api_time };
        failed_checks.extend(clock::check_clock(SystemTime::now(), witness).err());
    }
    failed_checks.extend(network::check_address(node, host).err());
    failed_checks
}

/// Looks for the database's program and its agents, runs the checks of the database's own, and
/// holds the kernel's limits against its needs: before a start, and before a running database is
/// stopped for another configuration.
pub async fn check_database(
    database: &DrivenDatabase,
    driver: &dyn Driver,
    node: &DatabaseNode,
    allow_low_limits: bool,
) -> Vec<FailedCheck> {
    let mut failed_checks = missing_files(database, node);
    failed_checks.extend(driver.run_preflight(node).await);
    // Limits are raised even where low ones are allowed.
    let limits = KernelLimits::of_this_process();
    if !allow_low_limits {
        failed_checks.extend(limits.check_needs(&driver.kernel_needs(node)));
    }
    failed_checks
}

/// Returns a failed check for each file without which the database does not start.
pub fn missing_files(database: &DrivenDatabase, node: &DatabaseNode) -> Vec<FailedCheck> {
    let DrivenDatabase { names, home_variable, program, agents, .. } = database;
    let place = format!("set --home or {home_variable} to where {} is", names.title);
    let install = || "run `navigator install` into that folder".to_owned();
    let agents = agents.iter().map(|agent| (node.shared.join(agent.name), install()));
    [(node.home.join(program), place)]
        .into_iter()
        .chain(agents)
        .filter(|(path, _)| !path.is_file())
        .map(|(path, remedy)| {
            failed_check("PreflightFailed", format!("{} is missing; {remedy}", path.display()))
        })
        .collect()
}

/// Makes a failed check.
pub fn failed_check(reason: &'static str, message: String) -> FailedCheck {
    FailedCheck { reason, message }
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, path::Path};

    use super::*;
    use crate::{
        api::{
            names::annotation,
            v1beta1::{ClusterRef, Pilot},
        },
        pilot::{
            driver::PeerAddresses,
            volume::pilot_files::{PilotFiles, VolumeMark},
        },
    };

    pub(super) fn node(data: &Path, uid: &str) -> DatabaseNode {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some("cass-demo-a-0".into());
        pilot.spec.cluster_ref =
            Some(ClusterRef { kind: "ExampleCluster".into(), name: "demo".into() });
        DatabaseNode {
            pilot,
            peers: vec![],
            addresses: PeerAddresses::default(),
            cluster_uid: Some(uid.into()),
            address: "127.0.0.1".parse().unwrap(),
            home: "/".into(),
            data: data.into(),
            config: "/".into(),
            shared: "/".into(),
            memory_limit: None,
            may_found: false,
            ring: None,
        }
    }

    fn host() -> PreflightContext {
        PreflightContext {
            require_mount: false,
            ports: vec![],
            namespace: "default".into(),
            orders_by_time: true,
            api_time: None,
            shortage: DiskShortage::default(),
        }
    }

    fn reasons(node: &DatabaseNode, host: &PreflightContext) -> Vec<&'static str> {
        check_host(node, host, &mut None).into_iter().map(|check| check.reason).collect()
    }

    #[test]
    fn an_empty_volume_is_marked_and_known_again() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("lost+found")).unwrap();
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), [""; 0]);
        fs::write(data.path().join("rows"), "x").unwrap();
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), [""; 0]);
        // The cluster was deleted and made again: which ring the data belong to is decided at the
        // node's turn.
        assert_eq!(reasons(&node(data.path(), "u2"), &host()), [""; 0]);
        let mark = PilotFiles::for_directory(data.path()).read_mark().unwrap().unwrap();
        assert_eq!(mark.cluster_uid.as_deref(), Some("u1"));
    }

    #[test]
    fn data_of_somebody_else_or_nobody_are_refused_until_adopted() {
        let unmarked = tempfile::tempdir().unwrap();
        fs::write(unmarked.path().join("rows"), "x").unwrap();
        let foreign = tempfile::tempdir().unwrap();
        let mark = VolumeMark { pilot: "cass-other-a-0".into(), ..VolumeMark::default() };
        PilotFiles::for_directory(foreign.path()).set_mark(&mark).unwrap();
        for data in [unmarked.path(), foreign.path()] {
            let mut node = node(data, "u1");
            assert_eq!(reasons(&node, &host()), ["IdentityMismatch"]);
            node.pilot.metadata.annotations =
                Some([(annotation::ADOPT_DATA.to_owned(), "true".to_owned())].into());
            assert_eq!(reasons(&node, &host()), [""; 0]);
            node.pilot.metadata.annotations = None;
            assert_eq!(reasons(&node, &host()), [""; 0], "adopted once is adopted");
        }
    }

    #[test]
    fn a_directory_serves_one_pilot_at_a_time() {
        let data = tempfile::tempdir().unwrap();
        let mut held = None;
        assert!(check_host(&node(data.path(), "u1"), &host(), &mut held).is_empty());
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), ["PreflightFailed"]);
        drop(held);
        assert_eq!(reasons(&node(data.path(), "u1"), &host()), [""; 0]);
    }

    #[test]
    fn a_taken_port_and_a_foreign_address_are_told() {
        let data = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = vec![taken.local_addr().unwrap().port()];
        assert_eq!(
            reasons(&node(data.path(), "u1"), &PreflightContext { ports, ..host() }),
            ["PreflightFailed"]
        );
        let mut elsewhere = node(data.path(), "u1");
        elsewhere.address = "203.0.113.1".parse().unwrap();
        assert_eq!(reasons(&elsewhere, &host()), ["PreflightFailed"]);
        assert_eq!(reasons(&node(Path::new("/nonexistent"), "u1"), &host()), ["PreflightFailed"]);
    }
}
