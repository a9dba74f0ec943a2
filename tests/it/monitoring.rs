//! What people watch Navigator by: metrics and flags are in their references, dashboards and rules
//! name metrics and labels that exist, and every alert has its page. Whether the rules fire when
//! they should is tried by promtool (`tests/monitoring`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
};

use clap::{Arg, ArgAction, Command};
use navigator::{
    agent, apiserver, cli, controller, coordinator, databases, pilot,
    runtime::metric_catalogue::MetricDescription,
};
use serde_json::Value;

use crate::{golden, scheme};

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What each role tells, under the title that the reference has for it.
pub(crate) fn catalogue() -> Vec<(String, Vec<MetricDescription>)> {
    let mut roles = vec![
        ("API server".to_owned(), apiserver::metrics_catalogue(scheme())),
        ("Controller".to_owned(), controller::metrics_catalogue()),
        ("Coordinator".to_owned(), coordinator::metrics_catalogue()),
        ("Agent".to_owned(), agent::metrics_catalogue()),
        ("Pilot".to_owned(), pilot::node::metrics::describe_metrics()),
    ];
    for database in databases::ALL {
        let gauges = database.pilot.gauges.iter().map(|gauge| MetricDescription {
            name: format!("navigator_{}", gauge.name),
            type_: "gauge",
            labels: Vec::new(),
            help: gauge.help.to_owned(),
        });
        roles.push((format!("Pilot of {}", database.pilot.names.title), gauges.collect()));
    }
    for (_, metrics) in &mut roles {
        metrics.sort();
    }
    roles
}

#[test]
fn the_reference_of_metrics_has_all_of_them() {
    let mut page =
        "# Metrics\n\nGenerated from the program; `make golden` rewrites it. What to do \
                    with them: [monitoring.md](monitoring.md).\n"
            .to_owned();
    for (role, metrics) in catalogue() {
        write!(page, "\n## {role}\n\n| metric | type | labels | |\n|---|---|---|---|\n").unwrap();
        for MetricDescription { name, type_, labels, help } in metrics {
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            writeln!(page, "| `{name}` | {type_} | {} | {help} |", labels.join(", ")).unwrap();
        }
    }
    golden::check_file("docs/metrics.md", &page);
}

/// Functions and words of PromQL, and labels that Prometheus adds when it scrapes.
const PROMQL: &[&str] = &[
    "abs",
    "absent",
    "and",
    "avg",
    "bool",
    "by",
    "changes",
    "clamp_max",
    "clamp_min",
    "count",
    "histogram_quantile",
    "ignoring",
    "increase",
    "label_replace",
    "last_over_time",
    "max",
    "max_over_time",
    "min",
    "min_over_time",
    "offset",
    "on",
    "or",
    "rate",
    "round",
    "sort_desc",
    "sum",
    "time",
    "timestamp",
    "topk",
    "unless",
    "vector",
    "without",
    "group_left",
    "group_right",
];
const SCRAPED: &[&str] = &["instance", "job", "le", "namespace", "pod"];
/// Metrics of other programs.
const FOREIGN: &[&str] = &["aggregator_unavailable_apiservice", "up"];

/// Metric names and labels that an expression uses.
fn names(expression: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let mut word = String::new();
    // Inside of quotes nothing is a name, inside of braces and of a list of labels only labels are.
    let (mut quoted, mut braces, mut list) = (false, false, false);
    let mut before = String::new();
    for c in expression.chars().chain([' ']) {
        if quoted {
            quoted = c != '"';
            continue;
        }
        if c.is_ascii_alphanumeric() || c == '_' || c == ':' || c == '$' {
            word.push(c);
            continue;
        }
        let found = std::mem::take(&mut word);
        let begins = found.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if begins && (braces || list) {
            labels.insert(found.clone());
        } else if begins && !PROMQL.contains(&found.as_str()) {
            metrics.insert(found.clone());
        }
        if !found.is_empty() {
            before = found;
        }
        match c {
            '"' => quoted = true,
            '{' => braces = true,
            '}' => braces = false,
            '(' => {
                let lists = ["by", "without", "on", "ignoring", "group_left", "group_right"];
                list = lists.contains(&before.as_str());
                before.clear();
            }
            ')' => list = false,
            ' ' => {}
            _ => before.clear(),
        }
    }
    (metrics, labels)
}

#[test]
fn names_of_an_expression_are_found() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let (metrics, labels) = names(
        "sum by (le, kind) (rate(a_bucket{verb!=\"x y\", code=~\"5..\"}[$__rate_interval])) / on \
         (namespace) group_left () b_total > 3 and time() - c > 5m",
    );
    assert_eq!(metrics, set(&["a_bucket", "b_total", "c"]));
    assert_eq!(labels, set(&["code", "kind", "le", "namespace", "verb"]));
}

/// Every expression of the rules and the dashboards, by where it stands.
fn expressions() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, rule) in rules() {
        found.push((format!("rule {name}"), rule["expr"].as_str().unwrap().to_owned()));
    }
    for (file, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let place = format!("{file}, {}", panel["title"].as_str().unwrap_or_default());
                found.push((place, target["expr"].as_str().unwrap().to_owned()));
            }
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if let Some(query) = variable["query"]["query"].as_str() {
                // label_values(METRIC, LABEL)
                let inside = query.trim_start_matches("label_values(").trim_end_matches(')');
                let (metric, label) = inside.rsplit_once(", ").unwrap();
                let place = format!("{file}, variable {}", variable["name"]);
                found.push((place, format!("sum by ({label}) ({metric})")));
            }
        }
    }
    found
}

fn rules() -> Vec<(String, Value)> {
    let rules: Value = serde_yaml::from_str(&file("deploy/monitoring/rules.yaml")).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule.clone()))
        .collect()
}

fn dashboards() -> Vec<(String, Value)> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm/navigator/files/dashboards");
    let mut found: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap())
    };
    found.iter().map(read).collect()
}

#[test]
fn rules_and_dashboards_name_metrics_and_labels_that_exist() {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for metric in catalogue().into_iter().flat_map(|(_, metrics)| metrics) {
        let endings: &[&str] =
            if metric.type_ == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        for ending in endings {
            let name = format!("{}{ending}", metric.name);
            known.entry(name).or_default().extend(metric.labels.iter().cloned());
        }
    }
    let mut wrong = Vec::new();
    let expressions = expressions();
    assert!(expressions.len() > 40, "{}", expressions.len());
    for (place, expression) in expressions {
        let (metrics, labels) = names(&expression);
        assert!(!metrics.is_empty(), "{place}: {expression}");
        let mut allowed: BTreeSet<String> = SCRAPED.iter().map(|&label| label.to_owned()).collect();
        for metric in &metrics {
            match known.get(metric) {
                Some(labels) => allowed.extend(labels.iter().cloned()),
                None if FOREIGN.contains(&metric.as_str()) => {
                    allowed.insert("name".to_owned());
                }
                None => wrong.push(format!("{place}: no role tells {metric:?}")),
            }
        }
        for label in labels.difference(&allowed) {
            wrong.push(format!("{place}: nothing in it has a label {label:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_alert_has_its_page_and_every_page_its_alert() {
    let page = file("docs/runbooks.md");
    let told: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let rules = rules();
    let alerts: BTreeSet<_> = rules.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(told, alerts, "docs/runbooks.md and deploy/monitoring/rules.yaml");
    for (name, rule) in &rules {
        let url = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        let wanted = format!("/docs/runbooks.md#{}", name.to_lowercase());
        assert!(url.starts_with("https://") && url.ends_with(&wanted), "{name}: {url}");
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {annotation}");
        }
        let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity:?}");
    }
    for section in page.split("\n## ").skip(1) {
        for part in ["**Means.**", "**Look.**", "**Do.**"] {
            assert!(section.contains(part), "{part} is missing: {section}");
        }
    }
}

#[test]
fn dashboards_are_told_apart_and_their_panels_too() {
    let dashboards = dashboards();
    assert_eq!(dashboards.len(), 4);
    let uids: BTreeSet<_> = dashboards.iter().map(|(_, it)| it["uid"].to_string()).collect();
    assert_eq!(uids.len(), dashboards.len());
    for (name, dashboard) in &dashboards {
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_i64().unwrap()).collect();
        assert_eq!(ids.len(), panels.len(), "{name}");
        let mut taken = BTreeSet::new();
        for panel in panels {
            let at = |key: &str| panel["gridPos"][key].as_i64().unwrap();
            assert!(at("x") + at("w") <= 24, "{name}: {}", panel["title"]);
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(taken.insert((x, y)), "{name}: {} lies on another", panel["title"]);
                }
            }
        }
    }
}

#[test]
fn the_reference_of_flags_has_all_of_them() {
    let mut page = "# Flags and environment\n\nGenerated from the program; `make golden` rewrites \
                    it. A flag wins over its variable.\n"
        .to_owned();
    let mut program = cli::build_command(databases::ALL);
    program.build();
    applet(&mut page, &program, "");
    golden::check_file("docs/flags.md", &page);
}

/// An applet with its flags, and those below it.
fn applet(page: &mut String, command: &Command, above: &str) {
    let name = format!("{above}{}", command.get_name());
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let arguments: Vec<_> = command.get_arguments().filter(shown).collect();
    if !above.is_empty() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        write!(page, "\n## {name}\n\n{about}\n").unwrap();
    }
    if !arguments.is_empty() {
        page.push_str("\n| flag | environment | default | |\n|---|---|---|---|\n");
    }
    for arg in arguments {
        let (flag, environment) = (typed(arg), arg.get_env().map(|name| name.to_string_lossy()));
        let environment = environment.map(|name| format!("`{name}`")).unwrap_or_default();
        let defaults: Vec<_> =
            arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        // A switch is off unless it is typed.
        let default = match defaults.join(",") {
            text if text.is_empty() || !takes_value(arg) => String::new(),
            text => format!("`{text}`"),
        };
        let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string);
        let help = help.unwrap_or_default().replace("\n\n", "<br>").replace(['\n', '|'], " ");
        let values = arg.get_possible_values();
        let values: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
        let values = match values.join(", ") {
            text if text.is_empty() || !takes_value(arg) => String::new(),
            text => format!("; one of {text}"),
        };
        writeln!(page, "| `{flag}` | {environment} | {default} | {help}{values} |").unwrap();
    }
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    for below in below.filter(|below| below.get_name() != "help") {
        applet(page, below, &format!("{name} "));
    }
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn typed(arg: &Arg) -> String {
    let values: Vec<_> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let value = if takes_value(arg) { values.join(" ") } else { String::new() };
    let flag = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => String::new(),
    };
    format!("{flag} {value}").trim().to_owned()
}
