//! How a database's own client is opened in a node, and how it gets its login there.
//!
//! Owns the rule that a password stands in no argument and in no variable: arguments of `kubectl
//! exec` are in the audit trail of kube-apiserver, and both are for everybody to see who may look at
//! the node's processes. A first `exec` writes the login from its standard input into a file that the
//! database's user alone may read; the console opens that file and removes its name before it does
//! anything else.

use std::fmt;

use crate::api::{
    names,
    v1beta1::{Authentication, ClientTls, PilotSecurity},
};

/// Shell script that writes a login from standard input to the file `$1`. A file that no console
/// takes, because its `exec` failed, is removed after a minute.
pub const KEEP_LOGIN: &str = r#"umask 077
set -C
cat >"$1" || exit
(sleep 60; rm -f "$1") </dev/null >/dev/null 2>&1 &"#;

/// How the plugin opens a database's own client: a program in the node's container and its first
/// arguments. The user's arguments follow.
#[derive(Debug)]
pub struct DatabaseConsole {
    /// Of a node that is open.
    pub open: &'static [&'static str],
    /// Of one that encrypts or asks for a password; `None` where no node of the database does.
    pub secured: Option<SecuredConsole>,
}

/// How the client of a secured node is opened.
#[derive(Debug)]
pub struct SecuredConsole {
    /// Returns the program and its first arguments.
    pub command: fn(&ConsoleAccess) -> Vec<String>,
    /// Returns the text of the file by which the client logs in, or what is wrong with the login for
    /// such a file.
    pub login_file: fn(&ConsoleAccess, &ConsoleLogin<'_>) -> Result<String, &'static str>,
    /// Returns a command in the container that asks for the password.
    pub by_hand: fn(&ConsoleAccess) -> String,
}

/// What a client needs to know of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleAccess {
    /// The node speaks TLS with clients.
    pub tls: bool,
    /// It asks clients for a certificate. That of the node between nodes is let in: it is how pilots
    /// come in.
    pub certificate: bool,
    /// File in the container that holds the login; `None` where nobody is asked for one.
    pub login: Option<String>,
}

impl ConsoleAccess {
    /// Returns how a node is entered that was told this; `None` for one that is open. `number` is in
    /// the name of the login's file, and shall be unlike that of any other console.
    pub fn new(security: Option<&PilotSecurity>, number: u64) -> Option<Self> {
        let security = security?;
        let PilotSecurity { client, authentication, .. } = security;
        let login = (*authentication == Authentication::Password)
            .then(|| format!("{}/console-{number:016x}", names::CONFIG_DIR));
        let tls = *client != ClientTls::Off;
        let access =
            Self { tls, certificate: tls && security.requires_client_certificates(), login };
        (access != Self::default()).then_some(access)
    }
}

/// A user and a password, for a client.
pub struct ConsoleLogin<'a> {
    pub username: &'a str,
    pub password: &'a str,
}

impl fmt::Debug for ConsoleLogin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password: _ } = self;
        f.debug_struct("ConsoleLogin").field("username", username).finish_non_exhaustive()
    }
}
