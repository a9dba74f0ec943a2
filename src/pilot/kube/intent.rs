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
pub async fn watch_intent(
    cluster: PilotApi,
    records: VolumeRecords,
    intents: IntentSender,
    absence: Option<Arc<Notify>>,
    shutdown: Shutdown,
) {
    let mut presence = PilotPresence { listed: false, absence };
    let watch_config =
        watcher::Config::default().fields(&format!("metadata.name={}", cluster.name()));
    let mut events =
        std::pin::pin!(watcher(cluster.pilots(), watch_config).backoff(RetryBackoff::of_watch()));
    let patience = Instant::now() + PATIENCE;
    let mut is_failing = false;
    loop {
        let has_intent = intents.borrow().is_some();
        let next = async {
            if has_intent {
                Ok(events.next().await)
            } else {
                timeout_at(patience, events.next()).await
            }
        };
        let event = tokio::select! {
            () = shutdown.triggered() => return,
            event = next => event,
        };
        if let Ok(Some(Ok(event))) = &event {
            presence.observe_event(event);
        }
        match event {
            Ok(Some(Ok(Event::InitApply(pilot)))) => {
                is_failing = false;
                set_intent(&intents, pilot);
            }
            Ok(Some(Ok(Event::Apply(pilot)))) => {
                is_failing = false;
                take_later(&intents, pilot, |_| true);
            }
            Ok(Some(Ok(Event::InitDone))) if intents.borrow().is_none() => {
                info!(name = cluster.name(), "Waiting for the Pilot object");
            }
            Ok(Some(Ok(Event::Delete(_)))) => warn!("The Pilot object was deleted"),
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => {
                // Each trouble is logged once: the backoff tries again for as long as it takes.
                if !std::mem::replace(&mut is_failing, true) {
                    warn!(error = %chain(&error), "API cannot be watched");
                }
            }
            Ok(None) => return,
            Err(_) => {
                tokio::select! {
                    () = shutdown.triggered() => return,
                    () = restore_intent(&intents, &records, (cluster.namespace(), cluster.name())) => {}
                }
                // From here on the node waits for the API without a limit.
                let has_no_intent = intents.borrow().is_none();
                if has_no_intent && !wait_on(&mut events, &intents, &mut presence, &shutdown).await
                {
                    return;
                }
            }
        }
    }
}

/// Waits for the Pilot of a node that remembers no intent to start from. False: the watch is over.
async fn wait_on(
    events: &mut (impl futures::Stream<Item = watcher::Result<Event<Pilot>>> + Unpin),
    intents: &IntentSender,
    presence: &mut PilotPresence,
    shutdown: &Shutdown,
) -> bool {
    let mut is_failing = false;
    loop {
        let event = tokio::select! {
            () = shutdown.triggered() => return false,
            event = events.next() => event,
        };
        if let Some(Ok(event)) = &event {
            presence.observe_event(event);
        }
        match event {
            Some(Ok(Event::Apply(pilot) | Event::InitApply(pilot))) => {
                set_intent(intents, pilot);
                return true;
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                if !std::mem::replace(&mut is_failing, true) {
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
    fn observe_event(&mut self, event: &Event<Pilot>) {
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
fn set_intent(intents: &IntentSender, pilot: Pilot) {
    intents.send_replace(Some(IntentSnapshot { pilot, remembered: false }));
}

/// Takes the intent from the answer to a write, where that differs and is not older: a watch on a
/// dead connection would tell of a new spec, or of another pilot, only after minutes.
pub fn heed_answer(intents: &IntentSender, pilot: &Pilot) {
    let differs = |cached: &Pilot| {
        cached.spec != pilot.spec
            || cached.metadata.annotations != pilot.metadata.annotations
            || cached.status.instance != pilot.status.instance
    };
    take_later(intents, pilot.clone(), differs);
}

/// Takes a Pilot that is not older than the known version of the same object, where `is_relevant`
/// holds.
fn take_later(intents: &IntentSender, pilot: Pilot, is_relevant: impl FnOnce(&Pilot) -> bool) {
    intents.send_if_modified(|snapshot| {
        let is_later = match snapshot {
            Some(IntentSnapshot { pilot: cached, remembered: false }) => {
                let is_same = cached.metadata.uid == pilot.metadata.uid;
                (!is_same || revision(&pilot) >= revision(cached)) && is_relevant(cached)
            }
            _ => true,
        };
        if is_later {
            *snapshot = Some(IntentSnapshot { pilot, remembered: false });
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
/// here. `own_name` is this node's namespace and name.
async fn restore_intent(intents: &IntentSender, records: &VolumeRecords, own_name: (&str, &str)) {
    let read = |files: &PilotFiles| {
        let has_node_id =
            files.read_mark().ok().flatten().is_some_and(|mark| mark.node_id.is_some());
        files.read_intent().ok().flatten().filter(|_| has_node_id)
    };
    let Ok(Some(pilot)) = records.visit(read).await else { return };
    let of = (pilot.metadata.namespace.as_deref(), pilot.metadata.name.as_deref());
    if of == (Some(own_name.0), Some(own_name.1)) {
        info!("API does not answer; starting from the intent that is remembered");
        intents.send_replace(Some(IntentSnapshot { pilot, remembered: true }));
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
        set_intent(&seen, pilot("u", 5, PilotIntent::Running));
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
        set_intent(&seen, pilot("v", 1, PilotIntent::Running));
        assert_eq!(wanted(&seen), Some(PilotIntent::Running), "a list is what there is");
    }

    #[tokio::test]
    async fn an_intent_that_is_remembered_for_another_node_is_not_acted_upon() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::for_directory(data.path());
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
            restore_intent(&seen, &records, (namespace, name)).await;
            assert_eq!(seen.borrow().is_some(), acted, "{namespace}/{name}");
        }
    }
}
