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
        conditions::{ObjectVerdict, Stall, conditions},
        plugins::{PluginAction, PluginManifest, digest, manifests, next},
    },
    runtime::{
        Runtime,
        watch::{WatchedReplica, paged},
    },
};

/// What the watch told of Plugins.
#[derive(Default)]
pub(crate) struct PluginLedger {
    plugins: WatchedReplica<Plugin>,
}

impl PluginLedger {
    fn see(&mut self, event: &Event<Plugin>) -> bool {
        self.plugins.take(event, kept)
    }

    fn all(&self) -> Vec<Plugin> {
        self.plugins.held().map(|held| held.values().cloned().collect()).unwrap_or_default()
    }
}

fn kept(plugin: &Plugin) -> Plugin {
    let mut plugin = plugin.clone();
    plugin.metadata.managed_fields = None;
    plugin
}

/// Starts the watch.
pub(crate) fn watch(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
) -> WatchedLedger<PluginLedger> {
    let ledger: WatchedLedger<PluginLedger> = WatchedLedger::default();
    let plugins = watcher(Api::<Plugin>::namespaced(client.clone(), namespace), paged());
    watch_into(runtime, "watch-plugins", plugins, &ledger, PluginLedger::see);
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

    async fn stirred(&self) {
        self.seen.stirred().await;
    }

    async fn look(&self) -> Result<LookEnd, LookError> {
        let plugins = self.seen.lock().all();
        if let Some(hub) = &self.hub {
            hub.lock().await.ask(&plugins).await;
        }
        let (mut end, mut failure) = (LookEnd::Done, None);
        for plugin in plugins {
            match Box::pin(self.turn(plugin)).await {
                Ok(turn) => end = end.max(turn),
                Err(LookError::NotLeading) => return Err(LookError::NotLeading),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        self.metrics.plugin_ready.reset();
        for plugin in self.seen.lock().all() {
            let conditions = plugin.status.iter().flat_map(|status| &status.conditions);
            let ready = conditions.filter(|one| one.type_ == "Ready" && one.status == "True");
            let gauge = self.metrics.plugin_ready.with_label_values(&[&plugin.name_any()]);
            gauge.set(i64::from(ready.count() > 0));
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
    async fn turn(&self, plugin: Plugin) -> Result<LookEnd, LookError> {
        let leaving = plugin.metadata.deletion_timestamp.is_some();
        let plugin =
            if leaving { plugin } else { self.status.hold(plugin, name::PLUGIN_FINALIZER).await? };
        self.seen.lock().plugins.note(plugin.clone(), kept);
        let status = plugin.status.clone().unwrap_or_default();
        let record = self.record(&plugin).await?;
        let mut turn = PluginTurn { plugin, status, record: PluginRecord::default() };
        match record {
            Ok(record) => turn.record = record,
            Err(_) if leaving => {}
            Err(why) => return self.stall(turn, why).await,
        }
        if leaving {
            return self.remove(turn).await;
        }
        if turn.status.rollout.as_ref().is_some_and(|rollout| rollout.failure.is_some()) {
            return self.undo(turn).await;
        }
        let version = match self.version(&turn.plugin).await? {
            Ok(version) => version,
            Err(why) if why.0 == hub::UNREACHABLE => return self.leave(turn, why).await,
            // What is on its way has nothing to come from.
            Err((_, why)) if turn.status.rollout.is_some() => return self.fail(turn, why).await,
            Err(why) => return self.stall(turn, why).await,
        };
        let kept = Some(turn.record.digest.as_str()).filter(|digest| !digest.is_empty());
        let timeout = turn.plugin.spec.timeout_seconds;
        match next(&turn.status, &version.digest, kept, timeout, Timestamp::now()) {
            PluginAction::Rest => self.rest(turn, version).await,
            PluginAction::GiveUp => {
                let why = turn.status.failed.clone().unwrap_or_default().message;
                self.stall(turn, ("VersionFailed", why)).await
            }
            PluginAction::Begin => self.begin(turn, version).await,
            PluginAction::Apply => self.apply(turn, version).await,
            PluginAction::Await => self.wait(turn, version).await,
            PluginAction::Expire => {
                let conditions = &turn.status.conditions;
                let last = conditions.iter().find(|one| one.type_ == "Reconciling");
                let last = last.map(|one| one.message.clone()).unwrap_or_default();
                let why = format!("it was not rolled out within {timeout} s: {last}");
                self.fail(turn, why).await
            }
            PluginAction::Undo => self.undo(turn).await,
        }
    }

    /// Reads what is asked for.
    async fn version(&self, plugin: &Plugin) -> Result<Result<PluginVersion, Stall>, LookError> {
        let text = match self.source(plugin).await? {
            Ok(text) => text,
            Err(why) => return Ok(Err(why)),
        };
        Ok(manifests(&text).map_err(|why| ("ManifestsInvalid", why)).map(|manifests| {
            let retry = plugin.annotations().get(name::RETRY).map(String::as_str);
            PluginVersion { digest: digest(&text, retry), text, manifests }
        }))
    }

    /// Reads the manifests from where they are.
    async fn source(&self, plugin: &Plugin) -> Result<Result<String, Stall>, LookError> {
        let source = plugin.spec.source.clone().unwrap_or_default();
        if let Some(text) = source.inline {
            return Ok(Ok(text));
        }
        let Some(named) = source.config_map_ref else {
            let Some(hub) = &self.hub else {
                let why = "its manifests are a hub's: run the coordinator with --hub, or name another source";
                return Ok(Err(("HubMissing", why.to_owned())));
            };
            return Ok(hub.lock().await.manifests(plugin));
        };
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.status.namespace);
        let what = format!("ConfigMap {:?}", named.name);
        let found = api.get_opt(&named.name).await;
        let found = found.map_err(|error| LookError::request("read", &what, error))?;
        let texts = |found: ConfigMap| {
            let texts: Vec<String> =
                found.data.into_iter().flat_map(BTreeMap::into_values).collect();
            texts.join("\n---\n")
        };
        Ok(found.map(texts).ok_or_else(|| ("SourceMissing", format!("{what} is not there"))))
    }

    /// Tries a version, and lets it begin if nothing is in its way.
    async fn begin(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        match self.apply_all(&turn.plugin, &version.manifests, true).await? {
            ApplyEnd::Refused((_, why)) if turn.status.rollout.is_some() => {
                return self.fail(turn, why).await;
            }
            ApplyEnd::Refused(why) => return self.stall(turn, why).await,
            ApplyEnd::Done | ApplyEnd::Waiting(_) => {}
        }
        turn.record.inventory.extend(version.manifests.into_iter().map(|one| one.object));
        self.keep(&turn.plugin, &mut turn.record).await?;
        turn.status.failed = None;
        turn.status.rollout = Some(PluginRollout {
            digest: version.digest,
            started_at: Time(whole_second(Timestamp::now())),
            applied: false,
            failure: None,
        });
        self.progress(turn, "all objects passed a dry run".to_owned(), LookEnd::More).await
    }

    async fn apply(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        match self.apply_all(&turn.plugin, &version.manifests, false).await? {
            ApplyEnd::Refused((_, why)) => self.fail(turn, why).await,
            ApplyEnd::Waiting(what) => self.progress(turn, what, LookEnd::Soon).await,
            ApplyEnd::Done => {
                if let Some(rollout) = &mut turn.status.rollout {
                    rollout.applied = true;
                }
                self.progress(turn, "all objects were applied".to_owned(), LookEnd::More).await
            }
        }
    }

    /// Waits until all is rolled out; then this version is the one that is kept.
    async fn wait(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        match self.await_all(&turn.plugin, &version.manifests).await? {
            ApplyEnd::Refused((_, why)) => self.fail(turn, why).await,
            ApplyEnd::Waiting(what) => self.progress(turn, what, LookEnd::Soon).await,
            ApplyEnd::Done => {
                turn.record.manifests = version.text;
                turn.record.digest = version.digest;
                self.keep(&turn.plugin, &mut turn.record).await?;
                turn.status.rollout = None;
                self.progress(turn, "all objects are rolled out".to_owned(), LookEnd::More).await
            }
        }
    }

    /// Takes away what left the manifests of the version that stands.
    async fn rest(
        &self,
        mut turn: PluginTurn,
        version: PluginVersion,
    ) -> Result<LookEnd, LookError> {
        turn.status.version.clone_from(&turn.plugin.spec.version);
        turn.status.objects = i32::try_from(version.manifests.len()).unwrap_or(i32::MAX);
        let objects = version.manifests.into_iter().map(|one| one.object).collect();
        if let Some(why) = self.prune(&mut turn, objects).await? {
            return self.stall(turn, ("PruneFailed", why)).await;
        }
        turn.status.failed = None;
        let said = format!("{} objects stand", turn.status.objects);
        self.tell(turn, ObjectVerdict::new(true, "Applied", said, None)).await?;
        Ok(LookEnd::Done)
    }

    /// Puts the version before in the place of one that failed. Where there is none, what was applied stays,
    /// so that people can look at it.
    async fn undo(&self, mut turn: PluginTurn) -> Result<LookEnd, LookError> {
        let Some(rollout) = turn.status.rollout.clone() else { return Ok(LookEnd::Done) };
        let mut message = rollout.failure.unwrap_or_default();
        if turn.record.digest.is_empty() {
            message += "; there is no version before it, and what was applied stays";
        } else {
            // They were read before.
            let former = manifests(&turn.record.manifests).unwrap_or_default();
            let back = self.apply_all(&turn.plugin, &former, false).await?;
            let refused = match back {
                ApplyEnd::Waiting(what) => return self.progress(turn, what, LookEnd::Soon).await,
                ApplyEnd::Refused((_, why)) => Some(why),
                ApplyEnd::Done => {
                    let objects = former.into_iter().map(|one| one.object).collect();
                    self.prune(&mut turn, objects).await?
                }
            };
            if let Some(why) = refused {
                let why = format!("{message}; the version before cannot be put back: {why}");
                self.stall(turn, ("UndoFailed", why)).await?;
                return Ok(LookEnd::Partly);
            }
            message += "; the version before stands";
        }
        turn.status.rollout = None;
        turn.status.failed =
            Some(PluginFailure { digest: rollout.digest, message: message.clone() });
        self.stall(turn, ("VersionFailed", message)).await
    }

    /// Takes all of a Plugin away that is being deleted, and lets it go.
    async fn remove(&self, mut turn: PluginTurn) -> Result<LookEnd, LookError> {
        if let Some(why) = self.prune(&mut turn, BTreeSet::new()).await? {
            self.stall(turn, ("PruneFailed", why)).await?;
            return Ok(LookEnd::Partly);
        }
        self.forget(&turn.plugin, &turn.record).await?;
        self.status.let_go(&turn.plugin, name::PLUGIN_FINALIZER).await?;
        Ok(LookEnd::Done)
    }

    /// Has the version on its way undone.
    async fn fail(&self, mut turn: PluginTurn, why: String) -> Result<LookEnd, LookError> {
        let said = format!("the version is undone: {why}");
        if let Some(rollout) = &mut turn.status.rollout {
            rollout.failure = Some(why);
        }
        self.progress(turn, said, LookEnd::More).await
    }

    async fn progress(
        &self,
        turn: PluginTurn,
        said: String,
        end: LookEnd,
    ) -> Result<LookEnd, LookError> {
        let there = self.tell(turn, ObjectVerdict::new(false, "RollingOut", said, None)).await?;
        Ok(if there { end } else { LookEnd::Done })
    }

    async fn stall(&self, turn: PluginTurn, why: Stall) -> Result<LookEnd, LookError> {
        let said = "the version that is asked for does not stand".to_owned();
        self.tell(turn, ObjectVerdict::new(false, "NotApplied", said, Some(why))).await?;
        Ok(LookEnd::Done)
    }

    /// Leaves all as it is, since the hub does not say what is wanted.
    async fn leave(&self, turn: PluginTurn, why: Stall) -> Result<LookEnd, LookError> {
        let PluginTurn { plugin, status, .. } = &turn;
        let mut conditions = status.conditions.iter();
        let stands = status.observed_generation == plugin.metadata.generation
            && conditions.any(|one| one.type_ == "Ready" && one.status == "True");
        let said = "what stands stays until the hub says what is wanted".to_owned();
        let verdict = ObjectVerdict::new(false, "HubUnreachable", said, Some(why));
        self.tell(turn, ObjectVerdict { ready: stands, ..verdict }).await?;
        Ok(LookEnd::Done)
    }

    /// Writes the status, if it says something new. Returns whether the Plugin is still there.
    async fn tell(&self, turn: PluginTurn, verdict: ObjectVerdict) -> Result<bool, LookError> {
        let PluginTurn { plugin, status: mut after, .. } = turn;
        let generation = plugin.metadata.generation;
        let before = plugin.status.clone().unwrap_or_default();
        after.observed_generation = generation;
        after.conditions = conditions(&before.conditions, generation, verdict, Timestamp::now());
        if after == before {
            return Ok(true);
        }
        let plugin = Plugin { status: Some(after.clone()), ..plugin };
        let written = self.status.write(&plugin, &before.conditions, &after.conditions).await?;
        let Some(written) = written else { return Ok(false) };
        self.seen.lock().plugins.note(written, kept);
        Ok(true)
    }
}

fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
