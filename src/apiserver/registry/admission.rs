//! Where admission has its say in a write: plugins and mutating webhooks before an object is made
//! ready to be stored, validating webhooks after it was found valid.

use std::{borrow::Cow, time::Instant};

use serde_json::{Map, Value, json};

use super::{ObjectPatch, Registry, RegistryCall, RegistryObject, meta};
use crate::{
    api::validation::warning,
    apiserver::{
        admission::{AdmissionAttributes, AdmissionOperation, webhook::ReviewSubject},
        options::{DeleteOptions, DeletionPropagation, FieldValidation, WriteOptions},
        status::Result,
    },
    machinery::{
        ownership::{ManagedFields, RawManagedFields},
        served_kind::ObjectPart,
    },
};

/// Fields of `metadata` that the server sets in a new object and that webhooks neither see nor
/// change.
const BEGUN: [&str; 3] = ["uid", "creationTimestamp", "generation"];

/// A write that is to be admitted.
#[derive(Clone, Copy)]
pub(super) struct AdmissionWrite<'a> {
    pub(super) operation: AdmissionOperation,
    pub(super) part: ObjectPart,
    pub(super) name: &'a str,
    /// The stored object; absent for creates.
    pub(super) old: Option<&'a Value>,
    pub(super) options: OperationOptions<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum OperationOptions<'a> {
    Write(WriteOptions),
    Delete(&'a DeleteOptions),
}

impl<'a> AdmissionWrite<'a> {
    pub(super) fn new(
        operation: AdmissionOperation,
        name: &'a str,
        options: OperationOptions<'a>,
    ) -> Self {
        Self { operation, part: ObjectPart::Main, name, old: None, options }
    }
}

impl OperationOptions<'_> {
    fn dry_run(self) -> bool {
        match self {
            Self::Write(options) => options.dry_run,
            Self::Delete(options) => options.dry_run,
        }
    }

    /// Returns the options as an object of `meta.k8s.io/v1`. A patch counts as an update.
    fn to_value(self, operation: AdmissionOperation, manager: &str) -> Value {
        let mut options = Map::new();
        let mut set = |name: &str, value: Value| {
            let is_empty = value.is_null() || value == "";
            if !is_empty {
                options.insert(name.to_owned(), value);
            }
        };
        let kind = match operation {
            AdmissionOperation::Create => "CreateOptions",
            AdmissionOperation::Update => "UpdateOptions",
            AdmissionOperation::Delete => "DeleteOptions",
        };
        set("kind", json!(kind));
        set("apiVersion", json!("meta.k8s.io/v1"));
        if self.dry_run() {
            set("dryRun", json!(["All"]));
        }
        match self {
            Self::Write(WriteOptions { dry_run: _, field_validation }) => {
                set("fieldManager", json!(manager));
                set(
                    "fieldValidation",
                    json!(match field_validation {
                        FieldValidation::Ignore => "Ignore",
                        FieldValidation::Warn => "Warn",
                        FieldValidation::Strict => "Strict",
                    }),
                );
            }
            Self::Delete(options) => {
                let DeleteOptions {
                    dry_run: _,
                    uid,
                    resource_version,
                    propagation,
                    orphan_dependents,
                    grace_period,
                } = options;
                set("gracePeriodSeconds", json!(grace_period));
                set("orphanDependents", json!(orphan_dependents));
                let policy = propagation.map(|propagation| match propagation {
                    DeletionPropagation::Orphan => "Orphan",
                    DeletionPropagation::Background => "Background",
                    DeletionPropagation::Foreground => "Foreground",
                });
                set("propagationPolicy", json!(policy));
                let mut preconditions = Map::new();
                for (name, value) in [("uid", uid), ("resourceVersion", resource_version)] {
                    if let Some(value) = value {
                        preconditions.insert(name.to_owned(), json!(value));
                    }
                }
                if !preconditions.is_empty() {
                    set("preconditions", json!(preconditions));
                }
            }
        }
        options.into()
    }
}

impl Registry {
    /// Admits a new object, which webhooks may change.
    pub(super) async fn admit_new(
        &self,
        call: &mut RegistryCall<'_>,
        write: AdmissionWrite<'_>,
        (hub, owners): (&mut Value, &mut Option<RawManagedFields>),
    ) -> Result<()> {
        let initial_fields = BEGUN.map(|name| (name, meta::take_field(hub, name)));
        if self.admit_with(call, write, hub, owners).await? {
            meta::settle_namespace(hub, self.kind, call.namespace)?;
            drop(meta::take_field(hub, "resourceVersion"));
            self.drop_status(call, hub);
            call.warnings.extend(meta::dedup_owners(hub));
        }
        for (name, value) in initial_fields {
            drop(meta::take_field(hub, name));
            if let Some(value) = value {
                meta::fields(hub).insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    /// Admits the next state of an object, which webhooks may change.
    pub(super) async fn admit_change(
        &self,
        call: &mut RegistryCall<'_>,
        write: AdmissionWrite<'_>,
        (next, owners): (&mut Value, &mut Option<RawManagedFields>),
        current: &RegistryObject,
    ) -> Result<()> {
        let revision = json!(current.revision.to_string());
        meta::fields(next).insert("resourceVersion".into(), revision);
        if !self.admit_with(call, write, next, owners).await? {
            drop(meta::take_field(next, "resourceVersion"));
            return Ok(());
        }
        self.check_identity(call, write.name, next, current)?;
        if write.part == ObjectPart::Main && self.kind.has_status() {
            call.warnings.extend(warning::status_ignored(next, Some(&current.hub)));
        }
        call.warnings.extend(meta::dedup_owners(next));
        *next = self.merge_change(write.part, std::mem::take(next), current);
        Ok(())
    }

    /// Admits an object, with its `managedFields` if webhooks may be asked; tells whether it was
    /// changed.
    async fn admit_with(
        &self,
        call: &mut RegistryCall<'_>,
        write: AdmissionWrite<'_>,
        hub: &mut Value,
        owners: &mut Option<RawManagedFields>,
    ) -> Result<bool> {
        if !self.asks_webhooks(call, write.operation, write.part) {
            return self.admit(call, write, Some(hub)).await;
        }
        if let Some(owners) = owners.as_ref() {
            owners.put_into(hub);
        }
        let fields_before = hub["metadata"].get("managedFields").cloned();
        let is_changed = self.admit(call, write, Some(hub)).await?;
        if hub["metadata"].get("managedFields") == fields_before.as_ref() {
            drop(meta::take_field(hub, "managedFields"));
            return Ok(is_changed);
        }
        let raw_fields = RawManagedFields::take_from(hub);
        let check_result = raw_fields
            .as_ref()
            .map_or(Ok(()), |raw_fields| ManagedFields::from_raw(raw_fields).map(drop));
        match check_result {
            Ok(()) => *owners = raw_fields,
            // When a webhook left invalid `managedFields`, the owners stay as they were.
            Err(error) => call.warnings.push(format!(
                ".metadata.managedFields was in an invalid state after admission; this could be \
                 caused by an outdated mutating admission controller; please fix your requests: \
                 {error}"
            )),
        }
        Ok(is_changed)
    }

    /// Returns the stored object, with its `managedFields` if webhooks may be asked about the
    /// write.
    pub(super) fn review_object<'o>(
        &self,
        call: &RegistryCall<'_>,
        operation: AdmissionOperation,
        part: ObjectPart,
        stored: &'o RegistryObject,
    ) -> Cow<'o, Value> {
        if self.asks_webhooks(call, operation, part) {
            Cow::Owned(with_owners(&stored.hub, stored.owners.as_ref()))
        } else {
            Cow::Borrowed(&stored.hub)
        }
    }

    /// Tells whether webhooks may be asked about such a write. If so, the write begins with the
    /// store's object, not with the cache's: no webhook shall judge an outdated object, or be asked
    /// twice because of one.
    pub(super) fn asks_webhooks(
        &self,
        call: &RegistryCall<'_>,
        operation: AdmissionOperation,
        part: ObjectPart,
    ) -> bool {
        let webhooks = self.admission.webhooks();
        webhooks
            .is_some_and(|webhooks| webhooks.may_match(self.kind, call.version, operation, part))
    }

    /// Asks plugins and mutating webhooks; returns whether the webhooks changed the object.
    async fn admit(
        &self,
        call: &RegistryCall<'_>,
        write: AdmissionWrite<'_>,
        object: Option<&mut Value>,
    ) -> Result<bool> {
        let started_at = Instant::now();
        let attributes = AdmissionAttributes {
            operation: write.operation,
            user: call.user,
            group: self.kind.group(),
            resource: self.kind.plural(),
            subresource: write.part.subresource(),
            namespace: call.namespace,
            name: write.name,
            object: object.as_deref(),
            old: write.old,
            dry_run: write.options.dry_run(),
        };
        let admission_result = self.admission.admit(attributes).await;
        let Some(webhooks) = self.admission.webhooks() else {
            return admission_result.map(|()| false);
        };
        let outcome = match admission_result {
            Ok(()) => {
                let options = || write.options.to_value(write.operation, call.field_manager);
                let subject = self.review_subject(call, write, &options);
                webhooks.mutate(&subject, object).await
            }
            Err(error) => Err(error),
        };
        webhooks.record_admission(write.operation, started_at, outcome.is_err());
        outcome
    }

    /// Asks validating webhooks about an object that was found valid.
    pub(super) async fn call_validating_webhooks(
        &self,
        call: &RegistryCall<'_>,
        write: AdmissionWrite<'_>,
        object: Option<(&Value, Option<&RawManagedFields>)>,
    ) -> Result<()> {
        let Some(webhooks) = self.admission.webhooks() else { return Ok(()) };
        let options = || write.options.to_value(write.operation, call.field_manager);
        let subject = self.review_subject(call, write, &options);
        let has_webhooks = self.asks_webhooks(call, write.operation, write.part);
        let object = object.filter(|_| has_webhooks).map(|(hub, owners)| with_owners(hub, owners));
        webhooks.validate(&subject, object.as_ref()).await
    }

    /// Asks plugins and all webhooks about a deletion.
    pub(super) async fn admit_delete(
        &self,
        call: &RegistryCall<'_>,
        write: AdmissionWrite<'_>,
    ) -> Result<()> {
        self.admit(call, write, None).await?;
        self.call_validating_webhooks(call, write, None).await
    }

    fn review_subject<'a>(
        &self,
        call: &'a RegistryCall<'_>,
        write: AdmissionWrite<'a>,
        options: &'a (dyn Fn() -> Value + Send + Sync),
    ) -> ReviewSubject<'a> {
        ReviewSubject {
            operation: write.operation,
            kind: self.kind,
            version: call.version,
            part: write.part,
            namespace: call.namespace,
            name: write.name,
            user: call.user,
            old: write.old,
            dry_run: write.options.dry_run(),
            options,
            patch: ObjectPatch::apply_webhook_patch,
            remarks: call.remarks,
        }
    }
}

fn with_owners(hub: &Value, owners: Option<&RawManagedFields>) -> Value {
    let mut object = hub.clone();
    if let Some(owners) = owners {
        owners.put_into(&mut object);
    }
    object
}
