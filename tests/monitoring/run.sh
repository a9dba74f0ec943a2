#!/usr/bin/env bash
# run.sh PROMTOOL: the alerts fire when they should and not else, every expression of the dashboards can be parsed, and the
# dashboards are what their script writes. That names exist is held by tests/it/monitoring.rs.
set -euo pipefail
promtool=$(realpath "${1:?usage: run.sh PROMTOOL}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
"$promtool" check rules --lint=all --lint-fatal deploy/monitoring/rules.yaml
"$promtool" test rules tests/monitoring/rules_test.yaml
python3 scripts/dashboards.py --check
# Each alert must fire in some test: one that never does would pass any other.
python3 - <<'END'
import re, sys
alerts = set(re.findall(r"alert: (\w+)", open("deploy/monitoring/rules.yaml").read()))
fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- ", open("tests/monitoring/rules_test.yaml").read()))
sys.exit(f"no test in which these fire: {sorted(alerts - fired)}" if alerts - fired else 0)
END
rules=$(mktemp --suffix .yaml)
trap 'rm -f "$rules"' EXIT
python3 - >"$rules" <<'END'
import glob, json
found = [target["expr"] for file in sorted(glob.glob("deploy/helm/navigator/files/dashboards/*.json"))
         for panel in json.load(open(file))["panels"] for target in panel.get("targets", [])]
record = lambda n, text: {"record": f"panel:{n}", "expr": text.replace("$__rate_interval", "5m")}
print(json.dumps({"groups": [{"name": "panels", "rules": [record(n, text) for n, text in enumerate(found)]}]}))
END
"$promtool" check rules --lint=none "$rules" >/dev/null || { "$promtool" check rules "$rules"; exit 1; }
echo "monitoring: $(grep -c 'alert:' deploy/monitoring/rules.yaml) alerts, $(grep -o panel: "$rules" | wc -l) expressions of dashboards"
