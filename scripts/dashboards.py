#!/usr/bin/env python3
"""dashboards.py [--check]: writes the Grafana dashboards into the chart, each on one line, from the tables below.

A row is (title, [panels]); a panel is (title, unit, [(expression, legend)], options). With --check nothing is written: it
fails where a file is not what would be.
"""
import json, pathlib, sys

OUT = pathlib.Path(__file__).resolve().parents[1] / "deploy/helm/navigator/files/dashboards"
SOURCE = {"type": "prometheus", "uid": "${source}"}
OF = 'kind=~"$kind", namespace=~"$namespace", name=~"$name"'
POD = 'namespace=~"$namespace", pod=~"$pod"'
BY = "max by (kind, namespace, name)"
API = 'group="navigator.jetstack.io", component="apiserver"'

CLUSTERS = [
    ("Now", [
        ("Clusters", "none", [("sum(max by (kind) (navigator_clusters))", "")], "stat"),
        ("Not as wanted", "none", [(f'count({BY} (navigator_cluster_condition{{condition="Ready", {OF}}}) == 0 unless on (kind, namespace, name) {BY} (navigator_cluster_on_hold) == 1) or vector(0)', "")], "stat bad"),
        ("Not serving", "none", [(f'count({BY} (navigator_cluster_condition{{condition="Available", {OF}}}) == 0 unless on (kind, namespace, name) {BY} (navigator_cluster_on_hold) == 1) or vector(0)', "")], "stat bad"),
        ("Stalled", "none", [(f'count({BY} (navigator_cluster_condition{{condition="Stalled", {OF}}}) == 1) or vector(0)', "")], "stat bad"),
        ("Nodes that do not serve", "none", [(f"sum(clamp_min({BY} (navigator_cluster_nodes_wanted{{{OF}}}) - {BY} (navigator_cluster_nodes_ready{{{OF}}}), 0) unless on (kind, namespace, name) {BY} (navigator_cluster_on_hold) == 1) or vector(0)", "")], "stat bad"),
        ("Silent pilots", "none", [(f"sum({BY} (navigator_cluster_pilots_silent{{{OF}}}))", "")], "stat bad"),
    ]),
    ("What holds up", [
        ("Not as wanted, by cluster", "none", [(f'1 - {BY} (navigator_cluster_condition{{condition="Ready", {OF}}})', "{{namespace}}/{{name}}")], ""),
        ("Waits for a rule", "s", [(f"time() - min by (kind, namespace, name) (navigator_cluster_blocked_timestamp_seconds{{{OF}}})", "{{namespace}}/{{name}}")], ""),
        ("Operations under way", "s", [(f"time() - min by (namespace, name, operation) (navigator_cluster_operation_start_timestamp_seconds{{{OF}}})", "{{namespace}}/{{name}} {{operation}}")], ""),
    ]),
    ("Nodes", [
        ("Nodes that serve", "none", [(f"{BY} (navigator_cluster_nodes_ready{{{OF}}})", "{{namespace}}/{{name}}")], ""),
        ("Nodes that are missing", "none", [(f"clamp_min({BY} (navigator_cluster_nodes_wanted{{{OF}}}) - {BY} (navigator_cluster_nodes_ready{{{OF}}}), 0)", "{{namespace}}/{{name}}")], ""),
        ("Silent pilots", "none", [(f"{BY} (navigator_cluster_pilots_silent{{{OF}}})", "{{namespace}}/{{name}}")], ""),
    ]),
]
CONTROLLER = [
    ("Now", [
        ("Leaders", "none", [("sum(navigator_controller_leader)", "")], "stat"),
        ("Controllers", "none", [("count(navigator_controller_leader)", "")], "stat"),
        ("Changes of lead in an hour", "none", [("max_over_time(max(navigator_controller_leader_transitions > 0)[1h:1m]) - min_over_time(max(navigator_controller_leader_transitions > 0)[1h:1m])", "")], "stat bad"),
        ("Clusters that are due", "none", [("max(navigator_controller_queue_depth)", "")], "stat"),
        ("Looks that fail", "percentunit", [('sum(rate(navigator_controller_reconcile_seconds_count{outcome=~"error|timeout"}[5m])) / sum(rate(navigator_controller_reconcile_seconds_count[5m]))', "")], "stat bad"),
        ("Clusters without figures", "none", [("max(navigator_clusters_left_out)", "")], "stat"),
    ]),
    ("Looks at clusters", [
        ("By outcome", "ops", [("sum by (outcome) (rate(navigator_controller_reconcile_seconds_count[$__rate_interval]))", "{{outcome}}")], ""),
        ("How long they take", "s", [(f"histogram_quantile({q}, sum by (le, kind) (rate(navigator_controller_reconcile_seconds_bucket[$__rate_interval])))", f"{{{{kind}}}} {p}") for q, p in ((0.5, "half"), (0.99, "99 %"))], ""),
        ("Due", "none", [("navigator_controller_queue_depth", "{{instance}}")], ""),
    ]),
    ("What is done", [
        ("Steps carried out", "none", [("sum by (kind, operation) (increase(navigator_controller_steps_total[$__rate_interval]))", "{{kind}} {{operation}}")], ""),
        ("Who leads", "none", [("navigator_controller_leader", "{{instance}}")], ""),
        ("Versions", "none", [("count by (version) (navigator_build_info)", "{{version}}")], ""),
    ]),
]
APISERVER = [
    ("Now", [
        ("Requests", "reqps", [(f"sum(rate(apiserver_request_total{{{API}}}[5m]))", "")], "stat"),
        ("Fail (5xx)", "percentunit", [(f'sum(rate(apiserver_request_total{{{API}, code=~"5.."}}[5m])) / sum(rate(apiserver_request_total{{{API}}}[5m])) or vector(0)', "")], "stat bad"),
        ("Open watches", "none", [('sum(apiserver_longrunning_requests{group="navigator.jetstack.io", component="apiserver"})', "")], "stat"),
        ("Store errors in 5 min", "none", [("sum(increase(navigator_apiserver_store_errors_total[5m]))", "")], "stat bad"),
        ("Certificate ends in", "s", [("min(navigator_apiserver_certificate_expiry_timestamp_seconds > 0) - time()", "")], "stat"),
        ("Panics", "none", [("sum(navigator_apiserver_panics_total)", "")], "stat bad"),
    ]),
    ("Requests", [
        ("By verb", "reqps", [(f"sum by (verb) (rate(apiserver_request_total{{{API}}}[$__rate_interval]))", "{{verb}}")], ""),
        ("By code", "reqps", [(f"sum by (code) (rate(apiserver_request_total{{{API}}}[$__rate_interval]))", "{{code}}")], ""),
        ("How long 99 % take", "s", [(f"histogram_quantile(0.99, sum by (le, verb) (rate(apiserver_request_duration_seconds_bucket{{{API}}}[$__rate_interval])))", "{{verb}}")], ""),
        ("Events to watchers", "ops", [('sum by (resource) (rate(apiserver_watch_events_total{group="navigator.jetstack.io"}[$__rate_interval]))', "{{resource}}")], ""),
        ("Open watches", "none", [('sum by (resource) (apiserver_longrunning_requests{group="navigator.jetstack.io", component="apiserver"})', "{{resource}}")], ""),
        ("By resource", "reqps", [(f"sum by (resource) (rate(apiserver_request_total{{{API}}}[$__rate_interval]))", "{{resource}}")], ""),
    ]),
    ("Store", [
        ("Answers", "ops", [("sum by (operation) (rate(navigator_apiserver_store_request_duration_seconds_count[$__rate_interval]))", "{{operation}}")], ""),
        ("How long 99 % take", "s", [("histogram_quantile(0.99, sum by (le, operation) (rate(navigator_apiserver_store_request_duration_seconds_bucket[$__rate_interval])))", "{{operation}}")], ""),
        ("Errors", "ops", [("sum by (operation) (rate(navigator_apiserver_store_errors_total[$__rate_interval]))", "{{operation}}")], ""),
        ("How full", "percentunit", [
            ("max(navigator_apiserver_stored_bytes / navigator_apiserver_stored_limit_bytes)", "all"),
            ("max(navigator_apiserver_stored_fullest_namespace_bytes / navigator_apiserver_stored_namespace_limit_bytes)", "fullest namespace"),
        ], ""),
    ]),
]
PILOTS = [
    ("Now", [
        ("Pilots", "none", [(f"count(navigator_pilot_ready{{{POD}}})", "")], "stat"),
        ("Nodes that do not serve", "none", [(f"count(navigator_pilot_ready{{{POD}}} == 0) or vector(0)", "")], "stat bad"),
        ("Crashes in an hour", "none", [(f"sum(increase(navigator_pilot_process_crashes_total{{{POD}}}[1h]))", "")], "stat bad"),
        ("Silences in an hour", "none", [(f"sum(increase(navigator_pilot_process_hangs_total{{{POD}}}[1h]))", "")], "stat bad"),
        ("Oldest report", "s", [(f"time() - min(navigator_pilot_heartbeat_timestamp_seconds{{{POD}}} > 0)", "")], "stat"),
        ("Fullest volume", "percentunit", [(f"max(navigator_pilot_storage_used_bytes{{{POD}}} / (navigator_pilot_storage_capacity_bytes{{{POD}}} > 0))", "")], "stat"),
    ]),
    ("Nodes", [
        ("Serves", "none", [(f"navigator_pilot_ready{{{POD}}}", "{{pod}}")], ""),
        ("Use of the volume", "percentunit", [(f"navigator_pilot_storage_used_bytes{{{POD}}} / (navigator_pilot_storage_capacity_bytes{{{POD}}} > 0)", "{{pod}}")], ""),
        ("Last report", "s", [(f"time() - (navigator_pilot_heartbeat_timestamp_seconds{{{POD}}} > 0)", "{{pod}}")], ""),
        ("Starts", "none", [(f"increase(navigator_pilot_process_starts_total{{{POD}}}[$__rate_interval])", "{{pod}}")], ""),
        ("Ends that nobody asked for", "none", [(f"increase(navigator_pilot_process_crashes_total{{{POD}}}[$__rate_interval])", "{{pod}}")], ""),
        ("Lost log lines and events", "none", [(f"increase(navigator_pilot_log_lines_dropped_total{{{POD}}}[$__rate_interval])", "{{pod}} lines"), (f"increase(navigator_pilot_events_dropped_total{{{POD}}}[$__rate_interval])", "{{pod}} events")], ""),
    ]),
    ("Cassandra", [
        ("Nodes that are seen down", "none", [(f"navigator_cassandra_unreachable_nodes{{{POD}}}", "{{pod}}")], ""),
        ("Data", "bytes", [(f"navigator_cassandra_load_bytes{{{POD}}}", "{{pod}}")], ""),
        ("Streams", "none", [(f"navigator_cassandra_streams{{{POD}}}", "{{pod}}")], ""),
        ("Heap in use", "bytes", [(f"navigator_cassandra_heap_used_bytes{{{POD}}}", "{{pod}}")], ""),
        ("Received by streams", "bytes", [(f"navigator_cassandra_stream_received_bytes{{{POD}}}", "{{pod}}")], ""),
        ("Sent by streams", "bytes", [(f"navigator_cassandra_stream_sent_bytes{{{POD}}}", "{{pod}}")], ""),
    ]),
    ("Elasticsearch", [
        ("Nodes, as each sees them", "none", [(f"navigator_elasticsearch_nodes{{{POD}}}", "{{pod}}")], ""),
        ("Shards", "none", [(f"navigator_elasticsearch_shards{{{POD}}}", "{{pod}}")], ""),
        ("Data", "bytes", [(f"navigator_elasticsearch_store_bytes{{{POD}}}", "{{pod}}")], ""),
        ("Documents", "short", [(f"navigator_elasticsearch_documents{{{POD}}}", "{{pod}}")], ""),
        ("Heap in use", "bytes", [(f"navigator_elasticsearch_heap_used_bytes{{{POD}}}", "{{pod}}")], ""),
    ]),
]
FILES = {
    "clusters": ("Navigator / Clusters", CLUSTERS, [("kind", "navigator_cluster_condition"), ("namespace", 'navigator_cluster_condition{kind=~"$kind"}'), ("name", 'navigator_cluster_condition{kind=~"$kind", namespace=~"$namespace"}')]),
    "controller": ("Navigator / Controller", CONTROLLER, []),
    "apiserver": ("Navigator / API server", APISERVER, []),
    "pilots": ("Navigator / Pilots", PILOTS, [("namespace", "navigator_pilot_ready"), ("pod", 'navigator_pilot_ready{namespace=~"$namespace"}')]),
}


def panel(number, at, title, unit, targets, options):
    stat, bad = "stat" in options, "bad" in options
    steps = [{"color": "green", "value": None}] + ([{"color": "red", "value": 0.000001}] if bad else [])
    made = {
        "id": number, "title": title, "type": "stat" if stat else "timeseries", "datasource": SOURCE, "gridPos": at,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}, "overrides": []},
        "targets": [{"refId": chr(65 + n), "expr": expression, "legendFormat": legend or "__auto", "datasource": SOURCE}
                    | ({"instant": True} if stat else {}) for n, (expression, legend) in enumerate(targets)],
    }
    if stat:
        made["options"] = {"colorMode": "value" if bad else "none", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    else:
        made["fieldConfig"]["defaults"]["custom"] = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return made


def dashboard(name, title, rows, variables):
    panels, y = [], 0
    for row, content in rows:
        panels.append({"id": len(panels) + 1, "title": row, "type": "row", "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        width, height = (4, 4) if "stat" in content[0][3] else (8, 8)
        for n, one in enumerate(content):
            at = {"x": n * width % 24, "y": y + n * width // 24 * height, "w": width, "h": height}
            panels.append(panel(len(panels) + 1, at, *one))
        y += -(-len(content) * width // 24) * height
    choices = [{"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}]
    choices += [{"name": label, "type": "query", "datasource": SOURCE, "query": {"query": f"label_values({metric}, {label})", "refId": label},
                 "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1}
                for label, metric in variables]
    return {"uid": f"navigator-{name}", "title": title, "tags": ["navigator"], "schemaVersion": 39, "editable": True, "timezone": "browser",
            "time": {"from": "now-3h", "to": "now"}, "refresh": "30s", "templating": {"list": choices}, "annotations": {"list": []},
            "links": [{"type": "dashboards", "tags": ["navigator"], "title": "Navigator", "asDropdown": True}], "panels": panels}


def main():
    wrong = []
    for name, (title, rows, variables) in FILES.items():
        text = json.dumps(dashboard(name, title, rows, variables), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        text, path = text.replace("1e-06", "1e-6") + "\n", OUT / f"{name}.json"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            wrong.append(path.name)
    if wrong:
        sys.exit(f"dashboards.py: not what it would write: {', '.join(wrong)}; run it without --check")


main()
