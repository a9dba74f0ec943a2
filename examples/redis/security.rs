//! How a node of Redis is secured: one port, with TLS alone, and users by an ACL file.
//!
//! Clients, replicas and pilots come to the same port, which shows the certificate for clients. Users
//! are hashes of SHA-256, which keep passwords that are long and random, as those that Navigator
//! makes: whoever reads the hash of a word finds the word. All pilots and replicas of a cluster log in
//! as one user, who may do what they do and reads no key by a command.

use std::{fs, net::SocketAddr, path::Path};

use navigator::{
    api::v1beta1::{Authentication, ClientTls, InternodeTls, PilotSecurity},
    engine::{
        pki::CertificateUse,
        users::{OwnLogin, UsersDocument},
    },
    pilot::{
        clients::resp::RespServer,
        driver::{
            DatabaseNode, DriverAnswer, Error, RunningSecurity, SecuredDatabase, SecuredPort,
        },
        tls::{PinnedLeaves, TLS_FOLDER},
        volume::config_files::write_whole,
    },
};
use serde::{Deserialize, Serialize};

use super::{kind::PORT, pilot::Server};

/// The user of pilots and replicas, and what it may do.
const OWN_USER: &str = "navigator";
const OWN_RIGHTS: &str = "-@all +ping +info +config|get +config|set +acl|load +replicaof +failover \
                          +psync +replconf +function|load +fcall_ro";
/// Roles of users: categories of commands, and all of them.
const ROLES: &str = "admin all bitmap blocking connection dangerous fast geo hash hyperloglog keyspace \
                     list pubsub read scripting set slow sortedset stream string transaction write";
/// Files in the configuration folder: all users, and with what this node logs in to its primary.
const USERS: &str = "users.acl";
const LOGIN: &str = "login.conf";

/// How to get into the nodes of the cluster, and the revision of the users that this node has.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct NodeAccess {
    own: OwnLogin,
    revision: String,
}

/// Is the node to be secured? Its one port is so for all who come, or for nobody.
pub(crate) fn wanted(security: Option<&PilotSecurity>) -> Result<bool, Error> {
    let Some(security) = security.filter(|security| !security.is_open()) else { return Ok(false) };
    match (&security.internode, &security.client, &security.authentication) {
        (InternodeTls::Required, ClientTls::Required, Authentication::Password) => Ok(true),
        _ => Err(Error::ConfigRejected("Redis is secured as a whole, or open".to_owned())),
    }
}

/// The files of TLS, by the settings that name them.
fn tls_settings(config: &Path) -> [(&'static str, String); 3] {
    let files = [
        ("tls-cert-file", "node.crt"),
        ("tls-key-file", "node.key"),
        ("tls-ca-cert-file", "ca.crt"),
    ];
    let folder = config.join(TLS_FOLDER).join("client");
    files.map(|(name, file)| (name, folder.join(file).display().to_string()))
}

/// The lines of `redis.conf` that say how the node listens.
pub(crate) fn rung(secured: bool, config: &Path) -> String {
    if !secured {
        return format!("port {PORT}\n");
    }
    let tls = tls_settings(config).map(|(name, path)| format!("{name} \"{path}\"\n")).concat();
    let [users, login] = [USERS, LOGIN].map(|name| config.join(name).display().to_string());
    format!(
        "port 0\ntls-port {PORT}\n{tls}tls-auth-clients no\ntls-replication yes\n\
         aclfile \"{users}\"\ninclude \"{login}\"\n"
    )
}

/// Renders the ACL file. The former password of pilots is good until the next change, since nodes do
/// not change theirs at one time.
fn acl(users: &UsersDocument, own: &OwnLogin, former: &OwnLogin) -> Result<String, Error> {
    let (hash, before) = (&own.hash, &former.hash);
    let mut text = format!("user default off\nuser {OWN_USER} on #{hash} #{before} {OWN_RIGHTS}\n");
    for user in users.users() {
        let (name, hash) = (&user.name, &user.hash);
        let is_word = name.chars().all(|c| c.is_ascii_graphic());
        if !is_word || [OWN_USER, "default"].contains(&name.as_str()) {
            return Err(Error::Refused(format!("user {name:?} cannot be in the ACL file")));
        }
        text += &["user ", name, " on #", hash, " ~* &* -@all +@connection"].concat();
        for role in user.roles.iter().map(String::as_str).chain(user.superuser.then_some("all")) {
            if !ROLES.split(' ').any(|known| known == role) {
                return Err(Error::Refused(format!("user {name:?}: {role:?} is no role of Redis")));
            }
            text += &[" +@", role].concat();
        }
        text += "\n";
    }
    Ok(text)
}

fn own(users: Option<&UsersDocument>) -> Result<OwnLogin, Error> {
    let own = users.and_then(UsersDocument::pilot_user).cloned();
    own.ok_or_else(|| Error::NotYet("waits for the login of pilots among its users".to_owned()))
}

fn write(config: &Path, acl: &str, own: &OwnLogin) -> Result<(), Error> {
    let login = format!("masteruser {OWN_USER}\nmasterauth \"{}\"\n", own.password);
    write_whole(&config.join(LOGIN), login.as_bytes(), 0o600)?;
    write_whole(&config.join(USERS), acl.as_bytes(), 0o600)
}

impl Server {
    /// This node, and how it and the others of its cluster are asked.
    pub(crate) fn server(&self, own: SocketAddr) -> Result<RespServer, Error> {
        let Some(access) = self.access.get() else { return Ok(RespServer::without_tls(own)) };
        let tls = self.pinned_leaves().client_config_for_all_nodes();
        let tls = tls.map_err(|error| Error::Unreachable { source: error.into() })?;
        Ok(RespServer::with_tls(own, tls, Some([OWN_USER, &access.own.password])))
    }

    async fn take_users(&self, config: &Path, users: &UsersDocument) -> Result<(), Error> {
        let (own, revision) = (own(Some(users))?, users.revision().to_owned());
        let known = self.access.get().ok_or_else(|| Error::NotYet("not started".to_owned()))?;
        if known.revision != revision {
            let path = config.join(USERS);
            let former = fs::read_to_string(&path);
            let former = former.map_err(|source| Error::Read { path, source })?;
            write(config, &acl(users, &own, &known.own)?, &own)?;
            let loaded = self.known()?.1.send_commands(&[&["ACL", "LOAD"]]).await;
            if let Err(Error::Refused(_)) = loaded {
                // Redis takes all of the file, or nothing.
                write(config, &former, &known.own)?;
            }
            loaded?;
            self.access.set(Some(NodeAccess { own: own.clone(), revision }))?;
        }
        let login = ["CONFIG", "SET", "masteruser", OWN_USER, "masterauth", &own.password];
        self.known()?.1.send_commands(&[&login]).await.map(drop)
    }
}

impl SecuredDatabase for Server {
    /// Users that cannot be in the file are left out, and told of once Redis runs.
    fn lay_out_users(
        &self,
        node: &DatabaseNode,
        users: Option<&UsersDocument>,
    ) -> Result<(), Error> {
        let (own, alone) = (own(users)?, UsersDocument::new(Vec::new(), None));
        let users = users.filter(|users| acl(users, &own, &own).is_ok()).unwrap_or(&alone);
        write(&node.config, &acl(users, &own, &own)?, &own)?;
        self.access.set(Some(NodeAccess { own, revision: users.revision().to_owned() }))
    }

    fn running_security(&self) -> RunningSecurity {
        let (Some(_), Ok((_, own))) = (self.access.get(), self.known()) else {
            return RunningSecurity::default();
        };
        let port =
            |usage| SecuredPort { usage, shows: CertificateUse::Client, address: own.address };
        let ports = [CertificateUse::Internode, CertificateUse::Client].map(port).into();
        RunningSecurity { ports, takes_users: true, serves_both: false }
    }

    fn pinned_leaves(&self) -> &PinnedLeaves {
        self.access.pinned_leaves()
    }

    fn reload_tls<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            let files = tls_settings(&node.config);
            let mut command = vec!["CONFIG", "SET"];
            command.extend(files.iter().flat_map(|(name, path)| [*name, path.as_str()]));
            self.known()?.1.send_commands(&[&command]).await.map(drop)
        })
    }

    fn apply_users<'a>(
        &'a self,
        node: &'a DatabaseNode,
        users: &'a UsersDocument,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(self.take_users(&node.config, users))
    }
}

#[cfg(test)]
mod tests {
    use navigator::engine::{password::PasswordHashing, users::DocumentedUser};

    use super::*;

    fn login(password: &str) -> OwnLogin {
        let hash = PasswordHashing::Sha256.hash(password).unwrap();
        OwnLogin { mark: "1".to_owned(), password: password.to_owned(), hash }
    }

    fn user(name: &str, superuser: bool, roles: &[&str]) -> DocumentedUser {
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        DocumentedUser { name: name.to_owned(), hash: "ab".repeat(32), superuser, roles }
    }

    #[test]
    fn each_user_is_a_line_and_one_that_redis_would_not_take_is_refused() {
        let (own, former) = (login("b"), login("a"));
        let acl = |user| acl(&UsersDocument::new(vec![user], None), &own, &former);
        let lines = acl(user("app", false, &["read", "pubsub"])).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[0], "user default off");
        assert!(
            lines[1].starts_with(&format!("user navigator on #{} #{} -", own.hash, former.hash))
        );
        let hash = "ab".repeat(32);
        let app = format!("user app on #{hash} ~* &* -@all +@connection +@read +@pubsub");
        assert_eq!(lines[2..], [app]);
        assert!(acl(user("root", true, &[])).unwrap().ends_with("+@connection +@all\n"));
        for wrong in [
            user("default", true, &[]),
            user("navigator", true, &[]),
            user("a b", true, &[]),
            user("app", false, &["reader"]),
            user("app", false, &["read +@all"]),
        ] {
            assert!(matches!(acl(wrong), Err(Error::Refused(_))));
        }
    }

    #[test]
    fn a_node_is_open_or_secured_as_a_whole() {
        use {Authentication as A, ClientTls as C, InternodeTls as I};
        let open = rung(false, Path::new("/c"));
        assert_eq!(open, "port 6379\n");
        let text = rung(true, Path::new("/c"));
        for line in ["port 0", "tls-port 6379", "tls-key-file \"/c/tls/client/node.key\""] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        for (internode, client, authentication, expected) in [
            (I::Off, C::Off, A::Off, Some(false)),
            (I::Required, C::Required, A::Password, Some(true)),
            (I::Required, C::Off, A::Password, None),
            (I::Off, C::Required, A::Password, None),
            (I::Required, C::Required, A::Off, None),
            (I::Prefer, C::Optional, A::Password, None),
        ] {
            let security =
                PilotSecurity { internode, client, authentication, ..PilotSecurity::default() };
            assert_eq!(wanted(Some(&security)).ok(), expected, "{security:?}");
        }
        assert!(!wanted(None).unwrap());
    }
}
