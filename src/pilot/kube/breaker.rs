//! The circuit breaker between a pilot and its API: while the API is away, one request is the try
//! for all.
//!
//! Owns when a request is sent. Watch, reports, lease and peers have loops of their own; each would
//! try by itself, and pause by itself after the API is back. Here a request waits while the API is
//! away; when the pause is over, one of the waiting requests is sent. An answer lets the others
//! through at once; without one they fail with it. Leaves to the loops what an answer means to
//! them, but for one: that the API turns the pilot away (401), which no loop can mend, is logged
//! here, once for all.
//!
//! Invariant: while the API is away, two requests of one pilot are sent a pause apart.

use std::{sync::Arc, time::Duration};

use http::{Response, StatusCode};
use kube::{Client, runtime::utils::Backoff as _};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{error::chain, pilot::kube::backoff::RetryBackoff};

/// How long the API may take to begin an answer before it counts as away.
const PATIENCE: Duration = Duration::from_secs(15);
/// How much longer than other requests one that defers waits to try an API that is away.
const COURTESY: Duration = Duration::from_millis(500);
/// How often the log repeats that the API turns the pilot away.
const REMINDER: Duration = Duration::from_secs(600);

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the API is away: another request has just not been answered")]
    Away,
    #[error("the API did not answer within {PATIENCE:?}")]
    Late,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The circuit breaker of one pilot. Cheap to clone; its clones share one state.
#[derive(Clone, Debug, Default)]
pub struct CircuitBreaker(Arc<watch::Sender<BreakerState>>);

#[derive(Debug, Default)]
struct BreakerState {
    /// While the API is away: since when, and when the next request may be sent.
    away: Option<ApiOutage>,
    backoff: RetryBackoff,
    /// How many requests have not been answered so far.
    lost: u64,
    refusal: Option<TokenRefusal>,
}

const REFUSED: &str = "The API turns the pilot away (401): it does not accept its token. Was the \
    ServiceAccount deleted and made again? kubelet renews the token within 50 minutes; the database \
    runs on";

/// A time in which the API answers 401: it does not accept the pilot's token.
#[derive(Clone, Copy, Debug)]
struct TokenRefusal {
    since: Instant,
    over: bool,
    /// When this refusal, or the one before, was last logged.
    said: Instant,
}

#[derive(Clone, Copy, Debug)]
struct ApiOutage {
    since: Instant,
    next: Instant,
}

/// May a request be the one that finds out whether the API is back?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialRole {
    Tries,
    /// Only if no other request does within `COURTESY`: the caller gives up too soon to see a slow
    /// answer. It does try then, because a leader that must renew has no time to wait for the next
    /// heartbeat.
    Defers,
}

impl CircuitBreaker {
    /// Returns a client whose requests go through this breaker.
    pub fn guard_client(&self, client: &Client, role: TrialRole) -> Client {
        let namespace = client.default_namespace().to_owned();
        let (breaker, client) = (self.clone(), client.clone());
        let service = tower::service_fn(move |request| {
            let (breaker, client) = (breaker.clone(), client.clone());
            async move { breaker.send_request(role, client.send(request)).await }
        });
        Client::new(service, namespace)
    }

    /// Was the latest request not answered?
    pub fn is_away(&self) -> bool {
        self.0.borrow().away.is_some()
    }

    /// Returns when a request has a chance: the API answers, or may be tried again.
    pub async fn wait_until_passable(&self) {
        let mut state = self.0.subscribe();
        loop {
            let away = state.borrow_and_update().away;
            let Some(ApiOutage { next, .. }) = away.filter(|away| away.next > Instant::now())
            else {
                return;
            };
            tokio::select! {
                _ = state.changed() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Waits for the turn of a request, then sends it. May be dropped at any await: a try that its
    /// caller gives up is still followed by a pause.
    async fn send_request<B>(
        &self,
        role: TrialRole,
        answer: impl Future<Output = kube::Result<Response<B>>>,
    ) -> Result<Response<B>, BoxError> {
        self.wait_for_turn(role).await?;
        let sent = Instant::now();
        let result = timeout(PATIENCE, answer).await;
        match &result {
            Ok(Ok(response)) if !is_outage_status(response.status()) => {
                self.record_answer();
                self.record_authentication(response.status() != StatusCode::UNAUTHORIZED);
            }
            Ok(Ok(response)) => self.record_lost_request(sent, &response.status()),
            Ok(Err(error)) => self.record_lost_request(sent, &chain(error)),
            Err(_) => self.record_lost_request(sent, &Error::Late),
        }
        Ok(result.map_err(|_| Error::Late)??)
    }

    async fn wait_for_turn(&self, role: TrialRole) -> Result<(), Error> {
        let mut state = self.0.subscribe();
        let lost_requests = state.borrow().lost;
        loop {
            let next = {
                let state = state.borrow_and_update();
                match state.away {
                    None => return Ok(()),
                    Some(_) if state.lost > lost_requests => return Err(Error::Away),
                    Some(away) => away.next,
                }
            };
            let turn = async {
                match role {
                    TrialRole::Tries => sleep_until(next).await,
                    TrialRole::Defers => sleep_until(next + COURTESY).await,
                }
            };
            tokio::select! {
                _ = state.changed() => {}
                () = turn => if self.claim_turn(next) { return Ok(()) },
            }
        }
    }

    /// Gives the turn at `turn_time` to one of the requests that wait for it. False: another
    /// request has it, and the next turn is later.
    fn claim_turn(&self, turn_time: Instant) -> bool {
        self.0.send_if_modified(|BreakerState { away, backoff, .. }| {
            let Some(away) = away.as_mut().filter(|away| away.next == turn_time) else {
                return false;
            };
            // The pause counts from here, so that an answer that never comes makes no pause longer.
            away.next = Instant::now() + backoff.next_pause();
            true
        })
    }

    fn record_answer(&self) {
        self.0.send_if_modified(|state| {
            let Some(ApiOutage { since, .. }) = state.away.take() else { return false };
            state.backoff.reset();
            info!(away = ?since.elapsed(), "API answers again");
            true
        });
    }

    /// Logs that the API turns the pilot away, again every `REMINDER`, and when that is over.
    /// `is_accepted`: the latest answer was not 401.
    fn record_authentication(&self, is_accepted: bool) {
        let now = Instant::now();
        self.0.send_if_modified(|state| {
            match (&mut state.refusal, is_accepted) {
                (None, true) => {}
                (None, false) => {
                    warn!("{REFUSED}");
                    state.refusal = Some(TokenRefusal { since: now, said: now, over: false });
                }
                (Some(refusal), true) => {
                    let has_been_logged = !refusal.over && refusal.said >= refusal.since;
                    if has_been_logged {
                        let turned_away = refusal.since.elapsed();
                        info!(?turned_away, "The API accepts the pilot's token again");
                    }
                    refusal.over = true;
                }
                (Some(refusal), false) => {
                    if std::mem::take(&mut refusal.over) {
                        refusal.since = now;
                    }
                    if now - refusal.said >= REMINDER {
                        refusal.said = now;
                        let turned_away = refusal.since.elapsed();
                        warn!(?turned_away, "{REFUSED}");
                    }
                }
            }
            // Callers that wait for the API are not woken by this.
            false
        });
    }

    /// Does the API turn the pilot away, as far as the latest answer tells?
    pub fn is_turned_away(&self) -> bool {
        self.0.borrow().refusal.is_some_and(|refusal| !refusal.over)
    }

    fn record_lost_request(&self, sent: Instant, reason: &impl std::fmt::Display) {
        debug!(error = %reason, "API did not answer");
        self.0.send_modify(|state| {
            state.lost += 1;
            if state.away.is_none() {
                state.away =
                    Some(ApiOutage { since: sent, next: sent + state.backoff.next_pause() });
            }
        });
    }
}

/// Does this status say that the address has no server behind it, or that the server has no
/// capacity for the request?
fn is_outage_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

#[cfg(test)]
mod tests;
