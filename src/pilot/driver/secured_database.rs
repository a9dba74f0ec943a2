//! What a database must be able to do to have its node secured.

use std::{net::SocketAddr, time::Duration};

use super::{DatabaseNode, DriverAnswer, Error};
use crate::{
    api::v1beta1::ClientConnections,
    engine::{pki::CertificateUse, users::UsersDocument},
    pilot::tls::{NodeCertificates, PinnedLeaves, TlsFile, TlsKeys},
};

/// A port that shows a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecuredPort {
    /// Who connects.
    pub usage: CertificateUse,
    /// Which of the node's certificates it shows. Where other nodes come to the port of clients, it
    /// shows them the certificate for clients.
    pub shows: CertificateUse,
    pub address: SocketAddr,
}

impl SecuredPort {
    /// A port of its own for this use.
    pub fn new(usage: CertificateUse, address: SocketAddr) -> Self {
        Self { usage, shows: usage, address }
    }
}

/// What the database that runs encrypts and asks for, which may not be what is wanted by now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningSecurity {
    pub ports: Vec<SecuredPort>,
    /// The database can be given users: clients are asked who they are, or will be.
    pub takes_users: bool,
    /// Clients are served over TLS and in plain text.
    pub serves_both: bool,
}

/// A database that can encrypt and ask for passwords.
pub trait SecuredDatabase: Send + Sync {
    /// Returns the files with which the database encrypts, in the form that it reads.
    fn tls_files(&self, keys: &TlsKeys, certificates: &NodeCertificates) -> Vec<TlsFile> {
        TlsFile::for_each_use(keys, certificates)
    }
    /// Writes, before a start and after [`Driver::configure`](crate::pilot::driver::Driver), who may
    /// log in; without a document the pilot alone.
    fn lay_out_users(
        &self,
        node: &DatabaseNode,
        users: Option<&UsersDocument>,
    ) -> Result<(), Error>;
    /// Says what the process that runs encrypts and asks for.
    fn running_security(&self) -> RunningSecurity;
    /// The certificates that the pilot's own client accepts, and no others.
    fn pinned_leaves(&self) -> &PinnedLeaves;
    /// Has the running database read the files of [`Self::tls_files`] again. A database that
    /// watches them has nothing to do.
    fn reload_tls<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async { Ok(()) })
    }
    /// Says how clients are connected; asked while both TLS and plain text are taken.
    fn client_connections(&self) -> DriverAnswer<'_, ClientConnections> {
        let message = "this pilot cannot ask how clients are connected";
        Box::pin(async move { Err(Error::NotYet(message.to_owned())) })
    }
    /// After how long users that were applied are applied again: somebody else may have changed them.
    /// `None`: nobody can.
    fn recheck_users(&self) -> Option<Duration> {
        None
    }
    /// Has the running database take these users, and returns once it did. [`Error::Refused`]: it
    /// would not, and the sentence says which users it has. Any other error: it is not known yet
    /// whether it did. Does nothing where the database has them.
    fn apply_users<'a>(
        &'a self,
        node: &'a DatabaseNode,
        users: &'a UsersDocument,
    ) -> DriverAnswer<'a, ()>;
}
