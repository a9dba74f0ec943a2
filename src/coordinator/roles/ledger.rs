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
        watch::{WatchedReplica, namespaced_key, paged_config},
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

    fn status_mut(&mut self) -> &mut Option<AuthorizationStatus>;

    fn replica_mut(ledger: &mut RoleLedger) -> &mut WatchedReplica<Self>;
}

impl RoleKind for AuthorizationRole {
    const WATCH: &'static str = "watch-authorizationroles";
    const FINALIZER: &'static str = name::ROLE_FINALIZER;

    fn status_mut(&mut self) -> &mut Option<AuthorizationStatus> {
        &mut self.status
    }

    fn replica_mut(ledger: &mut RoleLedger) -> &mut WatchedReplica<Self> {
        &mut ledger.roles
    }
}

impl RoleKind for AuthorizationRoleBinding {
    const WATCH: &'static str = "watch-authorizationrolebindings";
    const FINALIZER: &'static str = name::BINDING_FINALIZER;

    fn status_mut(&mut self) -> &mut Option<AuthorizationStatus> {
        &mut self.status
    }

    fn replica_mut(ledger: &mut RoleLedger) -> &mut WatchedReplica<Self> {
        &mut ledger.bindings
    }
}

impl RoleLedger {
    /// Returns roles and bindings; `None` until each watch was filled once.
    pub(super) fn objects(
        &self,
    ) -> Option<(Vec<AuthorizationRole>, Vec<AuthorizationRoleBinding>)> {
        let filled_count =
            self.grants.values().filter(|replica| replica.objects().is_some()).count();
        let (roles, bindings) = (self.roles.objects()?, self.bindings.objects()?);
        let clone_objects =
            || (roles.values().cloned().collect(), bindings.values().cloned().collect());
        (filled_count == WATCHES.len()).then(clone_objects)
    }

    /// Returns what stands with our label.
    pub(super) fn existing_grants(&self) -> BTreeMap<GrantKey, StandingGrant> {
        let mut grants = BTreeMap::new();
        for (kind, replica) in &self.grants {
            for (object_name, grant) in replica.objects().into_iter().flatten() {
                let (namespace, name) = object_name.split_once('/').unwrap_or_default();
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                grants.insert(GrantKey { kind: *kind, namespace, name }, grant.clone());
            }
        }
        grants
    }

    /// Does such an object stand with our label?
    pub(super) fn has_grant(&self, key: &GrantKey) -> bool {
        let object_name = format!("{}/{}", key.namespace, key.name);
        let held_grants = self.grants.get(&key.kind).and_then(|replica| replica.objects());
        held_grants.is_some_and(|grants| grants.contains_key(&object_name))
    }

    fn record_grant_event(&mut self, kind: GrantKind, event: &Event<DynamicObject>) -> bool {
        let replica = self.grants.entry(kind).or_default();
        replica.apply_event_by(event, namespaced_key, existing_grant)
    }

    /// Notes our own write, ahead of the watch; without an object, that it is gone.
    pub(super) fn record_grant(&mut self, key: GrantKey, object: Option<&DynamicObject>) {
        if let Some(object) = object {
            let replica = self.grants.entry(key.kind).or_default();
            replica.record_write_by(object.clone(), namespaced_key, existing_grant);
        } else {
            let mut deleted_object = DynamicObject::new(&key.name, &api_resource(key.kind));
            deleted_object.metadata.namespace = Some(key.namespace);
            self.record_grant_event(key.kind, &Event::Delete(deleted_object));
        }
    }

    /// Notes our own write, ahead of the watch.
    pub(super) fn record_object<K: RoleKind>(&mut self, object: K) {
        K::replica_mut(self).record_write(object, strip_managed_fields);
    }
}

fn existing_grant(object: &DynamicObject) -> StandingGrant {
    StandingGrant::new(object, &object.data)
}

fn strip_managed_fields<K: RoleKind>(object: &K) -> K {
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

pub(super) fn api_resource(kind: GrantKind) -> ApiResource {
    match kind {
        GrantKind::ClusterRole => ApiResource::erase::<ClusterRole>(&()),
        GrantKind::ClusterRoleBinding => ApiResource::erase::<ClusterRoleBinding>(&()),
        GrantKind::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
    }
}

/// Starts the watches.
pub(crate) fn watch_roles(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
) -> WatchedLedger<RoleLedger> {
    let ledger: WatchedLedger<RoleLedger> = WatchedLedger::default();
    watch_kind::<AuthorizationRole>(client, namespace, runtime, &ledger);
    watch_kind::<AuthorizationRoleBinding>(client, namespace, runtime, &ledger);
    for (kind, task) in WATCHES {
        let grants = Api::<DynamicObject>::all_with(client.clone(), &api_resource(kind));
        let grant_events = watcher(grants, paged_config().labels(name::AUTHORIZATION));
        watch_into(runtime, task, grant_events, &ledger, move |state, event| {
            state.record_grant_event(kind, event)
        });
    }
    ledger
}

fn watch_kind<K: RoleKind>(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
    ledger: &WatchedLedger<RoleLedger>,
) {
    let objects = watcher(Api::<K>::namespaced(client.clone(), namespace), paged_config());
    watch_into(runtime, K::WATCH, objects, ledger, |state, event| {
        K::replica_mut(state).apply_event(event, strip_managed_fields)
    });
}
