//! The role `navigator apiserver`: Navigator's kinds, names and admission, handed to a server that
//! knows none of them.

pub mod pilot_lease;
pub mod pilot_leave;
pub mod pilot_status;

use std::sync::Arc;

use self::{
    pilot_lease::PilotLeaseRestriction, pilot_leave::PilotLeaveRestriction,
    pilot_status::PilotStatusRestriction,
};
use super::{
    admission::AdmissionPlugin,
    installation::{InstallationNames, ServedApi},
    storage::kubernetes::StoredObjectKind,
};
use crate::{
    api::{
        names::{self, annotation},
        scheme::Scheme,
    },
    engine::stored_object,
};

/// The names that Navigator's installation uses.
pub static NAMES: InstallationNames = InstallationNames {
    product: "Navigator",
    service: names::APISERVER,
    tls_secret: names::TLS_SECRET,
    store_record: names::STORE_CONFIG_MAP,
    accept_store: annotation::ACCEPT_STORE,
    unrecorded: annotation::UNRECORDED,
};

/// The kind in which the Kubernetes API keeps objects for Navigator's server.
pub static STORED_OBJECTS: StoredObjectKind = StoredObjectKind {
    group: stored_object::GROUP,
    version: stored_object::VERSION,
    kind: stored_object::KIND,
    plural: stored_object::PLURAL,
};

/// Returns what Navigator's server serves.
pub fn navigator_api(scheme: &'static Scheme) -> ServedApi {
    ServedApi {
        kinds: scheme.served_kinds(),
        names: &NAMES,
        plugins: Box::new(move |namespace| {
            let plugins: [Arc<dyn AdmissionPlugin>; 3] = [
                Arc::new(PilotStatusRestriction::new(namespace)),
                Arc::new(PilotLeaseRestriction::new(scheme, namespace)),
                Arc::new(PilotLeaveRestriction),
            ];
            plugins.into()
        }),
    }
}
