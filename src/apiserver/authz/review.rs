//! Authorization by SubjectAccessReview; each answer is remembered for ten seconds.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
    SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client};
use moka::future::Cache;
use sha2::{Digest as _, Sha256};

use super::{AccessReviewer, AuthorizationDecision};
use crate::apiserver::{
    authn::User,
    delegate::{self, ReviewCallError},
    metrics::Metrics,
    operation::{ResourceAction, ResourceOperation},
    request_info::RequestInfo,
    selector::{LabelSelector, field_requirements},
};

/// Time for which an answer is remembered: kube-apiserver's default for aggregated servers.
const REMEMBER: Duration = Duration::from_secs(10);
/// Most bytes of the answers that are remembered.
const ANSWERS: u64 = 7 << 20;
/// Most bytes of remembered answers about anonymous users, whose requests are without limit: these
/// answers push out only each other.
const STRANGERS: u64 = 1 << 20;
/// Bytes that an answer is counted with in addition to its reason.
const ENTRY: usize = 256;

/// SHA-256 of a review: a long review takes the same memory as a short one.
type ReviewDigest = [u8; 32];

/// Asks kube-apiserver. Concurrent equal reviews share a call; failures are not remembered.
pub struct CachingAccessReviewer {
    api: Api<SubjectAccessReview>,
    known: Cache<ReviewDigest, AuthorizationDecision>,
    of_strangers: Cache<ReviewDigest, AuthorizationDecision>,
    metrics: Arc<Metrics>,
}

impl CachingAccessReviewer {
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        let (cache, anonymous_cache) = (build_cache(ANSWERS), build_cache(STRANGERS));
        Self { api: Api::all(client), known: cache, of_strangers: anonymous_cache, metrics }
    }

    async fn create_review(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> Result<AuthorizationDecision, ReviewCallError> {
        let review = SubjectAccessReview { spec, ..Default::default() };
        let answer =
            delegate::create_review(&self.api, &review, &self.metrics.delegated_authz).await?;
        let status = answer.status.unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        Ok(match (status.denied, status.allowed) {
            (Some(true), _) => AuthorizationDecision::Deny(reason),
            (_, true) => AuthorizationDecision::Allow(reason),
            (_, false) => AuthorizationDecision::NoOpinion(reason),
        })
    }
}

impl AccessReviewer for CachingAccessReviewer {
    fn review<'a>(
        &'a self,
        user: &'a User,
        request: &'a RequestInfo,
    ) -> BoxFuture<'a, Result<AuthorizationDecision, Arc<ReviewCallError>>> {
        let spec = build_review_spec(user, request);
        let text = serde_json::to_vec(&spec).expect("a review has string keys only");
        let cache = if user.is_anonymous() { &self.of_strangers } else { &self.known };
        Box::pin(cache.try_get_with(Sha256::digest(text).into(), self.create_review(spec)))
    }
}

/// Creates a cache of answers of up to `bytes` together.
fn build_cache(bytes: u64) -> Cache<ReviewDigest, AuthorizationDecision> {
    let weigh = |_: &ReviewDigest, decision: &AuthorizationDecision| {
        let (AuthorizationDecision::Allow(reason)
        | AuthorizationDecision::Deny(reason)
        | AuthorizationDecision::NoOpinion(reason)) = decision;
        u32::try_from(ENTRY + reason.len()).unwrap_or(u32::MAX)
    };
    Cache::builder().max_capacity(bytes).weigher(weigh).time_to_live(REMEMBER).build()
}

fn build_review_spec(user: &User, request: &RequestInfo) -> SubjectAccessReviewSpec {
    let non_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let User { name, uid, groups, extra } = user;
    let (resource_attributes, non_resource_attributes) = if let Some(operation) = &request.operation
    {
        let (field_selector, label_selector) = build_selectors(operation);
        let attributes = ResourceAttributes {
            verb: non_empty(operation.verb_name()),
            group: non_empty(&operation.group),
            version: non_empty(&operation.version),
            resource: non_empty(&operation.resource),
            subresource: non_empty(&operation.subresource),
            namespace: non_empty(&operation.namespace),
            name: non_empty(&operation.name),
            field_selector,
            label_selector,
        };
        (Some(attributes), None)
    } else {
        let path = NonResourceAttributes {
            path: non_empty(&request.path),
            verb: non_empty(&request.verb()),
        };
        (None, Some(path))
    };
    SubjectAccessReviewSpec {
        user: Some(name.clone()),
        uid: uid.clone(),
        groups: (!groups.is_empty()).then(|| groups.clone()),
        extra: (!extra.is_empty()).then(|| BTreeMap::clone(extra)),
        resource_attributes,
        non_resource_attributes,
    }
}

/// Returns the selectors that narrow a list, watch or deletecollection (upstream's
/// `AuthorizeWithSelectors`). A selector that cannot be read, or has no form in the review, is left
/// out: the review then asks for more than the request needs.
fn build_selectors(
    operation: &ResourceOperation,
) -> (Option<FieldSelectorAttributes>, Option<LabelSelectorAttributes>) {
    let (ResourceAction::List(options)
    | ResourceAction::Watch(options)
    | ResourceAction::DeleteCollection(options)) = &operation.action
    else {
        return (None, None);
    };
    let Ok(options) = options else { return (None, None) };
    let fields = field_requirements(&options.field_selector);
    let labels = LabelSelector::parse(&options.label_selector).unwrap_or_default().requirements();
    let fields = (!fields.is_empty())
        .then(|| FieldSelectorAttributes { requirements: Some(fields), ..Default::default() });
    let labels = (!labels.is_empty())
        .then(|| LabelSelectorAttributes { requirements: Some(labels), ..Default::default() });
    (fields, labels)
}
