//! The intent for the node: its own Pilot, watched; or, when the API is away, the last one that was
//! seen.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use kube::runtime::{
    WatchStreamExt,
    watcher::{self, Event, watcher},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};
use tracing::{info, warn};

use crate::{
    api::v1beta1::Pilot,
    error::chain,
    pilot::{
        kube::{backoff::RetryBackoff, pilot_api::PilotApi},
        volume::{pilot_files::PilotFiles, records::VolumeRecords},
    },
    runtime::Shutdown,
};

/// How long the API may take before a known database starts from the remembered intent.
const PATIENCE: Duration = Duration::from_secs(10);

/// The Pilot, and whether it was read from the disk, not from the API.
#[derive(Clone, Debug)]
pub struct IntentSnapshot {
    pub pilot: Pilot,
    pub remembered: bool,
}

pub type IntentSender = watch::Sender<Option<IntentSnapshot>>;
pub type IntentReceiver = watch::Receiver<Option<IntentSnapshot>>;

/// Watches the node's own Pilot until shutdown. A deleted Pilot changes nothing: a client makes it
/// again when the node is wanted, and a database does not stop because an object is gone. `absence`
/// is notified each time that the API turns out to have no such object.
pub async fn follow(
    cluster: PilotApi,
    records: VolumeRecords,
    seen: IntentSender,
    absence: Option<Arc<Notify>>,
    shutdown: Shutdown,
) {
    let mut presence = PilotPresence { listed: false, absence };
    let own = watcher::Config::default().fields(&format!("metadata.name={}", cluster.name()));
    let mut events =
        std::pin::pin!(watcher(cluster.pilots(), own).backoff(RetryBackoff::of_watch()));
    let patience = Instant::now() + PATIENCE;
    let mut troubled = false;
    loop {
        let known = seen.borrow().is_some();
        let next = async {
            if known { Ok(events.next().await) } else { timeout_at(patience, events.next()).await }
        };
        let event = tokio::select! {
            () = shutdown.triggered() => return,
            event = next => event,
        };
        if let Ok(Some(Ok(event))) = &event {
            presence.hear(event);
        }
        match event {
            Ok(Some(Ok(Event::InitApply(pilot)))) => {
                troubled = false;
                take(&seen, pilot);
            }
            Ok(Some(Ok(Event::Apply(pilot)))) => {
                troubled = false;
                take_later(&seen, pilot, |_| true);
            }
            Ok(Some(Ok(Event::InitDone))) if seen.borrow().is_none() => {
                info!(name = cluster.name(), "Waiting for the Pilot object");
            }
            Ok(Some(Ok(Event::Delete(_)))) => warn!("The Pilot object was deleted"),
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => {
                // Each trouble is logged once: the backoff tries again for as long as it takes.
                if !std::mem::replace(&mut troubled, true) {
                    warn!(error = %chain(&error), "API cannot be watched");
                }
            }
            Ok(None) => return,
            Err(_) => {
                tokio::select! {
                    () = shutdown.triggered() => return,
                    () = remember(&seen, &records, (cluster.namespace(), cluster.name())) => {}
                }
                // From here on the node waits for the API without a limit.
                let unknown = seen.borrow().is_none();
                if unknown && !wait_on(&mut events, &seen, &mut presence, &shutdown).await {
                    return;
                }
            }
        }
    }
}

/// Waits for the Pilot of a node that remembers no intent to start from. False: the watch is over.
async fn wait_on(
    events: &mut (impl futures::Stream<Item = watcher::Result<Event<Pilot>>> + Unpin),
    seen: &IntentSender,
    presence: &mut PilotPresence,
    shutdown: &Shutdown,
) -> bool {
    let mut troubled = false;
    loop {
        let event = tokio::select! {
            () = shutdown.triggered() => return false,
            event = events.next() => event,
        };
        if let Some(Ok(event)) = &event {
            presence.hear(event);
        }
        match event {
            Some(Ok(Event::Apply(pilot) | Event::InitApply(pilot))) => {
                take(seen, pilot);
                return true;
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                if !std::mem::replace(&mut troubled, true) {
                    warn!(error = %chain(&error), "API cannot be watched");
                }
            }
            None => return false,
        }
    }
}

/// Finds out from a watch whether the Pilot exists: a watch tells only the objects that exist, and
/// then that the list is complete.
struct PilotPresence {
    listed: bool,
    absence: Option<Arc<Notify>>,
}

impl PilotPresence {
    fn hear(&mut self, event: &Event<Pilot>) {
        let is_absent = match event {
            Event::Init => {
                self.listed = false;
                false
            }
            Event::InitApply(_) | Event::Apply(_) => {
                self.listed = true;
                false
            }
            Event::InitDone => !self.listed,
            Event::Delete(_) => true,
        };
        if let Some(absence) = self.absence.as_ref().filter(|_| is_absent) {
            absence.notify_one();
        }
    }
}

/// Replaces the known Pilot by a listed one, even an older one: the store may have gone back to an
/// earlier state.
fn take(seen: &IntentSender, pilot: Pilot) {
    seen.send_replace(Some(IntentSnapshot { pilot, remembered: false }));
}

/// Takes the intent from the answer to a write, where that differs and is not older: a watch on a
/// dead connection would tell of a new spec, or of another pilot, only after minutes.
pub fn heed_answer(seen: &IntentSender, pilot: &Pilot) {
    let differs = |known: &Pilot| {
        known.spec != pilot.spec
            || known.metadata.annotations != pilot.metadata.annotations
            || known.status.instance != pilot.status.instance
    };
    take_later(seen, pilot.clone(), differs);
}

/// Takes a Pilot that is not older than the known version of the same object, where `also` holds.
fn take_later(seen: &IntentSender, pilot: Pilot, also: impl FnOnce(&Pilot) -> bool) {
    seen.send_if_modified(|known| {
        let is_later = match known {
            Some(IntentSnapshot { pilot: known, remembered: false }) => {
                let is_same = known.metadata.uid == pilot.metadata.uid;
                (!is_same || revision(&pilot) >= revision(known)) && also(known)
            }
            _ => true,
        };
        if is_later {
            *known = Some(IntentSnapshot { pilot, remembered: false });
        }
        is_later
    });
}

/// Returns the resourceVersion as a number, which grows with the writes of its store.
pub fn revision(pilot: &Pilot) -> u64 {
    let text = pilot.metadata.resource_version.as_deref();
    text.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

/// Reads the remembered intent. A volume may have been another node's, whose intent means nothing
/// here. `own` is this node's namespace and name.
async fn remember(seen: &IntentSender, records: &VolumeRecords, own: (&str, &str)) {
    let read = |files: &PilotFiles| {
        let known = files.mark().ok().flatten().is_some_and(|mark| mark.node_id.is_some());
        files.intent().ok().flatten().filter(|_| known)
    };
    let Ok(Some(pilot)) = records.visit(read).await else { return };
    let of = (pilot.metadata.namespace.as_deref(), pilot.metadata.name.as_deref());
    if of == (Some(own.0), Some(own.1)) {
        info!("API does not answer; starting from the intent that is remembered");
        seen.send_replace(Some(IntentSnapshot { pilot, remembered: true }));
    } else {
        warn!(?of, "The intent that is remembered on the volume is not this node's; waiting");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1beta1::PilotIntent,
        pilot::volume::{data_volume::Volume, pilot_files::VolumeMark},
    };

    #[test]
    fn what_a_write_answers_is_heeded_and_an_older_word_of_the_watch_is_not() {
        let pilot = |uid: &str, revision: u64, wanted: PilotIntent| {
            let mut pilot = Pilot::default();
            pilot.metadata.uid = Some(uid.into());
            pilot.metadata.resource_version = Some(revision.to_string());
            pilot.spec.phase = Some(wanted);
            pilot
        };
        let (seen, mut heard) = watch::channel(None);
        let wanted = |seen: &IntentSender| seen.borrow().as_ref().unwrap().pilot.spec.phase.clone();
        take(&seen, pilot("u", 5, PilotIntent::Running));
        heard.mark_unchanged();
        heed_answer(&seen, &pilot("u", 6, PilotIntent::Running));
        assert!(!heard.has_changed().unwrap(), "nothing else is wanted");
        heed_answer(&seen, &pilot("u", 9, PilotIntent::Decommissioned));
        assert_eq!(wanted(&seen), Some(PilotIntent::Decommissioned));
        take_later(&seen, pilot("u", 7, PilotIntent::Running), |_| true);
        assert_eq!(wanted(&seen), Some(PilotIntent::Decommissioned), "the watch is behind");
        take_later(&seen, pilot("u", 10, PilotIntent::Running), |_| true);
        assert_eq!(wanted(&seen), Some(PilotIntent::Running));
        take_later(&seen, pilot("v", 2, PilotIntent::Fenced), |_| true);
        assert_eq!(wanted(&seen), Some(PilotIntent::Fenced), "it was made again");
        take(&seen, pilot("v", 1, PilotIntent::Running));
        assert_eq!(wanted(&seen), Some(PilotIntent::Running), "a list is what there is");
    }

    #[tokio::test]
    async fn an_intent_that_is_remembered_for_another_node_is_not_acted_upon() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::of(data.path());
        let mut pilot = Pilot::default();
        pilot.metadata.name = Some("cass-shop-a-0".into());
        pilot.metadata.namespace = Some("db".into());
        files.set_intent(&pilot).unwrap();
        files.set_mark(&VolumeMark { node_id: Some("n".into()), ..VolumeMark::default() }).unwrap();
        for (name, namespace, acted) in [
            ("cass-shop-a-1", "db", false),
            ("cass-shop-a-0", "other", false),
            ("cass-shop-a-0", "db", true),
        ] {
            let seen = IntentSender::new(None);
            let records = VolumeRecords::new(data.path(), &Volume::default());
            remember(&seen, &records, (namespace, name)).await;
            assert_eq!(seen.borrow().is_some(), acted, "{namespace}/{name}");
        }
    }
}
