//! What one database can do of encryption and logins: [`SecuritySupport`].

use super::releases::MinorVersion;

/// How the clusters of a database are encrypted and ask for logins.
#[derive(Clone, Copy, Debug)]
pub struct SecuritySupport {
    /// The first version that can.
    pub since: MinorVersion,
    /// Encryption between nodes and logins are one switch, turned on all nodes at once, and no port
    /// takes both TLS and plain text.
    pub all_at_once: bool,
    /// Clients and nodes come to one port, so that it is encrypted for both or for neither.
    pub one_port: bool,
    /// Names that no user of a spec may have, beside those of Navigator's own users.
    pub reserved_users: &'static [&'static str],
    /// Roles can be declared, whose rights its rules validate.
    pub makes_roles: bool,
}
