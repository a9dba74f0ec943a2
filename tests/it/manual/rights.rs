//! The tables of rights in `docs/hardening.md`, `docs/machines.md`, `docs/registries.md`, `docs/roles.md` and
//! `docs/hub.md`: each right has a row that says what it is for, and no row tells of another.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use navigator::engine::rbac;

/// Stands for the kinds of clusters, in the tables and here.
const CLUSTERS: &str = "clusters";

/// Verbs by resource.
type Rights = BTreeMap<String, BTreeSet<String>>;

fn held(rules: Vec<PolicyRule>) -> Rights {
    let mut held = Rights::new();
    for rule in rules {
        for resource in rule.resources.into_iter().flatten() {
            held.entry(resource).or_default().extend(rule.verbs.clone());
        }
    }
    held
}

/// Rights of the table below a heading.
fn told(page: &str, heading: &str) -> Rights {
    let page = super::page(page);
    let section = page.split(&format!(" {heading}\n")).nth(1).expect("the section exists");
    let section = section.split("\n#").next().unwrap();
    let mut told = Rights::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let verbs = || cells[1].split(", ").map(str::to_owned);
        for resource in cells[0].split('`').skip(1).step_by(2) {
            told.entry(resource.to_owned()).or_default().extend(verbs());
        }
        assert!(cells.len() == 4 && cells[2..].iter().all(|cell| cell.len() > 10), "{row}");
    }
    told
}

#[test]
fn every_right_of_the_controller_is_weighed() {
    let told = told("docs/hardening.md", "What the controller may do");
    let held = held(rbac::controller_rules(&[CLUSTERS]));
    assert_eq!(told, held, "left: docs/hardening.md; right: the controller's ClusterRole");
}

#[test]
fn every_right_of_the_coordinator_is_weighed() {
    let told = told("docs/machines.md", "What the coordinator may do");
    let mut rules = rbac::coordinator_rules(&[CLUSTERS]);
    rules.extend(rbac::coordinator_core_rules());
    assert_eq!(told, held(rules), "left: docs/machines.md; right: the coordinator's roles");
}

#[test]
fn every_right_that_labels_and_registries_need_is_weighed() {
    let told = told("docs/registries.md", "What it may do");
    let mut rules = rbac::registry_rules();
    rules.extend(rbac::registry_core_rules());
    rules.extend(rbac::label_core_rules());
    assert_eq!(told, held(rules), "left: docs/registries.md; right: the coordinator's roles");
}

#[test]
fn every_right_that_roles_and_plugins_need_is_weighed() {
    let told = told("docs/roles.md", "What it may do");
    let mut rules = rbac::role_rules();
    rules.extend(rbac::role_core_rules());
    rules.extend(rbac::plugin_core_rules());
    assert_eq!(told, held(rules), "left: docs/roles.md; right: the coordinator's roles");
}

#[test]
fn every_right_that_a_hub_and_an_end_need_is_weighed() {
    let core = "containership-core";
    assert_eq!(told("docs/hub.md", "What a hub needs"), held(rbac::hub_core_rules(core)));
    let mut rules = rbac::terminate_rules(true);
    rules.extend(rbac::terminate_core_rules(core));
    assert_eq!(told("docs/hub.md", "What the end needs"), held(rules));
}
