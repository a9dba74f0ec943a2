//! Requests of one user that are to count as another's (`Impersonate-User` and its like).
//!
//! The rules are kube-apiserver's (`endpoints/filters/impersonation.go`, 1.34): each attribute that
//! is asked for is authorized by itself, as the verb `impersonate`, for the requesting user. This
//! holds for users from the front proxy, too: the proxy removes these headers once it has followed
//! them, so none comes from the proxy.

use axum::{body::Body, response::IntoResponse};
use http::{HeaderMap, Method, Response, StatusCode, Uri, header};

use crate::{
    api::validation::format::{check_dns_label, check_dns_subdomain},
    apiserver::{
        authn::{User, well_known},
        authz::{Authorizer, escape_html},
        operation::{ResourceAction, ResourceOperation, Verb},
        request_info::RequestInfo,
        status::ApiError,
        url::{Query, percent_decode},
    },
};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// API group of the resources `uids` and `userextras`, as which ids and extras are authorized.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// One attribute of the user that a request asks to be.
#[derive(Debug, PartialEq, Eq)]
enum ImpersonatedAttribute {
    User(String),
    ServiceAccount { namespace: String, name: String },
    Group(String),
    Extra { key: String, value: String },
    Uid(String),
}

/// The user that a request asks to impersonate.
#[derive(Debug)]
pub(super) struct ImpersonationRequest(Vec<ImpersonatedAttribute>);

/// The attributes of a request to impersonate groups, extras or a uid without a user.
#[derive(Debug)]
pub(super) struct MissingImpersonatedUser(Vec<ImpersonatedAttribute>);

impl ImpersonationRequest {
    /// Removes the impersonation headers, and returns the user that they ask for; `None` when they
    /// ask for no attribute.
    pub(super) fn extract_from(
        headers: &mut HeaderMap,
    ) -> Result<Option<Self>, MissingImpersonatedUser> {
        let parts = read_attributes(headers);
        let is_impersonation_header =
            |name: &str| [USER, GROUP, UID].contains(&name) || name.starts_with(EXTRA);
        let impersonation_headers: Vec<_> =
            headers.keys().filter(|name| is_impersonation_header(name.as_str())).cloned().collect();
        for name in impersonation_headers {
            headers.remove(name);
        }
        match parts.first() {
            None => Ok(None),
            Some(ImpersonatedAttribute::User(_) | ImpersonatedAttribute::ServiceAccount { .. }) => {
                Ok(Some(Self(parts)))
            }
            Some(_) => Err(MissingImpersonatedUser(parts)),
        }
    }

    /// Returns the user that the request continues as, if `user` may impersonate each attribute.
    pub(super) async fn authorize(
        self,
        user: &User,
        authorizer: &Authorizer,
    ) -> Result<User, ApiError> {
        let mut impersonated_user = User::default();
        let has_groups = self.0.iter().any(|part| matches!(part, ImpersonatedAttribute::Group(_)));
        for part in self.0 {
            authorizer.may_impersonate(user, &part.authorization_request()).await?;
            match part {
                ImpersonatedAttribute::User(name) => impersonated_user.name = name,
                ImpersonatedAttribute::ServiceAccount { namespace, name } => {
                    impersonated_user.name = format!("{SERVICE_ACCOUNT}{namespace}:{name}");
                    if !has_groups {
                        let namespace_group = format!("{SERVICE_ACCOUNTS}:{namespace}");
                        impersonated_user.groups =
                            vec![SERVICE_ACCOUNTS.to_owned(), namespace_group];
                    }
                }
                ImpersonatedAttribute::Group(name) => impersonated_user.groups.push(name),
                ImpersonatedAttribute::Extra { key, value } => {
                    impersonated_user.extra.entry(key).or_default().push(value);
                }
                ImpersonatedAttribute::Uid(uid) => impersonated_user.uid = Some(uid),
            }
        }
        let implied_group = if impersonated_user.name == well_known::ANONYMOUS {
            well_known::UNAUTHENTICATED
        } else {
            well_known::AUTHENTICATED
        };
        if !impersonated_user.in_group(well_known::UNAUTHENTICATED)
            && !impersonated_user.in_group(implied_group)
        {
            impersonated_user.groups.push(implied_group.to_owned());
        }
        Ok(impersonated_user)
    }
}

fn read_attributes(headers: &HeaderMap) -> Vec<ImpersonatedAttribute> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let first_value = |name| headers.get(name).map(text).filter(|value| !value.is_empty());
    let user = first_value(USER).map(|name| match service_account(&name) {
        Some((namespace, name)) => ImpersonatedAttribute::ServiceAccount { namespace, name },
        None => ImpersonatedAttribute::User(name),
    });
    let groups =
        headers.get_all(GROUP).iter().map(|value| ImpersonatedAttribute::Group(text(value)));
    let extras = headers.iter().filter_map(|(name, value)| {
        let key = percent_decode(name.as_str().strip_prefix(EXTRA)?);
        Some(ImpersonatedAttribute::Extra { key, value: text(value) })
    });
    let uid = first_value(UID).map(ImpersonatedAttribute::Uid);
    user.into_iter().chain(groups).chain(extras).chain(uid).collect()
}

/// Returns namespace and name of `system:serviceaccount:<namespace>:<name>`.
fn service_account(user: &str) -> Option<(String, String)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    let is_valid = check_dns_label(namespace).is_empty() && check_dns_subdomain(name).is_empty();
    is_valid.then(|| (namespace.to_owned(), name.to_owned()))
}

impl ImpersonatedAttribute {
    /// Returns the request by which authorization is asked about this attribute.
    fn authorization_request(&self) -> RequestInfo {
        let (group, version, resource, subresource, namespace, name) = match self {
            Self::User(name) => ("", "", "users", "", "", name),
            Self::ServiceAccount { namespace, name } => {
                ("", "", "serviceaccounts", "", namespace.as_str(), name)
            }
            Self::Group(name) => ("", "", "groups", "", "", name),
            Self::Extra { key, value } => {
                (AUTHENTICATION, "v1", "userextras", key.as_str(), "", value)
            }
            Self::Uid(uid) => (AUTHENTICATION, "v1", "uids", "", "", uid),
        };
        RequestInfo {
            method: Method::GET,
            path: String::new(),
            query: Query::default(),
            operation: Some(ResourceOperation {
                action: ResourceAction::Unserved(Some(Verb::Impersonate)),
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                parts: Vec::new(),
            }),
        }
    }

    /// Shows the attribute as Go prints an ObjectReference: kind, namespace, name, uid, version,
    /// resource version and field path.
    fn to_go_format(&self) -> String {
        let version = format!("{AUTHENTICATION}/v1");
        match self {
            Self::User(name) => format!("{{User  {name}    }}"),
            Self::ServiceAccount { namespace, name } => {
                format!("{{ServiceAccount {namespace} {name}    }}")
            }
            Self::Group(name) => format!("{{Group  {name}    }}"),
            Self::Extra { key, value } => format!("{{UserExtra  {value}  {version}  {key}}}"),
            Self::Uid(uid) => format!("{{UID  {uid}  {version}  }}"),
        }
    }
}

impl MissingImpersonatedUser {
    /// Returns a response with code 500 in upstream's words, as plain text.
    pub(super) fn response(&self, uri: &Uri) -> Response<Body> {
        let Self(parts) = self;
        let uri = uri.path_and_query().map_or("/", |uri| uri.as_str());
        let parts =
            parts.iter().map(ImpersonatedAttribute::to_go_format).collect::<Vec<_>>().join(" ");
        let text = format!(
            "Internal Server Error: {uri:?}: requested [{parts}] without impersonating a user\n"
        );
        let nosniff = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
        (StatusCode::INTERNAL_SERVER_ERROR, nosniff, escape_html(&text)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(
        lines: &[(&'static str, &str)],
    ) -> (Result<Option<ImpersonationRequest>, MissingImpersonatedUser>, HeaderMap) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        (ImpersonationRequest::extract_from(&mut headers), headers)
    }

    #[test]
    fn headers_name_users_groups_extras_and_a_uid_and_are_gone_afterwards() {
        let (wanted, left) = take(&[
            ("impersonate-group", "b"),
            ("impersonate-group", ""),
            ("impersonate-extra-a%2fb", "1"),
            ("impersonate-uid", "7"),
            ("impersonate-user", "system:serviceaccount:db:demo"),
            ("impersonate-user", "the second does not count"),
            ("impersonate-other", "x"),
        ]);
        let expected = [
            ImpersonatedAttribute::ServiceAccount { namespace: "db".into(), name: "demo".into() },
            ImpersonatedAttribute::Group("b".into()),
            ImpersonatedAttribute::Group(String::new()),
            ImpersonatedAttribute::Extra { key: "a/b".into(), value: "1".into() },
            ImpersonatedAttribute::Uid("7".into()),
        ];
        assert_eq!(wanted.unwrap().unwrap().0, expected);
        assert_eq!(left.keys().collect::<Vec<_>>(), ["impersonate-other"]);
        for own in ["", "x"] {
            let header = if own.is_empty() { "impersonate-user" } else { "impersonate-other" };
            assert!(take(&[(header, own)]).0.unwrap().is_none());
        }
    }

    #[test]
    fn what_is_no_service_account_is_a_user() {
        for name in [
            "system:serviceaccount:db",
            "system:serviceaccount:db:a:b",
            "system:serviceaccount:DB:a",
            "system:serviceaccount:db:",
            "jane",
        ] {
            let wanted = take(&[("impersonate-user", name)]).0.unwrap().unwrap();
            assert_eq!(wanted.0, [ImpersonatedAttribute::User(name.to_owned())]);
        }
    }

    #[tokio::test]
    async fn groups_without_a_user_are_upstreams_error() {
        let lines =
            [("impersonate-group", "<a>"), ("impersonate-extra-k", "v"), ("impersonate-uid", "7")];
        let nobody = take(&lines).0.unwrap_err();
        let response = nobody.response(&"/version?a=1&b".parse().unwrap());
        assert_eq!(response.status(), 500);
        let body = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        assert_eq!(
            body,
            "Internal Server Error: \"/version?a=1&amp;b\": requested [{Group  &lt;a&gt;    } \
             {UserExtra  v  authentication.k8s.io/v1  k} {UID  7  authentication.k8s.io/v1  }] \
             without impersonating a user\n"
        );
    }
}
