//! Certificates as CAs of ours make and read them: the fields of a CA and of a leaf, when they are
//! due for renewal, and what a certificate says of itself. No I/O, no clock.

use std::{net::IpAddr, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
    SerialNumber,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

/// The most that a certificate is dated back, in seconds, since the clocks of nodes differ.
const MAX_BACKDATING: i64 = 3600;
/// Bytes of a serial number: random, so that certificates of one key differ in it.
const SERIAL_BYTES: usize = 16;

/// Returns the fields of a CA that signs leaves only, valid for `life` from `now` (Unix seconds).
pub fn ca_params(common_name: &str, now: i64, life: Duration) -> CertificateParams {
    let mut params = certificate_params(common_name, now, life_seconds(life));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Returns the fields of a leaf, valid for `life` from `now` (Unix seconds).
pub fn leaf_params(
    common_name: &str,
    usages: &[ExtendedKeyUsagePurpose],
    now: i64,
    life: Duration,
) -> CertificateParams {
    let mut params = certificate_params(common_name, now, life_seconds(life));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    params
}

/// A certificate's life is dated back by an hour, or a tenth of it when it is shorter than ten.
fn certificate_params(common_name: &str, now: i64, life: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, common_name);
    let date_at = |second: i64| {
        let since_1970 = Duration::from_secs(u64::try_from(second).unwrap_or_default());
        rcgen::date_time_ymd(1970, 1, 1) + since_1970
    };
    params.not_before = date_at(now.saturating_sub(MAX_BACKDATING.min(life / 10)));
    params.not_after = date_at(now.saturating_add(life).min(LAST_SECOND));
    // By default the serial follows from the key, which would give two certificates of one key the
    // same one.
    let mut serial = [0; SERIAL_BYTES];
    // Without the system's random numbers no key could have been made either.
    getrandom::fill(&mut serial).expect("the system gives random numbers");
    // Positive, and without a zero in front.
    serial[0] = serial[0] & 0x3f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params
}

/// The last second of the year 9999, which is the last that a certificate can name.
const LAST_SECOND: i64 = 253_402_300_799;

fn life_seconds(life: Duration) -> i64 {
    i64::try_from(life.as_secs()).unwrap_or(LAST_SECOND).min(LAST_SECOND)
}

/// What a certificate says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateDetails {
    /// Unix seconds.
    pub not_before: i64,
    /// Unix seconds.
    pub not_after: i64,
    /// DNS names, and addresses as text.
    pub names: Vec<String>,
    /// In hexadecimal digits.
    pub serial: String,
    /// Distinguished name of the CA that signed it.
    pub issuer: String,
    /// SHA-256 of the certificate, in hexadecimal digits.
    pub sha256: String,
    /// SHA-256 of its public key (SubjectPublicKeyInfo), in hexadecimal digits.
    pub key_sha256: String,
}

impl CertificateDetails {
    /// Reads the first certificate in `pem`.
    pub fn from_pem(pem: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        Some(Self::new(&certificate))
    }

    /// Reads all certificates in `pem`, without those that cannot be read.
    pub fn all_from_pem(pem: &str) -> Vec<Self> {
        let ders = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
        let parse_der = |der: CertificateDer<'_>| {
            X509Certificate::from_der(&der).ok().map(|(_, certificate)| Self::new(&certificate))
        };
        ders.filter_map(parse_der).collect()
    }

    /// Takes these fields out of a certificate.
    pub fn new(certificate: &X509Certificate<'_>) -> Self {
        let names = certificate.subject_alternative_name().ok().flatten();
        let names = names.map(|extension| &extension.value.general_names);
        let text = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => ip_address(bytes).map(|address| address.to_string()),
            _ => None,
        };
        Self {
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            names: names.into_iter().flatten().filter_map(text).collect(),
            serial: to_hex(certificate.raw_serial()),
            issuer: certificate.issuer().to_string(),
            sha256: sha256_hex(certificate.as_ref()),
            key_sha256: sha256_hex(certificate.public_key().raw),
        }
    }

    /// When the certificate was made (Unix seconds), as far as [`leaf_params`] and [`ca_params`] dated it
    /// back.
    pub fn issue_time(&self) -> i64 {
        let validity = self.not_after.saturating_sub(self.not_before);
        // Life and a tenth of it make eleven tenths.
        self.not_before.saturating_add(MAX_BACKDATING.min(validity / 11))
    }

    /// How long the certificate lives from when it was made, in seconds.
    pub fn lifetime(&self) -> i64 {
        self.not_after.saturating_sub(self.issue_time())
    }

    /// Tells whether two thirds of the certificate's life are over at `now`.
    pub fn is_due(&self, now: i64) -> bool {
        now >= self.issue_time().saturating_add(self.lifetime() / 3 * 2)
    }

    pub fn is_expired(&self, now: i64) -> bool {
        now >= self.not_after
    }

    pub fn has_all_names(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.names.contains(name))
    }
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let ipv4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    ipv4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// SHA-256 in hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(hex_digit).collect()
}

fn hex_digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rcgen::KeyPair;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn made(life: u64) -> CertificateDetails {
        let key = KeyPair::generate().unwrap();
        let params = leaf_params("node", &[], NOW, Duration::from_secs(life));
        CertificateDetails::from_pem(&params.self_signed(&key).unwrap().pem()).unwrap()
    }

    #[test]
    fn a_certificate_is_dated_back_and_its_life_begins_when_it_was_made() {
        // Of ten minutes an hour would be six lives, so a tenth is taken there.
        for life in [600, 607, 35_999, 36_000, 36_001, 90 * 86_400] {
            let details = made(life);
            let life = i64::try_from(life).unwrap();
            assert_eq!(details.issue_time(), NOW, "{life}");
            assert_eq!(details.lifetime(), life);
            assert_eq!(details.not_before, NOW - 3600.min(life / 10));
            assert!(!details.is_due(NOW), "a certificate of {life} s is due when it is made");
            assert!(!details.is_due(NOW + life * 3 / 5) && details.is_due(NOW + life * 7 / 10));
        }
    }

    #[test]
    fn two_certificates_of_one_key_have_two_serial_numbers() {
        let key = KeyPair::generate().unwrap();
        let make =
            || leaf_params("node", &[], NOW, Duration::from_secs(600)).self_signed(&key).unwrap();
        let read = |made: rcgen::Certificate| CertificateDetails::from_pem(&made.pem()).unwrap();
        let (one, other) = (read(make()), read(make()));
        assert_eq!(one.key_sha256, other.key_sha256);
        assert_ne!(one.serial, other.serial);
        assert_eq!(one.serial.len(), 2 * SERIAL_BYTES);
    }

    #[test]
    fn a_life_without_end_ends_with_the_year_9999() {
        assert_eq!(made(u64::MAX).not_after, LAST_SECOND);
    }
}
