//! Shows what runs on this host, as a table or as JSON: clusters, and under each its nodes.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::CommandFailure;
use crate::{
    api::{
        object_picture::BlockerPicture,
        picture::{ClusterPicture, NodePicture},
        v1beta1::Pilot,
    },
    database::DatabaseList,
    error::chain,
    local::{node::PodRecord, state_folder::StateFolder},
};

/// A cluster, as the table shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClusterSummary {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The condition Ready is True of the newest spec, and so are all nodes that should serve.
    pub(super) ready: bool,
    pub(super) health: String,
    /// Numbers of ready and of wanted nodes, as `kubectl get` shows them.
    pub(super) nodes: String,
    pub(super) version: String,
    pub(super) phase: String,
    pub(super) message: String,
    /// Why the cluster makes no progress without help.
    pub(super) condition: Option<String>,
    /// The reason of the condition Stalled; empty while the cluster has none.
    #[serde(skip)]
    pub(super) stall_reason: String,
    /// What a person can do about what the operation waits for.
    pub(super) advice: Vec<String>,
    pub(super) members: Vec<MemberSummary>,
}

/// A node, as the table shows it, from its pod and its Pilot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemberSummary {
    pub(super) pod: String,
    pub(super) address: String,
    pub(super) pid: Option<i32>,
    pub(super) ready: bool,
    /// The node was told to stop or to leave, so it need not be ready.
    #[serde(skip)]
    pub(super) dismissed: bool,
    pub(super) state: String,
    pub(super) restarts: i32,
    pub(super) version: String,
    pub(super) message: String,
}

/// Reads clusters, Pilots and pods from the API, and summarises them.
pub(super) async fn read_clusters(
    client: &Client,
    databases: DatabaseList,
    folder: &StateFolder,
) -> Result<Vec<ClusterSummary>, CommandFailure> {
    let to_failure =
        |error: kube::Error| CommandFailure::new(format!("the API: {}", chain(&error)));
    let params = ListParams::default();
    let pilots: Api<Pilot> = Api::all(client.clone());
    let pilots = pilots.list(&params).await.map_err(to_failure)?.items;
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = pods.list(&params).await.map_err(to_failure)?.items;
    let mut summaries = Vec::new();
    for database in databases {
        let resource = database.controller.api_resource();
        let clusters = Api::<kube::api::DynamicObject>::all_with(client.clone(), &resource);
        for object in clusters.list(&params).await.map_err(to_failure)? {
            let label = database.controller.names.cluster_label;
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            let is_in_cluster = |meta: &kube::core::ObjectMeta| {
                meta.namespace.as_deref() == Some(&namespace)
                    && meta.labels.as_ref().and_then(|labels| labels.get(label)) == Some(&name)
            };
            let mut names: Vec<String> = pods
                .iter()
                .map(|pod| (pod.meta(), pod.name_any()))
                .chain(pilots.iter().map(|pilot| (pilot.meta(), pilot.name_any())))
                .filter(|(meta, _)| is_in_cluster(meta))
                .map(|(_, name)| name)
                .collect();
            names.sort_by_key(|name| pod_sort_key(name));
            names.dedup();
            let is_named = |meta: &kube::core::ObjectMeta, name: &str| {
                meta.namespace.as_deref() == Some(&namespace) && meta.name.as_deref() == Some(name)
            };
            let members = names.iter().map(|name| {
                let pod = pods.iter().find(|pod| is_named(pod.meta(), name));
                let pilot = pilots.iter().find(|pilot| is_named(pilot.meta(), name));
                summarize_node(folder, name, pod, pilot)
            });
            let members = members.collect();
            let pilots = pilots.iter().filter(|pilot| is_in_cluster(pilot.meta()));
            summaries.push(summarize_cluster(&json!(object), &resource.kind, pilots, members));
        }
    }
    Ok(summaries)
}

/// Returns the key that sorts the pods of one StatefulSet by their number.
fn pod_sort_key(name: &str) -> (String, u32) {
    let (set, number) = name.rsplit_once('-').unwrap_or((name, ""));
    (set.to_owned(), number.parse().unwrap_or_default())
}

fn summarize_cluster<'a>(
    object: &'a Value,
    kind: &str,
    pilots: impl Iterator<Item = &'a Pilot>,
    members: Vec<MemberSummary>,
) -> ClusterSummary {
    let picture = ClusterPicture::new(object).with_nodes(pilots);
    ClusterSummary {
        kind: kind.to_owned(),
        namespace: picture.namespace.to_owned(),
        name: picture.name.to_owned(),
        // Objects show the state from before while their processes are killed.
        ready: picture.is_ready() && members.iter().all(|member| member.ready || member.dismissed),
        health: picture.health.to_owned(),
        nodes: format!("{}/{}", picture.ready_nodes, picture.wanted_nodes()),
        version: picture.version.to_owned(),
        phase: picture.phase_word().to_owned(),
        message: picture
            .build_headline()
            .map(|headline| headline.message.into_owned())
            .unwrap_or_default(),
        condition: picture.stalled_condition().map(|stalled| stalled.message.to_owned()),
        stall_reason: picture
            .stalled_condition()
            .map_or("", |condition| condition.reason)
            .to_owned(),
        advice: picture
            .operation
            .iter()
            .flat_map(|operation| &operation.blockers)
            .map(BlockerPicture::remedy_text)
            .filter(|advice| !advice.is_empty())
            .collect(),
        members,
    }
}

fn summarize_node(
    folder: &StateFolder,
    name: &str,
    pod: Option<&Pod>,
    pilot: Option<&Pilot>,
) -> MemberSummary {
    let status = pod.and_then(|pod| pod.status.as_ref());
    let container = status.and_then(|status| status.container_statuses.as_ref()?.first());
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let is_ready =
        conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let namespace = pod.and_then(|pod| pod.metadata.namespace.clone()).unwrap_or_default();
    let record = PodRecord::read(&folder.pod(&namespace, name));
    let live_record = record.filter(PodRecord::is_running);
    let node = pilot.map(NodePicture::new);
    let is_stopping = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    let phase = node.map(NodePicture::phase).unwrap_or_default();
    let (state, message) = match waiting {
        _ if is_stopping => ("Stopping".to_owned(), None),
        Some(waiting) => (waiting.reason.clone().unwrap_or_default(), waiting.message.clone()),
        None => (phase.to_string(), None),
    };
    let not_ready = node.and_then(NodePicture::ready_condition).filter(|ready| !ready.is_true());
    MemberSummary {
        pod: name.to_owned(),
        address: status.and_then(|status| status.pod_ip.clone()).unwrap_or_default(),
        ready: is_ready && live_record.is_some(),
        pid: live_record.map(|record| record.pid),
        state,
        restarts: container.map_or(0, |container| container.restart_count),
        dismissed: node.is_some_and(NodePicture::is_dismissed),
        version: node.map_or("", NodePicture::version).to_owned(),
        message: message
            .or_else(|| not_ready.map(|ready| ready.message.to_owned()))
            .unwrap_or_default(),
    }
}

/// Draws the table for users.
pub(super) fn text_of(clusters: &[ClusterSummary]) -> String {
    if clusters.is_empty() {
        return "no clusters; `navigator local up -f FILE` makes those of a file\n".to_owned();
    }
    let mut text = String::new();
    for (number, cluster) in clusters.iter().enumerate() {
        let ClusterSummary { kind, namespace, name, ready, health, nodes, version, phase, .. } =
            cluster;
        let readiness = if *ready { "Ready" } else { "not ready" };
        let words: Vec<&str> = [phase.as_str(), health, version]
            .into_iter()
            .filter(|word| !word.is_empty() && *word != readiness)
            .collect();
        if number > 0 {
            text.push('\n');
        }
        let head = format!("{kind} {namespace}/{name}: {readiness}, {nodes} nodes");
        let words = std::iter::once(head.as_str()).chain(words).collect::<Vec<_>>().join(", ");
        text.extend([words.as_str(), "\n"]);
        let reason = cluster.condition.as_ref().or((!ready).then_some(&cluster.message));
        if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
            text.extend(["  ", reason, "\n"]);
        }
        for advice in &cluster.advice {
            text.extend(["  ", advice, "\n"]);
        }
        let mut rows = vec![
            ["NODE", "READY", "STATE", "ADDRESS", "PID", "RESTARTS", "VERSION", ""]
                .map(str::to_owned),
        ];
        rows.extend(cluster.members.iter().map(|member| {
            let MemberSummary {
                pod, address, pid, ready, state, restarts, version, message, ..
            } = member;
            let pid = pid.map(|pid| pid.to_string()).unwrap_or_default();
            let ready = if *ready { "yes" } else { "no" }.to_owned();
            [
                pod.clone(),
                ready,
                state.clone(),
                address.clone(),
                pid,
                restarts.to_string(),
                version.clone(),
                message.clone(),
            ]
        }));
        text.push_str(&align_columns(&rows));
    }
    text
}

/// Pads the cells of each column to its widest one.
fn align_columns<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.extend(["  ", line.trim_end(), "\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_pilots() -> std::iter::Empty<&'static Pilot> {
        std::iter::empty()
    }

    #[test]
    fn a_cluster_and_its_nodes_are_a_table() {
        let object = json!({
            "metadata": {"namespace": "default", "name": "demo", "generation": 2},
            "spec": {"version": "5.0.6", "nodePools": [{"replicas": 2}]},
            "status": {
                "observedGeneration": 2, "readyReplicas": 1, "phase": "Creating", "health": "Green",
                "conditions": [{"type": "Ready", "status": "False", "message": "1 of 2 nodes serve"}],
            },
        });
        let member = |name: &str, ready: bool| MemberSummary {
            pod: name.to_owned(),
            address: "127.30.1.1".to_owned(),
            pid: ready.then_some(42),
            ready,
            dismissed: false,
            state: "Running".to_owned(),
            restarts: 0,
            version: "5.0.6".to_owned(),
            message: String::new(),
        };
        let found = summarize_cluster(
            &object,
            "ExampleCluster",
            no_pilots(),
            vec![member("a-0", true), member("a-1", false)],
        );
        assert_eq!(
            text_of(std::slice::from_ref(&found)),
            "ExampleCluster default/demo: not ready, 1/2 nodes, Creating, Green, 5.0.6\n  \
               1 of 2 nodes serve\n  \
               NODE  READY  STATE    ADDRESS     PID  RESTARTS  VERSION\n  \
               a-0   yes    Running  127.30.1.1  42   0         5.0.6\n  \
               a-1   no     Running  127.30.1.1       0         5.0.6\n"
        );
        assert!(text_of(&[]).contains("navigator local up -f"));
    }

    #[test]
    fn what_was_said_of_an_earlier_spec_is_not_ready() {
        let mut object = json!({
            "metadata": {"generation": 3},
            "status": {"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        assert!(!summarize_cluster(&object, "", no_pilots(), vec![]).ready);
        object["status"]["observedGeneration"] = json!(3);
        assert!(summarize_cluster(&object, "", no_pilots(), vec![]).ready);
    }

    #[test]
    fn a_node_that_left_need_not_be_ready_and_advice_is_told() {
        let mut object = json!({
            "metadata": {"generation": 3},
            "status": {"observedGeneration": 3, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let left = MemberSummary {
            pod: "a-2".to_owned(),
            address: String::new(),
            pid: None,
            ready: false,
            dismissed: true,
            state: "Decommissioned".to_owned(),
            restarts: 0,
            version: String::new(),
            message: String::new(),
        };
        assert!(summarize_cluster(&object, "", no_pilots(), vec![left.clone()]).ready);
        let down = MemberSummary { dismissed: false, ..left };
        assert!(!summarize_cluster(&object, "", no_pilots(), vec![down]).ready);
        let hint = "or add PeersUp to spec.updateStrategy.skipPredicates";
        object["status"]["operation"] =
            json!({"blockedBy": [{"predicate": "PeersUp", "hint": hint}]});
        let waiting = summarize_cluster(&object, "", no_pilots(), vec![]);
        assert_eq!(waiting.advice, [format!("wait, {hint}")]);
        assert!(text_of(&[waiting]).contains("\n  wait, or add PeersUp to spec."));
    }

    #[test]
    fn nodes_are_sorted_by_their_numbers() {
        let mut names = vec!["a-10", "b-0", "a-9"];
        names.sort_by_key(|name| pod_sort_key(name));
        assert_eq!(names, ["a-9", "a-10", "b-0"]);
    }
}
