//! What has a say before a write is stored: the plugins that an aggregated API server has to
//! bring itself, because kube-apiserver runs none for our group.

pub mod namespace;
pub mod pilot_status;

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::{authn::User, status::ApiError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
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
    /// What shall be stored; absent for deletes.
    pub object: Option<&'a Value>,
    /// What is stored; absent for creates.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
}

/// A validating admission plugin.
pub trait Admit: Send + Sync {
    /// Fails with what the client shall read.
    fn admit<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// Plugins, asked one after the other; the first refusal counts.
#[derive(Clone, Default)]
pub struct Plugins(Arc<[Arc<dyn Admit>]>);

impl Plugins {
    pub fn new(plugins: Vec<Arc<dyn Admit>>) -> Self {
        Self(plugins.into())
    }
}

impl Admit for Plugins {
    fn admit<'a>(&'a self, attributes: Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            for plugin in self.0.iter() {
                plugin.admit(attributes).await?;
            }
            Ok(())
        })
    }
}
