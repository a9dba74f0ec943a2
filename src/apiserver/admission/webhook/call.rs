//! One question to one webhook, and what becomes of its answer.
//!
//! Owns the rules that both sorts of webhooks share: dry runs, selectors, conditions, failures.

use std::time::Instant;

use serde_json::{Value, value::RawValue};
use tracing::warn;

use super::{
    Asked, Webhooks,
    conditions::{Seen, Verdict},
    hook::{FailurePolicy, Hook},
    metrics::Sort,
    review,
};
use crate::{
    api::kind::Version,
    apiserver::{
        latency, load,
        selector::Labels,
        status::{ApiError, Resource, Result},
    },
};

/// Why a webhook had no say, or said no.
pub(super) enum Failure {
    /// The webhook was not reached, or its answer is unreadable. `code` is what metrics count.
    Call { why: String, code: u16 },
    /// The webhook refused the write.
    Denied(ApiError),
    /// The webhook takes no dry runs, or its patch does not fit. No failure policy forgives that.
    Wrong(ApiError),
}

const BAD_ANSWER: u16 = 503;

impl Failure {
    pub(super) fn bad_answer(why: String) -> Self {
        Self::Call { why, code: BAD_ANSWER }
    }
}

/// The objects of a write as one version shows them.
pub(super) struct Shown {
    object: Option<Box<RawValue>>,
    old: Option<Box<RawValue>>,
}

impl Shown {
    pub(super) fn new(asked: &Asked<'_>, version: Version, object: Option<&Value>) -> Self {
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

    /// The object that shall be stored.
    pub(super) fn object(&self) -> Option<Value> {
        let object = self.object.as_ref()?;
        Some(serde_json::from_str(object.get()).expect("it was a Value"))
    }
}

impl Webhooks {
    /// The version in which a webhook is to be asked, as far as rules and selectors tell; `None`
    /// when the webhook is not to be asked.
    pub(super) async fn wanted(
        &self,
        hook: &Hook,
        asked: &Asked<'_>,
        object: Option<&Value>,
    ) -> Result<Option<Version>> {
        let Some(version) = hook.rules.version(asked.subject()) else { return Ok(None) };
        let objects = hook.objects.as_ref().map_err(ApiError::internal)?;
        if !objects.is_everything() {
            let labels = |hub: &Value| Labels::of(&hub["metadata"]["labels"]);
            let mut either = object.into_iter().chain(asked.old);
            if !either.any(|hub| objects.matches(&labels(hub))) {
                return Ok(None);
            }
        }
        let namespaces = hook.namespaces.as_ref().map_err(ApiError::internal)?;
        if !namespaces.is_everything() && !asked.namespace.is_empty() {
            let namespace = self.namespaces.find(asked.namespace).await?;
            if !namespaces.matches(&Labels::of_map(namespace.metadata.labels.as_ref())) {
                return Ok(None);
            }
        }
        Ok(Some(version))
    }

    /// Do the webhook's conditions let it be asked about what it would be shown?
    pub(super) fn conditions_hold(
        &self,
        hook: &Hook,
        asked: &Asked<'_>,
        version: Version,
        shown: &Shown,
        sort: Sort,
    ) -> Result<bool> {
        if hook.conditions.is_empty() {
            return Ok(true);
        }
        let request = review::request_alone(asked, version);
        let seen = Seen {
            object: shown.object.as_deref().map(RawValue::get),
            old: shown.old.as_deref().map(RawValue::get),
            request: &request,
        };
        let judge = || hook.conditions.judge(seen);
        let Verdict { holds, errors } = load::work(hook.conditions.effort(seen), judge);
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
                    Resource { group: asked.kind.group(), resource: asked.kind.plural() };
                return Err(ApiError::forbidden(resource, asked.name, why));
            }
        };
        if !holds {
            self.metrics.excluded(hook, sort, asked.operation);
        }
        Ok(holds)
    }

    /// Calls the webhook, and passes on its warnings and annotations. Returns its patch when it
    /// allows the request.
    pub(super) async fn ask(
        hook: &Hook,
        asked: &Asked<'_>,
        version: Version,
        shown: &Shown,
        sort: Sort,
    ) -> Result<Vec<u8>, Failure> {
        let name = &hook.name;
        if asked.dry_run && !hook.takes_dry_runs {
            let text = format!("admission webhook {name:?} does not support dry run");
            return Err(Failure::Wrong(ApiError::bad_request(text)));
        }
        if !hook.speaks_v1 {
            let why = "could not create admission objects: webhook does not accept known \
                       AdmissionReview versions (v1)";
            return Err(Failure::Call { why: why.to_owned(), code: 400 });
        }
        let client = hook.client.as_ref().map_err(|why| Failure::Call {
            why: format!("could not get REST client: {why}"),
            code: 500,
        })?;
        let uid = uuid::Uuid::new_v4().to_string();
        let question =
            review::question(asked, &uid, version, shown.object.as_deref(), shown.old.as_deref());
        let posted = latency::spend(sort.layer(), client.post(question, hook.timeout)).await;
        let body = posted.map_err(|error| Failure::Call {
            why: format!("failed to call webhook: {error}"),
            code: error.code(),
        })?;
        let answer = review::answer(&body, name, &uid, sort == Sort::Mutating);
        let review::Answer { denied, patch, annotations, warnings } =
            answer.map_err(Failure::bad_answer)?;
        for (key, value) in annotations {
            asked.remarks.annotate(format!("{name}/{key}"), value);
        }
        for warning in warnings {
            asked.remarks.warn(warning);
        }
        denied.map_or(Ok(patch), |denied| Err(Failure::Denied(denied)))
    }

    /// Counts the call of a webhook. Fails when its failure, or its refusal, fails the request.
    pub(super) fn judge(
        &self,
        hook: &Hook,
        asked: &Asked<'_>,
        sort: Sort,
        (begun, round): (Instant, usize),
        failure: Option<Failure>,
    ) -> Result<()> {
        let metrics = &self.metrics;
        let operation = asked.operation;
        let Some(failure) = failure else {
            metrics.answered(hook, sort, operation, begun, (200, false));
            return Ok(());
        };
        match failure {
            Failure::Call { why, code } if hook.on_failure == FailurePolicy::Ignore => {
                warn!(webhook = hook.name, why, "Failed to call a webhook; going on without it");
                metrics.answered(hook, sort, operation, begun, (code, false));
                metrics.failed_open(hook, sort);
                let prefix = sort.failed_open();
                let key = format!("{prefix}/round_{round}_index_{}", hook.index);
                asked.remarks.annotate(key, hook.name.clone());
                Ok(())
            }
            Failure::Call { why, code } => {
                warn!(webhook = hook.name, why, "Failed to call a webhook; refusing the request");
                metrics.answered(hook, sort, operation, begun, (code, true));
                metrics.rejected(hook, sort, operation, "calling_webhook_error", code);
                let text = format!("failed calling webhook {:?}: {why}", hook.name);
                Err(ApiError::internal(text))
            }
            Failure::Denied(error) => {
                let code = error.code().as_u16();
                metrics.answered(hook, sort, operation, begun, (code, true));
                metrics.rejected(hook, sort, operation, "no_error", code);
                Err(error)
            }
            Failure::Wrong(error) => {
                metrics.answered(hook, sort, operation, begun, (0, true));
                metrics.rejected(hook, sort, operation, "apiserver_internal_error", 0);
                Err(error)
            }
        }
    }
}
