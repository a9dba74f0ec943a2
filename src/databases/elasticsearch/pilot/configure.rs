//! Writes a node's configuration folder and returns the process to start.

use std::{collections::BTreeMap, fs, path::Path};

use tracing::warn;

use super::{access::NodeAccess, data_role, master_role, security, seeds, state::NodeState};
use crate::{
    api::v1beta1::Pilot,
    databases::elasticsearch::{
        facts::{
            NodeSettings, Release, RenderedFiles, SEED_FILE, SecuritySettings, config_hash,
            heap_bytes, render_files,
        },
        v1beta1::ElasticsearchNode,
    },
    engine::heap::MIB,
    pilot::{
        driver::{DatabaseNode, Error, ProcessSpec},
        kube::peers,
        volume::{
            config_files::{copy_stock, write_whole},
            state_file::StateFile,
        },
    },
};

/// Mode of the written files. Users' settings may hold secrets.
const OWN: u32 = 0o600;

/// A rendered configuration that passed every check, not yet on the disk.
struct RenderedConfig {
    state: NodeState,
    release: Release,
    files: RenderedFiles,
    /// Value of the environment variable `ES_JAVA_OPTS`.
    java: String,
    /// Hash of the settings that the process runs with, which may not be the wanted ones.
    config_hash: String,
    security: Option<SecuritySettings>,
}

/// Checks whether [`configure_node`] would accept the intent of `node`. Writes nothing.
pub(super) fn validate_config(node: &DatabaseNode) -> Result<(), Error> {
    render_config(node).map(drop)
}

fn render_config(node: &DatabaseNode) -> Result<RenderedConfig, Error> {
    let mut state = NodeState::load(&node.data)?;
    let spec = &node.pilot.spec;
    let rejection = |error: &dyn std::fmt::Display| Error::ConfigRejected(error.to_string());
    let release = node_release(node)?;
    let heap =
        heap_bytes(spec.jvm.as_ref(), node.memory_limit).map_err(|error| rejection(&error))?;
    let options = spec.jvm.clone().unwrap_or_default().options;
    if let Some(option) = options.iter().find(|option| option.contains(char::is_whitespace)) {
        return Err(rejection(&format!("jvm option {option:?} contains white space")));
    }
    let mut elasticsearch = spec.part::<ElasticsearchNode>().unwrap_or_default();
    let kept_roles = data_role::roles_to_keep(&elasticsearch.roles, &state, release, &node.data);
    let kept_roles =
        kept_roles.or_else(|| master_role::roles_to_keep(&elasticsearch.roles, &state, release));
    state.next_roles = kept_roles.is_some().then(|| elasticsearch.roles.clone());
    state.vote_moved_away &= kept_roles.is_some();
    let config_hash = match &kept_roles {
        None => spec.config_hash.clone().unwrap_or_else(|| config_hash(spec)),
        Some(roles) => {
            elasticsearch.roles.clone_from(roles);
            let mut effective_spec = spec.clone();
            effective_spec.set_part::<ElasticsearchNode>(&elasticsearch);
            config_hash(&effective_spec)
        }
    };
    state.roles = Some(elasticsearch.roles.clone());
    let name = cluster_name(node, &state, elasticsearch.new_cluster_name.as_ref());
    state.cluster_name = Some(name.clone());
    let seed_plan = seeds::choose_seeds(node, release, &state, has_data(&node.data))?;
    let has_security = has_security(&node.home);
    let security = security::desired_security(spec.security.as_ref(), release, has_security)?;
    let files = render_files(&NodeSettings {
        release,
        cluster_name: &name,
        node_name: node_name(node)?,
        roles: &elasticsearch.roles,
        zone: elasticsearch.zone.as_deref(),
        // The founder is alone until other nodes join, which wait for it; then the leading pilot
        // sets the quorum in the running cluster (see `lead_duties`).
        minimum_masters: elasticsearch.minimum_masters.filter(|_| !seed_plan.founds).unwrap_or(1),
        seeds: &seed_plan.seeds,
        founds: seed_plan.founds,
        has_security,
        security,
        address: node.address,
        data: &node.data,
        overlay: &spec.config,
    })
    .map_err(|error| rejection(&error))?;
    let mut java = vec![format!("-Xms{}m -Xmx{}m", heap / MIB, heap / MIB)];
    java.extend(options);
    Ok(RenderedConfig { state, release, files, java: java.join(" "), config_hash, security })
}

/// Writes the configuration folder and returns the process to start, and how to get into it where it
/// is secured. Everything is rendered and
/// validated before the first file is touched, so a rejected intent leaves the running database's
/// folder as it is.
pub(super) fn configure_node(
    node: &DatabaseNode,
) -> Result<(ProcessSpec, Option<NodeAccess>), Error> {
    let RenderedConfig { mut state, release, files, java, config_hash, security } =
        render_config(node)?;
    if let (Some(wanted), Some(kept)) = (&state.next_roles, &state.roles) {
        warn!(?wanted, ?kept, "Keeping the roles until the node's shards and vote have moved away");
    }
    for folder in ["data", "logs"] {
        let path = node.data.join(folder);
        fs::create_dir_all(&path).map_err(|source| Error::Write { path, source })?;
    }
    copy_stock(&node.home.join("config"), &node.config)?;
    for (name, text) in &files {
        write_whole(&node.config.join(name), text.as_bytes(), OWN)?;
    }
    let access =
        security.map(|SecuritySettings { https, .. }| NodeAccess::generate(https)).transpose()?;
    state.address = Some(node.address);
    state.save(&node.data)?;

    let mut env = build_environment(node, release);
    env.insert("ES_JAVA_OPTS".to_owned(), java);
    let process = ProcessSpec {
        program: node.home.join("bin/elasticsearch"),
        args: match release.major {
            5 => vec![format!("-Epath.conf={}", node.config.display())],
            _ => Vec::new(),
        },
        env,
        working_directory: Some(node.home.clone()),
        config_hash,
        ..ProcessSpec::default()
    };
    Ok((process, access))
}

/// Returns the name of the node's cluster: the one that its own data have; else that of the cluster
/// that its peers are in; else that of a new cluster. Releases before 0.3 gave the object's name to
/// each cluster and noted no name.
fn cluster_name(node: &DatabaseNode, state: &NodeState, new_name: Option<&String>) -> String {
    let object = node.pilot.spec.cluster_ref.as_ref().map(|cluster| &cluster.name);
    let name = if has_data(&node.data) {
        state.cluster_name.clone()
    } else {
        let reported_name = |peer: &Pilot| peer.status.part::<ElasticsearchNode>()?.cluster_name;
        peers::cluster_name(&node.pilot, &node.peers, reported_name).or_else(|| new_name.cloned())
    };
    name.or_else(|| object.cloned()).unwrap_or_else(|| "elasticsearch".to_owned())
}

/// Returns environment variables through which the vendor's programs find the node's own
/// configuration.
pub(super) fn build_environment(node: &DatabaseNode, release: Release) -> BTreeMap<String, String> {
    let config = node.config.display();
    let (name, value) = match release.major {
        // 5.x takes its folder as an argument; only the JVM's options are read by this variable.
        5 => ("ES_JVM_OPTIONS", format!("{config}/jvm.options")),
        _ => ("ES_PATH_CONF", config.to_string()),
    };
    BTreeMap::from([(name.to_owned(), value)])
}

pub(super) fn node_release(node: &DatabaseNode) -> Result<Release, Error> {
    let version = node.pilot.spec.version.as_deref().unwrap_or_default();
    version.parse().map_err(|error: crate::databases::elasticsearch::facts::UnsupportedVersion| {
        Error::ConfigRejected(error.to_string())
    })
}

/// Returns the node's name, which is the Pilot's: exclusions and voting go by it.
fn node_name(node: &DatabaseNode) -> Result<&str, Error> {
    let name = node.pilot.metadata.name.as_deref();
    name.ok_or_else(|| Error::ConfigRejected("the Pilot has no name".to_owned()))
}

pub(super) fn has_data(data: &Path) -> bool {
    fs::read_dir(data.join("data")).is_ok_and(|mut entries| entries.next().is_some())
}

/// Does the distribution have a security module? One without it refuses the module's settings.
fn has_security(home: &Path) -> bool {
    ["modules/x-pack-security", "plugins/x-pack"].iter().any(|part| home.join(part).is_dir())
}

/// Writes the addresses of the other nodes into the file that a running node reads again.
pub(super) fn rewrite_seeds(node: &DatabaseNode) -> Result<(), Error> {
    let release = node_release(node)?;
    if !release.reads_seed_file() {
        return Ok(());
    }
    let state = NodeState::load(&node.data)?;
    let text = seeds::choose_seeds(node, release, &state, true)?.seeds.join("\n") + "\n";
    let path = node.config.join(SEED_FILE);
    if fs::read_to_string(&path).is_ok_and(|current| current == text) {
        return Ok(());
    }
    write_whole(&path, text.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1beta1::{ClusterRef, Identity},
        databases::elasticsearch::pilot::tests::node_in,
    };

    #[test]
    fn cluster_keeps_name_of_its_data() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let kind = "ElasticsearchCluster".to_owned();
        node.pilot.spec.cluster_ref = Some(ClusterRef { kind, name: "logs".to_owned() });
        let new = "logs-new".to_owned();
        let name = |node: &DatabaseNode, noted: Option<&str>| {
            let state =
                NodeState { cluster_name: noted.map(str::to_owned), ..NodeState::default() };
            cluster_name(node, &state, Some(&new))
        };
        assert_eq!(name(&node, None), "logs-new", "it founds");
        let mut peer = Pilot::default();
        peer.status.identity =
            Some(Identity { node_id: Some("n2".to_owned()), ..Identity::default() });
        node.peers = vec![peer];
        assert_eq!(name(&node, None), "logs", "a pilot of before reports no name");
        node.peers[0].status.change_part::<ElasticsearchNode>(|part| {
            part.cluster_name = Some("logs-old".to_owned());
        });
        assert_eq!(name(&node, None), "logs-old");
        fs::create_dir_all(node.data.join("data/nodes")).unwrap();
        assert_eq!(name(&node, None), "logs", "data of before have the object's name");
        assert_eq!(name(&node, Some("logs-own")), "logs-own");
    }

    #[test]
    fn name_of_new_cluster_is_written_and_noted() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.may_found = true;
        node.pilot.spec.change_part::<ElasticsearchNode>(|part| {
            part.new_cluster_name = Some("logs-1a2b3c4d".to_owned());
        });
        configure_node(&node).unwrap();
        let text = fs::read_to_string(node.config.join("elasticsearch.yml")).unwrap();
        assert!(text.contains("cluster.name: logs-1a2b3c4d"), "{text}");
        let noted = NodeState::load(&node.data).unwrap().cluster_name;
        assert_eq!(noted.as_deref(), Some("logs-1a2b3c4d"));
    }

    #[test]
    fn a_rejected_intent_touches_nothing() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.may_found = true;
        configure_node(&node).unwrap();
        let before = fs::read_to_string(node.config.join("elasticsearch.yml")).unwrap();
        assert!(before.contains("cluster.initial_master_nodes"), "{before}");
        node.pilot.spec.version = Some("2.4.6".to_owned());
        assert!(matches!(validate_config(&node), Err(Error::ConfigRejected(_))));
        assert!(matches!(configure_node(&node), Err(Error::ConfigRejected(_))));
        assert_eq!(fs::read_to_string(node.config.join("elasticsearch.yml")).unwrap(), before);
    }
}
