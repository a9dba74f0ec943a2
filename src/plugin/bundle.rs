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
    error::{Error, said},
    lookup::{ClusterName, ClusterObject, PluginSession, name_of},
    status,
    text::OutputStyle,
};
use crate::{
    api::{GROUP, names, printer::text},
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

const fn collection(
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
    collection("apps", "v1", "StatefulSet", "statefulsets"),
    collection("", "v1", "Pod", "pods"),
    collection("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    collection("", "v1", "Service", "services"),
    collection("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    collection("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
];

/// Collections of which the report keeps Navigator's own objects in the namespace of the install.
const OF_INSTALL: &[ReportedResource] =
    &[collection("apps", "v1", "Deployment", "deployments"), collection("", "v1", "Pod", "pods")];

/// Path of the label by which the manifest marks Navigator's own objects.
const LABEL: &str = "/metadata/labels/app.kubernetes.io~1name";
const OURS: &str = "navigator";

const API_SERVICES: ReportedResource =
    collection("apiregistration.k8s.io", "v1", "APIService", "apiservices");

impl PluginSession {
    /// Gathers the report. Fails only where the clusters cannot be read.
    pub async fn bundle(
        &self,
        settings: &ReportSettings,
        folder: &str,
    ) -> Result<ReportBundle, Error> {
        let found = match &settings.cluster {
            Some(wanted) => vec![self.cluster(wanted).await?],
            None => self.all(Some(&self.namespace)).await?,
        };
        let mut gathering = ReportBuilder {
            session: self,
            settings,
            bundle: ReportBundle {
                archive: TarArchive::new(folder, self.now.as_second()),
                problems: Vec::new(),
            },
        };
        gathering.versions().await;
        let mut pods = Vec::new();
        for one in &found {
            pods.extend(gathering.cluster(one).await);
        }
        gathering.collections(&found, &pods).await;
        gathering.install().await;
        for pod in &pods {
            gathering.log(&self.namespace, pod, "logs").await;
        }
        gathering.finish(&found);
        Ok(gathering.bundle)
    }
}

struct ReportBuilder<'a> {
    session: &'a PluginSession,
    settings: &'a ReportSettings,
    bundle: ReportBundle,
}

impl ReportBuilder<'_> {
    fn problem(&mut self, what: &str, why: &str) {
        self.bundle.problems.push(redact::text(&format!("{what}: {why}")));
    }

    fn put(&mut self, path: &str, value: &Value) {
        let mut value = value.clone();
        redact::value(&mut value);
        match serde_yaml::to_string(&value) {
            Ok(text) => self.bundle.archive.add(path, text.as_bytes()),
            Err(error) => self.problem(path, &error.to_string()),
        }
    }

    async fn versions(&mut self) {
        let kubernetes = match self.session.client.apiserver_version().await {
            Ok(info) => json!(info),
            Err(error) => {
                self.problem("version of Kubernetes", &said(&error));
                Value::Null
            }
        };
        let plugin = format!("v{}", build_info::VERSION);
        self.put("versions.yaml", &json!({"plugin": plugin, "kubernetes": kubernetes}));
    }

    /// Adds a cluster, its Pilots and its status screen. Returns the names of its pods.
    async fn cluster(&mut self, found: &ClusterObject) -> Vec<String> {
        let place = format!("clusters/{}-{}", found.kind.singular(), found.name());
        self.put(&format!("{place}/cluster.yaml"), &found.object);
        let wanted = ClusterName {
            kind: Some(found.kind.singular().to_owned()),
            name: found.name().to_owned(),
        };
        let snapshot = match self.session.snapshot(&wanted).await {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.problem(&place, &error.shown());
                return Vec::new();
            }
        };
        let style = OutputStyle { colour: false, width: None };
        let screen = snapshot.screen(self.session.now, true, style);
        let screen = redact::text(&screen);
        self.bundle.archive.add(&format!("{place}/status.txt"), screen.as_bytes());
        self.put(&format!("{place}/pilots.yaml"), &json!(snapshot.pilots));
        let told = status::told(&snapshot.events, usize::MAX);
        let line = |told: &status::EventSummary| {
            let type_ = if told.warning { "Warning" } else { "Normal" };
            format!(
                "{} {type_} {} {} x{}: {}\n",
                told.last, told.reason, told.about, told.count, told.message
            )
        };
        let told: String = told.iter().map(line).collect();
        let told = redact::text(&told);
        self.bundle.archive.add(&format!("{place}/events.txt"), told.as_bytes());
        snapshot.pilots.iter().map(|pilot| name_of(pilot).to_owned()).collect()
    }

    async fn list(
        &self,
        namespace: Option<&str>,
        of: &ReportedResource,
    ) -> Result<Vec<Value>, String> {
        let api_version = match of.group {
            "" => of.version.to_owned(),
            group => format!("{group}/{}", of.version),
        };
        let resource = ApiResource {
            group: of.group.to_owned(),
            version: of.version.to_owned(),
            api_version,
            kind: of.kind.to_owned(),
            plural: of.plural.to_owned(),
        };
        let client = self.session.client.clone();
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let list = api.list(&ListParams::default()).await.map_err(|error| said(&error))?;
        Ok(list.items.iter().map(|object| json!(object)).collect())
    }

    async fn collections(&mut self, found: &[ClusterObject], pods: &[String]) {
        let namespace = self.session.namespace.clone();
        for of in OF_CLUSTERS {
            match self.list(Some(&namespace), of).await {
                Ok(mut items) => {
                    items.retain(|item| belongs(item, found, pods));
                    self.put(&format!("kubernetes/{}.yaml", of.plural), &json!(items));
                }
                Err(why) => self.problem(of.plural, &why),
            }
        }
    }

    async fn install(&mut self) {
        let namespace = self.settings.install.clone();
        let mut pods = Vec::new();
        for of in OF_INSTALL {
            match self.list(Some(&namespace), of).await {
                Ok(mut items) => {
                    // Databases may run in the namespace of the install, too.
                    items.retain(|item| text(item, LABEL) == OURS);
                    if of.kind == "Pod" {
                        pods.extend(items.iter().map(|pod| text(pod, "/metadata/name").to_owned()));
                    }
                    self.put(&format!("navigator/{}.yaml", of.plural), &json!(items));
                }
                Err(why) => self.problem(&format!("{} of {namespace}", of.plural), &why),
            }
        }
        match self.list(None, &API_SERVICES).await {
            Ok(mut items) => {
                items.retain(|item| text(item, "/spec/group") == GROUP);
                self.put("navigator/apiservices.yaml", &json!(items));
            }
            Err(why) => self.problem("apiservices", &why),
        }
        for pod in pods {
            self.log(&namespace, &pod, "navigator/logs").await;
        }
    }

    /// Adds the log of a pod's first container, and the log from before its last restart, where
    /// there is one.
    async fn log(&mut self, namespace: &str, pod: &str, folder: &str) {
        let pods: Api<Pod> = Api::namespaced(self.session.client.clone(), namespace);
        let container = match pods.get(pod).await {
            Ok(pod) => pod.spec.and_then(|spec| spec.containers.into_iter().next()),
            Err(error) => return self.problem(&format!("pod {pod}"), &said(&error)),
        };
        let Some(container) = container else { return };
        for previous in [false, true] {
            if self.bundle.archive.bytes() >= self.settings.most {
                return self.problem(&format!("log of {pod}"), "left out: the report is full");
            }
            let params = LogParams {
                container: Some(container.name.clone()),
                limit_bytes: Some(LOG_BYTES),
                tail_lines: Some(self.settings.tail),
                previous,
                ..LogParams::default()
            };
            let end = if previous { ".previous.log" } else { ".log" };
            match pods.logs(pod, &params).await {
                Ok(log) => {
                    let log = redact::text(&log);
                    self.bundle.archive.add(&format!("{folder}/{pod}{end}"), log.as_bytes());
                }
                // Most containers were never restarted, and so have no earlier log.
                Err(_) if previous => {}
                Err(error) => self.problem(&format!("log of {pod}"), &said(&error)),
            }
        }
    }

    fn finish(&mut self, found: &[ClusterObject]) {
        let clusters: Vec<String> = found.iter().map(ClusterObject::reference).collect();
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
        self.bundle.archive.add("README.txt", text.as_bytes());
        if !problems.is_empty() {
            self.bundle.archive.add("errors.txt", format!("{problems}\n").as_bytes());
        }
    }
}

/// Does `object` belong to one of the clusters `found`, or to one of the nodes `pods`?
fn belongs(object: &Value, found: &[ClusterObject], pods: &[String]) -> bool {
    let uids: Vec<&str> = found.iter().map(|one| text(&one.object, "/metadata/uid")).collect();
    is_made_for(object, &uids) || is_of_node(object, pods)
}

/// Does the object name a cluster with one of these uids, in its annotation or (a Pilot or lease)
/// as its owner?
fn is_made_for(object: &Value, uids: &[&str]) -> bool {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let owners = owners.into_iter().flatten().map(|owner| text(owner, "/uid"));
    let mark = object["metadata"]["annotations"][names::annotation::CLUSTER_UID].as_str();
    owners.chain(mark).any(|uid| !uid.is_empty() && uids.contains(&uid))
}

/// Is the object a pod, a Pilot or a claim of one of the nodes `pods`?
fn is_of_node(object: &Value, pods: &[String]) -> bool {
    let name = text(object, "/metadata/name");
    pods.iter().any(|pod| {
        name == pod || name.strip_suffix(pod.as_str()).is_some_and(|claim| claim.ends_with('-'))
    })
}

/// Returns the folder and file name of a report, without `.tar.gz`.
pub fn default_name(session: &PluginSession, cluster: Option<&ClusterName>) -> String {
    let what = cluster.map_or(session.namespace.as_str(), |wanted| wanted.name.as_str());
    let time = session.now.strftime("%Y%m%dT%H%M%SZ");
    format!("navigator-report-{what}-{time}")
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
