//! The audit log: who asked for what, and how the request ended (Events of `audit.k8s.io/v1`).
//!
//! Owns the policy that decides what is recorded, the stages of a request, and the two backends
//! that events go to: a log, which requests wait for, and a webhook, which none waits for.

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

use bytes::Bytes;

use self::{
    backend::{LogBackend, WebhookBackend},
    event::AuditEvent,
    strangers::StrangerRefusals,
};
pub use self::{
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

/// Most bytes of an object that are kept for an event: as many as a client may send. A larger
/// object, such as a long list, is left out.
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
}

#[derive(Clone, Debug)]
pub struct AuditWebhookConfig {
    /// Path of a file in the form of a kubeconfig.
    pub file: PathBuf,
    /// Pause before the second try.
    pub backoff: Duration,
}

impl AuditLogConfig {
    /// Returns the configuration of a log when only its target is given by flags.
    pub fn new(target: AuditLogTarget) -> Self {
        Self { target, rotation: FileRotation::DEFAULT }
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
    log: Option<LogBackend>,
    webhook: Option<WebhookBackend>,
    metrics: Arc<Metrics>,
    strangers: StrangerRefusals,
    /// Annotation of an event: how many refusals of its unauthenticated client were not recorded.
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
        let policy = policy.as_deref().map(AuditPolicy::load).transpose()?;
        let log = log.as_ref().map(|config| LogBackend::new(config, metrics, rt));
        let log = log.transpose().map_err(AuditOpenError::Log)?;
        let webhook = match webhook {
            Some(config) => Some(WebhookBackend::new(config, metrics, rt).await?),
            None => None,
        };
        if log.is_none() && webhook.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            policy: policy.unwrap_or_else(AuditPolicy::of_changes),
            log,
            webhook,
            metrics: Arc::clone(metrics),
            strangers: StrangerRefusals::default(),
            unrecorded: names.unrecorded,
        }))
    }

    fn decide(&self, user: Option<&User>, info: &RequestInfo) -> AuditDecision {
        let decision = self.policy.decide(user, info);
        self.metrics.audit_levels.with_label_values(&[decision.level.as_str()]).inc();
        decision
    }

    /// Hands an event to the backends, and waits until it is in the log.
    async fn record(&self, event: &mut AuditEvent, stage: AuditStage) {
        let line = self.encode(event, stage);
        if let Some(webhook) = &self.webhook {
            webhook.submit(line.clone());
        }
        if let Some(log) = &self.log {
            log.wait_until_written(log.submit(line)).await;
        }
    }

    /// Hands an event to the backends without waiting for them.
    fn enqueue_event(&self, event: &mut AuditEvent, stage: AuditStage) {
        let line = self.encode(event, stage);
        if let Some(webhook) = &self.webhook {
            webhook.submit(line.clone());
        }
        if let Some(log) = &self.log {
            drop(log.submit(line));
        }
    }

    fn encode(&self, event: &mut AuditEvent, stage: AuditStage) -> Bytes {
        self.metrics.audit_events.inc();
        event.encode(stage)
    }
}
