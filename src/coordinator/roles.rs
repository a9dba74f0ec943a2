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

use self::ledger::{RoleKind, resource};
pub(crate) use self::ledger::{RoleLedger, watch};
use super::{
    look_error::LookError,
    stirring::{LookEnd, StatusWriter, StirredWork, WatchedLedger, posted},
};
use crate::{
    api::containership::AuthorizationStatus,
    engine::{
        conditions::{ObjectVerdict, Stall, conditions},
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

    async fn stirred(&self) {
        self.seen.stirred().await;
    }

    async fn look(&self) -> Result<LookEnd, LookError> {
        let Some((roles, bindings)) = self.seen.lock().objects() else { return Ok(LookEnd::Done) };
        // Where one cannot be held, nothing is decided: without it, its rights would be taken away.
        let (roles, leaving_roles) = self.hold(roles).await?;
        let (bindings, leaving_bindings) = self.hold(bindings).await?;
        let mut round = GrantRound::default();
        let role_wishes = plan_roles(&roles, self.allow_privileged);
        self.make_so(&role_wishes, &[GrantKind::ClusterRole], &mut round).await?;
        let stand = self.standing_roles(&role_wishes);
        let binding_wishes = plan_bindings(&bindings, &stand);
        let bound = [GrantKind::ClusterRoleBinding, GrantKind::RoleBinding];
        self.make_so(&binding_wishes, &bound, &mut round).await?;
        let GrantRound { refused, mut failure } = round;
        for role in &leaving_roles {
            failure = self.release(role).await.err().or(failure);
        }
        for binding in &leaving_bindings {
            failure = self.release(binding).await.err().or(failure);
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
    async fn hold<K: RoleKind>(&self, all: Vec<K>) -> Result<(Vec<K>, Vec<K>), LookError> {
        let (leaving, staying): (Vec<K>, Vec<K>) =
            all.into_iter().partition(|one| one.meta().deletion_timestamp.is_some());
        let mut held = Vec::new();
        for one in staying {
            let one = self.status.hold(one, K::FINALIZER).await?;
            self.seen.lock().note(one.clone());
            held.push(one);
        }
        Ok((held, leaving))
    }

    /// Makes what stands of these kinds as it is wished.
    async fn make_so(
        &self,
        wishes: &[Result<Grant, Stall>],
        kinds: &[GrantKind],
        round: &mut GrantRound,
    ) -> Result<(), LookError> {
        let wanted: Vec<Grant> = wishes.iter().flatten().cloned().collect();
        let mut standing = self.seen.lock().standing();
        standing.retain(|key, _| kinds.contains(&key.kind));
        for step in grant_steps(&wanted, &standing) {
            match self.carry_out(step).await {
                Ok(()) => {}
                Err(StepFailure::Refused(key, why)) => drop(round.refused.insert(key, why)),
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
    fn standing_roles(&self, wishes: &[Result<Grant, Stall>]) -> BTreeSet<String> {
        let standing = self.seen.lock().standing();
        let stands = |grant: &&Grant| {
            standing.get(&grant.key).is_some_and(|found| found.owner() == grant.owner)
        };
        let stand = wishes.iter().flatten().filter(stands);
        stand.map(|grant| grant.key.name.clone()).collect()
    }

    async fn carry_out(&self, step: GrantStep) -> Result<(), StepFailure> {
        let (verb, key, written) = match step {
            GrantStep::Create(grant) => {
                let object = object(&grant, None);
                let written = self.api(&grant.key).create(&posted(), &object).await;
                ("make", grant.key, written.map(Some))
            }
            GrantStep::Replace(grant, version) => {
                let object = object(&grant, Some(version));
                let api = self.api(&grant.key);
                let written = api.replace(&grant.key.name, &posted(), &object).await;
                ("write", grant.key, written.map(Some))
            }
            GrantStep::Delete(key, version) => {
                let version = Preconditions { resource_version: Some(version), uid: None };
                let params =
                    DeleteParams { preconditions: Some(version), ..DeleteParams::default() };
                let deleted = self.api(&key).delete(&key.name, &params).await;
                ("delete", key, deleted.map(|_| None))
            }
        };
        match written {
            Ok(object) => {
                self.seen.lock().note_grant(key, object.as_ref());
                Ok(())
            }
            Err(error) => self.failed(verb, key, error),
        }
    }

    /// Says what a failed write of an object means.
    fn failed(
        &self,
        verb: &'static str,
        key: GrantKey,
        error: kube::Error,
    ) -> Result<(), StepFailure> {
        let what = format!("{:?} {:?}", key.kind, key.name);
        if let kube::Error::Api(answer) = &error {
            let ends = answer.code == 403 && answer.message.contains("being terminated");
            match (verb, answer.code) {
                ("make", 404 | 403) if answer.code == 404 || ends => {
                    let why =
                        format!("the namespace {:?} is not there, or not for long", key.namespace);
                    return Err(StepFailure::Refused(key, ("NamespaceMissing", why)));
                }
                // One of ours is seen by the watch soon.
                ("make", 409) if !self.seen.lock().stands(&key) => {
                    let why = format!("a {what} that is not Navigator's stays as it is");
                    return Err(StepFailure::Refused(key, ("ForeignObject", why)));
                }
                // The watch tells that it is gone.
                (_, 404) => return Ok(()),
                _ => {}
            }
        }
        match LookError::request(verb, &what, error) {
            error @ LookError::Request { .. } if verb != "delete" => {
                let why = chain(&error).to_string();
                Err(StepFailure::Refused(key, ("WriteFailed", why)))
            }
            error => Err(StepFailure::Failed(error)),
        }
    }

    /// Lets an object go that is being deleted, once its rights are taken away.
    async fn release<K: RoleKind>(&self, object: &K) -> Result<(), LookError> {
        let owner = object.uid().unwrap_or_default();
        if self.seen.lock().standing().values().any(|grant| grant.owner() == owner) {
            return Ok(());
        }
        self.status.let_go(object, K::FINALIZER).await
    }

    async fn write_status<K: RoleKind>(
        &self,
        mut object: K,
        wish: Result<Grant, Stall>,
        refused: &BTreeMap<GrantKey, Stall>,
    ) -> Result<(), LookError> {
        let verdict = match wish {
            Err(why) => {
                ObjectVerdict::new(false, "Refused", "nothing is granted".to_owned(), Some(why))
            }
            Ok(Grant { key, .. }) if refused.contains_key(&key) => {
                let what = format!("{:?} {:?} is not as it should be", key.kind, key.name);
                ObjectVerdict::new(false, "Granting", what, refused.get(&key).cloned())
            }
            Ok(grant) => {
                let stands = grant.stands(self.seen.lock().standing().get(&grant.key));
                let reason = if stands { "Granted" } else { "Granting" };
                let what = format!("by {:?} {:?}", grant.key.kind, grant.key.name);
                ObjectVerdict::new(stands, reason, what, None)
            }
        };
        let generation = object.meta().generation;
        let before = object.status().clone().unwrap_or_default();
        let after = AuthorizationStatus {
            observed_generation: generation,
            conditions: conditions(&before.conditions, generation, verdict, Timestamp::now()),
        };
        if after == before {
            return Ok(());
        }
        *object.status() = Some(after.clone());
        let written = self.status.write(&object, &before.conditions, &after.conditions).await?;
        if let Some(written) = written {
            self.seen.lock().note(written);
        }
        Ok(())
    }

    fn api(&self, key: &GrantKey) -> Api<DynamicObject> {
        let (client, resource) = (self.status.writer.clone(), resource(key.kind));
        match key.namespace.as_str() {
            "" => Api::all_with(client, &resource),
            namespace => Api::namespaced_with(client, namespace, &resource),
        }
    }
}

/// Builds the object that is written; `version` is that of the one that it replaces.
fn object(grant: &Grant, version: Option<String>) -> DynamicObject {
    let mut object = DynamicObject::new(&grant.key.name, &resource(grant.key.kind));
    object.metadata.namespace =
        Some(grant.key.namespace.clone()).filter(|namespace| !namespace.is_empty());
    object.metadata.labels = Some(grant.labels());
    object.metadata.resource_version = version;
    object.data(grant.content.clone())
}
