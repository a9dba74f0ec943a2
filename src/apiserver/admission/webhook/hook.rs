//! One webhook of a configuration, with upstream's defaults filled in.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations,
    ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

use super::{
    client::{WebhookClient, WebhookClients, WebhookEndpoint},
    conditions::MatchConditions,
    matching::WebhookRules,
};
use crate::apiserver::selector::LabelSelector;

/// Seconds of `timeoutSeconds` when it is absent, and below its bounds.
const TIMEOUT: i32 = 10;
const SHORTEST: i32 = 1;
const LONGEST: i32 = 30;

/// What a failed call means for the request: the webhook's `failurePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailurePolicy {
    /// The request fails.
    Fail,
    /// The request goes on as if the webhook had not been there.
    Ignore,
}

/// A webhook whose rules may match our kinds.
pub(super) struct AdmissionWebhook {
    pub(super) name: String,
    /// Name of the configuration that lists the webhook.
    pub(super) configuration: String,
    /// Position among all webhooks of the same type; audit annotations name it.
    pub(super) index: usize,
    pub(super) rules: WebhookRules,
    /// Selector by labels of the namespace; an error when it cannot be parsed.
    pub(super) namespaces: Result<LabelSelector, String>,
    /// Selector by labels of the old or the new object; an error when it cannot be parsed.
    pub(super) objects: Result<LabelSelector, String>,
    pub(super) on_failure: FailurePolicy,
    /// Whether the webhook declares that dry runs have no side effects.
    pub(super) takes_dry_runs: bool,
    pub(super) timeout: Duration,
    /// Whether a mutating webhook is called once more when a later one changed the object.
    pub(super) reinvoked: bool,
    /// The webhook's `matchConditions`, compiled.
    pub(super) conditions: MatchConditions,
    /// Whether the webhook understands `admission.k8s.io/v1`.
    pub speaks_v1: bool,
    /// The client of the webhook's endpoint, or why there is none.
    pub(super) client: Result<Arc<WebhookClient>, String>,
}

/// The fields that mutating and validating webhooks share.
struct WebhookSpec {
    name: String,
    client_config: WebhookClientConfig,
    rules: Option<Vec<RuleWithOperations>>,
    match_policy: Option<String>,
    match_conditions: Option<Vec<MatchCondition>>,
    namespace_selector: Option<meta::LabelSelector>,
    object_selector: Option<meta::LabelSelector>,
    failure_policy: Option<String>,
    side_effects: String,
    timeout_seconds: Option<i32>,
    reinvocation_policy: Option<String>,
    admission_review_versions: Vec<String>,
}

/// A configuration of mutating or of validating webhooks.
pub(super) trait WebhookConfiguration {
    /// Returns the configuration's webhooks that may be called about objects of `group`, numbered
    /// from `first_index`, and how many webhooks it has in all.
    fn build_webhooks(
        &self,
        group: &str,
        first_index: usize,
        clients: &mut WebhookClients,
    ) -> (Vec<Arc<AdmissionWebhook>>, usize);
}

impl WebhookConfiguration for MutatingWebhookConfiguration {
    fn build_webhooks(
        &self,
        group: &str,
        first_index: usize,
        clients: &mut WebhookClients,
    ) -> (Vec<Arc<AdmissionWebhook>>, usize) {
        let webhooks = self.webhooks.clone().unwrap_or_default();
        build_from_specs(&self.metadata, webhooks, group, first_index, clients)
    }
}

impl WebhookConfiguration for ValidatingWebhookConfiguration {
    fn build_webhooks(
        &self,
        group: &str,
        first_index: usize,
        clients: &mut WebhookClients,
    ) -> (Vec<Arc<AdmissionWebhook>>, usize) {
        let webhooks = self.webhooks.clone().unwrap_or_default();
        build_from_specs(&self.metadata, webhooks, group, first_index, clients)
    }
}

fn build_from_specs(
    metadata: &meta::ObjectMeta,
    webhooks: Vec<impl Into<WebhookSpec>>,
    group: &str,
    first_index: usize,
    clients: &mut WebhookClients,
) -> (Vec<Arc<AdmissionWebhook>>, usize) {
    let configuration = metadata.name.as_deref().unwrap_or_default();
    let count = webhooks.len();
    let indexed_webhooks = (first_index..).zip(webhooks);
    let hooks = indexed_webhooks.filter_map(|(index, webhook)| {
        AdmissionWebhook::new(webhook.into(), configuration, index, group, clients).map(Arc::new)
    });
    (hooks.collect(), count)
}

impl AdmissionWebhook {
    /// Creates the webhook; `None` when its rules match nothing in `group`.
    fn new(
        spec: WebhookSpec,
        configuration: &str,
        index: usize,
        group: &str,
        clients: &mut WebhookClients,
    ) -> Option<Self> {
        let WebhookSpec {
            name,
            client_config,
            rules,
            match_policy,
            match_conditions,
            namespace_selector,
            object_selector,
            failure_policy,
            side_effects,
            timeout_seconds,
            reinvocation_policy,
            admission_review_versions,
        } = spec;
        let rules = WebhookRules::new(rules.unwrap_or_default(), match_policy.as_deref());
        if !rules.are_about(group) {
            return None;
        }
        let timeout = timeout_seconds.unwrap_or(TIMEOUT).clamp(SHORTEST, LONGEST);
        Some(Self {
            name,
            configuration: configuration.to_owned(),
            index,
            rules,
            namespaces: LabelSelector::of_object(namespace_selector.as_ref()),
            objects: LabelSelector::of_object(object_selector.as_ref()),
            on_failure: match failure_policy.as_deref() {
                Some("Ignore") => FailurePolicy::Ignore,
                _ => FailurePolicy::Fail,
            },
            takes_dry_runs: matches!(side_effects.as_str(), "None" | "NoneOnDryRun"),
            timeout: Duration::from_secs(u64::from(timeout.unsigned_abs())),
            reinvoked: reinvocation_policy.as_deref() == Some("IfNeeded"),
            conditions: MatchConditions::new(match_conditions.unwrap_or_default()),
            speaks_v1: admission_review_versions.iter().any(|version| version == "v1"),
            client: WebhookEndpoint::new(client_config)
                .and_then(|endpoint| clients.get_or_create(endpoint)),
        })
    }
}

impl From<MutatingWebhook> for WebhookSpec {
    fn from(webhook: MutatingWebhook) -> Self {
        let MutatingWebhook {
            admission_review_versions,
            client_config,
            failure_policy,
            match_conditions,
            match_policy,
            name,
            namespace_selector,
            object_selector,
            reinvocation_policy,
            rules,
            side_effects,
            timeout_seconds,
        } = webhook;
        Self {
            name,
            client_config,
            rules,
            match_policy,
            match_conditions,
            namespace_selector,
            object_selector,
            failure_policy,
            side_effects,
            timeout_seconds,
            reinvocation_policy,
            admission_review_versions,
        }
    }
}

impl From<ValidatingWebhook> for WebhookSpec {
    fn from(webhook: ValidatingWebhook) -> Self {
        let ValidatingWebhook {
            admission_review_versions,
            client_config,
            failure_policy,
            match_conditions,
            match_policy,
            name,
            namespace_selector,
            object_selector,
            rules,
            side_effects,
            timeout_seconds,
        } = webhook;
        Self {
            name,
            client_config,
            rules,
            match_policy,
            match_conditions,
            namespace_selector,
            object_selector,
            failure_policy,
            side_effects,
            timeout_seconds,
            reinvocation_policy: None,
            admission_review_versions,
        }
    }
}
