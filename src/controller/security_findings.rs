//! What is wrong with Secrets, certificates and users of a cluster, for its status.

use super::desired_state::StallCause;
use crate::api::v1beta1::AuthorityStatus;

/// Something that a person has to mend, with the reason for a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecurityProblem {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl From<StallCause> for SecurityProblem {
    fn from(StallCause { reason, message }: StallCause) -> Self {
        Self { reason, message }
    }
}

/// A user that is to be in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredLogin {
    pub(crate) name: String,
    pub(crate) secret: String,
    /// Why what its Secret holds cannot be used.
    pub(crate) problem: Option<String>,
}

/// What was found of a secured cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecurityFindings {
    /// Whether Secrets were looked at: without, that nothing was found says nothing.
    pub(crate) looked: bool,
    /// What is wrong with CAs, requests and certificates.
    pub(crate) certificates: Vec<SecurityProblem>,
    /// What is done or waited for while one CA takes another's place.
    pub(crate) succession: Option<String>,
    /// Nodes whose private keys are to be replaced.
    pub(crate) former_keys: Vec<String>,
    /// A name that clients use, and that the certificate that was given does not hold.
    pub(crate) lacks: Option<String>,
    /// The CAs that sign the certificates of nodes.
    pub(crate) authorities: Vec<AuthorityStatus>,
    /// The administrator and the users of the spec, with the Secret of each and what is wrong with it.
    pub(crate) declared: Vec<DeclaredLogin>,
    /// What is wrong with users and their Secrets.
    pub(crate) users: Vec<SecurityProblem>,
    /// Revision of the users that nodes are to have.
    pub(crate) revision: Option<String>,
    /// The first object that the server would not take.
    pub(crate) refusal: Option<StallCause>,
}
