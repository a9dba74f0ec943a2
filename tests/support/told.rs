//! Compares the metrics that a role serves with the program's own description of them, to which the
//! reference, dashboards and alerts are held.

use std::collections::{BTreeMap, BTreeSet};

use navigator::runtime::metric_catalogue::MetricDescription;

/// Every sample of a page of metrics, as name and names of labels.
fn samples(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no sample: {line}"));
        let (name, mut rest) = line.split_at(end);
        let mut labels = BTreeSet::new();
        // A value between quotes has no quote of its own here: they are words of the program.
        while let Some((label, more)) = rest.split_once("=\"") {
            labels.insert(label.trim_start_matches(['{', ',']).to_owned());
            rest = more.split_once('"').unwrap_or_else(|| panic!("no end: {line}")).1;
        }
        found.insert(name.to_owned(), labels);
    }
    found
}

/// Holds a page to its description: no sample goes by another name or has other labels.
#[track_caller]
pub(crate) fn assert_described(page: &str, described: &[MetricDescription]) {
    let samples = samples(page);
    // A controller that waits for the lead serves four samples.
    assert!(samples.len() > 3, "{page}");
    for (name, mut labels) in samples {
        let of = described.iter().find(|metric| {
            let ending = name.strip_prefix(&metric.name).unwrap_or("no");
            ending.is_empty()
                || metric.type_ == "histogram" && ["_bucket", "_sum", "_count"].contains(&ending)
        });
        let of = of.unwrap_or_else(|| panic!("nothing describes {name}:\n{page}"));
        if of.type_ == "histogram" {
            labels.remove("le");
        }
        assert_eq!(labels, of.labels.iter().cloned().collect(), "{name}");
    }
}
