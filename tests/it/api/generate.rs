//! Random objects in canonical form, of both versions, from a tape of bytes.
//!
//! proptest makes the tape and shrinks it; a byte of 0, and the end of the tape, mean "absent" or
//! the first choice, so a smaller tape is a smaller object. Every struct is written in full: a
//! new field stops the build here until it is generated.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::ResourceRequirements,
        networking::v1::{IPBlock, NetworkPolicyPeer},
    },
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{Condition, LabelSelector, ObjectMeta, OwnerReference, Time},
        util::intstr::IntOrString,
    },
    jiff::Timestamp,
};
use navigator::{
    api::{cluster_kind::ClusterKind, pilot_part::PilotParts, v1beta1::*},
    databases::{
        cassandra::v1beta1::{
            Cassandra, CassandraBehind, CassandraCleanup, CassandraCluster, CassandraGrant,
            CassandraNodePool, CassandraPeer, CassandraRights, PilotCassandraSpec,
            PilotCassandraStatus, Rack,
        },
        elasticsearch::v1beta1::{
            ApplicationRights, Elasticsearch, ElasticsearchCluster, ElasticsearchNodePool,
            ElasticsearchPlugin, ElasticsearchRights, IndexRights, PilotElasticsearchSpec,
            PilotElasticsearchStatus, PluginStatus, Roles,
        },
    },
};
use serde_json::{Map, Value, json};

pub(super) mod older;

/// Bytes that decide.
pub(super) struct Tape<'a> {
    words: &'a [u64],
    byte: usize,
}

impl<'a> Tape<'a> {
    pub(super) fn new(words: &'a [u64]) -> Self {
        Self { words, byte: 0 }
    }

    fn byte(&mut self) -> usize {
        let word = self.words.get(self.byte / 8).copied().unwrap_or(0);
        let byte = word.to_le_bytes()[self.byte % 8];
        self.byte += 1;
        usize::from(byte)
    }

    /// True in about `percent` of the cases.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.byte() >= 256 - percent * 256 / 100
    }

    pub(super) fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.byte() % choices.len()].clone()
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.byte() % end
    }

    fn text(&mut self, choices: &[&str]) -> String {
        self.pick(choices).to_owned()
    }

    pub(super) fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.chance(50).then(|| make(self))
    }

    fn maybe_text(&mut self, choices: &[&str]) -> Option<String> {
        self.maybe(|tape| tape.text(choices))
    }

    /// A list of up to `most` items without equal ones, by the key of each.
    pub(super) fn list<T, K: PartialEq>(
        &mut self,
        most: usize,
        make: impl Fn(&mut Self) -> T,
        key: impl Fn(&T) -> K,
    ) -> Vec<T> {
        let mut items: Vec<T> = Vec::new();
        for _ in 0..self.below(most + 1) {
            let item = make(self);
            if items.iter().all(|other| key(other) != key(&item)) {
                items.push(item);
            }
        }
        items
    }

    pub(super) fn texts(&mut self, most: usize, choices: &[&str]) -> Vec<String> {
        self.list(most, |tape| tape.text(choices), Clone::clone)
    }

    pub(super) fn map(&mut self) -> BTreeMap<String, String> {
        let pair = |tape: &mut Self| (tape.text(&["disk", "app", "x/y"]), tape.text(&["", "ssd"]));
        self.list(2, pair, |(key, _)| key.clone()).into_iter().collect()
    }

    fn int(&mut self) -> i32 {
        self.pick(&[0, 1, 3, 7, 1000, i32::MAX])
    }

    fn long(&mut self) -> i64 {
        self.pick(&[0, 1, 999, 1000, 1 << 40, i64::MAX])
    }

    fn time(&mut self) -> Time {
        let seconds = self.pick(&[0, 1_506_884_400, 1_795_168_804, 4_102_444_800]);
        Time(Timestamp::from_second(seconds).unwrap())
    }

    /// A quantity, written in ways that mean the same and must not be rewritten.
    fn quantity(&mut self) -> Quantity {
        Quantity(self.text(&["1Gi", "1024Mi", "1073741824", "0.5", "500m", "1e9", "not-a-size"]))
    }

    /// A value of an open list: known, or one that a newer server knows.
    fn word(&mut self, known: &[&str]) -> String {
        if self.chance(15) { "FromTheFuture".to_owned() } else { self.text(known) }
    }
}

const NAMES: &[&str] = &["a", "b", "data", "master-0", "c.d"];
const VERSIONS: &[&str] = &["5.0.6", "3.11", "4.1-beta1", "8.19.4", "", "v?"];
const SENTENCES: &[&str] = &["", "5 of 9 nodes run 8.19.4", "“quoted” \\ and\nbroken"];

pub(super) fn metadata(tape: &mut Tape<'_>) -> ObjectMeta {
    let non_empty = |map: BTreeMap<String, String>| Some(map).filter(|map| !map.is_empty());
    ObjectMeta {
        name: Some(tape.text(&["logs", "shop", "es-demo-data-0"])),
        namespace: tape.maybe_text(&["default", "logging"]),
        labels: non_empty(tape.map()),
        annotations: non_empty(tape.map()),
        uid: tape.maybe_text(&["5d0c7a1e-0000-4000-8000-000000000000"]),
        resource_version: tape.maybe_text(&["7"]),
        generation: tape.maybe(|tape| tape.pick(&[1, 7])),
        creation_timestamp: tape.maybe(Tape::time),
        finalizers: tape.maybe(|_| vec!["navigator.jetstack.io/teardown".to_owned()]),
        owner_references: tape.maybe(|_| {
            vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name: "p".into(),
                uid: "u".into(),
                block_owner_deletion: None,
                controller: Some(true),
            }]
        }),
        ..ObjectMeta::default()
    }
}

pub(super) fn elasticsearch(tape: &mut Tape<'_>) -> ElasticsearchCluster {
    Cluster {
        metadata: metadata(tape),
        spec: ClusterSpec {
            version: tape.text(VERSIONS),
            node_pools: tape.list(3, elasticsearch_pool, |pool| pool.name.clone()),
            image: tape.maybe(image),
            pilot_image: tape.maybe(image),
            paused: tape.maybe(|tape| tape.chance(50)),
            stopped: tape.maybe(|tape| tape.chance(50)),
            restarted_at: tape.maybe(Tape::time),
            security_context: tape.maybe(security_context),
            own: Elasticsearch {
                plugins: tape.list(3, plugin, |plugin| plugin.name.clone()),
                minimum_masters: tape.maybe(Tape::int),
            },
            config: config(tape),
            jvm: tape.maybe(jvm).filter(|jvm| *jvm != Jvm::default()),
            pod_template: pod_template(tape),
            update_strategy: tape
                .maybe(update_strategy)
                .filter(|s| *s != UpdateStrategy::default()),
            services: tape.maybe(services),
            security: Some(security_of(tape, elasticsearch_rights)),
            pilot_settings: tape.maybe(pilot_settings),
        },
        status: cluster_status(tape),
    }
}

fn elasticsearch_pool(tape: &mut Tape<'_>) -> ElasticsearchNodePool {
    NodePool {
        name: tape.text(NAMES),
        replicas: Some(tape.int()),
        own: Roles { roles: tape.texts(3, &["data", "master", "ingest", "data_hot"]) },
        zone: tape.maybe_text(&["eu-west-1a", ""]),
        resources: tape.maybe(resources).filter(|r| *r != ResourceRequirements::default()),
        persistence: tape.maybe(persistence),
        restarted_at: tape.maybe(Tape::time),
        config: config(tape),
        jvm: tape.maybe(jvm).filter(|jvm| *jvm != Jvm::default()),
        pod_template: pod_template(tape),
    }
}

pub(super) fn cassandra(tape: &mut Tape<'_>) -> CassandraCluster {
    Cluster {
        metadata: metadata(tape),
        spec: ClusterSpec {
            version: tape.text(VERSIONS),
            node_pools: tape.list(3, cassandra_pool, |pool| pool.name.clone()),
            image: tape.maybe(image),
            pilot_image: tape.maybe(image),
            paused: tape.maybe(|tape| tape.chance(50)),
            stopped: tape.maybe(|tape| tape.chance(50)),
            restarted_at: tape.maybe(Tape::time),
            security_context: tape.maybe(security_context),
            own: Cassandra {
                cluster_name: tape.maybe_text(NAMES),
                num_tokens: tape.maybe(Tape::int),
                additional_seeds: tape.texts(2, NAMES),
            },
            config: config(tape),
            jvm: tape.maybe(jvm).filter(|jvm| *jvm != Jvm::default()),
            pod_template: pod_template(tape),
            update_strategy: tape
                .maybe(update_strategy)
                .filter(|s| *s != UpdateStrategy::default()),
            services: tape.maybe(services),
            security: Some(security_of(tape, cassandra_rights)),
            pilot_settings: tape.maybe(pilot_settings),
        },
        status: cluster_status(tape),
    }
}

fn cassandra_pool(tape: &mut Tape<'_>) -> CassandraNodePool {
    NodePool {
        name: tape.text(NAMES),
        replicas: Some(tape.int()),
        own: Rack {
            datacenter: Some(tape.text(&["navigator-default-datacenter", "eu"])),
            rack: Some(tape.text(NAMES)),
        },
        zone: tape.maybe_text(&["eu-west-1a", ""]),
        resources: tape.maybe(resources).filter(|r| *r != ResourceRequirements::default()),
        persistence: tape.maybe(persistence),
        restarted_at: tape.maybe(Tape::time),
        config: config(tape),
        jvm: tape.maybe(jvm).filter(|jvm| *jvm != Jvm::default()),
        pod_template: pod_template(tape),
    }
}

pub(super) fn pilot(tape: &mut Tape<'_>) -> Pilot {
    let block = tape.below(3);
    Pilot {
        metadata: metadata(tape),
        spec: PilotSpec {
            cluster_ref: tape.maybe(|tape| ClusterRef {
                kind: tape.word(&["ElasticsearchCluster", "CassandraCluster"]),
                name: tape.text(NAMES),
            }),
            node_pool: tape.maybe_text(NAMES),
            phase: Some(tape.word(PilotIntent::KNOWN).into()),
            version: tape.maybe_text(VERSIONS),
            config_hash: tape.maybe_text(&["5f2c1e9a7b3d4c60"]),
            restarted_at: tape.maybe(Tape::time),
            restart_for: tape.maybe_text(&["5f2c1e9a7b3d4c60"]),
            pilot_update: tape.maybe(|tape| tape.word(&["InPlace", "OnRestart", "Never"])),
            pilot_settings: tape.maybe(pilot_settings),
            forget: tape.texts(2, &["c2Vx", "b7"]),
            unsafe_bootstrap: tape.maybe_text(&["3tTwXe2kQYmn0p1Gd2oPZA"]),
            security: tape.maybe(pilot_security),
            config: config(tape),
            jvm: tape.maybe(jvm).filter(|jvm| *jvm != Jvm::default()),
            parts: match block {
                1 => PilotParts::new(
                    "elasticsearch",
                    &PilotElasticsearchSpec {
                        new_cluster_name: tape.maybe_text(NAMES),
                        roles: tape.texts(3, &["data", "master", "ingest"]),
                        zone: tape.maybe_text(&["eu-west-1a"]),
                        minimum_masters: tape.maybe(Tape::int),
                        plugins: tape.list(3, plugin, |plugin| plugin.name.clone()),
                    },
                ),
                2 => PilotParts::new(
                    "cassandra",
                    &PilotCassandraSpec {
                        cluster_name: tape.maybe_text(NAMES),
                        new_cluster_name: tape.maybe_text(NAMES),
                        datacenter: tape.maybe_text(NAMES),
                        rack: tape.maybe_text(NAMES),
                        num_tokens: tape.maybe(Tape::int),
                        additional_seeds: tape.texts(2, NAMES),
                    },
                ),
                _ => PilotParts::default(),
            },
        },
        status: pilot_status(tape),
    }
}

fn image(tape: &mut Tape<'_>) -> ImageSpec {
    ImageSpec {
        repository: tape.text(&["docker.io/cassandra", "r"]),
        tag: tape.maybe_text(&["5.0.6", "latest"]),
        digest: tape.maybe(|tape| format!("sha256:{}", tape.pick(&["ab", "cd"]).repeat(32))),
        pull_policy: Some(tape.word(&["IfNotPresent", "Always", "Never"])),
    }
}

fn security_context(tape: &mut Tape<'_>) -> SecurityContext {
    SecurityContext { run_as_user: Some(tape.long()) }
}

fn plugin(tape: &mut Tape<'_>) -> ElasticsearchPlugin {
    ElasticsearchPlugin {
        name: tape.text(&["analysis-icu", "io.fabric8:elasticsearch-cloud-kubernetes:5.2.2", "p"]),
        sha512: tape.maybe_text(&["9c56cc51", "00"]),
    }
}

fn config(tape: &mut Tape<'_>) -> Config {
    let choices = [
        json!({}),
        json!({"a.b": "80mb", "nested": {"list": [1, "x", null], "gone": null}}),
        json!({"concurrent_reads": 32}),
    ];
    let Value::Object(config) = tape.pick(&choices) else { unreachable!("all are objects") };
    config
}

fn jvm(tape: &mut Tape<'_>) -> Jvm {
    Jvm { heap: tape.maybe(Tape::quantity), options: tape.texts(2, &["-Xlog:gc", "-XX:+UseG1GC"]) }
}

/// What the older form has (node selector, scheduler), and what it has not, alone and mixed.
fn pod_template(tape: &mut Tape<'_>) -> PodTemplate {
    let mut template = Map::new();
    if tape.chance(25) {
        template.insert("metadata".into(), json!({"labels": {"team": "search"}}));
    }
    let mut spec = Map::new();
    if tape.chance(35) {
        spec.insert("nodeSelector".into(), json!({"disk": "ssd"}));
    }
    if tape.chance(35) {
        spec.insert("schedulerName".into(), "stork".into());
    }
    if tape.chance(25) {
        spec.insert("tolerations".into(), json!([{"key": "databases", "operator": "Exists"}]));
    }
    if !spec.is_empty() {
        template.insert("spec".into(), spec.into());
    }
    template
}

fn update_strategy(tape: &mut Tape<'_>) -> UpdateStrategy {
    UpdateStrategy {
        type_: tape.maybe(|tape| tape.word(&["RollingUpdate", "OnDelete"])),
        max_unavailable: tape
            .maybe(|tape| tape.pick(&[IntOrString::Int(2), IntOrString::String("25%".into())])),
        restart: tape.maybe(|tape| tape.word(&["InPlace", "Recreate"])),
        pilot_update: tape.maybe(|tape| tape.word(&["InPlace", "OnRestart", "Never"])),
        canary: tape
            .maybe(|tape| Canary { node_pools: tape.texts(2, NAMES), replicas: tape.int() }),
        skip_predicates: tape.texts(2, &["*", "PeersUp", "QuorumKept"]),
        progress_deadline_seconds: tape.maybe(Tape::int),
    }
}

fn pilot_settings(tape: &mut Tape<'_>) -> PilotSettings {
    PilotSettings {
        silence_limit_seconds: Some(tape.int()),
        allow_low_limits: tape.maybe(|tape| tape.below(2) == 1),
    }
}

fn services(tape: &mut Tape<'_>) -> Services {
    Services {
        client: Some(ServiceTemplate {
            type_: tape.maybe(|tape| tape.word(&["ClusterIP", "LoadBalancer"])),
            labels: tape.map(),
            annotations: tape.map(),
            load_balancer_class: tape.maybe_text(&["internal"]),
            load_balancer_source_ranges: tape.texts(2, &["10.0.0.0/8", "::/0"]),
            external_traffic_policy: tape.maybe(|tape| tape.word(&["Cluster", "Local"])),
        }),
    }
}

/// What is said of security, with roles.
fn security_of<K: ClusterKind>(
    tape: &mut Tape<'_>,
    rights: fn(&mut Tape<'_>) -> K::Role,
) -> DatabaseSecurity<K> {
    let role = |tape: &mut Tape<'_>| DatabaseRole { name: tape.text(NAMES), rights: rights(tape) };
    DatabaseSecurity {
        shared: security(tape),
        roles: tape.list(2, role, |role: &DatabaseRole<K>| role.name.clone()),
    }
}

fn elasticsearch_rights(tape: &mut Tape<'_>) -> ElasticsearchRights {
    let index = |tape: &mut Tape<'_>| IndexRights {
        names: tape.texts(2, &["shop-*", "logs"]),
        privileges: tape.texts(2, &["read", "write"]),
        allow_restricted_indices: tape.maybe(|tape| tape.chance(50)),
    };
    let application = |tape: &mut Tape<'_>| ApplicationRights {
        application: tape.text(&["kibana-.kibana", ""]),
        privileges: tape.texts(2, &["all", "read"]),
        resources: tape.texts(2, &["*", "space:default"]),
    };
    ElasticsearchRights {
        cluster: tape.texts(2, &["monitor", "manage_ilm"]),
        indices: tape.list(2, index, Clone::clone),
        applications: tape.list(2, application, Clone::clone),
        run_as: tape.texts(2, &["app", "*"]),
    }
}

fn cassandra_rights(tape: &mut Tape<'_>) -> CassandraRights {
    let grant = |tape: &mut Tape<'_>| CassandraGrant {
        permissions: tape.texts(2, &["SELECT", "ALL"]),
        keyspace: tape.text(&["shop", "*", ""]),
        table: tape.maybe_text(&["orders"]),
    };
    CassandraRights { grants: tape.list(2, grant, Clone::clone) }
}

/// What is said of security by all; of encryption and logins something always is.
fn security(tape: &mut Tape<'_>) -> ClusterSecurity {
    let peers = |tape: &mut Tape<'_>| {
        let labels = |tape: &mut Tape<'_>| LabelSelector {
            match_labels: tape.maybe(Tape::map),
            match_expressions: None,
        };
        let peer = |tape: &mut Tape<'_>| NetworkPolicyPeer {
            ip_block: tape.maybe(|tape| IPBlock {
                cidr: tape.text(&["10.0.0.0/8", "::/0"]),
                except: tape.maybe(|tape| tape.texts(1, &["10.1.0.0/16"])),
            }),
            namespace_selector: tape.maybe(labels),
            pod_selector: tape.maybe(labels),
        };
        tape.list(2, peer, Clone::clone)
    };
    let filled = ClusterSecurity {
        mode: tape.maybe(|tape| tape.word(SecurityMode::KNOWN).into()),
        internode: tape.maybe(|tape| InternodeSecurity {
            tls: Some(tape.word(InternodeTls::KNOWN).into()),
            ca_secret: tape.maybe(|tape| SecretName { name: tape.text(NAMES) }),
            trust: tape.list(2, trust, Clone::clone),
        }),
        client: tape
            .maybe(|tape| ClientSecurity {
                tls: tape.maybe(|tape| tape.word(ClientTls::KNOWN).into()),
                ca_secret: tape.maybe(|tape| SecretName { name: tape.text(NAMES) }),
                client_auth: tape.maybe(|tape| tape.word(ClientAuth::KNOWN).into()),
                client_ca: tape.maybe(trust),
                certificate_secret: tape.maybe(|tape| SecretName { name: tape.text(NAMES) }),
                alt_names: tape.texts(2, &["db.example.org", "10.0.0.1"]),
            })
            .filter(|client| *client != ClientSecurity::default()),
        authentication: tape.maybe(|tape| tape.word(Authentication::KNOWN).into()),
        admin_secret: tape.maybe(|tape| SecretName { name: tape.text(NAMES) }),
        users: tape.list(2, user, |user| user.name.clone()),
        certificates: tape
            .maybe(|tape| CertificateSettings {
                duration: tape.maybe_text(&["2160h", "10m"]),
                renewed_at: tape.maybe(Tape::time),
                keys_renewed_at: tape.maybe(Tape::time),
                ca_rotated_at: tape.maybe(Tape::time),
                ca_overlap: tape.maybe_text(&["24h", "0s"]),
            })
            .filter(|settings| *settings != CertificateSettings::default()),
        metrics: tape
            .maybe(|tape| MetricsSecurity { tls: Some(tape.word(MetricsTls::KNOWN).into()) }),
        network: None,
    };
    let network = NetworkAccess {
        policy: Some(tape.word(&["Managed", "None"])),
        clients: peers(tape),
        monitoring: peers(tape),
        internode: peers(tape),
    };
    let mut security = match tape.below(3) {
        0 => ClusterSecurity::default(),
        1 => filled,
        _ => ClusterSecurity { network: Some(network), ..filled },
    };
    if security.is_unset() {
        security.mode = Some(SecurityMode::Open);
    }
    security
}

fn authority(tape: &mut Tape<'_>) -> AuthorityStatus {
    AuthorityStatus {
        usage: tape.word(&["Internode", "Client"]),
        sha256: tape.text(&["9f2c", ""]),
        not_after: tape.maybe(Tape::time),
        source: tape.word(&["Managed", "Secret"]),
        phase: tape.word(&["Current", "Spreading", "Signing", "Retiring"]),
    }
}

fn user_status(tape: &mut Tape<'_>) -> UserStatus {
    UserStatus {
        name: tape.text(NAMES),
        secret: tape.text(NAMES),
        state: tape.word(&["Applied", "Pending", "Failed"]),
        message: tape.maybe_text(&["Secret s is not there"]),
    }
}

fn trust(tape: &mut Tape<'_>) -> TrustSource {
    TrustSource {
        kind: tape.word(TrustKind::KNOWN).into(),
        name: tape.text(NAMES),
        key: tape.maybe_text(&["internode-ca.crt", ""]),
    }
}

fn user(tape: &mut Tape<'_>) -> DatabaseUser {
    DatabaseUser {
        name: tape.text(NAMES),
        password_secret: tape.maybe(|tape| SecretKey {
            name: tape.text(NAMES),
            key: tape.maybe_text(&["password", "secret"]),
        }),
        superuser: tape.maybe(|tape| tape.chance(50)),
        roles: tape.texts(2, &["viewer", "kibana_system"]),
    }
}

const PEM: &[&str] = &["-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", ""];

fn pilot_security(tape: &mut Tape<'_>) -> PilotSecurity {
    let certificate = |tape: &mut Tape<'_>| NodeCertificate {
        chain: tape.text(PEM),
        trust: tape.text(PEM),
        mounted_key: tape.maybe_text(&["9f2c"]),
        clients: tape.maybe_text(PEM),
    };
    PilotSecurity {
        internode: tape.word(InternodeTls::KNOWN).into(),
        client: tape.word(ClientTls::KNOWN).into(),
        authentication: tape.word(Authentication::KNOWN).into(),
        key: tape.maybe(|tape| SignedKey {
            sha256: tape.text(&["9f2c", ""]),
            volume: tape.text(NAMES),
            since: tape.maybe(Tape::time),
        }),
        new_key_at: tape.maybe(Tape::time),
        closes_logins: tape.chance(50),
        internode_certificate: tape.maybe(certificate),
        client_certificate: tape.maybe(certificate),
        users: tape.maybe_text(&["4f0c1e9a7b3d4c60"]),
        client_auth: tape.maybe(|tape| tape.word(ClientAuth::KNOWN).into()),
        metrics: tape.maybe(|tape| tape.word(MetricsTls::KNOWN).into()),
    }
}

fn rungs(tape: &mut Tape<'_>) -> SecurityRungs {
    SecurityRungs {
        internode: tape.word(InternodeTls::KNOWN).into(),
        client: tape.word(ClientTls::KNOWN).into(),
        authentication: tape.word(Authentication::KNOWN).into(),
    }
}

fn pilot_security_status(tape: &mut Tape<'_>) -> PilotSecurityStatus {
    let served = |tape: &mut Tape<'_>| ServedCertificate {
        sha256: tape.text(&["9f2c", ""]),
        not_before: tape.maybe(Tape::time),
        not_after: tape.maybe(Tape::time),
        authority: tape.maybe_text(&["4f0c", "9f2c"]),
        trust: tape.texts(2, &["4f0c", "9f2c"]),
    };
    PilotSecurityStatus {
        stored: tape.maybe_text(&["5f2c1e9a7b3d4c60"]),
        request: tape.maybe(|tape| CertificateRequest {
            csr: tape.text(&["-----BEGIN CERTIFICATE REQUEST-----\nMIIB\n", ""]),
            reason: tape.word(RequestReason::KNOWN).into(),
            new_key: tape.maybe(|tape| NewKeyRequest {
                csr: tape.text(&["-----BEGIN CERTIFICATE REQUEST-----\nMIIB\n", ""]),
                proof: tape.text(&["MEUCIQ==", ""]),
                asked_at: tape.maybe(Tape::time),
            }),
        }),
        internode: tape.maybe(served),
        client: tape.maybe(served),
        users: tape.maybe_text(&["4f0c1e9a7b3d4c60"]),
        rungs: tape.maybe(rungs),
        clients: tape.maybe(|tape| ClientConnections {
            tls: i32::try_from(tape.below(3)).unwrap(),
            plain: i32::try_from(tape.below(3)).unwrap(),
            plain_from: tape.texts(2, &["10.0.0.7", ""]),
        }),
    }
}

pub(super) fn resources(tape: &mut Tape<'_>) -> ResourceRequirements {
    let amounts = |tape: &mut Tape<'_>| -> BTreeMap<String, Quantity> {
        let pair = |tape: &mut Tape<'_>| (tape.text(&["cpu", "memory"]), tape.quantity());
        tape.list(2, pair, |(name, _)| name.clone()).into_iter().collect()
    };
    ResourceRequirements {
        claims: None,
        limits: tape.maybe(amounts),
        requests: tape.maybe(amounts),
    }
}

fn persistence(tape: &mut Tape<'_>) -> Persistence {
    Persistence {
        enabled: tape.maybe(|tape| tape.chance(50)),
        size: tape.maybe(Tape::quantity),
        storage_class: tape.maybe_text(&["fast", ""]),
        labels: tape.map(),
        annotations: tape.map(),
        retention: tape
            .maybe(|tape| Retention {
                when_scaled: tape.maybe(|tape| tape.word(&["Delete", "Retain"])),
                when_deleted: tape.maybe(|tape| tape.word(&["Delete", "Retain"])),
            })
            .filter(|retention| *retention != Retention::default()),
    }
}

fn conditions(tape: &mut Tape<'_>) -> Vec<Condition> {
    let condition = |tape: &mut Tape<'_>| Condition {
        type_: tape.text(&["Ready", "Progressing", "Decommissioned"]),
        status: tape.word(&["True", "False", "Unknown"]),
        reason: tape.text(&["AllNodesReady", ""]),
        message: tape.text(SENTENCES),
        last_transition_time: tape.time(),
        observed_generation: tape.maybe(|tape| tape.pick(&[1, 7])),
    };
    tape.list(2, condition, |condition| condition.type_.clone())
}

fn operation(tape: &mut Tape<'_>) -> Operation {
    Operation {
        id: tape.text(&["7-upgrade", ""]),
        type_: tape.word(&["Upgrade", "ScaleDown"]),
        phase: tape.word(&["Pending", "Blocked", "Done"]),
        start_time: tape.maybe(Tape::time),
        completion_time: tape.maybe(Tape::time),
        message: tape.maybe_text(SENTENCES),
        steps: (0..tape.below(3))
            .map(|_| OperationStep {
                name: tape.word(&["RestartPilot", "DrainPilot"]),
                pilot: tape.maybe_text(NAMES),
                phase: tape.word(&["Pending", "Running"]),
                message: tape.maybe_text(SENTENCES),
                start_time: tape.maybe(Tape::time),
                last_progress_time: tape.maybe(Tape::time),
                completion_time: tape.maybe(Tape::time),
            })
            .collect(),
        blocked_by: (0..tape.below(3))
            .map(|_| BlockedBy {
                predicate: tape.word(&["PeersUp", "QuorumKept"]),
                step: tape.maybe_text(&["RestartPilot/a"]),
                since: tape.maybe(Tape::time),
                message: tape.maybe_text(SENTENCES),
                hint: tape.maybe_text(SENTENCES),
            })
            .collect(),
    }
}

pub(super) fn cluster_status(tape: &mut Tape<'_>) -> ClusterStatus {
    let pool = |tape: &mut Tape<'_>| NodePoolStatus {
        replicas: tape.maybe(Tape::int),
        ready_replicas: tape.long(),
        updated_replicas: tape.maybe(Tape::int),
        version: tape.maybe_text(VERSIONS),
        selector: tape.maybe_text(&["a=b"]),
        storage: tape.maybe(|tape| StorageStatus {
            requested: tape.maybe(Tape::quantity),
            smallest: tape.maybe(Tape::quantity),
        }),
        topology: tape.maybe(Tape::map),
    };
    ClusterStatus {
        security: tape.maybe(|tape| ClusterSecurityStatus {
            rungs: tape.maybe(rungs),
            admin_secret: tape.maybe_text(&["es-x-admin"]),
            ca_config_map: tape.maybe_text(&["es-x-ca"]),
            next_expiry: tape.maybe(|tape| CertificateExpiry {
                pilot: "es-x-a-0".to_owned(),
                not_after: tape.maybe(Tape::time),
            }),
            certificate_authorities: tape.list(2, authority, Clone::clone),
            users: tape.list(2, user_status, Clone::clone),
        }),
        binding: tape.maybe(|_| SecretName { name: "es-x-admin".to_owned() }),
        observed_generation: tape.maybe(|tape| tape.pick(&[1, 7])),
        phase: tape.maybe(|tape| tape.word(&["Running", "Updating"])),
        health: tape.maybe(|tape| tape.word(Health::KNOWN).into()),
        cluster_name: tape.maybe_text(NAMES),
        version: tape.maybe_text(VERSIONS),
        versions: tape.list(
            2,
            |tape| VersionCount { version: tape.text(VERSIONS), replicas: tape.int() },
            |count| count.version.clone(),
        ),
        cluster_id: tape.maybe_text(&["7Lk3xQ0pTq2u2yZ0m1mXkg"]),
        leader: tape.maybe_text(NAMES),
        image: tape.maybe_text(&["docker.io/cassandra:5.0.6"]),
        pilot_image: tape.maybe_text(&["quay.io/jetstack/navigator:v0.2.0"]),
        minimum_masters: tape.maybe(Tape::int),
        replicas: tape.maybe(Tape::int),
        ready_replicas: tape.maybe(Tape::int),
        node_pools: tape
            .list(2, |tape| (tape.text(NAMES), pool(tape)), |(name, _)| name.clone())
            .into_iter()
            .collect(),
        operation: tape.maybe(operation),
        last_operation: tape.maybe(operation),
        conditions: conditions(tape),
    }
}

pub(super) fn pilot_status(tape: &mut Tape<'_>) -> PilotStatus {
    PilotStatus {
        observed_generation: tape.maybe(|tape| tape.pick(&[1, 7])),
        phase: tape.maybe(|tape| tape.word(PilotPhase::KNOWN).into()),
        last_heartbeat_time: tape.maybe(Tape::time),
        pilot_version: tape.maybe_text(&["v0.2.0"]),
        pilot_program: tape.maybe_text(&["1312d00-1763719210.123456789"]),
        config_hash: tape.maybe_text(&["5f2c1e9a7b3d4c60"]),
        started_for: tape.maybe_text(&["5f2c1e9a7b3d4c60"]),
        version: tape.maybe_text(VERSIONS),
        health: tape.maybe(|tape| tape.word(Health::KNOWN).into()),
        blockers: (0..tape.below(3))
            .map(|_| Blocker {
                predicate: tape.word(&["ShardCopyElsewhere", "PeersUp"]),
                against: tape.list(
                    2,
                    |tape| tape.word(NodeChange::KNOWN).into(),
                    NodeChange::clone,
                ),
                message: tape.text(SENTENCES),
                since: tape.maybe(Tape::time),
                observed_time: tape.maybe(Tape::time),
            })
            .collect(),
        identity: tape.maybe(|tape| Identity {
            cluster_id: tape.maybe_text(&["7Lk3xQ0pTq2u2yZ0m1mXkg"]),
            node_id: tape.maybe_text(&["c2Vx"]),
            since: tape.maybe(Tape::time),
            ring_id: tape.maybe_text(&["5d0c7a1e"]),
        }),
        instance: tape.maybe(|tape| Instance {
            runtime: tape.word(&["Kubernetes", "Process"]),
            node: tape.maybe_text(NAMES),
            uid: tape.maybe_text(NAMES),
        }),
        endpoints: tape.list(
            2,
            |tape| Endpoint {
                name: tape.text(&["client", "transport"]),
                host: tape.text(&["10.2.1.7", "::1"]),
                port: tape.pick(&[9042, 9200]),
            },
            |endpoint| endpoint.name.clone(),
        ),
        process: tape.maybe(|tape| Process {
            pid: tape.int(),
            start_time: tape.maybe(Tape::time),
            restarts: tape.int(),
        }),
        last_termination: tape.maybe(|tape| Termination {
            exit_code: tape.maybe(Tape::int),
            signal: tape.maybe_text(&["SIGKILL"]),
            reason: tape.maybe(|tape| tape.word(&["OutOfMemory"])),
            message: tape.maybe_text(SENTENCES),
            start_time: tape.maybe(Tape::time),
            finish_time: tape.maybe(Tape::time),
            log_tail: (0..tape.below(3)).map(|_| tape.text(SENTENCES)).collect(),
        }),
        storage: tape.maybe(|tape| PilotStorage {
            path: tape.text(&["/var/lib/cassandra"]),
            capacity_bytes: tape.long(),
            used_bytes: tape.long(),
            contents: (0..tape.below(3))
                .map(|_| VolumeShare {
                    what: tape.text(&["data", "snapshots"]),
                    bytes: tape.long(),
                })
                .collect(),
            full_time: tape.maybe(Tape::time),
        }),
        forgotten: tape.list(
            2,
            |tape| ForgottenNode {
                node_id: tape.text(&["c2Vx", "b7"]),
                phase: tape.word(ForgetPhase::KNOWN).into(),
                message: tape.maybe_text(SENTENCES),
            },
            |one| one.node_id.clone(),
        ),
        decommission: tape.maybe(|tape| Decommission {
            start_time: tape.maybe(Tape::time),
            percent: tape.maybe(Tape::int),
            bytes_left: tape.maybe(Tape::long),
            shards_left: tape.maybe(Tape::int),
            documents_left: tape.maybe(Tape::long),
            irreversible: tape.chance(50),
            message: tape.maybe_text(SENTENCES),
        }),
        parts: {
            let mut parts = PilotParts::default();
            if tape.chance(50) {
                parts.set(
                    "elasticsearch",
                    &PilotElasticsearchStatus {
                        cluster_name: tape.maybe_text(NAMES),
                        documents: tape.maybe(Tape::long),
                        version: tape.maybe_text(VERSIONS),
                        elected_master: tape.maybe(|tape| tape.chance(50)),
                        plugins: tape.list(
                            2,
                            |tape| PluginStatus {
                                name: tape.text(NAMES),
                                status: tape.maybe(|tape| tape.word(&["Unknown", "Installed"])),
                                version: tape.maybe_text(VERSIONS),
                                message: tape.maybe_text(SENTENCES),
                            },
                            |plugin| plugin.name.clone(),
                        ),
                    },
                );
            }
            if tape.chance(50) {
                parts.set(
                    "cassandra",
                    &PilotCassandraStatus {
                        cluster_name: tape.maybe_text(NAMES),
                        version: tape.maybe_text(VERSIONS),
                        operation_mode: tape.maybe(|tape| tape.word(&["NORMAL", "JOINING"])),
                        joined: tape.maybe(|tape| tape.chance(50)),
                        tokens: tape.maybe(Tape::int),
                        load_bytes: tape.maybe(Tape::long),
                        replication_factor: tape.maybe(Tape::int),
                        bootstrap_bytes_received: tape.maybe(Tape::long),
                        unreachable: tape.maybe(|tape| {
                            let peer = |tape: &mut Tape<'_>| CassandraPeer {
                                address: tape.text(&["10.0.0.7", "fd00::7"]),
                                host_id: tape.maybe_text(NAMES),
                                datacenter: tape.maybe_text(NAMES),
                                rack: tape.maybe_text(NAMES),
                            };
                            tape.list(2, peer, |peer| peer.address.clone())
                        }),
                        cleanup: tape.maybe(|tape| CassandraCleanup {
                            request: tape.text(NAMES),
                            phase: tape.word(&["Waiting", "Running", "Done", "Failed"]),
                            keyspaces_done: tape.int(),
                            keyspaces: tape.maybe(Tape::int),
                            message: tape.maybe_text(SENTENCES),
                        }),
                        behind: tape.maybe(|tape| CassandraBehind {
                            since: tape.time(),
                            away_since: tape.maybe(Tape::time),
                        }),
                    },
                );
            }
            parts
        },
        security: tape.maybe(pilot_security_status),
        conditions: conditions(tape),
    }
}
