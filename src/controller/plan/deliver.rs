//! Pilot update: brings another pilot into running pods, next to their databases, one pod at a
//! time.
//!
//! An ephemeral container installs the program over the old one in the shared volume, and the pilot
//! replaces itself by exec of the new program. Owns which pod is next, and how the controller knows
//! that a pilot runs the new program. Each installation has an id of its own, which the container
//! leaves as its termination message and the pilot reports. A pod whose update fails keeps its
//! pilot and its database. It blocks the other pods of its cluster until another image is desired
//! or the pod is recreated.
//!
//! Updates only while every node serves and no other step is due.

use std::time::Duration;

use super::{AwaitedStep, Candidate, Plan, PlannedStep, World, roll::FOR_PEOPLE};
use crate::{
    api::names,
    controller::{
        desired_state::DesiredCluster,
        observe::{InstallState, Member, ObservedCluster, PodFacts, installer_name},
    },
};

/// How long a refusal by the pilot is ignored after an install: it may be about the program that
/// was installed before. A pilot checks every 10 s, twice, and a check takes up to 20 s.
const REFUSAL_COUNTS_AFTER: Duration = Duration::from_secs(60);

/// Limit of installers in one pod: ephemeral containers cannot be removed. Twenty images are more
/// than a pod meets in its life, and a fault that adds more must not fill the pod for ever.
const MOST: u32 = 20;

/// The number of pilots of a cluster that run the desired image, and what is done about the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PilotRollout {
    /// Number of pilots of the desired image; `all` is the number of all pilots.
    pub(crate) current: u32,
    pub(crate) all: u32,
    pub(crate) next: Option<RolloutState>,
}

/// What happens to the pilots of another image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RolloutState {
    /// The pilots change when their pods are recreated.
    AtRestart,
    Deliver {
        pilot: String,
        pod: String,
        container: String,
    },
    Wait {
        pilot: String,
        message: String,
    },
    Failed {
        reason: &'static str,
        message: String,
    },
}

/// Updates the next pilot, or waits for an update that is under way. It does so only while every
/// node serves and nothing else is done: a step that waits for the user blocks no pilot.
pub(super) fn deliver_next_pilot(world: World<'_>, plan: &Plan) -> Vec<Candidate> {
    let is_held = plan.blocked.iter().any(|block| !FOR_PEOPLE.contains(&&*block.predicate));
    if plan.waiting.is_some() || is_held {
        return Vec::new();
    }
    let candidate = match pilot_rollout(world.desired, world.observed).next {
        Some(RolloutState::Deliver { pilot, pod, container }) => {
            let image = world.desired.pilot_image.reference.clone();
            Candidate::from_step(None, PlannedStep::Deliver { pilot, pod, container, image })
        }
        Some(RolloutState::Wait { pilot, message }) => {
            Candidate::from_wait(None, AwaitedStep::new("UpdatePilot", &pilot, message))
        }
        Some(RolloutState::AtRestart | RolloutState::Failed { .. }) | None => return Vec::new(),
    };
    vec![candidate]
}

/// Counts the pilots of the desired image and finds the next pilot update. An update that failed or
/// is under way comes before a new one. A pod that got an image that is no longer desired comes
/// before other outdated pods.
pub(crate) fn pilot_rollout(desired: &DesiredCluster, observed: &ObservedCluster) -> PilotRollout {
    let mut rollout = PilotRollout::default();
    let (mut first_failed, mut first_waiting, mut first_changing, mut first_outdated) =
        (None, None, None, None);
    // The last ordinal first, as in a roll.
    let members = observed.pools.iter().flat_map(|pool| pool.members.values().rev());
    for member in members {
        let Some(pod) = member.pod.as_ref().filter(|pod| !pod.terminating) else { continue };
        rollout.all += 1;
        match delivery_state(desired, member, pod) {
            DeliveryState::Current => rollout.current += 1,
            DeliveryState::Outdated { changing } => {
                let slot = if changing { &mut first_changing } else { &mut first_outdated };
                let number = pod.installers.last().map_or(1, |installer| installer.number + 1);
                slot.get_or_insert_with(|| RolloutState::Deliver {
                    pilot: member.name.clone(),
                    pod: pod.uid.clone(),
                    container: installer_name(number),
                });
            }
            DeliveryState::Waiting(message) => {
                let message = format!("{}: {message}", member.name);
                first_waiting
                    .get_or_insert(RolloutState::Wait { pilot: member.name.clone(), message });
            }
            DeliveryState::Failed(reason, message) => {
                let message = format!("{}: {message}", member.name);
                first_failed.get_or_insert(RolloutState::Failed { reason, message });
            }
        }
    }
    rollout.next = if desired.strategy.deliver_pilots {
        first_failed.or(first_waiting).or(first_changing).or(first_outdated)
    } else {
        (rollout.current < rollout.all).then_some(RolloutState::AtRestart)
    };
    rollout
}

enum DeliveryState {
    Current,
    /// The pilot is of another image. `changing`: it may be taking over yet another image.
    Outdated {
        changing: bool,
    },
    Waiting(String),
    Failed(&'static str, String),
}

fn delivery_state(desired: &DesiredCluster, member: &Member, pod: &PodFacts) -> DeliveryState {
    let image = &desired.pilot_image.reference;
    let (init, ephemeral) = match pod.installers.as_slice() {
        [] => return DeliveryState::Current,
        [init, ephemeral @ ..] => (init, ephemeral),
    };
    let Some(last_installer) = ephemeral.last() else {
        let is_current = init.image == *image;
        return if is_current {
            DeliveryState::Current
        } else {
            DeliveryState::Outdated { changing: false }
        };
    };
    // An image may be installed long after it was asked for, so the volume holds what the installer
    // that ended last wrote. Among installers with equal end times, `max_by_key` takes the last.
    let finished_installs = pod.installers.iter().filter_map(|installer| match &installer.state {
        InstallState::Done { program, at, age } => Some((installer, program, at, *age)),
        InstallState::Pending(_) | InstallState::Failed { .. } => None,
    });
    let newest_install = finished_installs.max_by_key(|(_, _, finished_at, _)| **finished_at);
    let pilot = member.pilot.as_ref();
    let is_running = |program: &String| {
        program.is_empty() || pilot.is_some_and(|pilot| pilot.program.as_ref() == Some(program))
    };
    if let Some((_, program, _, age)) =
        newest_install.filter(|(installer, ..)| installer.image == *image)
    {
        if is_running(program) {
            return DeliveryState::Current;
        }
        return not_taken_over(desired, pilot.and_then(|pilot| pilot.successor.as_ref()), age);
    }
    // An image that is being installed, or has failed, is not asked for again in this pod.
    for installer in ephemeral.iter().rev().filter(|installer| installer.image == *image) {
        match &installer.state {
            InstallState::Pending(reason) => {
                return DeliveryState::Waiting(format!("{image} is being installed: {reason}"));
            }
            InstallState::Failed { reason, message } => {
                let message = format!("{image} could not be installed: {message}");
                return DeliveryState::Failed(reason, message);
            }
            InstallState::Done { .. } => {}
        }
    }
    if last_installer.number >= MOST {
        let message = format!("{MOST} pilots were brought into this pod; only a new pod gets more");
        return DeliveryState::Failed("PilotInstallFailed", message);
    }
    match &last_installer.state {
        InstallState::Pending(_) | InstallState::Failed { .. } => {
            DeliveryState::Outdated { changing: true }
        }
        InstallState::Done { .. } => DeliveryState::Outdated {
            changing: newest_install.is_some_and(|(_, program, ..)| !is_running(program)),
        },
    }
}

/// Returns what keeps the old pilot running although the desired program is installed.
fn not_taken_over(
    desired: &DesiredCluster,
    successor: Option<&(String, String)>,
    age: Duration,
) -> DeliveryState {
    let explanation =
        successor.map_or("the pilot has not looked at it yet", |(_, message)| message);
    if successor.is_some_and(|(reason, _)| reason == "TakeoverRefused")
        && age > REFUSAL_COUNTS_AFTER
    {
        return DeliveryState::Failed("PilotUpdateRefused", explanation.to_owned());
    }
    let message = format!("installed in {}, not taken over: {explanation}", names::SHARED_DIR);
    if age > desired.strategy.progress_deadline {
        return DeliveryState::Failed("ProgressDeadlineExceeded", message);
    }
    DeliveryState::Waiting(message)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use k8s_openapi::jiff::Timestamp;

    use super::*;
    use crate::controller::{
        desired_state::Image,
        observe::InstallerContainer,
        testing::sample::{desired, observed},
    };

    fn installer(number: usize, image: &str, state: InstallState) -> InstallerContainer {
        let number = u32::try_from(number).unwrap();
        InstallerContainer { number, image: format!("navigator:{image}"), state }
    }

    /// Returns the state of an installation as `program` that ended `ago` seconds ago.
    fn done(program: &str, ago: i64) -> InstallState {
        let at = Timestamp::from_second(1_000_000 - ago).unwrap();
        InstallState::Done {
            program: program.into(),
            at,
            age: Duration::from_secs(ago.unsigned_abs()),
        }
    }

    fn pending() -> InstallState {
        InstallState::Pending("ContainerCreating".into())
    }

    fn unpulled() -> InstallState {
        InstallState::Failed { reason: "ImagePullFailed", message: "ImagePullBackOff".into() }
    }

    /// Installers of the pod, the program that its pilot runs, and its reason about another
    /// program.
    type Row<'a> = (&'a [(&'a str, InstallState)], &'a str, Option<&'a str>);

    /// Returns a cluster of these nodes, whose wanted image is `navigator:2`.
    fn cluster(rows: &[Row<'_>]) -> (DesiredCluster, ObservedCluster) {
        let size = u32::try_from(rows.len()).unwrap();
        let (mut desired, mut observed) =
            (desired(&[("a", size)], "new"), observed(&[("a", size)], "new"));
        desired.pilot_image = Image::from_reference("navigator:2");
        for (member, (installed, program, said)) in observed.pools[0].members.values_mut().zip(rows)
        {
            let installers = installed.iter().enumerate();
            member.pod.as_mut().unwrap().installers = installers
                .map(|(number, (image, state))| installer(number, image, state.clone()))
                .collect();
            let pilot = member.pilot.as_mut().unwrap();
            pilot.program = Some((*program).to_owned());
            pilot.successor = said.map(|reason| (reason.to_owned(), "because".to_owned()));
        }
        (desired, observed)
    }

    /// Returns the next delivery in a cluster of these nodes.
    fn next(rows: &[Row<'_>]) -> String {
        let (desired, observed) = cluster(rows);
        match pilot_rollout(&desired, &observed).next {
            None => "current".to_owned(),
            Some(RolloutState::AtRestart) => "at restart".to_owned(),
            Some(RolloutState::Deliver { pilot, container, .. }) => {
                format!("{container} to {pilot}")
            }
            Some(RolloutState::Wait { .. }) => "wait".to_owned(),
            Some(RolloutState::Failed { reason, .. }) => reason.to_owned(),
        }
    }

    const DAY: i64 = 86_400;

    #[test]
    fn a_pod_is_given_the_wanted_image_once_and_is_waited_for_until_its_pilot_runs_it() {
        let old = ("1", done("one", DAY));
        assert_eq!(next(&[(&[("2", done("two", DAY))], "two", None)]), "current", "made of it");
        assert_eq!(next(&[(slice::from_ref(&old), "one", None)]), "install-pilot-1 to ex-demo-a-0");
        assert_eq!(next(&[(&[old.clone(), ("2", pending())], "one", None)]), "wait");
        let installed = [old, ("2", done("two", 5))];
        assert_eq!(next(&[(&installed, "one", None)]), "wait");
        assert_eq!(next(&[(&installed, "one", Some("TakeoverPending"))]), "wait");
        assert_eq!(next(&[(&installed, "two", None)]), "current", "taken over");
    }

    #[test]
    fn one_pod_at_a_time_and_a_failure_holds_back_the_others() {
        let old = ("1", done("one", DAY));
        let outdated: Row<'_> = (slice::from_ref(&old), "one", None);
        assert_eq!(next(&[outdated, outdated]), "install-pilot-1 to ex-demo-a-1");
        let installed = [old.clone(), ("2", done("two", 5))];
        assert_eq!(next(&[outdated, (&installed, "one", None)]), "wait");
        assert_eq!(next(&[outdated, (&installed, "two", None)]), "install-pilot-1 to ex-demo-a-0");
        let failed = [old.clone(), ("2", unpulled())];
        for rows in [[outdated, (&failed, "one", None)], [(&failed, "one", None), outdated]] {
            assert_eq!(next(&rows), "ImagePullFailed");
        }
    }

    #[test]
    fn a_refusal_counts_when_it_can_only_be_of_what_lies_there_now() {
        let installed = |ago| [("1", done("one", DAY)), ("2", done("two", ago))];
        assert_eq!(next(&[(&installed(5), "one", Some("TakeoverRefused"))]), "wait");
        let refused = next(&[(&installed(90), "one", Some("TakeoverRefused"))]);
        assert_eq!(refused, "PilotUpdateRefused");
        assert_eq!(next(&[(&installed(90), "one", Some("TakeoverPending"))]), "wait");
        let late = next(&[(&installed(2_000), "one", Some("TakeoverPending"))]);
        assert_eq!(late, "ProgressDeadlineExceeded");
    }

    #[test]
    fn another_image_is_tried_after_one_that_failed_and_an_old_one_is_brought_back() {
        let broken = [("1", done("one", DAY)), ("3", unpulled())];
        assert_eq!(next(&[(&broken, "one", None)]), "install-pilot-2 to ex-demo-a-0");
        let refused = [("1", done("one", DAY)), ("3", done("three", 600))];
        assert_eq!(
            next(&[(&refused, "one", Some("TakeoverRefused"))]),
            "install-pilot-2 to ex-demo-a-0"
        );
        let back = [("2", done("two", DAY)), ("3", done("three", 600))];
        assert_eq!(next(&[(&back, "three", None)]), "install-pilot-2 to ex-demo-a-0");
    }

    #[test]
    fn where_another_image_was_begun_the_wanted_one_comes_first() {
        let old = ("1", done("one", DAY));
        let outdated: Row<'_> = (slice::from_ref(&old), "one", None);
        for state in [pending(), unpulled(), done("three", 5)] {
            let begun = [old.clone(), ("3", state)];
            assert_eq!(next(&[(&begun, "one", None), outdated]), "install-pilot-2 to ex-demo-a-0");
        }
        let settled = [old.clone(), ("3", done("three", DAY))];
        let next = next(&[(&settled, "three", None), outdated]);
        assert_eq!(next, "install-pilot-1 to ex-demo-a-1");
    }

    #[test]
    fn an_image_that_came_late_over_the_wanted_one_is_replaced() {
        let late = [("1", done("one", DAY)), ("3", done("three", 5)), ("2", done("two", 600))];
        assert_eq!(next(&[(&late, "three", None)]), "install-pilot-3 to ex-demo-a-0");
    }

    #[test]
    fn a_pod_is_never_filled_with_installers() {
        // Every later installer ended before the first one, as by a clock that runs backwards.
        let mut installed = vec![("1", done("one", DAY))];
        installed.extend((1..MOST).map(|number| ("2", done("two", DAY + i64::from(number)))));
        assert_eq!(next(&[(&installed, "one", None)]), "install-pilot-20 to ex-demo-a-0");
        installed.push(("2", done("two", 2 * DAY)));
        assert_eq!(next(&[(&installed, "one", None)]), "PilotInstallFailed");
        // An installer that is under way is not repeated either, wherever it stands.
        for (state, wanted) in [(pending(), "wait"), (unpulled(), "ImagePullFailed")] {
            let begun = [("1", done("one", DAY)), ("2", state), ("3", unpulled())];
            assert_eq!(next(&[(&begun, "one", None)]), wanted);
        }
    }

    #[test]
    fn nothing_is_delivered_where_it_shall_wait_for_a_restart_or_while_a_node_does_not_serve() {
        let old = ("1", done("one", DAY));
        let row: Row<'_> = (slice::from_ref(&old), "one", None);
        let (mut desired, mut observed) = cluster(&[row, row]);
        let step = PlannedStep::Deliver {
            pilot: "ex-demo-a-1".into(),
            pod: "pod-1".into(),
            container: "install-pilot-1".into(),
            image: "navigator:2".into(),
        };
        assert_eq!(crate::controller::plan::plan_next_step(&desired, &observed).step, Some(step));
        desired.strategy.deliver_pilots = false;
        assert_eq!(pilot_rollout(&desired, &observed).next, Some(RolloutState::AtRestart));
        assert_eq!(crate::controller::plan::plan_next_step(&desired, &observed), Plan::default());
        desired.strategy.deliver_pilots = true;
        let pod = observed.pools[0].members.get_mut(&0).unwrap().pod.as_mut().unwrap();
        pod.ready = false;
        let plan = crate::controller::plan::plan_next_step(&desired, &observed);
        assert_eq!((plan.step, plan.waiting.unwrap().step), (None, "WaitHealthy"));
    }
}
