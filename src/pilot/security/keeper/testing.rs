//! A database that can be secured and does nothing else, for tests.

use std::{fs, path::Path, sync::Mutex};

use futures::future::BoxFuture;

use super::*;
use crate::{
    api::v1beta1::Pilot,
    engine::pki::PrivateKey,
    pilot::{
        driver::{
            DecommissionState, DriverAnswer, NodeObservation, PeerAddresses, ProcessSpec,
            RunningSecurity,
        },
        tls::{PinnedLeaves, TLS_FOLDER, TlsFile, TlsKeys, testing::TlsServer},
    },
};

pub(in crate::pilot::security) struct FakeDatabase {
    pub(in crate::pilot::security) can: bool,
    pub(super) ports: Vec<SecuredPort>,
    pub(super) pins: PinnedLeaves,
    /// What is reloaded, unless the database takes nothing.
    pub(super) server: Option<TlsServer>,
    pub(super) takes_certificates: Mutex<bool>,
    /// How each try to apply users ends; without an entry, well.
    pub(super) answers: Mutex<Vec<Error>>,
    pub(super) applied: Mutex<Vec<String>>,
    laid_out: Mutex<Vec<Option<String>>>,
}

impl FakeDatabase {
    pub(in crate::pilot::security) fn new(ports: Vec<SecuredPort>) -> Self {
        Self {
            can: true,
            ports,
            pins: PinnedLeaves::default(),
            server: None,
            takes_certificates: Mutex::new(true),
            answers: Mutex::default(),
            applied: Mutex::default(),
            laid_out: Mutex::default(),
        }
    }

    /// The revisions of the users with which starts were laid out.
    pub(in crate::pilot::security) fn laid_out(&self) -> Vec<Option<String>> {
        self.laid_out.lock().unwrap().clone()
    }
}

/// The node `es-a-0` at 127.0.0.1, with its folders below `place`.
pub(in crate::pilot::security) fn node(place: &Path) -> DatabaseNode {
    let mut pilot = Pilot::default();
    pilot.metadata.name = Some("es-a-0".to_owned());
    DatabaseNode {
        pilot,
        peers: Vec::new(),
        addresses: PeerAddresses::default(),
        cluster_uid: None,
        address: [127, 0, 0, 1].into(),
        home: place.join("home"),
        data: place.join("data"),
        config: place.join("config"),
        shared: place.join("shared"),
        memory_limit: None,
        may_found: false,
        ring: None,
    }
}

impl SecuredDatabase for FakeDatabase {
    fn tls_files(&self, keys: &TlsKeys, certificates: &NodeCertificates) -> Vec<TlsFile> {
        let chain = certificates.internode.as_ref().map(|one| one.chain.clone());
        let key = TlsFile { path: "node.key", text: keys.node.clone() };
        vec![key, TlsFile { path: "node.crt", text: chain.unwrap_or_default() }]
    }

    fn lay_out_users(
        &self,
        _node: &DatabaseNode,
        users: Option<&UsersDocument>,
    ) -> Result<(), Error> {
        let revision = users.map(|users| users.revision().to_owned());
        self.laid_out.lock().unwrap().push(revision);
        Ok(())
    }

    fn running_security(&self) -> RunningSecurity {
        RunningSecurity { ports: self.ports.clone(), takes_users: true, serves_both: false }
    }

    fn pinned_leaves(&self) -> &PinnedLeaves {
        &self.pins
    }

    fn reload_tls<'a>(&'a self, node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            if let Some(server) = &self.server
                && *self.takes_certificates.lock().unwrap()
            {
                let read = |name| fs::read(node.config.join(TLS_FOLDER).join(name)).unwrap();
                let key = PrivateKey::from_pem(&read("node.key")).unwrap();
                server.reload(&String::from_utf8(read("node.crt")).unwrap(), &key);
            }
            Ok(())
        })
    }

    fn apply_users<'a>(
        &'a self,
        _node: &'a DatabaseNode,
        users: &'a UsersDocument,
    ) -> DriverAnswer<'a, ()> {
        Box::pin(async move {
            self.applied.lock().unwrap().push(users.revision().to_owned());
            self.answers.lock().unwrap().pop().map_or(Ok(()), Err)
        })
    }
}

impl Driver for FakeDatabase {
    fn validate<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    fn configure<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, ProcessSpec> {
        Box::pin(async { Ok(ProcessSpec::default()) })
    }

    fn observe(&self) -> DriverAnswer<'_, NodeObservation> {
        Box::pin(async { Ok(NodeObservation::default()) })
    }

    fn is_alive(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { true })
    }

    fn decommission<'a>(&'a self, _node: &'a DatabaseNode) -> DriverAnswer<'a, DecommissionState> {
        Box::pin(async { Ok(DecommissionState::Done) })
    }

    fn secured_database(&self) -> Option<&dyn SecuredDatabase> {
        self.can.then_some(self)
    }
}
