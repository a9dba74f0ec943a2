//! Describes a cluster of node pools in the terms that every database shares: [`parse_desired_cluster`].
//!
//! Owns what all clusters have; a database adds its own part through [`ManagedClusterKind`]. Pure.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde::Deserialize;
use serde_json::json;

use super::desired_state::{
    ClusterService, DesiredCluster, DesiredPool, Image, ManagedDatabase, NodeReport,
    ObjectSettings, PodInputs, RolloutStrategy, SecuredCondition, SecurityRound, StallCause,
};
use crate::{
    api::{
        cluster_kind::ClusterKind,
        names::annotation,
        pilot_part::PilotParts,
        reserved_fields::is_upstream_pilot,
        v1beta1::{
            Authentication, ClientAuth, ClientTls, Cluster, ClusterRef, ClusterSecurity,
            ClusterSpec, Config, DatabaseRole, ImageSpec, InternodeTls, Jvm, NodePool,
            PilotSecurity, PilotSpec, PilotStatus, PodTemplate, SecurityContext,
        },
        validation::{ClusterRules, SecuritySupport},
    },
    engine::{config_hash, settings, users::DocumentedRole},
};

/// What differs between databases in how their clusters are run.
pub trait ManagedClusterKind: ClusterKind {
    const DATABASE: &'static ManagedDatabase;
    /// User and group id of the database's processes when the spec names none.
    const DEFAULT_UID: i64;

    /// The image of this version of the database when the spec names none.
    fn default_image(version: &str) -> String;
    /// Why this build cannot run `version` of the database; `None` when it can.
    fn unsupported_version_message(version: &str) -> Option<String>;
    /// The cluster's settings, overridden by those of a pool.
    fn merge_config(cluster: &Config, pool: &Config) -> Config {
        // Merging over nothing drops `null`s, which stand for "not set".
        let mut merged = Config::new();
        settings::merge_settings(&mut merged, cluster);
        settings::merge_settings(&mut merged, pool);
        merged
    }
    /// The part of a Pilot's spec that is this database's own, for Pilots of `pool`.
    fn pilot_parts(_cluster: &Cluster<Self>, _pool: &NodePool<Self>) -> PilotParts {
        PilotParts::default()
    }
    /// Returns whether a cluster of this spec joins nodes that are not of its own pods.
    fn nodes_elsewhere(_own: &Self) -> bool {
        false
    }
    /// Labels of `pool` that only this database has.
    fn pod_labels(_pool: &NodePool<Self>) -> Vec<(String, String)> {
        Vec::new()
    }
}

impl ManagedDatabase {
    /// The defaults of a database whose nodes are all equal, keep their data and elect no leader. A
    /// database that differs overrides single fields.
    pub const fn new<K: ManagedClusterKind + ClusterRules>(
        services: fn(&DesiredCluster) -> Vec<ClusterService>,
        reports: fn(&PilotStatus) -> NodeReport,
        secured: fn(&DesiredCluster) -> SecuredCondition,
    ) -> Self {
        Self {
            names: K::NAMES,
            labels: &[],
            termination_grace: Duration::from_secs(30),
            desired: parse_desired_cluster::<K>,
            services,
            set_annotations: |_| Vec::new(),
            node_labels: |_, _| Vec::new(),
            fit: |_, _| (),
            config_hash: |spec| config_hash::config_hash(spec, Vec::new()),
            eligible: |_| false,
            place: |_| None,
            keeps_data: |_| true,
            reports,
            gauges: &[],
            knows_copies: false,
            id_is_uid: true,
            minimum_masters: |_| None,
            begins_anew: |_| false,
            login: None,
            switches_at_once: matches!(
                K::SECURITY,
                Some(SecuritySupport { all_at_once: true, .. })
            ),
            one_port: matches!(K::SECURITY, Some(SecuritySupport { one_port: true, .. })),
            secured,
        }
    }
}

/// Reads a cluster object and describes it in the terms that every database shares.
///
/// # Errors
/// When the object is not of this kind; our API server stores no such object.
pub fn parse_desired_cluster<K: ManagedClusterKind>(
    object: &DynamicObject,
    settings: &ObjectSettings,
    round: Option<SecurityRound>,
) -> Result<DesiredCluster, serde_json::Error> {
    Ok(in_round(&Cluster::<K>::deserialize(json!(object))?, settings, round))
}

/// Describes a cluster in the terms that every database shares, with all nodes in the desired
/// modes.
pub fn build_desired_cluster<K: ManagedClusterKind>(
    cluster: &Cluster<K>,
    settings: &ObjectSettings,
) -> DesiredCluster {
    in_round(cluster, settings, None)
}

fn in_round<K: ManagedClusterKind>(
    cluster: &Cluster<K>,
    settings: &ObjectSettings,
    round: Option<SecurityRound>,
) -> DesiredCluster {
    let ClusterSpec {
        version,
        image,
        pilot_image,
        paused,
        stopped,
        // These fields go into the specs of Pilots.
        restarted_at: _,
        config: _,
        jvm: _,
        pod_template: _,
        pilot_settings: _,
        own: _,
        security_context,
        update_strategy,
        services,
        security,
        node_pools,
    } = &cluster.spec;
    let meta = &cluster.metadata;
    let name = meta.name.clone().unwrap_or_default();
    let unsupported_version = || {
        Some(StallCause {
            reason: "UnsupportedVersion",
            message: format!(
                "{}; it is stored and nothing is started",
                K::unsupported_version_message(version)?
            ),
        })
    };
    let pools = || node_pools.iter().map(|pool| pool.name.as_str());
    let shared = security.as_ref().map(|security| &security.shared);
    let round =
        round.unwrap_or_else(|| SecurityRound::without_transition(cluster.spec.desired_security()));
    DesiredCluster {
        database: K::DATABASE,
        namespace: meta.namespace.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        generation: meta.generation.unwrap_or_default(),
        deleted: meta.deletion_timestamp.is_some(),
        force_delete: has_true_annotation(meta, annotation::FORCE_DELETE),
        orphan: has_true_annotation(meta, annotation::ORPHAN),
        finalizers: meta.finalizers.clone().unwrap_or_default(),
        created: meta.creation_timestamp.as_ref().map(|time| time.0),
        accepted_secrets: accepted_secrets(meta),
        paused: paused.unwrap_or_default(),
        stopped: stopped.unwrap_or_default() || round.stops_all,
        image: image
            .as_ref()
            .map_or_else(|| Image::from_reference(K::default_image(version)), Image::from_spec),
        pilot_image: effective_pilot_image(pilot_image.as_ref(), settings),
        run_as_user: run_as_user(security_context.as_ref(), K::DEFAULT_UID),
        services: services.clone().unwrap_or_default(),
        network: shared.and_then(ClusterSecurity::managed_network).cloned(),
        security: (!round.in_force.is_open()).then(|| shared.cloned().unwrap_or_default()),
        roles: security.iter().flat_map(|security| &security.roles).map(documented_role).collect(),
        nodes_elsewhere: K::nodes_elsewhere(&cluster.spec.own),
        stalled: unsupported_version()
            .or_else(|| names_that_do_not_fit(K::DATABASE, &name, pools())),
        strategy: RolloutStrategy::from_spec(update_strategy.as_ref()),
        version: version.clone(),
        status: cluster.status.clone(),
        pools: node_pools.iter().map(|pool| pool_of(cluster, &name, pool, &round)).collect(),
        round,
        name,
    }
}

/// Returns the name of a database cluster that begins under this object, with a part of the object's
/// uid: clusters of one name, in other namespaces or later ones, must not take each other's nodes for
/// their own. `None` without a uid.
pub fn new_cluster_name(object: &ObjectMeta) -> Option<String> {
    let uid = object.uid.as_ref()?.chars().filter(char::is_ascii_alphanumeric);
    let part: String = uid.take(8).collect();
    Some(format!("{}-{part}", object.name.as_deref()?))
}

/// Returns the security settings that nodes receive in this stage, without certificates and users.
fn pilot_security<K: ManagedClusterKind>(
    spec: &ClusterSpec<K>,
    round: &SecurityRound,
) -> Option<PilotSecurity> {
    let mut security = PilotSecurity::from_modes(&round.rungs)?;
    let requires_certificates = spec
        .security
        .as_ref()
        .is_some_and(|cluster_security| cluster_security.shared.requires_client_certificates());
    // On the way there and back, clients without TLS are served.
    let can_require =
        round.rungs.client == ClientTls::Required && round.rungs.internode != InternodeTls::Off;
    security.client_auth = (requires_certificates && can_require).then_some(ClientAuth::Required);
    let has_no_nodes = spec.node_pools.iter().all(|pool| pool.replicas == Some(0));
    security.closes_logins = has_no_nodes && round.rungs.authentication == Authentication::Password;
    Some(security)
}

/// Returns a role as the database's own part of pilots reads it.
fn documented_role<K: ManagedClusterKind>(role: &DatabaseRole<K>) -> DocumentedRole {
    let DatabaseRole { name, rights } = role;
    let rights = serde_json::to_value(rights).expect("wire types have string keys");
    DocumentedRole { name: name.clone(), rights }
}

fn pool_of<K: ManagedClusterKind>(
    cluster: &Cluster<K>,
    name: &str,
    pool: &NodePool<K>,
    round: &SecurityRound,
) -> DesiredPool {
    let NodePool {
        name: pool_name,
        replicas: desired_replicas,
        zone,
        resources,
        persistence,
        restarted_at,
        config,
        jvm,
        pod_template,
        // The database's own fields go into the specs of Pilots.
        own: _,
    } = pool;
    let spec = &cluster.spec;
    let overlays: Vec<PodTemplate> = [&spec.pod_template, pod_template]
        .into_iter()
        .filter(|overlay| !overlay.is_empty())
        .cloned()
        .collect();
    let mut pilot = PilotSpec {
        cluster_ref: Some(ClusterRef { kind: K::NAMES.kind.to_owned(), name: name.to_owned() }),
        node_pool: Some(pool_name.clone()),
        phase: None,
        version: Some(spec.version.clone()),
        config_hash: None,
        restarted_at: restarted_at.clone().max(spec.restarted_at.clone()),
        restart_for: None,
        pilot_update: spec.update_strategy.as_ref().and_then(|s| s.pilot_update.clone()),
        pilot_settings: spec.pilot_settings.clone(),
        forget: Vec::new(),
        unsafe_bootstrap: None,
        security: pilot_security(spec, round),
        config: K::merge_config(&spec.config, config),
        jvm: merged_jvm(spec.jvm.as_ref(), jvm.as_ref()),
        parts: K::pilot_parts(cluster, pool),
    };
    pilot.config_hash = Some((K::DATABASE.config_hash)(&pilot));
    let mut desired_pool = DesiredPool {
        name: pool_name.clone(),
        set: K::NAMES.stateful_set(name, pool_name),
        replicas: replicas_or_default(*desired_replicas),
        zone: zone.clone(),
        resources: resources.clone().unwrap_or_default(),
        persistence: persistence.clone(),
        eligible: (K::DATABASE.eligible)(&pilot),
        pilot,
        pod_hash: String::new(),
        pods_alike: Vec::new(),
        labels: K::pod_labels(pool),
        topology: pool.topology_fields(),
        overlays,
    };
    let inputs = PodInputs {
        version: &spec.version,
        image: spec.image.as_ref(),
        run_as_user: spec.security_context.as_ref().and_then(|context| context.run_as_user),
        zone: zone.as_deref(),
        resources: resources.as_ref(),
        persistent: desired_pool.is_persistent(),
        overlays: &desired_pool.overlays,
        mounts_users: round.mounts_users(&spec.desired_security()),
    };
    (desired_pool.pod_hash, desired_pool.pods_alike) = (inputs.hash(), inputs.equivalent_hashes());
    desired_pool
}

/// Returns the pool's heap and JVM options, each taken from the cluster where the pool has none.
fn merged_jvm(cluster: Option<&Jvm>, pool: Option<&Jvm>) -> Option<Jvm> {
    let (Some(cluster), Some(pool)) = (cluster, pool) else { return pool.or(cluster).cloned() };
    let options = if pool.options.is_empty() { &cluster.options } else { &pool.options };
    Some(Jvm { heap: pool.heap.clone().or_else(|| cluster.heap.clone()), options: options.clone() })
}

/// Returns the image that brings the pilot program into the pods.
pub fn effective_pilot_image(pilot_image: Option<&ImageSpec>, settings: &ObjectSettings) -> Image {
    match pilot_image {
        Some(spec) if !is_upstream_pilot(&spec.repository) => Image::from_spec(spec),
        _ => Image::from_reference(&settings.pilot_image),
    }
}

/// Returns the user that the database runs as; never 0, which v1alpha1 could still ask for.
pub fn run_as_user(security_context: Option<&SecurityContext>, default: i64) -> i64 {
    security_context
        .and_then(|context| context.run_as_user)
        .filter(|uid| *uid > 0)
        .unwrap_or(default)
}

/// Returns the number of nodes that a pool asks for; 1 where its spec does not say.
pub fn replicas_or_default(requested: Option<i32>) -> u32 {
    requested.map_or(1, |replicas| u32::try_from(replicas).unwrap_or_default())
}

/// Returns whether the object has `annotation` with the value `"true"`.
fn has_true_annotation(meta: &ObjectMeta, annotation: &str) -> bool {
    let annotations = meta.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(annotation))
        .is_some_and(|value| value == "true")
}

/// Returns the uids of the Secrets that the user allows the cluster to use.
fn accepted_secrets(meta: &ObjectMeta) -> Vec<String> {
    let annotations = meta.annotations.as_ref();
    let accepted_uids =
        annotations.and_then(|annotations| annotations.get(annotation::ACCEPT_SECRETS));
    accepted_uids
        .into_iter()
        .flat_map(|uids| uids.split(','))
        .map(|uid| uid.trim().to_owned())
        .collect()
}

/// Longest name of a StatefulSet whose pods can run: `-<hash>` must fit behind it in a label of 63
/// bytes.
const SET_NAME_MAX: usize = 52;

/// Returns a stall cause for names that no StatefulSet or Service can have: v1alpha1 accepts them.
pub fn names_that_do_not_fit<'a>(
    database: &ManagedDatabase,
    cluster: &str,
    pools: impl Iterator<Item = &'a str>,
) -> Option<StallCause> {
    let is_label = |name: &str| {
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let mut invalid_names: Vec<_> = pools
        .map(|pool| database.names.stateful_set(cluster, pool))
        .filter(|set| set.len() > SET_NAME_MAX || !is_label(set))
        .collect();
    let first = invalid_names.drain(..).next()?;
    Some(StallCause {
        reason: "NameConflict",
        message: format!(
            "{first:?} cannot name a StatefulSet: at most {SET_NAME_MAX} lower-case letters, \
             digits and '-'; use shorter names of cluster and pool"
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::testing::example::Example;

    #[test]
    fn upstream_pilot_images_are_never_run() {
        let settings = ObjectSettings {
            pilot_image: "ours:1".into(),
            store_id: "store".into(),
            owner_references: false,
        };
        let image = |repository: &str| ImageSpec {
            repository: repository.into(),
            tag: Some("v0.1.0".into()),
            ..ImageSpec::default()
        };
        let run = |spec: Option<&ImageSpec>| effective_pilot_image(spec, &settings).reference;
        assert_eq!(run(None), "ours:1");
        assert_eq!(run(Some(&image("quay.io/jetstack/navigator-pilot-example"))), "ours:1");
        assert_eq!(run(Some(&image("example.org/navigator"))), "example.org/navigator:v0.1.0");
    }

    #[test]
    fn clients_are_asked_for_certificates_where_all_speak_tls_and_that_takes_a_restart() {
        let mut cluster = Cluster::<Example>::default();
        let asked = |cluster: &Cluster<Example>| {
            let round = SecurityRound::without_transition(cluster.spec.desired_security());
            let security = pilot_security(&cluster.spec, &round);
            let spec = PilotSpec { security, ..PilotSpec::default() };
            let hash = config_hash::config_hash(&spec, Vec::new());
            (spec.security.and_then(|told| told.client_auth), hash)
        };
        let mut say = |security: Value| {
            cluster.spec.security = Some(serde_json::from_value(security).unwrap());
            asked(&cluster)
        };
        let asks = json!({"clientAuth": "Required"});
        let (without, secure) = say(json!({"mode": "Secure"}));
        let (with, asking) = say(json!({"mode": "Secure", "client": asks}));
        assert_eq!((without, with), (None, Some(ClientAuth::Required)));
        assert_ne!(secure, asking);
        let client = json!({"clientAuth": "Required", "tls": "Optional"});
        assert_eq!(say(json!({"mode": "Secure", "client": client})).0, None);
        assert_eq!(say(json!({"mode": "Open", "client": asks})).0, None);
    }

    #[test]
    fn uid_zero_is_never_used() {
        let root = SecurityContext { run_as_user: Some(0) };
        assert_eq!(run_as_user(Some(&root), 999), 999);
        assert_eq!(run_as_user(Some(&SecurityContext { run_as_user: Some(7) }), 999), 7);
    }
}
