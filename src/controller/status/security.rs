//! What a cluster's status says of encryption and logins.
//!
//! A node counts by what its own port showed in a handshake, never by what was signed for it.

use super::{
    ConditionInputs,
    condition_state::{ConditionState, finding},
    existing,
};
use crate::{
    api::v1beta1::{
        Authentication, CertificateExpiry, ClientTls, ClusterSecurityStatus, InternodeTls,
        SecretName, SecurityRungs, UserStatus,
    },
    controller::{
        desired_state::DesiredCluster,
        observe::{Member, ObservedCluster, PilotFacts, condition},
        security_findings::DeclaredLogin,
        security_round::{posture, rungs},
    },
    engine::ladder::SecurityPosture,
};

/// What may be encrypted and asked for on any node.
fn in_force(desired: &DesiredCluster) -> Option<SecurityRungs> {
    desired.security.as_ref().map(|_| desired.round.in_force.clone())
}

fn members(observed: &ObservedCluster) -> impl Iterator<Item = &Member> {
    observed.pools.iter().flat_map(existing)
}

/// The condition Secured of a cluster that is not open.
pub(super) fn secured(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let ConditionInputs { desired, observed, .. } = facts;
    desired.security.as_ref()?;
    let wanted = desired.wanted_rungs();
    if let Some((predicate, why)) = desired.round.held.first() {
        return Some(finding("False", "SecurityInProgress", format!("{predicate}: {why}")));
    }
    let behind = members(observed).find_map(|member| {
        let why = member
            .pilot
            .as_ref()
            .map_or(Some("its pilot has not reported".to_owned()), |pilot| lacks(pilot, &wanted))?;
        Some(format!("{}: {why}", member.name))
    });
    if let Some(behind) = behind {
        return Some(finding("False", "SecurityInProgress", behind));
    }
    let mut holds = Vec::new();
    if wanted.encrypts() {
        holds.push(format!(
            "TLS between nodes is {}, TLS for clients is {}",
            wanted.internode, wanted.client
        ));
    }
    if wanted.authentication == Authentication::Password {
        let secret = admin_secret(desired);
        holds.push(format!("clients log in; the administrator's password is in Secret {secret}"));
    }
    let holds = holds.join("; ");
    let open = open_side(desired, &wanted);
    Some(match open {
        Some((reason, why)) => finding("False", reason, format!("{holds}; {why}")),
        None => finding("True", "Secured", holds),
    })
}

/// What a cluster leaves open that is on the rungs that are wanted.
fn open_side(
    desired: &DesiredCluster,
    wanted: &SecurityRungs,
) -> Option<(&'static str, &'static str)> {
    let asks = wanted.authentication == Authentication::Password;
    // A database may have logins of its own.
    if !asks && !desired.asks_by_itself() {
        let why = "nobody is asked who he is: every client that speaks TLS may read, change and \
                   delete all data";
        return Some(("SecurityDisabled", why));
    }
    if wanted.client == ClientTls::Optional {
        return Some(("PlainClientsServed", "clients without TLS are served, too"));
    }
    if wanted.client == ClientTls::Off || wanted.internode != InternodeTls::Required {
        let why = "what travels without TLS can be read and changed by whoever is on the network";
        return Some(("NotEncrypted", why));
    }
    None
}

/// What a node does not show yet of what is wanted.
fn lacks(pilot: &PilotFacts, wanted: &SecurityRungs) -> Option<String> {
    let shown = pilot.security.as_ref();
    let runs = shown.and_then(|shown| shown.rungs.clone()).unwrap_or_default();
    if runs != *wanted {
        let SecurityRungs { internode, client, authentication } = runs;
        return Some(format!(
            "it runs with TLS between nodes {internode}, TLS for clients {client}, logins {authentication}"
        ));
    }
    let internode = shown.is_some_and(|shown| shown.internode.is_some());
    let client = shown.is_some_and(|shown| shown.client.is_some());
    let users = shown.is_some_and(|shown| shown.users.is_some());
    let why = if wanted.internode != InternodeTls::Off && !internode {
        "its port for other nodes has shown no certificate"
    } else if wanted.client != ClientTls::Off && !client {
        "its port for clients has shown no certificate"
    } else if wanted.authentication == Authentication::Password && !users {
        "its database has no users yet"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// The condition CertificatesValid, where anything is encrypted.
pub(super) fn certificates_valid(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let ConditionInputs { desired, observed, .. } = facts;
    in_force(desired).filter(SecurityRungs::encrypts)?;
    if let Some(problem) = observed.security.certificates.first() {
        return Some(finding("False", problem.reason, problem.message.clone()));
    }
    let told = members(observed).find_map(|member| {
        let (reason, message) = member.pilot.as_ref()?.certificates.clone()?;
        Some(finding("False", reason, format!("{}: {message}", member.name)))
    });
    let former_keys = &observed.security.former_keys;
    let keys = (!former_keys.is_empty()).then(|| {
        format!(
            "nodes replace their private keys: waits for {}; a pilot of an earlier release does it \
             once its pod was replaced",
            former_keys.join(", ")
        )
    });
    let succession = observed.security.succession.clone();
    let reason = if succession.is_some() { "AuthorityRotating" } else { "KeysRenewing" };
    let changes: Vec<_> = succession.into_iter().chain(keys).collect();
    if !changes.is_empty() && told.is_none() {
        return Some(finding("True", reason, changes.join("; ")));
    }
    Some(told.unwrap_or_else(|| match next_expiry(observed) {
        Some(CertificateExpiry { pilot, not_after: Some(end) }) => {
            let lacks = observed.security.lacks.as_ref().map(|name| {
                format!("; what is given for clients does not cover {name}, which the Secrets of users name")
            });
            let lacks = lacks.unwrap_or_default();
            let message = format!(
                "the first to end is that of {pilot}, at {}: if it is not renewed by then, other \
                 nodes and clients refuse it{lacks}",
                end.0
            );
            finding("True", "CertificatesCurrent", message)
        }
        _ => finding("Unknown", "CertificatesPending", "no node has shown a certificate yet"),
    }))
}

/// What a condition about Secrets says where they were not looked at: what was wrong with them still is.
pub(super) fn as_looked(
    facts: &ConditionInputs<'_>,
    type_: &str,
    found: ConditionState,
) -> ConditionState {
    if facts.observed.security.looked || found.status != "True" {
        return found;
    }
    let former = condition(&facts.desired.status.conditions, type_);
    match former.filter(|former| former.status == "False") {
        Some(former) => finding("False", former.reason.clone(), former.message.clone()),
        None => found,
    }
}

/// The condition UsersReady, where clients log in.
pub(super) fn users_ready(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let ConditionInputs { desired, observed, .. } = facts;
    in_force(desired).filter(|rungs| rungs.authentication == Authentication::Password)?;
    if let Some(problem) = observed.security.users.first() {
        return Some(finding("False", problem.reason, problem.message.clone()));
    }
    let behind = members(observed).find_map(|member| {
        let pilot = member.pilot.as_ref()?;
        if let Some((reason, message)) = pilot.users.clone() {
            return Some(finding("False", reason, format!("{}: {message}", member.name)));
        }
        let has = pilot.security.as_ref().and_then(|shown| shown.users.as_ref());
        let told = pilot.spec.security.as_ref().and_then(|told| told.users.as_ref());
        // What the controller found in this pass is told to the node at its end.
        let wanted = observed.security.revision.as_ref().or(told);
        (has.is_none() || has != wanted).then(|| {
            finding("False", "UsersPending", format!("{} has older users, or none", member.name))
        })
    });
    Some(behind.unwrap_or_else(|| finding("True", "UsersCurrent", "each node has all users")))
}

fn admin_secret(desired: &DesiredCluster) -> String {
    let given = desired.security.as_ref().and_then(|security| security.admin_secret.as_ref());
    given.map_or_else(
        || desired.database.names.admin_secret(&desired.name),
        |secret| secret.name.clone(),
    )
}

/// The certificate that ends first, of those that ports showed.
fn next_expiry(observed: &ObservedCluster) -> Option<CertificateExpiry> {
    let shown = members(observed).flat_map(|member| {
        let shown = member.pilot.as_ref().and_then(|pilot| pilot.security.as_ref());
        let both = shown.map(|shown| [&shown.internode, &shown.client]);
        both.into_iter().flatten().flatten().map(|one| (member.name.clone(), one.not_after.clone()))
    });
    let (pilot, not_after) = shown.min_by_key(|(_, end)| end.as_ref().map(|end| end.0))?;
    Some(CertificateExpiry { pilot, not_after })
}

pub(super) fn status(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Option<ClusterSecurityStatus> {
    let in_force = in_force(desired)?;
    let asks = in_force.authentication == Authentication::Password;
    let former = desired.status.security.as_ref().filter(|_| !observed.security.looked);
    let authorities = former.map(|former| former.certificate_authorities.clone());
    let as_before = former.map(|former| former.users.clone());
    Some(ClusterSecurityStatus {
        rungs: lowest(observed),
        admin_secret: asks.then(|| admin_secret(desired)),
        ca_config_map: in_force.encrypts().then(|| desired.database.names.ca_bundle(&desired.name)),
        next_expiry: next_expiry(observed),
        certificate_authorities: authorities
            .unwrap_or_else(|| observed.security.authorities.clone()),
        users: as_before.unwrap_or_else(|| users(observed)),
    })
}

/// The lowest that any node runs. A node of which nobody has heard yet is left out.
fn lowest(observed: &ObservedCluster) -> Option<SecurityRungs> {
    let runs = members(observed).filter_map(|member| {
        let pilot = member.pilot.as_ref().filter(|pilot| pilot.instance.is_some())?;
        let shown = pilot.security.as_ref().and_then(|shown| shown.rungs.clone());
        posture(&shown.unwrap_or_default())
    });
    let lowest = runs.reduce(|a, b| SecurityPosture {
        internode: a.internode.min(b.internode),
        client: a.client.min(b.client),
        login: a.login.min(b.login),
    });
    lowest.map(rungs)
}

/// The users that there are to be, and whether all nodes that serve have them.
fn users(observed: &ObservedCluster) -> Vec<UserStatus> {
    let revision = observed.security.revision.as_ref();
    let has = |member: &Member| {
        let pilot = member.pilot.as_ref();
        pilot.and_then(|pilot| pilot.security.as_ref()?.users.as_ref()) == revision
    };
    let applied = revision.is_some() && members(observed).all(has);
    let user = |login: &DeclaredLogin| {
        let DeclaredLogin { name, secret, problem } = login;
        let state = match problem {
            Some(_) => "Failed",
            None if applied => "Applied",
            None => "Pending",
        };
        let message = problem.clone();
        UserStatus { name: name.clone(), secret: secret.clone(), state: state.to_owned(), message }
    };
    observed.security.declared.iter().map(user).collect()
}

/// The Secret by which an application connects: that of the first user, or of the administrator.
pub(super) fn binding(desired: &DesiredCluster) -> Option<SecretName> {
    in_force(desired).filter(|rungs| rungs.authentication == Authentication::Password)?;
    let users = desired.security.as_ref().map(|security| &security.users);
    let first = users.and_then(|users| users.first());
    let name = first.map_or_else(
        || admin_secret(desired),
        |user| match &user.password_secret {
            Some(given) => given.name.clone(),
            None => desired.database.names.user_secret(&desired.name, &user.name),
        },
    );
    Some(SecretName { name })
}
