//! The objects that a hub keeps in the core namespace: asked for, checked, applied and deleted. What is
//! done about an answer is decided in `engine/hub`.
//!
//! Invariants: a kind is written only after its answer was read whole and believed; nothing is written
//! while the cluster manager is taken away; while the hub is away, all stays as it is.

mod client;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use http::Uri;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use prometheus::IntGauge;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

pub use self::client::hub_address;
pub(super) use self::client::{HubClient, HubError, HubRound};
use super::{
    look_error::LookError,
    metrics::Metrics,
    namespace_events::NamespaceEvents,
    terminate::{TerminateCoordinator, TerminateOutlook},
};
use crate::{
    api::containership::{kind_definitions, name},
    engine::hub::{
        DeletionDoubt, HeldDeletion, HubItem, HubKind, HubScope, KINDS, LiveObject,
        NODE_POOL_LABELS, REGISTRIES, parse_items, plan_kind, read_pools,
    },
    error::chain,
    runtime::events::EventNotice,
};

/// Field manager of what a hub wants.
const MANAGER: &str = "navigator-hub";
/// Interval of rounds, give or take a tenth.
const INTERVAL: Duration = Duration::from_secs(30);
/// Pause after a round that failed; twice as long each time, up to the longest.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(5 * 60);
/// Interval at which the namespace is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// The same while the cluster manager is being taken away.
const OFTEN: Duration = Duration::from_secs(1);
/// Objects that one page of a list holds.
const PAGE: u32 = 500;

/// Where a hub is, and whom it is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubConfig {
    /// Address below which the paths of the API are; see [`hub_address`].
    pub address: Uri,
    /// Folder with the file `token`, and with `ca.crt` where no public authority signs the hub's
    /// certificate. The token is read again at each round.
    pub folder: PathBuf,
    pub scope: HubScope,
}

/// Has the cluster manager taken away where that is asked for, and keeps the hub's objects until then.
/// May be dropped anywhere.
pub(crate) async fn run_hub_loop(mut terminate: TerminateCoordinator, mut hub: Option<HubSync>) {
    let mut next_round = Instant::now();
    loop {
        let pause_time = match terminate.reconcile(Timestamp::now()).await {
            // What another client wrote meanwhile is looked at anew.
            Ok(TerminateOutlook::UnderWay) | Err(LookError::Stale(_)) => OFTEN,
            Ok(TerminateOutlook::Over) => LOOK,
            Ok(TerminateOutlook::Stays { confirmed }) => {
                if let Some(hub) = hub.as_mut()
                    && Instant::now() >= next_round
                {
                    next_round = Instant::now() + hub.run_round(&confirmed).await;
                }
                let now = Instant::now();
                if hub.is_some() {
                    LOOK.min(next_round.saturating_duration_since(now))
                } else {
                    LOOK
                }
            }
            Err(error) => {
                warn!(error = %chain(&error), "The core namespace was not looked at");
                LOOK
            }
        };
        sleep(pause_time).await;
    }
}

/// Keeps the hub's objects, while this process leads.
pub(crate) struct HubSync {
    client: Client,
    /// Client whose writes fail once this process no longer leads.
    writer: Client,
    namespace: String,
    events: NamespaceEvents,
    metrics: Metrics,
    last_success: IntGauge,
    hub: HubClient,
    scope: HubScope,
    kinds: Vec<&'static HubKind>,
    doubts: BTreeMap<&'static str, DeletionDoubt>,
    /// Rounds that failed, one after the other.
    failures: u32,
}

impl HubSync {
    /// `registries`: credentials are moved into Secrets. Without that they would stay in the objects, so
    /// Registries are not asked for.
    pub(crate) fn new(
        config: HubConfig,
        (client, writer): (Client, Client),
        namespace: &str,
        events: NamespaceEvents,
        metrics: Metrics,
        registries: bool,
    ) -> Self {
        let HubConfig { address, folder, scope } = config;
        let is_kept = |kind: &&HubKind| {
            kind_definitions().iter().any(|served| served.plural == kind.plural)
                && (registries || kind.plural != REGISTRIES.plural)
        };
        Self {
            client,
            writer,
            namespace: namespace.to_owned(),
            events,
            hub: HubClient::new(address, folder, metrics.hub_requests.clone()),
            // It is told from now on, so that a hub that never answers is missed, too.
            last_success: metrics.hub_last_success.with_label_values::<&str>(&[]),
            metrics,
            scope,
            kinds: KINDS.iter().filter(is_kept).collect(),
            doubts: BTreeMap::new(),
            failures: 0,
        }
    }

    /// Asks for all and writes what is to be written. Returns the pause until the next round.
    async fn run_round(&mut self, confirmed: &str) -> Duration {
        let has_failed = match self.sync_objects(confirmed).await {
            Ok(is_complete) => !is_complete,
            Err(error) => {
                let note = format!("all stays as it is: {}", chain(&error));
                self.events.publish_once(EventNotice::warning("HubUnreachable", note)).await;
                true
            }
        };
        self.events.clear_resolved();
        if has_failed {
            self.failures = self.failures.saturating_add(1);
        } else {
            self.failures = 0;
            self.last_success.set(Timestamp::now().as_second());
        }
        round_pause(self.failures, fastrand::f64())
    }

    /// Returns whether all that was to be written was written.
    async fn sync_objects(&mut self, confirmed: &str) -> Result<bool, HubError> {
        let mut round = self.hub.begin_round().await?;
        let (mut desired_items, mut failure) = (Vec::new(), None);
        for kind in self.kinds.clone() {
            match self.fetch_items(&mut round, kind).await {
                Ok(items) => desired_items.push((kind, items)),
                // The other kinds are as good as their own answers.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let token = round.token().to_owned();
        self.hub.end_round(round);
        let mut is_complete = true;
        for (kind, items) in desired_items {
            match self.apply_items(kind, &items, &token, confirmed).await {
                Ok(is_kind_complete) => is_complete &= is_kind_complete,
                Err(error) => {
                    warn!(kind = kind.kind, error = %chain(&error), "Objects of the hub were not written");
                    is_complete = false;
                }
            }
        }
        failure.map_or(Ok(is_complete), Err)
    }

    /// Asks for all objects of a kind.
    async fn fetch_items(
        &mut self,
        round: &mut HubRound,
        kind: &HubKind,
    ) -> Result<Vec<HubItem>, HubError> {
        let path = self.scope.kind_path(kind);
        let body = self.hub.get(round, &path).await?;
        let answer_error = |path: &str| {
            let path = path.to_owned();
            move |source| HubError::Answer { path, source }
        };
        if *kind != NODE_POOL_LABELS {
            return parse_items(kind, &self.scope, None, &body).map_err(answer_error(&path));
        }
        let mut items = Vec::new();
        for pool in read_pools(&self.scope, &body).map_err(answer_error(&path))? {
            let path = self.scope.pool_path(&pool);
            let body = self.hub.get(round, &path).await?;
            items.extend(
                parse_items(kind, &self.scope, Some(&pool), &body).map_err(answer_error(&path))?,
            );
        }
        Ok(items)
    }

    /// Brings the objects of a kind to what the hub wants. Returns whether all could be written.
    async fn apply_items(
        &mut self,
        kind: &'static HubKind,
        items: &[HubItem],
        token: &str,
        confirmed: &str,
    ) -> Result<bool, LookError> {
        let live = self.list_objects(kind).await?;
        let doubt = self.doubts.entry(kind.plural).or_default();
        let plan = plan_kind(kind, items, &live, token, doubt, confirmed);
        let api = self.kind_api(&self.writer, kind);
        let mut is_complete = true;
        for (item, live_object) in &plan.apply {
            match apply_object(&api, kind, item, *live_object, token).await {
                Ok(()) => info!(kind = kind.kind, name = item.name, "Applied what the hub wants"),
                Err(LookError::Stale(_)) => is_complete = false,
                Err(LookError::NotLeading) => return Err(LookError::NotLeading),
                Err(error) => {
                    is_complete = false;
                    let note = chain(&error).to_string();
                    self.events.publish_once(EventNotice::warning("HubObjectRefused", note)).await;
                }
            }
        }
        for object in &plan.delete {
            match delete_object(&api, kind, object).await {
                Ok(()) => info!(kind = kind.kind, name = object.name, "Deleted, as by the hub"),
                Err(LookError::Stale(_)) => is_complete = false,
                Err(error) => return Err(error),
            }
        }
        for name in &plan.foreign {
            let note = format!("{} {name:?} is not the hub's, and stays as it is", kind.kind);
            self.events.publish_once(EventNotice::warning("ForeignObject", note)).await;
        }
        if let Some(held_deletion) = &plan.held {
            let note = held_note(kind, held_deletion, &self.namespace);
            self.events.publish_once(EventNotice::warning("SuspiciousDeletion", note)).await;
        }
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        self.metrics.hub_objects.with_label_values(&[kind.kind]).set(count);
        Ok(is_complete)
    }

    async fn list_objects(&self, kind: &HubKind) -> Result<Vec<LiveObject>, LookError> {
        let api = self.kind_api(&self.client, kind);
        let (mut objects, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let page = api.list(&params).await;
            let page = page.map_err(|error| LookError::for_request("list", kind.plural, error))?;
            let to_live_object =
                |object: &DynamicObject| LiveObject::new(&object.metadata, &object.data["spec"]);
            objects.extend(page.items.iter().map(to_live_object));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(objects),
            }
        }
    }

    fn kind_api(&self, client: &Client, kind: &HubKind) -> Api<DynamicObject> {
        let group_kind = GroupVersionKind::gvk(kind.group, "v3", kind.kind);
        let resource = ApiResource::from_gvk_with_plural(&group_kind, kind.plural);
        Api::namespaced_with(client.clone(), &self.namespace, &resource)
    }
}

/// Returns the pause after a round; `random` is between 0 and 1.
fn round_pause(failures: u32, random: f64) -> Duration {
    if failures == 0 {
        return INTERVAL.mul_f64(0.9 + 0.2 * random);
    }
    RETRY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_RETRY)
}

/// Says what is held, and how a person confirms it.
fn held_note(kind: &HubKind, deletion: &HeldDeletion, namespace: &str) -> String {
    let HeldDeletion { count, all: total, answers: _, word: confirmation } = deletion;
    format!(
        "the hub's answer takes {count} of {total} {} away, which is not done before three answers in a row \
         say so; to have it done now: kubectl annotate --overwrite namespace {namespace} {}={confirmation}",
        kind.plural,
        name::CONFIRM_DELETION
    )
}

/// Applies an object, against the version in which it was read.
async fn apply_object(
    api: &Api<DynamicObject>,
    kind: &HubKind,
    item: &HubItem,
    live_object: Option<&LiveObject>,
    token: &str,
) -> Result<(), LookError> {
    let (label, value) = name::MANAGED;
    let mut object = json!({
        "apiVersion": format!("{}/v3", kind.group),
        "kind": kind.kind,
        "metadata": {
            "name": item.name,
            "labels": {label: value},
            "annotations": {name::HUB_DIGEST: item.digest(token)},
        },
        "spec": item.spec,
    });
    if let Some(live_object) = live_object {
        object["metadata"]["uid"] = live_object.uid.clone().into();
        object["metadata"]["resourceVersion"] = live_object.version.clone().into();
    }
    let params = PatchParams::apply(MANAGER).force();
    let apply_result = api.patch(&item.name, &params, &Patch::Apply(object)).await;
    let subject = format!("{} {:?}", kind.kind, item.name);
    apply_result.map(drop).map_err(|error| LookError::for_request("apply", &subject, error))
}

/// Deletes an object, where it still is as it was read.
async fn delete_object(
    api: &Api<DynamicObject>,
    kind: &HubKind,
    object: &LiveObject,
) -> Result<(), LookError> {
    let preconditions = Preconditions {
        uid: Some(object.uid.clone()),
        resource_version: Some(object.version.clone()),
    };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&object.name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 404 => Ok(()),
        Err(error) => {
            let subject = format!("{} {:?}", kind.kind, object.name);
            Err(LookError::for_request("delete", &subject, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_that_is_away_is_asked_less_and_less_often() {
        let seconds = |failures, random| round_pause(failures, random).as_secs_f64();
        assert!((seconds(0, 0.0) - 27.0).abs() < 1e-9);
        assert!((seconds(0, 1.0) - 33.0).abs() < 1e-9);
        let pauses: Vec<u64> =
            (1..12).map(|failures| round_pause(failures, 0.5).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(round_pause(u32::MAX, 0.5), LONGEST_RETRY);
    }
}
