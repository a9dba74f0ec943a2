//! Requests to a real Elasticsearch fail, one kind at a time and all together, while its node holds
//! the only copy and while it is asked to leave.

use std::time::{Duration, Instant};

use http::Method;
use navigator::api::v1beta1::{Pilot, PilotPhase};
use serde_json::{Value, json};

use super::ensemble::Ensemble;
use crate::{
    proxy::{FAULTS, Fault, Proxy},
    report::Told,
};

/// A time in which a pilot asks its database twice.
const LOOK: Duration = Duration::from_secs(12);
const DOCUMENTS: u64 = 50;

pub(crate) async fn what_is_not_heard_lets_nothing_go(told: &Told) {
    let mut ensemble = Ensemble::new("7.17.29", 2).await;
    let proxy = Proxy::before(ensemble.seat(0).address, 9200).await;
    ensemble.start_all();
    ensemble.settled(&[0, 1]).await;
    only_copy(&ensemble).await;
    ensemble.green(1).await;
    ensemble
        .shows(0, "what holds it", LOOK * 3, |pilot| {
            pilot.status.blockers.iter().any(|one| one.predicate == "DataOutlivesPod").then_some(())
        })
        .await;

    let asked = proxy.asked();
    let reads: Vec<_> = asked.into_iter().filter(|asked| asked.starts_with("GET /_")).collect();
    assert!(reads.len() > 3, "{reads:?}");
    for what in reads.iter().map(String::as_str).chain([""]) {
        for fault in FAULTS {
            proxy.fail(what, fault);
            holds(&ensemble, what, fault, |pilot| !pilot.status.blockers.is_empty()).await;
            proxy.heal();
        }
    }
    told.claim(format!(
        "the node with the only copy: {} kinds of requests fail, in {} ways each: something holds \
         it back all the while",
        reads.len(),
        FAULTS.len()
    ));

    ensemble.change(0, json!({"phase": "Decommissioned"})).await;
    for what in reads.iter().map(String::as_str).chain([""]) {
        for fault in FAULTS {
            proxy.fail(what, fault);
            holds(&ensemble, what, fault, stays).await;
            proxy.heal();
        }
    }
    told.claim("asked to leave while its shard may not move: it stays, whatever is not heard");
    let free = json!({"index.routing.allocation.require._name": Value::Null});
    ensemble.ask(1, Method::PUT, "/orders/_settings", Some(&free)).await;
    ensemble.left(0).await;
    let count = ensemble.ask(1, Method::GET, "/orders/_count", None).await;
    assert_eq!(count["count"], DOCUMENTS, "{count}");
    told.claim("freed, the shard moves and the node leaves: every document is on the other one");
}

fn stays(pilot: &Pilot) -> bool {
    pilot.status.phase != Some(PilotPhase::Decommissioned)
}

/// One shard without a second copy, on the first node.
async fn only_copy(ensemble: &Ensemble) {
    let settings = json!({
        "number_of_shards": 1, "number_of_replicas": 0,
        "routing.allocation.require._name": ensemble.name(0),
    });
    ensemble.ask(1, Method::PUT, "/orders", Some(&json!({"settings": settings}))).await;
    for id in 0..DOCUMENTS {
        let path = format!("/orders/_doc/{id}?refresh=true");
        ensemble.ask(1, Method::PUT, &path, Some(&json!({"id": id}))).await;
    }
}

/// Looks at the Pilot of the first node again and again for that time.
async fn holds(ensemble: &Ensemble, what: &str, fault: Fault, is_well: impl Fn(&Pilot) -> bool) {
    let (began, process) = (Instant::now(), ensemble.database(0));
    while began.elapsed() < LOOK {
        let pilot = ensemble.pilot(0).await;
        assert!(is_well(&pilot), "{what:?} {fault:?}: {:#?}", pilot.status);
        assert_eq!(ensemble.database(0), process, "{what:?} {fault:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
