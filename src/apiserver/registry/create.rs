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
        field_error::{ErrorList, aggregate},
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

    /// Creates an object with the field managers `managed`; without any, the caller's manager owns
    /// all fields.
    pub(super) async fn create_managed(
        &self,
        call: &mut RegistryCall<'_>,
        body: ParsedBody,
        managed: Option<ManagedFields>,
        options: WriteOptions,
    ) -> Result<RegistryObject> {
        let given = body.value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let DecodedBody { mut hub, strict, owners: given } =
            self.decode(call, body, &given, None, options)?;
        if !strict.is_empty() && managed.is_some() {
            return Err(apply::strict_error(&strict));
        }
        if !strict.is_empty() {
            let besides = self.besides(call, &hub);
            return Err(self.strict_error(call, &strict, &besides));
        }
        meta::settle_namespace(&mut hub, self.kind, call.namespace)?;
        if let Some(revision) = meta::take(&mut hub, "resourceVersion")
            && revision.as_str().is_some_and(|revision| !revision.is_empty())
        {
            // A plain Go error upstream, hence 500 and no reason.
            return Err(ApiError::unclassified(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        self.drop_status(call, &mut hub);
        let owned = (managed.as_ref(), given.as_ref());
        call.warnings.extend(meta::dedup_owners(&mut hub));

        let base = meta::text(&hub, "generateName").to_owned();
        if !meta::text(&hub, "name").is_empty() || base.is_empty() {
            return self.create_named(call, hub, owned, options).await;
        }
        let spoken = call.warnings.len();
        let mut last = String::new();
        for _ in 0..GENERATED_NAMES {
            call.warnings.truncate(spoken);
            let name = meta::generate_name(&base);
            meta::fields(&mut hub).insert("name".into(), json!(name));
            match self.create_named(call, hub.clone(), owned, options).await {
                Err(error) if error.reason() == "AlreadyExists" => last = name,
                outcome => return outcome,
            }
        }
        Err(ApiError::generated_name_taken(self.resource(), &last))
    }

    async fn create_named(
        &self,
        call: &mut RegistryCall<'_>,
        mut hub: Value,
        (managed, given): (Option<&ManagedFields>, Option<&RawManagedFields>),
        options: WriteOptions,
    ) -> Result<RegistryObject> {
        meta::begin(&mut hub);
        self.kind.begin(&mut hub);
        let mut owners = match managed {
            Some(managed) => managed.write(),
            None => ObjectFieldManager::new(self.kind, ObjectPart::Main, None)
                .after_update(call, &hub, given),
        };
        let name = meta::text(&hub, "name").to_owned();
        let write = AdmissionWrite::new(
            AdmissionOperation::Create,
            &name,
            OperationOptions::Write(options),
        );
        self.admit_new(call, write, (&mut hub, &mut owners)).await?;
        let name = meta::text(&hub, "name").to_owned();
        let weight = weight::of(&hub);
        let validation =
            request_cost::work(weight, || self.kind.validate_create(call.version, &hub));
        self.accept(call, &name, validation)?;
        self.validate_beside(call, &name, &hub, None).await?;
        let write = AdmissionWrite { name: &name, ..write };
        self.confirm(call, write, Some((&hub, owners.as_ref()))).await?;
        let key = self.key(call.namespace, &name)?;
        drop(meta::take(&mut hub, "resourceVersion"));
        let mut ready = self.made_ready(&hub, owners.as_ref())?;
        let mut room = self.room(&key, ObjectPart::Main, None, (&ready, owners.as_ref()));
        if room.is_err() && managed.is_none() {
            // Only an apply needs the field managers; for other creates they are dropped, so that
            // the object fits.
            owners = None;
            ready = self.made_ready(&hub, None)?;
            room = self.room(&key, ObjectPart::Main, None, (&ready, None));
        }
        if options.dry_run {
            let taken = self.store.get(&key).await.map_err(|e| self.store_error(&name, &e))?;
            if taken.is_some() {
                return Err(ApiError::already_exists(self.resource(), &name));
            }
            drop(room.map_err(|refused| self.refused(&name, refused))?);
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
        let room = match room {
            Ok(room) => room,
            // The client is told first that the name is taken, if it is.
            Err(refused) => return Err(self.not_created(&key, &name, refused).await),
        };
        let mut created = self.store_new(&key, ready).await;
        if matches!(created, Err(storage::Error::TooLarge { .. }))
            && managed.is_none()
            && owners.take().is_some()
        {
            ready = self.made_ready(&hub, None)?;
            created = self.store_new(&key, ready).await;
        }
        match created {
            Ok((revision, shown)) => {
                room.written(revision);
                Ok(RegistryObject { shown, ..RegistryObject::new(key, (hub, owners), revision) })
            }
            Err(storage::Error::Exists(_)) => Err(self.taken(&key, &name).await),
            Err(error) => Err(self.write_error(&name, &error)),
        }
    }

    fn made_ready(&self, hub: &Value, owners: Option<&RawManagedFields>) -> Result<StorableObject> {
        request_cost::work(weight::of(hub), || self.ready(hub, owners))
    }

    /// Hands the object to the store and the cache.
    async fn store_new(
        &self,
        key: &storage::Key,
        ready: StorableObject,
    ) -> storage::Result<(Revision, Option<Arc<CachedObject>>)> {
        let StorableObject { form, stored } = ready;
        let offered = self.cache.offer(key, form, stored.clone(), EventType::Added);
        let revision = self.store.create(key, stored).await?;
        Ok((revision, self.cache.written(offered, revision)))
    }

    /// Returns the error of a create for which there is no room: if the name is taken, it says
    /// that.
    async fn not_created(&self, key: &storage::Key, name: &str, refused: SizeRefusal) -> ApiError {
        match self.store.get(key).await {
            Ok(Some(_)) => self.taken(key, name).await,
            Ok(None) => self.refused(name, refused),
            Err(error) => self.store_error(name, &error),
        }
    }

    /// Returns the error for a name that is taken.
    async fn taken(&self, key: &storage::Key, name: &str) -> ApiError {
        let existing = self.store.get(key).await.ok().flatten();
        match existing.map(|entry| self.object(&entry, MemoryShare::NONE)) {
            Some(Ok(object)) if object.is_deleting() => {
                ApiError::exists_while_deleting(self.resource(), name)
            }
            _ => ApiError::already_exists(self.resource(), name),
        }
    }

    /// Returns all other errors of a new object that has fields which it should not have, so that a
    /// user need not mend one mistake to hear of the next.
    fn besides(&self, call: &RegistryCall<'_>, hub: &Value) -> ErrorList {
        let mut hub = hub.clone();
        let base = meta::text(&hub, "generateName").to_owned();
        if meta::text(&hub, "name").is_empty() && !base.is_empty() {
            meta::fields(&mut hub).insert("name".into(), json!(meta::generate_name(&base)));
        }
        let validate = || self.kind.validate_create(call.version, &hub);
        request_cost::work(weight::of(&hub), validate).errors
    }

    /// Returns the 400 error for fields that should not be there, under `fieldValidation=Strict`.
    pub(super) fn strict_error(
        &self,
        call: &RegistryCall<'_>,
        strict: &[String],
        besides: &ErrorList,
    ) -> ApiError {
        let kind = self.kind.kind();
        let mut message = format!(
            "{kind} in version {:?} cannot be handled as a {kind}: strict decoding error: {}",
            call.version.as_str(),
            strict.join(", ")
        );
        if !besides.is_empty() {
            message.push_str("; besides: ");
            message.push_str(&aggregate(besides));
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
