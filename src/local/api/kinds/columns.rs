//! The columns that `kubectl get` shows for these kinds, as in Kubernetes.

use serde_json::{Value, json};

use crate::{
    api::printer::{AGE, NAME, age_cell, human_duration, standard_column, text_at, wide_column},
    machinery::served_kind::PrinterColumn,
};

const CREATED: &str = "/metadata/creationTimestamp";
const NONE: &str = "<none>";
const UNSET: &str = "<unset>";

fn name_cell(hub: &Value) -> Value {
    text_at(hub, "/metadata/name").into()
}

fn created_cell(hub: &Value, now: i64) -> Value {
    age_cell(hub, CREATED, now).into()
}

fn text_or<'a>(value: &'a str, fallback: &'a str) -> &'a str {
    if value.is_empty() { fallback } else { value }
}

fn number_at(hub: &Value, pointer: &str) -> i64 {
    hub.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn items_at<'a>(hub: &'a Value, pointer: &str) -> &'a [Value] {
    hub.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the number of fields of a map.
fn map_size(hub: &Value, pointer: &str) -> usize {
    hub.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

/// Returns the text at `pointer` in each item.
fn texts_at<'a>(items: &'a [Value], pointer: &str) -> Vec<&'a str> {
    items.iter().map(|item| text_at(item, pointer)).collect()
}

/// Writes a selector as `a=b,c=d`.
fn format_selector(hub: &Value, pointer: &str) -> String {
    let pairs = hub.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let selector = pairs.collect::<Vec<_>>().join(",");
    text_or(&selector, NONE).to_owned()
}

pub(super) const PLAIN: &[PrinterColumn] = &[NAME, AGE];

pub(super) fn plain_cells(hub: &Value, now: i64) -> Vec<Value> {
    vec![name_cell(hub), created_cell(hub, now)]
}

pub(super) const NAMESPACE: &[PrinterColumn] = &[
    NAME,
    standard_column("Status", "string", "Active, or Terminating while it is emptied."),
    AGE,
];

pub(super) fn namespace_cells(hub: &Value, now: i64) -> Vec<Value> {
    vec![name_cell(hub), text_at(hub, "/status/phase").into(), created_cell(hub, now)]
}

pub(super) const NODE: &[PrinterColumn] = &[
    NAME,
    standard_column("Status", "string", "Ready, or why not."),
    standard_column("Roles", "string", "Roles of the machine."),
    AGE,
    standard_column("Version", "string", "Version of what runs pods there."),
    wide_column("Internal-IP", "string", "Address within the cluster."),
    wide_column("OS-Image", "string", "What the machine says it runs."),
    wide_column("Kernel-Version", "string", "Version of its kernel."),
];

pub(super) fn node_cells(hub: &Value, now: i64) -> Vec<Value> {
    let conditions = items_at(hub, "/status/conditions");
    let ready_condition = conditions.iter().find(|condition| condition["type"] == "Ready");
    let status = match ready_condition.map(|condition| text_at(condition, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let addresses = items_at(hub, "/status/addresses");
    let internal_address = addresses.iter().find(|address| address["type"] == "InternalIP");
    let internal_ip = internal_address.map_or("", |address| text_at(address, "/address"));
    let info =
        |field: &str| text_or(text_at(hub, &format!("/status/nodeInfo/{field}")), NONE).into();
    vec![
        name_cell(hub),
        status.into(),
        NONE.into(),
        created_cell(hub, now),
        text_at(hub, "/status/nodeInfo/kubeletVersion").into(),
        text_or(internal_ip, NONE).into(),
        info("osImage"),
        info("kernelVersion"),
    ]
}

pub(super) const POD: &[PrinterColumn] = &[
    NAME,
    standard_column("Ready", "string", "Ready containers of all."),
    standard_column("Status", "string", "What the pod is doing."),
    standard_column(
        "Restarts",
        "string",
        "How often containers were started again, and when last.",
    ),
    AGE,
    wide_column("IP", "string", "Address of the pod."),
    wide_column("Node", "string", "Machine that it runs on."),
];

pub(super) fn pod_cells(hub: &Value, now: i64) -> Vec<Value> {
    let statuses = items_at(hub, "/status/containerStatuses");
    let ready_count = statuses.iter().filter(|status| status["ready"] == true).count();
    let container_count = items_at(hub, "/spec/containers").len();
    vec![
        name_cell(hub),
        format!("{ready_count}/{container_count}").into(),
        pod_state(hub).into(),
        format_restarts(hub, now).into(),
        created_cell(hub, now),
        text_or(text_at(hub, "/status/podIP"), NONE).into(),
        text_or(text_at(hub, "/spec/nodeName"), NONE).into(),
    ]
}

/// Returns why a container does not run; empty when it runs.
fn stop_reason(status: &Value) -> String {
    for pointer in ["/state/waiting/reason", "/state/terminated/reason"] {
        let reason = text_at(status, pointer);
        if !reason.is_empty() {
            return reason.to_owned();
        }
    }
    match status.pointer("/state/terminated") {
        Some(termination) if number_at(termination, "/signal") != 0 => {
            format!("Signal:{}", number_at(termination, "/signal"))
        }
        Some(termination) => format!("ExitCode:{}", number_at(termination, "/exitCode")),
        None => String::new(),
    }
}

fn pod_state(hub: &Value) -> String {
    if hub["metadata"].get("deletionTimestamp").is_some() {
        return "Terminating".to_owned();
    }
    let inits = items_at(hub, "/status/initContainerStatuses");
    let total = items_at(hub, "/spec/initContainers").len();
    for (index, status) in inits.iter().enumerate() {
        let is_finished = status.pointer("/state/terminated").is_some();
        if (is_finished && number_at(status, "/state/terminated/exitCode") == 0)
            || status["started"] == true
        {
            continue;
        }
        return match stop_reason(status).as_str() {
            "" | "PodInitializing" => format!("Init:{index}/{total}"),
            reason => format!("Init:{reason}"),
        };
    }
    let statuses = items_at(hub, "/status/containerStatuses");
    let reason = statuses.iter().map(stop_reason).find(|reason| !reason.is_empty());
    let status_reason = text_at(hub, "/status/reason");
    let phase = text_at(hub, "/status/phase");
    let is_running = statuses.iter().any(|status| status.pointer("/state/running").is_some());
    match reason {
        Some(reason) if reason == "Completed" && is_running => "NotReady".to_owned(),
        Some(reason) => reason,
        None => text_or(text_or(status_reason, phase), "Unknown").to_owned(),
    }
}

fn format_restarts(hub: &Value, now: i64) -> String {
    let statuses = items_at(hub, "/status/containerStatuses");
    let count: i64 = statuses.iter().map(|status| number_at(status, "/restartCount")).sum();
    let finish_time = |status: &Value| {
        let timestamp = text_at(status, "/lastState/terminated/finishedAt");
        timestamp.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
    };
    match statuses.iter().filter_map(finish_time).max() {
        Some(last_restart) if count > 0 => {
            format!("{count} ({} ago)", human_duration(now - last_restart))
        }
        _ => count.to_string(),
    }
}

pub(super) const STATEFUL_SET: &[PrinterColumn] = &[
    NAME,
    standard_column("Ready", "string", "Ready pods of those that are wanted."),
    AGE,
    wide_column("Containers", "string", "Names of each container."),
    wide_column("Images", "string", "Images of each container."),
];

pub(super) fn stateful_set_cells(hub: &Value, now: i64) -> Vec<Value> {
    let (ready_count, desired_count) =
        (number_at(hub, "/status/readyReplicas"), number_at(hub, "/spec/replicas"));
    let containers = items_at(hub, "/spec/template/spec/containers");
    vec![
        name_cell(hub),
        format!("{ready_count}/{desired_count}").into(),
        created_cell(hub, now),
        texts_at(containers, "/name").join(",").into(),
        texts_at(containers, "/image").join(",").into(),
    ]
}

pub(super) const SERVICE: &[PrinterColumn] = &[
    NAME,
    standard_column("Type", "string", "How the service is reached."),
    standard_column("Cluster-IP", "string", "Its address within the cluster."),
    standard_column("External-IP", "string", "Its addresses outside."),
    standard_column("Port(s)", "string", "Its ports."),
    AGE,
    wide_column("Selector", "string", "Labels of the pods behind it."),
];

pub(super) fn service_cells(hub: &Value, now: i64) -> Vec<Value> {
    let port = |port: &Value| {
        let protocol = text_or(text_at(port, "/protocol"), "TCP");
        format!("{}/{protocol}", number_at(port, "/port"))
    };
    let ports = items_at(hub, "/spec/ports").iter().map(port).collect::<Vec<_>>().join(",");
    vec![
        name_cell(hub),
        text_at(hub, "/spec/type").into(),
        text_or(text_at(hub, "/spec/clusterIP"), NONE).into(),
        NONE.into(),
        text_or(&ports, NONE).into(),
        created_cell(hub, now),
        format_selector(hub, "/spec/selector").into(),
    ]
}

pub(super) const CLAIM: &[PrinterColumn] = &[
    NAME,
    standard_column("Status", "string", "Bound, or what it waits for."),
    standard_column("Volume", "string", "The volume behind it."),
    standard_column("Capacity", "string", "Size of the volume."),
    standard_column("Access Modes", "string", "How the volume may be mounted."),
    standard_column("StorageClass", "string", "Class of the volume."),
    AGE,
    wide_column("VolumeMode", "string", "Filesystem or Block."),
];

pub(super) fn claim_cells(hub: &Value, now: i64) -> Vec<Value> {
    let mode = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    };
    let modes = items_at(hub, "/status/accessModes").iter().map(mode).collect::<Vec<_>>().join(",");
    let is_deleted = hub["metadata"].get("deletionTimestamp").is_some();
    let phase = if is_deleted { "Terminating" } else { text_at(hub, "/status/phase") };
    vec![
        name_cell(hub),
        phase.into(),
        text_at(hub, "/spec/volumeName").into(),
        text_at(hub, "/status/capacity/storage").into(),
        modes.into(),
        text_or(text_at(hub, "/spec/storageClassName"), UNSET).into(),
        created_cell(hub, now),
        text_or(text_at(hub, "/spec/volumeMode"), UNSET).into(),
    ]
}

pub(super) const SECRET: &[PrinterColumn] = &[
    NAME,
    standard_column("Type", "string", "What the data are for."),
    standard_column("Data", "integer", "How many entries it has."),
    AGE,
];

pub(super) fn secret_cells(hub: &Value, now: i64) -> Vec<Value> {
    vec![
        name_cell(hub),
        text_at(hub, "/type").into(),
        json!(map_size(hub, "/data")),
        created_cell(hub, now),
    ]
}

pub(super) const CONFIG_MAP: &[PrinterColumn] =
    &[NAME, standard_column("Data", "integer", "How many entries it has."), AGE];

pub(super) fn config_map_cells(hub: &Value, now: i64) -> Vec<Value> {
    let data = map_size(hub, "/data") + map_size(hub, "/binaryData");
    vec![name_cell(hub), json!(data), created_cell(hub, now)]
}

pub(super) const SERVICE_ACCOUNT: &[PrinterColumn] =
    &[NAME, standard_column("Secrets", "integer", "How many Secrets it names."), AGE];

pub(super) fn service_account_cells(hub: &Value, now: i64) -> Vec<Value> {
    vec![name_cell(hub), json!(items_at(hub, "/secrets").len()), created_cell(hub, now)]
}

pub(super) const EVENT: &[PrinterColumn] = &[
    standard_column("Last Seen", "string", "Time since it was last counted."),
    standard_column("Type", "string", "Normal or Warning."),
    standard_column("Reason", "string", "What happened, in one word."),
    standard_column("Object", "string", "What it happened to."),
    wide_column("Source", "string", "Who says so."),
    standard_column("Message", "string", "What happened, in words."),
    wide_column("Count", "integer", "How often it was counted."),
    wide_column("Name", "string", "Name of the event."),
];

pub(super) fn event_cells(hub: &Value, now: i64) -> Vec<Value> {
    let time_pointers = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", CREATED];
    let time_pointer = time_pointers
        .into_iter()
        .find(|pointer| !text_at(hub, pointer).is_empty())
        .unwrap_or(CREATED);
    let kind = text_at(hub, "/involvedObject/kind").to_lowercase();
    let object = format!("{kind}/{}", text_at(hub, "/involvedObject/name"));
    let source = text_or(text_at(hub, "/source/component"), text_at(hub, "/reportingComponent"));
    let count = number_at(hub, "/series/count").max(number_at(hub, "/count")).max(1);
    vec![
        age_cell(hub, time_pointer, now).into(),
        text_at(hub, "/type").into(),
        text_at(hub, "/reason").into(),
        object.into(),
        source.into(),
        text_at(hub, "/message").trim().into(),
        json!(count),
        name_cell(hub),
    ]
}

pub(super) const BUDGET: &[PrinterColumn] = &[
    NAME,
    standard_column("Min Available", "string", "Pods that must stay."),
    standard_column("Max Unavailable", "string", "Pods that may be away."),
    standard_column("Allowed Disruptions", "integer", "Pods that may go now."),
    AGE,
];

pub(super) fn budget_cells(hub: &Value, now: i64) -> Vec<Value> {
    let format_bound = |name: &str| match &hub["spec"][name] {
        Value::Null => "N/A".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    vec![
        name_cell(hub),
        format_bound("minAvailable").into(),
        format_bound("maxUnavailable").into(),
        json!(number_at(hub, "/status/disruptionsAllowed")),
        created_cell(hub, now),
    ]
}

pub(super) const NETWORK_POLICY: &[PrinterColumn] =
    &[NAME, standard_column("Pod-Selector", "string", "The pods that it is about."), AGE];

pub(super) fn network_policy_cells(hub: &Value, now: i64) -> Vec<Value> {
    let pods = format_selector(hub, "/spec/podSelector/matchLabels");
    vec![name_cell(hub), pods.into(), created_cell(hub, now)]
}

pub(super) const ROLE: &[PrinterColumn] =
    &[NAME, standard_column("Created At", "date", "When it was made.")];

pub(super) fn role_cells(hub: &Value, _: i64) -> Vec<Value> {
    vec![name_cell(hub), text_at(hub, CREATED).into()]
}

pub(super) const ROLE_BINDING: &[PrinterColumn] =
    &[NAME, standard_column("Role", "string", "The role that it gives."), AGE];

pub(super) fn role_binding_cells(hub: &Value, now: i64) -> Vec<Value> {
    let role = format!("{}/{}", text_at(hub, "/roleRef/kind"), text_at(hub, "/roleRef/name"));
    vec![name_cell(hub), role.into(), created_cell(hub, now)]
}

pub(super) const LEASE: &[PrinterColumn] =
    &[NAME, standard_column("Holder", "string", "Who holds it."), AGE];

pub(super) fn lease_cells(hub: &Value, now: i64) -> Vec<Value> {
    vec![name_cell(hub), text_at(hub, "/spec/holderIdentity").into(), created_cell(hub, now)]
}
