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
    runtime::leader::{DeposedError, LeaderClaim, fenced},
};

/// Field manager of the controller's writes; the server records it as the owner of our fields.
pub(crate) const MANAGER: &str = crate::api::names::CONTROLLER;

/// User agent of the controller in audit logs; the number of the leader's term is added to it.
const AGENT: &str = concat!("navigator-controller/v", env!("CARGO_PKG_VERSION"));

pub(crate) struct ControllerContext {
    pub(crate) client: Client,
    /// Client whose writes fail once this process no longer leads; see [`writer`].
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

/// Returns the client of [`ControllerContext::write`]: a write fails when the claim to leadership
/// ends, even if the server has not answered.
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
    /// The namespace is being deleted, so no object can be created in it.
    #[error("namespace {0:?} is being deleted")]
    NamespaceTerminating(String),
    /// The system gave no random numbers.
    #[error("failed to make {what}")]
    Unmade { what: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// An object with a name that the cluster needs has another owner, or is of another store.
    #[error("{}", .0.message)]
    Foreign(super::desired_state::StallCause),
    /// Another process may lead by now, so this one writes no more.
    #[error("this process does not lead any more")]
    NotLeading,
}

impl Error {
    /// Turns the error of a failed request into the variant that describes it.
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

    /// Did the request get no answer, or a 5xx code? Such an error says nothing about the object.
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

/// Returns why a single object was not written where only what needs that object has to wait: the
/// server refused it, or it is not known to be the cluster's. Returns any other error as it is.
pub(crate) fn unwritten(error: Error) -> Result<StallCause, Error> {
    match error {
        Error::Foreign(cause) => Ok(cause),
        error => refused(error),
    }
}

/// Is this the answer of kube-apiserver, or of our API server, to a create in a namespace that is
/// being deleted?
fn terminating(status: &kube::core::Status) -> bool {
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

    /// Returns an object of a kind of which only the metadata are watched. It is read from the server,
    /// unless its last version was read already. `None` where the watch knows none of this name, or
    /// where it is gone.
    pub(crate) async fn object(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, Error> {
        match self.stores.made(&resource.kind, namespace, name) {
            Some(known) => self.whole(resource, &known).await,
            None => Ok(None),
        }
    }

    /// Returns all of an object of which the watch knows this.
    pub(crate) async fn whole(
        &self,
        resource: &ApiResource,
        known: &ObjectMeta,
    ) -> Result<Option<DynamicObject>, Error> {
        if let Some(read) = self.stores.as_read(resource, known) {
            return Ok(Some(read));
        }
        let name = known.name.as_deref().unwrap_or_default();
        let api = self.read(resource, known.namespace.as_deref().unwrap_or_default());
        let found = api.get_opt(name).await;
        let mut found =
            found.map_err(|error| Error::request("get", &resource.kind, name, error))?;
        if let Some(object) = &mut found {
            self.stores.keep_read(resource, object);
        }
        Ok(found)
    }

    pub(crate) fn read(&self, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, resource)
    }
}
