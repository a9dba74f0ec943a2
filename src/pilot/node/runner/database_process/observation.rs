//! Asks a running database how it is, and the API about its peers, again and again.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::debug;

use super::{RunnerContext, RunnerMessage};
use crate::{
    api::v1beta1::Pilot,
    pilot::{
        driver::{self, NodeObservation},
        process::supervisor::release_program,
        volume::{pilot_files::VolumeMark, records::VolumeRecords},
    },
};

/// Pause between two questions how the database is, while it does not serve; `OBSERVE_SERVING`
/// while it does.
const OBSERVE_STARTING: Duration = Duration::from_secs(1);
const OBSERVE_SERVING: Duration = Duration::from_secs(5);
/// How many answers in a row must say that the database serves before memory that only a start
/// needs is given back: half a minute.
const SETTLED: u32 = 6;
/// How long a database may take to say how it is; one that takes longer counts as not answering.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// How long a database that did not say how it is may take to answer in another way.
const SECOND_OPINION: Duration = Duration::from_secs(2);
/// Pause between two looks at the peers of a node that serves and misses none of them, and of any
/// other node. Jitter keeps the pilots of a cluster from asking in step.
const PEERS_AT_REST: Duration = Duration::from_secs(360);
const PEERS_EVERY: Duration = Duration::from_secs(30);

/// Asks again and again. `unsettled` is told whether changes among the peers matter soon.
pub(super) async fn observe_database(
    ctx: RunnerContext,
    pid: i32,
    mut known_mark: Option<VolumeMark>,
    unsettled: watch::Sender<bool>,
) {
    let mut serving_count = 0_u32;
    loop {
        let answer = timeout(LIMIT, ctx.driver.observe()).await;
        let mut result = answer.unwrap_or_else(|elapsed| Err(elapsed.into()));
        if result.as_ref().is_err_and(driver::Error::is_silence)
            && timeout(SECOND_OPINION, ctx.driver.is_alive()).await == Ok(true)
        {
            result = Err(driver::Error::Evasive);
        }
        let mark = match &mut result {
            Ok(observation) => {
                establish_identity(observation, known_mark.as_ref(), &ctx.records).await
            }
            Err(_) => None,
        };
        if let Some(mark) = &mark {
            known_mark = Some(mark.clone());
        }
        let serving = result.as_ref().is_ok_and(|observation| observation.serving);
        let is_unsettled = result.as_ref().map_or(true, NodeObservation::is_unsettled);
        unsettled
            .send_if_modified(|current| std::mem::replace(current, is_unsettled) != is_unsettled);
        serving_count = if serving { serving_count.saturating_add(1) } else { 0 };
        if serving_count == SETTLED {
            // Once the database serves, the pilot does little for long.
            if let Err(error) = release_program() {
                debug!(%error, "Memory of the start cannot be given back");
            }
        }
        let result = Box::new(result);
        if ctx.messages.send(RunnerMessage::Observed { pid, result, mark }).await.is_err() {
            return;
        }
        sleep(if serving { OBSERVE_SERVING } else { OBSERVE_STARTING }).await;
    }
}

/// Looks at the peers: soon and often while `unsettled` says so, seldom else.
pub(super) async fn watch_peers(
    ctx: RunnerContext,
    pilot: Pilot,
    mut unsettled: watch::Receiver<bool>,
) {
    // What was listed for the start is old by the time that the node serves.
    let (mut last_look, mut is_first) = (Instant::now(), true);
    loop {
        let is_soon = *unsettled.borrow_and_update() || is_first;
        let interval = if is_soon { PEERS_EVERY } else { PEERS_AT_REST };
        let next = last_look + interval.mul_f64(0.75 + rand::random::<f64>() / 2.0);
        tokio::select! {
            () = sleep_until(next) => {
                (last_look, is_first) = (Instant::now(), false);
                if let Some(peers) = ctx.peers_or_empty(&pilot).await {
                    ctx.send_message(RunnerMessage::Peers(peers)).await;
                }
            }
            Ok(()) = unsettled.changed() => {}
        }
    }
}

/// Writes down a node's identity the first time that it serves or has joined, and whenever its id
/// changed: on its disk, and then by the report in the API. Does not wait for a volume that hangs.
async fn establish_identity(
    observation: &mut NodeObservation,
    known_mark: Option<&VolumeMark>,
    records: &VolumeRecords,
) -> Option<VolumeMark> {
    let is_member = observation.serving || observation.reason == Some(driver::JOINED_EMPTY);
    let node_id = observation.node_id.clone().filter(|_| is_member)?;
    let observed_cluster_id = observation.cluster_id.clone();
    // A cluster that was begun anew has another id. By the id in a mark without a ring's, the
    // cluster is recognised; such a mark stays as it is.
    let is_new_cluster = |mark: &VolumeMark| {
        observed_cluster_id.is_some()
            && observed_cluster_id != mark.cluster_id
            && mark.ring.is_some()
    };
    if known_mark
        .is_some_and(|mark| mark.node_id.as_ref() == Some(&node_id) && !is_new_cluster(mark))
    {
        return None;
    }
    let write_mark = records.try_visit(move |files| {
        let mark = files.read_mark()?.unwrap_or_default();
        let cluster_id = observed_cluster_id.or(mark.cluster_uid.clone());
        let since = Some(Time(Timestamp::now()));
        let mark = VolumeMark { cluster_id, node_id: Some(node_id), since, ..mark };
        files.set_mark(&mark)?;
        Ok::<_, std::io::Error>(mark)
    });
    let reason = match write_mark.await {
        Ok(Some(Ok(mark))) => return Some(mark),
        Ok(None) => return None,
        Ok(Some(Err(error))) => error.to_string(),
        Err(volume_timeout) => volume_timeout.to_string(),
    };
    observation.unsaved = Some(format!("failed to write down the identity of the node: {reason}"));
    None
}
