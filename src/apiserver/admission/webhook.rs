//! Webhooks of the core cluster: MutatingAdmissionWebhook and ValidatingAdmissionWebhook.
//!
//! kube-apiserver calls none for aggregated kinds, so this server does, by upstream's rules
//! (`apiserver/pkg/admission/plugin/webhook`). Where no webhook means a write, nothing is
//! allocated for it.

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

use self::matching::Subject;
pub use configurations::Sorts;
pub use metrics::{AdmissionMetrics, Timing};

use super::{Operation, Remarks, namespace::Namespaces};
use crate::{
    api::{
        GROUP,
        decode::{Document, weight},
        kind::{Kind, Part, Version},
    },
    apiserver::{
        authn::User,
        status::{ApiError, Resource, Result},
    },
    runtime::Runtime,
};

/// How long a write waits for the configurations to be known, once, after a start.
const PATIENCE: Duration = Duration::from_secs(10);

/// A write that webhooks may be asked about.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub operation: Operation,
    pub kind: &'static dyn Kind,
    /// The version that the request names.
    pub version: Version,
    pub part: Part,
    pub namespace: &'a str,
    pub name: &'a str,
    pub user: &'a User,
    /// What is stored, in hub form; absent for creates.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
    /// The request's options as an object of `meta.k8s.io/v1`.
    pub options: &'a (dyn Fn() -> Value + Send + Sync),
    /// Applies a JSON patch to an object of some version.
    pub patch: fn(&[u8], Value) -> Result<Document, Unpatched>,
    pub remarks: &'a Remarks,
}

/// Why a webhook's patch was not applied.
#[derive(Debug)]
pub enum Unpatched {
    /// The text is no JSON patch.
    Unreadable(String),
    /// The patch does not fit the object.
    Failed(String),
}

impl Asked<'_> {
    fn subject(&self) -> Subject<'static> {
        let Self { operation, kind, version, part, namespace, .. } = *self;
        subject(kind, version, operation, part, !namespace.is_empty())
    }

    /// About how many bytes the new object has, or else the stored one.
    fn weight(&self, object: Option<&Value>) -> usize {
        object.or(self.old).map_or(0, weight::of)
    }
}

fn subject(
    kind: &'static dyn Kind,
    version: Version,
    operation: Operation,
    part: Part,
    is_namespaced: bool,
) -> Subject<'static> {
    Subject {
        operation,
        group: kind.group(),
        version,
        versions: kind.versions(),
        resource: kind.plural(),
        subresource: part.subresource(),
        is_namespaced,
    }
}

/// The webhooks, as far as they concern our group.
pub struct Webhooks {
    latest: configurations::Latest,
    namespaces: Arc<Namespaces>,
    metrics: AdmissionMetrics,
    mutating: Timing,
    validating: Timing,
    admit: Timing,
    validate: Timing,
}

impl Webhooks {
    /// Starts to follow the configurations.
    pub fn start(
        client: &kube::Client,
        sorts: Sorts,
        namespaces: Arc<Namespaces>,
        metrics: AdmissionMetrics,
        rt: &Runtime,
    ) -> Self {
        Self {
            latest: configurations::follow(client, sorts, GROUP, rt),
            namespaces,
            mutating: metrics.plugin("MutatingAdmissionWebhook", "admit"),
            validating: metrics.plugin("ValidatingAdmissionWebhook", "validate"),
            admit: metrics.step("admit"),
            validate: metrics.step("validate"),
            metrics,
        }
    }

    /// May any webhook be asked about such a write, as far as the webhooks' rules tell?
    pub fn may_mean(
        &self,
        kind: &'static dyn Kind,
        version: Version,
        operation: Operation,
        part: Part,
    ) -> bool {
        let subject = subject(kind, version, operation, part, kind.is_namespaced());
        let known = self.latest.borrow();
        let means = |known: &configurations::Webhooks| {
            means(&known.mutating, subject) || means(&known.validating, subject)
        };
        known.as_deref().is_none_or(means)
    }

    /// Lets webhooks change the object that shall be stored. Says whether they changed it.
    pub async fn mutate(&self, asked: &Asked<'_>, object: Option<&mut Value>) -> Result<bool> {
        let begun = Instant::now();
        let known = self.known(asked).await?;
        let outcome = match known.filter(|known| means(&known.mutating, asked.subject())) {
            Some(known) => Box::pin(self.mutate_by(&known, asked, object)).await,
            None => Ok(false),
        };
        self.mutating.observe(asked.operation, begun, outcome.is_err());
        outcome
    }

    /// Asks the validating webhooks whether the object may be stored, or deleted.
    pub async fn validate(&self, asked: &Asked<'_>, object: Option<&Value>) -> Result<()> {
        let begun = Instant::now();
        let known = self.known(asked).await?;
        let outcome = match known.filter(|known| means(&known.validating, asked.subject())) {
            Some(known) => Box::pin(self.validate_by(&known, asked, object)).await,
            None => Ok(()),
        };
        self.validating.observe(asked.operation, begun, outcome.is_err());
        self.validate.observe(asked.operation, begun, outcome.is_err());
        outcome
    }

    /// Counts the time of all admission before validation.
    pub fn admitted(&self, operation: Operation, begun: Instant, rejected: bool) {
        self.admit.observe(operation, begun, rejected);
    }

    /// Waits, after a start, until the configurations were read. `None` stands for no webhooks.
    async fn known(&self, asked: &Asked<'_>) -> Result<Option<Arc<configurations::Webhooks>>> {
        if let Some(known) = &*self.latest.borrow() {
            return Ok((!known.is_empty()).then(|| Arc::clone(known)));
        }
        let mut latest = self.latest.clone();
        let known = tokio::time::timeout(PATIENCE, latest.wait_for(Option::is_some)).await;
        if let Ok(Ok(known)) = known {
            return Ok(known.clone());
        }
        let resource = Resource { group: asked.kind.group(), resource: asked.kind.plural() };
        Err(ApiError::forbidden(resource, asked.name, "not yet ready to handle request"))
    }
}

/// Is any of these webhooks to be asked, as far as their rules tell?
fn means(hooks: &[Arc<hook::Hook>], subject: Subject<'_>) -> bool {
    hooks.iter().any(|hook| hook.rules.version(subject).is_some())
}
