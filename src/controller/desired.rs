//! What a cluster shall look like, in terms that every database shares.
//!
//! Owns the words of the plan: pools, members, images, hashes. Each flavour turns its own
//! kind into a [`Desired`] (see `cassandra`, `elasticsearch`); everything after that is the same
//! code for all. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference},
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::api::{
    quantity,
    v1beta1::{
        ClusterStatus, ImageSpec, Persistence, PilotSpec, PodTemplate, Services, UpdateStrategy,
    },
};

/// What the controller reads of a cluster, whatever its kind.
#[derive(Clone, Debug)]
pub(crate) struct Desired {
    pub(crate) flavour: &'static Flavour,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: i64,
    /// The cluster is being deleted: nothing is created or changed any more.
    pub(crate) deleted: bool,
    pub(crate) force_delete: bool,
    pub(crate) finalizers: Vec<String>,
    pub(crate) paused: bool,
    pub(crate) stopped: bool,
    pub(crate) version: String,
    /// What is run, resolved from spec and defaults.
    pub(crate) image: Image,
    pub(crate) pilot_image: Image,
    pub(crate) run_as_user: i64,
    pub(crate) services: Services,
    pub(crate) pools: Vec<Pool>,
    pub(crate) strategy: Strategy,
    /// Why nothing can be done for this cluster, found in its spec alone.
    pub(crate) stalled: Option<Stalled>,
    /// Status as it was last written.
    pub(crate) status: ClusterStatus,
}

/// The facts by which one kind of database differs from another.
#[derive(Debug)]
pub(crate) struct Flavour {
    pub(crate) kind: &'static str,
    /// Word in commands, labels and metrics: `cassandra`.
    pub(crate) word: &'static str,
    pub(crate) container: &'static str,
    pub(crate) data_volume: &'static str,
    pub(crate) data_dir: &'static str,
    pub(crate) cluster_label: &'static str,
    pub(crate) pool_label: &'static str,
    /// Prefix of the names of generated objects: `cass`.
    pub(crate) prefix: &'static str,
    pub(crate) termination_grace: Duration,
    /// Name and number of the ports that the database container shows.
    pub(crate) ports: &'static [(&'static str, u16)],
    pub(crate) service_account: fn(&str) -> String,
    /// Role and RoleBinding of the pilots.
    pub(crate) pilot_role: fn(&str) -> String,
    pub(crate) leader_lease: fn(&str) -> String,
    /// Turns what nodes are told to what fits the nodes that there are.
    pub(crate) fit: fn(&mut Desired, &[Existing]),
}

/// A pool as it is, as far as it decides what nodes are told.
#[derive(Clone, Debug)]
pub(crate) struct Existing {
    pub(crate) pool: String,
    /// Nodes that are there, or come back, and were not told to leave.
    pub(crate) staying: u32,
    /// May its nodes be elected master by what they were told?
    pub(crate) eligible: bool,
}

/// May a node that was told this be elected master by its peers? Never, where a database has no
/// masters.
pub(crate) fn eligible(spec: &PilotSpec) -> bool {
    spec.elasticsearch.as_ref().is_some_and(|es| es.roles.iter().any(|role| role == "master"))
}

impl Flavour {
    /// Name of the StatefulSet of a pool.
    pub(crate) fn stateful_set(&self, cluster: &str, pool: &str) -> String {
        format!("{}-{cluster}-{pool}", self.prefix)
    }
}

/// An image and when it is pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) reference: String,
    pub(crate) pull_policy: String,
}

impl Image {
    pub(crate) fn of(spec: &ImageSpec) -> Self {
        let ImageSpec { repository, tag, digest, pull_policy } = spec;
        let reference = match (digest, tag) {
            (Some(digest), _) => format!("{repository}@{digest}"),
            (None, Some(tag)) => format!("{repository}:{tag}"),
            (None, None) => repository.clone(),
        };
        let pull_policy = pull_policy.clone().unwrap_or_else(|| "IfNotPresent".to_owned());
        Self { reference, pull_policy }
    }

    pub(crate) fn named(reference: impl Into<String>) -> Self {
        Self { reference: reference.into(), pull_policy: "IfNotPresent".to_owned() }
    }
}

/// Nodes that are equal to each other.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    /// Name of the StatefulSet.
    pub(crate) set: String,
    pub(crate) replicas: u32,
    pub(crate) zone: Option<String>,
    pub(crate) resources: ResourceRequirements,
    pub(crate) persistence: Option<Persistence>,
    /// Overlays of the cluster and of the pool, in the order in which they are merged.
    pub(crate) overlays: Vec<PodTemplate>,
    /// Spec of every Pilot of the pool; `phase` is not part of it.
    pub(crate) pilot: PilotSpec,
    /// Hash of what a person said that the pods are made of; see [`PodInputs::hash`].
    pub(crate) pod_hash: String,
    /// Hashes of pods that were made of the same, said in other words; see [`PodInputs::alike`].
    pub(crate) pods_alike: Vec<String>,
    /// Labels that only this flavour knows, for example a role.
    pub(crate) labels: Vec<(String, String)>,
}

impl Pool {
    /// Hash that a Pilot carries as `spec.configHash`.
    pub(crate) fn config_hash(&self) -> &str {
        self.pilot.config_hash.as_deref().unwrap_or_default()
    }

    /// Is a pod of this hash made of what is wanted?
    pub(crate) fn makes(&self, pod_hash: &str) -> bool {
        self.pod_hash == pod_hash || self.pods_alike.iter().any(|alike| alike == pod_hash)
    }

    /// May its nodes be elected master, see [`eligible`]?
    pub(crate) fn eligible(&self) -> bool {
        eligible(&self.pilot)
    }

    /// Are data kept on a claim, rather than in the pod?
    pub(crate) fn persistent(&self) -> bool {
        self.persistence.as_ref().is_some_and(|p| p.enabled != Some(false) && p.size.is_some())
    }

    pub(crate) fn delete_claim_when_scaled(&self) -> bool {
        let retention = self.persistence.as_ref().and_then(|p| p.retention.as_ref());
        retention.and_then(|r| r.when_scaled.as_deref()) != Some("Retain")
    }

    pub(crate) fn delete_claim_when_deleted(&self) -> bool {
        let retention = self.persistence.as_ref().and_then(|p| p.retention.as_ref());
        self.persistent() && retention.and_then(|r| r.when_deleted.as_deref()) == Some("Delete")
    }
}

/// How changes reach running nodes.
#[derive(Clone, Debug)]
pub(crate) struct Strategy {
    /// Changes wait until somebody restarts a pod.
    pub(crate) on_delete: bool,
    /// A newer pilot is brought into running pods.
    pub(crate) deliver_pilots: bool,
    /// Pools and number of nodes at which a roll is held.
    pub(crate) canary: Option<(BTreeSet<String>, u32)>,
    pub(crate) skip_predicates: BTreeSet<String>,
    pub(crate) progress_deadline: Duration,
}

impl Strategy {
    pub(crate) fn of(spec: Option<&UpdateStrategy>) -> Self {
        let spec = spec.cloned().unwrap_or_default();
        let canary = spec.canary.map(|canary| {
            let replicas = u32::try_from(canary.replicas).unwrap_or_default();
            (canary.node_pools.into_iter().collect(), replicas)
        });
        let seconds = spec.progress_deadline_seconds.and_then(|s| u64::try_from(s).ok());
        Self {
            on_delete: spec.type_.as_deref() == Some("OnDelete"),
            deliver_pilots: !matches!(spec.pilot_update.as_deref(), Some("OnRestart" | "Never")),
            canary,
            skip_predicates: spec.skip_predicates.into_iter().collect(),
            progress_deadline: Duration::from_secs(seconds.unwrap_or(1800)),
        }
    }

    /// Does a person override this predicate, which `*` does not include?
    pub(crate) fn skips_by_name(&self, predicate: &str) -> bool {
        self.skip_predicates.contains(predicate)
    }

    /// Does a person override this predicate?
    pub(crate) fn skips(&self, predicate: &str) -> bool {
        self.skip_predicates.contains("*") || self.skip_predicates.contains(predicate)
    }
}

/// Why nothing can be done for a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stalled {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Desired {
    pub(crate) fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: crate::api::v1beta1::API_VERSION.to_owned(),
            kind: self.flavour.kind.to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// What nodes are told while there are these nodes.
    pub(crate) fn fitting(mut self, existing: &[Existing]) -> Self {
        (self.flavour.fit)(&mut self, existing);
        self
    }

    pub(crate) fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// Does deletion need work that garbage collection cannot do?
    pub(crate) fn needs_teardown(&self) -> bool {
        self.pools.iter().any(Pool::delete_claim_when_deleted)
    }
}

/// 16 hexadecimal digits over anything that serialises; object keys are sorted by `Value`.
pub(crate) fn hash(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("our own types have string keys only");
    let digest = Sha256::digest(value.to_string());
    digest.iter().take(8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// What a person said that the pods of a pool are made of.
///
/// Only what stands in the spec: another default image or probe of a newer controller leaves
/// the hash alone, so an upgrade of ours restarts no database. Nor does another pilot's image,
/// whoever names it: running pods get it beside their database (see `plan::deliver`). The version
/// stands for the image that follows from it.
///
/// The hash is stored in every pod: a change of how it is made restarts every database at the next
/// upgrade. A new field is left out while it is unset (`skip_serializing_if`), and another way to
/// say the same goes into [`PodInputs::alike`]. The literal hashes in the tests hold that.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodInputs<'a> {
    pub(crate) version: &'a str,
    pub(crate) image: Option<&'a ImageSpec>,
    pub(crate) run_as_user: Option<i64>,
    pub(crate) zone: Option<&'a str>,
    pub(crate) resources: Option<&'a ResourceRequirements>,
    pub(crate) persistent: bool,
    pub(crate) overlays: &'a [PodTemplate],
}

/// When an image is pulled says nothing about what runs. These are the words for it.
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

impl PodInputs<'_> {
    /// What a new pod carries: without the words that make no difference.
    pub(crate) fn hash(&self) -> String {
        let image = self.image.map(|image| pulled(image, None));
        let resources = self.resources.map(plain);
        hash(&PodInputs { image: image.as_ref(), resources: resources.as_ref(), ..self.clone() })
    }

    /// What pods of the same carry that were made while such words still counted.
    pub(crate) fn alike(&self) -> Vec<String> {
        let resources = self.resources.map(plain);
        let mut hashes = Vec::new();
        for resources in [self.resources, resources.as_ref()] {
            let Some(image) = self.image else {
                hashes.push(hash(&PodInputs { resources, ..self.clone() }));
                continue;
            };
            for policy in [None].into_iter().chain(PULL_POLICIES.map(Some)) {
                let image = pulled(image, policy);
                hashes.push(hash(&PodInputs { image: Some(&image), resources, ..self.clone() }));
            }
        }
        let current = self.hash();
        hashes.retain(|hash| *hash != current);
        hashes.sort();
        hashes.dedup();
        hashes
    }
}

fn pulled(image: &ImageSpec, policy: Option<&str>) -> ImageSpec {
    ImageSpec { pull_policy: policy.map(str::to_owned), ..image.clone() }
}

/// The same amounts in their plainest spelling.
fn plain(resources: &ResourceRequirements) -> ResourceRequirements {
    let plain = |amounts: &Option<BTreeMap<String, Quantity>>| {
        let spelled = |(name, amount): (&String, &Quantity)| {
            (name.clone(), Quantity(quantity::plain(&amount.0).unwrap_or_else(|| amount.0.clone())))
        };
        amounts.as_ref().map(|amounts| amounts.iter().map(spelled).collect())
    };
    ResourceRequirements {
        limits: plain(&resources.limits),
        requests: plain(&resources.requests),
        ..resources.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn image(policy: Option<&str>) -> ImageSpec {
        let policy = policy.map(str::to_owned);
        ImageSpec { repository: "db".into(), pull_policy: policy, ..ImageSpec::default() }
    }

    fn resources(amounts: Value) -> ResourceRequirements {
        serde_json::from_value(amounts).unwrap()
    }

    /// A pool whose pods are made of this.
    fn made(image: &ImageSpec, resources: &ResourceRequirements) -> Pool {
        let inputs = PodInputs {
            version: "5.0.6",
            image: Some(image),
            run_as_user: None,
            zone: None,
            resources: Some(resources),
            persistent: true,
            overlays: &[],
        };
        let pool = crate::controller::world::desired(&[("a", 1)], "x").pools.remove(0);
        Pool { pod_hash: inputs.hash(), pods_alike: inputs.alike(), ..pool }
    }

    /// These hashes stand in running pods. If this test fails, so would every user's database be
    /// restarted by an upgrade: mend the code, not the numbers.
    #[test]
    fn hashes_that_released_controllers_stored_stay_what_they_are() {
        let (image, amounts) = (image(None), resources(json!({"limits": {"memory": "4Gi"}})));
        let overlay = json!({"spec": {"priorityClassName": "databases"}});
        let overlays = [serde_json::from_value(overlay).unwrap()];
        let bare = PodInputs {
            version: "5.0.6",
            image: None,
            run_as_user: None,
            zone: None,
            resources: None,
            persistent: true,
            overlays: &[],
        };
        let full = PodInputs {
            version: "8.19.4",
            image: Some(&image),
            run_as_user: Some(1001),
            zone: Some("a"),
            resources: Some(&amounts),
            persistent: false,
            overlays: &overlays,
        };
        assert_eq!([bare.hash(), full.hash()], ["f76554c4440cacda", "4b034a7e4a8e9943"]);
    }

    #[test]
    fn a_pull_policy_or_another_spelling_of_an_amount_makes_no_other_pod() {
        let written = resources(json!({
            "limits": {"memory": "4096Mi"}, "requests": {"cpu": "1000m", "memory": "4294967296"},
        }));
        let same = resources(json!({
            "limits": {"memory": "4Gi"}, "requests": {"cpu": "1", "memory": "4Gi"},
        }));
        let more = resources(json!({
            "limits": {"memory": "4Gi"}, "requests": {"cpu": "1001m", "memory": "4Gi"},
        }));
        let wanted = made(&image(None), &same);
        let policies = [None].into_iter().chain(PULL_POLICIES.map(Some));
        for policy in policies {
            let earlier = made(&image(policy), &written);
            assert_eq!(earlier.pod_hash, wanted.pod_hash, "{policy:?}");
            assert!(wanted.makes(&earlier.pod_hash));
            // Pods of an earlier release carry the hash of the very words.
            let literal = hash(&json!({
                "version": "5.0.6", "image": image(policy), "runAsUser": null, "zone": null,
                "resources": written, "persistent": true, "overlays": [],
            }));
            assert_ne!(literal, wanted.pod_hash);
            assert!(earlier.makes(&literal), "{policy:?}");
            assert!(made(&image(Some("Always")), &written).makes(&literal), "{policy:?}");
        }
        assert!(!wanted.makes(&made(&image(None), &more).pod_hash));
        let other = ImageSpec { tag: Some("x".into()), ..image(None) };
        assert!(!wanted.makes(&made(&other, &same).pod_hash));
    }

    #[test]
    fn a_digest_wins_over_the_tag() {
        let spec = ImageSpec {
            repository: "docker.io/cassandra".into(),
            tag: Some("5.0.6".into()),
            digest: Some("sha256:abc".into()),
            pull_policy: None,
        };
        assert_eq!(Image::of(&spec).reference, "docker.io/cassandra@sha256:abc");
        assert_eq!(Image::of(&spec).pull_policy, "IfNotPresent");
    }
}
