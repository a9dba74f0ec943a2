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
        asked: &ReviewSubject<'_>,
        mut object: Option<&mut Value>,
    ) -> Result<bool> {
        let weight = asked.weight(object.as_deref());
        let mut changed = false;
        // Webhooks to be called again, if a later one changes the object.
        let mut earlier = BTreeSet::new();
        let mut again = BTreeSet::new();
        for round in 0..2 {
            if round == 1 && again.is_empty() {
                break;
            }
            // The objects as the last webhook was sent them, unless it changed the object.
            let mut kept: Option<(ServedVersion, VersionedObjects)> = None;
            let reinvoked = std::mem::take(&mut again);
            for hook in &webhooks.mutating {
                if round == 1 && !reinvoked.contains(&hook.index) {
                    continue;
                }
                let wanted = self.wanted(hook, asked, object.as_deref()).await?;
                let Some(version) = wanted else { continue };
                let shown = match kept.take() {
                    Some((known, shown)) if known == version => shown,
                    _ => {
                        let show = || VersionedObjects::new(asked, version, object.as_deref());
                        request_cost::work(weight, show)
                    }
                };
                if !self.conditions_hold(hook, asked, version, &shown, SORT)? {
                    kept = Some((version, shown));
                    continue;
                }
                let begun = Instant::now();
                let answer = Self::ask(hook, asked, version, &shown, SORT).await;
                let outcome = answer.and_then(|patch| {
                    let patched = patch_object(hook, asked, version, &shown, &patch, &mut object)?;
                    Ok((patched, patch))
                });
                let (patched, patch, failure) = match outcome {
                    Ok((patched, patch)) => (patched, patch, None),
                    Err(failure) => (false, Vec::new(), Some(failure)),
                };
                annotate(hook, asked, round, patched, &patch);
                if patched {
                    changed = true;
                    again.append(&mut earlier);
                } else {
                    kept = Some((version, shown));
                }
                if hook.reinvoked {
                    earlier.insert(hook.index);
                }
                self.judge(hook, asked, SORT, (begun, round), failure)?;
            }
        }
        Ok(changed)
    }
}

/// Applies a webhook's patch to the object. Returns whether the object changed.
fn patch_object(
    hook: &AdmissionWebhook,
    asked: &ReviewSubject<'_>,
    version: ServedVersion,
    shown: &VersionedObjects,
    patch: &[u8],
    object: &mut Option<&mut Value>,
) -> Result<bool, WebhookFailure> {
    let is_empty = serde_json::from_slice::<Vec<Value>>(patch).is_ok_and(|all| all.is_empty());
    if patch.is_empty() || is_empty {
        return Ok(false);
    }
    let (Some(current), Some(before)) = (object.as_deref_mut(), shown.object()) else {
        return Err(WebhookFailure::Wrong(ApiError::internal(format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for \
             this operation",
            hook.name
        ))));
    };
    let weight = asked.weight(Some(&before)) + patch.len();
    let apply = || {
        let mut patched = (asked.patch)(patch, before)?;
        let owners = patched.owners.take().or_else(|| RawManagedFields::take(&mut patched.value));
        let mut read = asked.kind.decode(version, patched, Some(current));
        if let (Ok(read), Some(owners)) = (&mut read, owners) {
            owners.put_into(&mut read.hub);
        }
        read.map_err(|error| {
            let why = match error {
                crate::machinery::served_kind::DecodeError::Malformed(text) => text,
                crate::machinery::served_kind::DecodeError::Invalid(errors) => {
                    crate::machinery::field_error::aggregate(&errors)
                }
            };
            WebhookPatchError::Failed(format!("what the patch makes cannot be read: {why}"))
        })
    };
    let decoded = request_cost::work(weight, apply).map_err(|error| match error {
        WebhookPatchError::Unreadable(why) => WebhookFailure::bad_answer(format!(
            "received undecodable patch in webhook response: {why}"
        )),
        WebhookPatchError::Failed(why) => {
            let text = format!("failed to apply the patch of webhook {:?}: {why}", hook.name);
            WebhookFailure::Wrong(ApiError::internal(text))
        }
    })?;
    if decoded.hub == *current {
        return Ok(false);
    }
    *current = decoded.hub;
    Ok(true)
}

/// Adds the mutation and its patch to the audit annotations, in upstream's form.
fn annotate(
    hook: &AdmissionWebhook,
    asked: &ReviewSubject<'_>,
    round: usize,
    mutated: bool,
    patch: &[u8],
) {
    let AdmissionWebhook { name, configuration, index, .. } = hook;
    let key = |what: &str| format!("{what}.webhook.admission.k8s.io/round_{round}_index_{index}");
    let mut value = json!({"configuration": configuration, "webhook": name, "mutated": mutated});
    asked.remarks.annotate(key("mutation"), value.to_string());
    if let Ok(patch @ Value::Array(_)) = serde_json::from_slice(patch) {
        value = json!({
            "configuration": configuration, "webhook": name, "patch": patch,
            "patchType": "JSONPatch",
        });
        asked.remarks.annotate_request(key("patch"), value.to_string());
    }
}
