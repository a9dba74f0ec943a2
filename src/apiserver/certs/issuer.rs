//! Makes a CA and leaf certificates signed by it, and decides when they are due for renewal. No
//! I/O.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// How far certificates are dated back, since the clocks of nodes differ.
const SKEW: Duration = Duration::from_secs(3600);

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
pub fn ca() -> Result<CertificatePair, CertificateIssueError> {
    let key = KeyPair::generate().map_err(CertificateIssueError::Make)?;
    let mut params = params(CA_LIFE, "navigator-apiserver-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(CertificateIssueError::Make)?;
    Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a server's leaf for `names`, signed by `ca` (the first certificate of its bundle).
pub fn leaf(
    ca: &CertificatePair,
    names: &[String],
) -> Result<CertificatePair, CertificateIssueError> {
    let mut params = params(LEAF_LIFE, "navigator-apiserver");
    let named = CertificateParams::new(names).map_err(CertificateIssueError::Make)?;
    params.subject_alt_names = named.subject_alt_names;
    signed(ca, params, ExtendedKeyUsagePurpose::ServerAuth)
}

/// Makes a client's leaf that names `user`, and `group` if there is one, signed by `ca`.
pub fn client(
    ca: &CertificatePair,
    user: &str,
    group: Option<&str>,
) -> Result<CertificatePair, CertificateIssueError> {
    let mut params = params(LEAF_LIFE, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    signed(ca, params, ExtendedKeyUsagePurpose::ClientAuth)
}

fn signed(
    ca: &CertificatePair,
    mut params: CertificateParams,
    usage: ExtendedKeyUsagePurpose,
) -> Result<CertificatePair, CertificateIssueError> {
    let ca_key = KeyPair::from_pem(&ca.key).map_err(CertificateIssueError::Ca)?;
    let issuer =
        Issuer::from_ca_cert_pem(&ca.certificate, ca_key).map_err(CertificateIssueError::Ca)?;
    let key = KeyPair::generate().map_err(CertificateIssueError::Make)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer).map_err(CertificateIssueError::Make)?;
    Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes a certificate that no client trusts, to serve before a real one: (certificate, key).
pub fn self_signed() -> (String, String) {
    let made = KeyPair::generate().and_then(|key| {
        let certificate = params(LEAF_LIFE, "navigator-apiserver-starting").self_signed(&key)?;
        Ok((certificate.pem(), key.serialize_pem()))
    });
    made.expect("a P-256 key can be made and signs itself")
}

fn params(life: Duration, name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let at = |seconds| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = at(now.saturating_sub(SKEW.as_secs()));
    params.not_after = at(now + life.as_secs());
    params
}

/// The fields of a certificate that renewal looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateDetails {
    pub not_before: i64,
    pub not_after: i64,
    pub names: Vec<String>,
}

impl CertificateDetails {
    /// Reads these fields of the first certificate in `pem`.
    pub fn read(pem: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.map(|extension| &extension.value.general_names);
        let text = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let four: [u8; 4] = (*bytes).try_into().ok()?;
                Some(std::net::Ipv4Addr::from(four).to_string())
            }
            _ => None,
        };
        Some(Self {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            names: names.into_iter().flatten().filter_map(text).collect(),
        })
    }

    /// Tells whether two thirds of the certificate's life are over at `now`.
    pub fn is_due(&self, now: i64) -> bool {
        now >= self.not_before + (self.not_after - self.not_before) / 3 * 2
    }

    pub fn is_expired(&self, now: i64) -> bool {
        now >= self.not_after
    }

    pub fn covers(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_has_its_names_and_is_due_after_two_thirds_of_its_life() {
        let names = ["navigator-apiserver.navigator.svc".to_owned(), "127.0.0.1".to_owned()];
        let leaf = leaf(&ca().unwrap(), &names).unwrap();
        let facts = CertificateDetails::read(&leaf.certificate).unwrap();
        assert!(facts.covers(&names), "{facts:?}");
        assert!(!facts.covers(&["other".to_owned()]));
        let life = facts.not_after - facts.not_before;
        assert!(!facts.is_due(facts.not_before + life / 2));
        assert!(facts.is_due(facts.not_before + life * 7 / 10));
        assert!(!facts.is_expired(facts.not_after - 1) && facts.is_expired(facts.not_after));
    }
}
