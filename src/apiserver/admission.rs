//! Admission of writes before they are stored: the plugins that an aggregated API server has to
//! bring itself, because kube-apiserver runs none for our group.

pub mod namespace;
pub mod remarks;
pub mod webhook;

use std::{sync::Arc, time::Instant};

use futures::future::BoxFuture;
use serde_json::Value;

pub use remarks::AdmissionRemarks;

use self::webhook::{AdmissionTiming, WebhookDispatcher};
use super::{authn::User, status::ApiError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionOperation {
    Create,
    Update,
    Delete,
}

impl AdmissionOperation {
    pub const ALL: [Self; 3] = [Self::Create, Self::Update, Self::Delete];

    /// Returns the operation's name for webhooks and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A write to be admitted. Objects are in hub form.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionAttributes<'a> {
    pub operation: AdmissionOperation,
    pub user: &'a User,
    pub group: &'a str,
    /// Plural name of the resource, such as `pilots`.
    pub resource: &'a str,
    /// `status`, or empty.
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// Name of the object, empty for a collection.
    pub name: &'a str,
    /// The object that is to be stored; absent for deletes.
    pub object: Option<&'a Value>,
    /// The object that is stored now; absent for creates.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
}

/// A validating admission plugin.
pub trait AdmissionPlugin: Send + Sync {
    /// Admits a write, or fails with the error that the client gets.
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Returns the webhooks that are called after the plugins; `None` without a core cluster.
    fn webhooks(&self) -> Option<&WebhookDispatcher> {
        None
    }
}

/// Plugins that are called one after the other; the first refusal counts. Webhooks come after them.
#[derive(Clone, Default)]
pub struct AdmissionChain {
    plugins: Arc<[Arc<dyn AdmissionPlugin>]>,
    webhooks: Option<Arc<WebhookDispatcher>>,
}

impl AdmissionChain {
    pub fn new(plugins: Vec<Arc<dyn AdmissionPlugin>>) -> Self {
        Self { plugins: plugins.into(), webhooks: None }
    }

    #[must_use]
    pub fn with_webhooks(self, webhooks: WebhookDispatcher) -> Self {
        Self { webhooks: Some(Arc::new(webhooks)), ..self }
    }
}

impl AdmissionPlugin for AdmissionChain {
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            for plugin in self.plugins.iter() {
                plugin.admit(attributes).await?;
            }
            Ok(())
        })
    }

    fn webhooks(&self) -> Option<&WebhookDispatcher> {
        self.webhooks.as_deref()
    }
}

/// A plugin whose duration is measured.
pub struct TimedPlugin<P> {
    plugin: P,
    timing: AdmissionTiming,
}

impl<P: AdmissionPlugin> TimedPlugin<P> {
    pub fn new(plugin: P, timing: AdmissionTiming) -> Self {
        Self { plugin, timing }
    }
}

impl<P: AdmissionPlugin> AdmissionPlugin for TimedPlugin<P> {
    fn admit<'a>(
        &'a self,
        attributes: AdmissionAttributes<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let started_at = Instant::now();
            let outcome = self.plugin.admit(attributes).await;
            self.timing.observe(attributes.operation, started_at, outcome.is_err());
            outcome
        })
    }
}
