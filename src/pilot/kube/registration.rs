//! Makes the node's own Pilot at the API where no controller does: on a host, from its file.
//!
//! Owns when and from what the Pilot is made. Never changes an object that is there: the node
//! follows the API's spec, and the file is for the first time only.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::{sync::Notify, time::sleep};
use tracing::{info, warn};

use crate::{
    api::v1beta1::{Pilot, PilotStatus},
    error::chain,
    pilot::{
        database::DrivenDatabase,
        kube::{
            backoff::RetryBackoff,
            intent,
            pilot_api::{PilotApi, is_conflict},
        },
    },
    runtime::Shutdown,
};

/// Makes the Pilot whenever `absence` is notified: as it was last seen, or else as in `file`. A
/// Pilot that was deleted while its node runs comes back, because the node is still there.
pub async fn run_registration(
    cluster: PilotApi,
    file: Pilot,
    intents: intent::IntentReceiver,
    absence: Arc<Notify>,
    shutdown: Shutdown,
) {
    loop {
        tokio::select! {
            () = shutdown.triggered() => return,
            () = absence.notified() => {}
        }
        let last_pilot = intents.borrow().as_ref().map(|intent| intent.pilot.clone());
        let pilot = without_server_fields(last_pilot.unwrap_or_else(|| file.clone()));
        // When this is dropped half-way, the object is made or not: the next start looks again.
        tokio::select! {
            () = shutdown.triggered() => return,
            () = create_pilot(&cluster, &pilot) => {}
        }
    }
}

/// Tries to make the Pilot until it exists, from this pilot or from another client.
async fn create_pilot(cluster: &PilotApi, pilot: &Pilot) {
    let mut backoff = RetryBackoff::default();
    let mut is_failing = false;
    loop {
        match cluster.create_pilot(pilot).await {
            Ok(_) => {
                info!(name = cluster.name(), "Made the Pilot object");
                return;
            }
            Err(error) if is_conflict(&error) => return,
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    warn!(error = %chain(&error), "Pilot object cannot be made");
                }
            }
        }
        sleep(backoff.next_pause()).await;
    }
}

/// Completes the Pilot of a file for its making: with its name and namespace, and with the label of
/// its cluster, by which its peers find it.
pub fn complete_pilot(
    mut pilot: Pilot,
    database: &DrivenDatabase,
    namespace: &str,
    name: &str,
) -> Pilot {
    pilot.metadata.name = Some(name.to_owned());
    pilot.metadata.namespace = Some(namespace.to_owned());
    if let Some(cluster) = &pilot.spec.cluster_ref {
        let labels = pilot.metadata.labels.get_or_insert_default();
        labels
            .entry(database.names.cluster_label.to_owned())
            .or_insert_with(|| cluster.name.clone());
    }
    pilot
}

/// Returns the Pilot without the fields that a server fills, and without owners: the garbage
/// collector would delete it again if they are gone.
fn without_server_fields(pilot: Pilot) -> Pilot {
    let ObjectMeta { name, namespace, labels, annotations, .. } = pilot.metadata;
    let metadata = ObjectMeta { name, namespace, labels, annotations, ..ObjectMeta::default() };
    Pilot { metadata, status: PilotStatus::default(), ..pilot }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::v1beta1::ClusterRef, pilot::database::EXAMPLE};

    #[test]
    fn a_file_is_completed_and_what_the_server_fills_is_left_to_it() {
        let mut file = Pilot::default();
        file.metadata.uid = Some("1".into());
        file.metadata.resource_version = Some("7".into());
        file.spec.cluster_ref =
            Some(ClusterRef { kind: EXAMPLE.names.kind.into(), name: "shop".into() });
        let pilot = without_server_fields(complete_pilot(file, &EXAMPLE, "db", "host-a"));
        assert_eq!(pilot.metadata.name.as_deref(), Some("host-a"));
        assert_eq!(pilot.metadata.namespace.as_deref(), Some("db"));
        assert_eq!(pilot.metadata.labels.unwrap()[EXAMPLE.names.cluster_label], "shop");
        assert_eq!((pilot.metadata.uid, pilot.metadata.resource_version), (None, None));
    }
}
