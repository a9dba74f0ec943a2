//! Runs the controller, a kubelet and pilots around the scripted API.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Duration, Instant, timeout_at},
};

use super::{
    super::{
        context::{self, ControllerContext},
        desired_state::{self, ManagedDatabase, ObjectSettings},
        event_causes::EventCauses,
        events::ClusterEventPublisher,
        expansion::ExpansionAnswers,
        heartbeats::HeartbeatTracker,
        metrics::Metrics,
        object_caches::ObjectCaches,
        queue::{ClusterKey, ReconcileOutcome, WorkQueue},
        reconcile::reconcile,
        status_pace::StatusPace,
        testing::example::DATABASE,
        trust_observations::TrustObservations,
    },
    api::{Api, Id, id, in_namespace, namespace},
};
use crate::{
    api::v1beta1::{API_VERSION, PilotSecurity, SecurityRungs},
    engine::seal::{KEY_BYTES, SealKey},
    runtime::leader::LeaderClaim,
};

pub(super) const STORE: &str = "our-store";

pub(super) fn cluster_id() -> Id {
    id("exampleclusters", "shop")
}

pub(super) struct Harness {
    pub(super) api: Api,
    /// Namespace and name of the cluster that is reconciled.
    namespace: &'static str,
    name: &'static str,
    pub(super) database: &'static ManagedDatabase,
    /// Pilots that are asked to leave finish moving their data away.
    pub(super) drains_end: bool,
    /// Pods that are started become ready.
    pub(super) pods_start: bool,
    /// Heap setting that pilots reject.
    pub(super) rejects: &'static str,
    /// Image of the pilot that the controller wants.
    pub(super) image: &'static str,
    /// Image that no registry has.
    pub(super) unpulled: &'static str,
    /// Pilots restart their databases in their pods.
    pub(super) in_place: bool,
    /// A policy removes our annotations from pods.
    pub(super) strips: bool,
    /// Clusters own their objects, as in releases before 0.3.
    pub(super) owner_references: bool,
    /// No pod is scheduled on the one machine.
    pub(super) cordoned: bool,
    /// A quota: no pod is created beyond this number.
    pub(super) most_pods: usize,
    causes: EventCauses,
    expansion: ExpansionAnswers,
    pub(super) trust: TrustObservations,
}

/// The only machine.
pub(super) const MACHINE: &str = "m-1";

impl Harness {
    /// Makes an empty namespace with one cluster, of one pool, that the controller has not seen
    /// yet.
    pub(super) fn new(replicas: u32) -> Self {
        let api = Api::default();
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"},
        });
        let cluster = json!({
            "apiVersion": API_VERSION,
            "kind": "ExampleCluster",
            "metadata": {"name": "shop", "namespace": "default"},
            "spec": {
                "version": "5.0.6",
                "nodePools": [{
                    "name": "a",
                    "replicas": replicas,
                    "persistence": {"size": "1Gi", "retention": {"whenDeleted": "Delete"}},
                }],
            },
        });
        for (id, body) in [(id("namespaces", "default"), namespace), (cluster_id(), cluster)] {
            api.server().add(&id, body);
        }
        Self {
            api,
            namespace: "default",
            name: "shop",
            database: &DATABASE,
            drains_end: true,
            pods_start: true,
            rejects: "64Mi",
            image: "navigator:1",
            unpulled: "navigator:none",
            in_place: false,
            strips: false,
            owner_references: false,
            cordoned: false,
            most_pods: usize::MAX,
            causes: EventCauses::default(),
            expansion: ExpansionAnswers::default(),
            trust: TrustObservations::default(),
        }
    }

    /// Returns a harness of another cluster in the same namespace.
    pub(super) fn beside(&self, name: &'static str) -> Self {
        self.elsewhere("default", name)
    }

    /// Returns a harness of another cluster behind the same API.
    pub(super) fn elsewhere(&self, namespace: &'static str, name: &'static str) -> Self {
        Self { api: self.api.clone(), namespace, name, ..Self::new(0) }
    }

    fn key(&self) -> ClusterKey {
        let (namespace, name) = (self.namespace.into(), self.name.into());
        ClusterKey { kind: DATABASE.names.kind, namespace, name }
    }

    /// Returns a copy of this harness in its present state.
    pub(super) fn copy(&self) -> Self {
        let Self {
            api,
            namespace,
            name,
            database,
            drains_end,
            pods_start,
            rejects,
            image,
            unpulled,
            in_place,
            strips,
            owner_references,
            cordoned,
            most_pods,
            causes: _,
            expansion: _,
            trust: _,
        } = self;
        let (drains_end, pods_start) = (*drains_end, *pods_start);
        let (strips, owner_references, cordoned) = (*strips, *owner_references, *cordoned);
        Self {
            api: api.copy(),
            namespace,
            name,
            database,
            drains_end,
            pods_start,
            rejects,
            image,
            unpulled,
            in_place: *in_place,
            strips,
            owner_references,
            cordoned,
            most_pods: *most_pods,
            causes: EventCauses::default(),
            expansion: ExpansionAnswers::default(),
            trust: TrustObservations::default(),
        }
    }

    pub(super) fn object(&self, plural: &str, name: &str) -> Value {
        self.api.server().objects.get(&id(plural, name)).cloned().unwrap_or_default()
    }

    pub(super) fn scale(&self, replicas: u32) {
        self.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["nodePools"][0]["replicas"] = json!(replicas);
        });
    }

    /// Deletes the cluster and makes it again, as a person would. All its objects go but claims.
    pub(super) fn make_again(&self) {
        let mut server = self.api.server();
        let mut cluster = server.objects[&cluster_id()].clone();
        let owned: Vec<Id> = server.objects.keys().cloned().collect();
        for id in owned {
            if !["namespaces", "persistentvolumeclaims"].contains(&id.0.as_str()) {
                server.objects.remove(&id);
            }
        }
        if let Some(cluster) = cluster.as_object_mut() {
            cluster.remove("status");
            cluster["metadata"] = json!({"name": "shop", "namespace": "default"});
        }
        server.add(&cluster_id(), cluster);
    }

    pub(super) fn enlarge(&self, size: &str) {
        self.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["nodePools"][0]["persistence"]["size"] = json!(size);
        });
    }

    pub(super) fn set_heap(&self, heap: &str) {
        self.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["jvm"] = json!({ "heap": heap });
        });
    }

    pub(super) fn ask_for_a_restart(&self, time: &str) {
        self.api.server().edit(&cluster_id(), |cluster| {
            cluster["spec"]["restartedAt"] = json!(time);
        });
    }

    /// Returns the uids of the pods.
    pub(super) fn pods(&self) -> Vec<Value> {
        self.api.server().of("pods").map(|pod| pod["metadata"]["uid"].clone()).collect()
    }

    pub(super) fn replicas(&self) -> Value {
        self.object("statefulsets", "ex-shop-a")["spec"]["replicas"].clone()
    }

    pub(super) fn condition(&self, type_: &str) -> Value {
        let cluster = self.object("exampleclusters", "shop");
        let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
    }

    pub(super) fn writes(&self) -> usize {
        self.api.server().writes.len()
    }

    /// Returns what the caches of a new process hold.
    pub(super) fn caches(&self) -> Vec<Value> {
        self.api.server().objects.values().cloned().collect()
    }

    /// Returns the context of a leader whose caches were just filled.
    pub(super) fn leading(&self) -> ControllerContext {
        let until = Instant::now() + Duration::from_secs(3600);
        let (_lead, claim) = watch::channel(LeaderClaim::Held { until, transition: 0 });
        self.context(&self.caches(), claim)
    }

    /// Reconciles once as a leader with these caches; `None` when the process died.
    pub(super) async fn reconcile_with(
        &self,
        caches: &[Value],
    ) -> Option<(ReconcileOutcome, &'static str)> {
        let until = Instant::now() + Duration::from_secs(3600);
        self.reconcile_as(caches, LeaderClaim::Held { until, transition: 0 }).await
    }

    /// Returns the context of a process with these caches. Its pilots have all just reported.
    pub(super) fn context(
        &self,
        caches: &[Value],
        claim: watch::Receiver<LeaderClaim>,
    ) -> ControllerContext {
        let client = self.api.client();
        let (stores, heard) =
            (ObjectCaches::with_objects(&[self.database], caches), HeartbeatTracker::default());
        heard.hear_all(&stores.pilots.all_objects());
        ControllerContext {
            stores,
            heard,
            causes: self.causes.clone(),
            expansion: self.expansion.clone(),
            trust: self.trust.clone(),
            pace: StatusPace::default(),
            settings: ObjectSettings {
                pilot_image: self.image.into(),
                store_id: STORE.into(),
                owner_references: self.owner_references,
            },
            seals: SealKey::new(&[7; KEY_BYTES]),
            events: ClusterEventPublisher::new(client.clone(), "controller-0".into()),
            metrics: Metrics::register(&Registry::new()),
            writer: context::fenced_client(&client, &claim),
            client,
            claim,
        }
    }

    pub(super) async fn reconcile_as(
        &self,
        caches: &[Value],
        claim: LeaderClaim,
    ) -> Option<(ReconcileOutcome, &'static str)> {
        self.reconcile_after(caches, claim, 0).await
    }

    /// Reconciles as after `failures` failures in a row.
    async fn reconcile_after(
        &self,
        caches: &[Value],
        claim: LeaderClaim,
        failures: u32,
    ) -> Option<(ReconcileOutcome, &'static str)> {
        let (_lead, claim) = watch::channel(claim);
        let ctx = self.context(caches, claim);
        let key = self.key();
        let cluster = caches.iter().find(|object| {
            let is_here = namespace(object) == self.namespace;
            is_here && object["kind"] == "ExampleCluster" && object["metadata"]["name"] == *key.name
        });
        let uid = cluster.map(|cluster| cluster["metadata"]["uid"].as_str().unwrap().to_owned());
        self.api.server().writer = uid;
        let cluster = cluster.map(|cluster| {
            Arc::new(serde_json::from_value::<DynamicObject>(cluster.clone()).unwrap())
        });
        tokio::select! {
            biased;
            done = reconcile(&ctx, self.database, &key, cluster, failures) => Some(done),
            () = self.api.died() => None,
        }
    }

    pub(super) async fn reconcile(&self) -> Option<(ReconcileOutcome, &'static str)> {
        let caches = self.caches();
        self.reconcile_with(&caches).await
    }

    /// Reconciles for `time`, whenever the queue says so, as a worker does; kubelet and pilots do
    /// nothing meanwhile.
    pub(super) async fn work(&self, time: Duration) {
        let queue = WorkQueue::default();
        queue.add(self.key());
        let end = Instant::now() + time;
        while let Ok(key) = timeout_at(end, queue.take_key()).await {
            let claim = LeaderClaim::Held { until: end, transition: 0 };
            let (caches, failures) = (self.caches(), queue.failures(&key));
            let (outcome, _) = self.reconcile_after(&caches, claim, failures).await.unwrap();
            queue.finish_reconcile(key, outcome);
        }
    }

    /// Reconciles, and lets kubelet and pilots work, until nothing changes any more.
    pub(super) async fn settle(&self) {
        let mut quiet = 0;
        for _ in 0..100 {
            let before = self.caches();
            self.reconcile().await;
            self.kubelet();
            quiet = if self.caches() == before { quiet + 1 } else { 0 };
            // One quiet reconcile may be one that failed.
            if quiet == 2 {
                return;
            }
        }
        let server = self.api.server();
        panic!("it does not settle; last writes: {:#?}", server.writes.iter().rev().take(20));
    }

    /// Does the work of the StatefulSet controller, the kubelet and the pilots.
    pub(super) fn kubelet(&self) {
        let mut server = self.api.server();
        server.writer = None;
        let sets: Vec<Value> = server.of("statefulsets").cloned().collect();
        let mut wanted = Vec::new();
        for set in &sets {
            let name = set["metadata"]["name"].as_str().unwrap();
            let replicas = set["spec"]["replicas"].as_u64().unwrap();
            let pod = |ordinal| in_namespace(namespace(set), &format!("{name}-{ordinal}"));
            wanted.extend((0..replicas).map(|ordinal| (pod(ordinal), set)));
        }
        let pods: Vec<String> =
            server.objects.keys().filter(|(p, _)| p == "pods").map(|(_, n)| n.clone()).collect();
        let owned = |pod: &Value| pod["metadata"]["ownerReferences"][0].is_object();
        for pod in pods.iter().filter(|pod| wanted.iter().all(|(name, _)| name != *pod)) {
            // A pod that was left as an orphan runs on.
            if owned(&server.objects[&id("pods", pod)]) {
                server.delete(&id("pods", pod));
            }
        }
        let owner = |revision: &Value| revision["metadata"]["ownerReferences"][0]["uid"].clone();
        server.objects.retain(|(plural, _), object| {
            let lives = sets.iter().any(|set| set["metadata"]["uid"] == owner(object));
            plural != "controllerrevisions" || lives
        });
        for set in &sets {
            keep_revision(&mut server, set);
        }
        server.grow_volumes();
        for (name, set) in wanted {
            let pod = id("pods", &name);
            let owner = json!([{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "controller": true,
                "name": set["metadata"]["name"], "uid": set["metadata"]["uid"],
            }]);
            if let Some(found) = server.objects.get(&pod) {
                if !owned(found) {
                    server.edit(&pod, |pod| pod["metadata"]["ownerReferences"] = owner);
                }
                continue;
            }
            if server.of("pods").count() >= self.most_pods {
                server.tell_refusal(&name, set);
                continue;
            }
            let own_name = name.rsplit('/').next().unwrap().to_owned();
            let claim_name = format!("example-data-{own_name}");
            let claim = id("persistentvolumeclaims", &in_namespace(namespace(set), &claim_name));
            if !server.objects.contains_key(&claim) {
                let template = &set["spec"]["volumeClaimTemplates"][0];
                let body = json!({
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": claim_name,
                        "namespace": namespace(set),
                        "labels": template["metadata"]["labels"],
                        "annotations": template["metadata"]["annotations"],
                    },
                    "spec": template["spec"],
                    "status": {
                        "phase": "Bound", "capacity": template["spec"]["resources"]["requests"],
                    },
                });
                server.add(&claim, body);
            }
            let mut body = set["spec"]["template"].clone();
            body["apiVersion"] = json!("v1");
            body["kind"] = json!("Pod");
            body["metadata"]["name"] = json!(own_name);
            body["metadata"]["namespace"] = json!(namespace(set));
            body["metadata"]["ownerReferences"] = owner;
            if self.strips {
                let revision = desired_state::hash(&set["spec"]["template"]);
                let meta = body["metadata"].as_object_mut().unwrap();
                meta.remove("annotations");
                meta["labels"]["controller-revision-hash"] = json!(revision);
                let name = set["metadata"]["name"].as_str().unwrap();
                server.edit(&id("statefulsets", &in_namespace(namespace(set), name)), |set| {
                    set["status"] = json!({
                        "replicas": 0, "updateRevision": revision,
                        "observedGeneration": set["metadata"]["generation"],
                    });
                });
            }
            server.add(&pod, body);
        }
        if self.pods_start {
            self.start(&mut server);
        }
    }

    fn start(&self, server: &mut super::api::Server) {
        let running: Vec<Id> =
            server.objects.keys().filter(|(p, _)| p == "pods").cloned().collect();
        for pod in running {
            if !self.schedule(server, &pod) {
                continue;
            }
            let uid = server.objects[&pod]["metadata"]["uid"].clone();
            let pilot = id("pilots", &pod.1);
            let told = server.objects.get(&pilot).cloned().unwrap_or_default();
            let (spec, before) = (&told["spec"], &told["status"]);
            let fresh = before["instance"]["uid"] != uid || before["process"].is_null();
            let rejected = spec["jvm"]["heap"] == self.rejects;
            let stops = spec["phase"] == "Stopped";
            let up = !(fresh && rejected || stops);
            let word = |yes: bool| if yes { "True" } else { "False" };
            let (installed, newest) = self.installed(&server.objects[&pod]["spec"]);
            let turned_away = is_turned_away(server, &pod);
            server.edit(&pod, |pod| {
                pod["status"] = json!({
                    "podIP": "10.0.0.7",
                    "ephemeralContainerStatuses": installed,
                    "conditions": [{"type": "Ready", "status": word(up)}],
                    "containerStatuses": [{
                        "name": DATABASE.names.container, "ready": up, "restartCount": 0, "image": "",
                        "imageID": "", "state": {"running": {}},
                    }],
                });
            });
            if told.is_null() || turned_away {
                continue;
            }
            let ordered = self.in_place && !rejected && spec["restartFor"] == spec["configHash"];
            let hash = if fresh || ordered { &spec["configHash"] } else { &before["configHash"] };
            let applied = match (rejected, *hash == spec["configHash"]) {
                (true, _) => "ConfigRejected",
                (false, true) => "ConfigCurrent",
                (false, false) => "RestartPending",
            };
            let leaves = spec["phase"] == "Decommissioned" && self.drains_end;
            let condition = |type_: &str, status: bool, reason: &str| {
                json!({
                    "type": type_, "status": word(status), "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            };
            let mut conditions = vec![
                condition("Ready", up, "Said"),
                condition("ConfigApplied", applied == "ConfigCurrent", applied),
            ];
            if leaves {
                conditions.push(condition("Decommissioned", true, "Said"));
            }
            // The time of the heartbeat stays, since no test waits for a heartbeat.
            let heard = before["lastHeartbeatTime"].as_str().map(str::to_owned);
            let mut status = json!({
                "phase": if up { "Running" } else if stops { "Stopped" } else { "Failed" },
                "observedGeneration": told["metadata"]["generation"],
                "conditions": conditions,
                "lastHeartbeatTime": heard.unwrap_or_else(|| Timestamp::now().to_string()),
                "identity": before["identity"],
                "instance": {"runtime": "Kubernetes", "uid": uid, "node": MACHINE},
                "configHash": hash,
                "startedFor": if self.in_place { hash.clone() } else { Value::Null },
                "version": before["version"],
                "pilotProgram": newest,
                "health": "Green",
            });
            if up {
                status["identity"] = json!({});
                status["version"] = spec["version"].clone();
                status["process"] = json!({"pid": 7});
            }
            // What tests say of a node's key, its pilot says on.
            if !before["security"].is_null() {
                status["security"] = before["security"].clone();
            }
            let told: Option<PilotSecurity> =
                serde_json::from_value(spec["security"].clone()).unwrap();
            if told.is_some() || !before["security"]["rungs"].is_null() {
                status["security"]["stored"] = json!(told.as_ref().map(PilotSecurity::revision));
                let begins =
                    json!(told.as_ref().map(PilotSecurity::security_modes).unwrap_or_default());
                let before = &before["security"]["rungs"];
                let before =
                    if before.is_null() { json!(SecurityRungs::default()) } else { before.clone() };
                status["security"]["rungs"] = if fresh || ordered { begins } else { before };
            }
            server.edit(&pilot, |pilot| pilot["status"] = status);
        }
    }

    /// Binds a pod to the machine, unless that is cordoned; returns whether the pod is bound.
    fn schedule(&self, server: &mut super::api::Server, pod: &Id) -> bool {
        let bound = server.objects[pod]["spec"]["nodeName"].is_string();
        if !bound && self.cordoned {
            server.edit(pod, |pod| {
                pod["status"] = json!({"conditions": [{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/1 nodes are available: 1 node(s) were unschedulable.",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]});
            });
        } else if !bound {
            server.edit(pod, |pod| pod["spec"]["nodeName"] = json!(MACHINE));
        }
        bound || !self.cordoned
    }

    /// Returns the statuses that the kubelet writes for ephemeral installers, and the program that
    /// the last one left, which its pilot runs at once.
    fn installed(&self, pod: &Value) -> (Vec<Value>, Value) {
        let mut ephemeral = pod["ephemeralContainers"].as_array().cloned().unwrap_or_default();
        ephemeral.reverse();
        let mut newest = json!("install-pilot");
        let statuses = ephemeral.iter().enumerate().map(|(number, container)| {
            let state = if container["image"] == self.unpulled {
                json!({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})
            } else {
                newest = container["name"].clone();
                let at = format!("2026-01-01T00:00:0{number}Z");
                json!({"terminated": {"exitCode": 0, "finishedAt": at, "message": newest}})
            };
            json!({
                "name": container["name"], "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": state,
            })
        });
        (statuses.collect(), newest)
    }

    /// Returns all objects, without fields in which two runs to an equal end may differ: versions,
    /// times, and the history of an operation.
    pub(super) fn state(&self) -> Value {
        let mut objects = self.caches();
        objects.retain(|object| object["kind"] != "ControllerRevision");
        let mut state = json!(objects);
        strip(&mut state);
        state
    }
}

/// Keeps the template of a StatefulSet as the StatefulSet controller does.
fn keep_revision(server: &mut super::api::Server, set: &Value) {
    let (template, name) = (&set["spec"]["template"], set["metadata"]["name"].as_str().unwrap());
    let revision_name = format!("{name}-{}", desired_state::hash(template));
    let revision = id("controllerrevisions", &in_namespace(namespace(set), &revision_name));
    if server.objects.contains_key(&revision) {
        return;
    }
    let mut data = json!({"spec": {"template": template}});
    data["spec"]["template"]["$patch"] = json!("replace");
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name,
            "namespace": namespace(set),
            "labels": template["metadata"]["labels"],
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "controller": true,
                "name": name, "uid": set["metadata"]["uid"],
            }],
        },
        "data": data,
        "revision": 1,
    });
    server.add(&revision, body);
}

/// Is the pod older than its ServiceAccount, so that the API rejects its token?
fn is_turned_away(server: &super::api::Server, pod: &Id) -> bool {
    let made = |object: &Value| -> Option<Timestamp> {
        object["metadata"]["creationTimestamp"].as_str()?.parse().ok()
    };
    let account = &server.objects[pod]["spec"]["serviceAccountName"];
    let account = account.as_str().unwrap_or_default();
    let account = id("serviceaccounts", &in_namespace(namespace(&server.objects[pod]), account));
    let account = server.objects.get(&account).and_then(made);
    account.is_some_and(|account| made(&server.objects[pod]).is_some_and(|pod| pod < account))
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for volatile in [
                "creationTimestamp",
                "resourceVersion",
                "generation",
                "lastTransitionTime",
                "lastHeartbeatTime",
                "lastOperation",
            ] {
                map.remove(volatile);
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}
