//! Metrics of admission, under upstream's names.
//!
//! Names of webhooks are labels: they come from objects that only administrators write. A status
//! code above 600 counts as 600.

use std::time::Instant;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, core::Collector,
};

use super::hook::AdmissionWebhook;
use crate::apiserver::{admission::AdmissionOperation, latency::LatencyLayer};

const BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const HIGHEST_CODE: u16 = 600;

/// Whether a webhook mutates or validates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WebhookType {
    Mutating,
    Validating,
}

impl WebhookType {
    /// Returns the label `type`. Upstream writes `validating` here, where other metrics have
    /// `validate`.
    fn label(self) -> &'static str {
        match self {
            Self::Mutating => "admit",
            Self::Validating => "validating",
        }
    }

    pub(super) fn layer(self) -> LatencyLayer {
        match self {
            Self::Mutating => LatencyLayer::MutatingWebhook,
            Self::Validating => LatencyLayer::ValidatingWebhook,
        }
    }

    /// Returns the prefix of the audit annotation for a call that failed and was ignored.
    pub(super) fn failed_open(self) -> &'static str {
        match self {
            Self::Mutating => "failed-open.mutating.webhook.admission.k8s.io",
            Self::Validating => "failed-open.validating.webhook.admission.k8s.io",
        }
    }
}

/// Metrics of plugins and webhooks; each metric's help text explains it.
pub struct AdmissionMetrics {
    steps: HistogramVec,
    plugins: HistogramVec,
    webhooks: HistogramVec,
    requests: IntCounterVec,
    rejections: IntCounterVec,
    fail_open: IntCounterVec,
    condition_errors: IntCounterVec,
    exclusions: IntCounterVec,
}

/// Histograms of one plugin or step, looked up once, since they are used for each write.
pub struct AdmissionTiming([[Histogram; 2]; 3]);

impl AdmissionTiming {
    fn new(family: &HistogramVec, labels: &[&str]) -> Self {
        Self(AdmissionOperation::ALL.map(|operation| {
            ["false", "true"].map(|rejected_label| {
                let mut labels = labels.to_vec();
                labels.extend([operation.as_str(), rejected_label]);
                family.with_label_values(&labels)
            })
        }))
    }

    pub fn observe(&self, operation: AdmissionOperation, started_at: Instant, is_rejected: bool) {
        let index = AdmissionOperation::ALL
            .iter()
            .position(|candidate| *candidate == operation)
            .unwrap_or_default();
        self.0[index][usize::from(is_rejected)].observe(started_at.elapsed().as_secs_f64());
    }
}

impl AdmissionMetrics {
    /// Creates metrics that are not registered yet; see [`AdmissionMetrics::register`].
    #[expect(clippy::new_without_default, reason = "a default would suggest that it is registered")]
    pub fn new() -> Self {
        Self {
            steps: build_histograms(
                "apiserver_admission_step_admission_duration_seconds",
                "Seconds that a step of admission took, by type (admit, validate) and operation.",
                &["type", "operation", "rejected"],
                BUCKETS,
            ),
            plugins: build_histograms(
                "apiserver_admission_controller_admission_duration_seconds",
                "Seconds that an admission plugin took, by name, type and operation.",
                &["name", "type", "operation", "rejected"],
                BUCKETS,
            ),
            webhooks: build_histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "Seconds that a call of an admission webhook took, by name, type and operation.",
                &["name", "type", "operation", "rejected"],
                WEBHOOK_BUCKETS,
            ),
            requests: build_counters(
                "apiserver_admission_webhook_request_total",
                "Calls of admission webhooks, by name, type, operation and HTTP code.",
                &["name", "type", "operation", "code", "rejected"],
            ),
            rejections: build_counters(
                "apiserver_admission_webhook_rejection_count",
                "Requests refused because of an admission webhook, by name, type and operation. \
                 error_type is calling_webhook_error, apiserver_internal_error or no_error.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            ),
            fail_open: build_counters(
                "apiserver_admission_webhook_fail_open_count",
                "Calls of admission webhooks that failed and were ignored, by name and type.",
                &["name", "type"],
            ),
            condition_errors: build_counters(
                "apiserver_admission_match_condition_evaluation_errors_total",
                "Errors of webhooks' matchConditions, by name, type and operation.",
                &["name", "kind", "type", "operation"],
            ),
            exclusions: build_counters(
                "apiserver_admission_match_condition_exclusions_total",
                "Times that a webhook was not called because of its matchConditions, by name, type \
                 and operation.",
                &["name", "kind", "type", "operation"],
            ),
        }
    }

    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self {
            steps,
            plugins,
            webhooks,
            requests,
            rejections,
            fail_open,
            condition_errors,
            exclusions,
        } = self;
        vec![
            Box::new(steps.clone()),
            Box::new(plugins.clone()),
            Box::new(webhooks.clone()),
            Box::new(requests.clone()),
            Box::new(rejections.clone()),
            Box::new(fail_open.clone()),
            Box::new(condition_errors.clone()),
            Box::new(exclusions.clone()),
        ]
    }

    pub fn register(&self, registry: &Registry) {
        for collector in self.collectors() {
            registry.register(collector).expect("every metric has a name of its own");
        }
    }

    /// Returns the timing of the plugin `name`; `step`, the label `type`, is `admit` or `validate`.
    pub fn plugin_timing(&self, name: &str, step: &str) -> AdmissionTiming {
        AdmissionTiming::new(&self.plugins, &[name, step])
    }

    pub fn step_timing(&self, step: &str) -> AdmissionTiming {
        AdmissionTiming::new(&self.steps, &[step])
    }

    pub(super) fn count_call(
        &self,
        hook: &AdmissionWebhook,
        webhook_type: WebhookType,
        operation: AdmissionOperation,
        started_at: Instant,
        (code, is_rejected): (u16, bool),
    ) {
        let (name, type_label, operation) =
            (hook.name.as_str(), webhook_type.label(), operation.as_str());
        let rejected_label = if is_rejected { "true" } else { "false" };
        let labels = [name, type_label, operation, rejected_label];
        self.webhooks.with_label_values(&labels).observe(started_at.elapsed().as_secs_f64());
        let code = code.min(HIGHEST_CODE).to_string();
        self.requests
            .with_label_values(&[name, type_label, operation, &code, rejected_label])
            .inc();
    }

    pub(super) fn count_rejection(
        &self,
        hook: &AdmissionWebhook,
        webhook_type: WebhookType,
        operation: AdmissionOperation,
        error: &str,
        code: u16,
    ) {
        let code = code.min(HIGHEST_CODE).to_string();
        let labels = [hook.name.as_str(), webhook_type.label(), operation.as_str(), error, &code];
        self.rejections.with_label_values(&labels).inc();
    }

    pub(super) fn count_fail_open(&self, hook: &AdmissionWebhook, webhook_type: WebhookType) {
        self.fail_open.with_label_values(&[hook.name.as_str(), webhook_type.label()]).inc();
    }

    pub(super) fn count_condition_errors(
        &self,
        hook: &AdmissionWebhook,
        webhook_type: WebhookType,
        operation: AdmissionOperation,
        errors: usize,
    ) {
        if errors > 0 {
            let labels = [hook.name.as_str(), "webhook", webhook_type.label(), operation.as_str()];
            let errors = u64::try_from(errors).expect("a webhook has few conditions");
            self.condition_errors.with_label_values(&labels).inc_by(errors);
        }
    }

    pub(super) fn count_exclusion(
        &self,
        hook: &AdmissionWebhook,
        webhook_type: WebhookType,
        operation: AdmissionOperation,
    ) {
        let labels = [hook.name.as_str(), "webhook", webhook_type.label(), operation.as_str()];
        self.exclusions.with_label_values(&labels).inc();
    }
}

fn build_histograms(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)
        .expect("the metric's name and labels are valid")
}

fn build_counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect("the metric's name is valid")
}
