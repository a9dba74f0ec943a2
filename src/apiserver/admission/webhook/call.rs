//! One call of one webhook, and what follows from its answer.
//!
//! Owns the rules that mutating and validating webhooks share: dry runs, selectors, conditions,
//! failures.

use std::time::Instant;

use serde_json::{Value, value::RawValue};
use tracing::warn;

use super::{
    ReviewSubject, WebhookDispatcher,
    conditions::{ConditionVariables, MatchResult},
    hook::{AdmissionWebhook, FailurePolicy},
    metrics::WebhookType,
    review,
};
use crate::{
    apiserver::{
        latency, request_cost,
        selector::ObjectLabels,
        status::{ApiError, GroupResource, Result},
    },
    machinery::served_kind::ServedVersion,
};

/// Why a webhook did not decide, or refused.
pub(super) enum WebhookFailure {
    /// The webhook was not reached, or its answer is unreadable. Metrics count `code`.
    Call { why: String, code: u16 },
    /// The webhook refused the write.
    Denied(ApiError),
    /// The webhook takes no dry runs, or its patch does not fit. The request fails whatever the
    /// failure policy.
    Wrong(ApiError),
}

const BAD_ANSWER: u16 = 503;

impl WebhookFailure {
    pub(super) fn bad_answer(reason: String) -> Self {
        Self::Call { why: reason, code: BAD_ANSWER }
    }
}

/// The objects of a write in one version, as JSON.
pub(super) struct VersionedObjects {
    object: Option<Box<RawValue>>,
    old: Option<Box<RawValue>>,
}

impl VersionedObjects {
    pub(super) fn new(
        subject: &ReviewSubject<'_>,
        version: ServedVersion,
        object: Option<&Value>,
    ) -> Self {
        let to_raw = |mut value: Value, revision: Option<&Value>| {
            if let Some(revision) = revision
                && let Some(fields) = value["metadata"].as_object_mut()
            {
                fields.entry("resourceVersion").or_insert_with(|| revision.clone());
            }
            serde_json::value::to_raw_value(&value).expect("a Value has string keys only")
        };
        let revision = subject.old.map(|old| &old["metadata"]["resourceVersion"]);
        let encode = |hub: &Value| {
            let mut value = subject.kind.encode(version, hub);
            if let Some(owners) = hub["metadata"].get("managedFields") {
                value["metadata"]["managedFields"] = owners.clone();
            }
            value
        };
        Self {
            object: object.map(|hub| to_raw(encode(hub), revision)),
            old: subject.old.map(|hub| to_raw(encode(hub), None)),
        }
    }

    /// Parses the object that is to be stored.
    pub(super) fn parse_object(&self) -> Option<Value> {
        let object = self.object.as_ref()?;
        Some(serde_json::from_str(object.get()).expect("it was a Value"))
    }
}

impl WebhookDispatcher {
    /// Returns the version in which a webhook is sent the objects, as far as rules and selectors
    /// tell; `None` when the webhook is not to be called.
    pub(super) async fn match_version(
        &self,
        hook: &AdmissionWebhook,
        subject: &ReviewSubject<'_>,
        object: Option<&Value>,
    ) -> Result<Option<ServedVersion>> {
        let Some(version) = hook.rules.match_version(subject.rule_subject()) else {
            return Ok(None);
        };
        let objects = hook.objects.as_ref().map_err(ApiError::internal_error)?;
        if !objects.is_everything() {
            let labels = |hub: &Value| ObjectLabels::from_json(&hub["metadata"]["labels"]);
            let mut candidates = object.into_iter().chain(subject.old);
            if !candidates.any(|hub| objects.matches(&labels(hub))) {
                return Ok(None);
            }
        }
        let namespaces = hook.namespaces.as_ref().map_err(ApiError::internal_error)?;
        if !namespaces.is_everything() && !subject.namespace.is_empty() {
            let namespace = self.namespaces.find(subject.namespace).await?;
            if !namespaces.matches(&ObjectLabels::of_map(namespace.metadata.labels.as_ref())) {
                return Ok(None);
            }
        }
        Ok(Some(version))
    }

    /// Tells whether the webhook's conditions hold for the objects that it would be sent.
    pub(super) fn are_conditions_met(
        &self,
        hook: &AdmissionWebhook,
        subject: &ReviewSubject<'_>,
        version: ServedVersion,
        objects: &VersionedObjects,
        webhook_type: WebhookType,
    ) -> Result<bool> {
        if hook.conditions.is_empty() {
            return Ok(true);
        }
        let request = review::request_alone(subject, version);
        let variables = ConditionVariables {
            object: objects.object.as_deref().map(RawValue::get),
            old: objects.old.as_deref().map(RawValue::get),
            request: &request,
        };
        let evaluate = || hook.conditions.evaluate(variables);
        let MatchResult { holds: outcome, errors } =
            request_cost::run_blocking(hook.conditions.estimate_bytes(variables), evaluate);
        self.metrics.count_condition_errors(hook, webhook_type, subject.operation, errors);
        let is_match = match (outcome, hook.on_failure) {
            (Ok(is_match), _) => is_match,
            (Err(why), FailurePolicy::Ignore) => {
                warn!(
                    webhook = hook.name,
                    why, "Failed to evaluate match conditions; going on without the webhook"
                );
                false
            }
            (Err(why), FailurePolicy::Fail) => {
                warn!(
                    webhook = hook.name,
                    why, "Failed to evaluate match conditions; refusing the request"
                );
                let resource =
                    GroupResource { group: subject.kind.group(), resource: subject.kind.plural() };
                return Err(ApiError::forbidden(resource, subject.name, why));
            }
        };
        if !is_match {
            self.metrics.count_exclusion(hook, webhook_type, subject.operation);
        }
        Ok(is_match)
    }

    /// Calls the webhook, and records its warnings and annotations. Returns its patch when it
    /// allows the request.
    pub(super) async fn call_webhook(
        hook: &AdmissionWebhook,
        subject: &ReviewSubject<'_>,
        version: ServedVersion,
        objects: &VersionedObjects,
        webhook_type: WebhookType,
    ) -> Result<Vec<u8>, WebhookFailure> {
        let name = &hook.name;
        if subject.dry_run && !hook.takes_dry_runs {
            let text = format!("admission webhook {name:?} does not support dry run");
            return Err(WebhookFailure::Wrong(ApiError::bad_request(text)));
        }
        if !hook.speaks_v1 {
            let reason = "could not create admission objects: webhook does not accept known \
                       AdmissionReview versions (v1)";
            return Err(WebhookFailure::Call { why: reason.to_owned(), code: 400 });
        }
        let client = hook.client.as_ref().map_err(|error| WebhookFailure::Call {
            why: format!("could not get REST client: {error}"),
            code: 500,
        })?;
        let uid = uuid::Uuid::new_v4().to_string();
        let review_body = review::encode_review(
            subject,
            &uid,
            version,
            objects.object.as_deref(),
            objects.old.as_deref(),
        );
        let response =
            latency::measure_time(webhook_type.layer(), client.post(review_body, hook.timeout))
                .await;
        let body = response.map_err(|error| WebhookFailure::Call {
            why: format!("failed to call webhook: {error}"),
            code: error.code(),
        })?;
        let answer = review::parse_answer(&body, name, &uid, webhook_type == WebhookType::Mutating);
        let review::WebhookAnswer { denied: denial, patch, annotations, warnings } =
            answer.map_err(WebhookFailure::bad_answer)?;
        for (key, value) in annotations {
            subject.remarks.add_annotation(format!("{name}/{key}"), value);
        }
        for warning in warnings {
            subject.remarks.add_warning(warning);
        }
        denial.map_or(Ok(patch), |error| Err(WebhookFailure::Denied(error)))
    }

    /// Counts the call of a webhook. Fails when the webhook's failure or refusal fails the request.
    pub(super) fn record_outcome(
        &self,
        hook: &AdmissionWebhook,
        subject: &ReviewSubject<'_>,
        webhook_type: WebhookType,
        (started_at, round): (Instant, usize),
        failure: Option<WebhookFailure>,
    ) -> Result<()> {
        let metrics = &self.metrics;
        let operation = subject.operation;
        let Some(failure) = failure else {
            metrics.count_call(hook, webhook_type, operation, started_at, (200, false));
            return Ok(());
        };
        match failure {
            WebhookFailure::Call { why, code } if hook.on_failure == FailurePolicy::Ignore => {
                warn!(webhook = hook.name, why, "Failed to call a webhook; going on without it");
                metrics.count_call(hook, webhook_type, operation, started_at, (code, false));
                metrics.count_fail_open(hook, webhook_type);
                let prefix = webhook_type.failed_open();
                let key = format!("{prefix}/round_{round}_index_{}", hook.index);
                subject.remarks.add_annotation(key, hook.name.clone());
                Ok(())
            }
            WebhookFailure::Call { why, code } => {
                warn!(webhook = hook.name, why, "Failed to call a webhook; refusing the request");
                metrics.count_call(hook, webhook_type, operation, started_at, (code, true));
                metrics.count_rejection(
                    hook,
                    webhook_type,
                    operation,
                    "calling_webhook_error",
                    code,
                );
                let text = format!("failed calling webhook {:?}: {why}", hook.name);
                Err(ApiError::internal_error(text))
            }
            WebhookFailure::Denied(error) => {
                let code = error.status_code().as_u16();
                metrics.count_call(hook, webhook_type, operation, started_at, (code, true));
                metrics.count_rejection(hook, webhook_type, operation, "no_error", code);
                Err(error)
            }
            WebhookFailure::Wrong(error) => {
                metrics.count_call(hook, webhook_type, operation, started_at, (0, true));
                metrics.count_rejection(
                    hook,
                    webhook_type,
                    operation,
                    "apiserver_internal_error",
                    0,
                );
                Err(error)
            }
        }
    }
}
