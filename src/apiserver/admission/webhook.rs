//! Webhooks of the core cluster: MutatingAdmissionWebhook and ValidatingAdmissionWebhook.
//!
//! kube-apiserver calls none for aggregated kinds, so this server does, by upstream's rules
//! (`apiserver/pkg/admission/plugin/webhook`). For a write that no webhook's rules match, nothing
//! is allocated.

mod call;
mod client;
mod conditions;
mod configurations;
mod hook;
mod matching;
mod metrics;
mod mutating;
mod review;
mod validating;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;

use self::matching::RuleSubject;
use super::{AdmissionOperation, AdmissionRemarks, namespace::NamespaceLister};
use crate::{
    apiserver::{
        authn::User,
        status::{ApiError, GroupResource, Result},
    },
    machinery::{
        decode::{ParsedBody, weight},
        served_kind::{ObjectPart, ServedKind, ServedVersion},
    },
    runtime::Runtime,
};
pub use configurations::EnabledWebhookTypes;
pub use metrics::{AdmissionMetrics, AdmissionTiming};

/// Longest time that a write waits, after a start, until the webhook configurations are known.
const PATIENCE: Duration = Duration::from_secs(10);

/// A write that webhooks may be asked about.
#[derive(Clone, Copy)]
pub struct ReviewSubject<'a> {
    pub operation: AdmissionOperation,
    pub kind: &'static dyn ServedKind,
    /// The version that the request names.
    pub version: ServedVersion,
    pub part: ObjectPart,
    pub namespace: &'a str,
    pub name: &'a str,
    pub user: &'a User,
    /// The object that is stored now, in hub form; absent for creates.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
    /// Makes the request's options as an object of `meta.k8s.io/v1`.
    pub options: &'a (dyn Fn() -> Value + Send + Sync),
    /// Applies a JSON patch (text) to an object of some version.
    pub patch: fn(&[u8], Value) -> Result<ParsedBody, WebhookPatchError>,
    pub remarks: &'a AdmissionRemarks,
}

/// Why a webhook's patch was not applied.
#[derive(Debug)]
pub enum WebhookPatchError {
    /// The text is no JSON patch.
    Unreadable(String),
    /// The patch does not fit the object.
    Failed(String),
}

impl ReviewSubject<'_> {
    fn rule_subject(&self) -> RuleSubject<'static> {
        let Self { operation, kind, version, part, namespace, .. } = *self;
        build_rule_subject(kind, version, operation, part, !namespace.is_empty())
    }

    /// Returns about how many bytes the new object has, or else the stored one.
    fn weight(&self, object: Option<&Value>) -> usize {
        object.or(self.old).map_or(0, weight::value_bytes)
    }
}

fn build_rule_subject(
    kind: &'static dyn ServedKind,
    version: ServedVersion,
    operation: AdmissionOperation,
    part: ObjectPart,
    is_namespaced: bool,
) -> RuleSubject<'static> {
    RuleSubject {
        operation,
        group: kind.group(),
        version,
        versions: kind.versions(),
        resource: kind.plural(),
        subresource: part.subresource(),
        is_namespaced,
    }
}

/// The core cluster's webhooks, as far as they concern our group, and the metrics of their calls.
pub struct WebhookDispatcher {
    latest: configurations::WebhooksReceiver,
    namespaces: Arc<NamespaceLister>,
    metrics: AdmissionMetrics,
    mutating: AdmissionTiming,
    validating: AdmissionTiming,
    admit: AdmissionTiming,
    validate: AdmissionTiming,
}

impl WebhookDispatcher {
    /// Starts to follow the webhook configurations.
    pub fn start(
        client: &kube::Client,
        group: &'static str,
        enabled_types: EnabledWebhookTypes,
        namespaces: Arc<NamespaceLister>,
        metrics: AdmissionMetrics,
        rt: &Runtime,
    ) -> Self {
        Self {
            latest: configurations::watch_configurations(client, enabled_types, group, rt),
            namespaces,
            mutating: metrics.plugin_timing("MutatingAdmissionWebhook", "admit"),
            validating: metrics.plugin_timing("ValidatingAdmissionWebhook", "validate"),
            admit: metrics.step_timing("admit"),
            validate: metrics.step_timing("validate"),
            metrics,
        }
    }

    /// Tells whether any webhook's rules match such a write. `true` while no configuration is
    /// known.
    pub fn may_match(
        &self,
        kind: &'static dyn ServedKind,
        version: ServedVersion,
        operation: AdmissionOperation,
        part: ObjectPart,
    ) -> bool {
        let subject = build_rule_subject(kind, version, operation, part, kind.is_namespaced());
        let webhooks = self.latest.borrow();
        let has_match = |hooks: &configurations::ConfiguredWebhooks| {
            any_rule_matches(&hooks.mutating, subject)
                || any_rule_matches(&hooks.validating, subject)
        };
        webhooks.as_deref().is_none_or(has_match)
    }

    /// Lets webhooks change the object that is to be stored. Returns whether they changed it.
    pub async fn mutate(
        &self,
        subject: &ReviewSubject<'_>,
        object: Option<&mut Value>,
    ) -> Result<bool> {
        let started_at = Instant::now();
        let webhooks = self.configured_webhooks(subject).await?;
        let outcome = match webhooks
            .filter(|webhooks| any_rule_matches(&webhooks.mutating, subject.rule_subject()))
        {
            Some(webhooks) => Box::pin(self.mutate_by(&webhooks, subject, object)).await,
            None => Ok(false),
        };
        self.mutating.observe(subject.operation, started_at, outcome.is_err());
        outcome
    }

    /// Asks the validating webhooks whether the object may be stored, or deleted.
    pub async fn validate(
        &self,
        subject: &ReviewSubject<'_>,
        object: Option<&Value>,
    ) -> Result<()> {
        let started_at = Instant::now();
        let webhooks = self.configured_webhooks(subject).await?;
        let outcome = match webhooks
            .filter(|webhooks| any_rule_matches(&webhooks.validating, subject.rule_subject()))
        {
            Some(webhooks) => Box::pin(self.validate_by(&webhooks, subject, object)).await,
            None => Ok(()),
        };
        self.validating.observe(subject.operation, started_at, outcome.is_err());
        self.validate.observe(subject.operation, started_at, outcome.is_err());
        outcome
    }

    /// Counts the time that admission took before validation.
    pub fn record_admission(
        &self,
        operation: AdmissionOperation,
        started_at: Instant,
        is_rejected: bool,
    ) {
        self.admit.observe(operation, started_at, is_rejected);
    }

    /// Returns the configurations, after a start once they were read. `None` stands for no
    /// webhooks.
    async fn configured_webhooks(
        &self,
        subject: &ReviewSubject<'_>,
    ) -> Result<Option<Arc<configurations::ConfiguredWebhooks>>> {
        if let Some(webhooks) = &*self.latest.borrow() {
            return Ok((!webhooks.is_empty()).then(|| Arc::clone(webhooks)));
        }
        let mut latest = self.latest.clone();
        let wait_result = tokio::time::timeout(PATIENCE, latest.wait_for(Option::is_some)).await;
        if let Ok(Ok(webhooks)) = wait_result {
            return Ok(webhooks.clone());
        }
        let resource =
            GroupResource { group: subject.kind.group(), resource: subject.kind.plural() };
        Err(ApiError::forbidden(resource, subject.name, "not yet ready to handle request"))
    }
}

/// Tells whether the rules of any of these webhooks match.
fn any_rule_matches(hooks: &[Arc<hook::AdmissionWebhook>], subject: RuleSubject<'_>) -> bool {
    hooks.iter().any(|hook| hook.rules.match_version(subject).is_some())
}
