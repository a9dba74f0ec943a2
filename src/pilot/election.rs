//! Whose turn it is to start, and who may found a database cluster.
//!
//! Owns the founding record in the cluster's LeaderLease. A lock cannot promise one founding:
//! its holder may be paused while another takes over, and both found. So before a database
//! that may found is started, its pilot writes itself into `spec.founder` by compare-and-swap;
//! the record outlives every holder, and all others wait for the founder's identity and join.

use std::{io, time::Duration};

use kube::runtime::utils::Backoff as _;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use uuid::Uuid;

use super::{
    backoff::Backoff,
    cluster::{Cluster, is_conflict, new_lease},
    files::Files,
    flavour::Flavour,
    peers,
};
use crate::{
    api::v1beta1::{Founder, LeaderLease, Pilot},
    error::chain,
};

/// Between two looks at the record while nothing is heard of the peers: a person may have
/// removed it. Half of it is jitter, here and below.
const LOOK: Duration = Duration::from_secs(10);
/// Until somebody who was faster is looked at.
const AGAIN: Duration = Duration::from_millis(200);

/// What a look brought.
enum Outcome {
    Turn {
        may_found: bool,
    },
    /// Nothing can be done until these peers change.
    Wait {
        peers: Vec<Pilot>,
    },
    Again,
}

/// What the record in the lease means for this node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Nobody is recorded: try to be the one.
    Claim,
    /// This very attempt is recorded.
    Found,
    /// Somebody is there to be joined.
    Join,
    Wait(String),
}

/// Waits for this node's turn to start; says whether it may found. `say` is told what is waited
/// for. May be dropped at any await: the record is written only after the attempt's id is safe
/// on the disk, so whoever comes next finds both or neither.
pub async fn take_turn(
    cluster: Option<&Cluster>,
    flavour: &Flavour,
    pilot: &Pilot,
    files: &Files,
    say: impl Fn(String),
) -> bool {
    let mut backoff = Backoff::default();
    loop {
        match look(cluster, flavour, pilot, files, &say).await {
            Ok(Outcome::Turn { may_found }) => return may_found,
            Ok(Outcome::Wait { peers }) => {
                backoff.reset();
                let Some(cluster) = cluster else { continue };
                let changed = peers::changed(cluster, pilot, &peers);
                // Either way it is looked again.
                drop(timeout(jittered(LOOK), changed).await);
            }
            Ok(Outcome::Again) => sleep(jittered(AGAIN)).await,
            Err(error) => {
                warn!(error = %chain(&error), "Turn to start cannot be taken");
                say(format!("its turn cannot be taken: {}", chain(&error)));
                sleep(backoff.pause()).await;
            }
        }
    }
}

fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + rand::random::<f64>() / 2.0)
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to use the mark of the data")]
    Mark(#[from] io::Error),
    #[error("failed to use the founding record")]
    Record(#[from] kube::Error),
}

async fn look(
    cluster: Option<&Cluster>,
    flavour: &Flavour,
    pilot: &Pilot,
    files: &Files,
    say: &impl Fn(String),
) -> Result<Outcome, Error> {
    let mark = files.mark()?.unwrap_or_default();
    if mark.node_id.is_some() || (flavour.joins_elsewhere)(pilot) {
        // Data of its own: it rejoins. Seeds elsewhere: the cluster exists there.
        return Ok(Outcome::Turn { may_found: false });
    }
    let (Some(cluster), Some(name)) = (cluster, &pilot.spec.cluster_ref) else {
        // Alone, without an API or without a cluster: there is nobody to agree with.
        return Ok(Outcome::Turn { may_found: true });
    };
    let lease_name = (flavour.lease)(&name.name);
    let lease = cluster.lease(&lease_name).await?;
    let peers = cluster.peers(pilot).await?;
    let own = cluster.name();
    let record = lease.as_ref().and_then(|lease| lease.spec.founder.as_ref());
    match judge(record, own, mark.founding.as_deref(), &peers, &lease_name) {
        Verdict::Found => Ok(Outcome::Turn { may_found: true }),
        Verdict::Join => Ok(Outcome::Turn { may_found: false }),
        Verdict::Wait(what) => {
            say(what);
            Ok(Outcome::Wait { peers })
        }
        Verdict::Claim => {
            // An attempt whose answer was lost goes on under its own id.
            let id = mark.founding.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
            files.set_mark(&super::files::Mark { founding: Some(id.clone()), ..mark })?;
            let founder = Founder { name: own.to_owned(), id };
            match claim(cluster, lease, &lease_name, pilot, founder).await {
                Ok(()) => {
                    info!(lease = lease_name, "Recorded as the founder");
                    Ok(Outcome::Turn { may_found: true })
                }
                // Somebody was faster. Look again.
                Err(error) if is_conflict(&error) => Ok(Outcome::Again),
                Err(error) => Err(error.into()),
            }
        }
    }
}

async fn claim(
    cluster: &Cluster,
    lease: Option<LeaderLease>,
    name: &str,
    pilot: &Pilot,
    founder: Founder,
) -> kube::Result<()> {
    if let Some(mut lease) = lease {
        lease.spec.founder = Some(founder);
        return cluster.replace_lease(&lease).await.map(drop);
    }
    let mut lease = new_lease(name, pilot);
    lease.spec.founder = Some(founder);
    cluster.create_lease(&lease).await.map(drop)
}

fn judge(
    record: Option<&Founder>,
    own: &str,
    founding: Option<&str>,
    peers: &[Pilot],
    lease: &str,
) -> Verdict {
    let is_member =
        |peer: &Pilot| peer.status.identity.as_ref().is_some_and(|known| known.node_id.is_some());
    let members = peers.iter().any(is_member);
    match record {
        None if members => Verdict::Join,
        None => Verdict::Claim,
        Some(founder) if founder.name == own && founding == Some(founder.id.as_str()) => {
            Verdict::Found
        }
        Some(_) if members => Verdict::Join,
        Some(founder) if founder.name == own => Verdict::Wait(format!(
            "it founded the cluster before and its data are gone; to found an empty one, remove \
             spec.founder from LeaderLease {lease}"
        )),
        Some(founder) => Verdict::Wait(format!("waits for {} to found the cluster", founder.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::Identity;

    fn member() -> Pilot {
        let mut pilot = Pilot::default();
        pilot.status.identity =
            Some(Identity { node_id: Some("n1".into()), ..Identity::default() });
        pilot
    }

    #[test]
    fn only_the_recorded_attempt_founds() {
        let by = |name: &str| Founder { name: name.into(), id: "1".into() };
        let waits = |verdict: &Verdict| matches!(verdict, Verdict::Wait(_));
        let none: &[Pilot] = &[Pilot::default()];
        let some: &[Pilot] = &[Pilot::default(), member()];
        assert_eq!(judge(None, "a", None, none, "l"), Verdict::Claim);
        assert_eq!(judge(None, "a", Some("1"), some, "l"), Verdict::Join);
        assert_eq!(judge(Some(&by("a")), "a", Some("1"), none, "l"), Verdict::Found);
        // A later one of the same name, whose disk was lost.
        assert!(waits(&judge(Some(&by("a")), "a", Some("2"), none, "l")));
        assert!(waits(&judge(Some(&by("a")), "a", None, none, "l")));
        assert_eq!(judge(Some(&by("a")), "a", None, some, "l"), Verdict::Join);
        assert!(waits(&judge(Some(&by("b")), "a", Some("1"), none, "l")));
        assert_eq!(judge(Some(&by("b")), "a", None, some, "l"), Verdict::Join);
    }
}
