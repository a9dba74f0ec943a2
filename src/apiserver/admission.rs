//! Rules about who may write what and where, beyond authorization and validation.
//!
//! Owns the seam: a chain of [`Admit`] steps runs on every write, before validation, in order;
//! the first refusal ends the request. Steps see hub objects.

pub mod pilot_identity;

use futures::future::BoxFuture;
use serde_json::Value;

use super::{authn::User, status::ApiError};
use crate::api::scheme::{Kind, Version};

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// What a step may judge by.
pub struct Attributes<'a> {
    pub operation: Operation,
    pub kind: &'static dyn Kind,
    pub version: Version,
    /// `status`, or empty.
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub user: &'a User,
    /// The object as it would be stored; absent for deletes.
    pub object: Option<&'a Value>,
    /// The object as it is stored; absent for creates.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
}

/// One step of the chain.
pub trait Admit: Send + Sync {
    fn admit<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Result<(), ApiError>>;
}
