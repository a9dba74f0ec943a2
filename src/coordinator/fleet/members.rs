//! Databases: Pilots and clusters, as Navigator's API has them; and what is known while it is silent.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};

use super::list_in_pages;
use crate::{
    api::{
        GROUP,
        database_names::DatabaseNames,
        leave_request::LeaveRequest,
        names::annotation::LEAVE_WAITS,
        object_picture::ConditionPicture,
        picture::ClusterPicture,
        v1beta1::{API_VERSION, Pilot, VERSION},
    },
    coordinator::look_error::LookError,
    engine::machines::{DatabaseCluster, MachinePod, MemberPilot, PodRole},
    error::chain,
};

/// What Navigator's API holds.
pub(super) enum DatabaseObjects {
    Read {
        pilots: Vec<Pilot>,
        /// Clusters, each with its kind.
        clusters: Vec<(&'static str, DynamicObject)>,
    },
    /// The API is installed and does not answer, for this reason.
    Silent(String),
}

impl DatabaseObjects {
    /// Reads Pilots and clusters. An API that is not installed holds none.
    ///
    /// # Errors
    /// When kube-apiserver does not answer, or refuses.
    pub(super) async fn read(
        client: &Client,
        databases: &[&'static DatabaseNames],
    ) -> Result<Self, LookError> {
        match Self::list_objects(client, databases).await {
            Ok(objects) => Ok(objects),
            // The aggregation layer answers for an API that does not.
            Err(kube::Error::Api(status)) if status.code >= 500 => {
                Ok(Self::Silent(chain(&kube::Error::Api(status)).to_string()))
            }
            Err(error) => Err(LookError::for_request("read", "database clusters", error)),
        }
    }

    async fn list_objects(
        client: &Client,
        databases: &[&'static DatabaseNames],
    ) -> kube::Result<Self> {
        let mut pilots = Vec::new();
        let api: Api<Pilot> = Api::all(client.clone());
        ignore_missing_kind(list_in_pages(&api, |pilot| pilots.push(pilot)).await)?;
        let mut clusters = Vec::new();
        for names in databases {
            let resource = ApiResource {
                group: GROUP.to_owned(),
                version: VERSION.to_owned(),
                api_version: API_VERSION.to_owned(),
                kind: names.kind.to_owned(),
                plural: names.plural.to_owned(),
            };
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            ignore_missing_kind(
                list_in_pages(&api, |cluster| clusters.push((names.kind, cluster))).await,
            )?;
        }
        Ok(Self::Read { pilots, clusters })
    }
}

/// Takes the answer of a kind that is not served for an empty list.
fn ignore_missing_kind(answer: kube::Result<()>) -> kube::Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        answer => answer,
    }
}

/// Returns the name of a cluster, as status has it.
fn cluster_name(namespace: &str, kind: &str, name: &str) -> String {
    format!("{namespace}/{}/{name}", kind.to_lowercase())
}

/// Returns the Pilots that belong to a cluster: only those are answered when they are asked.
pub(super) fn member_pilots(pilots: &[Pilot]) -> Vec<MemberPilot> {
    let member = |pilot: &Pilot| {
        let (meta, cluster) = (&pilot.metadata, pilot.spec.cluster_ref.as_ref()?);
        let namespace = meta.namespace.clone().unwrap_or_default();
        Some(MemberPilot {
            cluster: cluster_name(&namespace, &cluster.kind, &cluster.name),
            name: meta.name.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            leave: LeaveRequest::from_metadata(meta),
            waits: meta
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(LEAVE_WAITS))
                .cloned(),
            namespace,
        })
    };
    pilots.iter().filter_map(member).collect()
}

/// Returns the clusters, each with its kind.
pub(super) fn database_clusters(
    clusters: &[(&'static str, DynamicObject)],
) -> Vec<DatabaseCluster> {
    let cluster = |(kind, object): &(&str, DynamicObject)| {
        let picture = ClusterPicture::from_parts(&object.metadata, &object.data);
        let drainable = picture.find_condition("Drainable");
        let is_inactive = picture.is_stopped() || picture.is_deleted;
        DatabaseCluster {
            name: cluster_name(picture.namespace, kind, picture.name),
            drainable: drainable.map(ConditionPicture::is_true),
            why: drainable
                .map(|condition| format!("{}: {}", condition.reason, condition.message))
                .unwrap_or_default(),
            serves: is_inactive || picture.ready_nodes >= picture.wanted_nodes(),
        }
    };
    clusters.iter().map(cluster).collect()
}

/// Returns what stands for Pilots and clusters while the API is silent: by their pods, none may
/// leave and no cluster serves. A Pilot counts as asked, since it can neither be asked now nor tell
/// whether it was.
pub(super) fn members_without_api(
    pods: &[MachinePod],
    databases: &[&'static DatabaseNames],
    awaited: &[String],
    reason: &str,
) -> (Vec<MemberPilot>, Vec<DatabaseCluster>) {
    let message = format!("ApiSilent: Navigator's API does not answer: {reason}");
    let member = |pod: &MachinePod| {
        let (kind, cluster) = databases
            .iter()
            .find_map(|names| Some((names.kind, pod.labels.get(names.cluster_label)?)))?;
        Some(MemberPilot {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            version: String::new(),
            cluster: cluster_name(&pod.namespace, kind, cluster),
            leave: Some(LeaveRequest { pod: pod.uid.clone(), by: String::new() }),
            waits: Some(message.clone()),
        })
    };
    let databases = pods.iter().filter(|pod| pod.role == PodRole::Database);
    let pilots: Vec<MemberPilot> = databases.filter_map(member).collect();
    let mut names: Vec<&String> =
        pilots.iter().map(|pilot| &pilot.cluster).chain(awaited).collect();
    names.sort();
    names.dedup();
    let unavailable_cluster = |name: &String| DatabaseCluster {
        name: name.clone(),
        drainable: Some(false),
        why: message.clone(),
        serves: false,
    };
    let clusters = names.into_iter().map(unavailable_cluster).collect();
    (pilots, clusters)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::coordinator::testing::EXAMPLE;

    #[test]
    fn a_pilot_is_read_with_its_cluster_and_what_it_waits_for() {
        let pilot = |cluster: Value| -> Pilot {
            serde_json::from_value(json!({
                "metadata": {
                    "namespace": "db", "name": "ex-demo-a-0", "resourceVersion": "3",
                    "annotations": {
                        "navigator.jetstack.io/leave": "u-1 upgrade to-34 of m-1",
                        "navigator.jetstack.io/leave-waits": "PeersUp: ex-demo-a-1 is down",
                    },
                },
                "spec": {"clusterRef": cluster},
            }))
            .unwrap()
        };
        let managed = pilot(json!({"kind": "ExampleCluster", "name": "demo"}));
        let read = member_pilots(&[managed, pilot(Value::Null)]);
        assert_eq!(read.len(), 1, "nobody answers for a Pilot without a cluster");
        assert_eq!(read[0].cluster, "db/examplecluster/demo");
        assert_eq!(read[0].leave.as_ref().unwrap().pod, "u-1");
        assert_eq!(read[0].waits.as_deref(), Some("PeersUp: ex-demo-a-1 is down"));
    }

    #[test]
    fn a_cluster_serves_when_all_nodes_that_should_run_do() {
        let read = |more: Value| {
            let mut object = json!({
                "metadata": {"namespace": "db", "name": "demo"},
                "spec": {"nodePools": [{"name": "a", "replicas": 2}, {"name": "b"}]},
                "status": {"readyReplicas": 3},
            });
            json_patch::merge(&mut object, &more);
            database_clusters(&[("ExampleCluster", serde_json::from_value(object).unwrap())])
                .remove(0)
        };
        let whole = read(json!({}));
        assert_eq!(whole.name, "db/examplecluster/demo");
        assert!(whole.serves && whole.drainable.is_none());
        assert!(!read(json!({"status": {"readyReplicas": 2}})).serves);
        assert!(read(json!({"status": {"readyReplicas": 0}, "spec": {"stopped": true}})).serves);
        let held = read(json!({"status": {"conditions": [
            {"type": "Drainable", "status": "False", "reason": "PeersUp", "message": "a-0: no"},
        ]}}));
        assert_eq!((held.drainable, held.why.as_str()), (Some(false), "PeersUp: a-0: no"));
    }

    #[test]
    fn while_the_api_is_silent_nothing_may_leave() {
        let pod = MachinePod {
            namespace: "db".into(),
            name: "ex-demo-a-0".into(),
            uid: "u-1".into(),
            machine: Some("m-1".into()),
            role: PodRole::Database,
            ends: false,
            labels: BTreeMap::from([(EXAMPLE.cluster_label.to_owned(), "demo".to_owned())]),
            volumes: Vec::new(),
            has_owner: true,
            has_local_data: true,
            refusal: None,
        };
        let awaited = ["db/examplecluster/other".to_owned()];
        let (pilots, clusters) = members_without_api(&[pod], &[&EXAMPLE], &awaited, "503");
        assert_eq!(pilots.len(), 1);
        assert_eq!(pilots[0].leave.as_ref().unwrap().pod, "u-1", "it is not asked again");
        assert!(pilots[0].waits.as_deref().unwrap().starts_with("ApiSilent: "));
        let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        assert_eq!(names, ["db/examplecluster/demo", "db/examplecluster/other"]);
        assert!(clusters.iter().all(|cluster| cluster.drainable == Some(false) && !cluster.serves));
    }
}
