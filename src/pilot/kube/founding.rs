//! Which node's turn it is to start, which one may found a database cluster, and whose volume may
//! serve in it.
//!
//! Owns the founding record in the cluster's LeaderLease. A lock cannot promise one founding: its
//! holder may be paused while another pilot takes over, and both found. So before a database that
//! may found is started, its pilot writes itself into `spec.founder` by compare-and-swap; the
//! record outlives every holder, and all other nodes wait for the founder's identity and join.
//! Another founder takes its place only when no data of the ring are left and a person says so.
//!
//! The record is also the id of the ring (`ring`), which every volume carries. No node founds while
//! a volume of the cluster may hold data: each of its Pilots has to say first what its volume
//! holds.

use std::{io, path::Path, time::Duration};

use kube::runtime::utils::Backoff as _;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use uuid::Uuid;

use crate::{
    api::{
        names::annotation,
        v1beta1::{Founder, LeaderLease, Pilot},
    },
    error::chain,
    pilot::{
        database::DrivenDatabase,
        driver::{FailedCheck, Ring},
        kube::{
            backoff::RetryBackoff,
            peers,
            pilot_api::{PilotApi, is_conflict, new_lease},
        },
        volume::{
            data_volume::VolumeTimeout,
            pilot_files::{FOLDER, PilotFiles, VolumeMark},
            records::VolumeRecords,
            ring::{self, RingMembership},
        },
    },
};

/// Pause between two looks at the record while the peers do not change: a person may have removed
/// the record. Up to half more is jitter, here and below.
const LOOK: Duration = Duration::from_secs(10);
/// Pause before another look when another pilot wrote the record first.
const AGAIN: Duration = Duration::from_millis(200);

/// How long a node with data waits to read the founding record. If its data were this cluster's
/// before, the node then starts without the record; if not, it tries again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answer to a node that waits for its turn to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartTurn {
    Start(StartPermit),
    /// The data on the volume are of another ring.
    Refused(FailedCheck),
}

/// The permission for a node to start its database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartPermit {
    pub may_found: bool,
    /// The ring that the node is let into.
    pub ring: Option<Ring>,
}

/// What one look at the founding record leads to.
enum FoundingOutcome {
    Turn(StartTurn),
    /// Nothing can be done until these peers change.
    Wait {
        peers: Vec<Pilot>,
    },
    Again,
}

impl From<StartPermit> for FoundingOutcome {
    fn from(start: StartPermit) -> Self {
        Self::Turn(StartTurn::Start(start))
    }
}

/// What the founding record means for a node whose volume holds no data of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FoundingDecision {
    /// No founder is recorded, or a person gave the recorded ring up: try to become the founder.
    Claim,
    /// This node is recorded, with the id of its present attempt: it founds.
    Found,
    /// The database cluster has a member, which the node joins.
    Join,
    Wait(String),
}

/// The node that wants to start.
#[derive(Clone, Copy)]
pub struct StartApplicant<'a> {
    pub database: &'static DrivenDatabase,
    pub pilot: &'a Pilot,
    pub records: &'a VolumeRecords,
    pub data: &'a Path,
}

impl StartApplicant<'_> {
    /// Reads the mark on the volume, and whether data of a database lie there.
    async fn read_volume(&self) -> Result<(VolumeMark, bool), Error> {
        let (data, has_data) = (self.data.to_owned(), self.database.has_data);
        let read = move |files: &PilotFiles| -> io::Result<_> {
            Ok((files.read_mark()?.unwrap_or_default(), has_data(&data)))
        };
        Ok(self.records.visit(read).await??)
    }

    async fn write_down(&self, mark: VolumeMark) -> Result<(), Error> {
        Ok(self.records.visit(move |files| files.set_mark(&mark)).await??)
    }
}

/// Waits for this node's turn to start; says whether it may found. `say` is told what is waited
/// for. May be dropped at any await: the record is written only after the attempt's id is safe on
/// the disk, so a later attempt goes on under the same id, whether the record was written or not.
pub async fn take_turn(
    cluster: Option<&PilotApi>,
    node: StartApplicant<'_>,
    report: impl Fn(String),
) -> StartTurn {
    let mut backoff = RetryBackoff::default();
    loop {
        match decide_turn(cluster, node, &report).await {
            Ok(FoundingOutcome::Turn(turn)) => return turn,
            Ok(FoundingOutcome::Wait { peers }) => {
                backoff.reset();
                let peer_change = async {
                    match cluster {
                        Some(cluster) => peers::wait_for_change(cluster, node.pilot, &peers).await,
                        None => std::future::pending().await,
                    }
                };
                // In either case the record is read again.
                drop(timeout(add_jitter(LOOK), peer_change).await);
            }
            Ok(FoundingOutcome::Again) => sleep(add_jitter(AGAIN)).await,
            Err(error) => {
                warn!(error = %chain(&error), "Turn to start cannot be taken");
                report(format!("its turn cannot be taken: {}", chain(&error)));
                sleep(backoff.next_pause()).await;
            }
        }
    }
}

fn add_jitter(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + rand::random::<f64>() / 2.0)
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to use the mark of the data")]
    Mark(#[from] io::Error),
    #[error(transparent)]
    Volume(#[from] VolumeTimeout),
    #[error("failed to use the founding record")]
    Record(#[from] kube::Error),
    #[error("the founding record was not read within {PATIENCE:?}")]
    Late,
}

async fn decide_turn(
    cluster: Option<&PilotApi>,
    node: StartApplicant<'_>,
    report: &impl Fn(String),
) -> Result<FoundingOutcome, Error> {
    let StartApplicant { database, pilot, data, .. } = node;
    let (mark, has_data) = node.read_volume().await?;
    if (database.joins_elsewhere)(pilot) {
        // The ring exists elsewhere, and its founding is recorded elsewhere.
        return Ok(StartPermit::default().into());
    }
    let (Some(cluster), Some(name)) = (cluster, &pilot.spec.cluster_ref) else {
        // Without an API or without a cluster the node agrees with no other.
        if mark.node_id.is_some() && !has_data {
            report(emptied_volume_message(data));
            return Ok(FoundingOutcome::Wait { peers: Vec::new() });
        }
        return Ok(StartPermit { may_found: mark.node_id.is_none(), ring: None }.into());
    };
    let lease_name = (database.names.leader_lease)(&name.name);
    if mark.node_id.is_some() && has_data {
        return rejoin_ring(cluster, node, mark, &lease_name, report).await;
    }
    let lease = cluster.get_lease(&lease_name).await?;
    if lease.as_ref().is_some_and(|lease| ring::is_former(lease, pilot)) {
        report(former_lease_message(&lease_name));
        return Ok(FoundingOutcome::Wait { peers: Vec::new() });
    }
    let peers = cluster.list_peers(pilot).await?;
    let record = lease.as_ref().and_then(|lease| lease.spec.founder.as_ref());
    // Data that an unfinished join received belong to the ring of that join only.
    let is_foreign = match (record, &mark.ring) {
        (Some(record), Some(ring)) => *ring != record.id,
        (None, Some(_)) => mark.ring != mark.founding && !peers.iter().any(peers::is_member),
        (_, None) => false,
    };
    if has_data && is_foreign && !(record.is_some() && ring::is_adopted(pilot)) {
        let refusal = ring::build_refusal(database.names, pilot, &mark, record, false);
        return Ok(FoundingOutcome::Turn(StartTurn::Refused(refusal)));
    }
    match decide_bootstrap(database.can_found, record, pilot, mark.founding.as_deref(), &peers) {
        FoundingDecision::Found | FoundingDecision::Claim if mark.node_id.is_some() => {
            report(emptied_volume_message(data));
            Ok(FoundingOutcome::Wait { peers })
        }
        FoundingDecision::Found => {
            update_mark(node, &mark, record).await?;
            Ok(StartPermit { may_found: true, ring: record.map(ring::from_record) }.into())
        }
        FoundingDecision::Join => {
            update_mark(node, &mark, record).await?;
            Ok(StartPermit { may_found: false, ring: record.map(ring::from_record) }.into())
        }
        FoundingDecision::Wait(reason) => {
            report(reason);
            Ok(FoundingOutcome::Wait { peers })
        }
        FoundingDecision::Claim => {
            // An attempt whose answer was lost goes on under its own id.
            let id = mark.founding.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
            node.write_down(VolumeMark { founding: Some(id.clone()), ..mark }).await?;
            let name = cluster.name().to_owned();
            let founder = Founder { name, id, formerly: Vec::new() };
            write_record(cluster, lease, &lease_name, pilot, founder, "Recorded as the founder")
                .await
        }
    }
}

/// Decides on the start of a node with data of a member: it starts without regard to its peers,
/// unless its data are of another ring or the lease is an earlier cluster's. With data that were
/// this cluster's before, it starts even while the API does not answer.
async fn rejoin_ring(
    cluster: &PilotApi,
    node: StartApplicant<'_>,
    mark: VolumeMark,
    lease_name: &str,
    report: &impl Fn(String),
) -> Result<FoundingOutcome, Error> {
    let StartApplicant { database, pilot, .. } = node;
    let uid = ring::cluster_owner(pilot).map(|owner| owner.uid.clone());
    let is_known_cluster = mark.cluster_uid == uid;
    let lease = if is_known_cluster && cluster.breaker().is_away() {
        Err(Error::Late)
    } else {
        let lease_answer = timeout(PATIENCE, cluster.get_lease(lease_name)).await;
        lease_answer.map_err(|_| Error::Late).and_then(|answer| Ok(answer?))
    };
    let lease = match lease {
        Err(error) if is_known_cluster => {
            info!(error = %chain(&error), "Starting without the founding record");
            return Ok(StartPermit::default().into());
        }
        lease => lease?,
    };
    if lease.as_ref().is_some_and(|lease| ring::is_former(lease, pilot)) {
        report(former_lease_message(lease_name));
        return Ok(FoundingOutcome::Wait { peers: Vec::new() });
    }
    let record = lease.as_ref().and_then(|lease| lease.spec.founder.as_ref());
    match ring::classify_volume(&mark, cluster.name(), uid.as_deref(), record) {
        RingMembership::Unrecorded(founder) => {
            write_record(cluster, lease, lease_name, pilot, founder, "Recorded the ring again")
                .await
        }
        RingMembership::Elsewhere if !ring::is_adopted(pilot) => {
            let refusal = ring::build_refusal(database.names, pilot, &mark, record, true);
            Ok(FoundingOutcome::Turn(StartTurn::Refused(refusal)))
        }
        RingMembership::Here | RingMembership::Elsewhere => {
            update_mark(node, &mark, record).await?;
            Ok(StartPermit { may_found: false, ring: record.map(ring::from_record) }.into())
        }
    }
}

/// Writes the ring of `record` and the cluster's uid into the volume's mark, before the database
/// starts.
async fn update_mark(
    node: StartApplicant<'_>,
    mark: &VolumeMark,
    record: Option<&Founder>,
) -> Result<(), Error> {
    let pilot = node.pilot;
    let ring = record.map(|record| record.id.clone()).or_else(|| mark.ring.clone());
    let cluster_uid = ring::cluster_owner(pilot).map(|owner| owner.uid.clone());
    let updated_mark = VolumeMark { cluster_uid, ring, ..mark.clone() };
    if updated_mark != *mark {
        if mark.node_id.is_some() {
            info!(ring = updated_mark.ring, was = mark.ring, "Data of this node are of this ring");
        }
        node.write_down(updated_mark).await?;
    }
    Ok(())
}

/// Writes the founding record by compare-and-swap. The next look at it decides what follows.
async fn write_record(
    cluster: &PilotApi,
    lease: Option<LeaderLease>,
    name: &str,
    pilot: &Pilot,
    founder: Founder,
    log_message: &'static str,
) -> Result<FoundingOutcome, Error> {
    let ring = founder.id.clone();
    let write_result = if let Some(mut lease) = lease {
        lease.spec.founder = Some(founder);
        cluster.replace_lease(&lease).await
    } else {
        let mut lease = new_lease(name, pilot);
        lease.spec.founder = Some(founder);
        cluster.create_lease(&lease).await
    };
    match write_result {
        Ok(_) => {
            info!(lease = name, ring, "{log_message}");
            Ok(FoundingOutcome::Again)
        }
        // Another pilot was faster. Look again.
        Err(error) if is_conflict(&error) => Ok(FoundingOutcome::Again),
        Err(error) => Err(error.into()),
    }
}

fn emptied_volume_message(data: &Path) -> String {
    let data_path = data.display();
    format!(
        "the volume at {data_path} carries the mark of a node that served, and its data are gone; put \
         them back, or remove {data_path}/{FOLDER} to let an empty node begin"
    )
}

fn former_lease_message(lease: &str) -> String {
    format!(
        "waits for LeaderLease {lease} of an earlier cluster of this name to be collected; delete \
         it when it stays"
    )
}

/// Decides what a node does whose volume holds no data of a member: claim, found, join or wait.
fn decide_bootstrap(
    can_found: fn(&Pilot) -> bool,
    record: Option<&Founder>,
    pilot: &Pilot,
    founding: Option<&str>,
    peers: &[Pilot],
) -> FoundingDecision {
    let own_name = pilot.metadata.name.as_deref().unwrap_or_default();
    if let Some(founder) = record
        && founder.name == own_name
        && founding == Some(founder.id.as_str())
        && can_found(pilot)
    {
        return FoundingDecision::Found;
    }
    let find_silent = || {
        let silent_peers = peers.iter().filter(|peer| peers::holds_data(peer, pilot).is_none());
        silent_peers.filter_map(|peer| peer.metadata.name.as_deref()).collect::<Vec<_>>()
    };
    // The member that this node has to join, or may replace, is known when all peers have spoken.
    let needs_answers = record.is_none_or(ring::is_remade);
    if let silent_names = find_silent()
        && needs_answers
        && !silent_names.is_empty()
    {
        let names = silent_names.join(", ");
        return FoundingDecision::Wait(format!(
            "waits for {names} to say what its volume holds; no node founds while it may be data"
        ));
    }
    if peers.iter().any(peers::is_member) {
        return FoundingDecision::Join;
    }
    let mut data_holders = peers.iter().filter(|peer| peers::holds_data(peer, pilot) == Some(true));
    let Some(founder) = record else {
        return match data_holders.next() {
            Some(peer) => {
                let name = peer.metadata.name.as_deref().unwrap_or("a node");
                FoundingDecision::Wait(format!("waits for {name}, whose volume holds data"))
            }
            None if can_found(pilot) => FoundingDecision::Claim,
            None => FoundingDecision::Wait(
                "waits for another node to found the cluster; one with its roles cannot".to_owned(),
            ),
        };
    };
    let wait_for_founder =
        || FoundingDecision::Wait(format!("waits for {} to found the cluster", founder.name));
    if !find_silent().is_empty() || data_holders.next().is_some() {
        return wait_for_founder();
    }
    let cluster_pilots = || [pilot].into_iter().chain(peers);
    let founder_pilot =
        cluster_pilots().find(|pilot| pilot.metadata.name.as_ref() == Some(&founder.name));
    let loss = match founder_pilot {
        _ if cluster_pilots().any(peers::was_member) => RingLoss::Data,
        // The founder's Pilot was deleted before its database had a member.
        None => RingLoss::Founder,
        Some(founder_pilot) if !can_found(founder_pilot) => RingLoss::Role,
        Some(_) if founder.name == own_name => RingLoss::Data,
        Some(_) => return wait_for_founder(),
    };
    if can_found(pilot) && ring::is_given_up(pilot, founder) {
        return FoundingDecision::Claim;
    }
    let able_node = cluster_pilots()
        .filter(|pilot| can_found(pilot))
        .find_map(|candidate| candidate.metadata.name.as_deref());
    FoundingDecision::Wait(without_data(founder, able_node.unwrap_or(own_name), loss))
}

/// Why no node can serve in the recorded ring.
#[derive(Clone, Copy)]
enum RingLoss {
    /// No volume holds its data any more.
    Data,
    /// The node that was to found it is gone.
    Founder,
    /// The node that was to found it cannot, with the roles that it has.
    Role,
}

/// Says that no node can serve in the recorded ring, and what a person can do. `able`: a node that can
/// found another one.
fn without_data(founder: &Founder, able_node: &str, loss: RingLoss) -> String {
    let Founder { name, id, .. } = founder;
    let (history, remedy) = match loss {
        RingLoss::Data => (
            format!("was founded by {name} and no volume of the cluster holds its data any more"),
            "bring one back, or ",
        ),
        RingLoss::Founder => {
            (format!("was to be founded by {name}, which is no node of the cluster any more"), "")
        }
        RingLoss::Role => (
            format!("was to be founded by {name}, which cannot, with the roles that it has"),
            "give it the roles back, or ",
        ),
    };
    format!(
        "ring {id} {history}; {remedy}found an empty ring: kubectl annotate pilot {able_node} {}={id}",
        annotation::FOUND_ANEW
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::v1beta1::Identity;

    fn pilot(name: &str, holds: Option<bool>) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some(name.into());
        if let Some(holds) = holds {
            let status = if holds { "True" } else { "False" };
            pilot.status.conditions = serde_json::from_value(json!([{
                "type": peers::VOLUME_HOLDS_DATA, "status": status, "reason": "x", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]))
            .unwrap();
        }
        pilot
    }

    fn member(name: &str, holds: Option<bool>) -> Pilot {
        let mut pilot = pilot(name, holds);
        pilot.status.identity =
            Some(Identity { node_id: Some("n1".into()), ..Identity::default() });
        pilot
    }

    /// The Pilot with the annotation by which a person gives up the ring `id`.
    fn given_up(mut pilot: Pilot, id: &str) -> Pilot {
        pilot.metadata.annotations = Some([(annotation::FOUND_ANEW.into(), id.into())].into());
        pilot
    }

    fn by(name: &str) -> Founder {
        Founder { name: name.into(), id: "1".into(), formerly: Vec::new() }
    }

    fn waits_for(verdict: &FoundingDecision, part: &str) -> bool {
        matches!(verdict, FoundingDecision::Wait(what) if what.contains(part))
    }

    fn decide(
        record: Option<&Founder>,
        pilot: &Pilot,
        founding: Option<&str>,
        peers: &[Pilot],
    ) -> FoundingDecision {
        super::decide_bootstrap(|_| true, record, pilot, founding, peers)
    }

    #[test]
    fn only_the_recorded_attempt_founds() {
        let waits = |verdict: &FoundingDecision| matches!(verdict, FoundingDecision::Wait(_));
        let none: &[Pilot] = &[pilot("c", Some(false))];
        let some: &[Pilot] = &[pilot("c", Some(false)), member("d", None)];
        let decide = |record: Option<&Founder>, founding, peers| {
            decide(record, &pilot("a", None), founding, peers)
        };
        assert_eq!(decide(None, None, none), FoundingDecision::Claim);
        assert_eq!(decide(None, Some("1"), some), FoundingDecision::Join);
        assert_eq!(decide(Some(&by("a")), Some("1"), none), FoundingDecision::Found);
        // A later node of the same name, whose disk was lost.
        assert!(waits(&decide(Some(&by("a")), Some("2"), none)));
        assert!(waits(&decide(Some(&by("a")), None, none)));
        assert_eq!(decide(Some(&by("a")), None, some), FoundingDecision::Join);
        assert!(waits(&decide(Some(&by("b")), Some("1"), none)));
        assert_eq!(decide(Some(&by("b")), None, some), FoundingDecision::Join);
    }

    #[test]
    fn nobody_founds_before_every_pilot_has_said_what_its_volume_holds() {
        let own = pilot("a", Some(false));
        let decide = |record: Option<&Founder>, peers: &[Pilot]| decide(record, &own, None, peers);
        let silent = decide(None, &[pilot("b", Some(false)), pilot("c", None)]);
        assert!(waits_for(&silent, "waits for c to say"), "{silent:?}");
        let held = decide(None, &[pilot("b", Some(true))]);
        assert!(waits_for(&held, "waits for b, whose volume holds data"), "{held:?}");
        assert_eq!(decide(None, &[member("b", Some(true))]), FoundingDecision::Join);
        assert_eq!(decide(None, &[pilot("b", Some(false))]), FoundingDecision::Claim);
        // The founder is on record: nodes that have not begun yet are not waited for.
        assert_eq!(
            decide(Some(&by("b")), &[member("b", Some(true)), pilot("c", None)]),
            FoundingDecision::Join
        );
        // The ring is older than the cluster object: a silent node may be the missing member.
        let again = Founder { formerly: vec!["u1".into()], ..by("b") };
        let silent = decide(Some(&again), &[member("b", Some(true)), pilot("c", None)]);
        assert!(waits_for(&silent, "waits for c to say"), "{silent:?}");
    }

    #[test]
    fn when_all_volumes_are_lost_the_way_out_is_named_and_leads_out() {
        let own = member("a", Some(false));
        let lost = [member("b", Some(false)), member("c", Some(false))];
        for record in [by("a"), by("b")] {
            let told = decide(Some(&record), &own, None, &lost);
            assert!(
                waits_for(&told, "no volume of the cluster holds its data any more"),
                "{told:?}"
            );
            assert!(waits_for(
                &told,
                "kubectl annotate pilot a navigator.jetstack.io/found-anew=1"
            ));
            let word = given_up(own.clone(), "1");
            assert_eq!(decide(Some(&record), &word, None, &lost), FoundingDecision::Claim);
        }
        assert_eq!(decide(None, &own, None, &lost), FoundingDecision::Claim);
        // A silent node may yet come back with its data.
        let one = [member("b", Some(false)), pilot("c", None)];
        assert!(waits_for(&decide(Some(&by("b")), &own, None, &one), "to found the cluster"));
    }

    #[test]
    fn a_ring_is_given_up_only_by_its_id_and_only_when_no_data_of_it_are_left() {
        let decide = |word: &str, peers: &[Pilot]| {
            decide(Some(&by("b")), &given_up(member("a", Some(false)), word), None, peers)
        };
        let lost = [member("b", Some(false)), member("c", Some(false))];
        assert_eq!(decide("1", &lost), FoundingDecision::Claim);
        for word in ["", "true", "2"] {
            let told = decide(word, &lost);
            assert!(waits_for(&told, "no volume of the cluster holds"), "{word:?}: {told:?}");
        }
        let silent = decide("1", &[member("b", Some(false)), pilot("c", None)]);
        assert!(waits_for(&silent, "to found the cluster"), "{silent:?}");
        let unfinished = decide("1", &[pilot("b", Some(true)), pilot("c", Some(false))]);
        assert!(waits_for(&unfinished, "to found the cluster"), "{unfinished:?}");
        assert_eq!(decide("1", &[member("b", Some(true))]), FoundingDecision::Join);
    }

    #[test]
    fn a_founder_that_left_before_it_founded_is_replaced_on_a_persons_word() {
        let own = pilot("a", Some(false));
        let others = [pilot("c", Some(false))];
        let told = decide(Some(&by("b")), &own, None, &others);
        assert!(waits_for(&told, "which is no node of the cluster any more"), "{told:?}");
        assert!(waits_for(&told, "kubectl annotate pilot a navigator.jetstack.io/found-anew=1"));
        let word = given_up(own, "1");
        assert_eq!(decide(Some(&by("b")), &word, None, &others), FoundingDecision::Claim);
        // The founder may be about to begin.
        let begins = [pilot("b", Some(false)), pilot("c", Some(false))];
        let told = decide(Some(&by("b")), &word, None, &begins);
        assert!(waits_for(&told, "waits for b to found the cluster"), "{told:?}");
    }

    #[test]
    fn a_node_whose_roles_forbid_it_founds_nothing_and_names_one_that_can() {
        let can_found = |pilot: &Pilot| pilot.metadata.name.as_deref() != Some("d");
        let (able, other) = (pilot("a", Some(false)), pilot("d", Some(false)));
        let decide = |record: Option<&Founder>, own: &Pilot, founding, peer: &Pilot| {
            super::decide_bootstrap(can_found, record, own, founding, std::slice::from_ref(peer))
        };
        let told = decide(None, &other, None, &able);
        assert!(waits_for(&told, "waits for another node to found the cluster"), "{told:?}");
        assert_eq!(decide(None, &able, None, &other), FoundingDecision::Claim);
        // It is recorded, by a pilot that did not ask for its roles or before these were changed.
        let way = "kubectl annotate pilot a navigator.jetstack.io/found-anew=1";
        for (own, peer) in [(&other, &able), (&able, &other)] {
            let told = decide(Some(&by("d")), own, Some("1"), peer);
            assert!(waits_for(&told, "was to be founded by d, which cannot"), "{told:?}");
            assert!(waits_for(&told, way), "{told:?}");
        }
        let word = given_up(able.clone(), "1");
        assert_eq!(decide(Some(&by("d")), &word, None, &other), FoundingDecision::Claim);
        // All volumes are lost.
        let lost = member("d", Some(false));
        for word in [lost.clone(), given_up(lost, "1")] {
            let told = decide(Some(&by("a")), &word, None, &able);
            assert!(waits_for(&told, "no volume of the cluster holds its data"), "{told:?}");
            assert!(waits_for(&told, way), "{told:?}");
        }
    }
}
