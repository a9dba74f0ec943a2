//! Bearer tokens, reviewed by kube-apiserver; each answer is remembered for ten seconds.
//!
//! Tokens are not kept: answers are remembered under a token's SHA-256.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::{Api, Client};
use moka::future::Cache;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::User;
use crate::apiserver::{
    delegate::{self, ReviewCallError},
    metrics::Metrics,
};

/// Time for which the answer to a review, yes or no, is remembered: kube-apiserver's default.
const REMEMBER: Duration = Duration::from_secs(10);
/// Most tokens whose answer is remembered; each takes 32 bytes and a user.
const TOKENS: u64 = 8192;

/// Finds the user of a token; `None` when the token is not valid.
pub trait TokenReviewer: Send + Sync {
    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<User>, Arc<TokenReviewError>>>;
}

/// Most token reviews at one time. A token's user is not known before its review, so this limit
/// alone holds back an unauthenticated client with many tokens. Requests through the front proxy
/// need no review.
const REVIEWS: usize = 32;

/// Why a review did not take place; says nothing about the token.
#[derive(Debug, thiserror::Error)]
pub enum TokenReviewError {
    #[error("failed to create a TokenReview")]
    Call(#[from] ReviewCallError),
    #[error("{REVIEWS} other tokens are being reviewed")]
    Busy,
}

/// Asks kube-apiserver. Concurrent reviews of one token share a call; failures are not remembered.
pub struct CachingTokenReviewer {
    api: Api<TokenReview>,
    known: Cache<[u8; 32], Option<User>>,
    places: Semaphore,
    metrics: Arc<Metrics>,
}

impl CachingTokenReviewer {
    pub fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        let cache = Cache::builder().max_capacity(TOKENS).time_to_live(REMEMBER).build();
        Self { api: Api::all(client), known: cache, places: Semaphore::new(REVIEWS), metrics }
    }

    async fn create_review(&self, token: &str) -> Result<Option<User>, TokenReviewError> {
        let _place = self.places.try_acquire().map_err(|_| TokenReviewError::Busy)?;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..Default::default() };
        let review = TokenReview { spec, ..Default::default() };
        let calls = &self.metrics.delegated_authn;
        let answer = delegate::create_review(&self.api, &review, calls).await?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        let UserInfo { username, uid, groups, extra } = status.user.unwrap_or_default();
        // A user without a name could not be authorized, so the token is not accepted.
        Ok(username.filter(|name| !name.is_empty()).map(|name| User {
            name,
            uid: uid.filter(|uid| !uid.is_empty()),
            groups: groups.unwrap_or_default(),
            extra: extra
                .unwrap_or_default()
                .into_iter()
                .map(|(key, values)| (key.to_lowercase(), values))
                .collect(),
        }))
    }
}

impl TokenReviewer for CachingTokenReviewer {
    fn review<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<User>, Arc<TokenReviewError>>> {
        let key: [u8; 32] = Sha256::digest(token).into();
        Box::pin(self.known.try_get_with(key, self.create_review(token)))
    }
}
