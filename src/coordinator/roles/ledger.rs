//! What the watches told of AuthorizationRoles, their bindings, and the objects of RBAC that stand by them.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject},
    runtime::{watcher, watcher::Event},
};

use crate::{
    api::containership::{AuthorizationRole, AuthorizationRoleBinding, AuthorizationStatus, name},
    coordinator::stirring::{CoreKind, WatchedLedger, watch_into},
    engine::roles::{GrantKey, GrantKind, StandingGrant},
    runtime::{
        Runtime,
        watch::{WatchedReplica, namespaced, paged},
    },
};

/// What the watches told.
#[derive(Default)]
pub(crate) struct RoleLedger {
    roles: WatchedReplica<AuthorizationRole>,
    bindings: WatchedReplica<AuthorizationRoleBinding>,
    /// Objects of RBAC with our label, by `namespace/name`.
    grants: BTreeMap<GrantKind, WatchedReplica<StandingGrant>>,
}

/// AuthorizationRole or AuthorizationRoleBinding.
pub(crate) trait RoleKind: CoreKind + PartialEq + Send + Sync + 'static {
    const WATCH: &'static str;
    const FINALIZER: &'static str;

    fn status(&mut self) -> &mut Option<AuthorizationStatus>;

    fn replica(ledger: &mut RoleLedger) -> &mut WatchedReplica<Self>;
}

impl RoleKind for AuthorizationRole {
    const WATCH: &'static str = "watch-authorizationroles";
    const FINALIZER: &'static str = name::ROLE_FINALIZER;

    fn status(&mut self) -> &mut Option<AuthorizationStatus> {
        &mut self.status
    }

    fn replica(ledger: &mut RoleLedger) -> &mut WatchedReplica<Self> {
        &mut ledger.roles
    }
}

impl RoleKind for AuthorizationRoleBinding {
    const WATCH: &'static str = "watch-authorizationrolebindings";
    const FINALIZER: &'static str = name::BINDING_FINALIZER;

    fn status(&mut self) -> &mut Option<AuthorizationStatus> {
        &mut self.status
    }

    fn replica(ledger: &mut RoleLedger) -> &mut WatchedReplica<Self> {
        &mut ledger.bindings
    }
}

impl RoleLedger {
    /// Returns roles and bindings; `None` until each watch was filled once.
    pub(super) fn objects(
        &self,
    ) -> Option<(Vec<AuthorizationRole>, Vec<AuthorizationRoleBinding>)> {
        let filled = self.grants.values().filter(|replica| replica.held().is_some()).count();
        let (roles, bindings) = (self.roles.held()?, self.bindings.held()?);
        let all = || (roles.values().cloned().collect(), bindings.values().cloned().collect());
        (filled == WATCHES.len()).then(all)
    }

    /// Returns what stands with our label.
    pub(super) fn standing(&self) -> BTreeMap<GrantKey, StandingGrant> {
        let mut all = BTreeMap::new();
        for (kind, replica) in &self.grants {
            for (at, grant) in replica.held().into_iter().flatten() {
                let (namespace, name) = at.split_once('/').unwrap_or_default();
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                all.insert(GrantKey { kind: *kind, namespace, name }, grant.clone());
            }
        }
        all
    }

    /// Does such an object stand with our label?
    pub(super) fn stands(&self, key: &GrantKey) -> bool {
        let at = format!("{}/{}", key.namespace, key.name);
        let held = self.grants.get(&key.kind).and_then(|replica| replica.held());
        held.is_some_and(|held| held.contains_key(&at))
    }

    fn see_grant(&mut self, kind: GrantKind, event: &Event<DynamicObject>) -> bool {
        let replica = self.grants.entry(kind).or_default();
        replica.take_by(event, namespaced, standing)
    }

    /// Notes our own write, ahead of the watch; without an object, that it is gone.
    pub(super) fn note_grant(&mut self, key: GrantKey, object: Option<&DynamicObject>) {
        if let Some(object) = object {
            let replica = self.grants.entry(key.kind).or_default();
            replica.note_by(object.clone(), namespaced, standing);
        } else {
            let mut gone = DynamicObject::new(&key.name, &resource(key.kind));
            gone.metadata.namespace = Some(key.namespace);
            self.see_grant(key.kind, &Event::Delete(gone));
        }
    }

    /// Notes our own write, ahead of the watch.
    pub(super) fn note<K: RoleKind>(&mut self, object: K) {
        K::replica(self).note(object, kept);
    }
}

fn standing(object: &DynamicObject) -> StandingGrant {
    StandingGrant::new(object, &object.data)
}

fn kept<K: RoleKind>(object: &K) -> K {
    let mut object = object.clone();
    object.managed_fields_mut().clear();
    object
}

/// Each kind of RBAC, with the name of its watch.
const WATCHES: [(GrantKind, &str); 3] = [
    (GrantKind::ClusterRole, "watch-clusterroles"),
    (GrantKind::ClusterRoleBinding, "watch-clusterrolebindings"),
    (GrantKind::RoleBinding, "watch-rolebindings"),
];

pub(super) fn resource(kind: GrantKind) -> ApiResource {
    match kind {
        GrantKind::ClusterRole => ApiResource::erase::<ClusterRole>(&()),
        GrantKind::ClusterRoleBinding => ApiResource::erase::<ClusterRoleBinding>(&()),
        GrantKind::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
    }
}

/// Starts the watches.
pub(crate) fn watch(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
) -> WatchedLedger<RoleLedger> {
    let ledger: WatchedLedger<RoleLedger> = WatchedLedger::default();
    watch_kind::<AuthorizationRole>(client, namespace, runtime, &ledger);
    watch_kind::<AuthorizationRoleBinding>(client, namespace, runtime, &ledger);
    for (kind, task) in WATCHES {
        let grants = Api::<DynamicObject>::all_with(client.clone(), &resource(kind));
        let ours = watcher(grants, paged().labels(name::AUTHORIZATION));
        watch_into(runtime, task, ours, &ledger, move |all, event| all.see_grant(kind, event));
    }
    ledger
}

fn watch_kind<K: RoleKind>(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
    ledger: &WatchedLedger<RoleLedger>,
) {
    let objects = watcher(Api::<K>::namespaced(client.clone(), namespace), paged());
    watch_into(runtime, K::WATCH, objects, ledger, |all, event| K::replica(all).take(event, kept));
}
