//! The record of a Plugin: a ConfigMap beside it that remembers the version that stands, and every object
//! that may be there.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Preconditions},
};

use super::PluginCoordinator;
use crate::{
    api::containership::{Plugin, name},
    coordinator::{look_error::LookError, stirring::post_params},
    engine::{conditions::Stall, plugins::PluginObject},
};

/// What is remembered of a Plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PluginRecord {
    /// Manifests of the version that stands, and their digest; both empty where none does.
    pub(super) manifests: String,
    pub(super) digest: String,
    /// All objects that may be there by us.
    pub(super) inventory: BTreeSet<PluginObject>,
    /// resourceVersion of the ConfigMap, if there is one.
    version: Option<String>,
}

/// Name of the record of a Plugin, and of the ServiceAccount that it is applied as.
pub(super) fn own_name(plugin: &Plugin) -> String {
    format!("plugin-{}", plugin.name_any())
}

impl PluginCoordinator {
    fn record_api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.status.writer.clone(), &self.status.namespace)
    }

    /// Reads the record of a Plugin; says so where its ConfigMap is another's.
    pub(super) async fn read_record(
        &self,
        plugin: &Plugin,
    ) -> Result<Result<PluginRecord, Stall>, LookError> {
        let name = own_name(plugin);
        let subject = format!("ConfigMap {name:?}");
        let read_result = self.record_api().get_opt(&name).await;
        let config_map =
            read_result.map_err(|error| LookError::for_request("read", &subject, error))?;
        let Some(mut config_map) = config_map else { return Ok(Ok(PluginRecord::default())) };
        if config_map.labels().get(name::PLUGIN) != plugin.uid().as_ref() {
            let message = format!("{subject} is not this Plugin's, and in the way of its record");
            return Ok(Err(("ForeignRecord", message)));
        }
        let mut data = config_map.data.take().unwrap_or_default();
        let mut take_field = |key: &str| data.remove(key).unwrap_or_default();
        Ok(Ok(PluginRecord {
            manifests: take_field("manifests"),
            digest: take_field("digest"),
            inventory: serde_json::from_str(&take_field("inventory")).unwrap_or_default(),
            version: config_map.resource_version(),
        }))
    }

    /// Writes the record of a Plugin.
    pub(super) async fn write_record(
        &self,
        plugin: &Plugin,
        record: &mut PluginRecord,
    ) -> Result<(), LookError> {
        let name = own_name(plugin);
        let inventory = serde_json::to_string(&record.inventory).unwrap_or_default();
        let mut object = ConfigMap {
            data: Some(
                [
                    ("manifests".to_owned(), record.manifests.clone()),
                    ("digest".to_owned(), record.digest.clone()),
                    ("inventory".to_owned(), inventory),
                ]
                .into(),
            ),
            ..ConfigMap::default()
        };
        object.metadata.name = Some(name.clone());
        object.metadata.labels =
            Some([(name::PLUGIN.to_owned(), plugin.uid().unwrap_or_default())].into());
        object.metadata.resource_version.clone_from(&record.version);
        let write_result = match record.version {
            None => self.record_api().create(&post_params(), &object).await,
            Some(_) => self.record_api().replace(&name, &post_params(), &object).await,
        };
        let subject = format!("ConfigMap {name:?}");
        let written_object =
            write_result.map_err(|error| LookError::for_request("write", &subject, error))?;
        record.version = written_object.resource_version();
        Ok(())
    }

    /// Deletes the record of a Plugin.
    pub(super) async fn delete_record(
        &self,
        plugin: &Plugin,
        record: &PluginRecord,
    ) -> Result<(), LookError> {
        let Some(version) = record.version.clone() else { return Ok(()) };
        let preconditions = Preconditions { resource_version: Some(version), uid: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = own_name(plugin);
        match self.record_api().delete(&name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            Err(error) => {
                Err(LookError::for_request("delete", &format!("ConfigMap {name:?}"), error))
            }
        }
    }
}
