//! Seats for requests, held from a request's head to the end of its response. Requests beyond the
//! seats are rejected, not queued until memory ends. One user gets a part of the seats, so that
//! other users still find one.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus::IntGauge;

use crate::apiserver::{
    authn::{User, well_known},
    metrics::Metrics,
    request_info::RequestInfo,
    status::ApiError,
};

/// Divisor of a pool's seats: one user may hold a fourth of them.
const USERS: usize = 4;

/// Most open watches of one user; pods that share a ServiceAccount count each for itself. A watch
/// takes some 20 KiB.
const WATCHES: usize = 1000;

/// Most requests at one time. A watch counts as a read until it has begun; from then on it has a
/// seat of another pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightLimits {
    pub reading: usize,
    pub mutating: usize,
}

impl Default for InflightLimits {
    /// kube-apiserver's limits.
    fn default() -> Self {
        Self { reading: 400, mutating: 200 }
    }
}

pub(super) struct InflightRequests {
    reading: Arc<SeatPool>,
    mutating: Arc<SeatPool>,
    watches: Arc<SeatPool>,
    metrics: Arc<Metrics>,
}

/// The seats for one kind of request.
struct SeatPool {
    kind: &'static str,
    all: usize,
    /// Most seats that one user may have.
    share: usize,
    taken: Mutex<TakenSeats>,
}

#[derive(Default)]
struct TakenSeats {
    all: usize,
    /// Seats by user name; a user without a seat is absent.
    by_user: HashMap<String, usize>,
}

/// A seat that a request holds until its response was sent; dropping it gives the seat back.
pub(super) struct RequestSeat {
    seats: Arc<SeatPool>,
    user: String,
    gauge: Option<IntGauge>,
}

impl SeatPool {
    fn new(kind: &'static str, max_seats: usize, share: usize) -> Arc<Self> {
        Arc::new(Self { kind, all: max_seats, share, taken: Mutex::default() })
    }

    /// Takes a seat for `user`, and tells whether one was free.
    fn try_acquire(&self, user: &str) -> bool {
        let mut taken_seats = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let user_seats = taken_seats.by_user.get(user).copied().unwrap_or_default();
        if taken_seats.all >= self.all || user_seats >= self.share {
            return false;
        }
        taken_seats.all += 1;
        taken_seats.by_user.insert(user.to_owned(), user_seats + 1);
        true
    }

    fn give_back(&self, user: &str) {
        let mut taken_seats = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken_seats.all -= 1;
        match taken_seats.by_user.get_mut(user) {
            Some(user_seats) if *user_seats > 1 => *user_seats -= 1,
            _ => drop(taken_seats.by_user.remove(user)),
        }
    }
}

impl InflightRequests {
    pub(super) fn new(limits: InflightLimits, metrics: Arc<Metrics>) -> Self {
        let build_pool =
            |kind, max_seats: usize| SeatPool::new(kind, max_seats, max_seats.div_ceil(USERS));
        Self {
            reading: build_pool("readOnly", limits.reading),
            mutating: build_pool("mutating", limits.mutating),
            watches: SeatPool::new("watch", usize::MAX, WATCHES),
            metrics,
        }
    }

    /// Takes a seat for a request that is no watch. Probes and members of `system:masters` need
    /// none, because turning them away makes an overload worse.
    pub(super) fn enter(
        &self,
        user: &User,
        request: &RequestInfo,
    ) -> Result<Option<RequestSeat>, ApiError> {
        let is_probe = request.operation.is_none()
            && matches!(request.path.as_str(), "/livez" | "/readyz" | "/healthz");
        if request.is_long_running() || is_probe || user.in_group(well_known::MASTERS) {
            return Ok(None);
        }
        self.acquire_seat(user, request).map(Some)
    }

    /// Takes a seat for a watch until it has begun, because its beginning costs as much as a read.
    pub(super) fn begin_watch(
        &self,
        user: &User,
        request: &RequestInfo,
    ) -> Result<Option<RequestSeat>, ApiError> {
        if !request.is_long_running() || user.in_group(well_known::MASTERS) {
            return Ok(None);
        }
        self.acquire_seat(user, request).map(Some)
    }

    fn acquire_seat(&self, user: &User, request: &RequestInfo) -> Result<RequestSeat, ApiError> {
        let pool = self.pool_for(request);
        if !pool.try_acquire(&user.name) {
            return Err(self.refuse_request(request));
        }
        let gauge = self.metrics.inflight.with_label_values(&[pool.kind]);
        gauge.inc();
        let (seats, user) = (Arc::clone(pool), user.name.clone());
        Ok(RequestSeat { seats, user, gauge: Some(gauge) })
    }

    /// Takes a seat for an open watch.
    pub(super) fn acquire_watch_seat(
        &self,
        user: &User,
        request: &RequestInfo,
    ) -> Result<RequestSeat, ApiError> {
        let pod = user.extra(well_known::POD_NAME).unwrap_or_default();
        let watcher = format!("{}/{pod}", user.name);
        if !self.watches.try_acquire(&watcher) {
            self.metrics.count_refusal(request, self.watches.kind);
            let message = "Too many watches of this user, please end some of them.";
            return Err(ApiError::too_many_requests(message, 1));
        }
        Ok(RequestSeat { seats: Arc::clone(&self.watches), user: watcher, gauge: None })
    }

    /// Counts a request that found no seat, and returns the error that answers it.
    pub(super) fn refuse_request(&self, request: &RequestInfo) -> ApiError {
        self.metrics.count_refusal(request, self.pool_for(request).kind);
        ApiError::too_many_requests("Too many requests, please try again later.", 1)
    }

    fn pool_for(&self, request: &RequestInfo) -> &Arc<SeatPool> {
        if request.is_mutating() { &self.mutating } else { &self.reading }
    }
}

impl Drop for RequestSeat {
    fn drop(&mut self) {
        self.seats.give_back(&self.user);
        if let Some(gauge) = &self.gauge {
            gauge.dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, uri: &str) -> RequestInfo {
        let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
        RequestInfo::from_request(&request)
    }

    fn user(name: &str) -> User {
        User { name: name.into(), ..User::default() }
    }

    #[test]
    fn a_full_house_turns_away_all_but_masters_and_probes() {
        let metrics = Arc::new(Metrics::new());
        let inflight =
            InflightRequests::new(InflightLimits { reading: 1, mutating: 1 }, Arc::clone(&metrics));
        let (get, post) = (parse("GET", "/apis/g/v/r"), parse("POST", "/apis/g/v/r"));
        let seat = inflight.enter(&user("a"), &get).unwrap();
        let error = inflight.enter(&user("b"), &get).err().expect("no seat left");
        assert_eq!((error.status_code().as_u16(), error.reason()), (429, "TooManyRequests"));
        let watch = parse("GET", "/apis/g/v/r?watch=1");
        assert!(inflight.begin_watch(&user("b"), &watch).is_err(), "it costs what a read does");
        assert!(inflight.begin_watch(&user("b"), &get).unwrap().is_none());
        assert!(inflight.enter(&user("b"), &post).is_ok(), "writes have seats of their own");
        let masters = User { groups: vec!["system:masters".into()], ..User::default() };
        assert!(inflight.enter(&masters, &get).is_ok());
        assert!(inflight.enter(&user("b"), &parse("GET", "/readyz")).is_ok());
        drop(seat);
        assert!(inflight.enter(&user("b"), &get).is_ok());
        drop(inflight.begin_watch(&user("b"), &watch).unwrap().expect("a seat"));
        assert!(inflight.enter(&user("b"), &watch).unwrap().is_none(), "begun, it needs none");
        assert_eq!(metrics.inflight.with_label_values(&["readOnly"]).get(), 0);
    }

    #[test]
    fn one_user_leaves_seats_to_the_others() {
        let inflight = InflightRequests::new(InflightLimits::default(), Arc::new(Metrics::new()));
        for (method, share) in [("GET", 100), ("POST", 50)] {
            let request = parse(method, "/apis/g/v/r");
            let enter = |name: &str| inflight.enter(&user(name), &request);
            let mut seats: Vec<_> = (0..share).map(|_| enter("greedy").unwrap()).collect();
            let error = enter("greedy").err().expect("that was the last of its seats");
            assert_eq!(error.status_code(), 429);
            assert!(enter("modest").is_ok());
            seats.pop();
            assert!(enter("greedy").is_ok());
            drop(seats);
        }
        let left = inflight.reading.taken.lock().unwrap();
        assert!(left.all == 0 && left.by_user.is_empty(), "nothing is kept of who went");
    }

    #[test]
    fn a_user_has_so_many_watches_and_each_pod_its_own() {
        let inflight = InflightRequests::new(InflightLimits::default(), Arc::new(Metrics::new()));
        let pod = |name: &str| User {
            extra: [(well_known::POD_NAME.to_owned(), vec![name.to_owned()])].into(),
            ..user("system:serviceaccount:db:pilot")
        };
        let request = parse("GET", "/apis/g/v/r?watch=1");
        let watch = |name: &str| inflight.acquire_watch_seat(&pod(name), &request);
        let mut open: Vec<_> = (0..WATCHES).map(|_| watch("a").unwrap()).collect();
        let error = watch("a").err().expect("one too many");
        assert_eq!(error.status_code(), 429);
        assert!(watch("b").is_ok());
        open.pop();
        assert!(watch("a").is_ok());
        drop(open);
        assert!(inflight.watches.taken.lock().unwrap().by_user.is_empty());
    }
}
