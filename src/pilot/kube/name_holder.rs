//! Is another pilot this node, too? Two pilots of one name would overwrite each other's reports,
//! and the database of one be taken for the other's.
//!
//! The pilot in the Pilot's `status.instance` holds the name. Another pilot neither begins anything
//! nor reports, until the holder has ended or fallen silent; and it stops its database once the
//! holder gives signs of life. Among pods Kubernetes knows better: the Pod that it has holds the
//! name at once, and a pilot whose pod is gone there stops for good. A pilot that cannot reach the
//! API learns nothing of this: then locks of volumes and the databases' own checks of identity have
//! to do.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::warn;

use crate::{
    api::v1beta1::{Instance, Pilot},
    error::chain,
    pilot::kube::{backoff::RetryBackoff, intent, pilot_api::PilotApi},
    runtime::Shutdown,
};

/// How long another pilot may give no sign of life before its name is free: two and a half of its
/// heartbeats.
const SILENT: Duration = Duration::from_secs(75);
const IN_POD: &str = "Kubernetes";

/// Which pilot holds the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameHolder {
    /// Not known yet. This pilot begins and reports nothing; a database that runs goes on.
    Open,
    /// This pilot holds it. The status may still name `predecessor`, which is gone or silent.
    Ours { predecessor: Option<Instance> },
    /// Another pilot holds it; the text says which.
    Theirs(String),
}

impl NameHolder {
    pub fn is_ours(&self) -> bool {
        matches!(self, Self::Ours { .. })
    }

    /// May the pilot `own` write over a status that names `shown`? Not over one of a pilot that was
    /// not judged yet.
    pub fn may_replace(
        &self,
        own_instance: Option<&Instance>,
        reported_instance: Option<&Instance>,
    ) -> bool {
        let Self::Ours { predecessor } = self else { return false };
        let (Some(own_instance), Some(reported_instance)) = (own_instance, reported_instance)
        else {
            return true;
        };
        is_same(own_instance, reported_instance) || predecessor.as_ref() == Some(reported_instance)
    }
}

pub type NameHolderReceiver = watch::Receiver<NameHolder>;

/// Returns the verdict for a pilot that shares its name with no other: it holds the name.
pub fn sole_holder() -> NameHolderReceiver {
    watch::channel(NameHolder::Ours { predecessor: None }).1
}

/// Decides which pilot holds the name, anew whenever the Pilot changes, until shutdown.
pub async fn track_holder(
    own_instance: Instance,
    cluster: PilotApi,
    mut intents: intent::IntentReceiver,
    holder: watch::Sender<NameHolder>,
    shutdown: Shutdown,
) {
    let mut rival = RivalPilot { own: own_instance, heard: None, kubernetes: None };
    let (mut backoff, mut is_failing) = (RetryBackoff::default(), false);
    let mut reported_rival = None;
    let name = cluster.name().to_owned();
    loop {
        let intent = intents.borrow_and_update().clone();
        let mut look_again = None;
        match intent {
            None => {}
            // The API is away. Another pilot of this name will be seen when it is back.
            Some(intent) if intent.remembered => {
                holder.send_if_modified(|holder| {
                    let is_open = *holder == NameHolder::Open;
                    if is_open {
                        *holder = NameHolder::Ours { predecessor: None };
                    }
                    is_open
                });
            }
            Some(intent) => match rival.judge_holder(&intent.pilot, Instant::now()) {
                HolderVerdict::Ours => {
                    let predecessor = intent.pilot.status.instance;
                    let predecessor = predecessor.filter(|instance| !is_same(&rival.own, instance));
                    set_holder(&holder, NameHolder::Ours { predecessor });
                }
                HolderVerdict::Silent { until } => {
                    let other = intent.pilot.status.instance;
                    if reported_rival != other {
                        let other = rival.describe_rival();
                        warn!(other, "Another pilot may be this node; waiting for its heartbeats");
                    }
                    reported_rival = other;
                    set_holder(&holder, NameHolder::Open);
                    look_again = Some(until);
                }
                HolderVerdict::Alive { until } => {
                    let other = rival.describe_rival();
                    let message = format!(
                        "another pilot is {name}, too: {other}. Stop one of them: this one goes \
                         on when the other has ended, or was silent for {SILENT:?}"
                    );
                    set_holder(&holder, NameHolder::Theirs(message));
                    look_again = Some(until);
                }
                HolderVerdict::AskKubernetes => {
                    let pod_uid = tokio::select! {
                        () = shutdown.triggered() => return,
                        asked = cluster.pod_uid() => asked,
                    };
                    match pod_uid {
                        Ok(uid) if uid.is_none() || uid == rival.own.uid => {
                            rival.kubernetes = intent.pilot.status.instance;
                            let predecessor = rival.kubernetes.clone();
                            set_holder(&holder, NameHolder::Ours { predecessor });
                        }
                        Ok(uid) => {
                            let uid = uid.unwrap_or_default();
                            let message = format!("Pod {name} is another one by now, of uid {uid}");
                            set_holder(&holder, NameHolder::Theirs(message));
                            // The uid of a pod that is gone does not come back.
                            return shutdown.triggered().await;
                        }
                        Err(error) => {
                            if !std::mem::replace(&mut is_failing, true) {
                                warn!(error = %chain(&error), "Pod of this node cannot be read");
                            }
                            look_again = Some(Instant::now() + backoff.next_pause());
                        }
                    }
                }
            },
        }
        let recheck = async {
            match look_again {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.triggered() => return,
            changed = intents.changed() => if changed.is_err() { return },
            () = recheck => {}
        }
    }
}

fn set_holder(holder: &watch::Sender<NameHolder>, new_holder: NameHolder) {
    holder.send_if_modified(|holder| {
        *holder != new_holder && {
            *holder = new_holder;
            true
        }
    });
}

/// What one look at the Pilot says about the holder.
#[derive(Debug, PartialEq, Eq)]
enum HolderVerdict {
    Ours,
    /// The status names another pilot, of which no sign of life was seen so far.
    Silent {
        until: Instant,
    },
    Alive {
        until: Instant,
    },
    AskKubernetes,
}

/// What is known of a pilot that the Pilot's status names in place of this one.
struct RivalPilot {
    own: Instance,
    /// The other pilot, its last heartbeat, when this pilot first saw that heartbeat, and whether
    /// it has seen more than one.
    heard: Option<(Instance, Option<Time>, Instant, bool)>,
    /// Kubernetes said that the Pod of this name is ours and not this rival's.
    kubernetes: Option<Instance>,
}

impl RivalPilot {
    fn judge_holder(&mut self, pilot: &Pilot, now: Instant) -> HolderVerdict {
        let status = &pilot.status;
        let Some(holder) = status.instance.as_ref().filter(|holder| !is_same(&self.own, holder))
        else {
            self.heard = None;
            return HolderVerdict::Ours;
        };
        if self.own.runtime == IN_POD {
            let is_confirmed = self.kubernetes.as_ref() == Some(holder);
            return if is_confirmed { HolderVerdict::Ours } else { HolderVerdict::AskKubernetes };
        }
        let heartbeat = &status.last_heartbeat_time;
        let (since, alive) = match &self.heard {
            Some((rival, last, since, alive)) if rival == holder && last == heartbeat => {
                (*since, *alive)
            }
            previous => (now, previous.as_ref().is_some_and(|(rival, ..)| rival == holder)),
        };
        self.heard = Some((holder.clone(), heartbeat.clone(), since, alive));
        let until = since + SILENT;
        match (now >= until, alive) {
            (true, _) => HolderVerdict::Ours,
            (false, true) => HolderVerdict::Alive { until },
            (false, false) => HolderVerdict::Silent { until },
        }
    }

    fn describe_rival(&self) -> String {
        let Some((other, heartbeat, ..)) = &self.heard else { return "unknown".to_owned() };
        let node = other.node.as_deref().unwrap_or("a machine without a name");
        let heartbeat = heartbeat.as_ref().map(|time| format!(", last heartbeat at {}", time.0));
        format!(
            "instance {:?} on {node}{}",
            other.uid.as_deref().unwrap_or("?"),
            heartbeat.unwrap_or_default()
        )
    }
}

/// Is the other instance this pilot? Pilots of earlier releases told neither uid nor node of a
/// host: a missing value agrees with any.
fn is_same(own_instance: &Instance, other_instance: &Instance) -> bool {
    let agree = |own_value: &Option<String>, other_value: &Option<String>| {
        own_value
            .as_ref()
            .zip(other_value.as_ref())
            .is_none_or(|(own_value, other_value)| own_value == other_value)
    };
    let is_same_node =
        own_instance.runtime == IN_POD || agree(&own_instance.node, &other_instance.node);
    own_instance.runtime == other_instance.runtime
        && agree(&own_instance.uid, &other_instance.uid)
        && is_same_node
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(runtime: &str, node: &str, uid: Option<&str>) -> Instance {
        Instance { runtime: runtime.into(), node: Some(node.into()), uid: uid.map(Into::into) }
    }

    fn shown(holder: Option<&Instance>, beat: i64) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.status.instance = holder.cloned();
        pilot.status.last_heartbeat_time = Some(Time(jiff::Timestamp::from_second(beat).unwrap()));
        pilot
    }

    fn rival(own: &Instance) -> RivalPilot {
        RivalPilot { own: own.clone(), heard: None, kubernetes: None }
    }

    #[test]
    fn who_stands_in_the_status_holds_the_name() {
        let own = instance("Process", "a", Some("1"));
        let rows = [
            (None, true),
            (Some(own.clone()), true),
            // The instance as an earlier release wrote it.
            (Some(instance("Process", "a", None)), true),
            (Some(Instance { runtime: "Process".into(), ..Instance::default() }), true),
            (Some(instance("Process", "b", None)), false),
            // The same uid on another host: the disk was copied.
            (Some(instance("Process", "b", Some("1"))), false),
            (Some(instance("Process", "a", Some("2"))), false),
            (Some(instance("Kubernetes", "a", Some("1"))), false),
        ];
        for (holder, ours) in rows {
            let look = rival(&own).judge_holder(&shown(holder.as_ref(), 1), Instant::now());
            assert_eq!(look == HolderVerdict::Ours, ours, "{holder:?}: {look:?}");
        }
    }

    #[test]
    fn only_heartbeats_that_move_are_signs_of_life() {
        let (own, other) =
            (instance("Process", "a", Some("1")), instance("Process", "b", Some("2")));
        let (mut rival, start) = (rival(&own), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let mut look = |beat, second| rival.judge_holder(&shown(Some(&other), beat), at(second));
        assert_eq!(look(1, 0), HolderVerdict::Silent { until: at(75) });
        assert_eq!(
            look(1, 20),
            HolderVerdict::Silent { until: at(75) },
            "another change of the object"
        );
        assert_eq!(look(2, 30), HolderVerdict::Alive { until: at(105) });
        assert_eq!(look(2, 104), HolderVerdict::Alive { until: at(105) });
        assert_eq!(look(2, 105), HolderVerdict::Ours);
    }

    #[test]
    fn a_third_one_is_listened_to_anew() {
        let own = instance("Process", "a", Some("1"));
        let mut rival = rival(&own);
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let [b, c] = ["b", "c"].map(|node| instance("Process", node, None));
        rival.judge_holder(&shown(Some(&b), 1), start);
        let look = rival.judge_holder(&shown(Some(&c), 2), start + second);
        assert_eq!(look, HolderVerdict::Silent { until: start + second + SILENT });
    }

    #[test]
    fn kubernetes_is_asked_once_about_another_pod() {
        let own = instance("Kubernetes", "n", Some("new"));
        let old = instance("Kubernetes", "n", Some("old"));
        let mut rival = rival(&own);
        let now = Instant::now();
        assert_eq!(rival.judge_holder(&shown(Some(&old), 1), now), HolderVerdict::AskKubernetes);
        rival.kubernetes = Some(old.clone());
        assert_eq!(rival.judge_holder(&shown(Some(&old), 2), now), HolderVerdict::Ours);
        let newer = instance("Kubernetes", "n", Some("newer"));
        assert_eq!(rival.judge_holder(&shown(Some(&newer), 3), now), HolderVerdict::AskKubernetes);
    }
}
