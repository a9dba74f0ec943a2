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
    pub fn may_replace(&self, own: Option<&Instance>, shown: Option<&Instance>) -> bool {
        let Self::Ours { predecessor } = self else { return false };
        let (Some(own), Some(shown)) = (own, shown) else { return true };
        is_same(own, shown) || predecessor.as_ref() == Some(shown)
    }
}

pub type NameHolderReceiver = watch::Receiver<NameHolder>;

/// Returns the verdict for a pilot that shares its name with no other: it holds the name.
pub fn alone() -> NameHolderReceiver {
    watch::channel(NameHolder::Ours { predecessor: None }).1
}

/// Decides which pilot holds the name, anew whenever the Pilot changes, until shutdown.
pub async fn run(
    own: Instance,
    cluster: PilotApi,
    mut seen: intent::IntentReceiver,
    holder: watch::Sender<NameHolder>,
    shutdown: Shutdown,
) {
    let mut rival = RivalPilot { own, heard: None, kubernetes: None };
    let (mut backoff, mut troubled) = (RetryBackoff::default(), false);
    let mut told = None;
    let name = cluster.name().to_owned();
    loop {
        let intent = seen.borrow_and_update().clone();
        let mut look_again = None;
        match intent {
            None => {}
            // The API is away. Another pilot of this name will be seen when it is back.
            Some(intent) if intent.remembered => {
                holder.send_if_modified(|holder| {
                    let open = *holder == NameHolder::Open;
                    if open {
                        *holder = NameHolder::Ours { predecessor: None };
                    }
                    open
                });
            }
            Some(intent) => match rival.look(&intent.pilot, Instant::now()) {
                HolderVerdict::Ours => {
                    let predecessor = intent.pilot.status.instance;
                    let predecessor = predecessor.filter(|shown| !is_same(&rival.own, shown));
                    set(&holder, NameHolder::Ours { predecessor });
                }
                HolderVerdict::Silent { until } => {
                    let other = intent.pilot.status.instance;
                    if told != other {
                        let other = rival.described();
                        warn!(other, "Another pilot may be this node; waiting for its heartbeats");
                    }
                    told = other;
                    set(&holder, NameHolder::Open);
                    look_again = Some(until);
                }
                HolderVerdict::Alive { until } => {
                    let other = rival.described();
                    let why = format!(
                        "another pilot is {name}, too: {other}. Stop one of them: this one goes \
                         on when the other has ended, or was silent for {SILENT:?}"
                    );
                    set(&holder, NameHolder::Theirs(why));
                    look_again = Some(until);
                }
                HolderVerdict::AskKubernetes => {
                    let asked = tokio::select! {
                        () = shutdown.triggered() => return,
                        asked = cluster.pod_uid() => asked,
                    };
                    match asked {
                        Ok(uid) if uid.is_none() || uid == rival.own.uid => {
                            rival.kubernetes = intent.pilot.status.instance;
                            let predecessor = rival.kubernetes.clone();
                            set(&holder, NameHolder::Ours { predecessor });
                        }
                        Ok(uid) => {
                            let uid = uid.unwrap_or_default();
                            let why = format!("Pod {name} is another one by now, of uid {uid}");
                            set(&holder, NameHolder::Theirs(why));
                            // The uid of a pod that is gone does not come back.
                            return shutdown.triggered().await;
                        }
                        Err(error) => {
                            if !std::mem::replace(&mut troubled, true) {
                                warn!(error = %chain(&error), "Pod of this node cannot be read");
                            }
                            look_again = Some(Instant::now() + backoff.pause());
                        }
                    }
                }
            },
        }
        let waited = async {
            match look_again {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.triggered() => return,
            changed = seen.changed() => if changed.is_err() { return },
            () = waited => {}
        }
    }
}

fn set(holder: &watch::Sender<NameHolder>, now: NameHolder) {
    holder.send_if_modified(|holder| {
        *holder != now && {
            *holder = now;
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
    fn look(&mut self, pilot: &Pilot, now: Instant) -> HolderVerdict {
        let status = &pilot.status;
        let Some(holder) = status.instance.as_ref().filter(|holder| !is_same(&self.own, holder))
        else {
            self.heard = None;
            return HolderVerdict::Ours;
        };
        if self.own.runtime == IN_POD {
            let known = self.kubernetes.as_ref() == Some(holder);
            return if known { HolderVerdict::Ours } else { HolderVerdict::AskKubernetes };
        }
        let beat = &status.last_heartbeat_time;
        let (since, alive) = match &self.heard {
            Some((known, last, since, alive)) if known == holder && last == beat => {
                (*since, *alive)
            }
            heard => (now, heard.as_ref().is_some_and(|(known, ..)| known == holder)),
        };
        self.heard = Some((holder.clone(), beat.clone(), since, alive));
        let until = since + SILENT;
        match (now >= until, alive) {
            (true, _) => HolderVerdict::Ours,
            (false, true) => HolderVerdict::Alive { until },
            (false, false) => HolderVerdict::Silent { until },
        }
    }

    fn described(&self) -> String {
        let Some((other, beat, ..)) = &self.heard else { return "unknown".to_owned() };
        let node = other.node.as_deref().unwrap_or("a machine without a name");
        let beat = beat.as_ref().map(|beat| format!(", last heartbeat at {}", beat.0));
        format!(
            "instance {:?} on {node}{}",
            other.uid.as_deref().unwrap_or("?"),
            beat.unwrap_or_default()
        )
    }
}

/// Is the other instance this pilot? Pilots of earlier releases told neither uid nor node of a
/// host: a missing value agrees with any.
fn is_same(own: &Instance, other: &Instance) -> bool {
    let agree = |own: &Option<String>, other: &Option<String>| {
        own.as_ref().zip(other.as_ref()).is_none_or(|(own, other)| own == other)
    };
    let nodes = own.runtime == IN_POD || agree(&own.node, &other.node);
    own.runtime == other.runtime && agree(&own.uid, &other.uid) && nodes
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
            let look = rival(&own).look(&shown(holder.as_ref(), 1), Instant::now());
            assert_eq!(look == HolderVerdict::Ours, ours, "{holder:?}: {look:?}");
        }
    }

    #[test]
    fn only_heartbeats_that_move_are_signs_of_life() {
        let (own, other) =
            (instance("Process", "a", Some("1")), instance("Process", "b", Some("2")));
        let (mut rival, start) = (rival(&own), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        let mut look = |beat, second| rival.look(&shown(Some(&other), beat), at(second));
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
        rival.look(&shown(Some(&b), 1), start);
        let look = rival.look(&shown(Some(&c), 2), start + second);
        assert_eq!(look, HolderVerdict::Silent { until: start + second + SILENT });
    }

    #[test]
    fn kubernetes_is_asked_once_about_another_pod() {
        let own = instance("Kubernetes", "n", Some("new"));
        let old = instance("Kubernetes", "n", Some("old"));
        let mut rival = rival(&own);
        let now = Instant::now();
        assert_eq!(rival.look(&shown(Some(&old), 1), now), HolderVerdict::AskKubernetes);
        rival.kubernetes = Some(old.clone());
        assert_eq!(rival.look(&shown(Some(&old), 2), now), HolderVerdict::Ours);
        let newer = instance("Kubernetes", "n", Some("newer"));
        assert_eq!(rival.look(&shown(Some(&newer), 3), now), HolderVerdict::AskKubernetes);
    }
}
