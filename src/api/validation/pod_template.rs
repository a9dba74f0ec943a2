//! Validates the part of a pod template that users may set (V30).
//!
//! Navigator owns what makes a pod a database node; side containers and volumes are free.

use serde_json::{Map, Value};

use super::{
    cluster_view::ClusterView,
    config::{self, MANAGED},
    validator::Validator,
};
use crate::{
    api::{
        names,
        reserved_fields::{KEPT_IN_CONTAINERS, KEPT_IN_PODS},
    },
    machinery::field_error::FieldPath,
};

const SPEC_FIELDS: &[&str] = &["hostname", "subdomain", "restartPolicy", "activeDeadlineSeconds"];
const CONTAINER_FIELDS: &[&str] = &["name", "env", "envFrom", "volumeMounts", "securityContext"];
const VOLUMES: [&str; 2] = [names::SHARED_VOLUME, "config"];
/// Prefix of the names of the pilot's environment variables.
const OUR_ENV: &str = "NAVIGATOR_";
/// Environment variables of the pilot that a pod template may set: they only change what is logged.
const LOG_ENV: &[&str] = &["NAVIGATOR_LOG", "NAVIGATOR_LOG_FORMAT", "NAVIGATOR_DATABASE_LOG"];

const ERASED: &str = "null would remove what Navigator keeps here; leave it out";

/// Validates a pod template. `cluster` has the names of the database's own container and volume.
pub(super) fn validate_pod_template(
    validator: &mut Validator,
    cluster: &ClusterView<'_>,
    template: &Map<String, Value>,
    path: &FieldPath,
) {
    config::validate_size(validator, template, path);
    for steps in KEPT_IN_PODS {
        let (field, parents) = steps.split_last().expect("every path has a last step");
        let holder = parents.iter().try_fold(template, |map, step| map.get(*step)?.as_object());
        if holder.and_then(|holder| holder.get(*field)).is_some_and(Value::is_null) {
            let place = steps.iter().fold(path.clone(), |path, step| path.child(step));
            validator.forbidden(&place, ERASED);
        }
    }
    for group in ["labels", "annotations"] {
        let entries = template.get("metadata").and_then(|metadata| metadata.get(group));
        for key in entries.and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if key.split_once('/').is_some_and(|(prefix, _)| prefix == names::DOMAIN) {
                validator.forbidden(&path.child("metadata").child(group).key(key), MANAGED);
            }
        }
    }
    let Some(Value::Object(spec)) = template.get("spec") else { return };
    let path = path.child("spec");
    for field in SPEC_FIELDS.iter().filter(|field| spec.contains_key(**field)) {
        validator.forbidden(&path.child(field), MANAGED);
    }
    for (index, container) in list_objects(spec, "containers") {
        if entry_name(container) == cluster.names.container {
            database_container(validator, container, &path.child("containers").index(index));
        }
    }
    for (index, container) in list_objects(spec, "initContainers") {
        if entry_name(container) == names::INSTALL_CONTAINER {
            validator.forbidden(&path.child("initContainers").index(index), MANAGED);
        }
    }
    for (index, volume) in list_objects(spec, "volumes") {
        if VOLUMES.contains(&entry_name(volume)) || entry_name(volume) == cluster.names.data_volume
        {
            validator.forbidden(&path.child("volumes").index(index), MANAGED);
        }
    }
}

fn database_container(validator: &mut Validator, container: &Map<String, Value>, path: &FieldPath) {
    for field in container.keys().filter(|field| !CONTAINER_FIELDS.contains(&field.as_str())) {
        validator.forbidden(&path.child(field), MANAGED);
    }
    for field in KEPT_IN_CONTAINERS {
        if container.get(field).is_some_and(Value::is_null) {
            validator.forbidden(&path.child(field), ERASED);
        }
    }
    for (index, variable) in list_objects(container, "env") {
        let name = entry_name(variable);
        if name.starts_with(OUR_ENV) && !LOG_ENV.contains(&name) {
            validator.forbidden(&path.child("env").index(index), MANAGED);
        }
    }
}

fn list_objects<'a>(
    object: &'a Map<String, Value>,
    field: &str,
) -> impl Iterator<Item = (usize, &'a Map<String, Value>)> {
    let items = object.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    items.iter().enumerate().filter_map(|(index, item)| Some((index, item.as_object()?)))
}

fn entry_name(object: &Map<String, Value>) -> &str {
    object.get("name").and_then(Value::as_str).unwrap_or_default()
}
