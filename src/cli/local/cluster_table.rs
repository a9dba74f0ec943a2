//! Shows what runs on this host, as a table or as JSON: clusters, and under each its nodes.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::CommandFailure;
use crate::{
    api::{
        printer::{cluster, text},
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
    /// The condition Ready is true of the newest spec, and all nodes are ready.
    pub(super) ready: bool,
    pub(super) health: String,
    /// Numbers of ready and of wanted nodes, as `kubectl get` shows them.
    pub(super) nodes: String,
    pub(super) version: String,
    pub(super) phase: String,
    pub(super) message: String,
    /// Why the cluster makes no progress without help.
    pub(super) stalled: Option<String>,
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
    pub(super) state: String,
    pub(super) restarts: i32,
    pub(super) version: String,
    pub(super) message: String,
}

/// Reads clusters, Pilots and pods from the API, and summarises them.
pub(super) async fn look(
    client: &Client,
    databases: DatabaseList,
    folder: &StateFolder,
) -> Result<Vec<ClusterSummary>, CommandFailure> {
    let failed = |error: kube::Error| CommandFailure::new(format!("the API: {}", chain(&error)));
    let all = ListParams::default();
    let pilots: Api<Pilot> = Api::all(client.clone());
    let pilots = pilots.list(&all).await.map_err(failed)?.items;
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = pods.list(&all).await.map_err(failed)?.items;
    let mut found = Vec::new();
    for database in databases {
        let resource = database.controller.resource();
        let clusters = Api::<kube::api::DynamicObject>::all_with(client.clone(), &resource);
        for object in clusters.list(&all).await.map_err(failed)? {
            let label = database.controller.names.cluster_label;
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            let mine = |meta: &kube::core::ObjectMeta| {
                meta.namespace.as_deref() == Some(&namespace)
                    && meta.labels.as_ref().and_then(|labels| labels.get(label)) == Some(&name)
            };
            let mut names: Vec<String> = pods
                .iter()
                .map(|pod| (pod.meta(), pod.name_any()))
                .chain(pilots.iter().map(|pilot| (pilot.meta(), pilot.name_any())))
                .filter(|(meta, _)| mine(meta))
                .map(|(_, name)| name)
                .collect();
            names.sort_by_key(|name| ordinal(name));
            names.dedup();
            let in_namespace = |meta: &kube::core::ObjectMeta, name: &str| {
                meta.namespace.as_deref() == Some(&namespace) && meta.name.as_deref() == Some(name)
            };
            let members = names.iter().map(|name| {
                let pod = pods.iter().find(|pod| in_namespace(pod.meta(), name));
                let pilot = pilots.iter().find(|pilot| in_namespace(pilot.meta(), name));
                member(folder, name, pod, pilot)
            });
            found.push(one(&json!(object), &resource.kind, members.collect()));
        }
    }
    Ok(found)
}

/// Returns the key that sorts the pods of one StatefulSet by their number.
fn ordinal(name: &str) -> (String, u32) {
    let (set, number) = name.rsplit_once('-').unwrap_or((name, ""));
    (set.to_owned(), number.parse().unwrap_or_default())
}

fn one(object: &Value, kind: &str, members: Vec<MemberSummary>) -> ClusterSummary {
    let cells = cluster(object, 0);
    let cell = |number: usize| cells[number].as_str().unwrap_or_default().to_owned();
    let condition = |type_: &str| {
        let all = object.pointer("/status/conditions").and_then(Value::as_array);
        all.into_iter().flatten().find(|condition| text(condition, "/type") == type_)
    };
    // A condition of an earlier spec says nothing about the newest one.
    let newest =
        object.pointer("/status/observedGeneration") == object.pointer("/metadata/generation");
    let stalled = condition("Stalled").filter(|it| text(it, "/status") == "True");
    ClusterSummary {
        kind: kind.to_owned(),
        namespace: text(object, "/metadata/namespace").to_owned(),
        name: cell(0),
        ready: newest && cell(1) == "True" && members.iter().all(|member| member.ready),
        health: cell(2),
        nodes: cell(3),
        version: cell(4),
        phase: cell(5),
        message: condition("Ready").map(|it| text(it, "/message").to_owned()).unwrap_or_default(),
        stalled: stalled.filter(|_| newest).map(|it| text(it, "/message").to_owned()),
        members,
    }
}

fn member(
    folder: &StateFolder,
    name: &str,
    pod: Option<&Pod>,
    pilot: Option<&Pilot>,
) -> MemberSummary {
    let status = pod.and_then(|pod| pod.status.as_ref());
    let container = status.and_then(|status| status.container_statuses.as_ref()?.first());
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let namespace = pod.and_then(|pod| pod.metadata.namespace.clone()).unwrap_or_default();
    let record = PodRecord::read(&folder.pod(&namespace, name));
    let alive = record.filter(PodRecord::runs);
    let said = pilot.map(|pilot| &pilot.status);
    let phase = said.and_then(|status| json!(status.phase).as_str().map(str::to_owned));
    let ends = pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
    let (state, message) = match (waiting, phase) {
        _ if ends => ("Stopping".to_owned(), None),
        (Some(waiting), _) => (waiting.reason.clone().unwrap_or_default(), waiting.message.clone()),
        (None, Some(phase)) => (phase, None),
        (None, None) => ("Pending".to_owned(), None),
    };
    let not_ready = said.and_then(|status| {
        let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready")?;
        (ready.status != "True").then(|| ready.message.clone())
    });
    MemberSummary {
        pod: name.to_owned(),
        address: status.and_then(|status| status.pod_ip.clone()).unwrap_or_default(),
        // When all processes were killed, the objects still show the state from before.
        ready: ready && alive.is_some(),
        pid: alive.map(|record| record.pid),
        state,
        restarts: container.map_or(0, |container| container.restart_count),
        version: said.and_then(|status| status.version.clone()).unwrap_or_default(),
        message: message.or(not_ready).unwrap_or_default(),
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
        let told = if *ready { "Ready" } else { "not ready" };
        let words: Vec<&str> = [phase.as_str(), health, version]
            .into_iter()
            .filter(|word| !word.is_empty() && *word != told)
            .collect();
        if number > 0 {
            text.push('\n');
        }
        let head = format!("{kind} {namespace}/{name}: {told}, {nodes} nodes");
        let words = std::iter::once(head.as_str()).chain(words).collect::<Vec<_>>().join(", ");
        text.extend([words.as_str(), "\n"]);
        let why = cluster.stalled.as_ref().or((!ready).then_some(&cluster.message));
        if let Some(why) = why.filter(|why| !why.is_empty()) {
            text.extend(["  ", why, "\n"]);
        }
        let mut rows = vec![
            ["NODE", "READY", "STATE", "ADDRESS", "PID", "RESTARTS", "VERSION", ""]
                .map(str::to_owned),
        ];
        rows.extend(cluster.members.iter().map(|member| {
            let MemberSummary { pod, address, pid, ready, state, restarts, version, message } =
                member;
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
        text.push_str(&aligned(&rows));
    }
    text
}

/// Pads the cells of each column to its widest one.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
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
            state: "Running".to_owned(),
            restarts: 0,
            version: "5.0.6".to_owned(),
            message: String::new(),
        };
        let found = one(&object, "ExampleCluster", vec![member("a-0", true), member("a-1", false)]);
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
        assert!(!one(&object, "", vec![]).ready);
        object["status"]["observedGeneration"] = json!(3);
        assert!(one(&object, "", vec![]).ready);
    }

    #[test]
    fn nodes_are_sorted_by_their_numbers() {
        let mut names = vec!["a-10", "b-0", "a-9"];
        names.sort_by_key(|name| ordinal(name));
        assert_eq!(names, ["a-9", "a-10", "b-0"]);
    }
}
