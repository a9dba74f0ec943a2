//! Who asks: front proxy, client certificate, bearer token, or nobody.

use std::collections::BTreeMap;

/// An authenticated user, as authorization, audit and admission see it. One per request, in the
/// request's extensions; never kept with a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    /// Keys in lower case, as `authentication.kubernetes.io/pod-name`.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// First value of an extra.
    pub fn extra(&self, key: &str) -> Option<&str> {
        self.extra.get(key).and_then(|values| values.first()).map(String::as_str)
    }
}

/// Groups and names that Kubernetes gives a meaning.
pub mod well_known {
    pub const ANONYMOUS: &str = "system:anonymous";
    pub const AUTHENTICATED: &str = "system:authenticated";
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";
    pub const MASTERS: &str = "system:masters";
    /// Extra of a ServiceAccount token: the pod that it was issued to.
    pub const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
    /// Extra of a client certificate: which one it was.
    pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
}
