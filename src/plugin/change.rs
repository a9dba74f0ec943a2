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
    lookup::{ClusterName, ClusterObject, PluginSession, find_node, name_of},
};
use crate::api::{
    GROUP,
    names::annotation,
    printer::text_at,
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
    pub async fn change_cluster(
        &self,
        cluster: &ClusterObject,
        change: &ClusterChange,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let patch = match change {
            ClusterChange::Restart => {
                spec_patch(&json!({"restartedAt": self.now.strftime("%FT%TZ").to_string()}))
            }
            ClusterChange::Paused(paused) => spec_patch(&json!({"paused": paused})),
            ClusterChange::Stopped(stopped) => spec_patch(&json!({"stopped": stopped})),
            ClusterChange::Version(version) => spec_patch(&json!({"version": version})),
            ClusterChange::Replicas { pool, replicas } => scale_patch(cluster, pool, *replicas)?,
        };
        let resource = Self::api_resource(cluster.kind);
        let path = DynamicObject::url_path(&resource, Some(cluster.namespace()));
        let (object, warnings) = self.send_patch(path, cluster.name(), &patch, dry_run).await?;
        let is_changed = has_changed(&cluster.object, &object);
        Ok(ChangeResult { reference: cluster.reference(), object, warnings, changed: is_changed })
    }

    /// Writes the intended phase of one node into its Pilot.
    pub async fn set_intent(
        &self,
        pilot: &Pilot,
        intent: &PilotIntent,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let namespace = pilot.metadata.namespace.as_deref();
        let path = <Pilot as Resource>::url_path(&(), namespace);
        let patch = spec_patch(&json!({"phase": intent.as_str()}));
        let (object, warnings) = self.send_patch(path, name_of(pilot), &patch, dry_run).await?;
        let reference = format!("pilot.{GROUP}/{}", name_of(pilot));
        let is_changed = has_changed(&json!(pilot), &object);
        Ok(ChangeResult { reference, object, warnings, changed: is_changed })
    }

    /// Returns the uid of what holds the data of a node: its claim, or its pod. `None` where there
    /// is neither, and where the person may not see them.
    pub async fn data_uid(&self, cluster: &ClusterObject, pilot: &Pilot) -> Option<String> {
        let (namespace, name) = (pilot.metadata.namespace.as_deref()?, name_of(pilot));
        let claim = format!("{}-{name}", cluster.names?.data_volume);
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
        let pod_result = pods.get_metadata_opt(name_of(pilot)).await;
        pod_result.is_ok_and(|pod| pod.and_then(|pod| pod.metadata.uid) != instance.uid)
    }

    /// Writes a person's word into a Pilot that the data of the claim or pod with the uid `data` are
    /// lost for good.
    pub async fn discard_data(
        &self,
        pilot: &Pilot,
        data: &str,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        self.annotate_pilot(pilot, annotation::GIVE_UP, Some(data), dry_run).await
    }

    /// Writes a person's word into a Pilot that its node begins the database cluster `cluster_id`
    /// anew.
    pub async fn request_unsafe_bootstrap(
        &self,
        pilot: &Pilot,
        cluster_id: &str,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        self.annotate_pilot(pilot, annotation::UNSAFE_BOOTSTRAP, Some(cluster_id), dry_run).await
    }

    /// Writes an annotation of a Pilot, or takes it away.
    pub(super) async fn annotate_pilot(
        &self,
        pilot: &Pilot,
        key: &str,
        value: Option<&str>,
        dry_run: bool,
    ) -> Result<ChangeResult, Error> {
        let path = <Pilot as Resource>::url_path(&(), pilot.metadata.namespace.as_deref());
        let patch = PatchBody::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let (object, warnings) = self.send_patch(path, name_of(pilot), &patch, dry_run).await?;
        let reference = format!("pilot.{GROUP}/{}", name_of(pilot));
        let is_changed = has_changed(&json!(pilot), &object);
        Ok(ChangeResult { reference, object, warnings, changed: is_changed })
    }

    /// Asks these nodes, one after the other, to remove rows that other nodes own now (cleanup).
    ///
    /// The nodes are asked in the order in which they clean up. So a node that goes first has its
    /// request before another node checks whose turn it is.
    pub async fn request_cleanup(
        &self,
        pilots: &[&Pilot],
        dry_run: bool,
    ) -> Result<Vec<ChangeResult>, Error> {
        let mut pilots = pilots.to_vec();
        pilots.sort_by_key(|pilot| name_of(pilot));
        let request = self.now.strftime("%FT%TZ").to_string();
        let patch =
            PatchBody::Merge(json!({"metadata": {"annotations": {annotation::CLEANUP: request}}}));
        let mut results = Vec::new();
        for pilot in pilots {
            let namespace = pilot.metadata.namespace.as_deref();
            let path = <Pilot as Resource>::url_path(&(), namespace);
            let (object, warnings) = self.send_patch(path, name_of(pilot), &patch, dry_run).await?;
            let reference = format!("pilot.{GROUP}/{}", name_of(pilot));
            results.push(ChangeResult { reference, object, warnings, changed: true });
        }
        Ok(results)
    }

    /// Finds the node that the user named, and its cluster.
    pub async fn find_cluster_node(
        &self,
        cluster_name: &ClusterName,
        name: &str,
    ) -> Result<(ClusterObject, Pilot), Error> {
        let cluster = self.find_cluster(cluster_name).await?;
        let pilots = self.list_pilots(&cluster).await?;
        let pilot = find_node(cluster.name(), &pilots, name)?.clone();
        Ok((cluster, pilot))
    }

    /// Sends a patch. Returns the object and the server's warnings, which kube's own calls drop.
    pub(super) async fn send_patch(
        &self,
        path: String,
        name: &str,
        patch: &PatchBody,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>), Error> {
        let dry_run_query = if dry_run { "&dryRun=All" } else { "" };
        let (form, body) = match patch {
            PatchBody::Merge(body) => ("application/merge-patch+json", body),
            PatchBody::Json(body) => ("application/json-patch+json", body),
        };
        let request =
            Request::patch(format!("{path}/{name}?fieldManager={MANAGER}{dry_run_query}"))
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
        let warnings = warnings.filter_map(|value| parse_warning(value.to_str().ok()?)).collect();
        let object = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
        Ok((object, warnings))
    }
}

fn spec_patch(spec: &Value) -> PatchBody {
    PatchBody::Merge(json!({ "spec": spec }))
}

/// Builds the patch of a pool's size. A JSON patch finds a pool by its index only, so it tests the
/// name before it changes the pool.
fn scale_patch(cluster: &ClusterObject, pool: &str, replicas: u32) -> Result<PatchBody, Error> {
    let picture = cluster.picture();
    let pools = &picture.pools;
    let Some(index) = pools.iter().position(|pool_picture| pool_picture.name == pool) else {
        return Err(Error::NoPool {
            cluster: cluster.name().to_owned(),
            pool: pool.to_owned(),
            pools: pools.iter().map(|pool_picture| pool_picture.name.to_owned()).collect(),
        });
    };
    let path = format!("/spec/nodePools/{index}");
    let patch = json!([
        {"op": "test", "path": format!("{path}/name"), "value": pool},
        {"op": "add", "path": format!("{path}/replicas"), "value": replicas},
    ]);
    Ok(PatchBody::Json(patch))
}

/// Did the patch change anything? A dry run keeps the resource version, so specs count as well.
fn has_changed(old_object: &Value, new_object: &Value) -> bool {
    old_object.get("spec") != new_object.get("spec")
        || text_at(old_object, "/metadata/resourceVersion")
            != text_at(new_object, "/metadata/resourceVersion")
}

/// Returns the text in a Warning header, `299 - "text"`.
fn parse_warning(header: &str) -> Option<String> {
    let quoted = header.split_once('"')?.1;
    let text = quoted.strip_suffix('"').unwrap_or(quoted);
    Some(text.replace("\\\"", "\"").replace("\\\\", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_what_stands_in_quotes() {
        assert_eq!(parse_warning("299 - \"say \\\"so\\\"\"").as_deref(), Some("say \"so\""));
        assert_eq!(parse_warning("nonsense"), None);
    }
}
