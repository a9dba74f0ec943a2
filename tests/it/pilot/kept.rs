//! A cluster that is made again on volumes that were kept: none, some or all of them; by pilots
//! of before rings had ids; and what becomes of a volume of another ring.

use std::{fs, path::PathBuf, rc::Rc, time::Duration};

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use navigator::{
    api::v1beta1::{Founder, LeaderLease, Pilot},
    manifest::InstallSettings,
};
use serde_json::{Value, json};

use crate::support::{
    bed::{Bed, NAMESPACE, condition},
    nodes::Nodes,
    ring::{self, Ring},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(120);
const LEASE: &str = "cassandra-demo-leaderelection";

/// Two nodes of one cluster, whose object may be made again, and the ring that they form.
struct Pair {
    ring: Ring,
    nodes: Nodes,
}

impl Pair {
    async fn new(net: u8) -> Self {
        let bed = Rc::new(Bed::start().await);
        let ring = Ring::new(bed.world.folder.path(), "demo");
        let nodes = ring.nodes(&bed, net, 2);
        Self { ring, nodes }
    }

    async fn runs(&self, node: usize) {
        self.nodes.phase(node, "Running").await;
    }

    async fn recorded(&self) -> Option<Founder> {
        self.nodes.bed.leases().get_opt(LEASE).await.unwrap()?.spec.founder
    }

    async fn shows(&self, node: usize, type_: &str, reason: &str, part: &str) -> String {
        let what = format!("{type_} is {reason}, with {part:?}");
        self.nodes
            .shows(node, &what, PATIENCE, |pilot| {
                let (_, why, message) = condition(pilot, type_)?;
                (why == reason && message.contains(part)).then(|| message.to_owned())
            })
            .await
    }

    fn mark_path(&self, node: usize) -> PathBuf {
        self.nodes.seat(node).data().join(".navigator/identity.json")
    }

    fn mark(&self, node: usize) -> Value {
        serde_json::from_slice(&fs::read(self.mark_path(node)).unwrap()).unwrap()
    }

    /// The mark as releases wrote it that knew no ids of rings.
    fn forget_ring(&self, node: usize) {
        let mut mark = self.mark(node);
        mark.as_object_mut().unwrap().remove("ring").expect("it is marked");
        fs::write(self.mark_path(node), mark.to_string()).unwrap();
    }

    fn id(&self, node: usize) -> String {
        self.ring.members()[&self.nodes.seat(node).address.to_string()].id.clone()
    }
}

#[tokio::test]
async fn a_cluster_made_again_on_some_of_its_volumes_is_the_same_ring() {
    let mut pair = Pair::new(181).await;
    pair.nodes.form().await;
    let founded = pair.recorded().await.unwrap();
    let (ids, first) = ([pair.id(0), pair.id(1)], pair.nodes.uid());
    for node in 0..2 {
        assert_eq!(pair.mark(node)["ring"], founded.id);
    }

    pair.nodes.delete().await;
    pair.nodes.lose(0);
    pair.nodes.create(0).await;
    pair.nodes.create(1).await;
    pair.nodes.start(0);
    // The node is alone and its volume is empty, and yet it does not found.
    let told = pair.shows(0, "Ready", "Starting", "waits for cass-demo-a-1 to say").await;
    assert!(told.contains("no node founds"), "{told}");
    pair.shows(0, "VolumeHoldsData", "Empty", "").await;
    pair.nodes.start(1);
    pair.runs(1).await;
    pair.runs(0).await;
    pair.shows(0, "VolumeHoldsData", "HoldsData", "").await;
    assert_eq!(pair.ring.foundings().len(), 1, "{:?}", pair.ring.foundings());
    assert_eq!(pair.ring.wrongs(), [""; 0]);
    assert_eq!(pair.id(1), ids[1]);
    assert_eq!(pair.ring.in_mode("NORMAL").len(), 2);
    let again = pair.recorded().await.unwrap();
    assert_eq!((again.name.as_str(), &again.id), ("cass-demo-a-1", &founded.id));
    assert_eq!(again.formerly, [first]);
    for node in 0..2 {
        assert_eq!(pair.mark(node)["ring"], founded.id);
        assert_eq!(pair.mark(node)["clusterUid"], pair.nodes.uid());
    }

    // All volumes are kept.
    let ids = [pair.id(0), pair.id(1)];
    pair.nodes.delete().await;
    pair.nodes.form().await;
    assert_eq!([pair.id(0), pair.id(1)], ids);
    assert_eq!(pair.recorded().await.unwrap().id, founded.id);
    assert_eq!(pair.ring.foundings().len(), 1);

    // None is kept: another ring.
    pair.nodes.delete().await;
    pair.nodes.lose(0);
    pair.nodes.lose(1);
    pair.ring.forget_members();
    pair.nodes.form().await;
    assert_eq!(pair.ring.foundings().len(), 2);
    assert_ne!(pair.recorded().await.unwrap().id, founded.id);
    assert_eq!(pair.ring.wrongs(), [""; 0]);
    pair.nodes.stop_all().await;
}

#[tokio::test]
async fn a_volume_of_another_ring_is_refused_and_both_ways_on_lead_on() {
    let mut pair = Pair::new(182).await;
    pair.nodes.form().await;
    let former = pair.recorded().await.unwrap().id;
    pair.nodes.delete().await;
    // No pilot reports for the second volume when the first node founds a new ring.
    pair.nodes.lose(0);
    pair.ring.forget_members();
    pair.nodes.create(0).await;
    pair.nodes.start(0);
    pair.runs(0).await;
    let present = pair.recorded().await.unwrap().id;
    assert_ne!(former, present);

    pair.nodes.create(1).await;
    let starts = ring::count(pair.nodes.seat(1), "start");
    pair.nodes.start(1);
    let told = pair.shows(1, "PreflightPassed", "IdentityMismatch", &former).await;
    let ways = ["delete claim cassandra-data-cass-demo-a-1 and pod", "adopt-data=true"];
    for part in [present.as_str(), "cass-demo-a-1 in ring"].into_iter().chain(ways) {
        assert!(told.contains(part), "{part}: {told}");
    }
    pair.nodes.bed.phase("cass-demo-a-1", "Failed", PATIENCE).await;
    assert_eq!(ring::count(pair.nodes.seat(1), "start"), starts, "nothing was started");
    assert_eq!(pair.mark(1)["ring"], former, "nothing was changed");

    let adopt = json!({"metadata": {"annotations": {"navigator.jetstack.io/adopt-data": "true"}}});
    let patch = Patch::Merge(&adopt);
    pair.nodes.bed.pilots().patch("cass-demo-a-1", &PatchParams::default(), &patch).await.unwrap();
    pair.runs(1).await;
    assert_eq!(pair.mark(1)["ring"], present);
    // As the condition's message warns, the adopted data mix two clusters.
    assert!(pair.ring.wrongs()[0].contains("two clusters"), "{:?}", pair.ring.wrongs());

    // The other way on: an empty node joins.
    pair.nodes.stop(1).await;
    pair.nodes.bed.delete("cass-demo-a-1").await;
    pair.nodes.lose(1);
    fs::remove_file(pair.ring.member_path(pair.nodes.seat(1))).unwrap();
    pair.nodes.create(1).await;
    pair.nodes.start(1);
    pair.runs(1).await;
    assert_eq!(pair.mark(1)["ring"], present);
    assert_eq!(
        pair.ring.members()[&pair.nodes.seat(1).address.to_string()].cluster,
        pair.ring.members()[&pair.nodes.seat(0).address.to_string()].cluster,
    );
    pair.nodes.stop_all().await;
}

#[tokio::test]
async fn volumes_of_before_rings_had_ids_are_taken_into_their_ring_once() {
    let mut pair = Pair::new(183).await;
    pair.nodes.form().await;
    let founded = pair.recorded().await.unwrap().id;
    let ids = [pair.id(0), pair.id(1)];
    pair.nodes.stop_all().await;
    pair.forget_ring(0);
    pair.forget_ring(1);
    // The cluster object stays: this is an upgrade.
    pair.nodes.start(0);
    pair.nodes.start(1);
    for node in 0..2 {
        until("the volume is marked", PATIENCE, async || {
            let mark = pair.mark(node);
            if mark["ring"] == founded { Ok(()) } else { Err(mark.to_string()) }
        })
        .await;
        pair.runs(node).await;
    }
    // A volume that no newer pilot has marked, when the cluster is made again.
    pair.nodes.delete().await;
    pair.forget_ring(0);
    pair.nodes.form().await;
    assert_eq!(pair.mark(0)["ring"], pair.mark(1)["ring"]);
    // A cluster of an older release has no record of its ring, when all its volumes were kept.
    pair.nodes.delete().await;
    pair.forget_ring(0);
    pair.forget_ring(1);
    pair.nodes.form().await;
    assert_eq!(pair.mark(0)["ring"], pair.mark(1)["ring"]);
    assert_eq!([pair.id(0), pair.id(1)], ids);
    assert_eq!(pair.ring.foundings().len(), 1);
    // The next node that starts, or looks some minutes later, records the ring again when the record
    // is lost under a running cluster.
    pair.nodes.bed.leases().delete(LEASE, &DeleteParams::default()).await.unwrap();
    let ring = pair.mark(0)["ring"].as_str().unwrap().to_owned();
    pair.nodes.stop(0).await;
    pair.nodes.start(0);
    until("the ring is on record", PATIENCE, async || match pair.recorded().await {
        Some(founder) if founder.id == ring => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    pair.nodes.stop_all().await;
}

#[tokio::test]
async fn when_all_volumes_are_lost_the_condition_names_the_way_out() {
    let mut pair = Pair::new(184).await;
    pair.nodes.form().await;
    pair.nodes.stop_all().await;
    for node in 0..2 {
        pair.nodes.lose(node);
        pair.nodes.start(node);
    }
    let ring = pair.recorded().await.unwrap().id;
    for node in 0..2 {
        let told = pair.shows(node, "Ready", "Starting", "no volume of the cluster holds").await;
        let name = pair.nodes.name(node);
        let way = format!("kubectl annotate pilot {name} navigator.jetstack.io/found-anew={ring}");
        assert!(told.contains(&way), "{told}");
    }
    assert_eq!(pair.ring.foundings().len(), 1);
    pair.ring.forget_members();

    // A user who may write clusters is no administrator, and gets out all the same.
    let editor = editor(&pair.nodes.bed);
    let leases: Api<LeaderLease> = Api::namespaced(editor.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"founder": null}}));
    let refused = leases.patch(LEASE, &PatchParams::default(), &patch).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");
    let pilots: Api<Pilot> = Api::namespaced(editor, NAMESPACE);
    let word = json!({"metadata": {"annotations": {"navigator.jetstack.io/found-anew": ring}}});
    let patch = Patch::Merge(&word);
    pilots.patch(pair.nodes.name(1), &PatchParams::default(), &patch).await.unwrap();
    pair.runs(1).await;
    pair.runs(0).await;
    let anew = pair.recorded().await.unwrap();
    assert_eq!(anew.name, pair.nodes.name(1), "the node that was annotated founds");
    assert_ne!(anew.id, ring);
    assert_eq!(pair.ring.foundings().len(), 2);
    assert_eq!(pair.ring.wrongs(), [""; 0]);

    // The annotation stands, and counts for no later ring. An administrator removes the record.
    pair.nodes.stop_all().await;
    for node in 0..2 {
        pair.nodes.lose(node);
        pair.nodes.start(node);
    }
    for node in 0..2 {
        let told = pair.shows(node, "Ready", "Starting", "no volume of the cluster holds").await;
        assert!(told.contains(&anew.id), "{told}");
    }
    assert_eq!(pair.ring.foundings().len(), 2);
    pair.ring.forget_members();
    let patch: json_patch::Patch =
        serde_json::from_value(json!([{"op": "remove", "path": "/spec/founder"}])).unwrap();
    let patch = Patch::Json::<()>(patch);
    pair.nodes.bed.leases().patch(LEASE, &PatchParams::default(), &patch).await.unwrap();
    pair.runs(0).await;
    pair.runs(1).await;
    assert_eq!(pair.ring.foundings().len(), 3);
    assert_eq!(pair.ring.wrongs(), [""; 0]);
    pair.nodes.stop_all().await;
}

/// A client with the rights that the installation adds to Kubernetes' own role `edit`, and no more.
fn editor(bed: &Bed) -> kube::Client {
    const EDITOR: &str = "editor";
    bed.world.kube.add_token(EDITOR, json!({"username": EDITOR, "groups": []}));
    let scheme = navigator::database::build_scheme(navigator::databases::ALL);
    let install = navigator::manifest::install_objects(&InstallSettings::default(), scheme);
    let role =
        install.iter().find(|object| object["metadata"]["name"] == "navigator-edit").unwrap();
    let texts = |list: &Value| serde_json::from_value::<Vec<String>>(list.clone()).unwrap();
    for rule in role["rules"].as_array().unwrap() {
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                bed.world.kube.allow(EDITOR, &verb, &resource);
            }
        }
    }
    let mut config = kube::Config::new(bed.world.kube.url.parse().unwrap());
    config.auth_info.token = Some(EDITOR.to_owned().into());
    kube::Client::try_from(config).unwrap()
}
