//! The columns that `kubectl get` shows for these kinds, as in Kubernetes.

use serde_json::{Value, json};

use crate::{
    api::printer::{AGE, NAME, age, column, human_duration, text, wide},
    machinery::served_kind::PrinterColumn,
};

const CREATED: &str = "/metadata/creationTimestamp";
const NONE: &str = "<none>";
const UNSET: &str = "<unset>";

fn name(hub: &Value) -> Value {
    text(hub, "/metadata/name").into()
}

fn created(hub: &Value, now: i64) -> Value {
    age(hub, CREATED, now).into()
}

fn or<'a>(found: &'a str, absent: &'a str) -> &'a str {
    if found.is_empty() { absent } else { found }
}

fn number(hub: &Value, pointer: &str) -> i64 {
    hub.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn items<'a>(hub: &'a Value, pointer: &str) -> &'a [Value] {
    hub.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the number of fields of a map.
fn size(hub: &Value, pointer: &str) -> usize {
    hub.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

/// Returns the text at `pointer` in each item.
fn texts<'a>(items: &'a [Value], pointer: &str) -> Vec<&'a str> {
    items.iter().map(|item| text(item, pointer)).collect()
}

/// Writes a selector as `a=b,c=d`.
fn selector(hub: &Value, pointer: &str) -> String {
    let pairs = hub.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    let all = pairs.collect::<Vec<_>>().join(",");
    or(&all, NONE).to_owned()
}

pub(super) const PLAIN: &[PrinterColumn] = &[NAME, AGE];

pub(super) fn plain(hub: &Value, now: i64) -> Vec<Value> {
    vec![name(hub), created(hub, now)]
}

pub(super) const NAMESPACE: &[PrinterColumn] =
    &[NAME, column("Status", "string", "Active, or Terminating while it is emptied."), AGE];

pub(super) fn namespace(hub: &Value, now: i64) -> Vec<Value> {
    vec![name(hub), text(hub, "/status/phase").into(), created(hub, now)]
}

pub(super) const NODE: &[PrinterColumn] = &[
    NAME,
    column("Status", "string", "Ready, or why not."),
    column("Roles", "string", "Roles of the machine."),
    AGE,
    column("Version", "string", "Version of what runs pods there."),
    wide("Internal-IP", "string", "Address within the cluster."),
    wide("OS-Image", "string", "What the machine says it runs."),
    wide("Kernel-Version", "string", "Version of its kernel."),
];

pub(super) fn node(hub: &Value, now: i64) -> Vec<Value> {
    let conditions = items(hub, "/status/conditions");
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    let status = match ready.map(|condition| text(condition, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let addresses = items(hub, "/status/addresses");
    let internal = addresses.iter().find(|address| address["type"] == "InternalIP");
    let internal = internal.map_or("", |address| text(address, "/address"));
    let info = |field: &str| or(text(hub, &format!("/status/nodeInfo/{field}")), NONE).into();
    vec![
        name(hub),
        status.into(),
        NONE.into(),
        created(hub, now),
        text(hub, "/status/nodeInfo/kubeletVersion").into(),
        or(internal, NONE).into(),
        info("osImage"),
        info("kernelVersion"),
    ]
}

pub(super) const POD: &[PrinterColumn] = &[
    NAME,
    column("Ready", "string", "Ready containers of all."),
    column("Status", "string", "What the pod is doing."),
    column("Restarts", "string", "How often containers were started again, and when last."),
    AGE,
    wide("IP", "string", "Address of the pod."),
    wide("Node", "string", "Machine that it runs on."),
];

pub(super) fn pod(hub: &Value, now: i64) -> Vec<Value> {
    let statuses = items(hub, "/status/containerStatuses");
    let ready = statuses.iter().filter(|status| status["ready"] == true).count();
    let all = items(hub, "/spec/containers").len();
    vec![
        name(hub),
        format!("{ready}/{all}").into(),
        doing(hub).into(),
        restarts(hub, now).into(),
        created(hub, now),
        or(text(hub, "/status/podIP"), NONE).into(),
        or(text(hub, "/spec/nodeName"), NONE).into(),
    ]
}

/// Returns why a container does not run; empty when it runs.
fn stopped(status: &Value) -> String {
    for pointer in ["/state/waiting/reason", "/state/terminated/reason"] {
        let reason = text(status, pointer);
        if !reason.is_empty() {
            return reason.to_owned();
        }
    }
    match status.pointer("/state/terminated") {
        Some(end) if number(end, "/signal") != 0 => format!("Signal:{}", number(end, "/signal")),
        Some(end) => format!("ExitCode:{}", number(end, "/exitCode")),
        None => String::new(),
    }
}

fn doing(hub: &Value) -> String {
    if hub["metadata"].get("deletionTimestamp").is_some() {
        return "Terminating".to_owned();
    }
    let inits = items(hub, "/status/initContainerStatuses");
    let total = items(hub, "/spec/initContainers").len();
    for (at, status) in inits.iter().enumerate() {
        let over = status.pointer("/state/terminated").is_some();
        if (over && number(status, "/state/terminated/exitCode") == 0) || status["started"] == true
        {
            continue;
        }
        return match stopped(status).as_str() {
            "" | "PodInitializing" => format!("Init:{at}/{total}"),
            reason => format!("Init:{reason}"),
        };
    }
    let statuses = items(hub, "/status/containerStatuses");
    let why = statuses.iter().map(stopped).find(|reason| !reason.is_empty());
    let said = text(hub, "/status/reason");
    let phase = text(hub, "/status/phase");
    let running = statuses.iter().any(|status| status.pointer("/state/running").is_some());
    match why {
        Some(reason) if reason == "Completed" && running => "NotReady".to_owned(),
        Some(reason) => reason,
        None => or(or(said, phase), "Unknown").to_owned(),
    }
}

fn restarts(hub: &Value, now: i64) -> String {
    let statuses = items(hub, "/status/containerStatuses");
    let count: i64 = statuses.iter().map(|status| number(status, "/restartCount")).sum();
    let ended = |status: &Value| {
        let at = text(status, "/lastState/terminated/finishedAt");
        at.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
    };
    match statuses.iter().filter_map(ended).max() {
        Some(last) if count > 0 => format!("{count} ({} ago)", human_duration(now - last)),
        _ => count.to_string(),
    }
}

pub(super) const STATEFUL_SET: &[PrinterColumn] = &[
    NAME,
    column("Ready", "string", "Ready pods of those that are wanted."),
    AGE,
    wide("Containers", "string", "Names of each container."),
    wide("Images", "string", "Images of each container."),
];

pub(super) fn stateful_set(hub: &Value, now: i64) -> Vec<Value> {
    let (ready, wanted) = (number(hub, "/status/readyReplicas"), number(hub, "/spec/replicas"));
    let containers = items(hub, "/spec/template/spec/containers");
    vec![
        name(hub),
        format!("{ready}/{wanted}").into(),
        created(hub, now),
        texts(containers, "/name").join(",").into(),
        texts(containers, "/image").join(",").into(),
    ]
}

pub(super) const SERVICE: &[PrinterColumn] = &[
    NAME,
    column("Type", "string", "How the service is reached."),
    column("Cluster-IP", "string", "Its address within the cluster."),
    column("External-IP", "string", "Its addresses outside."),
    column("Port(s)", "string", "Its ports."),
    AGE,
    wide("Selector", "string", "Labels of the pods behind it."),
];

pub(super) fn service(hub: &Value, now: i64) -> Vec<Value> {
    let port = |port: &Value| {
        let protocol = or(text(port, "/protocol"), "TCP");
        format!("{}/{protocol}", number(port, "/port"))
    };
    let ports = items(hub, "/spec/ports").iter().map(port).collect::<Vec<_>>().join(",");
    vec![
        name(hub),
        text(hub, "/spec/type").into(),
        or(text(hub, "/spec/clusterIP"), NONE).into(),
        NONE.into(),
        or(&ports, NONE).into(),
        created(hub, now),
        selector(hub, "/spec/selector").into(),
    ]
}

pub(super) const CLAIM: &[PrinterColumn] = &[
    NAME,
    column("Status", "string", "Bound, or what it waits for."),
    column("Volume", "string", "The volume behind it."),
    column("Capacity", "string", "Size of the volume."),
    column("Access Modes", "string", "How the volume may be mounted."),
    column("StorageClass", "string", "Class of the volume."),
    AGE,
    wide("VolumeMode", "string", "Filesystem or Block."),
];

pub(super) fn claim(hub: &Value, now: i64) -> Vec<Value> {
    let mode = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    };
    let modes = items(hub, "/status/accessModes").iter().map(mode).collect::<Vec<_>>().join(",");
    let gone = hub["metadata"].get("deletionTimestamp").is_some();
    let phase = if gone { "Terminating" } else { text(hub, "/status/phase") };
    vec![
        name(hub),
        phase.into(),
        text(hub, "/spec/volumeName").into(),
        text(hub, "/status/capacity/storage").into(),
        modes.into(),
        or(text(hub, "/spec/storageClassName"), UNSET).into(),
        created(hub, now),
        or(text(hub, "/spec/volumeMode"), UNSET).into(),
    ]
}

pub(super) const SECRET: &[PrinterColumn] = &[
    NAME,
    column("Type", "string", "What the data are for."),
    column("Data", "integer", "How many entries it has."),
    AGE,
];

pub(super) fn secret(hub: &Value, now: i64) -> Vec<Value> {
    vec![name(hub), text(hub, "/type").into(), json!(size(hub, "/data")), created(hub, now)]
}

pub(super) const CONFIG_MAP: &[PrinterColumn] =
    &[NAME, column("Data", "integer", "How many entries it has."), AGE];

pub(super) fn config_map(hub: &Value, now: i64) -> Vec<Value> {
    let data = size(hub, "/data") + size(hub, "/binaryData");
    vec![name(hub), json!(data), created(hub, now)]
}

pub(super) const SERVICE_ACCOUNT: &[PrinterColumn] =
    &[NAME, column("Secrets", "integer", "How many Secrets it names."), AGE];

pub(super) fn service_account(hub: &Value, now: i64) -> Vec<Value> {
    vec![name(hub), json!(items(hub, "/secrets").len()), created(hub, now)]
}

pub(super) const EVENT: &[PrinterColumn] = &[
    column("Last Seen", "string", "Time since it was last counted."),
    column("Type", "string", "Normal or Warning."),
    column("Reason", "string", "What happened, in one word."),
    column("Object", "string", "What it happened to."),
    wide("Source", "string", "Who says so."),
    column("Message", "string", "What happened, in words."),
    wide("Count", "integer", "How often it was counted."),
    wide("Name", "string", "Name of the event."),
];

pub(super) fn event(hub: &Value, now: i64) -> Vec<Value> {
    let last = ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", CREATED];
    let last = last.into_iter().find(|pointer| !text(hub, pointer).is_empty()).unwrap_or(CREATED);
    let kind = text(hub, "/involvedObject/kind").to_lowercase();
    let object = format!("{kind}/{}", text(hub, "/involvedObject/name"));
    let source = or(text(hub, "/source/component"), text(hub, "/reportingComponent"));
    let count = number(hub, "/series/count").max(number(hub, "/count")).max(1);
    vec![
        age(hub, last, now).into(),
        text(hub, "/type").into(),
        text(hub, "/reason").into(),
        object.into(),
        source.into(),
        text(hub, "/message").trim().into(),
        json!(count),
        name(hub),
    ]
}

pub(super) const BUDGET: &[PrinterColumn] = &[
    NAME,
    column("Min Available", "string", "Pods that must stay."),
    column("Max Unavailable", "string", "Pods that may be away."),
    column("Allowed Disruptions", "integer", "Pods that may go now."),
    AGE,
];

pub(super) fn budget(hub: &Value, now: i64) -> Vec<Value> {
    let bound = |name: &str| match &hub["spec"][name] {
        Value::Null => "N/A".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    vec![
        name(hub),
        bound("minAvailable").into(),
        bound("maxUnavailable").into(),
        json!(number(hub, "/status/disruptionsAllowed")),
        created(hub, now),
    ]
}

pub(super) const NETWORK_POLICY: &[PrinterColumn] =
    &[NAME, column("Pod-Selector", "string", "The pods that it is about."), AGE];

pub(super) fn network_policy(hub: &Value, now: i64) -> Vec<Value> {
    let pods = selector(hub, "/spec/podSelector/matchLabels");
    vec![name(hub), pods.into(), created(hub, now)]
}

pub(super) const ROLE: &[PrinterColumn] =
    &[NAME, column("Created At", "date", "When it was made.")];

pub(super) fn role(hub: &Value, _: i64) -> Vec<Value> {
    vec![name(hub), text(hub, CREATED).into()]
}

pub(super) const ROLE_BINDING: &[PrinterColumn] =
    &[NAME, column("Role", "string", "The role that it gives."), AGE];

pub(super) fn role_binding(hub: &Value, now: i64) -> Vec<Value> {
    let role = format!("{}/{}", text(hub, "/roleRef/kind"), text(hub, "/roleRef/name"));
    vec![name(hub), role.into(), created(hub, now)]
}

pub(super) const LEASE: &[PrinterColumn] =
    &[NAME, column("Holder", "string", "Who holds it."), AGE];

pub(super) fn lease(hub: &Value, now: i64) -> Vec<Value> {
    vec![name(hub), text(hub, "/spec/holderIdentity").into(), created(hub, now)]
}
