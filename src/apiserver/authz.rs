//! Authorization: `system:masters` may do everything, any client may read the health endpoints, and
//! kube-apiserver's SubjectAccessReview decides about other requests. No answer means no.

mod review;

use std::{sync::Arc, time::Instant};

use futures::future::BoxFuture;
pub use review::CachingAccessReviewer;

use super::{
    authn::{User, well_known},
    delegate::ReviewCallError,
    metrics::Metrics,
    operation::ResourceOperation,
    request_info::RequestInfo,
    status::{ApiError, GroupResource},
};
use crate::error::chain;

/// Paths that any client may ask for, so that probes need neither credentials nor kube-apiserver.
/// They are matched exactly.
const ALWAYS_ALLOWED: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// Decision about one request, with the reason that the authorizer gave, often an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizationDecision {
    Allow(String),
    /// An authorizer denies the request.
    Deny(String),
    /// No authorizer allows the request. For the client that is a denial, too.
    NoOpinion(String),
}

/// The outcome of authorizing one request.
pub struct AuthorizationRuling {
    /// `allow` or `forbid`; absent when the review failed.
    pub decision: Option<&'static str>,
    pub reason: String,
    /// 403 when the request is not allowed, 500 when the review failed.
    pub outcome: Result<(), ApiError>,
}

/// Asks an authorizer about a request. An error is no decision.
pub trait AccessReviewer: Send + Sync {
    fn review<'a>(
        &'a self,
        user: &'a User,
        request: &'a RequestInfo,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Arc<ReviewCallError>>>;
}

/// Decides whether requests are allowed.
pub struct Authorizer {
    reviews: Arc<dyn AccessReviewer>,
    metrics: Arc<Metrics>,
}

impl Authorizer {
    pub fn new(reviews: Arc<dyn AccessReviewer>, metrics: Arc<Metrics>) -> Self {
        Self { reviews, metrics }
    }

    pub async fn authorize(&self, user: &User, request: &RequestInfo) -> AuthorizationRuling {
        let started_at = Instant::now();
        let (result, ruling) = match self.decide(user, request).await {
            Ok(AuthorizationDecision::Allow(reason)) => (
                "allowed",
                AuthorizationRuling { decision: Some("allow"), reason, outcome: Ok(()) },
            ),
            Ok(AuthorizationDecision::Deny(reason)) => {
                ("denied", build_refusal(user, request, reason))
            }
            Ok(AuthorizationDecision::NoOpinion(reason)) => {
                ("no-opinion", build_refusal(user, request, reason))
            }
            Err(error) => {
                let error = chain(&*error).to_string();
                tracing::warn!(error, user = user.name, "Failed to authorize a request");
                let outcome =
                    Err(ApiError::internal_error(format!("failed to authorize: {error}")));
                let reason = "internal error".to_owned();
                ("error", AuthorizationRuling { decision: None, reason, outcome })
            }
        };
        self.metrics.record_authorization(result, started_at.elapsed());
        ruling
    }

    /// Fails with 403 when `user` may not impersonate as `asked`, or when the review failed.
    pub async fn may_impersonate(
        &self,
        user: &User,
        request: &RequestInfo,
    ) -> Result<(), ApiError> {
        match self.decide(user, request).await {
            Ok(AuthorizationDecision::Allow(_)) => Ok(()),
            Ok(AuthorizationDecision::Deny(reason) | AuthorizationDecision::NoOpinion(reason)) => {
                Err(forbidden_error(user, request, &reason))
            }
            Err(error) => {
                let error = chain(&*error).to_string();
                tracing::warn!(error, user = user.name, "Failed to authorize an impersonation");
                Err(forbidden_error(user, request, ""))
            }
        }
    }

    async fn decide(
        &self,
        user: &User,
        request: &RequestInfo,
    ) -> Result<AuthorizationDecision, Arc<ReviewCallError>> {
        let is_probe =
            request.operation.is_none() && ALWAYS_ALLOWED.contains(&request.path.as_str());
        if is_probe || user.in_group(well_known::MASTERS) {
            return Ok(AuthorizationDecision::Allow(String::new()));
        }
        self.reviews.review(user, request).await
    }
}

fn build_refusal(user: &User, request: &RequestInfo, reason: String) -> AuthorizationRuling {
    let outcome = Err(forbidden_error(user, request, &reason));
    AuthorizationRuling { decision: Some("forbid"), reason, outcome }
}

/// Returns the 403 in kube-apiserver's words (`responsewriters/errors.go`).
fn forbidden_error(user: &User, request: &RequestInfo, reason: &str) -> ApiError {
    let name = &user.name;
    let verb = request.verb();
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let Some(ResourceOperation { group, resource, subresource, namespace, name: object, .. }) =
        &request.operation
    else {
        let path = &request.path;
        let message = escape_html(&format!("User {name:?} cannot {verb} path {path:?}"));
        return ApiError::forbidden_path(message + &reason);
    };
    let mut resource_path = resource.clone();
    if !subresource.is_empty() {
        resource_path = format!("{resource}/{subresource}");
    }
    let scope = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let message = escape_html(&format!(
        "User {name:?} cannot {verb} resource {resource_path:?} in API group {group:?} {scope}"
    ));
    ApiError::forbidden(GroupResource { group, resource }, object, message + &reason)
}

/// Escapes what a browser could take for HTML.
pub(super) fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Answers as told and counts the questions.
    struct Scripted(AuthorizationDecision, Mutex<usize>);

    impl AccessReviewer for Scripted {
        fn review<'a>(
            &'a self,
            _: &'a User,
            _: &'a RequestInfo,
        ) -> BoxFuture<'a, Result<AuthorizationDecision, Arc<ReviewCallError>>> {
            *self.1.lock().unwrap() += 1;
            Box::pin(std::future::ready(Ok(self.0.clone())))
        }
    }

    async fn ask(
        groups: &[&str],
        method: &str,
        uri: &str,
        says: AuthorizationDecision,
    ) -> (Result<(), ApiError>, usize) {
        let reviews = Arc::new(Scripted(says, Mutex::new(0)));
        let authorizer = Authorizer::new(Arc::clone(&reviews) as _, Arc::new(Metrics::new()));
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        let user = User { name: "jane".into(), groups, ..User::default() };
        let request = RequestInfo::from_request(
            &http::Request::builder().method(method).uri(uri).body(()).unwrap(),
        );
        let outcome = authorizer.authorize(&user, &request).await.outcome;
        let asked = *reviews.1.lock().unwrap();
        (outcome, asked)
    }

    const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";

    #[tokio::test]
    async fn masters_and_probes_need_no_review() {
        let deny = || AuthorizationDecision::Deny(String::new());
        assert!(matches!(ask(&["system:masters"], "DELETE", PILOTS, deny()).await, (Ok(()), 0)));
        for path in ["/healthz", "/livez", "/readyz"] {
            assert!(matches!(ask(&[], "GET", path, deny()).await, (Ok(()), 0)), "{path}");
        }
        for path in ["/readyz/etcd", "/livez/", "/metrics", "/apis", "/"] {
            assert!(matches!(ask(&[], "GET", path, deny()).await, (Err(_), 1)), "{path}");
        }
    }

    #[tokio::test]
    async fn refusals_speak_kubernetes() {
        let rows = [
            (
                "DELETE",
                format!("{PILOTS}/a/status"),
                "",
                "pilots.navigator.jetstack.io \"a\" is forbidden: User \"jane\" cannot delete \
                 resource \"pilots/status\" in API group \"navigator.jetstack.io\" in the \
                 namespace \"db\"",
            ),
            (
                "GET",
                "/apis/navigator.jetstack.io/v1beta1/pilots".into(),
                "no",
                "pilots.navigator.jetstack.io is forbidden: User \"jane\" cannot list resource \
                 \"pilots\" in API group \"navigator.jetstack.io\" at the cluster scope: no",
            ),
            ("GET", "/x".into(), "", "forbidden: User \"jane\" cannot get path \"/x\""),
        ];
        for (method, uri, reason, expected) in rows {
            let (outcome, _) =
                ask(&[], method, &uri, AuthorizationDecision::Deny(reason.into())).await;
            let error = outcome.unwrap_err();
            assert_eq!(error.status_code(), 403);
            assert_eq!(error.message(), expected);
        }
    }
}
