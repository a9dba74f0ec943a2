//! What the cluster trusts: ConfigMap `kube-system/extension-apiserver-authentication`, parsed.
//!
//! Fails closed: without a usable front-proxy configuration the ConfigMap is not accepted at all.

use std::collections::BTreeMap;

use super::x509::{CaPool, CaPoolError};

pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const CONFIG_MAP: &str = "extension-apiserver-authentication";

/// CAs and rules by which the cluster trusts client certificates and the front proxy.
#[derive(Debug)]
pub struct ClusterTrust {
    /// Absent when no front proxy may authenticate users.
    pub(super) front_proxy: Option<FrontProxy>,
    /// Absent when the cluster uses no client certificates.
    pub(super) client_ca: Option<CaPool>,
}

/// Which certificates may authenticate users, and in which headers. Header names are in lower case.
#[derive(Debug)]
pub(super) struct FrontProxy {
    pub(super) pool: CaPool,
    /// Common names that the proxy's certificate may have; when empty, any that the CA signed.
    pub(super) allowed_names: Vec<String>,
    pub(super) username_headers: Vec<String>,
    pub(super) uid_headers: Vec<String>,
    pub(super) group_headers: Vec<String>,
    pub(super) extra_prefixes: Vec<String>,
}

/// Why the configuration of the cluster's trust is unsafe or useless.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("key {key:?} is missing")]
    Missing { key: &'static str },
    #[error("key {key:?} is no JSON array of strings")]
    Strings { key: &'static str, source: serde_json::Error },
    #[error("key {key:?} is no usable CA bundle")]
    Bundle { key: &'static str, source: CaPoolError },
    #[error(
        "\"requestheader-allowed-names\" is empty although the front proxy's CA is also the CA of \
         client certificates: any client could then vouch for any user"
    )]
    AnyClientIsProxy,
}

const CLIENT_CA: &str = "client-ca-file";
const PROXY_CA: &str = "requestheader-client-ca-file";

impl ClusterTrust {
    /// Trusts client certificates of the CA `ca` (PEM), and no front proxy.
    pub fn of_clients(ca: &str) -> Result<Self, TrustError> {
        let pool = CaPool::from_pem(ca);
        let pool = pool.map_err(|source| TrustError::Bundle { key: CLIENT_CA, source })?;
        Ok(Self { front_proxy: None, client_ca: Some(pool) })
    }

    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, TrustError> {
        let bundle = |key: &'static str| match data.get(key).filter(|pem| !pem.trim().is_empty()) {
            Some(pem) => {
                CaPool::from_pem(pem).map(Some).map_err(|source| TrustError::Bundle { key, source })
            }
            None => Ok(None),
        };
        let strings = |key: &'static str| match data.get(key).filter(|text| !text.is_empty()) {
            Some(text) => serde_json::from_str::<Vec<String>>(text)
                .map_err(|source| TrustError::Strings { key, source }),
            None => Ok(Vec::new()),
        };
        let to_lowercase = |list: Vec<String>| -> Vec<String> {
            list.iter()
                .map(|name| name.trim().to_ascii_lowercase())
                .filter(|n| !n.is_empty())
                .collect()
        };
        let front_proxy = FrontProxy {
            pool: bundle(PROXY_CA)?.ok_or(TrustError::Missing { key: PROXY_CA })?,
            allowed_names: strings("requestheader-allowed-names")?,
            username_headers: to_lowercase(strings("requestheader-username-headers")?),
            uid_headers: to_lowercase(strings("requestheader-uid-headers")?),
            group_headers: to_lowercase(strings("requestheader-group-headers")?),
            extra_prefixes: to_lowercase(strings("requestheader-extra-headers-prefix")?),
        };
        if front_proxy.username_headers.is_empty() {
            return Err(TrustError::Missing { key: "requestheader-username-headers" });
        }
        let client_ca = bundle(CLIENT_CA)?;
        let has_shared_ca = client_ca.as_ref().is_some_and(|pool| pool.overlaps(&front_proxy.pool));
        if has_shared_ca && front_proxy.allowed_names.is_empty() {
            return Err(TrustError::AnyClientIsProxy);
        }
        Ok(Self { front_proxy: Some(front_proxy), client_ca })
    }
}
