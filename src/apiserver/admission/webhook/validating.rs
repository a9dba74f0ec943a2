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
        asked: &ReviewSubject<'_>,
        object: Option<&Value>,
    ) -> Result<()> {
        let weight = asked.weight(object);
        let mut shown = HashMap::new();
        let mut wanted = Vec::new();
        for hook in &webhooks.validating {
            let Some(version) = self.wanted(hook, asked, object).await? else { continue };
            let show = || VersionedObjects::new(asked, version, object);
            let shown = shown.entry(version).or_insert_with(|| request_cost::work(weight, show));
            if self.conditions_hold(hook, asked, version, shown, SORT)? {
                wanted.push((hook, version));
            }
        }
        let calls = wanted.into_iter().map(async |(hook, version)| {
            let begun = Instant::now();
            let answer = Self::ask(hook, asked, version, &shown[&version], SORT).await;
            self.judge(hook, asked, SORT, (begun, 0), answer.err())
        });
        // All calls are awaited, also after a refusal, so that each is counted.
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut outcome = Ok(());
        while let Some(judged) = calls.next().await {
            outcome = outcome.and(judged);
        }
        outcome
    }
}
