//! Objects of one kind in a store: what create, read, update and delete mean.
//!
//! Owns the rules that Kubernetes has for every kind: identity, generation, optimistic concurrency,
//! finalizers, preconditions, dry run, paging. Knows no HTTP. What differs between kinds lies
//! behind [`ServedKind`]. No object is overwritten unseen: every update and deletion is a
//! compare-and-swap on the revision that was read.

mod admission;
mod apply;
mod beside;
mod create;
mod delete;
mod list;
mod managed_fields;
mod meta;
mod migrate;
mod object_size;
mod patch;
mod read;
mod strategic_merge;
mod update;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

pub use apply::ApplyPatch;
pub use delete::DeletionOutcome;
pub use list::ListPage;
pub use migrate::MigrationReport;
pub use patch::ObjectPatch;
pub use update::ObjectChange;
pub use watch::{ClientWatch, InitialState, WatchEvent};

use super::{
    account::MemoryShare,
    admission::{AdmissionPlugin, AdmissionRemarks},
    authn::User,
    cache::{self, Cache, CachedObject, ObjectForm},
    capacity::Capacity,
    options::{FieldValidation, WriteOptions},
    request_cost,
    status::{ApiError, GroupResource, Result},
    storage::{self, Key, KeyPrefix, Revision, Storage, StoreEntry},
};
use crate::{
    error,
    machinery::{
        decode::ParsedBody,
        ownership::{RawManagedFields, join_json, split_json},
        served_kind::{DecodeError, DecodedObject, ServedKind, ServedVersion, ValidationResult},
    },
};

/// Placeholder for the namespace in the keys of objects without one; no namespace has this name.
pub const NO_NAMESPACE: &str = "-";

/// Serves one kind out of a store.
pub struct Registry {
    kind: &'static dyn ServedKind,
    store: Arc<dyn Storage>,
    cache: Arc<Cache>,
    admission: Arc<dyn AdmissionPlugin>,
    capacity: Arc<Capacity>,
}

/// The context of a request: its user, version, namespace, field manager and warnings.
pub struct RegistryCall<'a> {
    pub version: ServedVersion,
    /// Empty for a kind at cluster scope, and in reads of all namespaces.
    pub namespace: &'a str,
    pub user: &'a User,
    /// The field manager that comes to own the fields that are written.
    pub manager: String,
    /// The field manager as the client names it; empty when it names none.
    pub field_manager: &'a str,
    /// Warnings for the client, besides the answer.
    pub warnings: Vec<String>,
    /// Warnings and annotations of admission. The server reports them also for a refused request.
    pub remarks: &'a AdmissionRemarks,
}

/// An object as it is stored now.
#[derive(Debug)]
pub struct RegistryObject {
    pub key: Key,
    /// The object in hub form, with `metadata.resourceVersion` and without its field managers.
    pub hub: Value,
    /// The field managers, and the fields that each owns.
    pub owners: Option<RawManagedFields>,
    pub revision: Revision,
    /// Approximate bytes of the object in the store.
    pub size: usize,
    /// The object's share of the memory budget, when the object is large.
    pub share: MemoryShare,
    /// The object as caches keep it, if it came from the cache or was written.
    pub shown: Option<Arc<CachedObject>>,
}

impl Registry {
    /// Makes a registry whose cache is empty until [`Registry::cache`] is run. All registries with
    /// the same `capacity` are bounded together.
    pub fn new(
        kind: &'static dyn ServedKind,
        store: Arc<dyn Storage>,
        admission: Arc<dyn AdmissionPlugin>,
        capacity: &Arc<Capacity>,
    ) -> Self {
        let range = kind_prefix(kind);
        let decode = move |bytes: &[u8]| {
            let (stored, owners) = split_json(bytes).map_err(|error| error.to_string())?;
            let hub = kind.decode_stored(stored).map_err(|error| error.to_string())?;
            build_form(kind, &hub, owners.as_ref())
        };
        let cache =
            Cache::new(Arc::clone(&store), range, Box::new(decode), capacity.page_semaphore());
        capacity.register_cache(Arc::clone(&cache) as _);
        Self { kind, store, cache, admission, capacity: Arc::clone(capacity) }
    }

    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    pub fn kind(&self) -> &'static dyn ServedKind {
        self.kind
    }

    fn resource(&self) -> GroupResource<'static> {
        GroupResource { group: self.kind.group(), resource: self.kind.plural() }
    }

    /// Returns the key of an object; a name that fits no key is not found.
    fn key(&self, namespace: &str, name: &str) -> Result<Key> {
        let namespace = if self.kind.is_namespaced() { namespace } else { NO_NAMESPACE };
        Key::new(self.kind.stored_group(), self.kind.plural(), namespace, name)
            .map_err(|_| ApiError::not_found(self.resource(), name))
    }

    /// Returns the prefix of the keys of a namespace, or of all namespaces when `namespace` is
    /// empty.
    fn namespace_prefix(&self, namespace: &str) -> Result<KeyPrefix> {
        if namespace.is_empty() || !self.kind.is_namespaced() {
            return Ok(kind_prefix(self.kind));
        }
        let prefix =
            KeyPrefix::for_namespace(self.kind.stored_group(), self.kind.plural(), namespace);
        prefix.map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// Decodes a body, and refuses or warns about fields that it should not have.
    fn decode_body(
        &self,
        call: &mut RegistryCall<'_>,
        mut body: ParsedBody,
        name: &str,
        stored: Option<&Value>,
        options: WriteOptions,
    ) -> Result<DecodedBody> {
        self.check_head(call.version, &body.value)?;
        let weight = body.weight;
        let owners = body.owners.take();
        if let Some(Err(error)) = owners
            .as_ref()
            .map(|owners| request_cost::run_blocking(weight, || owners.check_entries()))
        {
            let message = format!("metadata.managedFields: {error}");
            return Err(self.not_handled(call.version, self.kind.kind(), &message));
        }
        let decode = || self.kind.decode(call.version, body, stored);
        let DecodedObject { hub, strict, warnings } = request_cost::run_blocking(weight, decode)
            .map_err(|e| not_understood(self.kind, name, e))?;
        call.warnings.extend(warnings);
        let strict = match options.field_validation {
            FieldValidation::Ignore => Vec::new(),
            FieldValidation::Warn => {
                call.warnings.extend(strict);
                Vec::new()
            }
            FieldValidation::Strict => strict,
        };
        Ok(DecodedBody { hub, strict, owners })
    }

    fn not_handled(&self, version: ServedVersion, kind_name: &str, reason: &str) -> ApiError {
        ApiError::bad_request(format!(
            "{kind_name} in version {:?} cannot be handled as a {}: {reason}",
            version.as_str(),
            self.kind.kind()
        ))
    }

    /// Checks a body's `apiVersion` and `kind`; absent ones agree with the request.
    fn check_head(&self, version: ServedVersion, body: &Value) -> Result<()> {
        let kind = self.kind.kind();
        let api_version = self.kind.api_version(version);
        let head_error =
            |kind_name: &str, reason: &str| self.not_handled(version, kind_name, reason);
        if !body.is_object() {
            return Err(head_error(kind, "the body is not an object"));
        }
        match &body["apiVersion"] {
            Value::Null => {}
            Value::String(body_version)
                if body_version.is_empty() || *body_version == api_version => {}
            Value::String(body_version) => {
                return Err(ApiError::bad_request(format!(
                    "the API version in the data ({body_version}) does not match the expected API version \
                     ({api_version})",
                )));
            }
            _ => return Err(head_error(kind, "apiVersion must be a string")),
        }
        match &body["kind"] {
            Value::Null => Ok(()),
            Value::String(body_kind) if body_kind.is_empty() || body_kind == kind => Ok(()),
            Value::String(body_kind) => {
                Err(head_error(body_kind, "the kind in the data is not the kind of the resource"))
            }
            _ => Err(head_error(kind, "kind must be a string")),
        }
    }

    /// Fails with all errors of the validation, or passes its warnings on.
    fn check_validation(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        validation: ValidationResult,
    ) -> Result<()> {
        let ValidationResult { errors, warnings } = validation;
        if !errors.is_empty() {
            return Err(ApiError::invalid(self.kind.group(), self.kind.kind(), name, &errors));
        }
        call.warnings.extend(warnings);
        Ok(())
    }

    /// Returns an object as it is to be written to the store.
    fn build_storable(
        &self,
        hub: &Value,
        owners: Option<&RawManagedFields>,
    ) -> Result<StorableObject> {
        let form = build_form(self.kind, hub, owners).map_err(ApiError::internal_error)?;
        let stored = form.stored_bytes().unwrap_or_else(|| Self::to_bytes(hub, owners));
        Ok(StorableObject { form, stored })
    }

    /// Returns the hub form without its revision, as a store keeps it.
    fn to_stored(hub: &Value) -> Value {
        let mut stored = hub.clone();
        drop(meta::take_field(&mut stored, "resourceVersion"));
        stored
    }

    fn to_bytes(stored: &Value, owners: Option<&RawManagedFields>) -> Bytes {
        let mut json = Vec::with_capacity(1024);
        join_json(&mut json, stored, owners);
        json.into()
    }

    /// Returns the entry that the store holds under a key, and memory for what is made of it. A
    /// large entry is dropped, and read again once there is room in the memory budget.
    async fn fetch_entry(
        &self,
        key: &Key,
        name: &str,
    ) -> Result<Option<(StoreEntry, MemoryShare)>> {
        let get_entry = async || self.store.get(key).await.map_err(|e| self.store_error(name, &e));
        let Some(entry) = get_entry().await? else { return Ok(None) };
        if entry.value.len() <= request_cost::SMALL {
            return Ok(Some((entry, MemoryShare::NONE)));
        }
        let share = request_cost::reserve_object(entry.value).await?;
        Ok(get_entry().await?.map(|entry| (entry, share)))
    }

    /// Returns the object as the cache knows it, which may be older than what the store holds: good
    /// for a write that the store compares, and for nothing else. `None` for a large object.
    fn cached_object(&self, key: &Key) -> Option<RegistryObject> {
        let cached = self.cache.cached_object(key)?;
        let is_small = cached.whole && cached.json().len() <= request_cost::SMALL;
        is_small.then(|| {
            let ((hub, owners), size) = (cached.split_managed_fields(), cached.stored_len());
            let (key, revision) = (key.clone(), cached.revision);
            RegistryObject {
                key,
                hub,
                owners,
                revision,
                size,
                share: MemoryShare::NONE,
                shown: Some(cached),
            }
        })
    }

    /// Tells whether the object in the store is still at `revision`.
    async fn is_at(&self, key: &Key, revision: Revision) -> storage::Result<bool> {
        Ok(self.store.get(key).await?.is_some_and(|entry| entry.revision == revision))
    }

    /// Reads stored bytes into hub form.
    fn read_stored(&self, key: &Key, value: &[u8], revision: Revision) -> Result<RegistryObject> {
        let decode_error = |message: String| {
            let (key, reason) = (key.clone(), message);
            ApiError::internal_error(cache::Error::Undecodable { key, reason })
        };
        let (stored, owners) =
            split_json(value).map_err(|error| decode_error(error.to_string()))?;
        let hub =
            self.kind.decode_stored(stored).map_err(|error| decode_error(error.to_string()))?;
        let object = RegistryObject::new(key.clone(), (hub, owners), revision);
        Ok(RegistryObject { size: value.len(), ..object })
    }

    fn decode_entry(&self, entry: &StoreEntry, share: MemoryShare) -> Result<RegistryObject> {
        let read = || self.read_stored(&entry.key, &entry.value, entry.revision);
        let object = request_cost::run_blocking(entry.value.len(), read)?;
        Ok(RegistryObject { share, ..object })
    }

    /// Turns the store's error after a write into one for the client. If it is unknown whether the
    /// write happened, the error does not ask the client to try again: client-go would repeat even
    /// a create.
    fn write_error(&self, name: &str, error: &storage::Error) -> ApiError {
        match error {
            storage::Error::Unavailable { .. } => {
                let cause = error::chain(error);
                ApiError::timeout(
                    format!(
                        "the store did not say what became of the write of {} {name:?}: read the \
                         object before you try again: {cause}",
                        self.resource()
                    ),
                    0,
                )
            }
            // The write may have happened in the earlier store.
            storage::Error::Replaced { .. } => ApiError::service_unavailable(error.to_string(), 0),
            error => self.store_error(name, error),
        }
    }

    /// Turns the store's error into one for the client.
    fn store_error(&self, name: &str, error: &storage::Error) -> ApiError {
        use storage::Error;
        match error {
            Error::NotFound(_) => ApiError::not_found(self.resource(), name),
            Error::Exists(_) => ApiError::already_exists(self.resource(), name),
            Error::Conflict { .. } => ApiError::object_modified(self.resource(), name),
            Error::Compacted { .. } => ApiError::resource_expired(
                "The resourceVersion for the provided list is too old.",
                None,
            ),
            Error::FutureRevision { asked, latest } => {
                ApiError::revision_too_high(asked.0, latest.0)
            }
            Error::TooLarge { size } => ApiError::too_large(match self.kind.max_size() {
                max_size if *size > max_size => format!(
                    "Request entity too large: the object has {size} bytes; a {} may have \
                     {max_size}",
                    self.kind.kind()
                ),
                _ => format!(
                    "Request entity too large: the object has {size} bytes, more than the store \
                     takes"
                ),
            }),
            Error::Unavailable { .. } => {
                ApiError::service_unavailable(error::chain(error).to_string(), 1)
            }
            Error::Replaced { .. } => ApiError::service_unavailable(error.to_string(), 5),
            Error::Corrupt { .. } => ApiError::internal_error(error::chain(error)),
        }
    }
}

/// An object on its way to the store.
struct StorableObject {
    /// The object as caches keep it.
    form: ObjectForm,
    stored: Bytes,
}

/// Returns an object in the form in which caches keep it.
fn build_form(
    kind: &dyn ServedKind,
    hub: &Value,
    owners: Option<&RawManagedFields>,
) -> Result<ObjectForm, String> {
    let fields = selectable_values(kind, hub);
    // Fields that a later release wrote are kept in the store, and not shown.
    if kind.shows_all(hub) {
        ObjectForm::new(hub, owners, fields, true)
    } else {
        ObjectForm::new(&kind.encode(kind.versions()[0], hub), owners, fields, false)
    }
}

/// Returns the values of the kind's selectable fields, in their order.
fn selectable_values(kind: &dyn ServedKind, hub: &Value) -> Vec<String> {
    kind.selectable_fields().iter().map(|path| kind.field_value(hub, path)).collect()
}

/// A body that was decoded.
struct DecodedBody {
    hub: Value,
    strict: Vec<String>,
    /// The `managedFields` that the body brought.
    owners: Option<RawManagedFields>,
}

fn not_understood(kind: &dyn ServedKind, name: &str, error: DecodeError) -> ApiError {
    match error {
        DecodeError::Malformed(text) => ApiError::bad_request(text),
        DecodeError::Invalid(errors) => ApiError::invalid(kind.group(), kind.kind(), name, &errors),
    }
}

/// Returns the prefix of the keys of all objects of a kind.
fn kind_prefix(kind: &dyn ServedKind) -> KeyPrefix {
    KeyPrefix::for_resource(kind.stored_group(), kind.plural())
        .expect("groups and plurals of kinds are valid parts of a key")
}

impl RegistryObject {
    fn new(
        key: Key,
        (mut hub, owners): (Value, Option<RawManagedFields>),
        revision: Revision,
    ) -> Self {
        hub["metadata"]["resourceVersion"] = json!(revision.to_string());
        Self { key, hub, owners, revision, size: 0, share: MemoryShare::NONE, shown: None }
    }

    /// Returns the object with its `managedFields` as one tree of JSON values, to be shown.
    pub fn to_value(&self) -> Value {
        let mut object = self.hub.clone();
        if let Some(owners) = &self.owners {
            owners.put_into(&mut object);
        }
        object
    }

    pub fn name(&self) -> &str {
        self.hub["metadata"]["name"].as_str().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.hub["metadata"]["uid"].as_str().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.hub["metadata"].get("deletionTimestamp").is_some_and(|time| !time.is_null())
    }
}
