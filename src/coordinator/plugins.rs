//! Plugins: what is done next is decided in `engine/plugins`.
//!
//! Invariants: objects of a Plugin are read and written as its own ServiceAccount, so that a Plugin can do no
//! more than that may. Before the first object is written, the Plugin's record names all of them. What does
//! not bear the Plugin's label is never deleted.

mod apply;
mod hub;
mod record;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    runtime::{watcher, watcher::Event},
};
use tokio::sync::Mutex;

pub(super) use self::hub::PluginHub;
use self::{apply::ApplyEnd, record::PluginRecord};
use super::{
    look_error::LookError,
    metrics::Metrics,
    stirring::{LookEnd, StatusWriter, StirredWork, WatchedLedger, watch_into},
};
use crate::{
    api::containership::{Plugin, PluginFailure, PluginRollout, PluginStatus, name},
    engine::{
        conditions::{ObjectVerdict, Stall, build_conditions},
        plugins::{PluginAction, PluginManifest, manifests_digest, next_action, parse_manifests},
    },
    runtime::{
        Runtime,
        watch::{WatchedReplica, paged_config},
    },
};

/// What the watch told of Plugins.
#[derive(Default)]
pub(crate) struct PluginLedger {
    plugins: WatchedReplica<Plugin>,
}

impl PluginLedger {
    fn record_event(&mut self, event: &Event<Plugin>) -> bool {
        self.plugins.apply_event(event, strip_managed_fields)
    }

    fn plugins(&self) -> Vec<Plugin> {
        self.plugins.objects().map(|held| held.values().cloned().collect()).unwrap_or_default()
    }
}

fn strip_managed_fields(plugin: &Plugin) -> Plugin {
    let mut plugin = plugin.clone();
    plugin.metadata.managed_fields = None;
    plugin
}

/// Starts the watch.
pub(crate) fn watch_plugins(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
) -> WatchedLedger<PluginLedger> {
    let ledger: WatchedLedger<PluginLedger> = WatchedLedger::default();
    let plugins = watcher(Api::<Plugin>::namespaced(client.clone(), namespace), paged_config());
    watch_into(runtime, "watch-plugins", plugins, &ledger, PluginLedger::record_event);
    ledger
}

/// Applies Plugins, while this process leads.
pub(crate) struct PluginCoordinator {
    pub(super) seen: WatchedLedger<PluginLedger>,
    pub(super) client: Client,
    /// Where manifests are that no Plugin names; locked by the one look that there is.
    pub(super) hub: Option<Mutex<PluginHub>>,
    pub(super) status: StatusWriter,
    pub(super) metrics: Metrics,
}

impl StirredWork for PluginCoordinator {
    const WORK: &'static str = "plugins";

    async fn wait_for_change(&self) {
        self.seen.wait_for_change().await;
    }

    async fn reconcile(&self) -> Result<LookEnd, LookError> {
        let plugins = self.seen.lock().plugins();
        if let Some(hub) = &self.hub {
            hub.lock().await.fetch_manifests(&plugins).await;
        }
        let (mut end, mut failure) = (LookEnd::Done, None);
        for plugin in plugins {
            match Box::pin(self.reconcile_plugin(plugin)).await {
                Ok(plugin_end) => end = end.max(plugin_end),
                Err(LookError::NotLeading) => return Err(LookError::NotLeading),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        self.metrics.plugin_ready.reset();
        for plugin in self.seen.lock().plugins() {
            let conditions = plugin.status.iter().flat_map(|status| &status.conditions);
            let ready_conditions = conditions
                .filter(|condition| condition.type_ == "Ready" && condition.status == "True");
            let gauge = self.metrics.plugin_ready.with_label_values(&[&plugin.name_any()]);
            gauge.set(i64::from(ready_conditions.count() > 0));
        }
        failure.map_or(Ok(end), Err)
    }
}

/// A Plugin during one look.
struct PluginTurn {
    plugin: Plugin,
    status: PluginStatus,
    record: PluginRecord,
}

/// A version that is asked for.
struct PluginVersion {
    text: String,
    digest: String,
    manifests: Vec<PluginManifest>,
}

impl PluginCoordinator {
    async fn reconcile_plugin(&self, plugin: Plugin) -> Result<LookEnd, LookError> {
        let is_deleted = plugin.metadata.deletion_timestamp.is_some();
        let plugin = if is_deleted {
            plugin
        } else {
            self.status.add_finalizer(plugin, name::PLUGIN_FINALIZER).await?
        };
        self.seen.lock().plugins.record_write(plugin.clone(), strip_managed_fields);
        let status = plugin.status.clone().unwrap_or_default();
        let record = self.read_record(&plugin).await?;
        let mut turn = PluginTurn { plugin, status, record: PluginRecord::default() };
        match record {
            Ok(record) => turn.record = record,
            Err(_) if is_deleted => {}
            Err(stall) => return self.report_stalled(turn, stall).await,
        }
        if is_deleted {
            return self.delete_plugin(turn).await;
        }
        if turn.status.rollout.as_ref().is_some_and(|rollout| rollout.failure.is_some()) {
            return self.roll_back(turn).await;
        }
        let version = match self.read_version(&turn.plugin).await? {
            Ok(version) => version,
            Err(stall) if stall.0 == hub::UNREACHABLE => {
                return self.report_hub_unreachable(turn, stall).await;
            }
            // What is on its way has nothing to come from.
            Err((_, message)) if turn.status.rollout.is_some() => {
                return self.fail_rollout(turn, message).await;
            }
            Err(stall) => return self.report_stalled(turn, stall).await,
        };
        let stored_digest = Some(turn.record.digest.as_str()).filter(|digest| !digest.is_empty());
        let timeout = turn.plugin.spec.timeout_seconds;
        match next_action(&turn.status, &version.digest, stored_digest, timeout, Timestamp::now()) {
            PluginAction::Rest => self.maintain_version(turn, version).await,
            PluginAction::GiveUp => {
                let message = turn.status.failed.clone().unwrap_or_default().message;
                self.report_stalled(turn, ("VersionFailed", message)).await
            }
            PluginAction::Begin => self.start_rollout(turn, version).await,
            PluginAction::Apply => self.apply_version(turn, version).await,
            PluginAction::Await => self.await_rollout(turn, version).await,
            PluginAction::Expire => {
                let conditions = &turn.status.conditions;
                let reconciling_condition =
                    conditions.iter().find(|condition| condition.type_ == "Reconciling");
                let last_message = reconciling_condition
                    .map(|condition| condition.message.clone())
                    .unwrap_or_default();
                let message = format!("it was not rolled out within {timeout} s: {last_message}");
                self.fail_rollout(turn, message).await
            }
            PluginAction::Undo => self.roll_back(turn).await,
        }
    }

    /// Reads what is asked for.
    async fn read_version(
        &self,
        plugin: &Plugin,
    ) -> Result<Result<PluginVersion, Stall>, LookError> {
        let text = match self.read_source(plugin).await? {
            Ok(text) => text,
            Err(stall) => return Ok(Err(stall)),
        };
        Ok(parse_manifests(&text).map_err(|message| ("ManifestsInvalid", message)).map(
            |manifests| {
                let retry = plugin.annotations().get(name::RETRY).map(String::as_str);
                PluginVersion { digest: manifests_digest(&text, retry), text, manifests }
            },
        ))
    }

    /// Reads the manifests from where they are.
    async fn read_source(&self, plugin: &Plugin) -> Result<Result<String, Stall>, LookError> {
        let source = plugin.spec.source.clone().unwrap_or_default();
        if let Some(text) = source.inline {
            return Ok(Ok(text));
        }
        let Some(config_map_ref) = source.config_map_ref else {
            let Some(hub) = &self.hub else {
                let message = "its manifests are a hub's: run the coordinator with --hub, or name another source";
                return Ok(Err(("HubMissing", message.to_owned())));
            };
            return Ok(hub.lock().await.manifests(plugin));
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.status.namespace);
        let subject = format!("ConfigMap {:?}", config_map_ref.name);
        let read_result = api.get_opt(&config_map_ref.name).await;
        let config_map =
            read_result.map_err(|error| LookError::for_request("read", &subject, error))?;
        let join_texts = |object: ConfigMap| {
            let texts: Vec<String> =
                object.data.into_iter().flat_map(BTreeMap::into_values).collect();
            texts.join("\n---\n")
        };
        Ok(config_map
            .map(join_texts)
            .ok_or_else(|| ("SourceMissing", format!("{subject} is not there"))))
    }

    /// Tries a version, and lets it begin if nothing is in its way.
    async fn start_rollout(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        match self.apply_all(&turn.plugin, &version.manifests, true).await? {
            ApplyEnd::Refused((_, message)) if turn.status.rollout.is_some() => {
                return self.fail_rollout(turn, message).await;
            }
            ApplyEnd::Refused(stall) => return self.report_stalled(turn, stall).await,
            ApplyEnd::Done | ApplyEnd::Waiting(_) => {}
        }
        turn.record.inventory.extend(version.manifests.into_iter().map(|manifest| manifest.object));
        self.write_record(&turn.plugin, &mut turn.record).await?;
        turn.status.failed = None;
        turn.status.rollout = Some(PluginRollout {
            digest: version.digest,
            started_at: Time(whole_second(Timestamp::now())),
            applied: false,
            failure: None,
        });
        self.report_progress(turn, "all objects passed a dry run".to_owned(), LookEnd::More).await
    }

    async fn apply_version(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        match self.apply_all(&turn.plugin, &version.manifests, false).await? {
            ApplyEnd::Refused((_, message)) => self.fail_rollout(turn, message).await,
            ApplyEnd::Waiting(wait_reason) => {
                self.report_progress(turn, wait_reason, LookEnd::Soon).await
            }
            ApplyEnd::Done => {
                if let Some(rollout) = &mut turn.status.rollout {
                    rollout.applied = true;
                }
                self.report_progress(turn, "all objects were applied".to_owned(), LookEnd::More)
                    .await
            }
        }
    }

    /// Waits until all is rolled out; then this version is the one that is kept.
    async fn await_rollout(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        match self.await_all(&turn.plugin, &version.manifests).await? {
            ApplyEnd::Refused((_, message)) => self.fail_rollout(turn, message).await,
            ApplyEnd::Waiting(wait_reason) => {
                self.report_progress(turn, wait_reason, LookEnd::Soon).await
            }
            ApplyEnd::Done => {
                turn.record.manifests = version.text;
                turn.record.digest = version.digest;
                self.write_record(&turn.plugin, &mut turn.record).await?;
                turn.status.rollout = None;
                self.report_progress(turn, "all objects are rolled out".to_owned(), LookEnd::More)
                    .await
            }
        }
    }

    /// Takes away what left the manifests of the version that stands.
    async fn maintain_version(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        turn.status.version.clone_from(&turn.plugin.spec.version);
        turn.status.objects = i32::try_from(version.manifests.len()).unwrap_or(i32::MAX);
        let objects = version.manifests.into_iter().map(|manifest| manifest.object).collect();
        if let Some(message) = self.prune_objects(&mut turn, objects).await? {
            return self.report_stalled(turn, ("PruneFailed", message)).await;
        }
        turn.status.failed = None;
        let message = format!("{} objects stand", turn.status.objects);
        self.write_status(turn, ObjectVerdict::new(true, "Applied", message, None)).await?;
        Ok(LookEnd::Done)
    }

    /// Puts the version before in the place of one that failed. Where there is none, what was applied stays,
    /// so that people can look at it.
    async fn roll_back(&self, mut turn: PluginTurn) -> Result<LookEnd, LookError> {
        let Some(rollout) = turn.status.rollout.clone() else { return Ok(LookEnd::Done) };
        let mut message = rollout.failure.unwrap_or_default();
        if turn.record.digest.is_empty() {
            message += "; there is no version before it, and what was applied stays";
        } else {
            // They were read before.
            let previous_manifests = parse_manifests(&turn.record.manifests).unwrap_or_default();
            let apply_end = self.apply_all(&turn.plugin, &previous_manifests, false).await?;
            let refusal = match apply_end {
                ApplyEnd::Waiting(wait_reason) => {
                    return self.report_progress(turn, wait_reason, LookEnd::Soon).await;
                }
                ApplyEnd::Refused((_, reason)) => Some(reason),
                ApplyEnd::Done => {
                    let objects =
                        previous_manifests.into_iter().map(|manifest| manifest.object).collect();
                    self.prune_objects(&mut turn, objects).await?
                }
            };
            if let Some(reason) = refusal {
                let undo_message =
                    format!("{message}; the version before cannot be put back: {reason}");
                self.report_stalled(turn, ("UndoFailed", undo_message)).await?;
                return Ok(LookEnd::Partly);
            }
            message += "; the version before stands";
        }
        turn.status.rollout = None;
        turn.status.failed =
            Some(PluginFailure { digest: rollout.digest, message: message.clone() });
        self.report_stalled(turn, ("VersionFailed", message)).await
    }

    /// Takes all of a Plugin away that is being deleted, and lets it go.
    async fn delete_plugin(&self, mut turn: PluginTurn) -> Result<LookEnd, LookError> {
        if let Some(message) = self.prune_objects(&mut turn, BTreeSet::new()).await? {
            self.report_stalled(turn, ("PruneFailed", message)).await?;
            return Ok(LookEnd::Partly);
        }
        self.delete_record(&turn.plugin, &turn.record).await?;
        self.status.remove_finalizer(&turn.plugin, name::PLUGIN_FINALIZER).await?;
        Ok(LookEnd::Done)
    }

    /// Has the version on its way undone.
    async fn fail_rollout(
        &self,
        mut turn: PluginTurn,
        reason: String,
    ) -> Result<LookEnd, LookError> {
        let message = format!("the version is undone: {reason}");
        if let Some(rollout) = &mut turn.status.rollout {
            rollout.failure = Some(reason);
        }
        self.report_progress(turn, message, LookEnd::More).await
    }

    async fn report_progress(
        &self,
        turn: PluginTurn,
        message: String,
        end: LookEnd,
    ) -> Result<LookEnd, LookError> {
        let is_present =
            self.write_status(turn, ObjectVerdict::new(false, "RollingOut", message, None)).await?;
        Ok(if is_present { end } else { LookEnd::Done })
    }

    async fn report_stalled(&self, turn: PluginTurn, stall: Stall) -> Result<LookEnd, LookError> {
        let message = "the version that is asked for does not stand".to_owned();
        self.write_status(turn, ObjectVerdict::new(false, "NotApplied", message, Some(stall)))
            .await?;
        Ok(LookEnd::Done)
    }

    /// Leaves all as it is, since the hub does not say what is wanted.
    async fn report_hub_unreachable(
        &self,
        turn: PluginTurn,
        stall: Stall,
    ) -> Result<LookEnd, LookError> {
        let PluginTurn { plugin, status, .. } = &turn;
        let mut conditions = status.conditions.iter();
        let is_ready = status.observed_generation == plugin.metadata.generation
            && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let message = "what stands stays until the hub says what is wanted".to_owned();
        let verdict = ObjectVerdict::new(false, "HubUnreachable", message, Some(stall));
        self.write_status(turn, ObjectVerdict { ready: is_ready, ..verdict }).await?;
        Ok(LookEnd::Done)
    }

    /// Writes the status, if it says something new. Returns whether the Plugin is still there.
    async fn write_status(
        &self,
        turn: PluginTurn,
        verdict: ObjectVerdict,
    ) -> Result<bool, LookError> {
        let PluginTurn { plugin, status: mut new_status, .. } = turn;
        let generation = plugin.metadata.generation;
        let old_status = plugin.status.clone().unwrap_or_default();
        new_status.observed_generation = generation;
        new_status.conditions =
            build_conditions(&old_status.conditions, generation, verdict, Timestamp::now());
        if new_status == old_status {
            return Ok(true);
        }
        let plugin = Plugin { status: Some(new_status.clone()), ..plugin };
        let write_result = self
            .status
            .write_status(&plugin, &old_status.conditions, &new_status.conditions)
            .await?;
        let Some(written_plugin) = write_result else { return Ok(false) };
        self.seen.lock().plugins.record_write(written_plugin, strip_managed_fields);
        Ok(true)
    }
}

fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
