//! What a cluster's status says of encryption and logins.
//!
//! A node counts by what its own port showed in a handshake, never by what was signed for it.

use super::{
    ConditionInputs,
    condition_state::{ConditionState, finding},
    existing_nodes,
};
use crate::{
    api::v1beta1::{
        Authentication, CertificateExpiry, ClientTls, ClusterSecurityStatus, InternodeTls,
        SecretName, SecurityRungs, UserStatus,
    },
    controller::{
        desired_state::DesiredCluster,
        observe::{Member, ObservedCluster, PilotFacts, find_condition},
        security_findings::DeclaredLogin,
        security_round::{api_modes, engine_modes},
    },
    engine::ladder::SecurityPosture,
};

/// What may be encrypted and asked for on any node.
fn in_force(desired: &DesiredCluster) -> Option<SecurityRungs> {
    desired.security.as_ref().map(|_| desired.round.in_force.clone())
}

fn cluster_nodes(observed: &ObservedCluster) -> impl Iterator<Item = &Member> {
    observed.pools.iter().flat_map(existing_nodes)
}

/// The condition Secured of a cluster that is not open.
pub(super) fn secured_state(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let ConditionInputs { desired, observed, .. } = facts;
    desired.security.as_ref()?;
    let desired_modes = desired.desired_modes();
    if let Some((predicate, message)) = desired.round.held.first() {
        return Some(finding("False", "SecurityInProgress", format!("{predicate}: {message}")));
    }
    let lagging_node = cluster_nodes(observed).find_map(|member| {
        let problem = member
            .pilot
            .as_ref()
            .map_or(Some("its pilot has not reported".to_owned()), |pilot| {
                find_missing_mode(pilot, &desired_modes)
            })?;
        Some(format!("{}: {problem}", member.name))
    });
    if let Some(lagging_node) = lagging_node {
        return Some(finding("False", "SecurityInProgress", lagging_node));
    }
    let mut descriptions = Vec::new();
    if desired_modes.has_encryption() {
        descriptions.push(format!(
            "TLS between nodes is {}, TLS for clients is {}",
            desired_modes.internode, desired_modes.client
        ));
    }
    if desired_modes.authentication == Authentication::Password {
        let secret = admin_secret(desired);
        descriptions
            .push(format!("clients log in; the administrator's password is in Secret {secret}"));
    }
    let description = descriptions.join("; ");
    let weakness = open_side(desired, &desired_modes);
    Some(match weakness {
        Some((reason, warning)) => finding("False", reason, format!("{description}; {warning}")),
        None => finding("True", "Secured", description),
    })
}

/// What a cluster leaves open that is on the rungs that are wanted.
fn open_side(
    desired: &DesiredCluster,
    desired_modes: &SecurityRungs,
) -> Option<(&'static str, &'static str)> {
    let requires_password = desired_modes.authentication == Authentication::Password;
    // A database may have logins of its own.
    if !requires_password && !desired.asks_by_itself() {
        let message = "nobody is asked who he is: every client that speaks TLS may read, change and \
                   delete all data";
        return Some(("SecurityDisabled", message));
    }
    if desired_modes.client == ClientTls::Optional {
        return Some(("PlainClientsServed", "clients without TLS are served, too"));
    }
    if desired_modes.client == ClientTls::Off || desired_modes.internode != InternodeTls::Required {
        let message =
            "what travels without TLS can be read and changed by whoever is on the network";
        return Some(("NotEncrypted", message));
    }
    None
}

/// What a node does not show yet of what is wanted.
fn find_missing_mode(pilot: &PilotFacts, desired_modes: &SecurityRungs) -> Option<String> {
    let status = pilot.security.as_ref();
    let running_modes = status.and_then(|status| status.rungs.clone()).unwrap_or_default();
    if running_modes != *desired_modes {
        let SecurityRungs { internode, client, authentication } = running_modes;
        return Some(format!(
            "it runs with TLS between nodes {internode}, TLS for clients {client}, logins {authentication}"
        ));
    }
    let has_node_certificate = status.is_some_and(|status| status.internode.is_some());
    let has_client_certificate = status.is_some_and(|status| status.client.is_some());
    let has_users = status.is_some_and(|status| status.users.is_some());
    let message = if desired_modes.internode != InternodeTls::Off && !has_node_certificate {
        "its port for other nodes has shown no certificate"
    } else if desired_modes.client != ClientTls::Off && !has_client_certificate {
        "its port for clients has shown no certificate"
    } else if desired_modes.authentication == Authentication::Password && !has_users {
        "its database has no users yet"
    } else {
        return None;
    };
    Some(message.to_owned())
}

/// The condition CertificatesValid, where anything is encrypted.
pub(super) fn certificates_valid(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let ConditionInputs { desired, observed, .. } = facts;
    in_force(desired).filter(SecurityRungs::has_encryption)?;
    if let Some(problem) = observed.security.certificates.first() {
        return Some(finding("False", problem.reason, problem.message.clone()));
    }
    let node_problem = cluster_nodes(observed).find_map(|member| {
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
    if !changes.is_empty() && node_problem.is_none() {
        return Some(finding("True", reason, changes.join("; ")));
    }
    Some(node_problem.unwrap_or_else(|| match next_expiry(observed) {
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
    state: ConditionState,
) -> ConditionState {
    if facts.observed.security.looked || state.status != "True" {
        return state;
    }
    let old_condition = find_condition(&facts.desired.status.conditions, type_);
    match old_condition.filter(|old_condition| old_condition.status == "False") {
        Some(old_condition) => {
            finding("False", old_condition.reason.clone(), old_condition.message.clone())
        }
        None => state,
    }
}

/// The condition UsersReady, where clients log in.
pub(super) fn users_ready(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let ConditionInputs { desired, observed, .. } = facts;
    in_force(desired).filter(|rungs| rungs.authentication == Authentication::Password)?;
    if let Some(problem) = observed.security.users.first() {
        return Some(finding("False", problem.reason, problem.message.clone()));
    }
    let lagging_node = cluster_nodes(observed).find_map(|member| {
        let pilot = member.pilot.as_ref()?;
        if let Some((reason, message)) = pilot.users.clone() {
            return Some(finding("False", reason, format!("{}: {message}", member.name)));
        }
        let applied_users = pilot.security.as_ref().and_then(|status| status.users.as_ref());
        let requested_users =
            pilot.spec.security.as_ref().and_then(|security| security.users.as_ref());
        // What the controller found in this pass is told to the node at its end.
        let desired_users = observed.security.revision.as_ref().or(requested_users);
        (applied_users.is_none() || applied_users != desired_users).then(|| {
            finding("False", "UsersPending", format!("{} has older users, or none", member.name))
        })
    });
    Some(lagging_node.unwrap_or_else(|| finding("True", "UsersCurrent", "each node has all users")))
}

fn admin_secret(desired: &DesiredCluster) -> String {
    let secret_ref = desired.security.as_ref().and_then(|security| security.admin_secret.as_ref());
    secret_ref.map_or_else(
        || desired.database.names.admin_secret(&desired.name),
        |secret| secret.name.clone(),
    )
}

/// The certificate that ends first, of those that ports showed.
fn next_expiry(observed: &ObservedCluster) -> Option<CertificateExpiry> {
    let expiries = cluster_nodes(observed).flat_map(|member| {
        let status = member.pilot.as_ref().and_then(|pilot| pilot.security.as_ref());
        let certificates = status.map(|status| [&status.internode, &status.client]);
        certificates
            .into_iter()
            .flatten()
            .flatten()
            .map(|certificate| (member.name.clone(), certificate.not_after.clone()))
    });
    let (pilot, not_after) = expiries.min_by_key(|(_, end)| end.as_ref().map(|end| end.0))?;
    Some(CertificateExpiry { pilot, not_after })
}

pub(super) fn security_status(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Option<ClusterSecurityStatus> {
    let in_force = in_force(desired)?;
    let requires_password = in_force.authentication == Authentication::Password;
    let old_status = desired.status.security.as_ref().filter(|_| !observed.security.looked);
    let authorities = old_status.map(|old_status| old_status.certificate_authorities.clone());
    let old_users = old_status.map(|old_status| old_status.users.clone());
    Some(ClusterSecurityStatus {
        rungs: lowest_modes(observed),
        admin_secret: requires_password.then(|| admin_secret(desired)),
        ca_config_map: in_force
            .has_encryption()
            .then(|| desired.database.names.ca_bundle(&desired.name)),
        next_expiry: next_expiry(observed),
        certificate_authorities: authorities
            .unwrap_or_else(|| observed.security.authorities.clone()),
        users: old_users.unwrap_or_else(|| user_statuses(observed)),
    })
}

/// The lowest that any node runs. A node of which nobody has heard yet is left out.
fn lowest_modes(observed: &ObservedCluster) -> Option<SecurityRungs> {
    let running_modes = cluster_nodes(observed).filter_map(|member| {
        let pilot = member.pilot.as_ref().filter(|pilot| pilot.instance.is_some())?;
        let modes = pilot.security.as_ref().and_then(|status| status.rungs.clone());
        engine_modes(&modes.unwrap_or_default())
    });
    let lowest_modes = running_modes.reduce(|a, b| SecurityPosture {
        internode: a.internode.min(b.internode),
        client: a.client.min(b.client),
        login: a.login.min(b.login),
    });
    lowest_modes.map(api_modes)
}

/// The users that there are to be, and whether all nodes that serve have them.
fn user_statuses(observed: &ObservedCluster) -> Vec<UserStatus> {
    let revision = observed.security.revision.as_ref();
    let has_revision = |member: &Member| {
        let pilot = member.pilot.as_ref();
        pilot.and_then(|pilot| pilot.security.as_ref()?.users.as_ref()) == revision
    };
    let is_applied = revision.is_some() && cluster_nodes(observed).all(has_revision);
    let user_status = |login: &DeclaredLogin| {
        let DeclaredLogin { name, secret, problem } = login;
        let state = match problem {
            Some(_) => "Failed",
            None if is_applied => "Applied",
            None => "Pending",
        };
        let message = problem.clone();
        UserStatus { name: name.clone(), secret: secret.clone(), state: state.to_owned(), message }
    };
    observed.security.declared.iter().map(user_status).collect()
}

/// The Secret by which an application connects: that of the first user, or of the administrator.
pub(super) fn binding_secret(desired: &DesiredCluster) -> Option<SecretName> {
    in_force(desired).filter(|rungs| rungs.authentication == Authentication::Password)?;
    let users = desired.security.as_ref().map(|security| &security.users);
    let first_user = users.and_then(|users| users.first());
    let name = first_user.map_or_else(
        || admin_secret(desired),
        |user| match &user.password_secret {
            Some(secret) => secret.name.clone(),
            None => desired.database.names.user_secret(&desired.name, &user.name),
        },
    );
    Some(SecretName { name })
}
