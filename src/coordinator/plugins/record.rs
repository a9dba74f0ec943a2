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
    coordinator::{look_error::LookError, stirring::posted},
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
    fn records(&self) -> Api<ConfigMap> {
        Api::namespaced(self.status.writer.clone(), &self.status.namespace)
    }

    /// Reads the record of a Plugin; says so where its ConfigMap is another's.
    pub(super) async fn record(
        &self,
        plugin: &Plugin,
    ) -> Result<Result<PluginRecord, Stall>, LookError> {
        let name = own_name(plugin);
        let what = format!("ConfigMap {name:?}");
        let found = self.records().get_opt(&name).await;
        let found = found.map_err(|error| LookError::request("read", &what, error))?;
        let Some(mut found) = found else { return Ok(Ok(PluginRecord::default())) };
        if found.labels().get(name::PLUGIN) != plugin.uid().as_ref() {
            let why = format!("{what} is not this Plugin's, and in the way of its record");
            return Ok(Err(("ForeignRecord", why)));
        }
        let mut data = found.data.take().unwrap_or_default();
        let mut of = |key: &str| data.remove(key).unwrap_or_default();
        Ok(Ok(PluginRecord {
            manifests: of("manifests"),
            digest: of("digest"),
            inventory: serde_json::from_str(&of("inventory")).unwrap_or_default(),
            version: found.resource_version(),
        }))
    }

    /// Writes the record of a Plugin.
    pub(super) async fn keep(
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
        let written = match record.version {
            None => self.records().create(&posted(), &object).await,
            Some(_) => self.records().replace(&name, &posted(), &object).await,
        };
        let what = format!("ConfigMap {name:?}");
        let written = written.map_err(|error| LookError::request("write", &what, error))?;
        record.version = written.resource_version();
        Ok(())
    }

    /// Deletes the record of a Plugin.
    pub(super) async fn forget(
        &self,
        plugin: &Plugin,
        record: &PluginRecord,
    ) -> Result<(), LookError> {
        let Some(version) = record.version.clone() else { return Ok(()) };
        let version = Preconditions { resource_version: Some(version), uid: None };
        let params = DeleteParams { preconditions: Some(version), ..DeleteParams::default() };
        let name = own_name(plugin);
        match self.records().delete(&name, &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
            Err(error) => Err(LookError::request("delete", &format!("ConfigMap {name:?}"), error)),
        }
    }
}
