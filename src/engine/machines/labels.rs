//! Which labels Nodes are to bear, by ClusterLabels and NodePoolLabels.
//!
//! Below the prefixes of [`name::LABEL_PREFIXES`] a Node bears what these objects say and nothing else,
//! as the cluster manager of 2019 had it. A label with another key is set, and stays when its object
//! is gone. Of two objects that give one key two values on a Node the older wins.

use std::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use crate::{
    api::containership::{LabelStatus, name},
    engine::conditions::{ObjectVerdict, build_conditions},
};

/// What one object asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelWish {
    /// The object as people name it, such as `clusterlabel/tier`.
    pub object: String,
    pub created: Timestamp,
    /// Pool of the Nodes that are meant; all Nodes without it.
    pub pool: Option<String>,
    pub key: String,
    pub value: String,
}

/// What is to be written, and how far each wish is met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelPlan {
    /// By Node: labels to set, and those to take off as `None`.
    pub patches: BTreeMap<String, BTreeMap<String, Option<String>>>,
    /// In the order of the wishes.
    pub outcomes: Vec<LabelOutcome>,
}

/// How far a wish is met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelOutcome {
    /// Nodes that are meant.
    pub meant: usize,
    /// Nodes that bear the label as wished.
    pub borne: usize,
    /// Object that gives the key another value on a Node, with the Node.
    pub lost_to: Option<(String, String)>,
    /// Why the label is set nowhere.
    pub refused: Option<&'static str>,
}

/// Decides what is written on which Node; `nodes` holds the labels that Nodes bear.
pub fn plan_labels(
    wishes: &[LabelWish],
    nodes: &BTreeMap<String, BTreeMap<String, String>>,
) -> LabelPlan {
    let initial_outcome = |wish: &LabelWish| LabelOutcome {
        refused: refusal_reason(&wish.key),
        ..LabelOutcome::default()
    };
    let mut outcomes: Vec<LabelOutcome> = wishes.iter().map(initial_outcome).collect();
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.retain(|&index| outcomes[index].refused.is_none());
    order.sort_by_key(|&index| (wishes[index].created, &wishes[index].object));
    let mut patches = BTreeMap::new();
    for (node, labels) in nodes {
        let pool = labels.get(name::NODE_POOL_ID);
        // By key, the wish that wins.
        let mut winners: BTreeMap<&str, usize> = BTreeMap::new();
        for &index in &order {
            let wish = &wishes[index];
            if wish.pool.is_some() && wish.pool.as_ref() != pool {
                continue;
            }
            let winner = *winners.entry(&wish.key).or_insert(index);
            outcomes[index].meant += 1;
            if wishes[winner].value != wish.value {
                let conflict = (wishes[winner].object.clone(), node.clone());
                outcomes[index].lost_to.get_or_insert(conflict);
            } else if labels.get(&wish.key) == Some(&wish.value) {
                outcomes[index].borne += 1;
            }
        }
        let mut patch: BTreeMap<String, Option<String>> = BTreeMap::new();
        let is_owned =
            |key: &str| name::LABEL_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        for key in labels.keys().filter(|key| is_owned(key) && !winners.contains_key(key.as_str()))
        {
            patch.insert(key.clone(), None);
        }
        for (key, &index) in &winners {
            if labels.get(*key) != Some(&wishes[index].value) {
                patch.insert((*key).to_owned(), Some(wishes[index].value.clone()));
            }
        }
        if !patch.is_empty() {
            patches.insert(node.clone(), patch);
        }
    }
    LabelPlan { patches, outcomes }
}

/// Why Navigator sets no label of this key. kube-apiserver refuses such an object; one may be older than
/// its rules.
fn refusal_reason(key: &str) -> Option<&'static str> {
    let (domain, _) = key.split_once('/')?;
    let is_in_domain = |zone: &str| {
        let subdomain = domain.strip_suffix(zone);
        subdomain.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
    };
    let is_own_key = name::LABEL_PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    if is_in_domain("kubernetes.io") || is_in_domain("k8s.io") {
        Some("keys of kubernetes.io and k8s.io belong to Kubernetes")
    } else if is_in_domain("containership.io") && !is_own_key {
        Some(
            "of containership.io, keys must begin with cluster.containership.io/ or \
             nodepool.containership.io/",
        )
    } else {
        None
    }
}

/// Returns the status of an object, by how far its wish is met.
pub fn label_status(
    last_status: &LabelStatus,
    generation: Option<i64>,
    outcome: &LabelOutcome,
    now: Timestamp,
) -> LabelStatus {
    let LabelOutcome { meant, borne, lost_to, refused } = outcome;
    let progress = format!("{borne}/{meant}");
    let stalled = match (refused, lost_to) {
        (Some(refusal), _) => Some(("KeyRefused", (*refusal).to_owned())),
        (None, Some((winner, node))) => Some((
            "Conflict",
            format!("{winner} is older and gives the key another value, on {node} for one"),
        )),
        (None, None) => None,
    };
    let reason = if borne == meant { "Labelled" } else { "Labelling" };
    let message = format!("the label stands on {progress} nodes");
    let verdict = ObjectVerdict::new(borne == meant, reason, message, stalled);
    let conditions: Vec<Condition> =
        build_conditions(&last_status.conditions, generation, verdict, now);
    LabelStatus {
        observed_generation: generation,
        nodes: i32::try_from(*borne).unwrap_or(i32::MAX),
        progress: Some(progress),
        conditions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(object: &str, second: i64, pool: Option<&str>, key: &str, value: &str) -> LabelWish {
        LabelWish {
            object: object.to_owned(),
            created: Timestamp::from_second(second).unwrap(),
            pool: pool.map(str::to_owned),
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    fn nodes(all: &[(&str, &[(&str, &str)])]) -> BTreeMap<String, BTreeMap<String, String>> {
        let labels = |labels: &[(&str, &str)]| {
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        all.iter().map(|(name, one)| ((*name).to_owned(), labels(one))).collect()
    }

    /// Patches as `node: key=value -key`.
    fn told(plan: &LabelPlan) -> Vec<String> {
        let line = |(node, patch): (&String, &BTreeMap<String, Option<String>>)| {
            let word = |(key, value): (&String, &Option<String>)| match value {
                Some(value) => format!("{key}={value}"),
                None => format!("-{key}"),
            };
            format!("{node}: {}", patch.iter().map(word).collect::<Vec<_>>().join(" "))
        };
        plan.patches.iter().map(line).collect()
    }

    const POOL: &str = "containership.io/node-pool-id";

    #[test]
    fn below_the_prefixes_nodes_bear_what_is_wished_and_nothing_else() {
        let wishes = [
            wish("clusterlabel/a", 1, None, "cluster.containership.io/tier", "gold"),
            wish("nodepoollabel/b", 2, Some("p"), "nodepool.containership.io/disk", "ssd"),
            // In the other kind's prefix, and in none: set all the same.
            wish("nodepoollabel/c", 3, Some("p"), "cluster.containership.io/zone", ""),
            wish("clusterlabel/d", 4, None, "team", "x"),
        ];
        let before = nodes(&[
            ("m1", &[(POOL, "p"), ("kubernetes.io/hostname", "m1"), ("team", "y")]),
            (
                "m2",
                &[
                    (POOL, "q"),
                    ("cluster.containership.io/tier", "gold"),
                    ("cluster.containership.io/old", "1"),
                    ("nodepool.containership.io/disk", "ssd"),
                    ("cluster.containership.iox/mine", "1"),
                    ("team", "x"),
                ],
            ),
            ("m3", &[("cluster.containership.io/tier", "gold"), ("team", "x")]),
        ]);
        let plan = plan_labels(&wishes, &before);
        assert_eq!(
            told(&plan),
            [
                "m1: cluster.containership.io/tier=gold cluster.containership.io/zone= \
                 nodepool.containership.io/disk=ssd team=x",
                "m2: -cluster.containership.io/old -nodepool.containership.io/disk",
            ]
        );
        let counts: Vec<_> = plan.outcomes.iter().map(|one| (one.borne, one.meant)).collect();
        assert_eq!(counts, [(2, 3), (0, 1), (0, 1), (2, 3)]);

        // Carried out, there is nothing left to do.
        let mut after = before;
        for (node, patch) in plan.patches {
            for (key, value) in patch {
                match value {
                    Some(value) => after.get_mut(&node).unwrap().insert(key, value),
                    None => after.get_mut(&node).unwrap().remove(&key),
                };
            }
        }
        let plan = plan_labels(&wishes, &after);
        assert_eq!(told(&plan), [""; 0]);
        assert!(plan.outcomes.iter().all(|one| one.borne == one.meant && one.lost_to.is_none()));
        // Without objects the keys below the prefixes go, and others stay.
        let plan = plan_labels(&[], &after);
        assert_eq!(
            told(&plan),
            [
                "m1: -cluster.containership.io/tier -cluster.containership.io/zone \
                 -nodepool.containership.io/disk",
                "m2: -cluster.containership.io/tier",
                "m3: -cluster.containership.io/tier",
            ]
        );
    }

    #[test]
    fn of_two_values_the_older_wins_where_both_are_meant() {
        let key = "nodepool.containership.io/disk";
        let wishes = [
            wish("clusterlabel/young", 2, None, key, "hdd"),
            wish("nodepoollabel/old", 1, Some("p"), key, "ssd"),
            // The same value is no conflict, and of one age the name decides.
            wish("nodepoollabel/same", 3, Some("p"), key, "ssd"),
            wish("nodepoollabel/zz", 1, Some("p"), key, "tape"),
        ];
        let all = nodes(&[("m1", &[(POOL, "p")]), ("m2", &[(POOL, "q")]), ("m3", &[(key, "hdd")])]);
        let plan = plan_labels(&wishes, &all);
        assert_eq!(told(&plan), [format!("m1: {key}=ssd"), format!("m2: {key}=hdd")]);
        let lost =
            |at: usize| plan.outcomes[at].lost_to.clone().map(|(to, on)| format!("{to} {on}"));
        assert_eq!(lost(0).as_deref(), Some("nodepoollabel/old m1"));
        assert_eq!((lost(1), lost(2)), (None, None));
        assert_eq!(lost(3).as_deref(), Some("nodepoollabel/old m1"));
        let status =
            label_status(&LabelStatus::default(), Some(7), &plan.outcomes[0], Timestamp::MIN);
        assert_eq!((status.progress.as_deref(), status.nodes), (Some("1/3"), 1));
        let stalled = &status.conditions[2];
        assert_eq!((stalled.status.as_str(), stalled.reason.as_str()), ("True", "Conflict"));
        assert_eq!(
            stalled.message,
            "nodepoollabel/old is older and gives the key another value, on m1 for one"
        );
    }

    #[test]
    fn keys_of_kubernetes_and_of_the_machines_own_facts_are_refused() {
        for (key, refused) in [
            ("kubernetes.io/hostname", true),
            ("node-role.kubernetes.io/control-plane", true),
            ("node.k8s.io/x", true),
            ("k8s.io/x", true),
            ("containership.io/node-pool-id", true),
            ("node.containership.io/geohash", true),
            ("mykubernetes.io/x", false),
            ("kubernetes.io", false),
            ("cluster.containership.io/x", false),
            ("nodepool.containership.io/x", false),
            ("team", false),
        ] {
            let wishes = [wish("clusterlabel/a", 1, None, key, "v")];
            let plan = plan_labels(&wishes, &nodes(&[("m1", &[])]));
            assert_eq!(plan.outcomes[0].refused.is_some(), refused, "{key}");
            assert_eq!(plan.patches.is_empty(), refused, "{key}");
        }
    }
}
