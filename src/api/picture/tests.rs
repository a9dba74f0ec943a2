//! Rows of objects, and what their picture says.

use serde_json::json;

use super::*;
use crate::api::v1beta1::PilotIntent;

/// A cluster that is ready, of two pools.
fn cluster() -> Value {
    json!({
        "metadata": {"namespace": "n", "name": "shop", "generation": 3},
        "spec": {"version": "5.0.6", "nodePools": [{"name": "b", "replicas": 2}, {"name": "a"}]},
        "status": {
            "observedGeneration": 3, "phase": "Running", "health": "Green", "version": "5.0.6",
            "readyReplicas": 3,
            "conditions": [
                condition("Ready", "True", "AllNodesReady", "3 of 3 nodes serve"),
                condition("Initialized", "True", "ReconcileComplete", ""),
            ],
        },
    })
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    let since = "2026-11-22T12:00:00Z";
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since})
}

fn pilot(name: &str, pool: &str, spec: &Value, status: &Value) -> Pilot {
    let mut pilot = json!({"metadata": {"name": name}, "spec": spec, "status": status});
    pilot["spec"]["nodePool"] = json!(pool);
    serde_json::from_value(pilot).unwrap()
}

fn ready(status: &str, reason: &str) -> Value {
    json!({"phase": "Running", "conditions": [condition("Ready", status, reason, "told")]})
}

fn with_ready(status: &str, reason: &str, message: &str) -> Value {
    let mut object = cluster();
    object["status"]["conditions"][0] = condition("Ready", status, reason, message);
    object
}

fn and(mut object: Value, pointer: &str, value: Value) -> Value {
    *object.pointer_mut(pointer).unwrap() = value;
    object
}

fn with_condition(mut object: Value, condition: Value) -> Value {
    object["status"]["conditions"].as_array_mut().unwrap().push(condition);
    object
}

fn word(trouble: &ClusterTrouble<'_>) -> String {
    match trouble {
        ClusterTrouble::Stalled(_) => "stalled".to_owned(),
        ClusterTrouble::Unavailable(_) => "unavailable".to_owned(),
        ClusterTrouble::HealthRed => "red".to_owned(),
        ClusterTrouble::Blocked(block) => format!("blocked {}", block.predicate),
        ClusterTrouble::Silent(node) => format!("silent {}", node.name()),
        ClusterTrouble::Missed(node) => format!("missed {}", node.name()),
        ClusterTrouble::HealthYellow => "yellow".to_owned(),
        ClusterTrouble::Remark(remark) => format!("remark {}", remark.type_),
    }
}

#[test]
fn a_cluster_is_as_ready_as_its_condition_and_its_nodes_say() {
    let running = json!({});
    let yes = pilot("p-0", "b", &running, &ready("True", "Up"));
    let no = pilot("p-1", "b", &running, &ready("False", "Down"));
    let unreported = pilot("p-2", "b", &running, &json!({}));
    let left = pilot("p-3", "b", &json!({"phase": "Decommissioned"}), &ready("False", "Left"));
    let mut earlier = cluster();
    earlier["metadata"]["generation"] = json!(4);
    let mut unseen = cluster();
    unseen["status"] = json!({});
    for (what, object, pilots, readiness, reason, message) in [
        ("as its condition", cluster(), vec![], ClusterReadiness::Ready, "AllNodesReady", "3 of 3"),
        ("and its nodes", cluster(), vec![&yes], ClusterReadiness::Ready, "AllNodesReady", ""),
        (
            "a node that is down",
            cluster(),
            vec![&yes, &no],
            ClusterReadiness::NodeMissed(1),
            "Down",
            "p-1: told",
        ),
        (
            "a node without a report",
            cluster(),
            vec![&unreported],
            ClusterReadiness::NodeMissed(0),
            "NodesNotReady",
            "p-2 has not reported yet",
        ),
        ("a node that left", cluster(), vec![&left], ClusterReadiness::Ready, "AllNodesReady", ""),
        (
            "an earlier spec",
            earlier,
            vec![],
            ClusterReadiness::OfEarlierSpec,
            "AllNodesReady",
            "of an earlier spec: 3 of 3",
        ),
        ("no controller", unseen, vec![], ClusterReadiness::Unseen, "", ""),
        (
            "not ready",
            with_ready("False", "UpgradeInProgress", "2 of 3"),
            vec![&no],
            ClusterReadiness::NotReady,
            "UpgradeInProgress",
            "2 of 3",
        ),
        (
            "unknown",
            with_ready("Unknown", "PilotTurnedAway", "p-1"),
            vec![],
            ClusterReadiness::NotReady,
            "PilotTurnedAway",
            "p-1",
        ),
    ] {
        let picture = ClusterPicture::new(&object).with_nodes(pilots);
        assert_eq!(picture.readiness(), readiness, "{what}");
        assert_eq!(picture.is_ready(), readiness == ClusterReadiness::Ready, "{what}");
        let headline = picture.build_headline();
        assert_eq!(headline.is_none(), readiness == ClusterReadiness::Unseen, "{what}");
        let headline =
            headline.unwrap_or(ClusterHeadline { reason: "", message: "".into(), since: None });
        assert_eq!(headline.reason, reason, "{what}");
        assert!(headline.message.starts_with(message), "{what}: {headline:?}");
    }
}

#[test]
fn what_is_wrong_comes_most_grave_first_and_makes_the_urgency() {
    let stalled = condition("Stalled", "True", "OutOfMemory", "raise the limit");
    let down = condition("Available", "False", "NodesNotReady", "0 of 3 nodes serve");
    let old = condition("PilotsCurrent", "False", "PilotUpdateInProgress", "");
    let closed = condition("Drainable", "False", "UpgradeInProgress", "");
    let blocked = json!({"type": "Upgrade", "phase": "Blocked",
        "blockedBy": [{"predicate": "PeersUp", "step": "RecreatePod/p-1"}, {"predicate": "Q"}]});
    let mut upgrade = with_ready("False", "UpgradeInProgress", "2 of 3");
    upgrade["status"]["operation"] = json!({"type": "Upgrade", "phase": "Running"});
    let waits = and(upgrade.clone(), "/status/operation", blocked);
    let mut outdated = with_condition(cluster(), stalled.clone());
    outdated["metadata"]["generation"] = json!(4);
    let mut paused = cluster();
    paused["spec"]["paused"] = json!(true);
    let mut stopped = with_condition(with_ready("False", "ClusterStopped", ""), down.clone());
    stopped["spec"]["stopped"] = json!(true);
    let mut deleted = cluster();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-22T12:00:00Z");
    let mut fresh = cluster();
    fresh["status"] = json!({});
    let founding = json!([condition("Ready", "False", "BootstrapInProgress", ""), down.clone()]);
    let founding = and(upgrade.clone(), "/status/conditions", founding);
    let all = [stalled.clone(), old.clone(), down.clone(), closed].into_iter();
    let all = all.fold(and(waits.clone(), "/status/health", json!("Red")), with_condition);
    for (what, object, urgency, troubles) in [
        ("ready", cluster(), Urgency::Fine, vec![]),
        ("fresh", fresh, Urgency::Changing, vec![]),
        ("changing", upgrade.clone(), Urgency::Changing, vec![]),
        ("waiting", waits, Urgency::Warning, vec!["blocked PeersUp", "blocked Q"]),
        ("stalled", with_condition(upgrade.clone(), stalled), Urgency::Critical, vec!["stalled"]),
        ("stalled as of an earlier spec", outdated, Urgency::Changing, vec![]),
        (
            "down",
            with_condition(upgrade.clone(), down.clone()),
            Urgency::Critical,
            vec!["unavailable"],
        ),
        ("not yet up", founding, Urgency::Changing, vec!["remark Available"]),
        ("red", and(cluster(), "/status/health", json!("Red")), Urgency::Critical, vec!["red"]),
        (
            "yellow",
            and(cluster(), "/status/health", json!("Yellow")),
            Urgency::Warning,
            vec!["yellow"],
        ),
        (
            "yellow during an operation",
            and(upgrade, "/status/health", json!("Yellow")),
            Urgency::Changing,
            vec![],
        ),
        ("not ready", with_ready("False", "NodesNotReady", ""), Urgency::Warning, vec![]),
        (
            "older pilots",
            with_condition(cluster(), old),
            Urgency::Fine,
            vec!["remark PilotsCurrent"],
        ),
        ("paused", paused, Urgency::Resting, vec![]),
        ("stopped", stopped, Urgency::Resting, vec!["remark Available"]),
        ("deleted", deleted, Urgency::Changing, vec![]),
        (
            "all at once",
            all,
            Urgency::Critical,
            vec![
                "stalled",
                "unavailable",
                "red",
                "blocked PeersUp",
                "blocked Q",
                "remark PilotsCurrent",
                "remark Drainable",
            ],
        ),
    ] {
        let picture = ClusterPicture::new(&object);
        let told: Vec<String> = picture.list_troubles().iter().map(word).collect();
        assert_eq!(told, troubles, "{what}");
        assert_eq!(picture.urgency(), urgency, "{what}");
    }
}

#[test]
fn silent_and_missing_nodes_are_troubles_of_their_cluster() {
    let silent = json!({"phase": "Running",
        "conditions": [condition("Ready", "Unknown", "PilotSilent", "")]});
    let pilots = [
        pilot("p-1", "b", &json!({}), &silent),
        pilot("p-0", "b", &json!({}), &ready("False", "Down")),
    ];
    let object = cluster();
    let picture = ClusterPicture::new(&object).with_nodes(&pilots);
    let told: Vec<String> = picture.list_troubles().iter().map(word).collect();
    assert_eq!(told, ["silent p-1", "missed p-0"]);
    assert_eq!(picture.urgency(), Urgency::Warning);
    assert_eq!(picture.nodes[1].phase(), PilotPhase::Unknown);
}

#[test]
fn a_paused_cluster_says_so_once_it_is_ready() {
    let paused = |status: &str| {
        let progressing = condition("Progressing", "False", "ClusterPaused", "nothing is changed");
        let mut object = with_condition(with_ready(status, "R", "of Ready"), progressing);
        object["spec"]["paused"] = json!(true);
        object
    };
    for (status, message) in [("True", "nothing is changed"), ("False", "of Ready")] {
        let object = paused(status);
        assert_eq!(
            ClusterPicture::new(&object).build_headline().unwrap().message,
            message,
            "{status}"
        );
    }
}

#[test]
fn nodes_come_in_the_order_of_the_specs_pools_and_of_their_numbers() {
    let nodes = [("p-a-0", "a"), ("p-b-10", "b"), ("p-gone-0", "gone"), ("p-b-9", "b")];
    let pilots = nodes.map(|(name, pool)| pilot(name, pool, &json!({}), &json!({})));
    let object = cluster();
    let picture = ClusterPicture::new(&object).with_nodes(&pilots);
    let names: Vec<_> = picture.nodes.iter().map(|node| node.name()).collect();
    assert_eq!(names, ["p-b-9", "p-b-10", "p-a-0", "p-gone-0"]);
    assert_eq!(picture.wanted_nodes(), 3);
}

#[test]
fn metadata_that_were_parsed_give_the_same_picture() {
    let mut object = cluster();
    object["metadata"]["deletionTimestamp"] = json!("2026-11-22T12:00:00Z");
    let metadata: ObjectMeta = serde_json::from_value(object["metadata"].clone()).unwrap();
    let (whole, parts) =
        (ClusterPicture::new(&object), ClusterPicture::from_parts(&metadata, &object));
    assert_eq!(format!("{whole:?}"), format!("{parts:?}"));
}

#[test]
fn garbage_is_a_cluster_that_says_nothing() {
    for object in [
        Value::Null,
        json!({"spec": {"version": 7, "nodePools": [{"replicas": i64::MAX}, {"replicas": 1}]},
            "status": {"conditions": 7, "operation": [1], "phase": {}}}),
    ] {
        let picture = ClusterPicture::new(&object);
        assert_eq!(picture.readiness(), ClusterReadiness::Unseen);
        assert_eq!((picture.version, picture.phase_word()), ("", "Pending"));
        assert!(picture.operation.is_none() && picture.list_troubles().is_empty());
    }
}

#[test]
fn a_node_is_as_its_pilot_says_and_as_its_silence_does() {
    let up = ready("True", "Up");
    let failed = json!({"phase": "Failed"});
    let stopping = json!({"phase": "Stopping"});
    let fenced = json!({"phase": "Fenced"});
    let (run, fence) = (json!({}), json!({"phase": "Fenced"}));
    let leave = json!({"phase": "Decommissioned"});
    for (spec, status, phase, ahead, urgency, missed) in [
        (&run, &json!({}), "Pending", None, Urgency::Changing, true),
        (&run, &up, "Running", None, Urgency::Fine, false),
        (&run, &ready("False", "Down"), "Running", None, Urgency::Warning, true),
        (&run, &ready("Unknown", "PilotSilent"), "Unknown", None, Urgency::Warning, true),
        (&run, &ready("Unknown", "PilotTurnedAway"), "Unknown", None, Urgency::Warning, true),
        (&run, &failed, "Failed", None, Urgency::Critical, true),
        (&fence, &stopping, "Stopping", Some("Fenced"), Urgency::Changing, false),
        (&fence, &fenced, "Fenced", None, Urgency::Resting, false),
        (&leave, &up, "Running", Some("Decommissioned"), Urgency::Fine, false),
    ] {
        let pilot = pilot("p-0", "a", spec, status);
        let node = NodePicture::new(&pilot);
        assert_eq!(node.phase().as_str(), phase, "{spec} {status}");
        let goal = node.intent_ahead();
        assert_eq!(goal.as_ref().map(PilotIntent::as_str), ahead, "{spec} {status}");
        assert_eq!((node.urgency(), node.is_unavailable()), (urgency, missed), "{spec} {status}");
    }
}

#[test]
fn a_node_tells_each_trouble_once_and_no_usual_state() {
    let status = json!({"conditions": [
        condition("Ready", "False", "DiskFull", "7 GiB are free"),
        condition("Started", "False", "Waits", ""),
        condition("Decommissioned", "False", "NodeDecommissioning", "a stream stands still"),
        condition("PreflightPassed", "False", "DiskFull", "7 GiB are free"),
        condition("CleanupDue", "True", "RangesGivenAway", "kubectl navigator cleanup"),
        condition("StateSaved", "True", "Saved", ""),
    ]});
    let told = |spec: &Value| {
        let pilot = pilot("p-0", "a", spec, &status);
        let troubles = NodePicture::new(&pilot).problem_conditions();
        troubles.iter().map(|one| one.type_.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(told(&json!({})), ["Ready", "CleanupDue"]);
    let leaves = json!({"phase": "Decommissioned"});
    assert_eq!(told(&leaves), ["Ready", "Decommissioned", "CleanupDue"]);
}

#[test]
fn a_report_is_as_old_as_the_pilots_clock_says_and_one_from_ahead_is_fresh() {
    use crate::api::silence::ReportAge;
    let now: Timestamp = "2026-11-22T12:00:00Z".parse().unwrap();
    for (time, age) in [
        ("2026-11-22T12:05:00Z", ReportAge::Fresh),
        ("2026-11-22T11:59:01Z", ReportAge::Fresh),
        ("2026-11-22T11:59:00Z", ReportAge::Stale),
        ("2026-11-22T11:58:30Z", ReportAge::Silent),
    ] {
        let pilot = pilot("p-0", "a", &json!({}), &json!({"lastHeartbeatTime": time}));
        assert_eq!(NodePicture::new(&pilot).report_age(now), Some(age), "{time}");
    }
    assert_eq!(NodePicture::new(&Pilot::default()).report_age(now), None);
}

#[test]
fn what_waits_names_its_node_and_what_a_person_can_do() {
    let block = |step: &'static str, hint: &'static str| BlockerPicture {
        predicate: "P",
        step,
        message: "",
        hint,
        since: None,
    };
    let by_skip = block("RecreatePod/p-1", "or add P to spec.updateStrategy.skipPredicates");
    assert_eq!(by_skip.node(), Some("p-1"));
    assert_eq!(by_skip.remedy_text(), "wait, or add P to spec.updateStrategy.skipPredicates");
    let by_hand = block("RecreatePod", "bring the node back");
    assert_eq!((by_hand.node(), by_hand.remedy_text()), (None, "bring the node back".to_owned()));
}
