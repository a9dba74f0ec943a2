//! The audit log: who asked for what, and how the request ended (Events of `audit.k8s.io/v1`).
//!
//! Owns the policy that decides what is recorded, the stages of a request, and the two backends
//! that events go to: a log, and a webhook. A backend's mode says whether requests wait for it.

mod backend;
mod batch;
mod body_capture;
mod event;
mod file;
mod line;
mod log;
mod policy;
mod request;
mod strangers;
mod webhook;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use self::{
    backend::{AuditBackend, DeliveryReceipt},
    event::AuditEvent,
    strangers::StrangerRefusals,
};
pub use self::{
    batch::{BatchConfig, BatchThrottle},
    file::FileRotation,
    log::AuditLogTarget,
    policy::{AuditDecision, AuditLevel, AuditPolicy, AuditPolicyError, AuditStage, OmittedStages},
    request::{AuditSubject, AuditedRequest, IncomingRequest},
    webhook::AuditWebhookError,
};
use crate::{
    apiserver::{
        authn::User, installation::InstallationNames, metrics::Metrics, request_info::RequestInfo,
    },
    runtime::Runtime,
};

/// Most bytes of an object that are kept for an event: as many as a client may send.
const LARGEST_OBJECT: usize = crate::machinery::decode::MAX_BODY;

/// Configuration of the audit log: what is recorded, and which backends get the events.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Path of the policy file. Without it, requests that change something are recorded, at level
    /// Metadata.
    pub policy: Option<PathBuf>,
    pub log: Option<AuditLogConfig>,
    pub webhook: Option<AuditWebhookConfig>,
}

#[derive(Clone, Debug)]
pub struct AuditLogConfig {
    pub target: AuditLogTarget,
    pub rotation: FileRotation,
    pub delivery: AuditDelivery,
}

#[derive(Clone, Debug)]
pub struct AuditWebhookConfig {
    /// Path of a file in the form of a kubeconfig.
    pub file: PathBuf,
    /// Pause before the second try.
    pub backoff: Duration,
    pub delivery: AuditDelivery,
}

/// How events are handed to a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AuditDelivery {
    pub mode: DeliveryMode,
    pub truncation: Option<EventTruncation>,
}

/// Whether a request waits until the backend has its events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeliveryMode {
    /// Requests do not wait. An event that finds no room in the buffer is lost.
    Batch(BatchConfig),
    /// Requests wait, but do not fail when an event is lost.
    Blocking,
    /// Requests wait, and a request fails when its arrival cannot be recorded.
    BlockingStrict,
}

/// Limits beyond which events are truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTruncation {
    /// Most bytes of an event. A larger event loses its objects; if it is still too large, it is
    /// lost.
    pub max_event: usize,
    /// Most bytes of the events of a batch.
    pub max_batch: usize,
}

impl AuditLogConfig {
    /// Returns the configuration of a log when only its target is given by flags.
    pub fn new(target: AuditLogTarget) -> Self {
        let delivery = AuditDelivery { mode: DeliveryMode::Blocking, truncation: None };
        Self { target, rotation: FileRotation::DEFAULT, delivery }
    }
}

/// Why the audit log could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum AuditOpenError {
    #[error(transparent)]
    Policy(#[from] AuditPolicyError),
    #[error("failed to open the audit trail")]
    Log(#[source] io::Error),
    #[error(transparent)]
    Webhook(#[from] AuditWebhookError),
}

/// The open audit log: its policy, and the backends that its events go to.
pub struct AuditTrail {
    policy: AuditPolicy,
    backends: Vec<AuditBackend>,
    metrics: Arc<Metrics>,
    largest_object: usize,
    strangers: StrangerRefusals,
    /// Annotation of an event: how many refusals of its stranger were not recorded.
    unrecorded: &'static str,
}

impl AuditTrail {
    /// Opens the audit log; `None` when there is no backend. Its tasks end with the process, after
    /// the last event. The policy file is read in any case.
    pub async fn open(
        config: &Config,
        names: &InstallationNames,
        metrics: &Arc<Metrics>,
        rt: &Runtime,
    ) -> Result<Option<Self>, AuditOpenError> {
        let Config { policy, log, webhook } = config;
        let mut backends = Vec::new();
        let policy = policy.as_deref().map(AuditPolicy::load).transpose()?;
        if let Some(config) = log {
            backends.push(AuditBackend::log(config, metrics, rt).map_err(AuditOpenError::Log)?);
        }
        if let Some(config) = webhook {
            backends.push(AuditBackend::webhook(config, metrics, rt).await?);
        }
        let is_strict = backends.iter().any(|backend| backend.is_strict);
        // Bytes that each backend would cut off are not kept.
        let cut = backends.iter().map(|backend| backend.max_event.unwrap_or(LARGEST_OBJECT)).max();
        let Some(cut) = cut else { return Ok(None) };
        Ok(Some(Self {
            policy: policy.unwrap_or_else(|| AuditPolicy::of_changes(is_strict)),
            backends,
            metrics: Arc::clone(metrics),
            largest_object: cut.min(LARGEST_OBJECT),
            strangers: StrangerRefusals::default(),
            unrecorded: names.unrecorded,
        }))
    }

    fn decide(&self, user: Option<&User>, info: &RequestInfo) -> AuditDecision {
        let decision = self.policy.decide(user, info);
        self.metrics.audit_levels.with_label_values(&[decision.level.as_str()]).inc();
        decision
    }

    fn largest_object(&self) -> usize {
        self.largest_object
    }

    /// Counts a request that fails because its arrival cannot be recorded.
    fn reject(&self) {
        self.metrics.audit_rejected.inc();
    }

    /// Hands an event to the backends, and waits for those in a blocking mode. `false` when a
    /// strict backend did not record the event.
    ///
    /// The event is handed to all backends before this function waits for one of them.
    async fn record(&self, event: &mut AuditEvent, stage: AuditStage) -> bool {
        let mut stored = true;
        let receipts = self.give(event, stage);
        for (receipt, backend) in receipts.into_iter().zip(&self.backends) {
            stored &= backend.settle(receipt).await || !backend.is_strict;
        }
        stored
    }

    /// Hands an event to the backends without waiting for them.
    fn leave(&self, event: &mut AuditEvent, stage: AuditStage) {
        drop(self.give(event, stage));
    }

    fn give(&self, event: &mut AuditEvent, stage: AuditStage) -> Vec<DeliveryReceipt<'_>> {
        self.metrics.audit_events.inc();
        let line = event.encode(stage);
        let mut truncated = None;
        let each = self.backends.iter().map(|backend| {
            let mut line = &line;
            if let Some(limit) = backend.max_event.filter(|limit| line.len() > *limit) {
                if event.level >= AuditLevel::Request {
                    line = truncated.get_or_insert_with(|| event.encode_truncated());
                }
                if line.len() > limit {
                    self.metrics.lost_events("truncate", 1);
                    return DeliveryReceipt::Nothing;
                }
            }
            backend.take(line.clone())
        });
        each.collect()
    }
}
