//! Which ring the data of a volume belong to, and whether that is the ring of this cluster.
//!
//! The id of a ring is the id of its founding, in the cluster's LeaderLease. Every member's volume
//! carries it, from before its database joins. The LeaderLease goes with the cluster object; when
//! a cluster is made again on volumes that were kept, the first node with data records its ring
//! once more. A volume of another ring never serves: its rows are another history.
//!
//! Volumes that were marked before rings had ids carry none. A volume that ran under this very
//! cluster object is taken for one of this ring. The mark of any other volume names two ids: the
//! uid of the cluster object that it ran under last, and the cluster's id when it first served. A
//! ring that is recorded again lists these in `formerly`, so that its other volumes are recognised
//! too.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use uuid::Uuid;

use crate::{
    api::{
        database_names::DatabaseNames,
        names::annotation,
        v1beta1::{Founder, LeaderLease, Pilot},
    },
    pilot::{
        driver::{FailedCheck, Ring},
        volume::pilot_files::VolumeMark,
    },
};

/// What the founding record says about a volume with data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingMembership {
    Here,
    /// No ring is recorded: the founder to record.
    Unrecorded(Founder),
    Elsewhere,
}

/// Do the data of a volume with this mark belong to the recorded ring? `uid` is that of the cluster
/// object, where there is one.
pub fn classify_volume(
    mark: &VolumeMark,
    own_name: &str,
    uid: Option<&str>,
    record: Option<&Founder>,
) -> RingMembership {
    let volume_ids = identifying_ids(mark);
    let Some(record) = record else {
        let id = mark.ring.clone().or_else(|| volume_ids.first().cloned());
        let id = id.unwrap_or_else(|| Uuid::new_v4().to_string());
        return RingMembership::Unrecorded(Founder {
            name: own_name.to_owned(),
            id,
            formerly: volume_ids,
        });
    };
    let is_same_ring =
        || volume_ids.iter().any(|id| *id == record.id || record.formerly.contains(id));
    let is_recorded_ring = match &mark.ring {
        Some(ring) if *ring == record.id => true,
        // The ring was recorded again by a node that knew no id of it, when other nodes did.
        Some(_) => record.formerly.contains(&record.id) && is_same_ring(),
        None => mark.cluster_uid.as_deref() == uid || is_same_ring(),
    };
    if is_recorded_ring { RingMembership::Here } else { RingMembership::Elsewhere }
}

/// Returns the ids by which a volume without a ring's id is recognised.
fn identifying_ids(mark: &VolumeMark) -> Vec<String> {
    let mut ids: Vec<String> = mark.cluster_uid.iter().chain(&mark.cluster_id).cloned().collect();
    ids.dedup();
    ids
}

pub fn from_record(record: &Founder) -> Ring {
    Ring { id: record.id.clone(), remade: is_remade(record) }
}

/// Is the recorded ring older than the cluster object?
pub fn is_remade(record: &Founder) -> bool {
    !record.formerly.is_empty()
}

/// Returns the owner reference of `pilot` that names its cluster.
pub fn cluster_owner(pilot: &Pilot) -> Option<&OwnerReference> {
    let cluster = pilot.spec.cluster_ref.as_ref()?;
    let owners = pilot.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.kind == cluster.kind && owner.name == cluster.name)
}

/// Does `lease` belong to an earlier cluster of the same name? Then garbage collection is about to
/// delete it, and what it records.
pub fn is_former(lease: &LeaderLease, pilot: &Pilot) -> bool {
    let owners = lease.metadata.owner_references.as_deref().unwrap_or_default();
    let Some(own_cluster) = cluster_owner(pilot) else { return false };
    !owners.is_empty() && owners.iter().all(|owner| owner.uid != own_cluster.uid)
}

/// Did a person say that the data are this node's, whatever their mark says?
pub fn is_adopted(pilot: &Pilot) -> bool {
    let annotations = pilot.metadata.annotations.as_ref();
    annotations
        .and_then(|values| values.get(annotation::ADOPT_DATA))
        .is_some_and(|value| value == "true")
}

/// Did a person say that this node may found another ring in the place of the recorded one? The
/// id of that is named, so the word does not count against any later ring.
pub fn is_given_up(pilot: &Pilot, record: &Founder) -> bool {
    let annotations = pilot.metadata.annotations.as_ref();
    annotations
        .and_then(|values| values.get(annotation::FOUND_ANEW))
        .is_some_and(|id| *id == record.id)
}

/// Makes the failed check that says why a volume of another ring is refused, and what a person can
/// do. `has_joined`: its node was a member.
pub fn build_refusal(
    names: &DatabaseNames,
    pilot: &Pilot,
    mark: &VolumeMark,
    record: Option<&Founder>,
    has_joined: bool,
) -> FailedCheck {
    let name = pilot.metadata.name.as_deref().unwrap_or("?");
    let cluster = pilot.spec.cluster_ref.as_ref().map_or("?", |cluster| &cluster.name);
    let volume_ring = match (&mark.ring, &mark.cluster_uid) {
        (Some(ring), _) => format!("ring {ring}"),
        (None, Some(uid)) => format!("the ring of an earlier cluster {cluster:?} (uid {uid})"),
        (None, None) => "a ring without an id".to_owned(),
    };
    let content =
        if has_joined { "the data of" } else { "a part of the data, of an unfinished join, of" };
    let cluster_ring = record.map_or_else(
        || format!("nothing is recorded of a ring of cluster {cluster:?}"),
        |record| format!("cluster {cluster:?} is ring {}, recorded by {}", record.id, record.name),
    );
    let claim = match pilot.metadata.namespace.as_deref() {
        Some(_) if cluster_owner(pilot).is_some() => {
            format!("delete claim {}-{name} and pod {name}", names.data_volume)
        }
        _ => "empty the data directory, .navigator too".to_owned(),
    };
    let adopt = if record.is_some() {
        format!(
            ". To adopt them as they are, with rows that the others may not have and without \
             theirs, annotate the Pilot with {}=true",
            annotation::ADOPT_DATA
        )
    } else {
        String::new()
    };
    let message = format!(
        "the volume holds {content} {name} in {volume_ring}, and {cluster_ring}. To wipe them, so that an empty \
         node joins, {claim}{adopt}"
    );
    FailedCheck { reason: "IdentityMismatch", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(name: &str, id: &str, formerly: &[&str]) -> Founder {
        let formerly = formerly.iter().map(|id| (*id).to_owned()).collect();
        Founder { name: name.into(), id: id.into(), formerly }
    }

    fn mark(ring: Option<&str>, uid: &str, first: &str) -> VolumeMark {
        VolumeMark {
            ring: ring.map(str::to_owned),
            cluster_uid: Some(uid.into()),
            cluster_id: Some(first.into()),
            node_id: Some("n".into()),
            ..VolumeMark::default()
        }
    }

    fn belongs(mark: &VolumeMark, record: &Founder) -> bool {
        classify_volume(mark, "a-1", Some("u2"), Some(record)) == RingMembership::Here
    }

    #[test]
    fn a_volume_serves_in_its_own_ring_only() {
        let founded = by("a-0", "r2", &[]);
        assert!(belongs(&mark(Some("r2"), "u2", "u2"), &founded));
        assert!(!belongs(&mark(Some("r1"), "u1", "u1"), &founded));
        // A volume of another ring is refused even if it ran under the same cluster object: a
        // person had another ring founded.
        assert!(!belongs(&mark(Some("r1"), "u2", "u2"), &founded));
    }

    #[test]
    fn only_true_adopts_data() {
        for (value, adopts) in [("true", true), ("false", false), ("", false)] {
            let mut pilot = Pilot::default();
            let annotations = [(annotation::ADOPT_DATA.to_owned(), value.to_owned())];
            pilot.metadata.annotations = Some(annotations.into());
            assert_eq!(is_adopted(&pilot), adopts, "{value:?}");
        }
        assert!(!is_adopted(&Pilot::default()));
    }

    #[test]
    fn the_first_node_with_data_records_its_ring_again() {
        let record = |mark: &VolumeMark| match classify_volume(mark, "a-1", Some("u2"), None) {
            RingMembership::Unrecorded(founder) => founder,
            other => panic!("{other:?}"),
        };
        let recorded = record(&mark(Some("r1"), "u1", "u1"));
        assert_eq!(recorded, by("a-1", "r1", &["u1"]));
        assert!(is_remade(&recorded));
        assert!(belongs(&mark(Some("r1"), "u1", "u1"), &recorded));
        assert!(!belongs(&mark(Some("r0"), "u1", "u1"), &recorded));
    }

    #[test]
    fn volumes_without_a_rings_id_are_taken_into_the_ring_that_they_belong_to() {
        let founded = by("a-0", "r2", &[]);
        assert!(belongs(&mark(None, "u2", "u2"), &founded), "it ran under this cluster object");
        assert!(
            !belongs(&mark(None, "u1", "u1"), &founded),
            "an earlier one; this was founded anew"
        );
        // Some volumes of a ring know its id and some do not: whichever node is first, all are
        // known.
        let (old, new) = (mark(None, "u1", "u1"), mark(Some("r1"), "u1", "u1"));
        for (first, second) in [(&old, &new), (&new, &old), (&old, &old)] {
            let RingMembership::Unrecorded(recorded) =
                classify_volume(first, "a-1", Some("u2"), None)
            else {
                panic!("nothing is recorded")
            };
            assert!(belongs(first, &recorded), "{recorded:?}");
            assert!(belongs(second, &recorded), "{recorded:?}");
        }
        // One of the volumes was started under the new object by a release that knew no ids.
        let RingMembership::Unrecorded(recorded) =
            classify_volume(&mark(None, "u2", "u1"), "a-0", Some("u2"), None)
        else {
            panic!("nothing is recorded")
        };
        assert!(belongs(&old, &recorded), "{recorded:?}");
    }

    #[test]
    fn a_refusal_says_whose_the_data_are_and_both_ways_on() {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some("cass-shop-a-1".into());
        let record = by("cass-shop-a-0", "r2", &[]);
        let names = crate::pilot::database::EXAMPLE.names;
        let told = build_refusal(names, &pilot, &mark(Some("r1"), "u1", "u1"), Some(&record), true);
        assert_eq!(told.reason, "IdentityMismatch");
        for part in
            ["ring r1", "ring r2", "cass-shop-a-1", "empty the data", annotation::ADOPT_DATA]
        {
            assert!(told.message.contains(part), "{part}: {}", told.message);
        }
        assert!(told.message.len() < 700, "{}", told.message.len());
    }
}
