//! What every reconcile uses: the client, the caches, the settings, and the claim to leadership.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use tokio::sync::watch;

use super::{
    desired_state::{ObjectSettings, StallCause},
    event_causes::EventCauses,
    events::ClusterEventPublisher,
    expansion::ExpansionAnswers,
    heartbeats::HeartbeatTracker,
    metrics::Metrics,
    object_caches::ObjectCaches,
    status_pace::StatusPace,
    trust_observations::TrustObservations,
};
use crate::{
    engine::seal::SealKey,
    error::chain,
    runtime::leader::{DeposedError, LeaderClaim, fence_client},
};

/// Field manager of the controller's writes; the server records it as the owner of our fields.
pub(crate) const MANAGER: &str = crate::api::names::CONTROLLER;

/// User agent of the controller in audit logs; the number of the leader's term is added to it.
const AGENT: &str = concat!("navigator-controller/v", env!("CARGO_PKG_VERSION"));

pub(crate) struct ControllerContext {
    pub(crate) client: Client,
    /// Client whose writes fail once this process no longer leads; see [`fenced_client`].
    pub(crate) writer: Client,
    pub(crate) stores: ObjectCaches,
    pub(crate) heard: HeartbeatTracker,
    pub(crate) causes: EventCauses,
    pub(crate) expansion: ExpansionAnswers,
    pub(crate) trust: TrustObservations,
    pub(crate) pace: StatusPace,
    pub(crate) settings: ObjectSettings,
    pub(crate) seals: SealKey,
    pub(crate) events: ClusterEventPublisher,
    pub(crate) metrics: Metrics,
    pub(crate) claim: watch::Receiver<LeaderClaim>,
}

/// Returns the client of [`ControllerContext::write_api`]: a write fails when the claim to leadership
/// ends, even if the server has not answered.
pub(crate) fn fenced_client(client: &Client, claim: &watch::Receiver<LeaderClaim>) -> Client {
    fence_client(client.clone(), claim.clone(), AGENT)
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
    /// The namespace is being deleted, so no object can be created in it.
    #[error("namespace {0:?} is being deleted")]
    NamespaceTerminating(String),
    /// The system gave no random numbers.
    #[error("failed to make {what}")]
    Unmade { what: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// An object with a name that the cluster needs has another owner, or is of another store.
    #[error("{}", .0.message)]
    Foreign(super::desired_state::StallCause),
    /// Another process may lead by now, so this one stops writing.
    #[error("this process does not lead any more")]
    NotLeading,
}

impl Error {
    /// Turns the error of a failed request into the variant that describes it.
    pub(crate) fn from_request(
        verb: &'static str,
        kind: &str,
        name: &str,
        error: kube::Error,
    ) -> Self {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        match &error {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict { kind, name },
            kube::Error::Service(error) if error.is::<DeposedError>() => Self::NotLeading,
            kube::Error::Api(status) if is_namespace_terminating(status) => {
                Self::NamespaceTerminating(chain(&error).to_string())
            }
            _ => Self::Request { verb, kind, name, source: Box::new(error) },
        }
    }

    /// Returns whether the request got no answer, or a 5xx code. Such an error says nothing about
    /// the object.
    pub(crate) fn is_outage(&self) -> bool {
        let Self::Request { source, .. } = self else { return false };
        !matches!(&**source, kube::Error::Api(status) if status.code < 500)
    }

    /// Returns the value of the label `outcome` in the reconcile metrics.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "conflict",
            Self::Request { .. } | Self::Unreadable { .. } | Self::Unmade { .. } => "error",
            Self::NamespaceTerminating(_) => "terminating",
            Self::Foreign(_) => "foreign",
            Self::NotLeading => "fenced",
        }
    }
}

/// Returns a stall cause with the server's message when the server refused a single object, for
/// example because of a policy, a quota or a webhook. Returns any other error as it is.
pub(crate) fn stall_for_refusal(error: Error) -> Result<StallCause, Error> {
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

/// Returns why a single object was not written where only what needs that object has to wait: the
/// server refused it, or it is not known to be the cluster's. Returns any other error as it is.
pub(crate) fn stall_for_write_error(error: Error) -> Result<StallCause, Error> {
    match error {
        Error::Foreign(cause) => Ok(cause),
        error => stall_for_refusal(error),
    }
}

/// Returns whether this is the answer of kube-apiserver, or of our API server, to a create in a
/// namespace that is being deleted.
fn is_namespace_terminating(status: &kube::core::Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403
        && (causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
            || status.message.contains("is being terminated"))
}

impl ControllerContext {
    /// Returns an [`Api`] for one write. Each write asks for its own, so a process that may have
    /// been deposed writes nothing.
    ///
    /// # Errors
    /// [`Error::NotLeading`]
    pub(crate) fn write_api(
        &self,
        resource: &ApiResource,
        namespace: &str,
    ) -> Result<Api<DynamicObject>, Error> {
        if !self.claim.borrow().is_held() {
            return Err(Error::NotLeading);
        }
        Ok(Api::namespaced_with(self.writer.clone(), namespace, resource))
    }

    /// Returns an object of a kind of which only the metadata are watched. It is read from the server,
    /// unless its last version was read already. `None` where the watch knows none of this name, or
    /// where it is gone.
    pub(crate) async fn get_object(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, Error> {
        match self.stores.object_metadata(&resource.kind, namespace, name) {
            Some(metadata) => self.full_object(resource, &metadata).await,
            None => Ok(None),
        }
    }

    /// Returns all of an object of which the watch knows this.
    pub(crate) async fn full_object(
        &self,
        resource: &ApiResource,
        cached: &ObjectMeta,
    ) -> Result<Option<DynamicObject>, Error> {
        if let Some(object) = self.stores.cached_object(resource, cached) {
            return Ok(Some(object));
        }
        let name = cached.name.as_deref().unwrap_or_default();
        let api = self.read_api(resource, cached.namespace.as_deref().unwrap_or_default());
        let result = api.get_opt(name).await;
        let mut fetched =
            result.map_err(|error| Error::from_request("get", &resource.kind, name, error))?;
        if let Some(object) = &mut fetched {
            self.stores.cache_object(resource, object);
        }
        Ok(fetched)
    }

    pub(crate) fn read_api(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }
}
