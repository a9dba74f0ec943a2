//! Writes a node's configuration folder and returns the process to start.
//!
//! Relies only on what the vendor's own launcher reads. The folder is complete: the vendor's files
//! first (`cassandra-env.sh` and what it sources), Navigator's over them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    time::SystemTime,
};

use k8s_openapi::jiff::Timestamp;

use super::{
    access::{self, NodeAccess},
    data_resurrection,
    held_ranges::HeldRanges,
    jmx_login,
    resolved_spec::{ResolvedSpec, in_datacenter},
    ring_presence::RingPresence,
    security,
    seeds::{self, SeedPlan},
    state::{NodeState, has_data},
};
use crate::{
    api::v1beta1::{ClientTls, InternodeTls, Pilot},
    databases::cassandra::{
        facts::{
            NodeSettings, RenderedFiles, SecuritySettings, choose_collector, config_hash,
            render_files, seed_provider,
        },
        v1beta1::CassandraNode,
    },
    engine::heap::MIB,
    pilot::{
        clients::jolokia::{self, JolokiaClient},
        driver::{DatabaseNode, Error, ProcessSpec},
        kube::peers::{is_decommissioned, is_ready, was_member},
        node::preflight::read_space,
        tls::TLS_FOLDER,
        volume::{
            config_files::{lay_out, rewrite_key},
            state_file::StateFile,
        },
    },
};

/// Folders of the volume that Cassandra writes to.
const FOLDERS: &[&str] = &["data", "commitlog", "saved_caches", "hints", "cdc_raw", "logs"];

/// A rendered configuration that passed every check, not yet on the disk.
struct RenderedConfig {
    state: NodeState,
    data_found: bool,
    intent: ResolvedSpec,
    way: SeedPlan,
    /// Addresses from which a node that joins awaits no schema.
    other_majors: Vec<String>,
    files: RenderedFiles,
    /// How to get into the node; `None` where it is open.
    access: Option<NodeAccess>,
}

/// Checks whether [`configure_node`] would accept the intent of `node`. Writes nothing.
pub(super) fn validate_config(node: &DatabaseNode) -> Result<(), Error> {
    render_config(node).map(drop)
}

fn render_config(node: &DatabaseNode) -> Result<RenderedConfig, Error> {
    let state = NodeState::load(&node.data)?;
    let intent = ResolvedSpec::from_node(node, &state)?;
    if state.left {
        return Err(Error::ConfigRejected(LEFT.to_owned()));
    }
    let data_found = has_data(&node.data);
    let seed_plan = seeds::choose_seeds(node, &state, data_found)?;
    let security = security::desired_security(node.pilot.spec.security.as_ref(), intent.release)?;
    let is_member = state.joined && data_found;
    let other_majors = if is_member { Vec::new() } else { seeds::peers_of_other_majors(node)? };
    let founding = security::requires_passwords(security)
        && (if is_member {
            state.founding_logins
        } else {
            seed_plan.founds || seeds::comes_first(node)
        });
    if security::requires_passwords(security) {
        seeds::check_login_required(
            node,
            is_member && !state.asks_passwords,
            is_member || founding,
        )?;
    }
    let access = security.map(|security| NodeAccess {
        address: node.address,
        internode: security.internode != InternodeTls::Off,
        client: security.client != ClientTls::Off,
        serves_both: security.client == ClientTls::Optional,
        asks_passwords: security::requires_passwords(Some(security)),
        founding,
    });
    let (tls, founding_folder) =
        (node.config.join(TLS_FOLDER), access::founding_folder(&node.config));
    let files = render_files(&NodeSettings {
        release: intent.release,
        cluster_name: &intent.cluster_name,
        datacenter: &intent.datacenter,
        rack: &intent.rack,
        num_tokens: intent.num_tokens,
        token_factor: token_factor(node, &intent),
        seeds: &seed_plan.seeds,
        address: node.address,
        data: &node.data,
        capacity: read_space(&node.data)
            .ok()
            .and_then(|it| it.storage.capacity_bytes.try_into().ok()),
        overlay: &node.pilot.spec.config,
        jvm_options: &intent.jvm_options,
        security: security.map(|security| SecuritySettings {
            asks_certificates: security.requires_client_certificates(),
            internode: &security.internode,
            client: &security.client,
            asks_passwords: security::requires_passwords(Some(security)),
            tls: &tls,
            founding: founding.then_some(founding_folder.as_path()),
        }),
    })
    .map_err(|error| Error::ConfigRejected(error.to_string()))?;
    for path in [&node.config, &node.shared, &node.data] {
        // The launcher splits at white space.
        if path.to_string_lossy().contains(char::is_whitespace) {
            return Err(Error::ConfigRejected(format!("{} contains white space", path.display())));
        }
    }
    Ok(RenderedConfig { state, data_found, intent, way: seed_plan, other_majors, files, access })
}

/// Writes the configuration folder and returns the process to start. Everything is rendered and
/// validated before the first file is touched, so a rejected intent leaves the running database's
/// folder as it is.
pub(super) fn configure_node(
    node: &DatabaseNode,
) -> Result<(ProcessSpec, JolokiaClient, Option<NodeAccess>), Error> {
    let RenderedConfig {
        mut state,
        data_found,
        intent,
        way: seed_plan,
        other_majors,
        files,
        access,
    } = render_config(node)?;
    lay_out(node, FOLDERS, "conf", &files)?;
    let founding = access.as_ref().is_some_and(|access| access.founding);
    if founding {
        access::prepare_founding(&node.config)?;
    } else {
        access::forget_founding(&node.config)?;
    }
    let triggers = node.config.join("triggers");
    fs::create_dir_all(&triggers).map_err(|source| Error::Write { path: triggers, source })?;
    let jolokia = JolokiaClient::with_new_settings(&node.config, node.address)?;
    let shares_machine = node.address.is_loopback() && access.is_some();
    let asks_for_jmx = shares_machine && jmx_login::is_possible(intent.release);
    let jmx_options =
        if asks_for_jmx { jmx_login::write_password_files(&node.config)? } else { String::new() };

    if state.joined && data_found {
        data_resurrection::check_heartbeat(node, SystemTime::now())?;
        state.presence.mark_away();
        state.presence.clear_when_repaired(&node.pilot.metadata, Timestamp::now());
    } else {
        // Holdings recorded on this volume for an earlier node do not apply any more.
        if HeldRanges::load(&node.data).ok() != Some(HeldRanges::default()) {
            HeldRanges::default().save(&node.data)?;
        }
        // A member whose volume was emptied begins with a new state.
        let version = state.version.take().filter(|_| data_found);
        // Data that an interrupted join received are on the volume, and are not received again.
        let received_bytes = state.bootstrap_bytes_received.filter(|_| data_found);
        state = NodeState {
            founded: seed_plan.founds,
            replacing: seed_plan.replaces,
            version,
            bootstrap_bytes_received: received_bytes,
            ring_load: ring_load(node, &intent.datacenter),
            presence: RingPresence::of_newcomer(
                seed_plan.replaces.is_some() || seeds::is_successor(node),
            ),
            ..NodeState::default()
        };
    }
    state.asks_passwords |= access.as_ref().is_some_and(|access| access.asks_passwords);
    state.founding_logins = founding;
    state.cluster_name.clone_from(&intent.cluster_name);
    state.datacenter.clone_from(&intent.datacenter);
    state.rack.clone_from(&intent.rack);
    state.save(&node.data)?;
    let is_joining = !(state.joined && data_found);
    let mut process = build_process(node, &intent, &seed_plan, is_joining, &jmx_options);
    let is_chosen = intent.jvm_options.iter().any(|option| option.starts_with(SCHEMA_IGNORED));
    if !other_majors.is_empty() && !is_chosen {
        process.args.push(format!("{SCHEMA_IGNORED}{}", other_majors.join(",")));
    }
    Ok((process, jolokia, access))
}

/// Returns the most bytes that any ready member of the datacenter reports to hold.
fn ring_load(node: &DatabaseNode, datacenter: &str) -> Option<i64> {
    in_datacenter(&node.peers, datacenter)
        .filter(|peer| is_ready(peer))
        .filter_map(|peer| peer.status.part::<CassandraNode>()?.load_bytes)
        .max()
}

pub(super) const LEFT: &str = "the data on the volume are of a node that was decommissioned; \
                               delete them to let a new node begin";

/// Returns the replication factor that tokens are spread for; `None`: they are random.
///
/// Cassandra (`TokenAllocation.createStrategy`, the same in 4.0, 4.1 and 5.0) counts the racks of
/// the datacenter that have members, or one while this node's rack has none. It refuses to start
/// when there are more racks than one and fewer than the factor. With as many racks as the factor,
/// each rack is spread by itself, and only its first node is random.
fn token_factor(node: &DatabaseNode, intent: &ResolvedSpec) -> Option<u32> {
    let peers = || in_datacenter(&node.peers, &intent.datacenter);
    let part = node.pilot.spec.part::<CassandraNode>();
    if part.is_some_and(|part| !part.additional_seeds.is_empty()) {
        // Racks of other clusters may be in the same datacenter, and no Pilot reports them.
        return rack_names(peers()).iter().all(|rack| *rack == intent.rack).then_some(3);
    }
    // A lost node stays in the ring until another takes its place.
    let members = rack_names(peers().filter(|peer| was_member(peer) && !is_decommissioned(peer)));
    Some(if members.len() == 2 && members.contains(&intent.rack) { 2 } else { 3 })
}

fn rack_names<'a>(peers: impl Iterator<Item = &'a Pilot>) -> BTreeSet<String> {
    peers.filter_map(|peer| peer.spec.part::<CassandraNode>()?.rack).collect()
}

/// Java property that makes an interrupted join begin anew: every release knows it, and 5.0 refuses
/// to start on the data of an earlier join unless it is set (CASSANDRA-17679). It is not set for a
/// member: there it would make `nodetool rebuild` fetch everything again.
const RESET_PROGRESS: &str = "-Dcassandra.reset_bootstrap_progress=";

/// Java property that ends Cassandra's wait for news of other nodes before it starts: 0 is "do not wait", in
/// place of 16 s or more (`Gossiper.waitToSettle`). A node that begins a ring is alone in it. The property
/// counts at a start only.
const GOSSIP_WAIT: &str = "-Dcassandra.skip_wait_for_gossip_to_settle=";

/// Java property with addresses of nodes whose schema a join does not wait for, in 4.1 and 5.0
/// (`MigrationCoordinator.getIgnoredEndpoints`); the storage port is the default.
const SCHEMA_IGNORED: &str = "-Dcassandra.skip_schema_check_for_endpoints=";

fn build_process(
    node: &DatabaseNode,
    intent: &ResolvedSpec,
    seed_plan: &SeedPlan,
    is_joining: bool,
    jmx_options: &str,
) -> ProcessSpec {
    let mut args = vec!["-f".to_owned()];
    let is_chosen =
        |property| intent.jvm_options.iter().any(|option: &String| option.starts_with(property));
    if is_joining && !is_chosen(RESET_PROGRESS) {
        args.push(format!("{RESET_PROGRESS}true"));
    }
    if seed_plan.founds && !is_chosen(GOSSIP_WAIT) {
        args.push(format!("{GOSSIP_WAIT}0"));
    }
    if let Some(old_address) = seed_plan.replaces {
        args.push(format!("-Dcassandra.replace_address_first_boot={old_address}"));
    }
    let port = jmx_port(node.address);
    let port = port.map(|port| format!(" -Dcassandra.jmx.local.port={port}")).unwrap_or_default();
    let extra = jolokia::java_option(node) + &port + jmx_options;
    let mut env = BTreeMap::from([
        ("CASSANDRA_HOME", node.home.display().to_string()),
        ("CASSANDRA_CONF", node.config.display().to_string()),
        ("CASSANDRA_LOG_DIR", node.data.join("logs").display().to_string()),
        ("cassandra_storagedir", node.data.display().to_string()),
        ("LOCAL_JMX", "yes".to_owned()),
        ("MAX_HEAP_SIZE", format!("{}M", intent.heap / MIB)),
        ("JVM_EXTRA_OPTS", extra),
    ]);
    if choose_collector(&intent.jvm_options) {
        // With any collector but G1 the vendor's script requires HEAP_NEWSIZE and MAX_HEAP_SIZE
        // together.
        env.insert("HEAP_NEWSIZE", format!("{}M", intent.heap / MIB / 4));
    }
    let spec = &node.pilot.spec;
    ProcessSpec {
        program: node.home.join("bin/cassandra"),
        args,
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        working_directory: Some(node.data.join("logs")),
        config_hash: spec.config_hash.clone().unwrap_or_else(|| config_hash(spec)),
        ..ProcessSpec::default()
    }
}

/// Returns the JMX port of a node on a loopback address; `None`: the default port. JMX listens on
/// 127.0.0.1 whatever the node's address, so nodes that share a machine through loopback addresses
/// need different ports.
fn jmx_port(address: IpAddr) -> Option<u16> {
    match address {
        IpAddr::V4(v4) if v4.is_loopback() && v4.octets() != [127, 0, 0, 1] => {
            let [_, _, high, low] = v4.octets();
            Some(20_000 + u16::from_be_bytes([high, low]) % 10_000)
        }
        _ => None,
    }
}

/// Writes the current seeds into the configuration of the running process. Returns whether they
/// changed.
pub(super) fn rewrite_seeds(node: &DatabaseNode) -> Result<bool, Error> {
    let state = NodeState::load(&node.data)?;
    if !state.joined {
        return Ok(false);
    }
    let seed_plan = seeds::choose_seeds(node, &state, has_data(&node.data))?;
    rewrite_key(&node.config, "cassandra.yaml", "seed_provider", seed_provider(&seed_plan.seeds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::cassandra::pilot::tests::{node_in, peer};

    #[test]
    fn the_folder_is_complete_and_the_password_is_nowhere_else() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.may_found = true;
        fs::create_dir_all(node.home.join("conf")).unwrap();
        fs::write(node.home.join("conf/cassandra-env.sh"), "# vendor").unwrap();
        fs::write(node.home.join("conf/cassandra.yaml"), "vendor: true").unwrap();
        let (process, ..) = configure_node(&node).unwrap();
        assert!(node.config.join("cassandra-env.sh").is_file());
        let mode = |name: &str| {
            let about = fs::metadata(node.config.join(name)).unwrap();
            std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o777
        };
        assert_eq!((mode("cassandra.yaml"), mode(jolokia::SETTINGS)), (0o600, 0o600));
        let yaml = fs::read_to_string(node.config.join("cassandra.yaml")).unwrap();
        assert!(yaml.contains("seeds: 10.0.0.1:7000") && !yaml.contains("vendor"), "{yaml}");
        let agent = fs::read_to_string(node.config.join(jolokia::SETTINGS)).unwrap();
        let password = agent.lines().find_map(|line| line.strip_prefix("password=")).unwrap();
        assert!(!format!("{process:?}").contains(password));
        assert_eq!(
            process.args,
            [
                "-f",
                "-Dcassandra.reset_bootstrap_progress=true",
                "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            ]
        );
        assert_eq!(process.env["MAX_HEAP_SIZE"], "1024M");
        assert!(JolokiaClient::from_settings(&node.config).is_some());
    }

    #[test]
    fn a_rejected_intent_touches_nothing() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.may_found = true;
        configure_node(&node).unwrap();
        let before = fs::read_to_string(node.config.join("cassandra.yaml")).unwrap();
        node.pilot.spec.config.insert("concurrent_reads".to_owned(), 7.into());
        node.pilot.spec.version = Some("3.11.4".to_owned());
        assert!(matches!(validate_config(&node), Err(Error::ConfigRejected(_))));
        assert!(matches!(configure_node(&node), Err(Error::ConfigRejected(_))));
        // Validating a good intent changes nothing either.
        node.pilot.spec.version = Some("5.0.6".to_owned());
        validate_config(&node).unwrap();
        assert_eq!(fs::read_to_string(node.config.join("cassandra.yaml")).unwrap(), before);
    }

    #[test]
    fn only_a_join_begins_anew_and_a_user_may_choose() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.peers = vec![peer("b", "10.0.0.2", true)];
        let args = |node: &DatabaseNode| configure_node(node).unwrap().0.args;
        let anew = "-Dcassandra.reset_bootstrap_progress=true".to_owned();
        assert_eq!(
            args(&node),
            ["-f", &anew],
            "with others in the ring, it waits for news of them"
        );
        // The join was cut off half-way, and a new process starts.
        fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        assert!(args(&node).contains(&anew));
        let other = "-Dcassandra.reset_bootstrap_progress=false".to_owned();
        let mut own = node.clone();
        own.pilot.spec.jvm =
            serde_json::from_value(serde_json::json!({ "options": [other] })).unwrap();
        assert!(!args(&own).contains(&anew));
        let mut state = NodeState::load(&node.data).unwrap();
        state.joined = true;
        state.save(&node.data).unwrap();
        assert!(!args(&node).contains(&anew), "a member joins no more");
    }

    #[test]
    fn only_a_join_to_two_majors_skips_schema_checks() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let member = |name: &str, host: &str, version: &str| {
            let mut pilot = peer(name, host, true);
            pilot.status.version = Some(version.to_owned());
            pilot
        };
        let skipped = |node: &DatabaseNode| {
            let args = configure_node(node).unwrap().0.args;
            args.into_iter().find(|option| option.contains("skip_schema"))
        };
        node.peers = vec![member("b", "10.0.0.2", "5.0.6")];
        assert_eq!(skipped(&node), None);
        node.peers.push(member("c", "10.0.0.3", "4.1.10"));
        node.peers.push(member("d", "10.0.0.4", "4.1.10"));
        let expected = "-Dcassandra.skip_schema_check_for_endpoints=10.0.0.3,10.0.0.4".to_owned();
        assert_eq!(skipped(&node), Some(expected));
        let mut own = node.clone();
        let option = "-Dcassandra.skip_schema_check_for_endpoints=10.0.0.3".to_owned();
        own.pilot.spec.jvm =
            serde_json::from_value(serde_json::json!({ "options": [option] })).unwrap();
        assert_eq!(skipped(&own), None, "a user chose, in the file of options");
        let mut alone = node.clone();
        alone.peers.remove(0);
        assert!(
            matches!(validate_config(&alone), Err(Error::ConfigRejected(_))),
            "no node gives it tables"
        );
        fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        let mut state = NodeState::load(&node.data).unwrap();
        state.joined = true;
        state.save(&node.data).unwrap();
        assert_eq!(skipped(&node), None, "a member");
        assert!(validate_config(&alone).is_ok(), "a member does not join");
    }

    #[test]
    fn successor_of_lost_node_is_to_be_repaired() {
        let replaces = |change: &dyn Fn(&mut DatabaseNode)| {
            let place = tempfile::tempdir().unwrap();
            let mut node = node_in(place.path());
            fs::create_dir_all(node.home.join("conf")).unwrap();
            node.peers = vec![peer("b", "10.0.0.2", true)];
            node.pilot.status = peer("a", "10.0.0.9", false).status;
            change(&mut node);
            configure_node(&node).unwrap();
            NodeState::load(&node.data).unwrap().presence.replaces_lost
        };
        assert!(replaces(&|_| ()), "by the address of the lost node");
        let taken = |node: &mut DatabaseNode| node.peers.push(peer("c", "10.0.0.9", true));
        assert!(replaces(&taken), "that is another node's now, so it joins as a new one");
        let left = crate::api::v1beta1::PilotPhase::Decommissioned;
        assert!(
            !replaces(&|node| node.pilot.status.phase = Some(left.clone())),
            "it gave its data away"
        );
        assert!(!replaces(&|node| node.pilot.status.identity = None), "it is new");
    }

    #[test]
    fn tokens_are_spread_over_racks_as_soon_as_cassandra_can() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let factor = |node: &DatabaseNode| {
            token_factor(node, &ResolvedSpec::from_node(node, &NodeState::default()).unwrap())
        };
        let member = |name: &str, rack: &str| {
            let mut pilot = peer(name, "10.0.0.2", true);
            pilot.spec.change_part::<CassandraNode>(|part| part.rack = Some(rack.to_owned()));
            pilot
        };
        assert_eq!(factor(&node), Some(3), "it founds");
        node.peers = vec![member("b", "r1")];
        assert_eq!(factor(&node), Some(3), "one rack");
        node.peers = vec![member("b", "r2"), member("c", "r3")];
        assert_eq!(factor(&node), Some(3), "the first of its rack counts by itself");
        node.peers = vec![member("b", "r1"), member("c", "r2")];
        assert_eq!(factor(&node), Some(2), "with 3 Cassandra would refuse to start");
        node.peers.push(member("d", "r3"));
        assert_eq!(factor(&node), Some(3), "as many racks as the usual factor");
        let left = node.peers.last_mut().unwrap();
        left.status.phase = Some(crate::api::v1beta1::PilotPhase::Decommissioned);
        assert_eq!(factor(&node), Some(2), "the only node of that rack left");
        node.peers[1].spec.change_part::<CassandraNode>(|part| {
            part.datacenter = Some("far".to_owned());
        });
        assert_eq!(factor(&node), Some(3), "racks of another datacenter do not count");
        node.peers = vec![member("b", "r1"), member("c", "r2")];
        node.pilot.spec.change_part::<CassandraNode>(|part| {
            part.additional_seeds = vec!["seed.example.org".to_owned()];
        });
        assert_eq!(factor(&node), None, "who knows what racks the others have");
    }

    #[test]
    fn a_decommissioned_volume_is_not_started() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.may_found = true;
        NodeState { left: true, ..NodeState::default() }.save(&node.data).unwrap();
        let error = configure_node(&node).unwrap_err();
        assert!(error.to_string().contains("decommissioned"), "{error}");
    }

    #[test]
    fn a_member_learns_new_addresses_of_its_peers() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        node.may_found = true;
        configure_node(&node).unwrap();
        assert!(!rewrite_seeds(&node).unwrap(), "a node that has not joined keeps its seeds");
        let mut state = NodeState::load(&node.data).unwrap();
        state.joined = true;
        state.save(&node.data).unwrap();
        fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        node.peers = vec![peer("b", "10.0.0.2", true)];
        assert!(rewrite_seeds(&node).unwrap());
        assert!(!rewrite_seeds(&node).unwrap());
        let yaml = fs::read_to_string(node.config.join("cassandra.yaml")).unwrap();
        assert!(yaml.contains("10.0.0.1:7000,10.0.0.2:7000"), "{yaml}");
        for broken in ["a scalar", "[1, 2]", "7", ""] {
            fs::write(node.config.join("cassandra.yaml"), broken).unwrap();
            let error = rewrite_seeds(&node).unwrap_err();
            assert!(matches!(error, Error::Read { .. }), "{broken:?}: {error}");
        }
    }

    #[test]
    fn nodes_on_loopback_get_management_ports_of_their_own() {
        assert_eq!(jmx_port([10, 0, 0, 1].into()), None);
        assert_eq!(jmx_port([127, 0, 0, 1].into()), None);
        assert_ne!(jmx_port([127, 0, 1, 1].into()), jmx_port([127, 0, 1, 2].into()));
    }
}
