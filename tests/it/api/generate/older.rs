//! Random objects of v1alpha1 in canonical form, and random edits of them.

use navigator::{
    api::{cluster_kind::Nothing, pilot_part::PilotParts, v1alpha1::*},
    databases::{
        cassandra::{
            v1alpha1::PilotCassandraSpec,
            v1beta1::{Cassandra, Rack},
        },
        elasticsearch::{
            v1alpha1::{self as of_elasticsearch, PilotElasticsearchSpec, PilotPlugin, Roles},
            v1beta1::Elasticsearch,
        },
    },
};

type ElasticsearchCluster = Cluster<Elasticsearch>;
type ElasticsearchNodePool = NodePool<Elasticsearch>;
type CassandraCluster = Cluster<Cassandra>;
type CassandraNodePool = NodePool<Cassandra>;

use super::{NAMES, Tape, VERSIONS, cluster_status, metadata, pilot_status, resources};
use crate::api::generate::security_context;

pub(in crate::api) fn elasticsearch(tape: &mut Tape<'_>) -> ElasticsearchCluster {
    Cluster {
        metadata: metadata(tape),
        spec: ClusterSpec {
            version: tape.text(VERSIONS),
            node_pools: tape.list(3, elasticsearch_pool, |pool| pool.name.clone()),
            pilot_image: tape.maybe(image),
            image: tape.maybe(image),
            security_context: tape.maybe(security_context).unwrap_or_default(),
            paused: tape.maybe(|tape| tape.chance(50)),
            own: of_elasticsearch::Elasticsearch {
                plugins: tape.texts(3, &["analysis-icu", "p", "q"]),
                minimum_masters: tape.maybe(Tape::int),
            },
        },
        status: cluster_status(tape),
    }
}

fn elasticsearch_pool(tape: &mut Tape<'_>) -> ElasticsearchNodePool {
    NodePool {
        name: tape.text(NAMES),
        replicas: Some(tape.int()),
        own: Roles { roles: tape.texts(3, &["data", "master", "ingest", "data_hot"]) },
        node_selector: tape.map(),
        scheduler_name: tape.maybe(|_| "stork".to_owned()).unwrap_or_default(),
        resources: tape.maybe(resources).unwrap_or_default(),
        persistence: tape.maybe(persistence),
    }
}

pub(in crate::api) fn cassandra(tape: &mut Tape<'_>) -> CassandraCluster {
    Cluster {
        metadata: metadata(tape),
        spec: ClusterSpec {
            version: tape.text(VERSIONS),
            node_pools: tape.list(3, cassandra_pool, |pool| pool.name.clone()),
            pilot_image: tape.maybe(image),
            image: tape.maybe(image),
            security_context: tape.maybe(security_context).unwrap_or_default(),
            paused: tape.maybe(|tape| tape.chance(50)),
            own: Nothing {},
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
        node_selector: tape.map(),
        scheduler_name: tape.maybe(|_| "stork".to_owned()).unwrap_or_default(),
        resources: tape.maybe(resources).unwrap_or_default(),
        persistence: tape.maybe(persistence),
    }
}

pub(in crate::api) fn pilot(tape: &mut Tape<'_>) -> Pilot {
    let block = tape.below(3);
    Pilot {
        metadata: metadata(tape),
        spec: PilotSpec {
            decommission: tape.chance(50),
            parts: match block {
                1 => PilotParts::new("elasticsearch", &elasticsearch_block(tape)),
                2 => PilotParts::new("cassandra", &cassandra_block(tape)),
                _ => PilotParts::default(),
            },
        },
        status: pilot_status(tape),
    }
}

fn elasticsearch_block(tape: &mut Tape<'_>) -> PilotElasticsearchSpec {
    PilotElasticsearchSpec {
        node_pool: tape.text(&["mixed", "", "data"]),
        plugins: tape
            .texts(3, &["analysis-icu", "p", "q"])
            .into_iter()
            .map(|name| PilotPlugin { name })
            .collect(),
    }
}

fn cassandra_block(tape: &mut Tape<'_>) -> PilotCassandraSpec {
    PilotCassandraSpec { node_pool: tape.text(&["mixed", "", "data"]) }
}

fn image(tape: &mut Tape<'_>) -> ImageSpec {
    ImageSpec {
        repository: tape.text(&["docker.io/cassandra", "r"]),
        tag: tape.text(&["5.0.6", "latest", ""]),
        pull_policy: Some(tape.word(&["IfNotPresent", "Always", "Never"])),
    }
}

fn persistence(tape: &mut Tape<'_>) -> Persistence {
    Persistence {
        enabled: tape.maybe(|tape| tape.chance(50)),
        size: tape.maybe(Tape::quantity),
        storage_class: tape.maybe_text(&["fast", ""]),
    }
}

/// Edits a list: drops, replaces, reverses or adds, and keeps the keys apart.
fn edit_list<T, K: PartialEq>(
    tape: &mut Tape<'_>,
    items: &mut Vec<T>,
    make: impl Fn(&mut Tape<'_>) -> T,
    key: impl Fn(&T) -> K,
) {
    if tape.chance(30) && !items.is_empty() {
        items.remove(tape.below(items.len()));
    }
    if tape.chance(30) {
        items.reverse();
    }
    if tape.chance(30) {
        let item = make(tape);
        let at = items.iter().position(|other| key(other) == key(&item));
        match at {
            Some(at) => items[at] = item,
            None => items.insert(tape.below(items.len() + 1), item),
        }
    }
}

fn edit_image(tape: &mut Tape<'_>, image: &mut Option<ImageSpec>) {
    match (tape.below(4), image) {
        (0, _) => {}
        (1, slot) => *slot = tape.maybe(self::image),
        (2, Some(image)) => image.tag = tape.text(&["5.0.6", "latest", ""]),
        (_, Some(image)) => image.pull_policy = Some("Always".to_owned()),
        (_, None) => {}
    }
}

pub(in crate::api) fn edit_elasticsearch(tape: &mut Tape<'_>, object: &mut ElasticsearchCluster) {
    let spec = &mut object.spec;
    edit_image(tape, &mut spec.image);
    edit_image(tape, &mut spec.pilot_image);
    if tape.chance(30) {
        spec.version = tape.text(VERSIONS);
    }
    if tape.chance(30) {
        spec.paused = tape.maybe(|tape| tape.chance(50));
    }
    if tape.chance(30) {
        object.metadata = metadata(tape);
    }
    edit_list(
        tape,
        &mut spec.own.plugins,
        |tape| tape.text(&["analysis-icu", "p", "new"]),
        Clone::clone,
    );
    edit_list(tape, &mut spec.node_pools, elasticsearch_pool, |pool| pool.name.clone());
    for pool in &mut spec.node_pools {
        match tape.below(6) {
            1 => pool.persistence = tape.maybe(persistence),
            2 => pool.node_selector = tape.map(),
            3 => pool.scheduler_name = tape.text(&["", "stork", "other"]),
            4 => pool.replicas = Some(tape.int()),
            5 => pool.resources = resources(tape),
            _ => {}
        }
    }
}

pub(in crate::api) fn edit_cassandra(tape: &mut Tape<'_>, object: &mut CassandraCluster) {
    let spec = &mut object.spec;
    edit_image(tape, &mut spec.image);
    edit_image(tape, &mut spec.pilot_image);
    if tape.chance(30) {
        spec.version = tape.text(VERSIONS);
    }
    if tape.chance(30) {
        spec.security_context = security_context(tape);
    }
    if tape.chance(30) {
        object.metadata = metadata(tape);
    }
    edit_list(tape, &mut spec.node_pools, cassandra_pool, |pool| pool.name.clone());
    for pool in &mut spec.node_pools {
        match tape.below(7) {
            1 => pool.persistence = tape.maybe(persistence),
            2 => pool.node_selector = tape.map(),
            3 => pool.scheduler_name = tape.text(&["", "stork", "other"]),
            4 => pool.replicas = Some(tape.int()),
            5 => pool.resources = resources(tape),
            6 => pool.own.rack = Some(tape.text(NAMES)),
            _ => {}
        }
    }
}

pub(in crate::api) fn edit_pilot(tape: &mut Tape<'_>, object: &mut Pilot) {
    let spec = &mut object.spec;
    if tape.chance(40) {
        spec.decommission = !spec.decommission;
    }
    match tape.below(5) {
        1 => spec.parts = PilotParts::default(),
        2 => spec.parts = PilotParts::new("elasticsearch", &elasticsearch_block(tape)),
        3 => spec.parts = PilotParts::new("cassandra", &cassandra_block(tape)),
        _ => {}
    }
    if let Some(mut block) = spec.parts.get::<PilotElasticsearchSpec>("elasticsearch") {
        let plugin = |tape: &mut Tape<'_>| PilotPlugin { name: tape.text(&["p", "analysis-icu"]) };
        edit_list(tape, &mut block.plugins, plugin, |plugin| plugin.name.clone());
        spec.parts.set("elasticsearch", &block);
    }
    if tape.chance(30) {
        object.metadata = metadata(tape);
    }
}
