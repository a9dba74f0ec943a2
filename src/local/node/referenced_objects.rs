//! Reads the Secrets and ConfigMaps that a pod's variables and volumes name, each of them once.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Container, Secret, Volume};
use kube::{Api, Client};

/// The kind of object that a value is taken from, as messages call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ValueSource {
    Secret,
    ConfigMap,
}

impl ValueSource {
    fn name(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::ConfigMap => "configmap",
        }
    }
}

/// Values of a Secret or ConfigMap by key.
pub(crate) type ObjectData = BTreeMap<String, Vec<u8>>;

/// The Secrets and ConfigMaps that a pod names and that were found.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReferencedObjects(BTreeMap<(ValueSource, String), ObjectData>);

impl ReferencedObjects {
    /// Reads what these containers and volumes name. A missing object is an error only when used.
    pub(crate) async fn read(
        client: &Client,
        namespace: &str,
        containers: &[Container],
        volumes: &[Volume],
    ) -> Result<Self, kube::Error> {
        let mut objects = BTreeMap::new();
        for (source, name) in find_references(containers, volumes) {
            let data = match source {
                ValueSource::Secret => {
                    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
                    api.get_opt(&name).await?.map(secret_data)
                }
                ValueSource::ConfigMap => {
                    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
                    api.get_opt(&name).await?.map(config_map_data)
                }
            };
            if let Some(data) = data {
                objects.insert((source, name), data);
            }
        }
        Ok(Self(objects))
    }

    #[cfg(test)]
    pub(crate) fn with(mut self, source: ValueSource, name: &str, data: &[(&str, &str)]) -> Self {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        self.0.insert((source, name.to_owned()), data);
        self
    }

    /// Returns all values of an object; `None` where the object is optional and missing.
    pub(crate) fn object_values(
        &self,
        source: ValueSource,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&ObjectData>, String> {
        match self.0.get(&(source, name.to_owned())) {
            None if optional != Some(true) => Err(format!("{} {name:?} not found", source.name())),
            data => Ok(data),
        }
    }

    /// Returns one value of an object; `None` where the value is optional and missing.
    pub(crate) fn value(
        &self,
        source: ValueSource,
        name: &str,
        key: &str,
        optional: Option<bool>,
    ) -> Result<Option<&[u8]>, String> {
        let Some(data) = self.object_values(source, name, optional)? else { return Ok(None) };
        match data.get(key) {
            None if optional != Some(true) => {
                Err(format!("couldn't find key {key:?} in {} {name:?}", source.name()))
            }
            value => Ok(value.map(Vec::as_slice)),
        }
    }
}

fn secret_data(secret: Secret) -> ObjectData {
    secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect()
}

fn config_map_data(config_map: ConfigMap) -> ObjectData {
    let text = config_map.data.unwrap_or_default().into_iter();
    let binary = config_map.binary_data.unwrap_or_default().into_iter();
    text.map(|(key, value)| (key, value.into_bytes()))
        .chain(binary.map(|(key, value)| (key, value.0)))
        .collect()
}

/// Returns the Secrets and ConfigMaps that these containers and volumes name.
fn find_references(
    containers: &[Container],
    volumes: &[Volume],
) -> BTreeSet<(ValueSource, String)> {
    let mut references = BTreeSet::new();
    let mut add_reference = |source: ValueSource, name: Option<&String>| {
        references.extend(name.map(|name| (source, name.clone())));
    };
    for container in containers {
        for variable in container.env.iter().flatten().filter_map(|it| it.value_from.as_ref()) {
            add_reference(ValueSource::Secret, variable.secret_key_ref.as_ref().map(|it| &it.name));
            add_reference(
                ValueSource::ConfigMap,
                variable.config_map_key_ref.as_ref().map(|it| &it.name),
            );
        }
        for env_source in container.env_from.iter().flatten() {
            add_reference(ValueSource::Secret, env_source.secret_ref.as_ref().map(|it| &it.name));
            add_reference(
                ValueSource::ConfigMap,
                env_source.config_map_ref.as_ref().map(|it| &it.name),
            );
        }
    }
    for volume in volumes {
        add_reference(
            ValueSource::Secret,
            volume.secret.as_ref().and_then(|it| it.secret_name.as_ref()),
        );
        add_reference(ValueSource::ConfigMap, volume.config_map.as_ref().map(|it| &it.name));
        let projected = volume.projected.iter().flat_map(|it| it.sources.iter().flatten());
        for projection in projected {
            add_reference(ValueSource::Secret, projection.secret.as_ref().map(|it| &it.name));
            add_reference(
                ValueSource::ConfigMap,
                projection.config_map.as_ref().map(|it| &it.name),
            );
        }
    }
    references
}
