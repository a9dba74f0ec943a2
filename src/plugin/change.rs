//! The changes that users can make: of a field or two of a cluster's spec, or of one Pilot's.
//!
//! No object is read and written back: each change is a patch of the one field that is meant. A
//! node pool is addressed by its index, and the patch tests its name.

use http::Request;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Resource, api::DynamicObject, client::Body};
use serde_json::{Value, json};

use super::{
    error::Error,
    lookup::{ClusterName, ClusterObject, PluginSession, name_of, node},
};
use crate::api::{
    GROUP,
    names::annotation,
    printer::text,
    v1beta1::{Instance, Pilot, PilotIntent},
};

/// Field manager of the plugin's writes.
pub(super) const MANAGER: &str = "kubectl-navigator";

/// The result of a change.
#[derive(Clone, Debug)]
pub struct ChangeResult {
    /// Resource and name of the object, as `examplecluster.navigator.jetstack.io/demo`.
    pub reference: String,
    /// The object after the change, or as a dry run would leave it.
    pub object: Value,
    /// Warnings of the server.
    pub warnings: Vec<String>,
    /// False when the object was already as the change would make it.
    pub changed: bool,
}

/// A change in the patch format in which it is sent.
pub(super) enum PatchBody {
    Merge(Value),
    Json(Value),
}

/// A change of a cluster's spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterChange {
    /// Restarts all nodes once, one after the other.
    Restart,
    Paused(bool),
    Stopped(bool),
    Version(String),
    /// Sets the number of nodes in a pool.
    Replicas {
        pool: String,
        replicas: u32,
    },
}

impl PluginSession {
    /// Changes a cluster, or lets the server check the change in a dry run.
    pub async fn change(
        &self,
        found: &ClusterObject,
        change: &ClusterChange,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let patch = match change {
            ClusterChange::Restart => {
                merge(&json!({"restartedAt": self.now.strftime("%FT%TZ").to_string()}))
            }
            ClusterChange::Paused(paused) => merge(&json!({"paused": paused})),
            ClusterChange::Stopped(stopped) => merge(&json!({"stopped": stopped})),
            ClusterChange::Version(version) => merge(&json!({"version": version})),
            ClusterChange::Replicas { pool, replicas } => scale(found, pool, *replicas)?,
        };
        let resource = Self::resource(found.kind);
        let path = DynamicObject::url_path(&resource, Some(found.namespace()));
        let (object, warnings) = self.patch(path, found.name(), &patch, dry_run).await?;
        let changed = differs(&found.object, &object);
        Ok(ChangeResult { reference: found.reference(), object, warnings, changed })
    }

    /// Writes the intended phase of one node into its Pilot.
    pub async fn tell(
        &self,
        pilot: &Pilot,
        intent: &PilotIntent,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let namespace = pilot.metadata.namespace.as_deref();
        let path = <Pilot as Resource>::url_path(&(), namespace);
        let patch = merge(&json!({"phase": intent.as_str()}));
        let (object, warnings) = self.patch(path, name_of(pilot), &patch, dry_run).await?;
        let reference = format!("pilot.{GROUP}/{}", name_of(pilot));
        let changed = differs(&json!(pilot), &object);
        Ok(ChangeResult { reference, object, warnings, changed })
    }

    /// Returns the uid of what holds the data of a node: its claim, or its pod. `None` where there
    /// is neither, and where the person may not see them.
    pub async fn data_of(&self, found: &ClusterObject, pilot: &Pilot) -> Option<String> {
        let (namespace, name) = (pilot.metadata.namespace.as_deref()?, name_of(pilot));
        let claim = format!("{}-{name}", found.names?.data_volume);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match claims.get_metadata_opt(&claim).await.ok()? {
            Some(claim) => claim.metadata.uid,
            None => pods.get_metadata_opt(name).await.ok()??.metadata.uid,
        }
    }

    /// Is the pod of which the Pilot last reported gone? Then what it reported is of the past. Unknown
    /// counts as no.
    pub async fn is_gone(&self, pilot: &Pilot) -> bool {
        let Some(namespace) = pilot.metadata.namespace.as_deref() else { return false };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let in_pod = |instance: &&Instance| instance.runtime == "Kubernetes";
        let Some(instance) = pilot.status.instance.as_ref().filter(in_pod) else { return false };
        let found = pods.get_metadata_opt(name_of(pilot)).await;
        found.is_ok_and(|pod| pod.and_then(|pod| pod.metadata.uid) != instance.uid)
    }

    /// Writes a person's word into a Pilot that the data of the claim or pod with the uid `data` are
    /// lost for good.
    pub async fn give_up(
        &self,
        pilot: &Pilot,
        data: &str,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        self.annotate(pilot, annotation::GIVE_UP, Some(data), dry_run).await
    }

    /// Writes a person's word into a Pilot that its node begins the database cluster `cluster_id`
    /// anew.
    pub async fn begin_anew(
        &self,
        pilot: &Pilot,
        cluster_id: &str,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        self.annotate(pilot, annotation::UNSAFE_BOOTSTRAP, Some(cluster_id), dry_run).await
    }

    /// Writes an annotation of a Pilot, or takes it away.
    pub(super) async fn annotate(
        &self,
        pilot: &Pilot,
        key: &str,
        value: Option<&str>,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let path = <Pilot as Resource>::url_path(&(), pilot.metadata.namespace.as_deref());
        let patch = PatchBody::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let (object, warnings) = self.patch(path, name_of(pilot), &patch, dry_run).await?;
        let reference = format!("pilot.{GROUP}/{}", name_of(pilot));
        let changed = differs(&json!(pilot), &object);
        Ok(ChangeResult { reference, object, warnings, changed })
    }

    /// Asks these nodes, one after the other, to remove rows that other nodes own now (cleanup).
    ///
    /// The nodes are asked in the order in which they clean up. So a node that goes first has its
    /// request before another node checks whose turn it is.
    pub async fn ask_for_cleanup(
        &self,
        pilots: &[&Pilot],
        dry_run: bool,
    ) -> Result<Vec<ChangeResult>, Error> {
        let mut pilots = pilots.to_vec();
        pilots.sort_by_key(|pilot| name_of(pilot));
        let request = self.now.strftime("%FT%TZ").to_string();
        let patch =
            PatchBody::Merge(json!({"metadata": {"annotations": {annotation::CLEANUP: request}}}));
        let mut all = Vec::new();
        for pilot in pilots {
            let namespace = pilot.metadata.namespace.as_deref();
            let path = <Pilot as Resource>::url_path(&(), namespace);
            let (object, warnings) = self.patch(path, name_of(pilot), &patch, dry_run).await?;
            let reference = format!("pilot.{GROUP}/{}", name_of(pilot));
            all.push(ChangeResult { reference, object, warnings, changed: true });
        }
        Ok(all)
    }

    /// Finds the node that the user named, and its cluster.
    pub async fn member(
        &self,
        wanted: &ClusterName,
        name: &str,
    ) -> Result<(ClusterObject, Pilot), Error> {
        let found = self.cluster(wanted).await?;
        let pilots = self.pilots(&found).await?;
        let pilot = node(found.name(), &pilots, name)?.clone();
        Ok((found, pilot))
    }

    /// Sends a patch. Returns the object and the server's warnings, which kube's own calls drop.
    pub(super) async fn patch(
        &self,
        path: String,
        name: &str,
        patch: &PatchBody,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>), Error> {
        let dry = if dry_run { "&dryRun=All" } else { "" };
        let (form, body) = match patch {
            PatchBody::Merge(body) => ("application/merge-patch+json", body),
            PatchBody::Json(body) => ("application/json-patch+json", body),
        };
        let request = Request::patch(format!("{path}/{name}?fieldManager={MANAGER}{dry}"))
            .header(http::header::CONTENT_TYPE, form)
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(kube::Error::HttpError)?;
        let response = self.client.send(request).await?;
        let (parts, body) = response.into_parts();
        let body = body.collect_bytes().await?;
        if !parts.status.is_success() {
            let text = String::from_utf8_lossy(&body);
            let status = serde_json::from_str(&text).unwrap_or_else(|_| kube::core::Status {
                code: parts.status.as_u16(),
                message: text.into_owned(),
                ..kube::core::Status::default()
            });
            return Err(Error::Server(kube::Error::Api(Box::new(status))));
        }
        let warnings = parts.headers.get_all("warning").iter();
        let warnings = warnings.filter_map(|value| warning(value.to_str().ok()?)).collect();
        let object = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
        Ok((object, warnings))
    }
}

fn merge(spec: &Value) -> PatchBody {
    PatchBody::Merge(json!({ "spec": spec }))
}

/// Builds the patch of a pool's size. A JSON patch finds a pool by its index only, so it tests the
/// name before it changes the pool.
fn scale(found: &ClusterObject, pool: &str, replicas: u32) -> Result<PatchBody, Error> {
    let picture = found.picture();
    let pools = &picture.pools;
    let Some(at) = pools.iter().position(|one| one.name == pool) else {
        return Err(Error::NoPool {
            cluster: found.name().to_owned(),
            pool: pool.to_owned(),
            pools: pools.iter().map(|one| one.name.to_owned()).collect(),
        });
    };
    let path = format!("/spec/nodePools/{at}");
    let patch = json!([
        {"op": "test", "path": format!("{path}/name"), "value": pool},
        {"op": "add", "path": format!("{path}/replicas"), "value": replicas},
    ]);
    Ok(PatchBody::Json(patch))
}

/// Did the patch change anything? A dry run keeps the resource version, so specs count as well.
fn differs(before: &Value, after: &Value) -> bool {
    before.get("spec") != after.get("spec")
        || text(before, "/metadata/resourceVersion") != text(after, "/metadata/resourceVersion")
}

/// Returns the text in a Warning header, `299 - "text"`.
fn warning(header: &str) -> Option<String> {
    let quoted = header.split_once('"')?.1;
    let text = quoted.strip_suffix('"').unwrap_or(quoted);
    Some(text.replace("\\\"", "\"").replace("\\\\", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_what_stands_in_quotes() {
        assert_eq!(warning("299 - \"say \\\"so\\\"\"").as_deref(), Some("say \"so\""));
        assert_eq!(warning("nonsense"), None);
    }
}
