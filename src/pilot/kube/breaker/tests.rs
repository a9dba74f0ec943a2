use std::{cell::RefCell, collections::BTreeMap, future::pending};

use futures::future::join_all;
use tokio::time::sleep;

use super::*;
use crate::pilot::kube::backoff::LONGEST;

const HOUR: Duration = Duration::from_secs(3600);
/// The pauses are at their longest after this time.
const GROWN: Duration = Duration::from_secs(120);

/// How the API behaves now.
#[derive(Clone, Copy)]
enum Way {
    Answers,
    Refuses,
    Hangs,
    TurnsAway,
}

/// An API that notes when it was asked.
struct Server {
    way: RefCell<Way>,
    asked: RefCell<Vec<Instant>>,
}

impl Server {
    fn new(way: Way) -> Self {
        Self { way: RefCell::new(way), asked: RefCell::default() }
    }

    async fn ask(&self) -> kube::Result<Response<()>> {
        self.asked.borrow_mut().push(Instant::now());
        let way = *self.way.borrow();
        match way {
            Way::Answers => Ok(Response::new(())),
            Way::Refuses => Err(kube::Error::Service("connection refused".into())),
            Way::Hangs => pending().await,
            Way::TurnsAway => {
                let answer = Response::builder().status(StatusCode::UNAUTHORIZED);
                Ok(answer.body(()).expect("a status is all of it"))
            }
        }
    }

    fn asked_since(&self, start: Instant) -> Vec<Instant> {
        self.asked.borrow().iter().copied().filter(|at| *at >= start).collect()
    }
}

/// One of a pilot's loops that tries again after 100 ms.
async fn keep_asking(breaker: &CircuitBreaker, server: &Server) {
    loop {
        drop(breaker.send_request(TrialRole::Tries, server.ask()).await);
        sleep(Duration::from_millis(100)).await;
    }
}

/// A candidate renewing its lease.
async fn keep_renewing(breaker: &CircuitBreaker, server: &Server) {
    loop {
        let limit = Duration::from_secs(3);
        drop(timeout(limit, breaker.send_request(TrialRole::Defers, server.ask())).await);
        sleep(limit).await;
    }
}

async fn an_hour_away(way: Way) {
    let (breaker, server, start) = (CircuitBreaker::default(), Server::new(way), Instant::now());
    let watches = join_all((0..5).map(|_| keep_asking(&breaker, &server)));
    let all = async { tokio::join!(watches, keep_renewing(&breaker, &server)) };
    assert!(timeout(HOUR, all).await.is_err());
    let tries = server.asked_since(start + GROWN);
    for two in tries.windows(2) {
        let apart = (two[1] - two[0]).as_secs_f64();
        assert!((25.4..35.0).contains(&apart), "{apart} s");
    }
    // In 3480 s, with pauses of 30 s on the average.
    assert!((105..=130).contains(&tries.len()), "{} tries", tries.len());
}

#[tokio::test(start_paused = true)]
async fn an_api_that_refuses_is_tried_once_in_half_a_minute_by_all_loops_together() {
    an_hour_away(Way::Refuses).await;
}

#[tokio::test(start_paused = true)]
async fn an_api_that_never_answers_is_tried_as_seldom() {
    an_hour_away(Way::Hangs).await;
}

#[tokio::test(start_paused = true)]
async fn every_loop_is_through_within_35_seconds_of_the_return() {
    for way in [Way::Refuses, Way::Hangs] {
        let (breaker, server) = (CircuitBreaker::default(), Server::new(way));
        let story = async {
            sleep(HOUR.mul_f64(rand::random())).await;
            *server.way.borrow_mut() = Way::Answers;
            let back = Instant::now();
            while breaker.send_request(TrialRole::Tries, server.ask()).await.is_err() {}
            assert!(back.elapsed() < Duration::from_secs(35), "{:?}", back.elapsed());
            // Requests that only defer are let through as well.
            breaker.send_request(TrialRole::Defers, server.ask()).await.unwrap();
        };
        let others = join_all((0..4).map(|_| keep_asking(&breaker, &server)));
        tokio::select! {
            () = story => {}
            _ = others => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_pilots_do_not_come_back_at_once() {
    for away in [Duration::from_secs(20), HOUR] {
        let server = Server::new(Way::Refuses);
        let breakers: Vec<CircuitBreaker> = (0..1000).map(|_| CircuitBreaker::default()).collect();
        let first = RefCell::new(Vec::new());
        let pilots = join_all(breakers.iter().map(|breaker| async {
            // All of them notice the outage at the same moment.
            while breaker.send_request(TrialRole::Tries, server.ask()).await.is_err() {}
            first.borrow_mut().push(Instant::now());
        }));
        let story = async {
            sleep(away).await;
            *server.way.borrow_mut() = Way::Answers;
            Instant::now()
        };
        let (back, _) = tokio::join!(story, pilots);
        let mut came: BTreeMap<u64, u32> = BTreeMap::new();
        for at in first.take() {
            *came.entry((at - back).as_secs()).or_default() += 1;
        }
        // Spread evenly, 33 pilots would come in each second.
        assert!(came.keys().all(|second| *second <= LONGEST.as_secs() + 4), "{came:?}");
        assert!(came.values().all(|count| *count < 200), "after {away:?}: {came:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_renewal_was_refused_once_renews_in_time_though_nobody_else_asks() {
    let (breaker, server) = (CircuitBreaker::default(), Server::new(Way::Refuses));
    breaker.send_request(TrialRole::Defers, server.ask()).await.unwrap_err();
    *server.way.borrow_mut() = Way::Answers;
    let refused = Instant::now();
    breaker.send_request(TrialRole::Defers, server.ask()).await.unwrap();
    assert!(refused.elapsed() < Duration::from_secs(3), "{:?}", refused.elapsed());
}

#[tokio::test(start_paused = true)]
async fn one_answer_lets_all_that_wait_through_and_one_refusal_fails_them() {
    let (breaker, server) = (CircuitBreaker::default(), Server::new(Way::Refuses));
    breaker.send_request(TrialRole::Tries, server.ask()).await.unwrap_err();
    let all =
        |count| join_all((0..count).map(|_| breaker.send_request(TrialRole::Tries, server.ask())));
    assert!(all(7).await.iter().all(Result::is_err));
    assert_eq!(server.asked.borrow().len(), 2);
    *server.way.borrow_mut() = Way::Answers;
    assert!(all(7).await.iter().all(Result::is_ok));
    assert!(!breaker.is_away());
}

#[tokio::test(start_paused = true)]
async fn an_api_that_turns_the_pilot_away_is_not_away_and_that_is_said_once_in_ten_minutes() {
    let (breaker, server) = (CircuitBreaker::default(), Server::new(Way::Answers));
    let said = || breaker.0.borrow().refusal.map(|refusal| refusal.said);
    let ask = async |way| {
        *server.way.borrow_mut() = way;
        breaker.send_request(TrialRole::Tries, server.ask()).await.unwrap();
        assert!(!breaker.is_away());
        breaker.is_turned_away()
    };
    assert!(!ask(Way::Answers).await);
    assert!(ask(Way::TurnsAway).await);
    let first = said();
    // Single answers of the server may differ from the rest.
    for _ in 0..19 {
        sleep(Duration::from_secs(30)).await;
        assert!(!ask(Way::Answers).await);
        assert!(ask(Way::TurnsAway).await);
    }
    assert_eq!(said(), first);
    sleep(Duration::from_secs(30)).await;
    assert!(ask(Way::TurnsAway).await);
    assert_eq!(said(), Some(Instant::now()));
    assert!(!ask(Way::Answers).await);
}
