//! `report`: gathers what a remote helper needs, in one archive without secrets.
//!
//! Secrets and ConfigMaps are not read. What is read passes [`redact`] before it is written. A part
//! that cannot be read is named in `errors.txt`; the archive has the rest.

pub mod archive;
pub mod redact;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, LogParams},
};
use serde_json::{Value, json};

use self::archive::TarArchive;
use super::{
    error::{Error, server_message},
    lookup::{ClusterName, ClusterObject, PluginSession, name_of},
    status,
    text::OutputStyle,
};
use crate::{
    api::{GROUP, names, printer::text_at},
    runtime::build_info,
};

/// Selects what goes into a report.
#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// The cluster to report on; all clusters of the namespace when absent.
    pub cluster: Option<ClusterName>,
    /// Namespace of Navigator's install.
    pub install: String,
    /// Number of lines from the end of each log.
    pub tail: i64,
    /// Limit of the size of all files before they are packed, in bytes; logs beyond it are left
    /// out.
    pub most: usize,
}

/// Limit of the size of one log, in bytes.
const LOG_BYTES: i64 = 2 << 20;

/// A report: the archive, and what could not be put into it.
pub struct ReportBundle {
    pub archive: TarArchive,
    pub problems: Vec<String>,
}

/// A collection whose objects go into the report.
struct ReportedResource {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

const fn reported_resource(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> ReportedResource {
    ReportedResource { group, version, kind, plural }
}

/// Collections of which the report keeps the objects that bear a cluster's uid or are named after
/// one of its nodes, as pods and claims are.
const OF_CLUSTERS: &[ReportedResource] = &[
    reported_resource("apps", "v1", "StatefulSet", "statefulsets"),
    reported_resource("", "v1", "Pod", "pods"),
    reported_resource("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    reported_resource("", "v1", "Service", "services"),
    reported_resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    reported_resource("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
];

/// Collections of which the report keeps Navigator's own objects in the namespace of the install.
const OF_INSTALL: &[ReportedResource] = &[
    reported_resource("apps", "v1", "Deployment", "deployments"),
    reported_resource("", "v1", "Pod", "pods"),
];

/// Path of the label by which the manifest marks Navigator's own objects.
const LABEL: &str = "/metadata/labels/app.kubernetes.io~1name";
const OURS: &str = "navigator";

const API_SERVICES: ReportedResource =
    reported_resource("apiregistration.k8s.io", "v1", "APIService", "apiservices");

impl PluginSession {
    /// Gathers the report. Fails only where the clusters cannot be read.
    pub async fn gather_report(
        &self,
        settings: &ReportSettings,
        folder: &str,
    ) -> Result<ReportBundle, Error> {
        let clusters = match &settings.cluster {
            Some(name) => vec![self.find_cluster(name).await?],
            None => self.list_clusters(Some(&self.namespace)).await?,
        };
        let mut builder = ReportBuilder {
            session: self,
            settings,
            bundle: ReportBundle {
                archive: TarArchive::new(folder, self.now.as_second()),
                problems: Vec::new(),
            },
        };
        builder.add_versions().await;
        let mut pods = Vec::new();
        for cluster in &clusters {
            pods.extend(builder.add_cluster(cluster).await);
        }
        builder.add_cluster_resources(&clusters, &pods).await;
        builder.add_install().await;
        for pod in &pods {
            builder.add_log(&self.namespace, pod, "logs").await;
        }
        builder.add_readme(&clusters);
        Ok(builder.bundle)
    }
}

struct ReportBuilder<'a> {
    session: &'a PluginSession,
    settings: &'a ReportSettings,
    bundle: ReportBundle,
}

impl ReportBuilder<'_> {
    fn add_problem(&mut self, subject: &str, reason: &str) {
        self.bundle.problems.push(redact::redact_text(&format!("{subject}: {reason}")));
    }

    fn add_yaml(&mut self, path: &str, value: &Value) {
        let mut value = value.clone();
        redact::redact_value(&mut value);
        match serde_yaml::to_string(&value) {
            Ok(text) => self.bundle.archive.add_file(path, text.as_bytes()),
            Err(error) => self.add_problem(path, &error.to_string()),
        }
    }

    async fn add_versions(&mut self) {
        let kubernetes = match self.session.client.apiserver_version().await {
            Ok(info) => json!(info),
            Err(error) => {
                self.add_problem("version of Kubernetes", &server_message(&error));
                Value::Null
            }
        };
        let plugin = format!("v{}", build_info::VERSION);
        self.add_yaml("versions.yaml", &json!({"plugin": plugin, "kubernetes": kubernetes}));
    }

    /// Adds a cluster, its Pilots and its status screen. Returns the names of its pods.
    async fn add_cluster(&mut self, cluster: &ClusterObject) -> Vec<String> {
        let place = format!("clusters/{}-{}", cluster.kind.singular(), cluster.name());
        self.add_yaml(&format!("{place}/cluster.yaml"), &cluster.object);
        let cluster_name = ClusterName {
            kind: Some(cluster.kind.singular().to_owned()),
            name: cluster.name().to_owned(),
        };
        let snapshot = match self.session.read_snapshot(&cluster_name).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.add_problem(&place, &error.full_message());
                return Vec::new();
            }
        };
        let style = OutputStyle { colour: false, width: None };
        let screen = snapshot.render(self.session.now, true, style);
        let screen = redact::redact_text(&screen);
        self.bundle.archive.add_file(&format!("{place}/status.txt"), screen.as_bytes());
        self.add_yaml(&format!("{place}/pilots.yaml"), &json!(snapshot.pilots));
        let events = status::latest_events(&snapshot.events, usize::MAX);
        let line = |event: &status::EventSummary| {
            let type_ = if event.warning { "Warning" } else { "Normal" };
            format!(
                "{} {type_} {} {} x{}: {}\n",
                event.last, event.reason, event.about, event.count, event.message
            )
        };
        let event_text: String = events.iter().map(line).collect();
        let event_text = redact::redact_text(&event_text);
        self.bundle.archive.add_file(&format!("{place}/events.txt"), event_text.as_bytes());
        snapshot.pilots.iter().map(|pilot| name_of(pilot).to_owned()).collect()
    }

    async fn list_objects(
        &self,
        namespace: Option<&str>,
        collection: &ReportedResource,
    ) -> Result<Vec<Value>, String> {
        let api_version = match collection.group {
            "" => collection.version.to_owned(),
            group => format!("{group}/{}", collection.version),
        };
        let resource = ApiResource {
            group: collection.group.to_owned(),
            version: collection.version.to_owned(),
            api_version,
            kind: collection.kind.to_owned(),
            plural: collection.plural.to_owned(),
        };
        let client = self.session.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let list =
            api.list(&ListParams::default()).await.map_err(|error| server_message(&error))?;
        Ok(list.items.iter().map(|object| json!(object)).collect())
    }

    async fn add_cluster_resources(&mut self, clusters: &[ClusterObject], pods: &[String]) {
        let namespace = self.session.namespace.clone();
        for collection in OF_CLUSTERS {
            match self.list_objects(Some(&namespace), collection).await {
                Ok(mut items) => {
                    items.retain(|item| is_part_of(item, clusters, pods));
                    self.add_yaml(&format!("kubernetes/{}.yaml", collection.plural), &json!(items));
                }
                Err(reason) => self.add_problem(collection.plural, &reason),
            }
        }
    }

    async fn add_install(&mut self) {
        let namespace = self.settings.install.clone();
        let mut pods = Vec::new();
        for collection in OF_INSTALL {
            match self.list_objects(Some(&namespace), collection).await {
                Ok(mut items) => {
                    // Databases may run in the namespace of the install, too.
                    items.retain(|item| text_at(item, LABEL) == OURS);
                    if collection.kind == "Pod" {
                        pods.extend(
                            items.iter().map(|pod| text_at(pod, "/metadata/name").to_owned()),
                        );
                    }
                    self.add_yaml(&format!("navigator/{}.yaml", collection.plural), &json!(items));
                }
                Err(reason) => {
                    self.add_problem(&format!("{} of {namespace}", collection.plural), &reason);
                }
            }
        }
        match self.list_objects(None, &API_SERVICES).await {
            Ok(mut items) => {
                items.retain(|item| text_at(item, "/spec/group") == GROUP);
                self.add_yaml("navigator/apiservices.yaml", &json!(items));
            }
            Err(reason) => self.add_problem("apiservices", &reason),
        }
        for pod in pods {
            self.add_log(&namespace, &pod, "navigator/logs").await;
        }
    }

    /// Adds the log of a pod's first container, and the log from before its last restart, where
    /// there is one.
    async fn add_log(&mut self, namespace: &str, pod: &str, folder: &str) {
        let pods: Api<Pod> = Api::namespaced(self.session.client.clone(), namespace);
        let container = match pods.get(pod).await {
            Ok(pod) => pod.spec.and_then(|spec| spec.containers.into_iter().next()),
            Err(error) => return self.add_problem(&format!("pod {pod}"), &server_message(&error)),
        };
        let Some(container) = container else { return };
        for previous in [false, true] {
            if self.bundle.archive.bytes() >= self.settings.most {
                return self.add_problem(&format!("log of {pod}"), "left out: the report is full");
            }
            let params = LogParams {
                container: Some(container.name.clone()),
                limit_bytes: Some(LOG_BYTES),
                tail_lines: Some(self.settings.tail),
                previous,
                ..LogParams::default()
            };
            let suffix = if previous { ".previous.log" } else { ".log" };
            match pods.logs(pod, &params).await {
                Ok(log) => {
                    let log = redact::redact_text(&log);
                    self.bundle
                        .archive
                        .add_file(&format!("{folder}/{pod}{suffix}"), log.as_bytes());
                }
                // Most containers were never restarted, and so have no earlier log.
                Err(_) if previous => {}
                Err(error) => self.add_problem(&format!("log of {pod}"), &server_message(&error)),
            }
        }
    }

    fn add_readme(&mut self, objects: &[ClusterObject]) {
        let clusters: Vec<String> = objects.iter().map(ClusterObject::reference).collect();
        let problems = self.bundle.problems.join("\n");
        let text = format!(
            "Report of `kubectl navigator report`, v{}, {}.\nNamespace {}: {}.\n\n\
             Secrets are not in it. Values whose names or forms look like those of secrets were\n\
             replaced by {}; look before you pass it on all the same.\n",
            build_info::VERSION,
            self.session.now,
            self.session.namespace,
            if clusters.is_empty() { "no clusters".to_owned() } else { clusters.join(", ") },
            redact::REDACTED,
        );
        self.bundle.archive.add_file("README.txt", text.as_bytes());
        if !problems.is_empty() {
            self.bundle.archive.add_file("errors.txt", format!("{problems}\n").as_bytes());
        }
    }
}

/// Does `object` belong to one of the clusters `clusters`, or to one of the nodes `pods`?
fn is_part_of(object: &Value, clusters: &[ClusterObject], pods: &[String]) -> bool {
    let uids: Vec<&str> =
        clusters.iter().map(|cluster| text_at(&cluster.object, "/metadata/uid")).collect();
    is_made_for(object, &uids) || is_of_node(object, pods)
}

/// Does the object name a cluster with one of these uids, in its annotation or (a Pilot or lease)
/// as its owner?
fn is_made_for(object: &Value, uids: &[&str]) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let owners = owners.into_iter().flatten().map(|owner| text_at(owner, "/uid"));
    let mark = object["metadata"]["annotations"][names::annotation::CLUSTER_UID].as_str();
    owners.chain(mark).any(|uid| !uid.is_empty() && uids.contains(&uid))
}

/// Is the object a pod, a Pilot or a claim of one of the nodes `pods`?
fn is_of_node(object: &Value, pods: &[String]) -> bool {
    let name = text_at(object, "/metadata/name");
    pods.iter().any(|pod| {
        name == pod || name.strip_suffix(pod.as_str()).is_some_and(|claim| claim.ends_with('-'))
    })
}

/// Returns the folder and file name of a report, without `.tar.gz`.
pub fn default_name(session: &PluginSession, cluster: Option<&ClusterName>) -> String {
    let subject =
        cluster.map_or(session.namespace.as_str(), |cluster_name| cluster_name.name.as_str());
    let time = session.now.strftime("%Y%m%dT%H%M%SZ");
    format!("navigator-report-{subject}-{time}")
}

/// Default namespace of Navigator's install.
pub const INSTALL: &str = names::NAMESPACE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_for_a_cluster_and_for_its_nodes_is_gathered() {
        let marked = json!({"metadata": {"annotations": {names::annotation::CLUSTER_UID: "u"}}});
        let owned = json!({"metadata": {"ownerReferences": [{"uid": "u"}]}});
        for object in [&marked, &owned] {
            assert!(is_made_for(object, &["v", "u"]));
            assert!(!is_made_for(object, &["v"]));
        }
        assert!(!is_made_for(&json!({"metadata": {"ownerReferences": [{"uid": ""}]}}), &[""]));
        let claim = json!({"metadata": {"name": "example-data-ex-shop-a-0"}});
        assert!(is_of_node(&claim, &["ex-shop-a-0".into()]));
        assert!(!is_of_node(&claim, &["shop-a-1".into(), "hop-a-0".into()]));
    }
}
