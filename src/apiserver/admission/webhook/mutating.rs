//! Calls webhooks that may change the object that is to be stored: one after the other, each with
//! the object as the one before left it.

use std::{collections::BTreeSet, time::Instant};

use serde_json::{Value, json};

use super::{
    ReviewSubject, WebhookDispatcher, WebhookPatchError,
    call::{VersionedObjects, WebhookFailure},
    configurations,
    hook::AdmissionWebhook,
    metrics::WebhookType,
};
use crate::{
    apiserver::{
        request_cost,
        status::{ApiError, Result},
    },
    machinery::{ownership::RawManagedFields, served_kind::ServedVersion},
};

const SORT: WebhookType = WebhookType::Mutating;

impl WebhookDispatcher {
    /// Calls the webhooks in turn, and once more those with `reinvocationPolicy: IfNeeded` when a
    /// later one changed the object. Returns whether the object, in hub form, was changed.
    pub(super) async fn mutate_by(
        &self,
        webhooks: &configurations::ConfiguredWebhooks,
        subject: &ReviewSubject<'_>,
        mut object: Option<&mut Value>,
    ) -> Result<bool> {
        let weight = subject.weight(object.as_deref());
        let mut is_changed = false;
        // Webhooks to be called again, if a later one changes the object.
        let mut earlier_hooks = BTreeSet::new();
        let mut hooks_to_repeat = BTreeSet::new();
        for round in 0..2 {
            if round == 1 && hooks_to_repeat.is_empty() {
                break;
            }
            // The objects as the last webhook was sent them, unless it changed the object.
            let mut cached_objects: Option<(ServedVersion, VersionedObjects)> = None;
            let repeated_hooks = std::mem::take(&mut hooks_to_repeat);
            for hook in &webhooks.mutating {
                if round == 1 && !repeated_hooks.contains(&hook.index) {
                    continue;
                }
                let matched_version = self.match_version(hook, subject, object.as_deref()).await?;
                let Some(version) = matched_version else { continue };
                let objects = match cached_objects.take() {
                    Some((cached_version, objects)) if cached_version == version => objects,
                    _ => {
                        let encode_objects =
                            || VersionedObjects::new(subject, version, object.as_deref());
                        request_cost::run_blocking(weight, encode_objects)
                    }
                };
                if !self.are_conditions_met(hook, subject, version, &objects, SORT)? {
                    cached_objects = Some((version, objects));
                    continue;
                }
                let started_at = Instant::now();
                let answer = Self::call_webhook(hook, subject, version, &objects, SORT).await;
                let outcome = answer.and_then(|patch| {
                    let is_patched =
                        patch_object(hook, subject, version, &objects, &patch, &mut object)?;
                    Ok((is_patched, patch))
                });
                let (is_patched, patch, failure) = match outcome {
                    Ok((is_patched, patch)) => (is_patched, patch, None),
                    Err(failure) => (false, Vec::new(), Some(failure)),
                };
                annotate_mutation(hook, subject, round, is_patched, &patch);
                if is_patched {
                    is_changed = true;
                    hooks_to_repeat.append(&mut earlier_hooks);
                } else {
                    cached_objects = Some((version, objects));
                }
                if hook.reinvoked {
                    earlier_hooks.insert(hook.index);
                }
                self.record_outcome(hook, subject, SORT, (started_at, round), failure)?;
            }
        }
        Ok(is_changed)
    }
}

/// Applies a webhook's patch to the object. Returns whether the object changed.
fn patch_object(
    hook: &AdmissionWebhook,
    subject: &ReviewSubject<'_>,
    version: ServedVersion,
    objects: &VersionedObjects,
    patch: &[u8],
    object: &mut Option<&mut Value>,
) -> Result<bool, WebhookFailure> {
    let is_empty =
        serde_json::from_slice::<Vec<Value>>(patch).is_ok_and(|operations| operations.is_empty());
    if patch.is_empty() || is_empty {
        return Ok(false);
    }
    let (Some(current), Some(original)) = (object.as_deref_mut(), objects.parse_object()) else {
        return Err(WebhookFailure::Wrong(ApiError::internal_error(format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for \
             this operation",
            hook.name
        ))));
    };
    let weight = subject.weight(Some(&original)) + patch.len();
    let apply = || {
        let mut patched = (subject.patch)(patch, original)?;
        let owners =
            patched.owners.take().or_else(|| RawManagedFields::take_from(&mut patched.value));
        let mut decode_result = subject.kind.decode(version, patched, Some(current));
        if let (Ok(decoded_object), Some(owners)) = (&mut decode_result, owners) {
            owners.put_into(&mut decoded_object.hub);
        }
        decode_result.map_err(|error| {
            let message = match error {
                crate::machinery::served_kind::DecodeError::Malformed(text) => text,
                crate::machinery::served_kind::DecodeError::Invalid(errors) => {
                    crate::machinery::field_error::join_errors(&errors)
                }
            };
            WebhookPatchError::Failed(format!("what the patch makes cannot be read: {message}"))
        })
    };
    let decoded = request_cost::run_blocking(weight, apply).map_err(|error| match error {
        WebhookPatchError::Unreadable(reason) => WebhookFailure::bad_answer(format!(
            "received undecodable patch in webhook response: {reason}"
        )),
        WebhookPatchError::Failed(reason) => {
            let text = format!("failed to apply the patch of webhook {:?}: {reason}", hook.name);
            WebhookFailure::Wrong(ApiError::internal_error(text))
        }
    })?;
    if decoded.hub == *current {
        return Ok(false);
    }
    *current = decoded.hub;
    Ok(true)
}

/// Adds the mutation and its patch to the audit annotations, in upstream's form.
fn annotate_mutation(
    hook: &AdmissionWebhook,
    subject: &ReviewSubject<'_>,
    round: usize,
    mutated: bool,
    patch: &[u8],
) {
    let AdmissionWebhook { name, configuration, index, .. } = hook;
    let key = |annotation: &str| {
        format!("{annotation}.webhook.admission.k8s.io/round_{round}_index_{index}")
    };
    let mut value = json!({"configuration": configuration, "webhook": name, "mutated": mutated});
    subject.remarks.add_annotation(key("mutation"), value.to_string());
    if let Ok(patch @ Value::Array(_)) = serde_json::from_slice(patch) {
        value = json!({
            "configuration": configuration, "webhook": name, "patch": patch,
            "patchType": "JSONPatch",
        });
        subject.remarks.add_request_annotation(key("patch"), value.to_string());
    }
}
