//! Which pilot may lead, and the LeaderLease as three pilots compete for it, on a clock of the
//! test's own.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::{
    pilot::{
        database::EXAMPLE,
        driver::LeaderPermit,
        driver::StopPlan,
        node::machine::{MachineEvent, NodeIntent, NodeMachine, NodePhase, TimeLimits},
        volume::data_volume::Volume,
    },
    runtime::TaskGroup,
};

fn up(events: &[MachineEvent]) -> NodeMachine {
    let limits = TimeLimits {
        grace: Duration::from_secs(30),
        stop: StopPlan::DEFAULT,
        silence: Duration::from_secs(90),
        dump: None,
    };
    let mut state = NodeMachine::new(limits, false);
    state = state
        .step(MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: true })
        .0;
    state.life = NodePhase::Spawning;
    state = state.step(MachineEvent::Spawned { pid: 7 }).0;
    for event in events {
        state = state.step(event.clone()).0;
    }
    state
}

#[test]
fn only_a_node_that_serves_may_lead_and_one_that_leaves_for_its_departure_only() {
    let serving = MachineEvent::Observed { alive: true, serving: true };
    let joining = MachineEvent::Observed { alive: true, serving: false };
    let leave =
        MachineEvent::Intent { want: NodeIntent::Decommissioned, restart: None, changed: true };
    let stop = MachineEvent::Intent { want: NodeIntent::Stopped, restart: None, changed: true };
    for (events, shared, eligibility) in [
        (vec![], true, LeaderEligibility::No),
        (vec![joining.clone()], true, LeaderEligibility::Faltering),
        (vec![serving.clone()], true, LeaderEligibility::Yes),
        (vec![serving.clone(), joining], true, LeaderEligibility::Faltering),
        (vec![serving.clone(), leave.clone()], true, LeaderEligibility::Departing),
        (vec![serving.clone(), leave], false, LeaderEligibility::Yes),
        (vec![serving, stop], true, LeaderEligibility::No),
    ] {
        assert_eq!(up(&events).leader_eligibility(shared), eligibility, "{events:?}");
    }
    for (eligibility, duty, candidacy) in [
        (LeaderEligibility::Yes, LeaderDuty::None, LeaderEligibility::No),
        (LeaderEligibility::Yes, LeaderDuty::Cluster, LeaderEligibility::Yes),
        (LeaderEligibility::Faltering, LeaderDuty::Cluster, LeaderEligibility::Faltering),
        (LeaderEligibility::Departing, LeaderDuty::Cluster, LeaderEligibility::No),
        (LeaderEligibility::Departing, LeaderDuty::Departure, LeaderEligibility::Yes),
        (LeaderEligibility::No, LeaderDuty::Departure, LeaderEligibility::No),
    ] {
        assert_eq!(eligibility.for_duty(duty), candidacy, "{eligibility:?} {duty:?}");
    }
}

/// A LeaderLease behind HTTP: compare-and-swap on a counter.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Server>>);

#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    away: bool,
    writes: u64,
    requests: u64,
}

impl Api {
    fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                api.lock().requests += 1;
                if api.lock().away {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Infallible>(api.answer(&parts.method, &body))
            }
        });
        Client::new(service, "db")
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Server> {
        self.0.lock().unwrap()
    }

    fn answer(&self, method: &Method, body: &[u8]) -> Response<Full<Bytes>> {
        let mut server = self.lock();
        let failure = |code: u16, reason: &str| {
            (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason}))
        };
        let (code, body) = if *method == Method::GET {
            server.lease.clone().map_or_else(|| failure(404, "NotFound"), |lease| (200, lease))
        } else {
            let mut lease: Value = serde_json::from_slice(body).unwrap();
            let stored = server.lease.as_ref().map(|l| l["metadata"]["resourceVersion"].clone());
            if stored == lease["metadata"].get("resourceVersion").cloned() {
                server.version += 1;
                server.writes += 1;
                lease["metadata"]["resourceVersion"] = json!(server.version.to_string());
                server.lease = Some(lease.clone());
                (200, lease)
            } else {
                failure(409, "Conflict")
            }
        };
        Response::builder().status(code).body(Full::new(Bytes::from(body.to_string()))).unwrap()
    }

    /// Writes and requests so far.
    fn counts(&self) -> (u64, u64) {
        let server = self.lock();
        (server.writes, server.requests)
    }

    fn spec(&self) -> Value {
        self.lock().lease.as_ref().map(|lease| lease["spec"].clone()).unwrap_or_default()
    }
}

struct Candidate {
    eligibility: watch::Sender<LeaderEligibility>,
    claim: watch::Receiver<LeaderClaim>,
    shutdown: Shutdown,
    tasks: TaskGroup,
}

impl Candidate {
    fn new(api: &Api, name: &str) -> Self {
        let cluster = PilotApi::new(&api.client(), &EXAMPLE, "db", name);
        let lease = "example-demo-leaderelection".to_owned();
        Self::with(Some(PilotsLease::new(cluster, lease, Pilot::default())))
    }

    fn with(lease: Option<PilotsLease>) -> Self {
        let (eligibility, told) = watch::channel(LeaderEligibility::No);
        let (sender, claim) = watch::channel(LeaderClaim::Waiting);
        let shutdown = Shutdown::new();
        let tasks = TaskGroup::new(shutdown.clone());
        tasks.spawn("leader", campaign(lease, told, sender, shutdown.clone()));
        Self { eligibility, claim, shutdown, tasks }
    }

    fn leads(&self) -> bool {
        LeaderPermit::new(self.claim.clone()).is_held()
    }

    async fn until_leads(&mut self) {
        let held = self.claim.wait_for(|claim| claim.is_held());
        let held = tokio::time::timeout(Duration::from_secs(120), held).await;
        drop(held.expect("it leads within two minutes").unwrap());
    }
}

async fn seconds(count: u64) {
    sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_serving_hands_over_and_the_founder_stays() {
    let api = Api::default();
    let founder = json!({"name": "cass-demo-a-0", "id": "1"});
    api.lock().lease = Some(json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "LeaderLease",
        "metadata": {"name": "example-demo-leaderelection", "resourceVersion": "0"},
        "spec": {"founder": founder.clone()},
    }));
    let (mut a, mut b) = (Candidate::new(&api, "a"), Candidate::new(&api, "b"));
    seconds(60).await;
    assert_eq!(api.spec(), json!({"founder": founder.clone()}), "nobody serves yet");
    a.eligibility.send_replace(LeaderEligibility::Yes);
    a.until_leads().await;
    b.eligibility.send_replace(LeaderEligibility::Yes);
    seconds(60).await;
    assert!(a.leads() && !b.leads());
    assert_eq!(api.spec()["holderIdentity"], "a");
    assert_eq!(api.spec()["leaseTransitions"], 0);

    // A moment without service changes nothing.
    a.eligibility.send_replace(LeaderEligibility::Faltering);
    seconds(5).await;
    a.eligibility.send_replace(LeaderEligibility::Yes);
    seconds(30).await;
    assert!(a.leads());

    let left = Instant::now();
    a.eligibility.send_replace(LeaderEligibility::No);
    b.until_leads().await;
    assert!(left.elapsed() < Duration::from_secs(5), "{:?}", left.elapsed());
    assert!(!a.leads());
    assert_eq!((&api.spec()["holderIdentity"], &api.spec()["founder"]), (&json!("b"), &founder));
    assert_eq!(api.spec()["leaseTransitions"], 1);

    // A leader that falters for long is deposed, and at its end the lease is free.
    b.eligibility.send_replace(LeaderEligibility::Faltering);
    seconds(20).await;
    assert!(!b.leads());
    assert_eq!(api.spec().get("holderIdentity"), None);
    a.eligibility.send_replace(LeaderEligibility::Yes);
    a.until_leads().await;
    a.shutdown.trigger();
    a.tasks.join().await;
    assert_eq!(api.spec().get("holderIdentity"), None);
    assert_eq!(api.spec()["founder"], founder);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_the_api_steps_down_and_its_return_brings_no_storm() {
    let api = Api::default();
    let mut all = ["a", "b", "c"].map(|name| Candidate::new(&api, name));
    all[0].eligibility.send_replace(LeaderEligibility::Yes);
    all[0].until_leads().await;
    for one in &all {
        one.eligibility.send_replace(LeaderEligibility::Yes);
    }
    // An idle cluster: the holder renews, the others read.
    let before = api.counts();
    seconds(300).await;
    let (writes, requests) = (api.counts().0 - before.0, api.counts().1 - before.1);
    assert!((75..=101).contains(&writes), "{writes} renewals in 300 s");
    assert!(requests <= 405, "{requests} requests in 300 s");

    api.lock().away = true;
    let cut = Instant::now();
    all[0].claim.wait_for(|claim| !claim.is_held()).await.unwrap();
    assert!(cut.elapsed() <= Duration::from_secs(11), "{:?}", cut.elapsed());
    seconds(600).await;
    assert!(all.iter().all(|one| !one.leads()));
    let requests = api.counts().1;
    api.lock().away = false;
    seconds(30).await;
    assert_eq!(all.iter().filter(|one| one.leads()).count(), 1);
    let requests = api.counts().1 - requests;
    assert!(requests <= 60, "{requests} requests in the first 30 s");
}

#[tokio::test(start_paused = true)]
async fn pilots_without_a_duty_ask_for_no_lease_and_one_with_a_duty_leads_at_once() {
    let api = Api::default();
    let mut all = ["a", "b", "c"].map(|name| Candidate::new(&api, name));
    let duties: Vec<_> = all
        .iter()
        .map(|one| {
            let (serves, told) = watch::channel(LeaderEligibility::Yes);
            let (duty, wanted) = watch::channel(LeaderDuty::None);
            let (candidacy, shutdown) = (one.eligibility.clone(), one.shutdown.clone());
            one.tasks.spawn("candidacy", compete_for_duties(told, wanted, candidacy, shutdown));
            (serves, duty)
        })
        .collect();
    seconds(3600).await;
    assert_eq!(api.counts(), (0, 0), "an hour at rest");

    let found = Instant::now();
    duties[1].1.send_replace(LeaderDuty::Cluster);
    all[1].until_leads().await;
    assert!(found.elapsed() < Duration::from_secs(1), "{:?}", found.elapsed());
    assert!(!all[0].leads() && !all[2].leads());

    // A node that leaves takes over for its own departure only.
    duties[2].0.send_replace(LeaderEligibility::Departing);
    duties[2].1.send_replace(LeaderDuty::Departure);
    duties[1].1.send_replace(LeaderDuty::None);
    all[2].until_leads().await;
    duties[2].1.send_replace(LeaderDuty::None);
    seconds(10).await;
    assert!(all.iter().all(|one| !one.leads()));
    assert_eq!(api.spec().get("holderIdentity"), None, "it is given back");
    let before = api.counts();
    seconds(3600).await;
    assert_eq!(api.counts(), before, "at rest again");
}

#[tokio::test]
async fn a_pilot_records_its_ring_without_leading_and_then_lets_the_record_be() {
    let data = tempfile::tempdir().unwrap();
    let records = VolumeRecords::new(data.path(), &Volume::default());
    let ring = Some("ring".to_owned());
    let mark = VolumeMark { node_id: Some("n".into()), ring, ..VolumeMark::default() };
    records.visit(move |files| files.set_mark(&mark)).await.unwrap().unwrap();
    let api = Api::default();
    let cluster = PilotApi::new(&api.client(), &EXAMPLE, "db", "a");
    let name = "example-demo-leaderelection".to_owned();
    let lease = PilotsLease::new(cluster, name, Pilot::default()).with_records(records);
    let (_serves, told) = watch::channel(LeaderEligibility::Yes);
    let (shutdown, recorded) = (Shutdown::new(), async {
        while api.spec()["founder"]["id"] != "ring" {
            sleep(Duration::from_millis(20)).await;
        }
        // Longer than the pause after a write.
        sleep(2 * RECORD_AGAIN).await;
        let settled = api.counts();
        sleep(2 * RECORD_AGAIN).await;
        assert_eq!(api.counts(), settled);
    });
    tokio::select! {
        () = keep_record(lease, told, shutdown) => unreachable!("it goes on"),
        done = tokio::time::timeout(Duration::from_secs(60), recorded) => done.unwrap(),
    }
    assert_eq!(api.spec().get("holderIdentity"), None);
}

#[tokio::test(start_paused = true)]
async fn a_node_alone_leads_itself_while_it_serves() {
    let mut alone = Candidate::with(None);
    assert!(!alone.leads());
    alone.eligibility.send_replace(LeaderEligibility::Yes);
    alone.until_leads().await;
    alone.eligibility.send_replace(LeaderEligibility::No);
    alone.claim.wait_for(|claim| *claim == LeaderClaim::Lost).await.unwrap();
    assert!(LeaderPermit::for_single_node().is_held());
}
