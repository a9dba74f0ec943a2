//! Calls webhooks that allow or refuse a write: concurrently. The refusal that comes first counts.

use std::{collections::HashMap, time::Instant};

use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;

use super::{
    ReviewSubject, WebhookDispatcher, call::VersionedObjects, configurations, metrics::WebhookType,
};
use crate::apiserver::{request_cost, status::Result};

const SORT: WebhookType = WebhookType::Validating;

impl WebhookDispatcher {
    pub(super) async fn validate_by(
        &self,
        webhooks: &configurations::ConfiguredWebhooks,
        subject: &ReviewSubject<'_>,
        object: Option<&Value>,
    ) -> Result<()> {
        let weight = subject.weight(object);
        let mut objects_by_version = HashMap::new();
        let mut matched_hooks = Vec::new();
        for hook in &webhooks.validating {
            let Some(version) = self.match_version(hook, subject, object).await? else { continue };
            let encode_objects = || VersionedObjects::new(subject, version, object);
            let objects = objects_by_version
                .entry(version)
                .or_insert_with(|| request_cost::run_blocking(weight, encode_objects));
            if self.are_conditions_met(hook, subject, version, objects, SORT)? {
                matched_hooks.push((hook, version));
            }
        }
        let calls = matched_hooks.into_iter().map(async |(hook, version)| {
            let started_at = Instant::now();
            let answer =
                Self::call_webhook(hook, subject, version, &objects_by_version[&version], SORT)
                    .await;
            self.record_outcome(hook, subject, SORT, (started_at, 0), answer.err())
        });
        // All calls are awaited, also after a refusal, so that each is counted.
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut outcome = Ok(());
        while let Some(call_result) = calls.next().await {
            outcome = outcome.and(call_result);
        }
        outcome
    }
}
