//! How a node of Elasticsearch is secured: its files, its ports, and its users.
//!
//! Elasticsearch watches the files of TLS and of its file realm, and reads them again within seconds, one
//! by one. What it does not understand it leaves out, and says so in its log alone. So a change of users
//! is in force when the node was seen to have read each of the three files: see `facts::marker_user`; and
//! when those who are gone have no API keys and tokens any more: see `credentials`.

use std::{
    collections::BTreeSet,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{ElasticsearchDriver, access::NodeAccess, credentials, state::NodeState};
use crate::{
    api::v1beta1::{Authentication, ClientTls, InternodeTls, PilotSecurity},
    databases::elasticsearch::{
        facts::{
            ROLES_FILE, Release, SecuritySettings, USER_ROLES_FILE, USERS_FILE, UserFiles,
            UserFilesError, are_in_force, are_known, marker_user,
        },
        names::port,
    },
    engine::{pki::CertificateUse, users::UsersDocument},
    error::chain,
    pilot::{
        clients::search_engine::{AuthenticatedUser, PrivilegesAnswer, SearchClient},
        driver::{
            DatabaseNode, DriverAnswer, Error, RunningSecurity, SecuredDatabase, SecuredPort,
        },
        tls::PinnedLeaves,
        volume::{config_files::write_whole, remembered_state::RememberedState},
    },
};

/// How long the node may take to read its users again (2 to 6 s were measured, and once 21 s).
const RELOAD: Duration = Duration::from_secs(45);
/// How long the node must refuse its own pilot for a change to count as refused: not all files are
/// read at one time.
const REFUSED: Duration = Duration::from_secs(10);
/// Pause between two questions meanwhile.
const POLL: Duration = Duration::from_secs(1);
/// Mode of files with hashes.
const OWN: u32 = 0o600;

/// Returns how a node is to be secured; `None` where it is open.
pub(super) fn desired_security(
    security: Option<&PilotSecurity>,
    release: Release,
    has_security: bool,
) -> Result<Option<SecuritySettings>, Error> {
    let Some(PilotSecurity { internode, client, authentication, .. }) = security else {
        return Ok(None);
    };
    let reject = |message: &str| Err(Error::ConfigRejected(message.to_owned()));
    let https = match (internode, authentication, client) {
        (InternodeTls::Off, Authentication::Off, ClientTls::Off) => return Ok(None),
        (InternodeTls::Required, Authentication::Password, ClientTls::Off) => false,
        (InternodeTls::Required, Authentication::Password, ClientTls::Required) => true,
        _ => {
            return reject(
                "Elasticsearch encrypts between nodes and asks for passwords, or does neither, and \
                 a port speaks TLS or plain text: internode.tls must be Required, authentication \
                 Password, and client.tls Off or Required",
            );
        }
    };
    if !release.is_secured() {
        return reject("this build secures Elasticsearch from 7.17 on");
    }
    if !has_security {
        return reject("the distribution in the image has no security module");
    }
    let asks_certificates = security.is_some_and(PilotSecurity::requires_client_certificates);
    Ok(Some(SecuritySettings { https, asks_certificates }))
}

impl SecuredDatabase for ElasticsearchDriver {
    fn lay_out_users(
        &self,
        node: &DatabaseNode,
        users: Option<&UsersDocument>,
    ) -> Result<(), Error> {
        let access = self.access.get().ok_or_else(no_access)?;
        if let Some(users) = users {
            note_users(&self.state, users);
        }
        let files = UserFiles::render(&access.hash, users).or_else(|error| {
            warn!(%error, "Starting without users: they cannot be written");
            UserFiles::render(&access.hash, None)
        });
        let files = files.map_err(|error| Error::Refused(error.to_string()))?;
        write_user_files(&node.config, &files)
    }

    fn running_security(&self) -> RunningSecurity {
        let (Some(access), Some(address)) = (self.access.get(), self.state.cached_state().address)
        else {
            return RunningSecurity::default();
        };
        let port = |usage, number| SecuredPort::new(usage, SocketAddr::new(address, number));
        let mut ports = vec![port(CertificateUse::Internode, port::TRANSPORT)];
        if access.https {
            ports.push(port(CertificateUse::Client, port::HTTP));
        }
        RunningSecurity { ports, takes_users: true, serves_both: false }
    }

    fn pinned_leaves(&self) -> &PinnedLeaves {
        self.access.pinned_leaves()
    }

    fn apply_users<'a>(
        &'a self,
        node: &'a DatabaseNode,
        users: &'a UsersDocument,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let (api, access) = (self.api()?, self.access.get().ok_or_else(no_access)?);
            // A node that does not answer yet has what it started with.
            api.authenticate().await?;
            if let Some(question) = are_known(users)
                && let PrivilegesAnswer::Refused(reason) = api.check_privileges(&question).await?
            {
                return Err(Error::Refused(format!("a role cannot be: {reason}")));
            }
            let marker = UsersProbe::new(self, &access, users)?;
            let (config, state, desired_users) =
                (node.config.clone(), self.state.clone(), users.clone());
            let visit = self.volume.visit(move |_| {
                note_users(&state, &desired_users);
                write_changed_users(&config, &access.hash, &desired_users)
            });
            let old_files = visit.await.map_err(|error| Error::NotYet(error.to_string()))??;
            match wait_until_in_force(&api, &marker, POLL).await {
                Err(Error::Refused(reason)) => {
                    let Some(old_files) = old_files else { return Err(Error::NotYet(reason)) };
                    info!("Putting the former users back");
                    let config = node.config.clone();
                    let visit = self.volume.visit(move |_| write_user_files(&config, &old_files));
                    visit.await.map_err(|error| Error::NotYet(error.to_string()))??;
                    return Err(Error::Refused(format!("{reason}; it has its former users again")));
                }
                result => result?,
            }
            let mut credentials_check = self.driver_state().credentials.clone();
            let known_users = self.state.cached_state().users;
            let result = credentials_check
                .revoke_removed(&api, users, &known_users, credentials::SETTLED)
                .await;
            self.driver_state().credentials = credentials_check;
            result?;
            let names = user_names(users);
            if let Err(error) = self.state.try_change(move |state| state.users = names).await {
                // Tokens of those who are gone are then ended once more after the next start.
                warn!(error = %chain(&error), "The users of the node cannot be noted");
            }
            Ok(())
        })
    }
}

/// Notes whom a node is to let in, before it does. A volume that takes no note keeps nobody out.
fn note_users(state: &RememberedState<NodeState>, users: &UsersDocument) {
    if let Err(error) = state.change(|state| state.users.extend(user_names(users))) {
        warn!(error = %chain(&error), "The users of the node cannot be noted");
    }
}

fn user_names(users: &UsersDocument) -> BTreeSet<String> {
    users.users().iter().map(|user| user.name.clone()).collect()
}

fn no_access() -> Error {
    Error::NotYet("how the pilot gets into its node is not known".to_owned())
}

/// Writes users to the files of a running node, where they differ. Returns the files as they were;
/// `None` where they had these users already.
fn write_changed_users(
    config: &Path,
    own_hash: &str,
    users: &UsersDocument,
) -> Result<Option<UserFiles>, Error> {
    let old_files = read_user_files(config)?;
    let files = UserFiles::render(own_hash, Some(users))
        .map_err(|error: UserFilesError| Error::Refused(error.to_string()))?;
    if files == old_files {
        return Ok(None);
    }
    write_user_files(config, &files)?;
    Ok(Some(old_files))
}

fn read_user_files(config: &Path) -> Result<UserFiles, Error> {
    let text = |name| {
        let path: PathBuf = config.join(name);
        fs::read_to_string(&path).map_err(|source: io::Error| Error::Read { path, source })
    };
    let (users, members) = (text(USERS_FILE)?, text(USER_ROLES_FILE)?);
    Ok(UserFiles { users, members, roles: text(ROLES_FILE)? })
}

/// Writes the files, one after the other. The node may read any of them before the next is written.
fn write_user_files(
    config: &Path,
    UserFiles { users, members, roles }: &UserFiles,
) -> Result<(), Error> {
    write_whole(&config.join(ROLES_FILE), roles.as_bytes(), OWN)?;
    write_whole(&config.join(USERS_FILE), users.as_bytes(), OWN)?;
    write_whole(&config.join(USER_ROLES_FILE), members.as_bytes(), OWN)
}

/// Asks a node as the marker user of a document.
struct UsersProbe {
    client: SearchClient,
    /// Name of the user, and of its role.
    marker: String,
    /// Question about the privilege of that role.
    privilege: Value,
}

impl UsersProbe {
    fn new(
        driver: &ElasticsearchDriver,
        access: &NodeAccess,
        users: &UsersDocument,
    ) -> Result<Self, Error> {
        let marker = marker_user(Some(users));
        let client = driver.api_as(&marker, access)?;
        Ok(Self { client, marker, privilege: are_in_force(users) })
    }

    /// Returns whether the node has read all three files: it lets the user in by `users`, gives it its
    /// role by `users_roles`, and grants that role its privilege by `roles.yml`.
    async fn has_read_all(&self) -> Result<bool, Error> {
        let has_role = match self.client.authenticate().await? {
            AuthenticatedUser::Known { roles } => roles.contains(&self.marker),
            AuthenticatedUser::Refused(_) => false,
        };
        Ok(has_role
            && self.client.check_privileges(&self.privilege).await? == PrivilegesAnswer::All)
    }
}

/// Waits until the node has read the users of `probe`, and does what the pilot asks as its own user.
async fn wait_until_in_force(
    api: &SearchClient,
    probe: &UsersProbe,
    poll: Duration,
) -> Result<(), Error> {
    let start = Instant::now();
    let mut refused_since: Option<Instant> = None;
    loop {
        let has_read_all = probe.has_read_all().await?;
        let answer = api.get_answer("/_nodes/_local?filter_path=nodes.*.version").await?;
        if answer.status.is_success() {
            refused_since = None;
            if has_read_all {
                return Ok(());
            }
        } else {
            refused_since.get_or_insert_with(Instant::now);
        }
        if refused_since.is_some_and(|since| since.elapsed() >= REFUSED) {
            return Err(Error::Refused("the node refuses its own pilot with them".to_owned()));
        }
        if start.elapsed() >= RELOAD {
            return Err(Error::NotYet("the node has not read them yet".to_owned()));
        }
        sleep(poll).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        databases::elasticsearch::pilot::tests::node_in,
        engine::users::DocumentedUser,
        pilot::{driver::Driver, volume::data_volume::Volume},
    };

    const HASH: &str = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";

    fn users(name: &str) -> UsersDocument {
        let (name, hash) = (name.to_owned(), HASH.to_owned());
        let user = DocumentedUser { name, hash, superuser: true, roles: Vec::new() };
        UsersDocument::new(vec![user], None)
    }

    #[test]
    fn what_elasticsearch_cannot_do_is_not_started() {
        use {Authentication as A, ClientTls as C, InternodeTls as I};
        let release = |version: &str| version.parse::<Release>().unwrap();
        let secured = |https| Some(Some(SecuritySettings { https, asks_certificates: false }));
        for (internode, authentication, client, expected) in [
            (I::Required, A::Password, C::Required, secured(true)),
            (I::Required, A::Password, C::Off, secured(false)),
            (I::Off, A::Off, C::Off, Some(None)),
            (I::Required, A::Password, C::Optional, None),
            (I::Required, A::Off, C::Required, None),
            (I::Off, A::Password, C::Off, None),
            (I::Off, A::Off, C::Required, None),
            (I::Prefer, A::Password, C::Required, None),
        ] {
            let security =
                PilotSecurity { internode, client, authentication, ..PilotSecurity::default() };
            let found = desired_security(Some(&security), release("7.17.29"), true);
            assert_eq!(found.ok(), expected, "{security:?}");
            if expected == secured(true) {
                assert!(desired_security(Some(&security), release("6.8.23"), true).is_err());
                assert!(desired_security(Some(&security), release("8.19.4"), false).is_err());
            }
        }
        assert_eq!(desired_security(None, release("5.6.16"), true).unwrap(), None);
    }

    #[tokio::test]
    async fn a_secured_start_writes_its_users_and_the_next_start_without_forgets_them() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        fs::create_dir_all(node.home.join("modules/x-pack-security")).unwrap();
        node.may_found = true;
        node.pilot.spec.security = Some(PilotSecurity {
            internode: InternodeTls::Required,
            client: ClientTls::Required,
            authentication: Authentication::Password,
            ..PilotSecurity::default()
        });
        let driver = ElasticsearchDriver::new(&node.config, &node.data, &Volume::default());
        driver.configure(&node).await.unwrap();
        driver.lay_out_users(&node, Some(&users("elastic"))).unwrap();
        let text = |name: &str| fs::read_to_string(node.config.join(name)).unwrap();
        assert!(text("elasticsearch.yml").contains("xpack.security.enabled: true"));
        assert!(text("users").contains(&format!("elastic:{HASH}\n")), "{}", text("users"));
        assert!(text("users_roles").contains("superuser:elastic\n"));
        assert!(text("roles.yml").contains("\nnavigator_"), "{}", text("roles.yml"));
        driver.lay_out_users(&node, Some(&users("app"))).unwrap();
        let noted = driver.state.read().unwrap().users;
        assert_eq!(noted, BTreeSet::from(["app".to_owned(), "elastic".to_owned()]));
        let ports: Vec<_> =
            driver.running_security().ports.iter().map(|port| port.address.port()).collect();
        assert_eq!(ports, [port::TRANSPORT, port::HTTP]);
        // The next program of this pilot finds the same.
        let next = ElasticsearchDriver::new(&node.config, &node.data, &Volume::default());
        next.restore_state();
        assert_eq!(next.running_security(), driver.running_security());

        node.pilot.spec.security = None;
        driver.configure(&node).await.unwrap();
        assert_eq!(driver.running_security(), RunningSecurity::default());
        assert!(!text("elasticsearch.yml").contains("ssl"));
    }

    #[test]
    fn users_that_are_the_same_are_not_written() {
        let place = tempfile::tempdir().unwrap();
        let config = place.path();
        let first = UserFiles::render("own", Some(&users("a"))).unwrap();
        write_user_files(config, &first).unwrap();
        assert_eq!(write_changed_users(config, "own", &users("a")).unwrap(), None);
        assert_eq!(write_changed_users(config, "own", &users("b")).unwrap(), Some(first));
        let second = UserFiles::render("own", Some(&users("b"))).unwrap();
        assert_eq!(read_user_files(config).unwrap(), second);
        // What cannot be written changes nothing.
        assert!(matches!(
            write_changed_users(config, "own", &users("a:b")),
            Err(Error::Refused(_))
        ));
        assert_eq!(read_user_files(config).unwrap(), second);
    }

    mod file_realm;
}
