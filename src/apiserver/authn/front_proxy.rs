//! The front proxy: kube-apiserver's aggregator authenticates a user in headers, and its client
//! certificate authenticates the aggregator.

use std::collections::BTreeMap;

use http::HeaderMap;

use super::{AuthenticationResult, CredentialError, User, trust::FrontProxy, x509};
use crate::apiserver::{
    peer::{CertificateSubject, PeerCertificates},
    url::percent_decode,
};

/// Identity headers of a stock aggregator, removed from requests whether configured or not.
const STANDARD: [&str; 3] = ["x-remote-user", "x-remote-uid", "x-remote-group"];
const STANDARD_EXTRA: &str = "x-remote-extra-";

/// Returns the user that the front proxy names; `None` when no certificate or no user name was
/// sent.
pub(super) async fn authenticate_proxied_user(
    proxy: Option<&FrontProxy>,
    chain: &PeerCertificates,
    headers: &HeaderMap,
) -> AuthenticationResult {
    let Some(proxy) = proxy.filter(|_| !chain.is_empty()) else { return Ok(None) };
    proxy.pool.verify(chain).await.map_err(CredentialError::FrontProxyCertificate)?;
    let Some(CertificateSubject { common_name, .. }) = x509::leaf_subject(chain)? else {
        return Ok(None);
    };
    if !proxy.allowed_names.is_empty() && !proxy.allowed_names.contains(common_name) {
        return Err(CredentialError::FrontProxyName { name: common_name.clone() });
    }
    let first_value = |names: &[String]| {
        names
            .iter()
            .find_map(|name| decode_header_value(headers.get(name)?.as_bytes()))
            .filter(|v| !v.is_empty())
    };
    let Some(name) = first_value(&proxy.username_headers) else { return Ok(None) };
    let groups = proxy
        .group_headers
        .iter()
        .flat_map(|header| headers.get_all(header))
        .filter_map(|value| decode_header_value(value.as_bytes()))
        .filter(|value| !value.is_empty())
        .collect();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (header, value) in headers {
        let prefix =
            proxy.extra_prefixes.iter().find_map(|p| header.as_str().strip_prefix(p.as_str()));
        if let (Some(key), Some(value)) = (prefix, decode_header_value(value.as_bytes())) {
            extra.entry(percent_decode(key)).or_default().push(value);
        }
    }
    Ok(Some(User { name, uid: first_value(&proxy.uid_headers), groups, extra }))
}

impl FrontProxy {
    /// Tells whether `header` is one in which the front proxy describes a user.
    fn is_identity_header(&self, header: &str) -> bool {
        let Self { username_headers, uid_headers, group_headers, extra_prefixes, .. } = self;
        let header_lists = [username_headers, uid_headers, group_headers];
        header_lists.iter().any(|list| list.iter().any(|name| name == header))
            || extra_prefixes.iter().any(|prefix| header.starts_with(prefix.as_str()))
    }
}

/// Decodes a header value, which is bytes; user and group names are UTF-8.
fn decode_header_value(value: &[u8]) -> Option<String> {
    String::from_utf8(value.to_vec()).ok()
}

/// Removes the identity headers, standard and configured. Header names are in lower case here, so
/// `X-REMOTE-USER` is removed, too.
pub(super) fn strip_identity_headers(proxy: Option<&FrontProxy>, headers: &mut HeaderMap) {
    let identity_headers: Vec<_> = headers
        .keys()
        .filter(|name| {
            let name = name.as_str();
            STANDARD.contains(&name)
                || name.starts_with(STANDARD_EXTRA)
                || proxy.is_some_and(|proxy| proxy.is_identity_header(name))
        })
        .cloned()
        .collect();
    for name in identity_headers {
        headers.remove(name);
    }
}
