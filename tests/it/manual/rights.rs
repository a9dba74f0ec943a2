//! The table of the controller's rights in `docs/hardening.md`: each right has a row that says what
//! it is for, and no row tells of another.

use std::collections::{BTreeMap, BTreeSet};

use navigator::engine::rbac;

/// Stands for the kinds of clusters, in the table and here.
const CLUSTERS: &str = "clusters";

#[test]
fn every_right_of_the_controller_is_weighed() {
    let mut held = BTreeMap::<String, BTreeSet<String>>::new();
    for rule in rbac::controller_rules(&[CLUSTERS]) {
        for resource in rule.resources.into_iter().flatten() {
            held.entry(resource).or_default().extend(rule.verbs.clone());
        }
    }
    let page = super::page("docs/hardening.md");
    let section = page.split("## What the controller may do\n").nth(1).expect("the section exists");
    let section = section.split("\n## ").next().unwrap();
    let mut told = BTreeMap::<String, BTreeSet<String>>::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let verbs = || cells[1].split(", ").map(str::to_owned);
        for resource in cells[0].split('`').skip(1).step_by(2) {
            told.entry(resource.to_owned()).or_default().extend(verbs());
        }
        assert!(cells.len() == 4 && cells[2..].iter().all(|cell| cell.len() > 10), "{row}");
    }
    assert_eq!(told, held, "left: docs/hardening.md; right: the controller's ClusterRole");
}
