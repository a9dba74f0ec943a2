//! A node whose data fit nowhere else stays, and leaves once they do.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{path::PathBuf, process::Command};

use http::Method;
use navigator::api::v1beta1::NodeChange;
use serde_json::json;

use super::ensemble::{Ensemble, START};
use crate::report::Told;

/// Volumes of a size of their own; root alone can mount them.
struct Volume(PathBuf);

impl Volume {
    fn mount(path: PathBuf, mebibytes: u32) -> Self {
        let size = format!("size={mebibytes}m,mode=0755");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "navigator-test"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success(), "mount failed: this scenario needs root");
        Self(path)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A database that is still being killed holds it for a moment: the kernel unmounts then.
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

pub(crate) async fn a_node_stays_where_the_rest_has_no_room(told: &Told) {
    let mut ensemble = Ensemble::new("7.17.29", 3).await;
    let volumes: Vec<Volume> =
        (0..2).map(|node| Volume::mount(ensemble.seat(node).data(), 96)).collect();
    ensemble.start_all();
    ensemble.settled(&[0, 1, 2]).await;
    for name in ["keep", "ballast"] {
        let index = json!({
            "settings": {
                "number_of_shards": 1, "number_of_replicas": 0,
                "index.routing.allocation.require._name": ensemble.name(2),
            },
            "mappings": {"properties": {"noise": {"type": "text", "index": false}}},
        });
        ensemble.ask(0, Method::PUT, &format!("/{name}"), Some(&index)).await;
        let documents = if name == "keep" { 20 } else { 400 };
        for id in 0..documents {
            let noise: String =
                (0..20_000).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
            let path = format!("/{name}/_doc/{id}");
            ensemble.ask(2, Method::PUT, &path, Some(&json!({ "noise": [noise] }))).await;
        }
        ensemble.ask(0, Method::POST, &format!("/{name}/_flush"), None).await;
        let free = json!({"index.routing.allocation.require._name": null});
        ensemble.set(0, &json!({"transient": {"cluster.routing.rebalance.enable": "none"}})).await;
        ensemble.ask(0, Method::PUT, &format!("/{name}/_settings"), Some(&free)).await;
    }
    ensemble.bed.change(ensemble.name(2), json!({"phase": "Decommissioned"})).await;
    ensemble.told(2, "Decommissioned", "False", "NodeDecommissioning", "have room for").await;
    ensemble
        .bed
        .shows(ensemble.name(2), "SpaceElsewhere against Leave", START, |pilot| {
            let mut blockers = pilot.status.blockers.iter();
            let refused = blockers.find(|one| one.predicate == "SpaceElsewhere")?;
            (refused.against == [NodeChange::Leave]).then_some(())
        })
        .await;
    told.claim("more data than the others have room for: the node stays, and a blocker says so");
    ensemble.ask(0, Method::DELETE, "/ballast", None).await;
    ensemble.left(2).await;
    let count = ensemble.ask(0, Method::GET, "/keep/_count", None).await;
    assert_eq!(count["count"], 20, "{count}");
    told.claim("room made: it leaves, with what is left of its data");
    drop(ensemble);
    drop(volumes);
}
