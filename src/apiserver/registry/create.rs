//! Create: a new object with an identity of its own.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    DecodedBody, Registry, RegistryCall, RegistryObject, StorableObject,
    admission::{AdmissionWrite, OperationOptions},
    apply,
    managed_fields::ObjectFieldManager,
    meta,
    object_size::SizeRefusal,
};
use crate::{
    api::validation::warning,
    apiserver::{
        account::MemoryShare,
        admission::AdmissionOperation,
        cache::{CachedObject, EventType},
        options::WriteOptions,
        request_cost,
        status::{ApiError, Result},
        storage::{self, Revision},
    },
    machinery::{
        decode::{ParsedBody, weight},
        field_error::{ErrorList, join_errors},
        ownership::{ManagedFields, RawManagedFields},
        served_kind::ObjectPart,
    },
};

/// Most names that are tried for an object with `generateName`.
const GENERATED_NAMES: usize = 8;

impl Registry {
    /// Stores a new object and returns it as stored.
    pub async fn create(
        &self,
        call: &mut RegistryCall<'_>,
        body: ParsedBody,
        options: WriteOptions,
    ) -> Result<RegistryObject> {
        self.create_managed(call, body, None, options).await
    }

    /// Creates an object with the field managers `managed_fields`; without any, the caller's
    /// manager owns all fields.
    pub(super) async fn create_managed(
        &self,
        call: &mut RegistryCall<'_>,
        body: ParsedBody,
        managed_fields: Option<ManagedFields>,
        options: WriteOptions,
    ) -> Result<RegistryObject> {
        let requested_name = body.value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let DecodedBody { mut hub, strict, owners: requested_owners } =
            self.decode_body(call, body, &requested_name, None, options)?;
        if !strict.is_empty() && managed_fields.is_some() {
            return Err(apply::strict_error(&strict));
        }
        if !strict.is_empty() {
            let other_errors = self.find_other_errors(call, &hub);
            return Err(self.strict_error(call, &strict, &other_errors));
        }
        meta::settle_namespace(&mut hub, self.kind, call.namespace)?;
        if let Some(revision) = meta::take_field(&mut hub, "resourceVersion")
            && revision.as_str().is_some_and(|revision| !revision.is_empty())
        {
            // Upstream returns a plain Go error here, so the code is 500 and there is no reason.
            return Err(ApiError::unclassified_error(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        self.drop_status(call, &mut hub);
        let field_managers = (managed_fields.as_ref(), requested_owners.as_ref());
        call.warnings.extend(meta::dedup_owners(&mut hub));

        let base = meta::text(&hub, "generateName").to_owned();
        if !meta::text(&hub, "name").is_empty() || base.is_empty() {
            return self.create_named(call, hub, field_managers, options).await;
        }
        let warning_count = call.warnings.len();
        let mut last_name = String::new();
        for _ in 0..GENERATED_NAMES {
            call.warnings.truncate(warning_count);
            let name = meta::generate_name(&base);
            meta::fields(&mut hub).insert("name".into(), json!(name));
            match self.create_named(call, hub.clone(), field_managers, options).await {
                Err(error) if error.reason() == "AlreadyExists" => last_name = name,
                outcome => return outcome,
            }
        }
        Err(ApiError::generated_name_taken(self.resource(), &last_name))
    }

    async fn create_named(
        &self,
        call: &mut RegistryCall<'_>,
        mut hub: Value,
        (managed_fields, requested_owners): (Option<&ManagedFields>, Option<&RawManagedFields>),
        options: WriteOptions,
    ) -> Result<RegistryObject> {
        meta::init_metadata(&mut hub);
        self.kind.prepare_create(&mut hub);
        let mut owners = match managed_fields {
            Some(fields) => fields.to_raw(),
            None => ObjectFieldManager::new(self.kind, ObjectPart::Main, None).after_update(
                call,
                &hub,
                requested_owners,
            ),
        };
        let name = meta::text(&hub, "name").to_owned();
        let write = AdmissionWrite::new(
            AdmissionOperation::Create,
            &name,
            OperationOptions::Write(options),
        );
        self.admit_new(call, write, (&mut hub, &mut owners)).await?;
        let name = meta::text(&hub, "name").to_owned();
        let weight = weight::value_bytes(&hub);
        let validation =
            request_cost::run_blocking(weight, || self.kind.validate_create(call.version, &hub));
        self.check_validation(call, &name, validation)?;
        self.validate_beside(call, &name, &hub, None).await?;
        let write = AdmissionWrite { name: &name, ..write };
        self.call_validating_webhooks(call, write, Some((&hub, owners.as_ref()))).await?;
        let key = self.key(call.namespace, &name)?;
        drop(meta::take_field(&mut hub, "resourceVersion"));
        let mut storable = self.prepare_storable(&hub, owners.as_ref())?;
        let mut claim =
            self.claim_capacity(&key, ObjectPart::Main, None, (&storable, owners.as_ref()));
        if claim.is_err() && managed_fields.is_none() {
            // Only an apply needs the field managers; for other creates they are dropped, so that
            // the object fits.
            owners = None;
            storable = self.prepare_storable(&hub, None)?;
            claim = self.claim_capacity(&key, ObjectPart::Main, None, (&storable, None));
        }
        if options.dry_run {
            let existing_entry =
                self.store.get(&key).await.map_err(|e| self.store_error(&name, &e))?;
            if existing_entry.is_some() {
                return Err(ApiError::already_exists(self.resource(), &name));
            }
            drop(claim.map_err(|refusal| self.size_error(&name, refusal))?);
            // Nothing was stored, so there is no revision to show.
            let revision = Revision(0);
            let share = MemoryShare::NONE;
            return Ok(RegistryObject {
                key,
                hub,
                owners,
                revision,
                size: weight,
                share,
                shown: None,
            });
        }
        let claim = match claim {
            Ok(claim) => claim,
            // If the name is taken, the client receives that error first.
            Err(refusal) => return Err(self.not_created(&key, &name, refusal).await),
        };
        let mut create_result = self.store_new(&key, storable).await;
        if matches!(create_result, Err(storage::Error::TooLarge { .. }))
            && managed_fields.is_none()
            && owners.take().is_some()
        {
            storable = self.prepare_storable(&hub, None)?;
            create_result = self.store_new(&key, storable).await;
        }
        match create_result {
            Ok((revision, shown)) => {
                claim.mark_written(revision);
                Ok(RegistryObject { shown, ..RegistryObject::new(key, (hub, owners), revision) })
            }
            Err(storage::Error::Exists(_)) => Err(self.name_taken_error(&key, &name).await),
            Err(error) => Err(self.write_error(&name, &error)),
        }
    }

    fn prepare_storable(
        &self,
        hub: &Value,
        owners: Option<&RawManagedFields>,
    ) -> Result<StorableObject> {
        request_cost::run_blocking(weight::value_bytes(hub), || self.build_storable(hub, owners))
    }

    /// Hands the object to the store and the cache.
    async fn store_new(
        &self,
        key: &storage::Key,
        storable: StorableObject,
    ) -> storage::Result<(Revision, Option<Arc<CachedObject>>)> {
        let StorableObject { form, stored } = storable;
        let offer = self.cache.announce_write(key, form, stored.clone(), EventType::Added);
        let revision = self.store.create(key, stored).await?;
        Ok((revision, self.cache.finish_write(offer, revision)))
    }

    /// Returns the error of a create for which there is no room: if the name is taken, it says
    /// that.
    async fn not_created(&self, key: &storage::Key, name: &str, refusal: SizeRefusal) -> ApiError {
        match self.store.get(key).await {
            Ok(Some(_)) => self.name_taken_error(key, name).await,
            Ok(None) => self.size_error(name, refusal),
            Err(error) => self.store_error(name, &error),
        }
    }

    /// Returns the error for a name that is taken.
    async fn name_taken_error(&self, key: &storage::Key, name: &str) -> ApiError {
        let existing_entry = self.store.get(key).await.ok().flatten();
        match existing_entry.map(|entry| self.decode_entry(&entry, MemoryShare::NONE)) {
            Some(Ok(object)) if object.is_deleting() => {
                ApiError::exists_while_deleting(self.resource(), name)
            }
            _ => ApiError::already_exists(self.resource(), name),
        }
    }

    /// Returns all other errors of a new object that has fields which it should not have. So the
    /// user learns of all mistakes at once.
    fn find_other_errors(&self, call: &RegistryCall<'_>, hub: &Value) -> ErrorList {
        let mut hub = hub.clone();
        let base = meta::text(&hub, "generateName").to_owned();
        if meta::text(&hub, "name").is_empty() && !base.is_empty() {
            meta::fields(&mut hub).insert("name".into(), json!(meta::generate_name(&base)));
        }
        let validate = || self.kind.validate_create(call.version, &hub);
        request_cost::run_blocking(weight::value_bytes(&hub), validate).errors
    }

    /// Returns the 400 error for fields that should not be there, under `fieldValidation=Strict`.
    pub(super) fn strict_error(
        &self,
        call: &RegistryCall<'_>,
        strict: &[String],
        other_errors: &ErrorList,
    ) -> ApiError {
        let kind = self.kind.kind();
        let mut message = format!(
            "{kind} in version {:?} cannot be handled as a {kind}: strict decoding error: {}",
            call.version.as_str(),
            strict.join(", ")
        );
        if !other_errors.is_empty() {
            message.push_str("; besides: ");
            message.push_str(&join_errors(other_errors));
        }
        ApiError::bad_request(message)
    }

    /// Removes the status, which is written through its own subresource.
    pub(super) fn drop_status(&self, call: &mut RegistryCall<'_>, hub: &mut Value) {
        if self.kind.has_status() {
            call.warnings.extend(warning::status_ignored(hub, None));
        }
        hub.as_object_mut().expect("hub objects are JSON objects").remove("status");
    }
}
