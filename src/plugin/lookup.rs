//! Finds the object that a user means: clusters by name, with or without a kind; nodes by their
//! whole name or its end.

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{ShownDatabase, error::Error};
use crate::{
    api::{
        GROUP,
        database_names::DatabaseNames,
        object_picture::text_at,
        picture::ClusterPicture,
        predicate::Predicate,
        scheme::Scheme,
        v1beta1::{self, Pilot},
    },
    machinery::served_kind::ServedKind,
};

/// The inputs of one command: the API's client, the known databases, a namespace and the time.
#[derive(Clone)]
pub struct PluginSession {
    pub client: Client,
    pub scheme: &'static Scheme,
    pub databases: Vec<&'static ShownDatabase>,
    pub namespace: String,
    pub now: Timestamp,
}

/// A cluster that was found, and its kind.
#[derive(Clone)]
pub struct ClusterObject {
    pub kind: &'static dyn ServedKind,
    /// Names of the cluster's database, where the plugin knows it.
    pub names: Option<&'static DatabaseNames>,
    /// The object as the server shows it.
    pub object: Value,
}

impl ClusterObject {
    pub fn name(&self) -> &str {
        text_at(&self.object, "/metadata/name")
    }

    pub fn namespace(&self) -> &str {
        text_at(&self.object, "/metadata/namespace")
    }

    /// Returns resource and name of the cluster, as `examplecluster.navigator.jetstack.io/demo`.
    pub fn reference(&self) -> String {
        format!("{}.{GROUP}/{}", self.kind.singular(), self.name())
    }

    /// Returns the predicate of this name that holds steps up in the cluster, where it is known.
    pub fn predicate(&self, name: &str) -> Option<&'static Predicate> {
        self.names?.find_predicate(name)
    }

    /// Returns the picture of the cluster, without its nodes.
    pub fn picture(&self) -> ClusterPicture<'_> {
        ClusterPicture::new(&self.object)
    }
}

/// A cluster's name as it was typed: `demo`, or `KIND/demo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterName {
    pub kind: Option<String>,
    pub name: String,
}

impl std::str::FromStr for ClusterName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, name) = match text.split_once('/') {
            Some((kind, name)) => (Some(kind.to_owned()), name),
            None => (None, text),
        };
        let is_invalid = name.is_empty() || name.contains('/') || kind.as_deref() == Some("");
        if is_invalid {
            return Err("a cluster is NAME or KIND/NAME".to_owned());
        }
        Ok(Self { kind, name: name.to_owned() })
    }
}

impl PluginSession {
    /// Returns the database whose clusters are of this kind.
    pub fn database(&self, kind: &dyn ServedKind) -> Option<&'static ShownDatabase> {
        self.databases.iter().copied().find(|database| database.names.kind == kind.kind())
    }

    fn build_cluster(
        &self,
        kind: &'static dyn ServedKind,
        object: &DynamicObject,
    ) -> ClusterObject {
        let names = self.database(kind).map(|database| database.names);
        ClusterObject { kind, names, object: object_value(object) }
    }

    pub fn api_resource(kind: &dyn ServedKind) -> ApiResource {
        ApiResource {
            group: GROUP.to_owned(),
            version: v1beta1::VERSION.to_owned(),
            api_version: v1beta1::API_VERSION.to_owned(),
            kind: kind.kind().to_owned(),
            plural: kind.plural().to_owned(),
        }
    }

    fn cluster_api(&self, kind: &dyn ServedKind, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = Self::api_resource(kind);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    /// Returns the kinds that `word` names, as kubectl understands it: singular, plural or short
    /// name.
    fn find_kinds(&self, word: Option<&str>) -> Result<Vec<&'static dyn ServedKind>, Error> {
        let kinds: Vec<_> = self.scheme.cluster_kinds().collect();
        let Some(word) = word else { return Ok(kinds) };
        let lower = word.to_lowercase();
        let lower = lower.strip_suffix(&format!(".{GROUP}")).unwrap_or(&lower);
        let is_named = |kind: &&dyn ServedKind| {
            [kind.singular(), kind.plural()].contains(&lower) || kind.short_names().contains(&lower)
        };
        match kinds.iter().copied().find(is_named) {
            Some(kind) => Ok(vec![kind]),
            None => Err(Error::UnknownKind {
                kind: word.to_owned(),
                known: kinds.iter().map(|kind| kind.singular().to_owned()).collect(),
            }),
        }
    }

    /// Finds the one cluster that the user named.
    pub async fn find_cluster(&self, cluster_name: &ClusterName) -> Result<ClusterObject, Error> {
        let kinds = self.find_kinds(cluster_name.kind.as_deref())?;
        let (mut clusters, mut last_error, mut is_absent) = (Vec::new(), None, false);
        for kind in kinds {
            match self.cluster_api(kind, Some(&self.namespace)).get(&cluster_name.name).await {
                Ok(object) => clusters.push(self.build_cluster(kind, &object)),
                Err(error) => match not_found_reason(&error) {
                    Some(NotFoundReason::Object) => is_absent = true,
                    Some(NotFoundReason::Group) => {}
                    None => last_error = Some(error),
                },
            }
        }
        match (clusters.pop(), last_error) {
            (Some(cluster), None) if clusters.is_empty() => Ok(cluster),
            (Some(cluster), None) => {
                clusters.push(cluster);
                let full_name = |cluster: &ClusterObject| {
                    format!("{}/{}", cluster.kind.singular(), cluster_name.name)
                };
                let names = clusters.iter().map(full_name).collect();
                Err(Error::Ambiguous { name: cluster_name.name.clone(), known: names })
            }
            // The kind that could not be read may have a cluster of this name, too.
            (_, Some(error)) => Err(Error::Server(error)),
            (None, None) if is_absent => Err(Error::NoCluster {
                name: cluster_name.name.clone(),
                namespace: self.namespace.clone(),
            }),
            (None, None) => Err(Error::NotInstalled),
        }
    }

    /// Lists the clusters of one namespace, or of all namespaces, by namespace and name.
    pub async fn list_clusters(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<ClusterObject>, Error> {
        let mut clusters = Vec::new();
        for kind in self.scheme.cluster_kinds() {
            let list = self.cluster_api(kind, namespace).list(&ListParams::default()).await;
            let list = list.map_err(|error| match not_found_reason(&error) {
                Some(NotFoundReason::Group) => Error::NotInstalled,
                _ => Error::Server(error),
            })?;
            clusters.extend(list.items.iter().map(|object| self.build_cluster(kind, object)));
        }
        let sort_key =
            |cluster: &ClusterObject| (cluster.namespace().to_owned(), cluster.name().to_owned());
        clusters.sort_by_key(sort_key);
        Ok(clusters)
    }

    pub fn pilot_api(&self, namespace: &str) -> Api<Pilot> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Returns the Pilots of a cluster, in the order of its pools and of their numbers.
    pub async fn list_pilots(&self, cluster: &ClusterObject) -> Result<Vec<Pilot>, Error> {
        let fields = format!(
            "spec.clusterRef.kind={},spec.clusterRef.name={}",
            cluster.kind.kind(),
            cluster.name()
        );
        let list = self
            .pilot_api(cluster.namespace())
            .list(&ListParams::default().fields(&fields))
            .await?;
        let (mut pilots, picture) = (list.items, cluster.picture());
        pilots.sort_by_cached_key(|pilot| picture.place_of(pilot));
        Ok(pilots)
    }
}

pub fn name_of(pilot: &Pilot) -> &str {
    pilot.metadata.name.as_deref().unwrap_or_default()
}

/// Returns the one node that the user named: by its whole name, or by the end of it after a dash.
pub fn find_node<'a>(cluster: &str, pilots: &'a [Pilot], name: &str) -> Result<&'a Pilot, Error> {
    if let Some(pilot) = pilots.iter().find(|pilot| name_of(pilot) == name) {
        return Ok(pilot);
    }
    let suffix = format!("-{name}");
    let matches: Vec<&Pilot> =
        pilots.iter().filter(|pilot| name_of(pilot).ends_with(&suffix)).collect();
    let node_names = |pilots: &mut dyn Iterator<Item = &Pilot>| {
        pilots.map(|pilot| name_of(pilot).to_owned()).collect()
    };
    match matches.as_slice() {
        [pilot] => Ok(pilot),
        [] => Err(Error::NoNode {
            cluster: cluster.to_owned(),
            node: name.to_owned(),
            nodes: node_names(&mut pilots.iter()),
        }),
        candidates => Err(Error::AmbiguousNode {
            node: name.to_owned(),
            nodes: node_names(&mut candidates.iter().copied()),
        }),
    }
}

/// What a 404 says is missing.
enum NotFoundReason {
    Object,
    /// The API group: no server serves it.
    Group,
}

fn not_found_reason(error: &kube::Error) -> Option<NotFoundReason> {
    let kube::Error::Api(status) = error else { return None };
    if status.code != 404 {
        return None;
    }
    let has_name = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    Some(if has_name { NotFoundReason::Object } else { NotFoundReason::Group })
}

fn object_value(object: &DynamicObject) -> Value {
    serde_json::to_value(object).expect("what was read as JSON can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pilot(name: &str) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some(name.to_owned());
        pilot
    }

    #[test]
    fn a_node_is_known_by_its_name_or_the_end_of_it() {
        let pilots = [pilot("x-demo-ring-0"), pilot("x-demo-ring-10"), pilot("x-demo-b-ring-0")];
        let asked = |wanted: &str| find_node("demo", &pilots, wanted).map(name_of);
        assert_eq!(asked("x-demo-ring-10").unwrap(), "x-demo-ring-10");
        assert_eq!(asked("ring-10").unwrap(), "x-demo-ring-10");
        assert_eq!(asked("b-ring-0").unwrap(), "x-demo-b-ring-0");
        let several = asked("ring-0").unwrap_err().to_string();
        assert!(several.contains("x-demo-ring-0, x-demo-b-ring-0"), "{several}");
        let none = asked("ring-1").unwrap_err().to_string();
        assert!(none.contains("has no node \"ring-1\"; it has x-demo-ring-0, "), "{none}");
    }

    #[test]
    fn a_cluster_is_a_name_with_or_without_a_kind() {
        let parsed = |text: &str| text.parse::<ClusterName>();
        assert_eq!(parsed("demo").unwrap(), ClusterName { kind: None, name: "demo".to_owned() });
        let both = ClusterName { kind: Some("cc".to_owned()), name: "demo".to_owned() };
        assert_eq!(parsed("cc/demo").unwrap(), both);
        for wrong in ["", "/", "a/", "/a", "a/b/c"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
