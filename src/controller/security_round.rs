//! Where the nodes of a cluster go next, on their way to the encryption and logins that its spec wants.
//!
//! Rungs are counted by what nodes run and may come back on, so they are found anew at each look, and
//! a controller that ends in the middle, or an edit at any moment, needs no memory of what was begun.

use super::{
    desired_state::{DesiredCluster, SecurityRound},
    observe::{Member, ObservedCluster, ObservedPool, PilotFacts},
};
use crate::{
    api::{
        predicate::{
            CLIENTS_ENCRYPTED, CLIENTS_PLAIN, CLIENTS_SEND_LOGINS, KEEPS_SERVING, ROLES_REPLICATED,
        },
        v1beta1::{
            Authentication, ClientConnections, ClientTls, InternodeTls, PilotIntent, PilotSecurity,
            SecurityRungs,
        },
    },
    engine::ladder::{
        ClientRung, InternodeRung, LadderMember, LoginRung, SecurityPosture, StepNeed, next_stage,
        switch::{MemberRun, SwitchMember, SwitchPosition, SwitchStep, next_switch_step},
    },
};

/// Returns where the nodes go next.
pub(crate) fn next_security_round(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> SecurityRound {
    let desired_modes = desired.desired_modes();
    let members: Vec<_> = cluster_members(observed).collect();
    let Some(goal) = engine_modes(&desired_modes) else {
        return SecurityRound::without_transition(desired_modes);
    };
    let ladder_members: Option<Vec<_>> =
        members.iter().map(|(_, member)| ladder_member(member, goal)).collect();
    // Words of a later release, whose controller knows the way: all stay where the first is.
    let Some(ladder_members) = ladder_members else {
        let security =
            members.iter().find_map(|(_, member)| member.pilot.as_ref()?.spec.security.as_ref());
        return SecurityRound::without_transition(
            security.map(PilotSecurity::security_modes).unwrap_or_default(),
        );
    };
    let highest =
        ladder_members.iter().flat_map(|member| [member.runs, member.told]).fold(goal, |a, b| {
            SecurityPosture {
                internode: a.internode.max(b.internode),
                client: a.client.max(b.client),
                login: a.login.max(b.login),
            }
        });
    let in_force = api_modes(highest);
    if desired.database.switches_at_once {
        return SecurityRound {
            in_force,
            ..full_restart_round(desired, &members, &ladder_members, goal)
        };
    }
    let unmet_reason = |need: StepNeed| find_blocker(desired, &members, need);
    let round = next_stage(&ladder_members, by_way_of(goal, &ladder_members), |need| {
        unmet_reason(need).is_none()
    });
    SecurityRound {
        rungs: api_modes(round.posture),
        in_force,
        held: round.unmet.into_iter().filter_map(unmet_reason).collect(),
        ..SecurityRound::default()
    }
}

/// Returns where nodes go, so that each gets the users before it asks for them: a node that is open in
/// every way is told of none, so without TLS they come by a port for clients that takes both.
fn by_way_of(goal: SecurityPosture, ladder_members: &[LadderMember]) -> SecurityPosture {
    let open_modes = SecurityPosture { login: LoginRung::Password, ..SecurityPosture::default() };
    let requires_password = |on: &SecurityPosture| on.login == LoginRung::Password;
    if goal == open_modes
        && !ladder_members
            .iter()
            .all(|member| requires_password(&member.runs) && requires_password(&member.told))
    {
        return SecurityPosture { client: ClientRung::Optional, ..goal };
    }
    goal
}

/// Returns the nodes that are of the database cluster, or will be: those that left it, or whose data
/// were given up, are none.
fn cluster_members(observed: &ObservedCluster) -> impl Iterator<Item = (&ObservedPool, &Member)> {
    let of_pool = |pool: &'_ ObservedPool| pool.replicas().max(pool.returning_replicas());
    let all_nodes = observed.pools.iter().flat_map(move |pool| {
        let nodes = pool.members.iter();
        nodes.map(move |(ordinal, member)| (pool, *ordinal < of_pool(pool), member))
    });
    all_nodes.filter_map(|(pool, is_kept, member)| {
        let is_counted = (is_kept && member.pilot.is_some()) || member.pod.is_some();
        (is_counted && !member.is_decommissioned() && !member.is_data_discarded())
            .then_some((pool, member))
    })
}

/// Says how a node stands; `None` where it is told words that this release does not know.
fn ladder_member(member: &Member, goal: SecurityPosture) -> Option<LadderMember> {
    let open_modes = SecurityPosture::default();
    // A node that no pilot has told of yet: a pod that mounts no users was not made for logins.
    let mounts_users = member.pod.as_ref().is_none_or(|pod| pod.mounts_users);
    let Some(pilot) = &member.pilot else {
        return Some(LadderMember::from_modes(if mounts_users { goal } else { open_modes }));
    };
    let security = pilot.spec.security.as_ref();
    let stored = security.map(PilotSecurity::revision);
    let spec_modes =
        security.map_or(Some(open_modes), |security| engine_modes(&security.security_modes()))?;
    let status = pilot.security.as_ref();
    let running_modes = match status.and_then(|status| status.rungs.as_ref()) {
        Some(rungs) => engine_modes(rungs)?,
        // A pilot of a release that reports no rungs runs what it is told and stores.
        None if status.is_some_and(|status| status.stored.is_some()) => spec_modes,
        None if pilot.instance.is_some() || !mounts_users => open_modes,
        None => spec_modes,
    };
    let has_reported = stored == status.and_then(|status| status.stored.clone());
    Some(LadderMember { runs: running_modes, told: spec_modes, heard: has_reported })
}

/// Returns rungs as the ladder counts them; `None` for words that this release does not know.
pub(crate) fn engine_modes(rungs: &SecurityRungs) -> Option<SecurityPosture> {
    Some(SecurityPosture {
        internode: match rungs.internode {
            InternodeTls::Off => InternodeRung::Off,
            InternodeTls::Allow => InternodeRung::Allow,
            InternodeTls::Prefer => InternodeRung::Prefer,
            InternodeTls::Required => InternodeRung::Required,
            InternodeTls::Other(_) => return None,
        },
        client: match rungs.client {
            ClientTls::Off => ClientRung::Off,
            ClientTls::Optional => ClientRung::Optional,
            ClientTls::Required => ClientRung::Required,
            ClientTls::Other(_) => return None,
        },
        login: match rungs.authentication {
            Authentication::Off => LoginRung::Off,
            Authentication::Password => LoginRung::Password,
            Authentication::Other(_) => return None,
        },
    })
}

/// Returns a place on the ladders in words.
pub(crate) fn api_modes(posture: SecurityPosture) -> SecurityRungs {
    SecurityRungs {
        internode: match posture.internode {
            InternodeRung::Off => InternodeTls::Off,
            InternodeRung::Allow => InternodeTls::Allow,
            InternodeRung::Prefer => InternodeTls::Prefer,
            InternodeRung::Required => InternodeTls::Required,
        },
        client: match posture.client {
            ClientRung::Off => ClientTls::Off,
            ClientRung::Optional => ClientTls::Optional,
            ClientRung::Required => ClientTls::Required,
        },
        authentication: match posture.login {
            LoginRung::Off => Authentication::Off,
            LoginRung::Password => Authentication::Password,
        },
    }
}

/// The round of a database whose nodes change between-nodes TLS and logins all at once; TLS for
/// clients alone changes node by node, and clients meet both meanwhile.
fn full_restart_round(
    desired: &DesiredCluster,
    members: &[(&ObservedPool, &Member)],
    ladder_members: &[LadderMember],
    goal: SecurityPosture,
) -> SecurityRound {
    let position = |posture: SecurityPosture| match posture.internode {
        InternodeRung::Off => SwitchPosition::Off,
        _ => SwitchPosition::Required,
    };
    let is_stopped =
        |(pool, member): &(&ObservedPool, &Member)| pool.replicas() == 0 && member.pod.is_none();
    let nodes: Vec<_> = members
        .iter()
        .zip(ladder_members)
        .map(|(member, ladder_node)| SwitchMember {
            run: if is_stopped(member) {
                MemberRun::Stopped
            } else {
                MemberRun::Running(position(ladder_node.runs))
            },
            may_run: !is_stopped(member) && member.1.intent() != PilotIntent::Stopped,
            told: position(ladder_node.told),
        })
        .collect();
    let step = next_switch_step(&nodes, position(goal));
    let changing_member =
        ladder_members.iter().find(|member| position(member.told) != position(goal));
    let Some(changing_member) = changing_member else {
        return SecurityRound::without_transition(api_modes(goal));
    };
    let is_waiting = waits_for_all(desired, members);
    if matches!(step, SwitchStep::Tell(_)) && !is_waiting {
        return SecurityRound {
            all_stopped: true,
            ..SecurityRound::without_transition(api_modes(goal))
        };
    }
    let is_skipped = desired.stopped || desired.strategy.is_skipped_by_name(KEEPS_SERVING.name);
    let blocker = (!is_skipped).then(|| {
        let direction = if position(goal) == SwitchPosition::Off { "off" } else { "on" };
        let message = format!(
            "to turn TLS between nodes and logins {direction}, all nodes stop and start together: nothing is \
             served for some minutes, and clients have to connect in the other way afterwards"
        );
        (KEEPS_SERVING.name, message)
    });
    SecurityRound {
        rungs: api_modes(changing_member.told),
        stops_all: blocker.is_none() && !is_waiting,
        held: blocker.into_iter().collect(),
        ..SecurityRound::default()
    }
}

/// Is there something that has to end before all nodes stop together? They come back on the newest spec,
/// all of them: so not while another version or a canary is tried on some, and not with the nodes of a
/// pool that is to leave.
fn waits_for_all(desired: &DesiredCluster, members: &[(&ObservedPool, &Member)]) -> bool {
    let strategy = &desired.strategy;
    members.iter().any(|(pool, member)| {
        let Some(pilot) = &member.pilot else { return false };
        let version = pilot.spec.version.as_ref();
        let upgrades = version.is_some_and(|version| *version != desired.version);
        desired.pool(&pool.name).is_none()
            || (upgrades && !strategy.on_delete)
            || (strategy.canary.is_some() && pilot.pinned.is_some())
    })
}

/// Says why a need does not hold: the name of its predicate, and a sentence.
fn find_blocker(
    desired: &DesiredCluster,
    members: &[(&ObservedPool, &Member)],
    need: StepNeed,
) -> Option<(&'static str, String)> {
    let predicate = match need {
        StepNeed::RolesReplicated => &ROLES_REPLICATED,
        StepNeed::ClientsSendLogins => &CLIENTS_SEND_LOGINS,
        StepNeed::ClientsEncrypted => &CLIENTS_ENCRYPTED,
        StepNeed::ClientsPlain => &CLIENTS_PLAIN,
    };
    if predicate.is_skippable() && desired.strategy.is_skipped_by_name(predicate.name) {
        return None;
    }
    let pilots = members.iter().map(|(_, member)| (member.name.as_str(), member.pilot.as_ref()));
    let message = match need {
        StepNeed::RolesReplicated => first_problem(pilots, |pilot| {
            let spec_users =
                pilot.spec.security.as_ref().and_then(|security| security.users.as_ref());
            let status_users = pilot.security.as_ref().and_then(|status| status.users.as_ref());
            let detail = pilot.users.as_ref().map(|(_, message)| format!(": {message}"));
            (spec_users.is_none() || spec_users != status_users).then(|| {
                format!("its ring has not got all users yet{}", detail.unwrap_or_default())
            })
        }),
        // They do already: nodes ask for logins that people made.
        StepNeed::ClientsSendLogins if desired.asks_by_itself() => None,
        StepNeed::ClientsSendLogins => Some(
            "next, nodes ask for a user and a password; whether clients send them cannot be seen \
             before, since a node that does not ask takes both"
                .to_owned(),
        ),
        StepNeed::ClientsEncrypted => first_problem(pilots, |pilot| {
            check_connections(pilot, |clients| {
                let from = clients.plain_from.join(", ");
                let message = format!("{} connections without TLS, from {from}", clients.plain);
                (clients.plain > 0).then_some(message)
            })
        }),
        StepNeed::ClientsPlain => first_problem(pilots, |pilot| {
            check_connections(pilot, |clients| {
                (clients.tls > 0).then(|| format!("{} connections with TLS", clients.tls))
            })
        }),
    };
    Some((predicate.name, message?))
}

/// Returns what is wrong with the first node of which `find_problem` says something.
fn first_problem<'a>(
    mut pilots: impl Iterator<Item = (&'a str, Option<&'a PilotFacts>)>,
    find_problem: impl Fn(&PilotFacts) -> Option<String>,
) -> Option<String> {
    pilots.find_map(|(name, pilot)| {
        let problem = match pilot {
            Some(pilot) => find_problem(pilot)?,
            None => "it has no Pilot yet".to_owned(),
        };
        Some(format!("{name}: {problem}"))
    })
}

/// Says what is wrong with the clients of a node, of which a fresh report is wanted.
fn check_connections(
    pilot: &PilotFacts,
    find_problem: impl Fn(&ClientConnections) -> Option<String>,
) -> Option<String> {
    let unknown_connections =
        || Some("its pilot does not say how clients are connected".to_owned());
    if pilot.hearing.is_over() {
        return unknown_connections();
    }
    match pilot.security.as_ref().and_then(|status| status.clients.as_ref()) {
        Some(clients) => find_problem(clients),
        None => unknown_connections(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1beta1::{ClientSecurity, ClusterSecurity, PilotSecurityStatus, SecurityMode},
        controller::{
            ManagedDatabase,
            testing::{example, sample},
        },
    };

    fn secure() -> SecurityRungs {
        ClusterSecurity { mode: Some(SecurityMode::Secure), ..ClusterSecurity::default() }
            .desired_modes()
    }

    /// A cluster of three nodes on these rungs, of a database that switches, which is wanted so.
    fn cluster(on: &SecurityRungs, mode: SecurityMode) -> (DesiredCluster, ObservedCluster) {
        let mut desired = sample::desired(&[("a", 3)], "x");
        desired.database = &example::SWITCHING;
        desired.security = Some(ClusterSecurity { mode: Some(mode), ..ClusterSecurity::default() });
        let mut observed = sample::observed(&[("a", 3)], "x");
        for member in observed.pools[0].members.values_mut() {
            tell(member, on);
            run(member, on);
        }
        (desired, observed)
    }

    fn tell(member: &mut Member, rungs: &SecurityRungs) {
        member.pilot.as_mut().unwrap().spec.security = PilotSecurity::from_modes(rungs);
    }

    fn run(member: &mut Member, rungs: &SecurityRungs) {
        let pilot = member.pilot.as_mut().unwrap();
        pilot.instance = Some("pod".to_owned());
        let rungs = Some(rungs.clone()).filter(|rungs| !rungs.is_open());
        pilot.security = Some(PilotSecurityStatus { rungs, ..PilotSecurityStatus::default() });
    }

    fn stop(observed: &mut ObservedCluster, ordinals: &[u32]) {
        for ordinal in ordinals {
            observed.pools[0].members.get_mut(ordinal).unwrap().pod = None;
        }
    }

    fn empty(observed: &mut ObservedCluster) {
        observed.pools[0].set.as_mut().unwrap().replicas = 0;
    }

    fn skip(desired: &mut DesiredCluster) {
        desired.strategy.skip_predicates.insert(KEEPS_SERVING.name.to_owned());
    }

    #[test]
    fn a_switch_waits_for_a_word_stops_all_and_tells_none_before_all_are_stopped() {
        let open = SecurityRungs::default();
        let (mut desired, mut observed) = cluster(&open, SecurityMode::Secure);
        let round = next_security_round(&desired, &observed);
        assert_eq!((&round.rungs, round.stops_all), (&open, false));
        assert_eq!(round.held[0].0, "KeepsServing");
        assert!(round.held[0].1.contains("turn TLS between nodes and logins on"), "{round:?}");
        assert_eq!(round.in_force, secure(), "what it needs is made before");

        skip(&mut desired);
        let stopping = next_security_round(&desired, &observed);
        assert_eq!((&stopping.rungs, stopping.stops_all), (&open, true));
        assert_eq!(stopping.held, []);
        stop(&mut observed, &[0, 1, 2]);
        assert_eq!(next_security_round(&desired, &observed).rungs, open, "pods may be made yet");
        empty(&mut observed);
        let told = next_security_round(&desired, &observed);
        assert_eq!((&told.rungs, told.stops_all), (&secure(), false));

        // Where one pod has not ended, nobody is told.
        let (_, whole) = cluster(&open, SecurityMode::Secure);
        let mut last = whole;
        stop(&mut last, &[0, 1]);
        empty(&mut last);
        let round = next_security_round(&desired, &last);
        assert_eq!((&round.rungs, round.stops_all), (&open, true));
    }

    #[test]
    fn a_switch_that_is_taken_back_is_one_more() {
        let (mut desired, mut observed) = cluster(&secure(), SecurityMode::Open);
        skip(&mut desired);
        assert!(next_security_round(&desired, &observed).stops_all);
        stop(&mut observed, &[0, 1, 2]);
        empty(&mut observed);
        // One was told, then the word was changed again: nobody runs, so all may be told.
        tell(observed.pools[0].members.get_mut(&0).unwrap(), &SecurityRungs::default());
        assert_eq!(next_security_round(&desired, &observed).rungs, SecurityRungs::default());
        desired.security.as_mut().unwrap().mode = Some(SecurityMode::Secure);
        let round = next_security_round(&desired, &observed);
        assert_eq!((&round.rungs, round.stops_all), (&secure(), false));
        // All are told and none runs yet: they start.
        for member in observed.pools[0].members.values_mut() {
            tell(member, &secure());
        }
        let round = next_security_round(&desired, &observed);
        assert_eq!((&round.rungs, round.stops_all), (&secure(), false));
    }

    #[test]
    fn a_stopped_cluster_switches_without_a_word_and_tls_for_clients_alone_stops_nobody() {
        let open = SecurityRungs::default();
        let (mut desired, observed) = cluster(&open, SecurityMode::Secure);
        desired.stopped = true;
        assert_eq!(next_security_round(&desired, &observed).held, []);
        let (mut desired, observed) = cluster(&secure(), SecurityMode::Secure);
        let tls = Some(ClientTls::Off);
        let client = Some(ClientSecurity { tls, ..ClientSecurity::default() });
        desired.security.as_mut().unwrap().client = client;
        let round = next_security_round(&desired, &observed);
        let wanted = SecurityRungs { client: ClientTls::Off, ..secure() };
        assert_eq!((round.rungs, round.stops_all), (wanted, false));
    }

    #[test]
    fn a_node_of_which_nobody_has_told_counts_by_its_pod() {
        let (mut desired, mut observed) = cluster(&SecurityRungs::default(), SecurityMode::Secure);
        desired.database = &example::DATABASE;
        for member in observed.pools[0].members.values_mut() {
            member.pilot = None;
        }
        let found = next_security_round(&desired, &observed).rungs;
        assert_eq!(
            found.internode,
            InternodeTls::Allow,
            "the pods of an open cluster that lost its store"
        );
        for member in observed.pools[0].members.values_mut() {
            member.pod.as_mut().unwrap().mounts_users = true;
        }
        assert_eq!(next_security_round(&desired, &observed).rungs, secure());
    }

    #[test]
    fn passwords_without_tls_come_by_a_port_for_clients_that_takes_both() {
        let (mut desired, mut observed) = cluster(&SecurityRungs::default(), SecurityMode::Open);
        desired.database = &example::DATABASE;
        let asks = Some(Authentication::Password);
        desired.security =
            Some(ClusterSecurity { authentication: asks, ..ClusterSecurity::default() });
        let both = SecurityRungs { client: ClientTls::Optional, ..SecurityRungs::default() };
        let asking = SecurityRungs { authentication: Authentication::Password, ..both.clone() };
        let all = |observed: &mut ObservedCluster, on: &SecurityRungs, users: Option<&str>| {
            for member in observed.pools[0].members.values_mut() {
                tell(member, on);
                run(member, on);
                let pilot = member.pilot.as_mut().unwrap();
                let told = pilot.spec.security.as_mut().unwrap();
                told.users = users.map(str::to_owned);
                let shown = pilot.security.as_mut().unwrap();
                (shown.users, shown.stored) = (told.users.clone(), Some(told.revision()));
            }
        };
        assert_eq!(next_security_round(&desired, &observed).rungs, both);
        all(&mut observed, &both, None);
        let round = next_security_round(&desired, &observed);
        assert_eq!((&round.rungs, round.held[0].0), (&both, ROLES_REPLICATED.name));
        all(&mut observed, &both, Some("1a2b"));
        assert_eq!(next_security_round(&desired, &observed).held[0].0, CLIENTS_SEND_LOGINS.name);
        // Where people's own logins are asked for, clients have some.
        static ASKING: ManagedDatabase = ManagedDatabase {
            secured: |_| ("False", "NotEncrypted", "it has logins of its own"),
            ..example::EXAMPLE
        };
        desired.database = &ASKING;
        assert_eq!(next_security_round(&desired, &observed).rungs, asking);
        all(&mut observed, &asking, Some("1a2b"));
        let round = next_security_round(&desired, &observed);
        assert_eq!((&round.rungs, round.held[0].0), (&asking, CLIENTS_PLAIN.name));
        let none = Some(ClientConnections::default());
        for member in observed.pools[0].members.values_mut() {
            member.pilot.as_mut().unwrap().security.as_mut().unwrap().clients = none.clone();
        }
        let wanted = SecurityRungs { client: ClientTls::Off, ..asking };
        assert_eq!(next_security_round(&desired, &observed).rungs, wanted);
    }

    #[test]
    fn words_of_a_later_release_are_left_to_it() {
        let (mut desired, mut observed) = cluster(&secure(), SecurityMode::Open);
        desired.database = &example::DATABASE;
        let later = SecurityRungs { internode: "Mutual".to_owned().into(), ..secure() };
        tell(observed.pools[0].members.get_mut(&0).unwrap(), &later);
        assert_eq!(next_security_round(&desired, &observed).rungs, later);
    }
}
