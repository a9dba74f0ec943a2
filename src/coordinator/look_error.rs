//! Why a look ended early.

use crate::runtime::leader::DeposedError;

/// Why a look ended early. The next one decides anew.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    /// Another client changed the object since it was read.
    #[error("{0} changed meanwhile")]
    Stale(String),
    #[error("failed to {verb} {what}")]
    Request { verb: &'static str, what: String, source: Box<kube::Error> },
    /// Another process may lead by now, so this one writes no more.
    #[error("this process does not lead any more")]
    NotLeading,
}

impl LookError {
    /// Turns the error of a failed request into the variant that describes it.
    pub(super) fn for_request(verb: &'static str, subject: &str, error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if status.code == 409 => Self::Stale(subject.to_owned()),
            kube::Error::Service(error) if error.is::<DeposedError>() => Self::NotLeading,
            _ => Self::Request { verb, what: subject.to_owned(), source: Box::new(error) },
        }
    }

    /// Is the object gone that the request was about?
    pub(super) fn is_missing(&self) -> bool {
        let Self::Request { source, .. } = self else { return false };
        matches!(&**source, kube::Error::Api(status) if status.code == 404)
    }

    /// Returns the value of the label `outcome` in the metrics.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Stale(_) => "conflict",
            Self::Request { .. } => "error",
            Self::NotLeading => "fenced",
        }
    }
}
