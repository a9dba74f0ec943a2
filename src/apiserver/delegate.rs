//! Reviews that kube-apiserver answers about a request: TokenReview, SubjectAccessReview.
//!
//! Owns the time limit and the retries (`apiserver/pkg/util/webhook`): up to five tries within
//! `ANSWER`, only after failures that can pass. The first pause is half a second, each further
//! one half as long again.

use std::time::{Duration, Instant};

use kube::{Api, api::PostParams};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, core::Collector};
use rand::Rng;
use serde::{Serialize, de::DeserializeOwned};

const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;
const ANSWER: Duration = Duration::from_secs(10);

/// Upper bounds, in seconds, of the histogram of kube-apiserver's answers.
const BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

/// Metrics of reviews sent to kube-apiserver, by HTTP code, or `<error>` when there was no answer.
#[derive(Clone)]
pub struct ReviewCallMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
}

impl ReviewCallMetrics {
    /// Creates the metrics. `topic` is `authn` or `authz`; `reviews` names the reviews in the help
    /// text.
    pub fn new(topic: &str, reviews: &str) -> Self {
        let name = format!("apiserver_delegated_{topic}_request");
        let total = Opts::new(
            format!("{name}_total"),
            format!("{reviews} sent to kube-apiserver, by HTTP code."),
        );
        let duration = HistogramOpts::new(
            format!("{name}_duration_seconds"),
            format!("Seconds until kube-apiserver answered {reviews}, by HTTP code."),
        );
        Self {
            total: IntCounterVec::new(total, &["code"]).expect("the metric's name is valid"),
            duration: HistogramVec::new(duration.buckets(BUCKETS.to_vec()), &["code"])
                .expect("the metric's name is valid"),
        }
    }

    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self { total, duration } = self;
        vec![Box::new(total.clone()), Box::new(duration.clone())]
    }
}

/// Why a review got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ReviewCallError {
    #[error("kube-apiserver did not answer")]
    Call(#[source] Box<kube::Error>),
    #[error("kube-apiserver took longer than {ANSWER:?}")]
    Timeout,
    /// The review is answered from our own store, which could not be read.
    #[error("failed to read the store")]
    Store(#[from] super::storage::Error),
}

/// Creates a review at kube-apiserver and returns it with its answer.
pub(crate) async fn create_review<K>(
    api: &Api<K>,
    review: &K,
    calls: &ReviewCallMetrics,
) -> Result<K, ReviewCallError>
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let review_with_retries = async {
        let mut pause = FIRST_PAUSE;
        for _ in 1..TRIES {
            match create_review_once(api, review, calls).await {
                Err(error) if is_transient(&error) => {
                    let jitter = rand::rng().random_range(1.0..1.0 + JITTER);
                    tokio::time::sleep(pause.mul_f64(jitter)).await;
                    pause = pause.mul_f64(GROWTH);
                }
                answer => return answer,
            }
        }
        create_review_once(api, review, calls).await
    };
    match tokio::time::timeout(ANSWER, review_with_retries).await {
        Ok(answer) => answer.map_err(|error| ReviewCallError::Call(Box::new(error))),
        Err(_) => Err(ReviewCallError::Timeout),
    }
}

async fn create_review_once<K>(
    api: &Api<K>,
    review: &K,
    calls: &ReviewCallMetrics,
) -> Result<K, kube::Error>
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let started_at = Instant::now();
    let answer = api.create(&PostParams::default(), review).await;
    let code = match &answer {
        Ok(_) => "201".to_owned(),
        Err(kube::Error::Api(status)) => status.code.to_string(),
        Err(_) => "<error>".to_owned(),
    };
    let seconds = started_at.elapsed().as_secs_f64();
    calls.total.with_label_values(&[code.as_str()]).inc();
    calls.duration.with_label_values(&[code.as_str()]).observe(seconds);
    answer
}

fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 502 | 503 | 504),
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}
