//! An API for whole pilots: our real server process, aggregated behind the scripted
//! kube-apiserver, so that pilots reach both at one URL with a token, as in a pod.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use navigator::api::v1beta1::{LeaderLease, Pilot};
use serde_json::{Value, json};

use super::{
    client::Client,
    server::{Server, World},
    wait::until,
};

pub(crate) const NAMESPACE: &str = "db";
const ADMIN: &str = "admin";
/// Limit for a report of a pilot at rest, which comes each 30 s.
const REPORTS: Duration = Duration::from_secs(300);

/// A running API with one namespace, `db`.
pub(crate) struct Bed {
    pub(crate) world: World,
    server: Mutex<Option<Server>>,
    admin: kube::Client,
}

/// The ServiceAccount of the pods of a cluster: `cass-demo` of `cass-demo-a-0`.
pub(crate) fn account(pilot: &str) -> String {
    let cluster = pilot.rsplitn(3, '-').nth(2).unwrap_or(pilot);
    format!("system:serviceaccount:db:{cluster}")
}

impl Bed {
    pub(crate) async fn start() -> Self {
        Self::around(World::new().await).await
    }

    pub(crate) async fn around(world: World) -> Self {
        world.kube.add_token(ADMIN, json!({"username": ADMIN, "groups": ["system:masters"]}));
        let file = kube::config::Kubeconfig::from_yaml(&kubeconfig(&world.kube.url, ADMIN));
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file.unwrap(), &options).await.unwrap();
        let admin = kube::Client::try_from(config).unwrap();
        let bed = Self { world, server: Mutex::default(), admin };
        bed.start_server().await;
        bed
    }

    /// Starts the server again over the same store.
    pub(crate) async fn start_server(&self) {
        let server = self.world.start("store", &[]);
        server.until_ready().await;
        let ca = self.world.ca_bundle("v1beta1");
        let proxy = Client::new(server.address, Some(&self.world.proxy()), ca.as_deref());
        self.world.kube.aggregate(Some(Arc::new(proxy)));
        *self.server.lock().unwrap() = Some(server);
    }

    /// Kills the server. kube-apiserver answers 503 for our group.
    pub(crate) fn kill_server(&self) {
        *self.server.lock().unwrap() = None;
    }

    /// Lets kube-apiserver answer 503 to everything, or serve again.
    pub(crate) fn set_away(&self, away: bool) {
        self.world.kube.set_down(away);
    }

    /// Where the API listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.world.kube.url.trim_start_matches("http://").parse().unwrap()
    }

    pub(crate) fn server_log(&self) -> String {
        self.server.lock().unwrap().as_ref().map(Server::log).unwrap_or_default()
    }

    /// Credentials of the pilot of this name: what a pod's ServiceAccount may, and no more.
    pub(crate) fn credentials(&self, pilot: &str) -> PathBuf {
        self.credentials_at(&self.world.kube.url, pilot)
    }

    /// Credentials of a pilot for another URL of the API.
    pub(crate) fn credentials_at(&self, url: &str, pilot: &str) -> PathBuf {
        let (token, user) = (format!("token-{pilot}"), account(pilot));
        let pod = json!({"authentication.kubernetes.io/pod-name": [pilot]});
        self.world.kube.add_token(&token, json!({"username": user, "groups": [], "extra": pod}));
        for rule in navigator::engine::rbac::pilot_rules("any") {
            for resource in rule.resources.iter().flatten() {
                rule.verbs.iter().for_each(|verb| self.world.kube.allow(&user, verb, resource));
            }
        }
        let path = self.world.folder.path().join(format!("{pilot}.kubeconfig"));
        std::fs::write(&path, kubeconfig(url, &token)).unwrap();
        path
    }

    /// A kubeconfig of a user who may do everything.
    pub(crate) fn admin(&self) -> PathBuf {
        let path = self.world.folder.path().join("admin.kubeconfig");
        std::fs::write(&path, kubeconfig(&self.world.kube.url, ADMIN)).unwrap();
        path
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.admin.clone()
    }

    pub(crate) fn pilots(&self) -> Api<Pilot> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) fn leases(&self) -> Api<LeaderLease> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    pub(crate) async fn create(&self, pilot: &Pilot) {
        self.pilots().create(&PostParams::default(), pilot).await.unwrap();
    }

    /// Merges into a Pilot's spec.
    pub(crate) async fn change(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.pilots().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.pilots().delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn pilot(&self, name: &str) -> Pilot {
        self.pilots().get(name).await.unwrap()
    }

    /// Waits until a Pilot shows something; names the last status seen when it never does.
    /// Waits until a pilot at rest has reported twice more. It looks at its database, and decides anew,
    /// between two reports.
    pub(crate) async fn two_reports(&self, name: &str) {
        let reported = |pilot: &Pilot| pilot.status.last_heartbeat_time.as_ref().map(|time| time.0);
        let mut last = reported(&self.pilot(name).await);
        for _ in 0..2 {
            let newer = move |pilot: &Pilot| reported(pilot).filter(|time| Some(*time) > last);
            last = Some(self.shows(name, "a new report", REPORTS, newer).await);
        }
    }

    pub(crate) async fn shows<T>(
        &self,
        name: &str,
        what: &str,
        deadline: Duration,
        mut look: impl FnMut(&Pilot) -> Option<T>,
    ) -> T {
        until(&format!("Pilot {name}: {what}"), deadline, async || {
            let pilot = self.pilots().get(name).await.map_err(|error| error.to_string())?;
            look(&pilot).ok_or_else(|| serde_json::to_string(&pilot.status).unwrap())
        })
        .await
    }

    /// Waits for a phase, as `kubectl get pilots` shows it.
    pub(crate) async fn phase(&self, name: &str, phase: &str, deadline: Duration) {
        self.shows(name, phase, deadline, |pilot| {
            let now = pilot.status.phase.as_ref().map(ToString::to_string);
            (now.as_deref() == Some(phase)).then_some(())
        })
        .await;
    }
}

/// Status and reason of a condition of a Pilot, and its message.
pub(crate) fn condition<'a>(pilot: &'a Pilot, type_: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let all = &pilot.status.conditions;
    let found = all.iter().find(|condition| condition.type_ == type_)?;
    Some((&found.status, &found.reason, &found.message))
}

/// The Pilot of a node of cluster `demo`, as the controller would write it.
pub(crate) fn member(kind: &str, label: &str, name: &str, spec: &Value) -> Pilot {
    member_of("demo", kind, label, name, spec)
}

/// The Pilot of a node of a cluster of any name.
pub(crate) fn member_of(cluster: &str, kind: &str, label: &str, name: &str, spec: &Value) -> Pilot {
    let mut spec = spec.clone();
    spec["clusterRef"] = json!({"kind": kind, "name": cluster});
    serde_json::from_value(json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {(label): cluster},
            "ownerReferences": [{
                "apiVersion": "navigator.jetstack.io/v1beta1", "kind": kind, "name": cluster,
                "uid": "8d2c5f3e-0000-4000-8000-000000000001", "controller": true,
            }],
        },
        "spec": spec,
    }))
    .unwrap()
}

fn kubeconfig(url: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
         clusters: [{{name: t, cluster: {{server: \"{url}\"}}}}]\n\
         users: [{{name: t, user: {{token: \"{token}\"}}}}]\n\
         contexts: [{{name: t, context: {{cluster: t, user: t, namespace: {NAMESPACE}}}}}]\n"
    )
}
