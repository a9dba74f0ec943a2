//! As much of DER and PEM as wraps a private key of an older form into PKCS#8, the only one that
//! each database and our own signing code read.

use base64::{Engine, prelude::BASE64_STANDARD};

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
/// INTEGER 0: the version of a PKCS#8 key without attributes.
const VERSION: &[u8] = &[0x02, 0x01, 0x00];
/// OID rsaEncryption and its NULL.
const RSA: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// OIDs ecPublicKey and prime256v1.
const P256: &[u8] = &[
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d,
    0x03, 0x01, 0x07,
];
/// OIDs ecPublicKey and secp384r1.
const P384: &[u8] = &[
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22,
];
/// Characters of base64 in a line of PEM.
const PEM_LINE: usize = 64;

/// Wraps an RSA key (PKCS#1) into PKCS#8.
pub(super) fn wrap_rsa(pkcs1: &[u8]) -> Vec<u8> {
    wrap_pkcs8(RSA, pkcs1)
}

/// Wraps a key on an elliptic curve (SEC1) into PKCS#8, once for each curve that it may lie on.
pub(super) fn wrap_ec(sec1: &[u8]) -> [Vec<u8>; 2] {
    [wrap_pkcs8(P256, sec1), wrap_pkcs8(P384, sec1)]
}

fn wrap_pkcs8(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let inner = [VERSION, &encode_element(SEQUENCE, algorithm), &encode_element(OCTET_STRING, key)]
        .concat();
    encode_element(SEQUENCE, &inner)
}

fn encode_element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut bytes = vec![tag];
    match length {
        [] => bytes.push(0),
        [short] if *short < 0x80 => bytes.push(*short),
        // A length takes at most eight bytes, so their number fits beside the bit.
        long => {
            bytes.push(0x80 | u8::try_from(long.len()).unwrap_or_default());
            bytes.extend(long);
        }
    }
    bytes.extend(content);
    bytes
}

/// Writes a certificate as PEM.
/// Returns a certificate as PEM.
pub fn certificate_pem(der: &[u8]) -> String {
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut base64 = &*BASE64_STANDARD.encode(der);
    while !base64.is_empty() {
        let (line, rest) = base64.split_at(base64.len().min(PEM_LINE));
        pem.push_str(line);
        pem.push('\n');
        base64 = rest;
    }
    pem + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_as_short_as_they_can_be() {
        let head = |bytes: usize| {
            encode_element(4, &vec![7; bytes])[..encode_element(4, &vec![7; bytes]).len() - bytes]
                .to_vec()
        };
        assert_eq!(head(0), [4, 0]);
        assert_eq!(head(127), [4, 127]);
        assert_eq!(head(128), [4, 0x81, 128]);
        assert_eq!(head(256), [4, 0x82, 1, 0]);
        assert_eq!(head(70_000), [4, 0x83, 1, 0x11, 0x70]);
    }
}
