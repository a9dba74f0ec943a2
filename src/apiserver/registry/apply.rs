//! Server-side apply: an object as one manager wants it, merged into what is there.
//!
//! Owns the body and its head, and the object that is created when there is none. `api::ownership`
//! decides what becomes of the object and of its owners.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{
    ObjectChange, Registry, RegistryCall, RegistryObject,
    managed_fields::{ObjectFieldManager, without_views},
    meta,
};
use crate::{
    apiserver::{
        negotiate::body_error,
        options::{ApplyOptions, WriteOptions},
        status::{ApiError, Result},
    },
    machinery::{
        decode::{self, ParsedBody},
        ownership::ManagedFields,
        served_kind::{ObjectPart, ServedKind, ServedVersion},
    },
};

/// Most tries of an apply whose object is created and deleted by others meanwhile.
const ATTEMPTS: usize = 5;

/// The body of a server-side apply: an object as its manager wants it.
pub struct ApplyPatch {
    body: ParsedBody,
    force: bool,
}

/// The outcome of merging an apply.
pub(super) struct ApplyOutcome {
    pub(super) object: ParsedBody,
    /// The object's field managers after the apply.
    pub(super) managed: ManagedFields,
    pub(super) warnings: Vec<String>,
}

impl ApplyPatch {
    /// Reads a body of `application/apply-patch+yaml`, which may be JSON.
    pub fn new(body: &[u8], options: &ApplyOptions) -> Result<Self> {
        let decode_result = decode::parse_json(body).or_else(|_| decode::parse_yaml(body));
        let body = decode_result.map_err(|error| body_error(&error, "error decoding YAML"))?;
        if !body.value.is_object() {
            return Err(ApiError::bad_request("error decoding YAML: an apply patch is an object"));
        }
        Ok(Self { body, force: options.force })
    }

    pub(super) fn weight(&self) -> usize {
        self.body.weight
    }

    /// Tells whether the body asks for one state of the object, by its resource version, or for one
    /// object, by its uid.
    pub(super) fn names_revision(&self) -> bool {
        let has_field = |name: &str| self.body.value["metadata"].get(name).is_some();
        has_field("resourceVersion") || has_field("uid")
    }

    /// Fails unless the body names its kind and version and brings no `managedFields`.
    fn check_head(&self, kind: &dyn ServedKind, version: ServedVersion) -> Result<()> {
        let text = |name: &str| self.body.value[name].as_str().unwrap_or_default();
        let (api_version, kind_name) = (text("apiVersion"), text("kind"));
        if kind_name != kind.kind() || api_version != kind.api_version(version) {
            let place = if api_version.contains('/') { "" } else { "/" };
            return Err(ApiError::bad_request(format!(
                "invalid object type: {place}{api_version}, Kind={kind_name}"
            )));
        }
        if self.body.owners.is_some() {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        Ok(())
    }

    /// Returns the object with the applied fields, and without those that the manager applies no
    /// more. `stored` is absent for an object that is created.
    pub(super) fn merge(
        &self,
        call: &RegistryCall<'_>,
        kind: &'static dyn ServedKind,
        part: ObjectPart,
        stored: Option<&RegistryObject>,
        live_object: Value,
    ) -> Result<ApplyOutcome> {
        self.check_head(kind, call.version)?;
        let mut body = self.body.clone();
        let name = body.value["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let warnings = kind
            .normalize(call.version, &mut body)
            .map_err(|error| super::not_understood(kind, &name, error))?;
        let surplus = kind.surplus_annotation().and_then(|name| {
            let value = body.value["metadata"]["annotations"].get(name)?;
            Some((name, value.clone()))
        });
        let config = without_views(kind, body.value);
        let owners = ObjectFieldManager::new(kind, part, stored);
        let outcome = owners.apply(call, live_object, &config, self.force)?;
        let mut object = outcome.object;
        if let Some((name, surplus)) = surplus.filter(|_| stored.is_none()) {
            object["metadata"]["annotations"][name] = surplus;
        }
        let mut object = ParsedBody::from(object);
        object.duplicates = body.duplicates;
        object.numbers = body.numbers;
        Ok(ApplyOutcome { object, managed: outcome.managed, warnings })
    }
}

impl Registry {
    /// Makes the object what its manager wants, or creates it so; returns whether it was created.
    /// `may_create` is called once, before a create: it fails unless the user may do that, too.
    pub async fn apply<'a>(
        &self,
        call: &mut RegistryCall<'_>,
        name: &str,
        part: ObjectPart,
        apply: &ApplyPatch,
        options: WriteOptions,
        may_create: impl FnOnce() -> BoxFuture<'a, Result<()>>,
    ) -> Result<(RegistryObject, bool)> {
        let mut may_create = Some(may_create);
        let mut attempt = 1;
        loop {
            match self.update(call, name, part, ObjectChange::Apply(apply), options).await {
                Err(error) if error.reason() == "NotFound" && part == ObjectPart::Main => {}
                result => return Ok((result?, false)),
            }
            if let Some(check_permission) = may_create.take() {
                check_permission().await?;
            }
            if apply.names_revision() {
                // The state or the object that the body asks for no longer exists.
                return Err(ApiError::object_modified(self.resource(), name));
            }
            let new_object = json!({
                "apiVersion": self.kind().api_version(call.version),
                "kind": self.kind().kind(),
                "metadata": {"name": name},
            });
            let ApplyOutcome { object, managed, warnings } =
                apply.merge(call, self.kind(), part, None, new_object)?;
            call.warnings.extend(warnings);
            meta::check_same_name(meta::text(&object.value, "name"), name)?;
            match self.create_managed(call, object, Some(managed), options).await {
                Err(error) if error.reason() == "AlreadyExists" && attempt < ATTEMPTS => {
                    attempt += 1;
                }
                result => return Ok((result?, true)),
            }
        }
    }
}

/// Returns the 400 error for fields that an applied object has twice.
pub(super) fn strict_error(strict: &[String]) -> ApiError {
    ApiError::bad_request(format!("error strict decoding YAML: {}", strict.join(", ")))
}
