//! The surplus annotation, which holds what v1alpha1 cannot say of an object: shown to readers of
//! v1alpha1, read when an object is created through v1alpha1, never stored.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    api::{names::annotation, v1beta1::is_default},
    machinery::{
        decode,
        field_error::{FieldError, FieldErrorKind, FieldPath},
        schema::compiled::Schema,
        strict_decoding,
    },
};

/// Writes the surplus into its annotation, or removes the annotation when the surplus is empty.
pub(in crate::api) fn write_surplus<S: Serialize + Default + PartialEq>(
    metadata: &mut ObjectMeta,
    surplus: &S,
) {
    super::drop_annotation(metadata);
    if is_default(surplus) {
        return;
    }
    // Through a Value, whose keys are sorted: equal objects give equal text.
    let value = serde_json::to_value(surplus).expect("a surplus has string keys");
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::SURPLUS.to_owned(), value.to_string());
}

/// Reads the surplus that a new object carries, as strictly as a body of v1beta1. `schema` is the
/// schema of the surplus, not of the object.
pub(in crate::api) fn parse_surplus<S>(
    metadata: &ObjectMeta,
    schema: &Schema,
) -> Result<S, FieldError>
where
    S: Default + DeserializeOwned,
{
    let annotations = metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|map| map.get(annotation::SURPLUS)) else {
        return Ok(S::default());
    };
    let invalid_error = |detail: String| {
        let path = FieldPath::new("metadata.annotations").key(annotation::SURPLUS);
        FieldError::new(&path, FieldErrorKind::Invalid(Value::String(text.clone())), detail)
    };
    let mut document =
        decode::parse_json(text.as_bytes()).map_err(|error| invalid_error(error.to_string()))?;
    strict_decoding::canonicalize_document(schema, &mut document);
    let findings = strict_decoding::check_document(schema, &document);
    let mut problems = findings.fields;
    problems.extend(findings.type_errors.iter().map(ToString::to_string));
    if !problems.is_empty() {
        return Err(invalid_error(problems.join(", ")));
    }
    S::deserialize(&document.value).map_err(|error| invalid_error(error.to_string()))
}
