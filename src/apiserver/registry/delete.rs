//! Delete: at once, or when the last finalizer is gone.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{
    ListPage, Registry, RegistryCall, RegistryObject,
    admission::{AdmissionWrite, OperationOptions},
    meta, selectable_values,
};
use crate::{
    apiserver::{
        admission::AdmissionOperation,
        options::{DeleteOptions, DeletionPropagation, ListOptions},
        selector::{ObjectFacets, Selector},
        status::{ApiError, Result},
        storage,
    },
    machinery::served_kind::ObjectPart,
};

/// What became of an object that was to be deleted.
#[derive(Debug)]
pub enum DeletionOutcome {
    /// The object is gone; this is its last state.
    Gone(RegistryObject),
    /// Finalizers hold the object, or its grace period runs.
    Pending(RegistryObject),
}

impl DeletionOutcome {
    pub fn object(&self) -> &RegistryObject {
        match self {
            Self::Gone(object) | Self::Pending(object) => object,
        }
    }
}

impl Registry {
    /// Deletes one object. A further deletion while finalizers hold the object changes nothing,
    /// unless its options do.
    pub async fn delete(
        &self,
        call: &RegistryCall<'_>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<DeletionOutcome> {
        self.delete_selected(call, name, &Selector::default(), options).await
    }

    /// Deletes one object; it counts as not found unless the selector selects it as it is now.
    async fn delete_selected(
        &self,
        call: &RegistryCall<'_>,
        name: &str,
        selector: &Selector,
        options: &DeleteOptions,
    ) -> Result<DeletionOutcome> {
        let key = self.key(call.namespace, name)?;
        // The cache's object is good for a write that the store compares.
        let needs_latest = options.dry_run
            || self.asks_webhooks(call, AdmissionOperation::Delete, ObjectPart::Main);
        let mut cached_object = (!needs_latest).then(|| self.cached_object(&key)).flatten();
        loop {
            let cached_object = cached_object.take();
            let is_cached = cached_object.is_some();
            let current = match cached_object {
                Some(current) => current,
                None => self.fetch_object(&key, name).await?.0,
            };
            if !self.is_selected(&current, selector) {
                if is_cached {
                    continue;
                }
                return Err(ApiError::not_found(self.resource(), name));
            }
            match self.check_preconditions(name, &current, options) {
                Err(_) if is_cached => continue,
                check_result => check_result?,
            }
            let write = AdmissionWrite::new(
                AdmissionOperation::Delete,
                name,
                OperationOptions::Delete(options),
            );
            let old_object =
                self.review_object(call, AdmissionOperation::Delete, ObjectPart::Main, &current);
            let write = AdmissionWrite { old: Some(old_object.as_ref()), ..write };
            if let Err(error) = self.admit_delete(call, write).await {
                let is_latest = !is_cached
                    || self
                        .is_at(&key, current.revision)
                        .await
                        .map_err(|error| self.store_error(name, &error))?;
                if is_latest {
                    return Err(error);
                }
                continue;
            }

            let finalizers = finalizers_after(&current.hub, options.effective_propagation());
            let grace = self.remaining_grace(&current, options);
            let is_removal =
                finalizers.is_empty() && grace == 0 && !self.kind.is_held(&current.hub);
            let write_result = if is_removal {
                if options.dry_run {
                    return Ok(DeletionOutcome::Gone(current));
                }
                self.store
                    .delete(&key, current.revision)
                    .await
                    .map(|_| DeletionOutcome::Gone(current))
            } else {
                let next = self.mark_deleting(&current, &finalizers, grace);
                if next == current.hub {
                    if is_cached {
                        continue;
                    }
                    return Ok(DeletionOutcome::Pending(current));
                }
                if options.dry_run {
                    let next = (next, current.owners);
                    return Ok(DeletionOutcome::Pending(RegistryObject::new(
                        key,
                        next,
                        current.revision,
                    )));
                }
                let bytes = Self::to_bytes(&Self::to_stored(&next), current.owners.as_ref());
                let update_result = self.store.update(&key, current.revision, bytes).await;
                let next = (next, current.owners);
                update_result.map(|revision| {
                    DeletionOutcome::Pending(RegistryObject::new(key.clone(), next, revision))
                })
            };
            match write_result {
                Ok(outcome) => return Ok(outcome),
                // Another write came first: the next attempt checks what it left.
                Err(storage::Error::Conflict { .. }) => {}
                Err(storage::Error::NotFound(_)) if is_cached => {}
                Err(error) => return Err(self.write_error(name, &error)),
            }
        }
    }

    /// Deletes the objects that a selector selects and returns them as they were listed. Objects
    /// that other clients delete meanwhile count as deleted. A listed object that the selector no
    /// longer selects stays. A user who may delete what a selector selects must not choose it by a
    /// list of the past.
    pub async fn delete_collection(
        &self,
        call: &RegistryCall<'_>,
        selector: &Selector,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<ListPage> {
        let mut page = self.list(call.namespace, selector, list).await?;
        // Deletions wait for memory one by one, and a request that waits must hold none.
        drop(std::mem::take(&mut page.share));
        for object in &page.items {
            match self.delete_selected(call, object.name(), selector, options).await {
                Err(error) if error.reason() != "NotFound" => return Err(error),
                _ => {}
            }
        }
        Ok(page)
    }

    fn is_selected(&self, current: &RegistryObject, selector: &Selector) -> bool {
        let hub = &current.hub;
        selector.is_everything()
            || selector.matches(&ObjectFacets::from_metadata(
                &hub["metadata"],
                selectable_values(self.kind, hub),
            ))
    }

    /// Returns the seconds that the object stays without finalizers. A further deletion can shorten
    /// them, not prolong them.
    fn remaining_grace(&self, current: &RegistryObject, options: &DeleteOptions) -> i64 {
        let requested_seconds = options.grace_period;
        if !current.is_deleting() {
            return self.kind.grace_period(&current.hub, requested_seconds);
        }
        let remaining_seconds = meta::grace_period(&current.hub);
        requested_seconds.map_or(remaining_seconds, |requested_seconds| {
            remaining_seconds.min(self.kind.grace_period(&current.hub, Some(requested_seconds)))
        })
    }

    /// Returns the object, marked as being deleted.
    fn mark_deleting(&self, current: &RegistryObject, finalizers: &[String], grace: i64) -> Value {
        let mut next = current.hub.clone();
        let current_finalizers = meta::finalizers(&current.hub);
        let finalizer_set: HashSet<&str> = finalizers.iter().map(String::as_str).collect();
        let is_unchanged = current_finalizers.len() == finalizers.len()
            && current_finalizers.iter().all(|name| finalizer_set.contains(name));
        if !is_unchanged {
            meta::fields(&mut next).insert("finalizers".into(), json!(finalizers));
        }
        if !current.is_deleting() || grace < meta::grace_period(&current.hub) {
            let fields = meta::fields(&mut next);
            fields.insert("deletionTimestamp".into(), meta::in_seconds(grace));
            fields.insert("deletionGracePeriodSeconds".into(), json!(grace));
        }
        if !current.is_deleting() {
            meta::bump_generation(&mut next);
            self.kind.prepare_delete(&mut next);
        }
        // The garbage collector may remove its finalizer before the kind's controller has seen it;
        // and it does not find dependents that do not name the object as owner.
        if finalizer_set.contains(meta::ORPHAN) {
            self.kind.orphan_dependents(&mut next);
        }
        next
    }

    /// Tells whether an object that is being deleted is to be removed in the state `next`.
    pub(super) fn may_end(&self, next: &Value) -> bool {
        meta::finalizers(next).is_empty()
            && meta::grace_period(next) == 0
            && !self.kind.is_held(next)
    }

    fn check_preconditions(
        &self,
        name: &str,
        current: &RegistryObject,
        options: &DeleteOptions,
    ) -> Result<()> {
        if let Some(uid) = &options.uid
            && uid != current.uid()
        {
            let message = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The \
                 object might have been deleted and then recreated",
                current.uid()
            );
            return Err(ApiError::conflict(self.resource(), name, message));
        }
        if let Some(revision) = &options.resource_version
            && *revision != current.revision.to_string()
        {
            let message = format!(
                "the ResourceVersion in the precondition ({revision}) does not match the \
                 ResourceVersion in record ({}). The object might have been modified",
                current.revision
            );
            return Err(ApiError::conflict(self.resource(), name, message));
        }
        Ok(())
    }
}

/// Returns the finalizers that hold the object. An explicit policy replaces the finalizers of an
/// earlier one; without a policy, the present ones count.
fn finalizers_after(hub: &Value, propagation: Option<DeletionPropagation>) -> Vec<String> {
    let policy_finalizers = [meta::ORPHAN, meta::FOREGROUND];
    let mut names: Vec<String> = meta::finalizers(hub)
        .into_iter()
        .filter(|name| propagation.is_none() || !policy_finalizers.contains(name))
        .map(str::to_owned)
        .collect();
    match propagation {
        Some(DeletionPropagation::Orphan) => names.push(meta::ORPHAN.to_owned()),
        Some(DeletionPropagation::Foreground) => names.push(meta::FOREGROUND.to_owned()),
        Some(DeletionPropagation::Background) | None => {}
    }
    names
}
