//! Makes a CA and leaf certificates signed by it. No I/O.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};

use crate::machinery::x509;
pub use crate::machinery::x509::CertificateDetails;

const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// A certificate and its key, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePair {
    pub certificate: String,
    pub key: String,
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateIssueError {
    #[error("the CA cannot be used")]
    Ca(#[source] rcgen::Error),
    #[error("the certificate cannot be made")]
    Make(#[source] rcgen::Error),
}

/// Makes a CA of our own.
pub fn issue_ca() -> Result<CertificatePair, CertificateIssueError> {
    let key = KeyPair::generate().map_err(CertificateIssueError::Make)?;
    let params = x509::ca_params("navigator-apiserver-ca", unix_now(), CA_LIFE);
    let certificate = params.self_signed(&key).map_err(CertificateIssueError::Make)?;
    Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a server's leaf for `names`, signed by `ca` (the first certificate of its bundle).
pub fn issue_serving_certificate(
    ca: &CertificatePair,
    names: &[String],
) -> Result<CertificatePair, CertificateIssueError> {
    let usages = [ExtendedKeyUsagePurpose::ServerAuth];
    let mut params = x509::leaf_params("navigator-apiserver", &usages, unix_now(), LEAF_LIFE);
    let name_params = CertificateParams::new(names).map_err(CertificateIssueError::Make)?;
    params.subject_alt_names = name_params.subject_alt_names;
    sign_certificate(ca, &params)
}

/// Makes a client's leaf that names `user`, and `group` if there is one, signed by `ca`.
pub fn issue_client_certificate(
    ca: &CertificatePair,
    user: &str,
    group: Option<&str>,
) -> Result<CertificatePair, CertificateIssueError> {
    let mut params =
        x509::leaf_params(user, &[ExtendedKeyUsagePurpose::ClientAuth], unix_now(), LEAF_LIFE);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    sign_certificate(ca, &params)
}

fn sign_certificate(
    ca: &CertificatePair,
    params: &CertificateParams,
) -> Result<CertificatePair, CertificateIssueError> {
    let ca_key = KeyPair::from_pem(&ca.key).map_err(CertificateIssueError::Ca)?;
    let issuer =
        Issuer::from_ca_cert_pem(&ca.certificate, ca_key).map_err(CertificateIssueError::Ca)?;
    let key = KeyPair::generate().map_err(CertificateIssueError::Make)?;
    let certificate = params.signed_by(&key, &issuer).map_err(CertificateIssueError::Make)?;
    Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a certificate that no client trusts, to serve before a real one: (certificate, key).
pub fn self_signed() -> (String, String) {
    let issue_result = KeyPair::generate().and_then(|key| {
        let params = x509::leaf_params("navigator-apiserver-starting", &[], unix_now(), LEAF_LIFE);
        let certificate = params.self_signed(&key)?;
        Ok((certificate.pem(), key.serialize_pem()))
    });
    issue_result.expect("a P-256 key can be made and signs itself")
}

fn unix_now() -> i64 {
    Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_has_its_names_and_is_due_after_two_thirds_of_its_life() {
        let names = ["navigator-apiserver.navigator.svc".to_owned(), "127.0.0.1".to_owned()];
        let leaf = issue_serving_certificate(&issue_ca().unwrap(), &names).unwrap();
        let facts = CertificateDetails::from_pem(&leaf.certificate).unwrap();
        assert!(facts.has_all_names(&names), "{facts:?}");
        assert!(!facts.has_all_names(&["other".to_owned()]));
        let life = facts.not_after - facts.not_before;
        assert!(!facts.is_due(facts.not_before + life / 2));
        assert!(facts.is_due(facts.not_before + life * 7 / 10));
        assert!(!facts.is_expired(facts.not_after - 1) && facts.is_expired(facts.not_after));
    }
}
