//! Update and patch: one read, one compare-and-swap; a patch tries again when another write came
//! between.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    ApplyPatch, DecodedBody, ObjectPatch, Registry, RegistryCall, RegistryObject, StorableObject,
    admission::{AdmissionWrite, OperationOptions},
    apply::{self, ApplyOutcome},
    managed_fields::{self, ObjectFieldManager},
    meta, not_understood,
    object_size::SizeRefusal,
};
use crate::{
    api::validation::warning,
    apiserver::{
        admission::AdmissionOperation,
        cache::{CachedObject, EventType},
        capacity::CapacityClaim,
        options::WriteOptions,
        request_cost,
        status::{ApiError, Result},
        storage::{self, Key, Revision},
    },
    machinery::{
        decode::ParsedBody,
        field_error::{FieldError, FieldErrorKind, FieldPath},
        ownership::RawManagedFields,
        served_kind::{ObjectPart, ServedKind},
    },
};

/// Most times that a patch is computed before the client hears of the conflict.
const ATTEMPTS: usize = 5;

/// How an object shall change.
#[derive(Clone, Copy)]
pub enum ObjectChange<'a> {
    Replace(&'a ParsedBody),
    Patch(&'a ObjectPatch),
    Apply(&'a ApplyPatch),
}

impl ObjectChange<'_> {
    fn is_apply(&self) -> bool {
        matches!(self, Self::Apply(_))
    }

    /// Tells whether the change may be tried again on a later state of the object.
    fn may_be_tried_again(&self) -> bool {
        match self {
            Self::Replace(_) => false,
            Self::Patch(patch) => !patch.names_revision(),
            Self::Apply(apply) => !apply.names_revision(),
        }
    }
}

impl Registry {
    /// Changes an object and returns it as stored. A change that changes nothing writes nothing.
    pub async fn update(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        part: ObjectPart,
        change: ObjectChange<'_>,
        options: WriteOptions,
    ) -> Result<RegistryObject> {
        let key = self.key(call.namespace, name)?;
        let warning_count = call.warnings.len();
        let mut attempt = 1;
        // The cache's object may be old. A write based on it is compared by the store; every other
        // outcome is checked against the store, or worked out again from its object.
        let needs_latest =
            options.dry_run || self.asks_webhooks(call, AdmissionOperation::Update, part);
        let mut cached_object = (!needs_latest).then(|| self.cached_object(&key)).flatten();
        loop {
            call.warnings.truncate(warning_count);
            let (current, stored_bytes) = if let Some(cached_object) = cached_object.take() {
                (cached_object, None)
            } else {
                let (current, stored_bytes) = self.fetch_object(&key, name).await?;
                (current, Some(stored_bytes))
            };
            let next = self.prepare_update(call, name, part, change, &current, options).await;
            let (next, mut owners) = match next {
                Ok(next) => next,
                Err(error) if stored_bytes.is_some() => return Err(error),
                Err(error) => match self.is_at(&key, current.revision).await {
                    Ok(true) => return Err(error),
                    Ok(false) => continue,
                    Err(error) => return Err(self.store_error(name, &error)),
                },
            };

            let is_removal = current.is_deleting() && self.may_end(&next);
            let make_storable = |owners: Option<&RawManagedFields>| {
                request_cost::run_blocking(current.size, || self.build_storable(&next, owners))
            };
            let mut storable = make_storable(owners.as_ref())?;
            let is_unchanged = match (&stored_bytes, &current.shown) {
                (Some(bytes), _) => storable.stored == *bytes,
                (None, Some(object)) => object.is_kept_as(&storable.stored),
                (None, None) => false,
            };
            if is_unchanged && !is_removal {
                match stored_bytes {
                    Some(_) => return Ok(current),
                    None => continue,
                }
            }
            let mut claim = self.claim_for_change(
                &key,
                part,
                &current,
                is_removal,
                (&storable, owners.as_ref()),
            );
            if claim.is_err() && !change.is_apply() {
                // Only an apply needs the field managers; for other changes they are dropped, so
                // that the object fits.
                owners = None;
                storable = make_storable(None)?;
                claim = self.claim_for_change(&key, part, &current, is_removal, (&storable, None));
            }
            let claim = match claim {
                Ok(claim) => claim,
                Err(refusal) if stored_bytes.is_some() => {
                    return Err(self.size_error(name, refusal));
                }
                // The new object may be smaller than the one that the store holds now.
                Err(_) => continue,
            };
            if options.dry_run {
                return Ok(RegistryObject {
                    share: current.share,
                    ..RegistryObject::new(key, (next, owners), current.revision)
                });
            }
            let base_revision = current.revision;
            let mut write_result = if is_removal {
                self.store.delete(&key, base_revision).await.map(|revision| (revision, None))
            } else {
                self.store_changed(&key, base_revision, storable).await
            };
            if matches!(write_result, Err(storage::Error::TooLarge { .. }))
                && !change.is_apply()
                && owners.take().is_some()
            {
                storable = make_storable(None)?;
                write_result = self.store_changed(&key, base_revision, storable).await;
            }
            match write_result {
                Ok((revision, shown)) => {
                    if let Some(claim) = claim {
                        claim.mark_written(revision);
                    }
                    let share = current.share;
                    return Ok(RegistryObject {
                        share,
                        shown,
                        ..RegistryObject::new(key, (next, owners), revision)
                    });
                }
                Err(storage::Error::Conflict { .. } | storage::Error::NotFound(_))
                    if stored_bytes.is_none() => {}
                Err(storage::Error::Conflict { .. })
                    if change.may_be_tried_again() && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(self.write_error(name, &error)),
            }
        }
    }

    /// Returns the right to store a change; `None` for a change that removes the object.
    fn claim_for_change(
        &self,
        key: &Key,
        part: ObjectPart,
        current: &RegistryObject,
        is_removal: bool,
        new_object: (&StorableObject, Option<&RawManagedFields>),
    ) -> Result<Option<CapacityClaim<'_>>, SizeRefusal> {
        (!is_removal).then(|| self.claim_capacity(key, part, Some(current), new_object)).transpose()
    }

    /// Hands the object to the store and the cache.
    async fn store_changed(
        &self,
        key: &Key,
        base_revision: Revision,
        storable: StorableObject,
    ) -> storage::Result<(Revision, Option<Arc<CachedObject>>)> {
        let StorableObject { form, stored } = storable;
        let offer = self.cache.announce_write(key, form, stored.clone(), EventType::Modified);
        let revision = self.store.update(key, base_revision, stored).await?;
        Ok((revision, self.cache.finish_write(offer, revision)))
    }

    /// Returns the object as the store holds it, and its stored bytes.
    pub(super) async fn fetch_object(
        &self,
        key: &Key,
        name: &str,
    ) -> Result<(RegistryObject, Bytes)> {
        let fetched_entry = self.fetch_entry(key, name).await?;
        let (entry, share) =
            fetched_entry.ok_or_else(|| ApiError::not_found(self.resource(), name))?;
        Ok((self.decode_entry(&entry, share)?, entry.value))
    }

    /// Returns the object and its field managers as they shall be stored: decoded, merged,
    /// admitted, valid, without a revision.
    async fn prepare_update(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        part: ObjectPart,
        change: ObjectChange<'_>,
        current: &RegistryObject,
        options: WriteOptions,
    ) -> Result<(Value, Option<RawManagedFields>)> {
        let hub = Some(&current.hub);
        let mut applied_fields = None;
        let (weight, decoded_body) = match change {
            ObjectChange::Replace(body) => {
                (body.weight, self.decode_body(call, body.clone(), name, hub, options)?)
            }
            ObjectChange::Patch(patch) => {
                let size = current.size.max(patch.weight());
                let apply = || self.apply_patch(call, name, patch, current);
                let patched_body = request_cost::run_blocking(size, apply)?;
                (patched_body.weight, self.decode_body(call, patched_body, name, hub, options)?)
            }
            ObjectChange::Apply(apply) => {
                let live_object = self.kind.encode(call.version, &current.hub);
                let merge = || apply.merge(call, self.kind, part, Some(current), live_object);
                let outcome = request_cost::run_blocking(current.size.max(apply.weight()), merge)?;
                let ApplyOutcome { object, managed: fields, warnings } = outcome;
                applied_fields = Some(fields);
                call.warnings.extend(warnings);
                (object.weight, self.decode_body(call, object, name, hub, options)?)
            }
        };
        let DecodedBody { hub: mut requested_object, strict, owners: entries } = decoded_body;
        if !strict.is_empty() {
            return Err(match change {
                ObjectChange::Replace(_) => self.strict_error(call, &strict, &Vec::new()),
                ObjectChange::Patch(_) => strict_patch_error(self.kind, name, &strict),
                ObjectChange::Apply(_) => apply::strict_error(&strict),
            });
        }
        self.check_identity(call, name, &mut requested_object, current)?;
        if part == ObjectPart::Main && self.kind.has_status() {
            call.warnings.extend(warning::status_ignored(&requested_object, Some(&current.hub)));
        }
        call.warnings.extend(meta::dedup_owners(&mut requested_object));

        let mut next = self.merge_change(part, requested_object, current);
        let track = || match applied_fields {
            Some(fields) => fields.to_raw(),
            None => ObjectFieldManager::new(self.kind, part, Some(current)).after_update(
                call,
                &next,
                entries.as_ref(),
            ),
        };
        let mut owners = request_cost::run_blocking(weight, track);
        let write =
            AdmissionWrite::new(AdmissionOperation::Update, name, OperationOptions::Write(options));
        let old_object = self.review_object(call, AdmissionOperation::Update, part, current);
        let write = AdmissionWrite { part, old: Some(old_object.as_ref()), ..write };
        self.admit_change(call, write, (&mut next, &mut owners), current).await?;
        // It is known only now whether anything but the times in `managedFields` changes.
        let owners = request_cost::run_blocking(weight, || {
            managed_fields::ignore_time_changes(owners, &next, current)
        });
        let validate = || self.kind.validate_update(call.version, part, &next, &current.hub);
        let validation = request_cost::run_blocking(weight, validate);
        self.check_validation(call, name, validation)?;
        if part == ObjectPart::Main && next["spec"] != current.hub["spec"] {
            self.validate_beside(call, name, &next, Some(&current.hub)).await?;
        }
        self.call_validating_webhooks(call, write, Some((&next, owners.as_ref()))).await?;
        Ok((next, owners))
    }

    /// Merges the object that is `requested_object` through a part into the stored one; returns it
    /// with the server's own fields, and without a revision.
    pub(super) fn merge_change(
        &self,
        part: ObjectPart,
        requested_object: Value,
        current: &RegistryObject,
    ) -> Value {
        let mut next = self.kind.merge_update(part, requested_object, &current.hub);
        meta::preserve_identity(&mut next, &current.hub);
        drop(meta::take_field(&mut next, "resourceVersion"));
        if part == ObjectPart::Main && next.get("spec") != current.hub.get("spec") {
            meta::bump_generation(&mut next);
        }
        next
    }

    /// Returns the object as the version shows it, with the patch applied.
    fn apply_patch(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        patch: &ObjectPatch,
        current: &RegistryObject,
    ) -> Result<ParsedBody> {
        let mut live_object = self.kind.encode(call.version, &current.hub);
        if let Some(owners) = current.owners.as_ref().filter(|_| patch.looks_at_owners()) {
            owners.put_into(&mut live_object);
        }
        match patch {
            // The merged object would have the older name of a field next to the field itself, and
            // the two could contradict each other. The hub version has no older names.
            ObjectPatch::Merge(document) if call.version != self.kind.hub_version() => {
                let mut document = document.clone();
                let result = self.kind.normalize(call.version, &mut document);
                let warnings = result.map_err(|e| not_understood(self.kind, name, e))?;
                call.warnings.extend(warnings);
                ObjectPatch::Merge(document).apply(live_object)
            }
            ObjectPatch::Json(..) | ObjectPatch::Merge(_) | ObjectPatch::Strategic(_) => {
                patch.apply(live_object)
            }
        }
    }

    /// Fails unless name, namespace, uid and revision of the body are those of the object.
    pub(super) fn check_identity(
        &self,
        call: &RegistryCall<'_>,
        name: &str,
        requested_object: &mut Value,
        current: &RegistryObject,
    ) -> Result<()> {
        meta::settle_namespace(requested_object, self.kind, call.namespace)?;
        let body_name = meta::text(requested_object, "name");
        if body_name.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be \
                 provided"
            )));
        }
        meta::check_same_name(body_name, name)?;
        let uid = meta::text(requested_object, "uid");
        if !uid.is_empty() && uid != current.uid() {
            let message = format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, \
                 AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in \
                 object meta: {}",
                current.key.as_str(),
                current.uid()
            );
            return Err(ApiError::conflict(self.resource(), name, message));
        }
        let revision = meta::text(requested_object, "resourceVersion");
        match revision.parse::<u64>() {
            Ok(revision) if revision == current.revision.0 => Ok(()),
            Ok(revision) if revision != 0 => Err(ApiError::object_modified(self.resource(), name)),
            Err(_) if !revision.is_empty() => {
                let path = FieldPath::new("metadata").child("resourceVersion");
                let problem = FieldErrorKind::Invalid(json!(revision));
                let error = FieldError::new(&path, problem, "must be a decimal number");
                Err(ApiError::invalid(self.kind.group(), self.kind.kind(), name, &vec![error]))
            }
            _ => {
                let path = FieldPath::new("metadata").child("resourceVersion");
                let problem = FieldErrorKind::Invalid(json!(0));
                let error = FieldError::new(&path, problem, "must be specified for an update");
                // Upstream names the resource here, not the kind.
                Err(ApiError::invalid(self.kind.group(), self.kind.plural(), name, &vec![error]))
            }
        }
    }
}

/// Returns the 422 error for fields that a patch should not have made. Upstream shows the whole
/// patch first; the error would stand behind a page of JSON.
fn strict_patch_error(kind: &dyn ServedKind, name: &str, strict: &[String]) -> ApiError {
    let detail = format!("strict decoding error: {}", strict.join(", "));
    let error = FieldError::new(&FieldPath::new("patch"), FieldErrorKind::Forbidden, detail);
    ApiError::invalid(kind.group(), kind.kind(), name, &vec![error])
}
