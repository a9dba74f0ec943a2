//! How a node of Elasticsearch is secured: its files, its ports, and its users.
//!
//! Elasticsearch watches the files of TLS and of its file realm, and reads them again within seconds.
//! What it does not understand it leaves out, and says so in its log alone. So a change of users is
//! in force when the pilot's own user was seen with the role that came with it.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::ElasticsearchDriver;
use crate::{
    api::v1beta1::{Authentication, ClientTls, InternodeTls, PilotSecurity},
    databases::elasticsearch::{
        facts::{
            ROLES_FILE, Release, SecuritySettings, USER_ROLES_FILE, USERS_FILE, UserFiles,
            UserFilesError, UsersMarker, are_in_force, are_known,
        },
        names::port,
    },
    engine::{pki::CertificateUse, users::UsersDocument},
    pilot::{
        clients::search_engine::{AuthenticatedUser, PrivilegesAnswer, SearchClient},
        driver::{
            DatabaseNode, DriverAnswer, Error, RunningSecurity, SecuredDatabase, SecuredPort,
        },
        tls::PinnedLeaves,
        volume::config_files::write_whole,
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
pub(super) fn wanted(
    security: Option<&PilotSecurity>,
    release: Release,
    has_security: bool,
) -> Result<Option<SecuritySettings>, Error> {
    let Some(PilotSecurity { internode, client, authentication, .. }) = security else {
        return Ok(None);
    };
    let rejected = |why: &str| Err(Error::ConfigRejected(why.to_owned()));
    let https = match (internode, authentication, client) {
        (InternodeTls::Off, Authentication::Off, ClientTls::Off) => return Ok(None),
        (InternodeTls::Required, Authentication::Password, ClientTls::Off) => false,
        (InternodeTls::Required, Authentication::Password, ClientTls::Required) => true,
        _ => {
            return rejected(
                "Elasticsearch encrypts between nodes and asks for passwords, or does neither, and \
                 a port speaks TLS or plain text: internode.tls must be Required, authentication \
                 Password, and client.tls Off or Required",
            );
        }
    };
    if !release.is_secured() {
        return rejected("this build secures Elasticsearch from 7.17 on");
    }
    if !has_security {
        return rejected("the distribution in the image has no security module");
    }
    let asks_certificates = security.is_some_and(PilotSecurity::asks_certificates);
    Ok(Some(SecuritySettings { https, asks_certificates }))
}

impl SecuredDatabase for ElasticsearchDriver {
    fn lay_out_users(
        &self,
        node: &DatabaseNode,
        users: Option<&UsersDocument>,
    ) -> Result<(), Error> {
        let access = self.access.get().ok_or_else(no_access)?;
        let marker = UsersMarker::default();
        let files = UserFiles::render(&access.hash, marker, users).or_else(|error| {
            tracing::warn!(%error, "Starting without users: they cannot be written");
            UserFiles::render(&access.hash, marker, None)
        });
        let files = files.map_err(|error| Error::Refused(error.to_string()))?;
        write(&node.config, &files)
    }

    fn running(&self) -> RunningSecurity {
        let (Some(access), Some(address)) = (self.access.get(), self.state.known().address) else {
            return RunningSecurity::default();
        };
        let port = |usage, number| SecuredPort::new(usage, SocketAddr::new(address, number));
        let mut ports = vec![port(CertificateUse::Internode, port::TRANSPORT)];
        if access.https {
            ports.push(port(CertificateUse::Client, port::HTTP));
        }
        RunningSecurity { ports, takes_users: true, serves_both: false }
    }

    fn pins(&self) -> &PinnedLeaves {
        self.access.pins()
    }

    fn apply_users<'a>(
        &'a self,
        node: &'a DatabaseNode,
        users: &'a UsersDocument,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let (api, access) = (self.api()?, self.access.get().ok_or_else(no_access)?);
            // A node that does not answer yet has what it started with.
            api.authenticated().await?;
            if let Some(question) = are_known(users)
                && let PrivilegesAnswer::Refused(why) = api.privileges(&question).await?
            {
                return Err(Error::Refused(format!("a role cannot be: {why}")));
            }
            let in_force_once = are_in_force(users);
            let (config, users) = (node.config.clone(), users.clone());
            let visit = self.volume.visit(move |_| change(&config, &access.hash, &users));
            let changed = visit.await.map_err(|hangs| Error::NotYet(hangs.to_string()))??;
            match in_force(&api, changed.marker, &in_force_once).await {
                Err(Error::Refused(why)) => {
                    let Some(former) = changed.former else { return Err(Error::NotYet(why)) };
                    info!("Putting the former users back");
                    let config = node.config.clone();
                    let visit = self.volume.visit(move |_| write(&config, &former));
                    visit.await.map_err(|hangs| Error::NotYet(hangs.to_string()))??;
                    Err(Error::Refused(format!("{why}; it has its former users again")))
                }
                other => other,
            }
        })
    }
}

fn no_access() -> Error {
    Error::NotYet("how the pilot gets into its node is not known".to_owned())
}

/// A change of users that was written.
struct WrittenUsers {
    /// By which the pilot sees that it is in force.
    marker: UsersMarker,
    /// The files as they were; `None` where they had these users already.
    former: Option<UserFiles>,
}

/// Writes users to the files of a running node, where they differ.
fn change(config: &Path, own_hash: &str, users: &UsersDocument) -> Result<WrittenUsers, Error> {
    let unwritable = |error: UserFilesError| Error::Refused(error.to_string());
    let former = read(config)?;
    let marker = former.marker();
    let same = UserFiles::render(own_hash, marker, Some(users)).map_err(unwritable)?;
    if same == former {
        return Ok(WrittenUsers { marker, former: None });
    }
    let marker = marker.other();
    write(config, &UserFiles::render(own_hash, marker, Some(users)).map_err(unwritable)?)?;
    Ok(WrittenUsers { marker, former: Some(former) })
}

fn read(config: &Path) -> Result<UserFiles, Error> {
    let text = |name| {
        let path: PathBuf = config.join(name);
        fs::read_to_string(&path).map_err(|source: io::Error| Error::Read { path, source })
    };
    let (users, members) = (text(USERS_FILE)?, text(USER_ROLES_FILE)?);
    Ok(UserFiles { users, members, roles: text(ROLES_FILE)? })
}

/// Writes what roles allow and the users, and then who has which role: who has seen the new ones has
/// the new users too.
fn write(config: &Path, UserFiles { users, members, roles }: &UserFiles) -> Result<(), Error> {
    write_whole(&config.join(ROLES_FILE), roles.as_bytes(), OWN)?;
    write_whole(&config.join(USERS_FILE), users.as_bytes(), OWN)?;
    write_whole(&config.join(USER_ROLES_FILE), members.as_bytes(), OWN)
}

/// Waits until the node knows its pilot with the role of `marker`, says yes to `roles_read`, and
/// does what the pilot asks.
async fn in_force(
    api: &SearchClient,
    marker: UsersMarker,
    roles_read: &Value,
) -> Result<(), Error> {
    let begun = Instant::now();
    let mut refused: Option<Instant> = None;
    loop {
        match api.authenticated().await? {
            AuthenticatedUser::Known { roles }
                if roles.iter().any(|role| role == marker.role()) =>
            {
                let answer = api.ask("/_nodes/_local?filter_path=nodes.*.version").await?;
                match api.privileges(roles_read).await? {
                    PrivilegesAnswer::All if answer.status.is_success() => return Ok(()),
                    PrivilegesAnswer::Some if answer.status.is_success() => refused = None,
                    _ => {
                        refused.get_or_insert_with(Instant::now);
                    }
                }
            }
            AuthenticatedUser::Known { .. } => refused = None,
            AuthenticatedUser::Refused(_) => {
                refused.get_or_insert_with(Instant::now);
            }
        }
        if refused.is_some_and(|since| since.elapsed() >= REFUSED) {
            return Err(Error::Refused("the node refuses its own pilot with them".to_owned()));
        }
        if begun.elapsed() >= RELOAD {
            return Err(Error::NotYet("the node has not read them yet".to_owned()));
        }
        sleep(POLL).await;
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
            let found = wanted(Some(&security), release("7.17.29"), true);
            assert_eq!(found.ok(), expected, "{security:?}");
            if expected == secured(true) {
                assert!(wanted(Some(&security), release("6.8.23"), true).is_err());
                assert!(wanted(Some(&security), release("8.19.4"), false).is_err());
            }
        }
        assert_eq!(wanted(None, release("5.6.16"), true).unwrap(), None);
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
        assert!(text("roles.yml").contains("\nnavigator_even:"));
        let ports: Vec<_> = driver.running().ports.iter().map(|port| port.address.port()).collect();
        assert_eq!(ports, [port::TRANSPORT, port::HTTP]);
        // The next program of this pilot finds the same.
        let next = ElasticsearchDriver::new(&node.config, &node.data, &Volume::default());
        next.recall();
        assert_eq!(next.running(), driver.running());

        node.pilot.spec.security = None;
        driver.configure(&node).await.unwrap();
        assert_eq!(driver.running(), RunningSecurity::default());
        assert!(!text("elasticsearch.yml").contains("ssl"));
    }

    #[test]
    fn users_that_are_the_same_are_not_written_and_others_bring_another_marker() {
        let place = tempfile::tempdir().unwrap();
        let config = place.path();
        let first = UserFiles::render("own", UsersMarker::Even, Some(&users("a"))).unwrap();
        write(config, &first).unwrap();
        let same = change(config, "own", &users("a")).unwrap();
        assert_eq!((same.marker, same.former), (UsersMarker::Even, None));
        let other = change(config, "own", &users("b")).unwrap();
        assert_eq!(other.marker, UsersMarker::Odd);
        assert_eq!(other.former, Some(first));
        assert_eq!(read(config).unwrap().marker(), UsersMarker::Odd);
        // What cannot be written changes nothing.
        let before = read(config).unwrap();
        assert!(matches!(change(config, "own", &users("a:b")), Err(Error::Refused(_))));
        assert_eq!(read(config).unwrap(), before);
    }
}
