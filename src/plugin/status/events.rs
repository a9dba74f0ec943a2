//! Reads events about a cluster and its nodes.

use std::collections::HashSet;

use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::{Api, Client, api::ListParams};

/// Events of a page (`PAGE`), and the most pages that are read (`PAGES`). Events are kept for an
/// hour, so this limit is high.
const PAGE: u32 = 500;
const PAGES: usize = 8;

/// Reads the events of a namespace. A field selector cannot say "one of these objects", and a
/// request for each node would cost more.
pub(super) async fn read_events(
    client: &Client,
    namespace: &str,
) -> Result<Vec<Event>, kube::Error> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let (mut events, mut token) = (Vec::new(), None);
    for _ in 0..PAGES {
        let mut params = ListParams::default().limit(PAGE);
        params.continue_token = token;
        let page = api.list(&params).await?;
        events.extend(page.items);
        token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            break;
        }
    }
    Ok(events)
}

/// Is the event about the cluster, or about a Pilot, pod or claim of one of its nodes?
pub(super) fn is_about(event: &Event, kind: &str, name: &str, nodes: &[&str]) -> bool {
    let object = &event.involved_object;
    let object_name = object.name.as_deref().unwrap_or_default();
    match object.kind.as_deref().unwrap_or_default() {
        "Pilot" | "Pod" => nodes.contains(&object_name),
        "PersistentVolumeClaim" => nodes
            .iter()
            .any(|node| object_name.strip_suffix(node).is_some_and(|claim| claim.ends_with('-'))),
        other => other == kind && object_name == name,
    }
}

/// Returns when the event was seen last; the epoch where it has no time.
pub(super) fn last_seen(event: &Event) -> Timestamp {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let precise = series.or(event.event_time.as_ref()).map(|time| time.0);
    let coarse = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref());
    let creation_time = event.metadata.creation_timestamp.as_ref();
    // The latest of the times counts: a series leaves the older fields as they were.
    [precise, coarse.map(|time| time.0), creation_time.map(|time| time.0)]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// An event as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSummary {
    pub last: Timestamp,
    pub warning: bool,
    pub reason: String,
    pub about: String,
    pub message: String,
    pub count: i32,
}

/// Returns the latest `most` events, oldest first. Events of one object with one reason and message
/// count once.
pub fn latest_events(events: &[Event], limit: usize) -> Vec<EventSummary> {
    let mut seen_keys = HashSet::new();
    let mut summaries: Vec<EventSummary> = Vec::new();
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| last_seen(event));
    for event in events.into_iter().rev() {
        let object = &event.involved_object;
        let name = object.name.clone().unwrap_or_default();
        let message = event.message.clone().unwrap_or_default();
        let reason = event.reason.clone().unwrap_or_default();
        if !seen_keys.insert((name.clone(), reason.clone(), message.clone())) {
            continue;
        }
        let series = event.series.as_ref().and_then(|series| series.count);
        summaries.push(EventSummary {
            last: last_seen(event),
            warning: event.type_.as_deref() == Some("Warning"),
            reason,
            about: name,
            message,
            count: series.or(event.count).unwrap_or(1).max(1),
        });
        if summaries.len() == limit {
            break;
        }
    }
    summaries.reverse();
    summaries
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, name: &str, reason: &str, at: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": "x"},
            "involvedObject": {"kind": kind, "name": name},
            "reason": reason, "message": "m", "lastTimestamp": at,
        }))
        .unwrap()
    }

    #[test]
    fn events_of_other_clusters_are_not_shown() {
        let nodes = ["ex-demo-ring-0"];
        let about = |kind: &str, name: &str| {
            is_about(
                &event(kind, name, "R", "2026-11-20T10:00:00Z"),
                "ExampleCluster",
                "demo",
                &nodes,
            )
        };
        assert!(about("ExampleCluster", "demo"));
        assert!(!about("ExampleCluster", "demo2"));
        assert!(!about("OtherCluster", "demo"));
        assert!(about("Pilot", "ex-demo-ring-0"));
        assert!(about("Pod", "ex-demo-ring-0"));
        assert!(!about("Pod", "ex-demo-ring-1"));
        assert!(about("PersistentVolumeClaim", "example-data-ex-demo-ring-0"));
        assert!(!about("PersistentVolumeClaim", "example-datax-demo-ring-0"));
    }

    #[test]
    fn the_latest_are_told_once_each() {
        let events = [
            event("Pod", "a", "One", "2026-11-20T10:00:00Z"),
            event("Pod", "a", "Two", "2026-11-20T10:00:01Z"),
            event("Pod", "a", "Two", "2026-11-20T10:00:02Z"),
            event("Pod", "b", "Two", "2026-11-20T10:00:03Z"),
        ];
        let reasons = |most: usize| -> Vec<String> {
            let told = latest_events(&events, most);
            told.iter().map(|told| format!("{}/{}", told.about, told.reason)).collect()
        };
        assert_eq!(reasons(9), ["a/One", "a/Two", "b/Two"]);
        assert_eq!(reasons(2), ["a/Two", "b/Two"]);
    }
}
