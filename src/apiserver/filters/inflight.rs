//! Seats for requests being handled: too many at once are turned away, not queued until memory
//! ends.

use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::apiserver::{
    authn::{User, well_known},
    metrics::Metrics,
    request_info::RequestInfo,
    status::ApiError,
};

/// Requests at one time, watches not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub reading: usize,
    pub mutating: usize,
}

impl Default for Limits {
    /// kube-apiserver's.
    fn default() -> Self {
        Self { reading: 400, mutating: 200 }
    }
}

pub(super) struct Inflight {
    reading: Arc<Semaphore>,
    mutating: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// Held while a request is handled.
pub(super) struct Seat {
    gauge: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Inflight {
    pub(super) fn new(limits: Limits, metrics: Arc<Metrics>) -> Self {
        Self {
            reading: Arc::new(Semaphore::new(limits.reading)),
            mutating: Arc::new(Semaphore::new(limits.mutating)),
            metrics,
        }
    }

    /// Takes a seat. Watches need none; the cluster's own helpers and probes are never turned
    /// away, because turning them away makes an overload worse.
    pub(super) fn enter(
        &self,
        user: &User,
        request: &RequestInfo,
    ) -> Result<Option<Seat>, ApiError> {
        let probe = !request.is_resource
            && matches!(request.path.as_str(), "/livez" | "/readyz" | "/healthz");
        if request.is_long_running() || probe || user.in_group(well_known::MASTERS) {
            return Ok(None);
        }
        let (seats, kind) = if request.is_mutating() {
            (&self.mutating, "mutating")
        } else {
            (&self.reading, "readOnly")
        };
        let Ok(permit) = Arc::clone(seats).try_acquire_owned() else {
            self.metrics.rejected.with_label_values(&[kind]).inc();
            let message = "Too many requests, please try again later.";
            return Err(ApiError::too_many_requests(message, 1));
        };
        let gauge = self.metrics.inflight.with_label_values(&[kind]);
        gauge.inc();
        Ok(Some(Seat { gauge, _permit: permit }))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_house_turns_away_all_but_masters_probes_and_watches() {
        let metrics = Arc::new(Metrics::new());
        let inflight = Inflight::new(Limits { reading: 1, mutating: 1 }, Arc::clone(&metrics));
        let parse = |method: &str, uri: &str| {
            RequestInfo::parse(&method.parse().unwrap(), &uri.parse().unwrap())
        };
        let user = User::default();
        let (get, post) = (parse("GET", "/apis/g/v/r"), parse("POST", "/apis/g/v/r"));
        let seat = inflight.enter(&user, &get).unwrap();
        let error = inflight.enter(&user, &get).err().expect("no seat left");
        assert_eq!((error.code().as_u16(), error.reason()), (429, "TooManyRequests"));
        assert!(inflight.enter(&user, &post).is_ok(), "writes have seats of their own");
        let masters = User { groups: vec!["system:masters".into()], ..User::default() };
        assert!(inflight.enter(&masters, &get).is_ok());
        assert!(inflight.enter(&user, &parse("GET", "/apis/g/v/r?watch=1")).is_ok());
        assert!(inflight.enter(&user, &parse("GET", "/readyz")).is_ok());
        drop(seat);
        assert!(inflight.enter(&user, &get).is_ok());
        assert_eq!(metrics.inflight.with_label_values(&["readOnly"]).get(), 0);
    }
}
