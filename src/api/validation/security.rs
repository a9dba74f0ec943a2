//! Rules about encryption, logins and certificates (V60–V65, V69).
//!
//! What lies in a Secret is judged where it is read.

use std::time::Duration;

use super::{
    cluster_view::{ClusterView, PoolView, pool_path},
    database_version::DatabaseVersion,
    format, network,
    security_support::SecuritySupport,
    validator::Validator,
};
use crate::{
    api::v1beta1::{
        Authentication, CertificateSettings, ClientTls, ClusterSecurity, DatabaseUser,
        InternodeTls, SecretKey, SecretName, SecurityMode, SecurityRungs, TrustSource,
    },
    machinery::{field_error::FieldPath, go_duration},
};

/// What the names of Navigator's own users begin with.
pub const OWN_USERS: &str = "navigator";
const SHORTEST_LIFE: Duration = Duration::from_secs(10 * 60);
const LONGEST_LIFE: Duration = Duration::from_secs(8760 * 60 * 60);

pub(super) fn validate_security(
    validator: &mut Validator,
    cluster: &ClusterView<'_>,
    path: &FieldPath,
) {
    let Some(security) = cluster.security else { return };
    match find_security_support(cluster) {
        Ok(support) => {
            validate_supported(validator, cluster.names.title, security, support, path);
            validate_role_names(validator, cluster, security, support, &path.child("roles"));
        }
        Err(reason) => {
            let roles = (!cluster.role_names.is_empty()).then(|| path.child("roles"));
            for place in security_fields(security, path).into_iter().chain(roles) {
                validator.forbidden(&place, &reason);
            }
        }
    }
    if let Some(network) = &security.network {
        network::validate_network(validator, network, &path.child("network"));
    }
}

/// Validates what is said of logins where nobody is asked for one (V64): an update that turns logins
/// off leaves what it was said of them.
pub(super) fn validate_unused_logins(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: Option<&ClusterView<'_>>,
) {
    let Some(security) = new.security.filter(|_| new.support.is_some()) else { return };
    if new.desired_security().authentication != Authentication::Off {
        return;
    }
    let old_security = old.and_then(|old| old.security);
    let path = FieldPath::new("spec").child("security");
    let message = "set security.authentication: Password";
    let had_setting =
        |has_setting: fn(&ClusterSecurity) -> bool| old_security.is_some_and(has_setting);
    if security.admin_secret.is_some()
        && !had_setting(|old_settings| old_settings.admin_secret.is_some())
    {
        validator.forbidden(&path.child("adminSecret"), message);
    }
    if !security.users.is_empty() && !had_setting(|old_settings| !old_settings.users.is_empty()) {
        validator.forbidden(&path.child("users"), message);
    }
    let had_roles = old.is_some_and(|old| !old.role_names.is_empty());
    if !new.role_names.is_empty() && !had_roles {
        validator.forbidden(&path.child("roles"), message);
    }
}

/// V69: what must be so that encryption and logins of what runs can be switched.
pub(super) fn validate_change(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: &ClusterView<'_>,
) {
    let Some(support) = new.support else { return };
    let is_running = old.status.replicas.is_some_and(|replicas| replicas > 0);
    let (new_modes, old_modes) = (new.desired_security(), old.desired_security());
    let path = FieldPath::new("spec").child("security");
    require_same_login_settings(validator, new, old);
    if !is_running || new_modes == old_modes {
        return;
    }
    if support.one_port {
        let text = format!(
            "encryption and logins of {} cannot be switched while it runs: make a new cluster",
            new.names.title
        );
        validator.forbidden(&path, &text);
        return;
    }
    if new.version != old.version {
        let text = "change version and security one after the other";
        validator.forbidden(&FieldPath::new("spec").child("version"), text);
    }
    let requires_password =
        |modes: &SecurityRungs| modes.authentication == Authentication::Password;
    if requires_password(&new_modes)
        && !requires_password(&old_modes)
        && let Some((_, key, _)) = old.login_settings().first()
        && new.security.is_none_or(|security| security.admin_secret.is_none())
    {
        let text = format!(
            "config.{key} says who may log in: name a Secret with a superuser of theirs in adminSecret, with \
             which pilots log in for the first time"
        );
        validator.forbidden(&path.child("authentication"), &text);
    }
    let is_ephemeral = |pool: &&PoolView<'_>| pool.keeps_data && !pool.is_persistent();
    if support.all_at_once
        && new_modes.internode != old_modes.internode
        && let Some(pool) = old.pools.iter().find(is_ephemeral)
    {
        let text = format!(
            "node pool {:?} keeps its data in its pods, and for this all nodes get new ones at once",
            pool.name
        );
        validator.forbidden(&path.child("internode").child("tls"), &text);
    }
}

/// Returns why a cluster cannot be secured by a default: V62, or settings that would become
/// Navigator's own (V66).
pub(super) fn reason_to_stay_open(cluster: &ClusterView<'_>) -> Option<String> {
    if let Err(reason) = find_security_support(cluster) {
        return Some(reason);
    }
    let authentication = cluster.security.and_then(|security| security.authentication.as_ref());
    if authentication == Some(&Authentication::Off) {
        return None;
    }
    let (_, key, _) = cluster.login_settings().into_iter().next()?;
    Some(format!("config.{key} is not yours to set in a secured cluster"))
}

/// V69: on the way to passwords nodes go on with the settings that they have. Others would have them
/// ask nobody, or ask before there is anybody to log in.
fn require_same_login_settings(
    validator: &mut Validator,
    new: &ClusterView<'_>,
    old: &ClusterView<'_>,
) {
    let requires_password =
        |view: &ClusterView<'_>| view.desired_security().authentication == Authentication::Password;
    let is_running = old.status.replicas.is_some_and(|replicas| replicas > 0);
    let secured_condition =
        old.status.conditions.iter().find(|condition| condition.type_ == "Secured");
    // The condition may be of before the word that passwords are wanted.
    let modes = old.status.security.as_ref().and_then(|security| security.rungs.as_ref());
    let all_require_passwords =
        modes.is_some_and(|modes| modes.authentication == Authentication::Password);
    let is_complete = all_require_passwords
        && requires_password(old)
        && secured_condition.is_some_and(|condition| condition.reason != "SecurityInProgress");
    let (new_settings, old_settings) = (new.login_settings(), old.login_settings());
    if !is_running || !requires_password(new) || is_complete || new_settings == old_settings {
        return;
    }
    let changed_setting = new_settings.iter().find(|setting| !old_settings.contains(setting));
    let Some((pool, key, _)) = changed_setting
        .or_else(|| old_settings.iter().find(|setting| !new_settings.contains(setting)))
    else {
        return;
    };
    let place = new.pools.iter().position(|candidate| candidate.name == *pool && !pool.is_empty());
    let path = place.map_or_else(|| FieldPath::new("spec"), pool_path);
    let text = "nodes go by it until they ask for Navigator's logins: change it once the condition Secured says \
                that they do";
    validator.forbidden(&path.child("config").key(key), text);
}

/// Returns how the cluster is secured; else why it cannot be (V62). A version that is none counts as
/// the newest: its own rule refuses it.
fn find_security_support(cluster: &ClusterView<'_>) -> Result<SecuritySupport, String> {
    let names = cluster.names;
    let support =
        cluster.support.ok_or_else(|| format!("{}s cannot be secured yet", names.kind))?;
    let version = DatabaseVersion::parse(cluster.version);
    if version.is_some_and(|version| (version.major, version.minor) < support.since) {
        let (major, minor) = support.since;
        return Err(format!("needs {} {major}.{minor} or later", names.title));
    }
    Ok(support)
}

/// Returns the fields that ask for encryption or logins, or say more about them.
fn security_fields(security: &ClusterSecurity, path: &FieldPath) -> Vec<FieldPath> {
    let ClusterSecurity {
        mode,
        internode,
        client,
        authentication,
        admin_secret,
        users,
        certificates,
        metrics: _,
        network: _,
    } = security;
    let internode_tls = internode.as_ref().and_then(|internode| internode.tls.as_ref());
    let client_tls = client.as_ref().and_then(|client| client.tls.as_ref());
    let is_secure = *mode == Some(SecurityMode::Secure) && !security.desired_modes().is_open();
    let client_path = path.child("client");
    let field_uses = [
        (is_secure, path.child("mode")),
        (
            internode_tls.is_some_and(|tls| *tls != InternodeTls::Off),
            path.child("internode").child("tls"),
        ),
        (client_tls.is_some_and(|tls| *tls != ClientTls::Off), client_path.child("tls")),
        (
            client.as_ref().is_some_and(|client| !client.alt_names.is_empty()),
            client_path.child("altNames"),
        ),
        (
            internode.as_ref().is_some_and(|internode| internode.ca_secret.is_some()),
            path.child("internode").child("caSecret"),
        ),
        (
            client.as_ref().is_some_and(|client| client.ca_secret.is_some()),
            client_path.child("caSecret"),
        ),
        (security.requires_client_certificates(), client_path.child("clientAuth")),
        (security.certificate_secret_name().is_some(), client_path.child("certificateSecret")),
        (!security.trust_sources().is_empty(), path.child("internode").child("trust")),
        (
            authentication.as_ref().is_some_and(|mode| *mode != Authentication::Off),
            path.child("authentication"),
        ),
        (admin_secret.is_some(), path.child("adminSecret")),
        (!users.is_empty(), path.child("users")),
        (certificates.is_some(), path.child("certificates")),
        (security.encrypts_metrics(), path.child("metrics").child("tls")),
    ];
    field_uses.into_iter().filter_map(|(is_used, place)| is_used.then_some(place)).collect()
}

/// Validates what is said of a database that can be secured; `title` is its name.
fn validate_supported(
    validator: &mut Validator,
    title: &str,
    security: &ClusterSecurity,
    support: SecuritySupport,
    path: &FieldPath,
) {
    let ClusterSecurity {
        mode: _,
        internode,
        client,
        authentication: _,
        admin_secret,
        users,
        certificates,
        metrics: _,
        network: _,
    } = security;
    let desired_modes = security.desired_modes();
    if support.all_at_once {
        validate_single_switch(validator, title, &desired_modes, path);
    }
    // Without a number: of no database that this repository lists.
    if support.one_port
        && (desired_modes.internode == InternodeTls::Off)
            != (desired_modes.client == ClientTls::Off)
    {
        let text = format!(
            "{title} has one port for nodes and clients; set internode.tls and client.tls alike"
        );
        validator.forbidden(&path.child("client").child("tls"), &text);
    }
    // V63
    let ca_secrets = [
        internode.as_ref().and_then(|internode| internode.ca_secret.as_ref()),
        client.as_ref().and_then(|client| client.ca_secret.as_ref()),
    ];
    for (field, ca_secret) in ["internode", "client"].into_iter().zip(ca_secrets) {
        if let Some(SecretName { name }) = ca_secret {
            validate_secret_name(
                validator,
                name,
                &path.child(field).child("caSecret").child("name"),
            );
        }
    }
    for (index, source) in security.trust_sources().iter().enumerate() {
        validate_trust_source(
            validator,
            source,
            &path.child("internode").child("trust").index(index),
        );
    }
    if ca_secrets[0].is_some() && ca_secrets[0] == ca_secrets[1] {
        let text = "must be another one than internode.caSecret: whoever has a certificate of that is a node";
        validator.forbidden(&path.child("client").child("caSecret"), text);
    }
    validate_client_auth(
        validator,
        security,
        &desired_modes,
        title,
        support,
        &path.child("client"),
    );
    if let Some(name) = security.certificate_secret_name() {
        let path = path.child("client").child("certificateSecret");
        validate_secret_name(validator, name, &path.child("name"));
        if ca_secrets[1].is_some() {
            validator.forbidden(&path, "may not specify both caSecret and certificateSecret");
        }
        if client.as_ref().is_some_and(|client| !client.alt_names.is_empty()) {
            let text = "may not specify both altNames and certificateSecret: it has its own names";
            validator.forbidden(&path, text);
        }
        if support.one_port {
            let text =
                format!("{title} has one port for nodes and clients, who would not trust it");
            validator.forbidden(&path, &text);
        } else if desired_modes.authentication != Authentication::Password
            || desired_modes.client == ClientTls::Off
        {
            let text = "needs client.tls, and authentication: Password: its key comes to nodes with their users";
            validator.forbidden(&path, text);
        }
    }
    let alt_names = client.iter().flat_map(|client| &client.alt_names);
    for (index, name) in alt_names.enumerate() {
        let path = path.child("client").child("altNames").index(index);
        validator.invalid_each(&path, name, &format::check_certificate_name(name));
    }
    if let Some(SecretName { name }) = admin_secret {
        validate_secret_name(validator, name, &path.child("adminSecret").child("name"));
    }
    for (index, user) in users.iter().enumerate() {
        self::validate_user(
            validator,
            user,
            support.reserved_users,
            &path.child("users").index(index),
        );
    }
    if security.encrypts_metrics() && desired_modes.client == ClientTls::Off {
        let text = "needs client.tls: pilots show the certificate for clients";
        validator.forbidden(&path.child("metrics").child("tls"), text);
    }
    if let Some(certificates) = certificates {
        self::validate_certificates(validator, certificates, &path.child("certificates"));
    }
}

/// Validates what clients must show (V63).
fn validate_client_auth(
    validator: &mut Validator,
    security: &ClusterSecurity,
    desired_modes: &SecurityRungs,
    title: &str,
    support: SecuritySupport,
    path: &FieldPath,
) {
    let source = security.client.as_ref().and_then(|client| client.client_ca.as_ref());
    if let Some(source) = source {
        validate_trust_source(validator, source, &path.child("clientCA"));
    }
    if !security.requires_client_certificates() {
        return;
    }
    let auth = path.child("clientAuth");
    if source.is_none() {
        validator.required(&path.child("clientCA"), "clientAuth needs it");
    }
    if support.one_port {
        let text = format!("{title} has one port for nodes and clients");
        validator.forbidden(&auth, &text);
    } else if desired_modes.client != ClientTls::Required
        || desired_modes.internode == InternodeTls::Off
    {
        let text = "needs client.tls: Required, and internode.tls: pilots show the certificates that \
                    nodes show each other";
        validator.forbidden(&auth, text);
    }
}

fn validate_trust_source(validator: &mut Validator, source: &TrustSource, path: &FieldPath) {
    let TrustSource { kind: _, name, key } = source;
    validate_secret_name(validator, name, &path.child("name"));
    if let Some(key) = key {
        validator.invalid_each(&path.child("key"), key, &format::check_secret_key(key));
    }
}

/// Validates what a database can do whose nodes switch encryption and logins together (V60, V61).
/// Words that no database knows are refused elsewhere.
fn validate_single_switch(
    validator: &mut Validator,
    title: &str,
    desired_modes: &SecurityRungs,
    path: &FieldPath,
) {
    let SecurityRungs { internode, client, authentication } = desired_modes;
    let client_path = path.child("client").child("tls");
    if matches!(internode, InternodeTls::Allow | InternodeTls::Prefer) {
        let path = path.child("internode").child("tls");
        validator.unsupported(&path, internode.as_str(), &["Off", "Required"]);
    }
    if *client == ClientTls::Optional {
        validator.unsupported(&client_path, client.as_str(), &["Off", "Required"]);
    }
    let is_encrypted = *internode != InternodeTls::Off;
    let requires_password = *authentication != Authentication::Off;
    if is_encrypted != requires_password {
        let text = format!(
            "{title} encrypts between nodes exactly when it asks for passwords; set internode.tls and authentication together"
        );
        validator.invalid(&path.child("authentication"), authentication.as_str(), &text);
    } else if *client == ClientTls::Required && !requires_password {
        let text = format!(
            "{title} encrypts for clients only where it asks for passwords; set internode.tls and authentication too"
        );
        validator.invalid(&client_path, client.as_str(), &text);
    }
}

/// Validates a user (V64). That no name stands twice is a rule of every list.
fn validate_user(
    validator: &mut Validator,
    user: &DatabaseUser,
    reserved: &[&str],
    path: &FieldPath,
) {
    let DatabaseUser { name, password_secret, superuser, roles } = user;
    let name_path = path.child("name");
    if name.is_empty() {
        validator.required(&name_path, "");
    } else {
        validator.invalid_each(&name_path, name, &format::check_login_name(name));
    }
    if name.starts_with(OWN_USERS) || reserved.contains(&name.as_str()) {
        let text = "is reserved for a user that Navigator or a database makes";
        validator.forbidden(&name_path, text);
    }
    if let Some(SecretKey { name, key }) = password_secret {
        let path = path.child("passwordSecret");
        validate_secret_name(validator, name, &path.child("name"));
        if let Some(key) = key {
            validator.invalid_each(&path.child("key"), key, &format::check_secret_key(key));
        }
    }
    let roles_path = path.child("roles");
    if *superuser == Some(true) && !roles.is_empty() {
        validator.forbidden(&roles_path, "a superuser may do everything; leave out one of the two");
    }
    for (index, role) in roles.iter().enumerate() {
        validator.invalid_each(&roles_path.index(index), role, &format::check_login_name(role));
    }
}

/// Validates the names of roles (V64). What they allow is for the database's own rules.
fn validate_role_names(
    validator: &mut Validator,
    cluster: &ClusterView<'_>,
    security: &ClusterSecurity,
    support: SecuritySupport,
    path: &FieldPath,
) {
    if !support.makes_roles && !cluster.role_names.is_empty() {
        let text = format!(
            "{} has no roles that can be made; its users have those that it knows",
            cluster.names.title
        );
        validator.forbidden(path, &text);
    }
    for (index, name) in cluster.role_names.iter().enumerate() {
        let path = path.index(index).child("name");
        if name.is_empty() {
            validator.required(&path, "");
        } else {
            validator.invalid_each(&path, name, &format::check_login_name(name));
        }
        if name.starts_with(OWN_USERS) || support.reserved_users.contains(name) {
            validator
                .forbidden(&path, "is reserved for Navigator and for users that databases make");
        }
        if security.users.iter().any(|user| user.name == *name) {
            validator.forbidden(&path, "is the name of a user");
        }
    }
}

fn validate_secret_name(validator: &mut Validator, name: &str, path: &FieldPath) {
    if name.is_empty() {
        validator.required(path, "");
    } else {
        validator.invalid_each(path, name, &format::check_dns_subdomain(name));
    }
}

/// Validates for how long certificates are made, and CAs overlap (V65).
fn validate_certificates(
    validator: &mut Validator,
    settings: &CertificateSettings,
    path: &FieldPath,
) {
    let CertificateSettings {
        duration,
        renewed_at: _,
        keys_renewed_at: _,
        ca_rotated_at: _,
        ca_overlap,
    } = settings;
    for (field, setting, min_life, text) in [
        ("duration", duration, SHORTEST_LIFE, "must be between 10m and 8760h"),
        ("caOverlap", ca_overlap, Duration::ZERO, "must be between 0s and 8760h"),
    ] {
        let Some(duration_text) = setting else { continue };
        let is_in_range = |life| (min_life..=LONGEST_LIFE).contains(&life);
        if !go_duration::parse_duration(duration_text).is_some_and(is_in_range) {
            validator.invalid(&path.child(field), duration_text.as_str(), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{
        V1BETA1,
        scheme::Scheme,
        v1beta1::{ClientSecurity, InternodeSecurity},
    };

    const SUPPORT: SecuritySupport = SecuritySupport {
        since: (7, 17),
        all_at_once: true,
        one_port: false,
        reserved_users: &["first"],
        makes_roles: true,
    };

    /// What is said about `security`: fields below it, and reasons.
    fn said(support: SecuritySupport, security: &ClusterSecurity) -> Vec<String> {
        let mut validator = Validator::new(V1BETA1, Scheme::new(&[]).schemas());
        validate_supported(&mut validator, "Example", security, support, &FieldPath::new("x"));
        let problem = |error: &crate::machinery::field_error::FieldError| {
            let path = error.path.to_string();
            format!("{} {}", path.trim_start_matches("x."), error.reason())
        };
        validator.errors.iter().map(problem).collect()
    }

    fn words(mode: &str, internode: &str, client: &str, authentication: &str) -> ClusterSecurity {
        let word = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        ClusterSecurity {
            mode: word(mode).map(Into::into),
            internode: Some(InternodeSecurity {
                tls: word(internode).map(Into::into),
                ..InternodeSecurity::default()
            }),
            client: Some(ClientSecurity {
                tls: word(client).map(Into::into),
                ..ClientSecurity::default()
            }),
            authentication: word(authentication).map(Into::into),
            ..ClusterSecurity::default()
        }
    }

    #[test]
    fn one_switch_turns_encryption_and_logins() {
        let both = "authentication FieldValueInvalid";
        let rows: &[([&str; 4], &[&str])] = &[
            (["", "", "", ""], &[]),
            (["Secure", "", "", ""], &[]),
            (["Open", "", "", ""], &[]),
            (["Secure", "", "Off", ""], &[]),
            (["", "Required", "", "Password"], &[]),
            (["Open", "Required", "Required", "Password"], &[]),
            (["Secure", "Off", "Off", "Off"], &[]),
            (["Secure", "Off", "", "Off"], &["client.tls FieldValueInvalid"]),
            (["Secure", "Off", "", ""], &[both]),
            (["Secure", "", "", "Off"], &[both]),
            (["", "Required", "", ""], &[both]),
            (["", "", "", "Password"], &[both]),
            (["Secure", "Allow", "", ""], &["internode.tls FieldValueNotSupported"]),
            (["Secure", "Prefer", "", ""], &["internode.tls FieldValueNotSupported"]),
            (["Secure", "", "Optional", ""], &["client.tls FieldValueNotSupported"]),
        ];
        for ([mode, internode, client, authentication], wrong) in rows {
            let security = words(mode, internode, client, authentication);
            assert_eq!(said(SUPPORT, &security), *wrong, "{security:?}");
            let stepwise = SecuritySupport { all_at_once: false, ..SUPPORT };
            assert_eq!(said(stepwise, &security), [""; 0], "{security:?}");
        }
    }

    #[test]
    fn one_port_is_encrypted_for_nodes_and_clients_or_for_neither() {
        let support = SecuritySupport { one_port: true, ..SUPPORT };
        let wrong = ["client.tls FieldValueForbidden"];
        for (words, wrong) in [
            (words("Secure", "", "", ""), &[][..]),
            (words("Open", "", "", ""), &[]),
            (words("Secure", "", "Off", ""), &wrong),
        ] {
            assert_eq!(said(support, &words), wrong, "{words:?}");
        }
    }

    #[test]
    fn lives_of_certificates_have_bounds() {
        for (text, fits) in [
            ("2160h", true),
            ("10m", true),
            ("8760h", true),
            ("1h30m", true),
            ("9m59s", false),
            ("8760h1s", false),
            ("90d", false),
            ("", false),
            ("-1h", false),
        ] {
            let duration = Some(text.to_owned());
            let settings = CertificateSettings { duration, ..CertificateSettings::default() };
            let security =
                ClusterSecurity { certificates: Some(settings), ..ClusterSecurity::default() };
            let problems = said(SUPPORT, &security);
            assert_eq!(problems.is_empty(), fits, "{text:?} {problems:?}");
        }
    }

    #[test]
    fn fields_that_ask_for_security_are_known_from_those_that_do_not() {
        let places = |security: &ClusterSecurity| {
            let places = security_fields(security, &FieldPath::new("x"));
            places.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for open in [words("Open", "Off", "Off", "Off"), words("Secure", "Off", "Off", "Off")] {
            assert_eq!(places(&open), [""; 0], "{open:?}");
        }
        assert_eq!(places(&words("Secure", "", "", "")), ["x.mode"]);
        assert_eq!(
            places(&words("", "Allow", "Optional", "Password")),
            ["x.internode.tls", "x.client.tls", "x.authentication"]
        );
    }
}
