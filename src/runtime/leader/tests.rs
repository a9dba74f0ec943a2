//! Candidates against a scripted lease, on a clock that the test owns.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::{Client, client::Body};
use serde_json::{Value, json};

use super::*;

/// A lease behind HTTP: compare-and-swap on a counter.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Server>>);

#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    /// Requests that read.
    reads: usize,
}

/// The way from one candidate to the lease.
#[derive(Default)]
struct Link {
    /// Requests are never answered.
    is_cut: bool,
    /// How long a request is on its way.
    delay: Duration,
}

impl Api {
    fn client(&self, link: &Arc<Mutex<Link>>) -> Client {
        let (api, link) = (self.clone(), link.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (api, link) = (api.clone(), link.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let (is_cut, delay) = {
                    let link = link.lock().unwrap();
                    (link.is_cut, link.delay)
                };
                if is_cut {
                    std::future::pending::<()>().await;
                }
                sleep(delay).await;
                Ok::<_, Infallible>(api.answer(&parts.method, &body))
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, body: &[u8]) -> Response<Full<Bytes>> {
        let mut server = self.0.lock().unwrap();
        let failure = |code: u16, reason: &str| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason}))
        };
        let (code, body) = if *method == Method::GET {
            server.reads += 1;
            server.lease.clone().map_or_else(|| failure(404, "NotFound"), |lease| (200, lease))
        } else {
            let mut lease: Value = serde_json::from_slice(body).unwrap();
            let stored = server.lease.as_ref().map(|l| l["metadata"]["resourceVersion"].clone());
            let given = lease["metadata"].get("resourceVersion").cloned();
            if stored == given {
                server.version += 1;
                lease["metadata"]["resourceVersion"] = json!(server.version.to_string());
                server.lease = Some(lease.clone());
                (200, lease)
            } else {
                failure(409, "Conflict")
            }
        };
        let body = Full::new(Bytes::from(body.to_string()));
        Response::builder().status(code).body(body).unwrap()
    }

    /// Another client changes something of the lease that is no candidate's.
    fn touch(&self) {
        let mut server = self.0.lock().unwrap();
        server.version += 1;
        let version = server.version.to_string();
        let lease = server.lease.as_mut().unwrap();
        lease["metadata"]["annotations"] = json!({"touched": version});
        lease["metadata"]["resourceVersion"] = json!(version);
    }

    fn reads(&self) -> usize {
        self.0.lock().unwrap().reads
    }

    fn holder(&self) -> Option<String> {
        let server = self.0.lock().unwrap();
        Some(server.lease.as_ref()?["spec"]["holderIdentity"].as_str()?.to_owned())
    }
}

struct Candidate {
    link: Arc<Mutex<Link>>,
    claim: watch::Receiver<LeaderClaim>,
    shutdown: Shutdown,
    tasks: super::super::TaskGroup,
}

fn candidate(api: &Api, identity: &str) -> Candidate {
    candidate_at(api, identity, Duration::ZERO)
}

/// A candidate whose requests are on their way for this long.
fn candidate_at(api: &Api, identity: &str, delay: Duration) -> Candidate {
    let link = Arc::new(Mutex::new(Link { is_cut: false, delay }));
    let (sender, claim) = watch::channel(LeaderClaim::Waiting);
    let shutdown = Shutdown::new();
    let tasks = super::super::TaskGroup::new(shutdown.clone());
    let lease = KubernetesLease::new(api.client(&link), "navigator", "navigator-controller".into());
    let mut elector = LeaderElector::new(lease, ElectionConfig::new(identity.into()));
    let end = shutdown.clone();
    tasks.spawn("leader", async move { elector.run(&sender, end).await });
    Candidate { link, claim, shutdown, tasks }
}

impl Candidate {
    async fn leads(&mut self) {
        self.claim.wait_for(|claim| claim.is_held()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_and_a_release_hands_over_within_a_retry() {
    let api = Api::default();
    let mut first = candidate(&api, "first");
    first.leads().await;
    let mut second = candidate(&api, "second");
    sleep(Duration::from_secs(60)).await;
    assert!(first.claim.borrow().is_held());
    assert_eq!(*second.claim.borrow(), LeaderClaim::Waiting);

    let released = Instant::now();
    first.shutdown.trigger();
    first.tasks.join().await;
    assert_eq!(*first.claim.borrow(), LeaderClaim::Lost);
    second.leads().await;
    assert!(released.elapsed() <= Duration::from_secs(3), "{:?}", released.elapsed());
    assert_eq!(api.holder().as_deref(), Some("second"));
    let LeaderClaim::Held { transition, .. } = *second.claim.borrow() else { panic!("not held") };
    assert_eq!(transition, 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_reads_its_lease_again_only_where_another_client_changed_it() {
    let api = Api::default();
    let mut leader = candidate(&api, "leader");
    leader.leads().await;
    let version = || api.0.lock().unwrap().version;
    let (reads, writes) = (api.reads(), version());
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.reads(), reads);
    assert!(version() - writes > 20, "{}", version() - writes);

    api.touch();
    let touched = json!({"touched": version().to_string()});
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.reads(), reads + 1);
    assert!(leader.claim.borrow().is_held());
    let annotations = |api: &Api| {
        let server = api.0.lock().unwrap();
        server.lease.as_ref().unwrap()["metadata"]["annotations"].clone()
    };
    assert_eq!(annotations(&api), touched);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_for_longer_than_it_may_lead_reads_before_it_writes() {
    let api = Api::default();
    let lease = KubernetesLease::new(api.client(&Arc::default()), "navigator", "lease".into());
    let mut elector = LeaderElector::new(lease, ElectionConfig::new("stopped".into()));
    for (pause, reads) in [(0, 1), (2, 1), (9, 1), (10, 2), (2, 2)] {
        tokio::time::advance(Duration::from_secs(pause)).await;
        assert!(matches!(elector.try_lease().await, Ok(LeaseAttempt::Held(_))));
        assert_eq!(api.reads(), reads, "after {pause} s");
    }
    // What another client changed is read within the same attempt.
    api.touch();
    assert!(matches!(elector.try_lease().await, Ok(LeaseAttempt::Held(_))));
    assert_eq!(api.reads(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_stops_acting_before_anyone_else_may() {
    let api = Api::default();
    let mut first = candidate(&api, "first");
    first.leads().await;
    first.link.lock().unwrap().is_cut = true;
    let cut = Instant::now();
    first.claim.wait_for(|claim| *claim == LeaderClaim::Lost).await.unwrap();
    assert!(cut.elapsed() <= Duration::from_secs(10), "{:?}", cut.elapsed());

    let mut second = candidate(&api, "second");
    let asked = Instant::now();
    second.leads().await;
    assert!(asked.elapsed() >= Duration::from_secs(15), "{:?}", asked.elapsed());
    assert!(asked.elapsed() <= Duration::from_secs(18), "{:?}", asked.elapsed());
}

/// A busy machine answers late; that is no reason to stop leading.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_server_takes_four_seconds_leads_on() {
    let api = Api::default();
    let mut first = candidate(&api, "first");
    first.leads().await;
    first.link.lock().unwrap().delay = Duration::from_secs(4);
    let lost = first.claim.wait_for(|claim| *claim == LeaderClaim::Lost);
    assert!(timeout(Duration::from_secs(300), lost).await.is_err(), "it stopped leading");
    assert!(first.claim.borrow().is_held());
    // One renewal that is never answered is given up in time for another.
    first.link.lock().unwrap().is_cut = true;
    sleep(Duration::from_secs(4)).await;
    *first.link.lock().unwrap() = Link::default();
    let lost = first.claim.wait_for(|claim| *claim == LeaderClaim::Lost);
    assert!(timeout(Duration::from_secs(60), lost).await.is_err(), "it stopped leading");
}

/// A process that was paused may find the lease free again after another one led.
#[tokio::test(start_paused = true)]
async fn leader_stops_after_another_one_led() {
    let api = Api::default();
    let mut first = candidate(&api, "first");
    first.leads().await;
    {
        let mut server = api.0.lock().unwrap();
        server.version += 1;
        let version = json!(server.version.to_string());
        let lease = server.lease.as_mut().unwrap();
        lease["spec"]["holderIdentity"] = Value::Null;
        lease["spec"]["leaseTransitions"] = json!(5);
        lease["metadata"]["resourceVersion"] = version;
    }
    let lost = first.claim.wait_for(|claim| *claim == LeaderClaim::Lost);
    timeout(Duration::from_secs(60), lost).await.expect("it leads on").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_held_claim_expires_by_itself_when_nobody_renews_it() {
    let until = Instant::now() + Duration::from_secs(10);
    let claim = LeaderClaim::Held { until, transition: 0 };
    assert!(claim.is_held());
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(!claim.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_does_not_shorten_the_wait_for_what_it_shows() {
    let api = Api::default();
    let mut first = candidate(&api, "first");
    first.leads().await;
    // The first read of `second` begins now and sees the lease as it is in 13 seconds.
    let mut second = candidate_at(&api, "second", Duration::from_secs(13));
    sleep(Duration::from_millis(13_500)).await;
    first.link.lock().unwrap().is_cut = true;
    second.link.lock().unwrap().delay = Duration::ZERO;
    assert!(first.claim.borrow().is_held());
    second.leads().await;
    assert!(!first.claim.borrow().is_held(), "two leaders");
}
