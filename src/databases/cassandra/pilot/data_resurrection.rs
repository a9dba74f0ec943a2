//! Decides whether a node that was away may come back: the basis of Cassandra's own check
//! (`check_data_resurrection`, from 4.1 on).
//!
//! A running node writes its heartbeat to a file. Cassandra does not start on a node that was away
//! for longer than a table keeps its tombstones, as rows that other nodes deleted meanwhile are
//! still here. Owns the exceptions, for which the pilot removes the heartbeat: the node was away
//! for less than an hour, which the hints of the other nodes cover whatever a table keeps; a person
//! takes the risk; or no other node ran long enough meanwhile to have deleted rows, as when a whole
//! cluster was stopped.

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tracing::info;

use super::held_ranges::HeldRanges;
use crate::{
    api::v1beta1::Pilot,
    pilot::{
        driver::{DatabaseNode, Error},
        kube::peers::{is_decommissioned, was_member},
        volume::{ring, state_file::StateFile},
    },
};

/// Path of the heartbeat file in the data directory, where no other one is configured.
const HEARTBEAT: &str = "data/cassandra-heartbeat";
/// Longest absence in which other nodes may have run, without risk: they keep hints of what the
/// node missed for three hours. A table may keep its tombstones for only a minute, and a restart
/// takes as long.
const HINTED: Duration = Duration::from_secs(3600);

/// Removes the heartbeat where it must not keep the node from starting. Called before a start.
pub(super) fn check_heartbeat(node: &DatabaseNode, now: SystemTime) -> Result<(), Error> {
    let path = node.data.join(HEARTBEAT);
    let Ok(last_heartbeat) = fs::metadata(&path).and_then(|metadata| metadata.modified()) else {
        return Ok(());
    };
    if now.duration_since(last_heartbeat).unwrap_or_default() <= HINTED {
        return remove_heartbeat(path);
    }
    if ring::is_adopted(&node.pilot) {
        info!(
            "A person says that the data of this node are as they should be, however long it was away"
        );
        return remove_heartbeat(path);
    }
    // A file that cannot be read decides nothing here; the running node reports it.
    let members = HeldRanges::load(&node.data).ok().and_then(|ranges| ranges.members);
    let peers = PeerRuns::from_peers(&node.peers);
    if peers.longest_run(members, last_heartbeat, now).is_some_and(|run_time| run_time <= HINTED) {
        info!("No other node ran while this one was away");
        return remove_heartbeat(path);
    }
    Ok(())
}

fn remove_heartbeat(path: PathBuf) -> Result<(), Error> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Write { path, source })
        }
        _ => Ok(()),
    }
}

/// When the other nodes of the ring ran, as their Pilots say.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerRuns(Vec<PeerRun>);

#[derive(Clone, Debug)]
struct PeerRun {
    runs: bool,
    /// When the present process began.
    begun: Option<SystemTime>,
    /// When the process before it ended.
    ended: Option<SystemTime>,
}

impl PeerRuns {
    /// Reads the Pilots of the members of the ring among `peers`.
    pub(super) fn from_peers(peers: &[Pilot]) -> Self {
        let to_system_time = |time: Option<&Time>| time.map(|time| SystemTime::from(time.0));
        let run = |Pilot { status, .. }: &Pilot| {
            let process = status.process.as_ref();
            let termination = status.last_termination.as_ref();
            PeerRun {
                runs: process.is_some(),
                begun: to_system_time(process.and_then(|process| process.start_time.as_ref())),
                ended: to_system_time(termination.and_then(|last| last.finish_time.as_ref())),
            }
        };
        let members = peers.iter().filter(|peer| was_member(peer) && !is_decommissioned(peer));
        Self(members.map(run).collect())
    }

    /// Returns the longest time that one of the other nodes ran since `last`; `None` where one of
    /// them does not say. `members` is the number of ring members when this node looked last. If it
    /// exceeds the number of Pilots, unknown nodes may have run.
    pub(super) fn longest_run(
        &self,
        members: Option<usize>,
        last_heartbeat: SystemTime,
        now: SystemTime,
    ) -> Option<Duration> {
        if self.0.len() + 1 < members? {
            return None;
        }
        let mut longest = Duration::ZERO;
        for run in &self.0 {
            longest = longest.max(run.run_time_since(last_heartbeat, now)?);
        }
        Some(longest)
    }
}

impl PeerRun {
    fn run_time_since(&self, last_heartbeat: SystemTime, now: SystemTime) -> Option<Duration> {
        let elapsed =
            |later: SystemTime, earlier| later.duration_since(earlier).unwrap_or_default();
        let current_run =
            if self.runs { elapsed(now, self.begun?.max(last_heartbeat)) } else { Duration::ZERO };
        if self.runs && self.begun? <= last_heartbeat {
            return Some(current_run);
        }
        // Only the peer's last end before its present run is known: earlier runs ended before it.
        Some(elapsed(self.ended?, last_heartbeat) + current_run)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::{
        api::{
            names::annotation::ADOPT_DATA,
            v1beta1::{Process, Termination},
        },
        databases::cassandra::pilot::tests::{node_in, peer},
    };

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// Returns a peer whose earlier run ended `ended` after the heartbeat, and whose present run
    /// began `begun` before now.
    fn other(ended: Option<Duration>, begun: Option<Duration>, last: SystemTime) -> Pilot {
        let time = |at: SystemTime| Some(Time(Timestamp::try_from(at).unwrap()));
        let mut pilot = peer("b", "10.0.0.2", true);
        pilot.status.last_termination = ended
            .map(|after| Termination { finish_time: time(last + after), ..Termination::default() });
        pilot.status.process = begun
            .map(|ago| Process { start_time: time(last + 14 * DAY - ago), ..Process::default() });
        pilot
    }

    #[test]
    fn a_cluster_that_was_stopped_as_a_whole_comes_back_and_one_node_does_not() {
        let last = SystemTime::UNIX_EPOCH + 365 * DAY;
        let now = last + 14 * DAY;
        let minute = Duration::from_secs(60);
        for (ended, begun, slept) in [
            (Some(minute), None, true),
            (Some(minute), Some(minute), true),
            (Some(minute), Some(2 * HOUR), false),
            (Some(DAY), None, false),
            (Some(minute), Some(15 * DAY), false),
            (None, Some(minute), false),
            (None, None, false),
        ] {
            let peers = [other(ended, begun, last)];
            let ran = PeerRuns::from_peers(&peers).longest_run(Some(2), last, now);
            assert_eq!(ran.is_some_and(|ran| ran <= HINTED), slept, "{ended:?} {begun:?}: {ran:?}");
        }
        let slept = [other(Some(minute), None, last)];
        assert_eq!(
            PeerRuns::from_peers(&slept).longest_run(Some(3), last, now),
            None,
            "a third is a stranger"
        );
        assert_eq!(
            PeerRuns::from_peers(&slept).longest_run(None, last, now),
            None,
            "nobody counted them"
        );
        assert_eq!(
            PeerRuns::default().longest_run(Some(1), last, now),
            Some(Duration::ZERO),
            "it is alone"
        );
    }

    #[test]
    fn the_heartbeat_is_forgotten_for_a_person_and_for_a_ring_that_slept_and_else_kept() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let (now, path) = (SystemTime::now(), node.data.join(HEARTBEAT));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let beat_at = |ago: Duration| {
            fs::File::create(&path).unwrap().set_modified(now - ago).unwrap();
        };
        let beat = || beat_at(14 * DAY);
        check_heartbeat(&node, now).unwrap();
        beat_at(Duration::from_secs(120));
        check_heartbeat(&node, now).unwrap();
        assert!(!path.exists(), "a restart");
        beat();
        check_heartbeat(&node, now).unwrap();
        assert!(path.exists(), "nobody knows who ran");
        node.pilot.metadata.annotations = Some([(ADOPT_DATA.to_owned(), "true".to_owned())].into());
        check_heartbeat(&node, now).unwrap();
        assert!(!path.exists(), "a person takes the risk");

        node.pilot.metadata.annotations = None;
        beat();
        fs::create_dir_all(node.data.join(".navigator")).unwrap();
        fs::write(node.data.join(".navigator/cassandra-ranges.json"), r#"{"members": 1}"#).unwrap();
        check_heartbeat(&node, now).unwrap();
        assert!(!path.exists(), "there is nobody else");
    }

    #[test]
    fn heartbeat_is_kept_after_the_ring_ran_without_the_node() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let (now, path) = (SystemTime::now(), node.data.join(HEARTBEAT));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::create_dir_all(node.data.join(".navigator")).unwrap();
        fs::write(node.data.join(".navigator/cassandra-ranges.json"), r#"{"members": 2}"#).unwrap();
        let last = now - 14 * DAY;
        for (ran, kept) in [(2 * HOUR, true), (HOUR / 2, false)] {
            fs::File::create(&path).unwrap().set_modified(last).unwrap();
            node.peers = vec![other(Some(ran), None, last)];
            check_heartbeat(&node, now).unwrap();
            assert_eq!(path.exists(), kept, "{ran:?}");
        }
    }
}
