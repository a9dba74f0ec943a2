//! The manifests that a hub has of Plugins. A Plugin is known to the hub by its name.
//!
//! Invariant: an answer counts only as a whole. Where there is none, the version on its way goes on from
//! the answer before, and no other begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube::ResourceExt;
use prometheus::IntCounterVec;
use tokio::time::Instant;

use crate::{
    api::containership::Plugin,
    coordinator::hub::{HubClient, HubConfig, HubError, HubRound},
    engine::{
        conditions::Stall,
        hub::{HubScope, read_manifests},
    },
    error::chain,
};

/// Reason of a Plugin of which the hub does not say what is wanted.
pub(super) const UNREACHABLE: &str = "HubUnreachable";
/// Interval at which the hub is asked, at least: a version on its way is looked at more often.
const INTERVAL: Duration = Duration::from_secs(30);

/// Asks a hub for the manifests of Plugins, and knows its last answers.
pub(in crate::coordinator) struct PluginHub {
    client: HubClient,
    scope: HubScope,
    due: Instant,
    /// Manifests by Plugin, as the hub last said them.
    texts: BTreeMap<String, String>,
    /// Why the hub's newest answers do not count, by Plugin.
    faults: BTreeMap<String, String>,
}

impl PluginHub {
    pub(in crate::coordinator) fn new(config: HubConfig, requests: IntCounterVec) -> Self {
        let HubConfig { address, folder, scope } = config;
        Self {
            client: HubClient::new(address, folder, requests),
            scope,
            due: Instant::now(),
            texts: BTreeMap::new(),
            faults: BTreeMap::new(),
        }
    }

    /// Asks for the manifests of all Plugins that the hub has, unless it was asked for them just now.
    pub(super) async fn fetch_manifests(&mut self, plugins: &[Plugin]) {
        let requested_plugins = plugins.iter().filter(|plugin| is_asked(plugin));
        let names: BTreeSet<String> = requested_plugins.map(ResourceExt::name_any).collect();
        let is_known =
            |name: &String| self.texts.contains_key(name) || self.faults.contains_key(name);
        if names.is_empty() || (Instant::now() < self.due && names.iter().all(is_known)) {
            return;
        }
        self.due = Instant::now() + INTERVAL;
        self.texts.retain(|name, _| names.contains(name));
        self.faults.clear();
        let mut round = self.client.begin_round().await.map_err(|error| chain(&error).to_string());
        for name in names {
            let fault = match &mut round {
                Ok(open_round) => match self.fetch_one(open_round, &name).await {
                    Ok(text) => {
                        self.texts.insert(name, text);
                        continue;
                    }
                    Err(error) => {
                        let fault = chain(&error).to_string();
                        // The others would wait as long for no answer.
                        if matches!(error, HubError::Request { .. } | HubError::Late { .. }) {
                            round = Err(fault.clone());
                        }
                        fault
                    }
                },
                Err(fault) => fault.clone(),
            };
            self.faults.insert(name, fault);
        }
        if let Ok(round) = round {
            self.client.end_round(round);
        }
    }

    async fn fetch_one(&self, round: &mut HubRound, name: &str) -> Result<String, HubError> {
        let path = self.scope.plugin_path(name);
        let body = self.client.get(round, &path).await?;
        read_manifests(&body).map_err(|source| HubError::Answer { path, source })
    }

    /// Returns the manifests of a Plugin, or why they are not known.
    pub(super) fn manifests(&self, plugin: &Plugin) -> Result<String, Stall> {
        let name = plugin.name_any();
        let fault = self.faults.get(&name);
        let is_under_way = plugin.status.as_ref().is_some_and(|status| status.rollout.is_some());
        match self.texts.get(&name) {
            Some(text) if fault.is_none() || is_under_way => Ok(text.clone()),
            _ => Err((UNREACHABLE, fault.cloned().unwrap_or_default())),
        }
    }
}

/// Has the hub this Plugin's manifests, and are they wanted?
fn is_asked(plugin: &Plugin) -> bool {
    let has_other_source = plugin.spec.source.as_ref().is_some_and(|source| source.hub.is_none());
    !has_other_source && plugin.metadata.deletion_timestamp.is_none()
}
