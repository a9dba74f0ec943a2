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
        let begun = BEGUN.map(|name| (name, meta::take(hub, name)));
        if self.admit_with(call, write, hub, owners).await? {
            meta::settle_namespace(hub, self.kind, call.namespace)?;
            drop(meta::take(hub, "resourceVersion"));
            self.drop_status(call, hub);
            call.warnings.extend(meta::dedup_owners(hub));
        }
        for (name, value) in begun {
            drop(meta::take(hub, name));
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
            drop(meta::take(next, "resourceVersion"));
            return Ok(());
        }
        self.check_identity(call, write.name, next, current)?;
        if write.part == ObjectPart::Main && self.kind.has_status() {
            call.warnings.extend(warning::status_ignored(next, Some(&current.hub)));
        }
        call.warnings.extend(meta::dedup_owners(next));
        *next = self.prepared(write.part, std::mem::take(next), current);
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
        let before = hub["metadata"].get("managedFields").cloned();
        let changed = self.admit(call, write, Some(hub)).await?;
        if hub["metadata"].get("managedFields") == before.as_ref() {
            drop(meta::take(hub, "managedFields"));
            return Ok(changed);
        }
        let found = RawManagedFields::take(hub);
        let valid = found.as_ref().map_or(Ok(()), |found| ManagedFields::read(found).map(drop));
        match valid {
            Ok(()) => *owners = found,
            // When a webhook left invalid `managedFields`, the owners stay as they were.
            Err(why) => call.warnings.push(format!(
                ".metadata.managedFields was in an invalid state after admission; this could be \
                 caused by an outdated mutating admission controller; please fix your requests: \
                 {why}"
            )),
        }
        Ok(changed)
    }

    /// Returns the stored object, with its `managedFields` if webhooks may be asked about the
    /// write.
    pub(super) fn seen<'o>(
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
        webhooks.is_some_and(|webhooks| webhooks.may_mean(self.kind, call.version, operation, part))
    }

    /// Asks plugins and mutating webhooks; returns whether the webhooks changed the object.
    async fn admit(
        &self,
        call: &RegistryCall<'_>,
        write: AdmissionWrite<'_>,
        object: Option<&mut Value>,
    ) -> Result<bool> {
        let begun = Instant::now();
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
        let admitted = self.admission.admit(attributes).await;
        let Some(webhooks) = self.admission.webhooks() else { return admitted.map(|()| false) };
        let outcome = match admitted {
            Ok(()) => {
                let options = || write.options.to_value(write.operation, call.field_manager);
                let asked = self.asked(call, write, &options);
                webhooks.mutate(&asked, object).await
            }
            Err(refused) => Err(refused),
        };
        webhooks.admitted(write.operation, begun, outcome.is_err());
        outcome
    }

    /// Asks validating webhooks about an object that was found valid.
    pub(super) async fn confirm(
        &self,
        call: &RegistryCall<'_>,
        write: AdmissionWrite<'_>,
        object: Option<(&Value, Option<&RawManagedFields>)>,
    ) -> Result<()> {
        let Some(webhooks) = self.admission.webhooks() else { return Ok(()) };
        let options = || write.options.to_value(write.operation, call.field_manager);
        let asked = self.asked(call, write, &options);
        let asks = self.asks_webhooks(call, write.operation, write.part);
        let object = object.filter(|_| asks).map(|(hub, owners)| with_owners(hub, owners));
        webhooks.validate(&asked, object.as_ref()).await
    }

    /// Asks plugins and all webhooks about a deletion.
    pub(super) async fn admit_delete(
        &self,
        call: &RegistryCall<'_>,
        write: AdmissionWrite<'_>,
    ) -> Result<()> {
        self.admit(call, write, None).await?;
        self.confirm(call, write, None).await
    }

    fn asked<'a>(
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
            patch: ObjectPatch::of_webhook,
            remarks: call.remarks,
        }
    }
}

fn with_owners(hub: &Value, owners: Option<&RawManagedFields>) -> Value {
    let mut whole = hub.clone();
    if let Some(owners) = owners {
        owners.put_into(&mut whole);
    }
    whole
}
