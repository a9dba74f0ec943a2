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
        let spoken = call.warnings.len();
        let mut attempt = 1;
        // The cache's object may be old. A write based on it is compared by the store; every other
        // outcome is checked against the store, or worked out again from its object.
        let fresh = options.dry_run || self.asks_webhooks(call, AdmissionOperation::Update, part);
        let mut known = (!fresh).then(|| self.known(&key)).flatten();
        loop {
            call.warnings.truncate(spoken);
            let (current, stored) = if let Some(known) = known.take() {
                (known, None)
            } else {
                let (current, stored) = self.stored(&key, name).await?;
                (current, Some(stored))
            };
            let next = self.next(call, name, part, change, &current, options).await;
            let (next, mut owners) = match next {
                Ok(next) => next,
                Err(error) if stored.is_some() => return Err(error),
                Err(error) => match self.is_at(&key, current.revision).await {
                    Ok(true) => return Err(error),
                    Ok(false) => continue,
                    Err(error) => return Err(self.store_error(name, &error)),
                },
            };

            let ends = current.is_deleting() && self.may_end(&next);
            let ready = |owners: Option<&RawManagedFields>| {
                request_cost::work(current.size, || self.ready(&next, owners))
            };
            let mut new = ready(owners.as_ref())?;
            let same = match (&stored, &current.shown) {
                (Some(stored), _) => new.stored == *stored,
                (None, Some(shown)) => shown.is_kept_as(&new.stored),
                (None, None) => false,
            };
            if same && !ends {
                match stored {
                    Some(_) => return Ok(current),
                    None => continue,
                }
            }
            let mut room = self.room_for(&key, part, &current, ends, (&new, owners.as_ref()));
            if room.is_err() && !change.is_apply() {
                // Only an apply needs the field managers; for other changes they are dropped, so
                // that the object fits.
                owners = None;
                new = ready(None)?;
                room = self.room_for(&key, part, &current, ends, (&new, None));
            }
            let room = match room {
                Ok(room) => room,
                Err(refused) if stored.is_some() => return Err(self.refused(name, refused)),
                // The new object may be smaller than the one that the store holds now.
                Err(_) => continue,
            };
            if options.dry_run {
                return Ok(RegistryObject {
                    share: current.share,
                    ..RegistryObject::new(key, (next, owners), current.revision)
                });
            }
            let read = current.revision;
            let mut written = if ends {
                self.store.delete(&key, read).await.map(|revision| (revision, None))
            } else {
                self.store_changed(&key, read, new).await
            };
            if matches!(written, Err(storage::Error::TooLarge { .. }))
                && !change.is_apply()
                && owners.take().is_some()
            {
                new = ready(None)?;
                written = self.store_changed(&key, read, new).await;
            }
            match written {
                Ok((revision, shown)) => {
                    if let Some(room) = room {
                        room.written(revision);
                    }
                    let share = current.share;
                    return Ok(RegistryObject {
                        share,
                        shown,
                        ..RegistryObject::new(key, (next, owners), revision)
                    });
                }
                Err(storage::Error::Conflict { .. } | storage::Error::NotFound(_))
                    if stored.is_none() => {}
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
    fn room_for(
        &self,
        key: &Key,
        part: ObjectPart,
        current: &RegistryObject,
        ends: bool,
        new: (&StorableObject, Option<&RawManagedFields>),
    ) -> Result<Option<CapacityClaim<'_>>, SizeRefusal> {
        (!ends).then(|| self.room(key, part, Some(current), new)).transpose()
    }

    /// Hands the object to the store and the cache.
    async fn store_changed(
        &self,
        key: &Key,
        read: Revision,
        new: StorableObject,
    ) -> storage::Result<(Revision, Option<Arc<CachedObject>>)> {
        let StorableObject { form, stored } = new;
        let offered = self.cache.offer(key, form, stored.clone(), EventType::Modified);
        let revision = self.store.update(key, read, stored).await?;
        Ok((revision, self.cache.written(offered, revision)))
    }

    /// Returns the object as the store holds it, and its stored bytes.
    pub(super) async fn stored(&self, key: &Key, name: &str) -> Result<(RegistryObject, Bytes)> {
        let found = self.fetch(key, name).await?;
        let (entry, share) = found.ok_or_else(|| ApiError::not_found(self.resource(), name))?;
        Ok((self.object(&entry, share)?, entry.value))
    }

    /// Returns the object and its field managers as they shall be stored: decoded, merged,
    /// admitted, valid, without a revision.
    async fn next(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        part: ObjectPart,
        change: ObjectChange<'_>,
        current: &RegistryObject,
        options: WriteOptions,
    ) -> Result<(Value, Option<RawManagedFields>)> {
        let hub = Some(&current.hub);
        let mut managed = None;
        let (weight, understood) = match change {
            ObjectChange::Replace(body) => {
                (body.weight, self.decode(call, body.clone(), name, hub, options)?)
            }
            ObjectChange::Patch(patch) => {
                let size = current.size.max(patch.weight());
                let apply = || self.patched(call, name, patch, current);
                let patched = request_cost::work(size, apply)?;
                (patched.weight, self.decode(call, patched, name, hub, options)?)
            }
            ObjectChange::Apply(apply) => {
                let shown = self.kind.encode(call.version, &current.hub);
                let merge = || apply.merge(call, self.kind, part, Some(current), shown);
                let merged = request_cost::work(current.size.max(apply.weight()), merge)?;
                let ApplyOutcome { object, managed: fields, warnings } = merged;
                managed = Some(fields);
                call.warnings.extend(warnings);
                (object.weight, self.decode(call, object, name, hub, options)?)
            }
        };
        let DecodedBody { hub: mut given, strict, owners: entries } = understood;
        if !strict.is_empty() {
            return Err(match change {
                ObjectChange::Replace(_) => self.strict_error(call, &strict, &Vec::new()),
                ObjectChange::Patch(_) => strict_patch_error(self.kind, name, &strict),
                ObjectChange::Apply(_) => apply::strict_error(&strict),
            });
        }
        self.check_identity(call, name, &mut given, current)?;
        if part == ObjectPart::Main && self.kind.has_status() {
            call.warnings.extend(warning::status_ignored(&given, Some(&current.hub)));
        }
        call.warnings.extend(meta::dedup_owners(&mut given));

        let mut next = self.prepared(part, given, current);
        let track = || match managed {
            Some(managed) => managed.write(),
            None => ObjectFieldManager::new(self.kind, part, Some(current)).after_update(
                call,
                &next,
                entries.as_ref(),
            ),
        };
        let mut owners = request_cost::work(weight, track);
        let write =
            AdmissionWrite::new(AdmissionOperation::Update, name, OperationOptions::Write(options));
        let old = self.seen(call, AdmissionOperation::Update, part, current);
        let write = AdmissionWrite { part, old: Some(old.as_ref()), ..write };
        self.admit_change(call, write, (&mut next, &mut owners), current).await?;
        // It is known only now whether anything but the times in `managedFields` changes.
        let owners = request_cost::work(weight, || managed_fields::settled(owners, &next, current));
        let validate = || self.kind.validate_update(call.version, part, &next, &current.hub);
        let validation = request_cost::work(weight, validate);
        self.accept(call, name, validation)?;
        if part == ObjectPart::Main && next["spec"] != current.hub["spec"] {
            self.validate_beside(call, name, &next, Some(&current.hub)).await?;
        }
        self.confirm(call, write, Some((&next, owners.as_ref()))).await?;
        Ok((next, owners))
    }

    /// Merges the object that is `given` through a part into the stored one; returns it with the
    /// server's own fields, and without a revision.
    pub(super) fn prepared(
        &self,
        part: ObjectPart,
        given: Value,
        current: &RegistryObject,
    ) -> Value {
        let mut next = self.kind.merge_update(part, given, &current.hub);
        meta::keep(&mut next, &current.hub);
        drop(meta::take(&mut next, "resourceVersion"));
        if part == ObjectPart::Main && next.get("spec") != current.hub.get("spec") {
            meta::bump_generation(&mut next);
        }
        next
    }

    /// Returns the object as the version shows it, with the patch applied.
    fn patched(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        patch: &ObjectPatch,
        current: &RegistryObject,
    ) -> Result<ParsedBody> {
        let mut shown = self.kind.encode(call.version, &current.hub);
        if let Some(owners) = current.owners.as_ref().filter(|_| patch.looks_at_owners()) {
            owners.put_into(&mut shown);
        }
        match patch {
            // An older name of a field would contradict the object's own field beside it. The hub's
            // own version has no older names.
            ObjectPatch::Merge(document) if call.version != self.kind.hub_version() => {
                let mut document = document.clone();
                let normalized = self.kind.normalize(call.version, &mut document);
                let warnings = normalized.map_err(|e| not_understood(self.kind, name, e))?;
                call.warnings.extend(warnings);
                ObjectPatch::Merge(document).apply(shown)
            }
            ObjectPatch::Json(..) | ObjectPatch::Merge(_) | ObjectPatch::Strategic(_) => {
                patch.apply(shown)
            }
        }
    }

    /// Fails unless name, namespace, uid and revision of the body are those of the object.
    pub(super) fn check_identity(
        &self,
        call: &RegistryCall<'_>,
        name: &str,
        given: &mut Value,
        current: &RegistryObject,
    ) -> Result<()> {
        meta::settle_namespace(given, self.kind, call.namespace)?;
        let body_name = meta::text(given, "name");
        if body_name.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be \
                 provided"
            )));
        }
        meta::same_name(body_name, name)?;
        let uid = meta::text(given, "uid");
        if !uid.is_empty() && uid != current.uid() {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, \
                 AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in \
                 object meta: {}",
                current.key.as_str(),
                current.uid()
            );
            return Err(ApiError::conflict(self.resource(), name, why));
        }
        let revision = meta::text(given, "resourceVersion");
        match revision.parse::<u64>() {
            Ok(revision) if revision == current.revision.0 => Ok(()),
            Ok(revision) if revision != 0 => Err(ApiError::modified(self.resource(), name)),
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
