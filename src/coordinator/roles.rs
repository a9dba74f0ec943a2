//! The ClusterRoles and bindings that AuthorizationRoles and AuthorizationRoleBindings ask for. What is
//! written is decided in `engine/roles`.
//!
//! Invariants: an object of RBAC without our label is never changed. One of these objects bears our
//! finalizer before its rights are given, and until they are taken away.

mod ledger;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Preconditions},
};

use self::ledger::{RoleKind, api_resource};
pub(crate) use self::ledger::{RoleLedger, watch_roles};
use super::{
    look_error::LookError,
    stirring::{LookEnd, StatusWriter, StirredWork, WatchedLedger, post_params},
};
use crate::{
    api::containership::AuthorizationStatus,
    engine::{
        conditions::{ObjectVerdict, Stall, build_conditions},
        roles::{Grant, GrantKey, GrantKind, GrantStep, grant_steps, plan_bindings, plan_roles},
    },
    error::chain,
};

/// Gives and takes rights, while this process leads.
pub(crate) struct RoleCoordinator {
    pub(super) seen: WatchedLedger<RoleLedger>,
    pub(super) status: StatusWriter,
    /// Roles may let their holders take rights beyond those that are named.
    pub(super) allow_privileged: bool,
}

impl StirredWork for RoleCoordinator {
    const WORK: &'static str = "roles";

    async fn wait_for_change(&self) {
        self.seen.wait_for_change().await;
    }

    async fn reconcile(&self) -> Result<LookEnd, LookError> {
        let Some((roles, bindings)) = self.seen.lock().objects() else { return Ok(LookEnd::Done) };
        // Where one cannot be held, nothing is decided: without it, its rights would be taken away.
        let (roles, leaving_roles) = self.add_finalizers(roles).await?;
        let (bindings, leaving_bindings) = self.add_finalizers(bindings).await?;
        let mut round = GrantRound::default();
        let role_wishes = plan_roles(&roles, self.allow_privileged);
        self.apply_grants(&role_wishes, &[GrantKind::ClusterRole], &mut round).await?;
        let granted_roles = self.granted_roles(&role_wishes);
        let binding_wishes = plan_bindings(&bindings, &granted_roles);
        let binding_kinds = [GrantKind::ClusterRoleBinding, GrantKind::RoleBinding];
        self.apply_grants(&binding_wishes, &binding_kinds, &mut round).await?;
        let GrantRound { refused, mut failure } = round;
        for role in &leaving_roles {
            failure = self.finalize_object(role).await.err().or(failure);
        }
        for binding in &leaving_bindings {
            failure = self.finalize_object(binding).await.err().or(failure);
        }
        for (role, wish) in roles.into_iter().zip(role_wishes) {
            failure = self.write_status(role, wish, &refused).await.err().or(failure);
        }
        for (binding, wish) in bindings.into_iter().zip(binding_wishes) {
            failure = self.write_status(binding, wish, &refused).await.err().or(failure);
        }
        let end = if refused.is_empty() { LookEnd::Done } else { LookEnd::Partly };
        failure.map_or(Ok(end), Err)
    }
}

/// What could not be written in one look.
#[derive(Default)]
struct GrantRound {
    refused: BTreeMap<GrantKey, Stall>,
    failure: Option<LookError>,
}

/// Why a step was not carried out.
enum StepFailure {
    /// A person has to mend something first.
    Refused(GrantKey, Stall),
    Failed(LookError),
}

impl RoleCoordinator {
    /// Puts our finalizer on the objects that stay. Returns these, and those that are being deleted.
    async fn add_finalizers<K: RoleKind>(
        &self,
        objects: Vec<K>,
    ) -> Result<(Vec<K>, Vec<K>), LookError> {
        let (deleted_objects, live_objects): (Vec<K>, Vec<K>) =
            objects.into_iter().partition(|object| object.meta().deletion_timestamp.is_some());
        let mut held_objects = Vec::new();
        for object in live_objects {
            let object = self.status.add_finalizer(object, K::FINALIZER).await?;
            self.seen.lock().record_object(object.clone());
            held_objects.push(object);
        }
        Ok((held_objects, deleted_objects))
    }

    /// Makes what stands of these kinds as it is wished.
    async fn apply_grants(
        &self,
        wishes: &[Result<Grant, Stall>],
        kinds: &[GrantKind],
        round: &mut GrantRound,
    ) -> Result<(), LookError> {
        let desired_grants: Vec<Grant> = wishes.iter().flatten().cloned().collect();
        let mut existing_grants = self.seen.lock().existing_grants();
        existing_grants.retain(|key, _| kinds.contains(&key.kind));
        for step in grant_steps(&desired_grants, &existing_grants) {
            match self.apply_step(step).await {
                Ok(()) => {}
                Err(StepFailure::Refused(key, stall)) => drop(round.refused.insert(key, stall)),
                Err(StepFailure::Failed(LookError::NotLeading)) => {
                    return Err(LookError::NotLeading);
                }
                Err(StepFailure::Failed(error)) => {
                    round.failure = round.failure.take().or(Some(error));
                }
            }
        }
        Ok(())
    }

    /// Names of the ClusterRoles that stand by their AuthorizationRoles.
    fn granted_roles(&self, wishes: &[Result<Grant, Stall>]) -> BTreeSet<String> {
        let existing_grants = self.seen.lock().existing_grants();
        let is_granted = |grant: &&Grant| {
            existing_grants
                .get(&grant.key)
                .is_some_and(|existing_grant| existing_grant.owner() == grant.owner)
        };
        let grants = wishes.iter().flatten().filter(is_granted);
        grants.map(|grant| grant.key.name.clone()).collect()
    }

    async fn apply_step(&self, step: GrantStep) -> Result<(), StepFailure> {
        let (verb, key, write_result) = match step {
            GrantStep::Create(grant) => {
                let object = grant_object(&grant, None);
                let create_result =
                    self.grant_api(&grant.key).create(&post_params(), &object).await;
                ("make", grant.key, create_result.map(Some))
            }
            GrantStep::Replace(grant, version) => {
                let object = grant_object(&grant, Some(version));
                let api = self.grant_api(&grant.key);
                let replace_result = api.replace(&grant.key.name, &post_params(), &object).await;
                ("write", grant.key, replace_result.map(Some))
            }
            GrantStep::Delete(key, version) => {
                let preconditions = Preconditions { resource_version: Some(version), uid: None };
                let params =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let delete_result = self.grant_api(&key).delete(&key.name, &params).await;
                ("delete", key, delete_result.map(|_| None))
            }
        };
        match write_result {
            Ok(object) => {
                self.seen.lock().record_grant(key, object.as_ref());
                Ok(())
            }
            Err(error) => self.handle_write_error(verb, key, error),
        }
    }

    /// Says what a failed write of an object means.
    fn handle_write_error(
        &self,
        verb: &'static str,
        key: GrantKey,
        error: kube::Error,
    ) -> Result<(), StepFailure> {
        let subject = format!("{:?} {:?}", key.kind, key.name);
        if let kube::Error::Api(answer) = &error {
            let is_terminating = answer.code == 403 && answer.message.contains("being terminated");
            match (verb, answer.code) {
                ("make", 404 | 403) if answer.code == 404 || is_terminating => {
                    let message =
                        format!("the namespace {:?} is not there, or not for long", key.namespace);
                    return Err(StepFailure::Refused(key, ("NamespaceMissing", message)));
                }
                // One of ours is seen by the watch soon.
                ("make", 409) if !self.seen.lock().has_grant(&key) => {
                    let message = format!("a {subject} that is not Navigator's stays as it is");
                    return Err(StepFailure::Refused(key, ("ForeignObject", message)));
                }
                // The watch tells that it is gone.
                (_, 404) => return Ok(()),
                _ => {}
            }
        }
        match LookError::for_request(verb, &subject, error) {
            error @ LookError::Request { .. } if verb != "delete" => {
                let message = chain(&error).to_string();
                Err(StepFailure::Refused(key, ("WriteFailed", message)))
            }
            error => Err(StepFailure::Failed(error)),
        }
    }

    /// Lets an object go that is being deleted, once its rights are taken away.
    async fn finalize_object<K: RoleKind>(&self, object: &K) -> Result<(), LookError> {
        let owner = object.uid().unwrap_or_default();
        if self.seen.lock().existing_grants().values().any(|grant| grant.owner() == owner) {
            return Ok(());
        }
        self.status.remove_finalizer(object, K::FINALIZER).await
    }

    async fn write_status<K: RoleKind>(
        &self,
        mut object: K,
        wish: Result<Grant, Stall>,
        refused: &BTreeMap<GrantKey, Stall>,
    ) -> Result<(), LookError> {
        let verdict = match wish {
            Err(stall) => {
                ObjectVerdict::new(false, "Refused", "nothing is granted".to_owned(), Some(stall))
            }
            Ok(Grant { key, .. }) if refused.contains_key(&key) => {
                let message = format!("{:?} {:?} is not as it should be", key.kind, key.name);
                ObjectVerdict::new(false, "Granting", message, refused.get(&key).cloned())
            }
            Ok(grant) => {
                let is_granted =
                    grant.is_applied(self.seen.lock().existing_grants().get(&grant.key));
                let reason = if is_granted { "Granted" } else { "Granting" };
                let message = format!("by {:?} {:?}", grant.key.kind, grant.key.name);
                ObjectVerdict::new(is_granted, reason, message, None)
            }
        };
        let generation = object.meta().generation;
        let old_status = object.status_mut().clone().unwrap_or_default();
        let new_status = AuthorizationStatus {
            observed_generation: generation,
            conditions: build_conditions(
                &old_status.conditions,
                generation,
                verdict,
                Timestamp::now(),
            ),
        };
        if new_status == old_status {
            return Ok(());
        }
        *object.status_mut() = Some(new_status.clone());
        let written_object = self
            .status
            .write_status(&object, &old_status.conditions, &new_status.conditions)
            .await?;
        if let Some(written_object) = written_object {
            self.seen.lock().record_object(written_object);
        }
        Ok(())
    }

    fn grant_api(&self, key: &GrantKey) -> Api<DynamicObject> {
        let (client, resource) = (self.status.writer.clone(), api_resource(key.kind));
        match key.namespace.as_str() {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        }
    }
}

/// Builds the object that is written; `version` is that of the one that it replaces.
fn grant_object(grant: &Grant, version: Option<String>) -> DynamicObject {
    let mut object = DynamicObject::new(&grant.key.name, &api_resource(grant.key.kind));
    object.metadata.namespace =
        Some(grant.key.namespace.clone()).filter(|namespace| !namespace.is_empty());
    object.metadata.labels = Some(grant.labels());
    object.metadata.resource_version = version;
    object.data(grant.content.clone())
}
