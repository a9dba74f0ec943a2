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
    pub(super) fn bad_answer(why: String) -> Self {
        Self::Call { why, code: BAD_ANSWER }
    }
}

/// The objects of a write in one version, as JSON.
pub(super) struct VersionedObjects {
    object: Option<Box<RawValue>>,
    old: Option<Box<RawValue>>,
}

impl VersionedObjects {
    pub(super) fn new(
        asked: &ReviewSubject<'_>,
        version: ServedVersion,
        object: Option<&Value>,
    ) -> Self {
        let raw = |mut value: Value, revision: Option<&Value>| {
            if let Some(revision) = revision
                && let Some(fields) = value["metadata"].as_object_mut()
            {
                fields.entry("resourceVersion").or_insert_with(|| revision.clone());
            }
            serde_json::value::to_raw_value(&value).expect("a Value has string keys only")
        };
        let revision = asked.old.map(|old| &old["metadata"]["resourceVersion"]);
        let encode = |hub: &Value| {
            let mut shown = asked.kind.encode(version, hub);
            if let Some(owners) = hub["metadata"].get("managedFields") {
                shown["metadata"]["managedFields"] = owners.clone();
            }
            shown
        };
        Self {
            object: object.map(|hub| raw(encode(hub), revision)),
            old: asked.old.map(|hub| raw(encode(hub), None)),
        }
    }

    /// Parses the object that is to be stored.
    pub(super) fn object(&self) -> Option<Value> {
        let object = self.object.as_ref()?;
        Some(serde_json::from_str(object.get()).expect("it was a Value"))
    }
}

impl WebhookDispatcher {
    /// Returns the version in which a webhook is sent the objects, as far as rules and selectors
    /// tell; `None` when the webhook is not to be called.
    pub(super) async fn wanted(
        &self,
        hook: &AdmissionWebhook,
        asked: &ReviewSubject<'_>,
        object: Option<&Value>,
    ) -> Result<Option<ServedVersion>> {
        let Some(version) = hook.rules.version(asked.subject()) else { return Ok(None) };
        let objects = hook.objects.as_ref().map_err(ApiError::internal)?;
        if !objects.is_everything() {
            let labels = |hub: &Value| ObjectLabels::of(&hub["metadata"]["labels"]);
            let mut either = object.into_iter().chain(asked.old);
            if !either.any(|hub| objects.matches(&labels(hub))) {
                return Ok(None);
            }
        }
        let namespaces = hook.namespaces.as_ref().map_err(ApiError::internal)?;
        if !namespaces.is_everything() && !asked.namespace.is_empty() {
            let namespace = self.namespaces.find(asked.namespace).await?;
            if !namespaces.matches(&ObjectLabels::of_map(namespace.metadata.labels.as_ref())) {
                return Ok(None);
            }
        }
        Ok(Some(version))
    }

    /// Tells whether the webhook's conditions hold for the objects that it would be sent.
    pub(super) fn conditions_hold(
        &self,
        hook: &AdmissionWebhook,
        asked: &ReviewSubject<'_>,
        version: ServedVersion,
        shown: &VersionedObjects,
        sort: WebhookType,
    ) -> Result<bool> {
        if hook.conditions.is_empty() {
            return Ok(true);
        }
        let request = review::request_alone(asked, version);
        let seen = ConditionVariables {
            object: shown.object.as_deref().map(RawValue::get),
            old: shown.old.as_deref().map(RawValue::get),
            request: &request,
        };
        let judge = || hook.conditions.judge(seen);
        let MatchResult { holds, errors } = request_cost::work(hook.conditions.effort(seen), judge);
        self.metrics.condition_errors(hook, sort, asked.operation, errors);
        let holds = match (holds, hook.on_failure) {
            (Ok(holds), _) => holds,
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
                    GroupResource { group: asked.kind.group(), resource: asked.kind.plural() };
                return Err(ApiError::forbidden(resource, asked.name, why));
            }
        };
        if !holds {
            self.metrics.excluded(hook, sort, asked.operation);
        }
        Ok(holds)
    }

    /// Calls the webhook, and records its warnings and annotations. Returns its patch when it
    /// allows the request.
    pub(super) async fn ask(
        hook: &AdmissionWebhook,
        asked: &ReviewSubject<'_>,
        version: ServedVersion,
        shown: &VersionedObjects,
        sort: WebhookType,
    ) -> Result<Vec<u8>, WebhookFailure> {
        let name = &hook.name;
        if asked.dry_run && !hook.takes_dry_runs {
            let text = format!("admission webhook {name:?} does not support dry run");
            return Err(WebhookFailure::Wrong(ApiError::bad_request(text)));
        }
        if !hook.speaks_v1 {
            let why = "could not create admission objects: webhook does not accept known \
                       AdmissionReview versions (v1)";
            return Err(WebhookFailure::Call { why: why.to_owned(), code: 400 });
        }
        let client = hook.client.as_ref().map_err(|why| WebhookFailure::Call {
            why: format!("could not get REST client: {why}"),
            code: 500,
        })?;
        let uid = uuid::Uuid::new_v4().to_string();
        let question =
            review::question(asked, &uid, version, shown.object.as_deref(), shown.old.as_deref());
        let posted = latency::spend(sort.layer(), client.post(question, hook.timeout)).await;
        let body = posted.map_err(|error| WebhookFailure::Call {
            why: format!("failed to call webhook: {error}"),
            code: error.code(),
        })?;
        let answer = review::answer(&body, name, &uid, sort == WebhookType::Mutating);
        let review::WebhookAnswer { denied, patch, annotations, warnings } =
            answer.map_err(WebhookFailure::bad_answer)?;
        for (key, value) in annotations {
            asked.remarks.annotate(format!("{name}/{key}"), value);
        }
        for warning in warnings {
            asked.remarks.warn(warning);
        }
        denied.map_or(Ok(patch), |denied| Err(WebhookFailure::Denied(denied)))
    }

    /// Counts the call of a webhook. Fails when the webhook's failure or refusal fails the request.
    pub(super) fn judge(
        &self,
        hook: &AdmissionWebhook,
        asked: &ReviewSubject<'_>,
        sort: WebhookType,
        (begun, round): (Instant, usize),
        failure: Option<WebhookFailure>,
    ) -> Result<()> {
        let metrics = &self.metrics;
        let operation = asked.operation;
        let Some(failure) = failure else {
            metrics.answered(hook, sort, operation, begun, (200, false));
            return Ok(());
        };
        match failure {
            WebhookFailure::Call { why, code } if hook.on_failure == FailurePolicy::Ignore => {
                warn!(webhook = hook.name, why, "Failed to call a webhook; going on without it");
                metrics.answered(hook, sort, operation, begun, (code, false));
                metrics.failed_open(hook, sort);
                let prefix = sort.failed_open();
                let key = format!("{prefix}/round_{round}_index_{}", hook.index);
                asked.remarks.annotate(key, hook.name.clone());
                Ok(())
            }
            WebhookFailure::Call { why, code } => {
                warn!(webhook = hook.name, why, "Failed to call a webhook; refusing the request");
                metrics.answered(hook, sort, operation, begun, (code, true));
                metrics.rejected(hook, sort, operation, "calling_webhook_error", code);
                let text = format!("failed calling webhook {:?}: {why}", hook.name);
                Err(ApiError::internal(text))
            }
            WebhookFailure::Denied(error) => {
                let code = error.code().as_u16();
                metrics.answered(hook, sort, operation, begun, (code, true));
                metrics.rejected(hook, sort, operation, "no_error", code);
                Err(error)
            }
            WebhookFailure::Wrong(error) => {
                metrics.answered(hook, sort, operation, begun, (0, true));
                metrics.rejected(hook, sort, operation, "apiserver_internal_error", 0);
                Err(error)
            }
        }
    }
}
