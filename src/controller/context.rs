//! What every reconcile uses: client, caches, settings, the claim to lead.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use tokio::sync::watch;

use super::{
    desired::{ObjectSettings, StallCause},
    events::ClusterEventPublisher,
    heard::HeartbeatTracker,
    metrics::Metrics,
    stores::ObjectCaches,
};
use crate::{
    error::chain,
    runtime::leader::{DeposedError, LeaderClaim, fenced},
};

/// Name under which we write; owner of our fields on the server.
pub(crate) const MANAGER: &str = crate::api::names::CONTROLLER;

/// User agent of the controller in audit logs; the number of the reign is added to it.
const AGENT: &str = concat!("navigator-controller/v", env!("CARGO_PKG_VERSION"));

pub(crate) struct ControllerContext {
    pub(crate) client: Client,
    /// Writes only while we lead; see [`writer`].
    pub(crate) writer: Client,
    pub(crate) stores: ObjectCaches,
    pub(crate) heard: HeartbeatTracker,
    pub(crate) settings: ObjectSettings,
    pub(crate) events: ClusterEventPublisher,
    pub(crate) metrics: Metrics,
    pub(crate) claim: watch::Receiver<LeaderClaim>,
}

/// The client of [`ControllerContext::write`]: a write fails when the claim ends, even if the
/// server has not answered.
pub(crate) fn writer(client: &Client, claim: &watch::Receiver<LeaderClaim>) -> Client {
    fenced(client.clone(), claim.clone(), AGENT)
}

/// Why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Another client changed the object; the next reconcile sees the change.
    #[error("{kind} {name:?} changed meanwhile")]
    Conflict { kind: String, name: String },
    #[error("failed to {verb} {kind} {name:?}")]
    Request { verb: &'static str, kind: String, name: String, source: Box<kube::Error> },
    /// The object is not of its kind. Our own API server stores no such object.
    #[error("failed to understand {kind} {name:?}")]
    Unreadable { kind: &'static str, name: String, source: serde_json::Error },
    /// Nothing is made in a namespace that is being deleted.
    #[error("namespace {0:?} is being deleted")]
    NamespaceTerminating(String),
    /// An object with a name that the cluster needs has another owner, or is of another store.
    #[error("{}", .0.message)]
    Foreign(super::desired::StallCause),
    /// Another process may lead by now: nothing is written any more.
    #[error("this process does not lead any more")]
    NotLeading,
}

impl Error {
    /// Sorts a failed request.
    pub(crate) fn request(verb: &'static str, kind: &str, name: &str, error: kube::Error) -> Self {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        match &error {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict { kind, name },
            kube::Error::Service(error) if error.is::<DeposedError>() => Self::NotLeading,
            kube::Error::Api(status) if terminating(status) => {
                Self::NamespaceTerminating(chain(&error).to_string())
            }
            _ => Self::Request { verb, kind, name, source: Box::new(error) },
        }
    }

    /// The request got no answer, or a 5xx code. The error says nothing about the object.
    pub(crate) fn is_outage(&self) -> bool {
        let Self::Request { source, .. } = self else { return false };
        !matches!(&**source, kube::Error::Api(status) if status.code < 500)
    }

    /// Value of the metric's label.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "conflict",
            Self::Request { .. } | Self::Unreadable { .. } => "error",
            Self::NamespaceTerminating(_) => "terminating",
            Self::Foreign(_) => "foreign",
            Self::NotLeading => "fenced",
        }
    }
}

/// The server's message, when it refused a single object: because of a policy, a quota or a
/// webhook. Any other error is returned as it is.
pub(crate) fn refused(error: Error) -> Result<StallCause, Error> {
    match &error {
        Error::Request { verb, kind, name, source } => match source.as_ref() {
            kube::Error::Api(status) if !matches!(status.code, 401 | 404 | 429 | 503 | 504) => {
                let message =
                    format!("{kind} {name:?}: the server refused to {verb} it: {}", status.message);
                Ok(StallCause { reason: "ObjectRefused", message })
            }
            _ => Err(error),
        },
        _ => Err(error),
    }
}

/// kube-apiserver's and our own answer to a create in a namespace that is being deleted.
fn terminating(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403
        && (causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
            || status.message.contains("is being terminated"))
}

impl ControllerContext {
    /// An [`Api`] for writing. Every write asks for it, so a process that may have been deposed
    /// writes nothing.
    ///
    /// # Errors
    /// [`Error::NotLeading`]
    pub(crate) fn write(
        &self,
        resource: &ApiResource,
        namespace: &str,
    ) -> Result<Api<DynamicObject>, Error> {
        if !self.claim.borrow().is_held() {
            return Err(Error::NotLeading);
        }
        Ok(Api::namespaced_with(self.writer.clone(), namespace, resource))
    }

    pub(crate) fn read(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }
}
