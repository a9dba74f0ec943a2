//! What has a say before a write is stored: the plugins that an aggregated API server has to
//! bring itself, because kube-apiserver runs none for our group.

pub mod namespace;
pub mod pilot_lease;
pub mod pilot_status;
pub mod remarks;
pub mod webhook;

use std::{sync::Arc, time::Instant};

use futures::future::BoxFuture;
use serde_json::Value;

pub use remarks::Remarks;

use self::webhook::{Timing, Webhooks};
use super::{authn::User, status::ApiError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub const ALL: [Self; 3] = [Self::Create, Self::Update, Self::Delete];

    /// As webhooks and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A write that wants to be admitted. Objects are in hub form.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    pub operation: Operation,
    pub user: &'a User,
    pub group: &'a str,
    /// Plural: `pilots`.
    pub resource: &'a str,
    /// `status`, or empty.
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// Empty for a collection.
    pub name: &'a str,
    /// The object that shall be stored; absent for deletes.
    pub object: Option<&'a Value>,
    /// The object that is stored; absent for creates.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
}

/// A validating admission plugin.
pub trait Admit: Send + Sync {
    /// Fails with the error that the client shall read.
    fn admit<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;

    /// The webhooks that are called after the plugins; `None` where no core cluster configures any.
    fn webhooks(&self) -> Option<&Webhooks> {
        None
    }
}

/// Plugins, asked one after the other; the first refusal counts. Webhooks come after them.
#[derive(Clone, Default)]
pub struct Plugins {
    plugins: Arc<[Arc<dyn Admit>]>,
    webhooks: Option<Arc<Webhooks>>,
}

impl Plugins {
    pub fn new(plugins: Vec<Arc<dyn Admit>>) -> Self {
        Self { plugins: plugins.into(), webhooks: None }
    }

    #[must_use]
    pub fn with_webhooks(self, webhooks: Webhooks) -> Self {
        Self { webhooks: Some(Arc::new(webhooks)), ..self }
    }
}

impl Admit for Plugins {
    fn admit<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            for plugin in self.plugins.iter() {
                plugin.admit(attributes).await?;
            }
            Ok(())
        })
    }

    fn webhooks(&self) -> Option<&Webhooks> {
        self.webhooks.as_deref()
    }
}

/// A plugin whose time is counted.
pub struct Counted<P> {
    plugin: P,
    timing: Timing,
}

impl<P: Admit> Counted<P> {
    pub fn new(plugin: P, timing: Timing) -> Self {
        Self { plugin, timing }
    }
}

impl<P: Admit> Admit for Counted<P> {
    fn admit<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let begun = Instant::now();
            let outcome = self.plugin.admit(attributes).await;
            self.timing.observe(attributes.operation, begun, outcome.is_err());
            outcome
        })
    }
}
