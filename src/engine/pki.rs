//! Certificates of database nodes: the CAs that sign them, a node's key and its request, what is
//! signed for whom, and what is wrong with a certificate that is in use. `rollover` decides how one
//! CA takes the place of another.
//!
//! No I/O, and the time is always an argument. Certificates and bundles are public and travel as
//! PEM; a private key leaves a [`PrivateKey`] only by [`PrivateKey::to_pem`].

mod authority;
mod bundle;
mod der;
mod issue;
mod judge;
mod key;
mod request;
pub mod rollover;
#[cfg(test)]
mod tests;

pub use self::{
    authority::{AuthorityRefusal, CertificateAuthority, GivenCertificate},
    bundle::{BundleRefusal, MAX_CERTIFICATES, TrustBundle},
    der::certificate_pem,
    issue::{CertificateUse, IssueError, LeafOrder, needs_renewal},
    judge::{CertificateProblem, check_chain, find_authority},
    key::{KeyKind, PrivateKey, PrivateKeyRefusal},
    request::{KeyRequest, ProofRefusal, RequestRefusal, check_proof, create_proof},
};

/// Most bytes of PEM that are looked at: eight certificates with the longest keys take half.
const MAX_PEM_BYTES: usize = 64 * 1024;
