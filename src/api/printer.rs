//! Columns and cells of `kubectl get`, the same in every version.
//!
//! Reads the hub's JSON directly: a table of a thousand objects needs no typed copy of them. The
//! cells of a cluster are those of its [`ObjectPicture`]; the cells of a Pilot are its fields.

use serde_json::{Value, json};

use super::object_picture::ObjectPicture;
pub use super::object_picture::{pool_values, text_at};
use crate::machinery::served_kind::PrinterColumn;

/// Makes a column that is always shown.
pub const fn standard_column(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
) -> PrinterColumn {
    PrinterColumn { name, type_, priority: 0, description }
}

/// Makes a column that is shown with `-o wide`.
pub const fn wide_column(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
) -> PrinterColumn {
    PrinterColumn { name, type_, priority: 1, description }
}

pub const NAME: PrinterColumn =
    standard_column("Name", "string", "Name of the object, unique in its namespace.");
pub const AGE: PrinterColumn =
    standard_column("Age", "string", "Time since the object was created.");
pub const READY: PrinterColumn =
    standard_column("Ready", "string", "Status of the condition Ready.");
pub const MESSAGE: PrinterColumn =
    wide_column("Message", "string", "Message of the condition Ready.");
pub const HEALTH: PrinterColumn =
    standard_column("Health", "string", "Health of the database cluster.");
pub const NODES: PrinterColumn = standard_column("Nodes", "string", "Ready nodes of wanted nodes.");
pub const VERSION: PrinterColumn =
    standard_column("Version", "string", "Lowest version that runs.");
pub const PHASE: PrinterColumn =
    standard_column("Phase", "string", "Where the object is in its life.");
pub const OPERATION: PrinterColumn = wide_column("Operation", "string", "What is being done now.");
pub const BLOCKED_BY: PrinterColumn =
    wide_column("Blocked-by", "string", "The predicate that the operation waits for.");

pub const TLS: PrinterColumn =
    wide_column("TLS", "string", "Lowest that any node runs, between nodes and for clients.");

/// Columns of a cluster of any database.
pub const CLUSTER: &[PrinterColumn] =
    &[NAME, READY, HEALTH, NODES, VERSION, PHASE, AGE, TLS, OPERATION, BLOCKED_BY, MESSAGE];

pub(super) const PILOT: &[PrinterColumn] = &[
    NAME,
    standard_column("Cluster", "string", "Cluster that the node belongs to."),
    standard_column("Pool", "string", "Node pool that the node belongs to."),
    READY,
    PHASE,
    standard_column("Version", "string", "Version that the database says it runs."),
    AGE,
    wide_column("Node", "string", "Machine that the pilot runs on."),
    wide_column("Restarts", "integer", "Starts of the database beyond the first."),
    wide_column("Heartbeat", "string", "Time since the pilot last reported."),
    wide_column("Last-exit", "string", "How the previous process ended."),
    MESSAGE,
];

pub(super) const LEASE: &[PrinterColumn] = &[
    NAME,
    standard_column("Holder", "string", "Who holds the lease."),
    standard_column("Renewed", "string", "Time since the lease was renewed."),
    standard_column("Transitions", "integer", "Changes of holder so far."),
    AGE,
];

pub(super) fn pilot_cells(hub: &Value, now: i64) -> Vec<Value> {
    let phase = text_at(hub, "/status/phase");
    vec![
        text_at(hub, "/metadata/name").into(),
        text_at(hub, "/spec/clusterRef/name").into(),
        text_at(hub, "/spec/nodePool").into(),
        ready_field(hub, "status").into(),
        if phase.is_empty() { "Pending".into() } else { phase.into() },
        text_at(hub, "/status/version").into(),
        age_cell(hub, "/metadata/creationTimestamp", now).into(),
        text_at(hub, "/status/instance/node").into(),
        json!(hub.pointer("/status/process/restarts").and_then(Value::as_i64).unwrap_or(0)),
        age_cell(hub, "/status/lastHeartbeatTime", now).into(),
        last_exit(hub).into(),
        ready_field(hub, "message").into(),
    ]
}

pub(super) fn lease_cells(hub: &Value, now: i64) -> Vec<Value> {
    vec![
        text_at(hub, "/metadata/name").into(),
        text_at(hub, "/spec/holderIdentity").into(),
        age_cell(hub, "/spec/renewTime", now).into(),
        json!(hub.pointer("/spec/leaseTransitions").and_then(Value::as_i64).unwrap_or(0)),
        age_cell(hub, "/metadata/creationTimestamp", now).into(),
    ]
}

/// Returns the cells of the columns [`CLUSTER`].
pub fn cluster_cells(hub: &Value, now: i64) -> Vec<Value> {
    let picture = ObjectPicture::new(hub);
    let ready_condition = picture.find_condition("Ready");
    let operation = picture.operation.as_ref();
    let blocker = operation.and_then(|operation| operation.blockers.first());
    vec![
        picture.name.into(),
        match ready_condition.map(|condition| condition.status) {
            None | Some("") => "Unknown".into(),
            Some(status) => status.into(),
        },
        picture.health.into(),
        // As `kubectl get statefulsets` counts.
        format!("{}/{}", picture.ready_nodes, picture.wanted_nodes()).into(),
        picture.version.into(),
        picture.phase.into(),
        age_cell(hub, "/metadata/creationTimestamp", now).into(),
        tls_modes(hub).into(),
        operation.map_or("", |operation| operation.type_).into(),
        blocker.map_or("", |blocker| blocker.predicate).into(),
        ready_condition.map_or("", |condition| condition.message).into(),
    ]
}

/// Returns a field of the condition Ready; its status is `Unknown` while there is no such
/// condition.
fn ready_field<'a>(hub: &'a Value, field: &str) -> &'a str {
    let conditions = hub.pointer("/status/conditions").and_then(Value::as_array);
    let ready_condition = conditions.into_iter().flatten().find(|c| text_at(c, "/type") == "Ready");
    match (ready_condition.and_then(|c| c.get(field)).and_then(Value::as_str), field) {
        (Some(text), _) => text,
        (None, "status") => "Unknown",
        (None, _) => "",
    }
}

/// Returns what is encrypted: `Required/Optional`; nothing for a cluster that is open.
fn tls_modes(hub: &Value) -> String {
    let mode = |place: &str| text_at(hub, &format!("/status/security/rungs/{place}"));
    match (mode("internode"), mode("client")) {
        ("", "") => String::new(),
        (internode, client) => format!("{internode}/{client}"),
    }
}

/// Returns how the last process ended: `OutOfMemory (137)`, or the part of it that is known.
fn last_exit(hub: &Value) -> String {
    let reason = match text_at(hub, "/status/lastTermination/reason") {
        "" => text_at(hub, "/status/lastTermination/signal"),
        reason => reason,
    };
    match hub.pointer("/status/lastTermination/exitCode").and_then(Value::as_i64) {
        Some(code) if reason.is_empty() => code.to_string(),
        Some(code) => format!("{reason} ({code})"),
        None => reason.to_owned(),
    }
}

/// Returns the age of a time as kubectl prints it; `<unknown>` when the time is absent.
pub fn age_cell(hub: &Value, pointer: &str, now: i64) -> String {
    match text_at(hub, pointer).parse::<k8s_openapi::jiff::Timestamp>() {
        Ok(time) => human_duration(now - time.as_second()),
        Err(_) => "<unknown>".into(),
    }
}

/// Returns a duration in two units at most, as apimachinery's `duration.HumanDuration` words it.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two_units = |big: i64, big_unit: char, small: i64, small_unit: char| {
        if small == 0 {
            format!("{big}{big_unit}")
        } else {
            format!("{big}{big_unit}{small}{small_unit}")
        }
    };
    match seconds {
        // One second in the future is a clock that is slightly ahead; more is an error.
        ..-1 => "<invalid>".into(),
        -1..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => two_units(seconds / MINUTE, 'm', seconds % MINUTE, 's'),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two_units(seconds / HOUR, 'h', seconds % HOUR / MINUTE, 'm'),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two_units(seconds / DAY, 'd', seconds % DAY / HOUR, 'h'),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two_units(seconds / YEAR, 'y', seconds % YEAR / DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_shows_what_all_of_its_nodes_encrypt_at_least() {
        let cell = |status: Value| cluster_cells(&json!({"status": status}), 0)[7].clone();
        let rungs = json!({"internode": "Required", "client": "Optional", "authentication": "Off"});
        assert_eq!(CLUSTER[7].name, "TLS");
        assert_eq!(cell(json!({"security": {"rungs": rungs}})), "Required/Optional");
        assert_eq!(cell(json!({"security": {}})), "");
        assert_eq!(cell(json!({})), "");
    }

    #[test]
    fn durations_read_as_kubectl_prints_them() {
        // Rows of k8s.io/apimachinery/pkg/util/duration/duration_test.go.
        const H: i64 = 3600;
        const D: i64 = 24 * H;
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (1, "1s"),
            (70, "70s"),
            (190, "3m10s"),
            (120, "2m"),
            (10 * 60, "10m"),
            (70 * 60, "70m"),
            (3 * H + 12 * 60, "3h12m"),
            (4 * H, "4h"),
            (47 * H, "47h"),
            (49 * H, "2d1h"),
            (63 * H, "2d15h"),
            (8 * D, "8d"),
            (10 * D, "10d"),
            (2 * 365 * D, "2y"),
            (3 * 365 * D + 7 * D, "3y7d"),
            (9 * 365 * D, "9y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds} s");
        }
    }

    #[test]
    fn every_kind_has_one_cell_for_each_column() {
        let empty = json!({});
        assert_eq!(cluster_cells(&empty, 0).len(), CLUSTER.len());
        assert_eq!(pilot_cells(&empty, 0).len(), PILOT.len());
        assert_eq!(lease_cells(&empty, 0).len(), LEASE.len());
    }

    #[test]
    fn a_cluster_shows_its_condition_and_counts() {
        let hub = json!({
            "metadata": {"name": "shop", "creationTimestamp": "2026-11-20T10:00:00Z"},
            "spec": {"version": "5.0.6", "nodePools": [
                {"name": "a", "replicas": 3},
                {"name": "b", "replicas": 3},
                {"name": "c", "replicas": 1}]},
            "status": {"phase": "Updating", "health": "Yellow", "version": "4.1.7", "readyReplicas": 6,
                "operation": {"type": "Upgrade", "blockedBy": [{"predicate": "PeersUp"}]},
                "conditions": [{"type": "Ready", "status": "False", "message": "6 of 7"}]}
        });
        let created: k8s_openapi::jiff::Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        assert_eq!(
            cluster_cells(&hub, created.as_second() + 300),
            [
                "shop", "False", "Yellow", "6/7", "4.1.7", "Updating", "5m", "", "Upgrade",
                "PeersUp", "6 of 7"
            ]
        );
    }
}
