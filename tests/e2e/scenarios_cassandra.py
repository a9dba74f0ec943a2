"""What once gave way with a real Cassandra on a real Kubernetes, tried again. Not part of CI: `make e2e-scenarios`."""
import json
import time

from bed import KUBECTL, ROOT, claim, get, kubectl, main, nodes_ready, run, say, step, wait
from cql import Session
from navigator import install

NS = "trouble-cass"
ROWS = 2_000
COPIES = 2


def cluster(name):
    return ("cassandracluster", "-n", NS, name)


def manifest(name, replicas=1, **spec):
    """The sample, with another name, size and spec."""
    thing = json.loads(kubectl("create", "--dry-run=client", "-o", "json", "-f", ROOT / "deploy/samples/cassandra-small.yaml"))
    thing["metadata"] = {"name": name, "namespace": NS}
    thing["spec"]["nodePools"][0]["replicas"] = replicas
    thing["spec"] |= spec
    return thing


def apply(thing, check=True, *flags):
    done = run(*KUBECTL, "apply", *flags, "-f", "-", stdin=json.dumps(thing), check=check)
    return done.stdout + done.stderr


def session(name, ordinal=0, pool="a"):
    return Session(get("pod", "-n", NS, f"cass-{name}-{pool}-{ordinal}")["status"]["podIP"])


def tells(name, kind, status, reason):
    def check():
        seen = [(entry["status"], entry["reason"]) for entry in get(*cluster(name))["status"]["conditions"] if entry["type"] == kind]
        return seen == [(status, reason)] or json.dumps(get(*cluster(name))["status"]["conditions"])
    return check


def ready(name, deadline=600):
    wait(f"{name} Ready", tells(name, "Ready", "True", "AllNodesReady"), deadline)


def pilot(name):
    return get("pilot", "-n", NS, name)


def wrong_manifests():
    unknown = manifest("wrong", 1)
    unknown["spec"]["nodePool"] = []
    rows = {
        "a version that does not run yet": (apply(manifest("wrong", 1, version="6.0.0"), False, "--dry-run=server"), "version", 1000),
        "an unknown field": (apply(unknown, False, "--dry-run=server", "--validate=ignore"), "", 1000),
        "an unknown field, strictly": (apply(unknown, False, "--dry-run=server", "--validate=strict"), "spec.nodePool", 1000),
    }
    for what, (seen, word, most) in rows.items():
        say(f"    {what}: {seen.strip()[:300]}")
        claim(f"{what} is told, and in a few lines", word in seen and len(seen) < most, seen)


def reapplied():
    """An unknown field in a manifest whose object exists: the reason, and not the object."""
    thing = manifest("tri", 2)
    thing["spec"]["nodePool"] = []
    seen = apply(thing, False, "--validate=strict")
    say(f"    {seen.strip()[:400]}")
    claim("the field is named, in a few lines", "nodePool" in seen and len(seen.splitlines()) <= 6, seen)


def labels_come_back():
    """F3: a label that the controller finds its objects by is taken off."""
    before = time.monotonic()
    kubectl("label", "statefulset", "-n", NS, "cass-tri-a", "app.kubernetes.io/managed-by-")
    wait("the label is back", lambda: get("statefulset", "-n", NS, "cass-tri-a")["metadata"]["labels"].get("app.kubernetes.io/managed-by")
         == "navigator" or "gone", 120, every=0.5)
    say(f"    after {time.monotonic() - before:.1f} s")


def grace():
    """F6: the pilot goes by the grace period of its own pod."""
    for seconds in (60, 1800):
        kubectl("patch", *cluster("tri"), "--type", "merge", "-p",
                json.dumps({"spec": {"podTemplate": {"spec": {"terminationGracePeriodSeconds": seconds}}}}))

        def agree():
            told = []
            for pod in get("pods", "-n", NS, "-l", "navigator.jetstack.io/cassandra-cluster-name=tri"):
                box = next(entry for entry in pod["spec"]["containers"] if entry["name"] == "cassandra")
                told += [entry["value"] for entry in box["env"] if entry["name"] == "NAVIGATOR_TERMINATION_GRACE_PERIOD"]
                told.append(str(pod["spec"]["terminationGracePeriodSeconds"]))
            return len(told) == 4 and all(entry.removesuffix("s") == str(seconds) for entry in told) or str(told)
        wait(f"pods and their pilots go by {seconds} s", agree, 600)
        ready("tri")


def partly_kept():
    """F1: the founder's claim is lost, another node's is kept."""
    kubectl("delete", *cluster("tri"), timeout=500)
    wait("its pods are gone", lambda: get("pods", "-n", NS) == [] or "pods", 120)
    kubectl("delete", "pvc", "-n", NS, "cassandra-data-cass-tri-a-0", timeout=120)
    with step("F1: made again, the founder's claim lost: one ring, every row"):
        apply(manifest("tri", 2))
        wait("2/2 nodes", nodes_ready(cluster("tri"), 2), 900)
        ready("tri")
        for ordinal in (0, 1):
            with session("tri", ordinal) as asked:
                nodes, found = asked.nodes(), asked.read(ROWS)
            claim(f"node {ordinal} knows two nodes and reads all {ROWS} rows", len(nodes) == 2 and found == ROWS, (nodes, found))


def cannot_start():
    """F2: a pool that cannot start is added and taken back."""
    broken = manifest("tri", 2)
    broken["spec"]["nodePools"].append({**broken["spec"]["nodePools"][0], "name": "b", "replicas": 1,
                                        "jvm": {"options": ["-XX:NoSuchOption=1"]}})
    with step("F2: a pool that cannot start is added; it is told"):
        apply(broken)
        wait("its database crashed", lambda: bool((pilot("cass-tri-b-0") or {}).get("status", {}).get("lastTermination"))
             or json.dumps((pilot("cass-tri-b-0") or {}).get("status")), 400)
        say(f"    {json.dumps(pilot('cass-tri-b-0')['status']['lastTermination'])[:300]}")
    with step("F2: it is taken back, and goes"):
        apply(manifest("tri", 2))
        wait("its Pilot and pod are gone", lambda: pilot("cass-tri-b-0") is None and get("pod", "-n", NS, "cass-tri-b-0") is None
             or "still there", 300)
        ready("tri")


def roll():
    """F4: the restarts of two nodes are two sentences."""
    kubectl("patch", *cluster("tri"), "--type", "merge", "-p", '{"spec": {"restartedAt": "2026-11-20T10:00:00Z"}}')
    # Two nodes and two copies: a quorum needs both.
    kubectl("patch", *cluster("tri"), "--type", "merge", "-p", '{"spec": {"updateStrategy": {"skipPredicates": ["RangesKeepQuorum"]}}}')

    def both():
        events = get("events.events.k8s.io", "-n", NS)
        notes = {event["note"] for event in events if event["reason"] == "RestartPilot"}
        return all(any(f"cass-tri-a-{ordinal}" in note for note in notes) for ordinal in (0, 1)) and [notes] or str(notes)
    say(f"    {wait('each restart is told of its own node', both, 600)[0]}")
    ready("tri")
    started = [event["note"] for event in get("events.events.k8s.io", "-n", NS)
               if event["reason"] == "OperationStarted" and event["regarding"]["name"] == "tri"]
    claim("no two operations share a sentence", len(started) == len(set(started)), started)
    say(f"    {started}")


def job():
    with step("install"):
        install()
    kubectl("create", "namespace", NS)
    with step("wrong manifests"):
        wrong_manifests()
    with step("two nodes, until Ready"):
        apply(manifest("tri", 2))
        wait("2/2 nodes", nodes_ready(cluster("tri"), 2), 900)
        ready("tri")
        with session("tri") as writer:
            writer.write(ROWS, copies=COPIES)
    with step("a wrong manifest of what exists"):
        reapplied()
    with step("F3: labels come back"):
        labels_come_back()
    cannot_start()
    with step("F4: a rolling restart"):
        roll()
    partly_kept()
    with step("F6: grace periods"):
        grace()
    kubectl("delete", "namespace", NS, timeout=2000)


if __name__ == "__main__":
    main(job)
