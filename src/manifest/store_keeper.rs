//! Protects the store when Navigator is uninstalled. kube-apiserver refuses to delete the embedded
//! store's claim, or the definition of the kind that holds objects in Kubernetes, and the namespace
//! around them, until a person sets an annotation on them.
//!
//! Without the store the databases would run on, but Navigator would not know them any more.
//! kube-apiserver decides from the request and needs none of our processes, so the store is
//! protected while none of them runs.

use serde_json::{Value, json};

use super::{STORE_COMPONENT, build_object, with_fields};
use crate::{
    api::names::{self, annotation},
    engine::stored_object,
};

/// Name of the policy and of its binding.
const KEEPER: &str = "navigator-store-keeper";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";

/// The object that holds the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProtectedStore {
    Claim,
    Definition,
}

/// Builds the policy and its binding. They come after the objects that they protect: `kubectl
/// delete -f` goes through the manifest in the order of `kubectl apply`, and must be refused before
/// the policy is deleted.
pub(super) fn store_keeper_objects(namespace: &str, store: ProtectedStore) -> [Value; 2] {
    let (claim, delete_annotation) = (names::APISERVER, annotation::DELETE_STORE);
    let definition = stored_object::definition_name();
    let allow_expression = |object: &str| {
        format!(
            "(has({object}.metadata.annotations) && '{delete_annotation}' in {object}.metadata.annotations \
             && {object}.metadata.annotations['{delete_annotation}'] == 'true')"
        )
    };
    // A claim cannot be kept once its namespace is being deleted.
    let own_expression = allow_expression("oldObject");
    let deletion_expression = format!(
        "(namespaceObject != null && has(namespaceObject.metadata.deletionTimestamp)) || {own_expression}"
    );
    let is_namespace = format!(
        "request.resource.resource == 'namespaces' && oldObject.metadata.name == '{namespace}'"
    );
    let is_kept = match store {
        ProtectedStore::Claim => format!(
            "request.resource.resource == 'persistentvolumeclaims' && oldObject.metadata.name == \
             '{claim}' && request.namespace == '{namespace}'"
        ),
        ProtectedStore::Definition => format!(
            "request.resource.resource == 'customresourcedefinitions' && oldObject.metadata.name \
             == '{definition}'"
        ),
    };
    let deletion_rule = |group: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["v1"],
            "operations": ["DELETE"],
            "resources": resources,
            "scope": "*",
        })
    };
    let rules = match store {
        ProtectedStore::Claim => vec![deletion_rule("", &["namespaces", "persistentvolumeclaims"])],
        ProtectedStore::Definition => vec![
            deletion_rule("", &["namespaces"]),
            deletion_rule("apiextensions.k8s.io", &["customresourcedefinitions"]),
        ],
    };
    let message = format!(
        "this would delete the store of Navigator, which knows every database that it runs. To keep \
         the store, delete everything else; to delete it too, annotate this object with \
         {delete_annotation}=true first"
    );
    let policy = with_fields(
        build_object(ADMISSION, "ValidatingAdmissionPolicy", KEEPER, None, STORE_COMPONENT),
        json!({"spec": {
            "failurePolicy": "Fail",
            // Includes Kubernetes' defaults: the whole value counts as one field, and a field
            // manager that applies it without them would meet a conflict.
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": rules,
            },
            // kube-apiserver asks once without an object for a whole collection, then for each
            // object of it.
            "matchConditions": [{
                "name": "is-the-store",
                "expression": format!("oldObject != null && (({is_namespace}) || ({is_kept}))"),
            }],
            "validations": [{"expression": deletion_expression, "message": message, "reason": "Forbidden"}],
        }}),
    );
    let binding = with_fields(
        build_object(ADMISSION, "ValidatingAdmissionPolicyBinding", KEEPER, None, STORE_COMPONENT),
        json!({"spec": {"policyName": KEEPER, "validationActions": ["Deny"]}}),
    );
    [policy, binding]
}
